"""Public bug reports about tools that look into models, retold as cases: none of them holds here.

``tests/data/cases/run_traced.py`` says what is checked: tracing changes nothing, the records agree with
the facts, the model is left as it was, and the journal reopened gives the same records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import surroundings

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in (HERE.parent / "data" / "cases" / "cases").glob("[0-9]*.py"))

pytestmark = pytest.mark.slow

Runner = Callable[..., tuple[bool, str]]


@pytest.fixture(scope="module")
def run_case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    environment = surroundings(TMPDIR=str(tmp_path_factory.mktemp("cases")))
    with subprocess.Popen(
        [sys.executable, str(HERE / "serve.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(name: str, *options: str) -> tuple[bool, str]:
            requests.write(" ".join([name, *options]) + "\n")
            requests.flush()
            ok, note = json.loads(answers.readline())
            return ok, note

        yield run
        requests.close()


def test_there_are_cases() -> None:
    assert len(NAMES) == 42


@pytest.mark.parametrize("name", NAMES)
def test_a_case_holds(run_case: Runner, name: str) -> None:
    ok, note = run_case(name)
    assert ok, note
    assert note == "ok"  # not skipped for want of a package


@pytest.mark.parametrize("name", NAMES)
def test_a_case_holds_with_a_journal_on_disk(run_case: Runner, name: str) -> None:
    ok, note = run_case(name, "--journal")
    assert ok, note
