"""Tables depend on the events alone: not on hashing, time zone, working directory or process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from projections import fingerprint
from tests.projections.test_columns import diamond
from tests.projections.test_modules import blocks

ROOT = Path(__file__).resolve().parents[2]

PRINTS = """
from projections import fingerprint
from tests.projections.test_columns import diamond
from tests.projections.test_modules import blocks

for made in (diamond(), blocks()):
    print(fingerprint(made.tables()))
"""


@pytest.mark.parametrize(("seed", "zone"), [("1", "UTC"), ("2", "Asia/Kathmandu")])
def test_another_process_gives_the_same_fingerprints(seed: str, zone: str, tmp_path: Path) -> None:
    surroundings = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, "-c", PRINTS], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == [fingerprint(made.tables()) for made in (diamond(), blocks())]
