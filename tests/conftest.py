"""What tests of every part use: the two journals, and how hypothesis runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from journal import Journal, LmdbJournal, MemoryJournal
from tests.work import set_aside

# A law may use one journal for all its examples: each takes a stream of its own. How long an example takes to draw or
# to run says how fast the machine is, and is no reason to fail.
settings.register_profile(
    "project",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("project"), max_examples=500)
settings.load_profile("project")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then those with many, so that no worker is left alone with a long one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    many = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -many[item.path]))


def pytest_collection_finish() -> None:
    set_aside()


@pytest.fixture(params=["memory", "lmdb"])
def any_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    """An empty journal, once in memory and once on disk."""
    journal = MemoryJournal() if request.param == "memory" else LmdbJournal(tmp_path / "any.journal", sync="none")
    yield journal
    journal.close()
