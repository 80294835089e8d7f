"""Kills writers with SIGKILL, many times, and holds what each leaves against what it had said.

    python tools/crash.py [--kills 1000] [--seed 0] [--programs streams,few,traces] [--modes batch/events,event/none]

``streams``: threads that fill several streams of one journal, new ones and some of before, killed at random moments of
writing, sealing and opening again. ``few``: a short program, killed before each of its calls into C, one after the
other. ``traces``: a training loop's ``tl.trace``, killed at random moments. Each under every durability and sync,
``--kills`` times each (``few`` has as many kills as it has calls, at most). What must hold stands in
``tests/journal/killing.py``.

The first journal that breaks a promise ends the run and is left where it is said to be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.journal.killing import (  # noqa: E402 (this tree's, which is not installed)
    MODES,
    PROGRAMS,
    TRACING,
    WRITERS,
    Tally,
    kill_at_calls,
    kill_at_random,
)
from tests.nursery import Nursery  # noqa: E402 (the same)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, metavar="N", help="of each program in each mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="comma-separated")
    parser.add_argument("--modes", default=",".join("/".join(mode) for mode in MODES), help="durability/sync, ...")
    parser.add_argument("--folder", help="where the journals are made, on the disk to be tried")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    programs = options.programs.split(",")
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    console = Console() if sys.stdout.isatty() else Console(width=120)
    table = Table(
        title="what killed writers left", caption="kills: between commits, and within one that is there or not"
    )
    for heading in ("program", "durability", "sync", "kills", "between", "within, there", "within, not", "no journal"):
        table.add_column(heading, justify="left" if heading in ("program", "durability", "sync") else "right")
    table.add_column("events checked", justify="right")
    table.add_column("seconds", justify="right")
    total = Tally()
    with Nursery(TRACING if "traces" in programs else WRITERS) as nursery:
        for program in programs:
            for mode in options.modes.split(","):
                durability, sync = mode.split("/")
                begun = time.monotonic()
                if program == "few":
                    found = kill_at_calls(nursery, folder, durability, sync, points=options.kills, seed=options.seed)
                else:
                    found = kill_at_random(
                        nursery, folder, program, durability, sync, kills=options.kills, seed=options.seed
                    )
                total += found
                cells = (found.kills, found.between, found.kept, found.lost, found.unmade, f"{found.events:,}")
                table.add_row(program, durability, sync, *map(str, cells), f"{time.monotonic() - begun:.0f}")
                console.print(f"{program} {mode}: {found.kills} kills held")
                for made in folder.iterdir():
                    shutil.rmtree(made) if made.is_dir() else made.unlink()
    console.print(table)
    console.print(f"{total.kills} kills, seed {options.seed}: every promise held")
    folder.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
