"""Tables depend on the events alone: not on hashing, time zone, working directory or process."""

from __future__ import annotations

from pathlib import Path

import pytest

from projections import fingerprint
from tests.programs import run, surroundings
from tests.projections.test_columns import diamond
from tests.projections.test_modules import blocks

PRINTS = """
from projections import fingerprint
from tests.projections.test_columns import diamond
from tests.projections.test_modules import blocks

for made in (diamond(), blocks()):
    print(fingerprint(made.tables()))
"""


@pytest.mark.parametrize(("seed", "zone"), [("1", "UTC"), ("2", "Asia/Kathmandu")])
def test_another_process_gives_the_same_fingerprints(seed: str, zone: str, tmp_path: Path) -> None:
    printed = run(PRINTS, cwd=tmp_path, env=surroundings(PYTHONHASHSEED=seed, TZ=zone))
    assert printed.stdout.split() == [fingerprint(made.tables()) for made in (diamond(), blocks())]
