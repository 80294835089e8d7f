"""What folding stored captures anew costs, in events a second.

    python tools/bench_reproject.py [--captures 1000] [--models mlp100,gpt2,loop100000] [--rounds 3] [--json FILE]

For each model a journal of some captures is made, nothing saved but events; of a loop it is one. Then it is timed, in
seconds of CPU, least of the rounds:

    read     events read from the journal and decoded
    fold     and folded, so that tables are there
    alone    and every column of every table made, encoded and digested, each capture by itself
    check    ``tl.reproject(path, check=True)`` over all captures, with their results stored before
    store    the same, where nothing was stored yet, and results are stored

``check`` and ``store`` know captures that differ in times and names alone, as those of one model do, and encode what
these share once; ``alone`` does not, and is what a journal of all different captures costs.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench_models import build  # noqa: E402 (beside this file)

import torchlens as tl  # noqa: E402 (this tree's, also where it is not installed)
from journal import Journal, StreamInfo, open_for_reading  # noqa: E402
from projections import Projector  # noqa: E402
from projections.accounts.twins import Twins  # noqa: E402
from torchlens import folded  # noqa: E402
from torchlens.reading.source import StreamSource  # noqa: E402

WAYS: Final = ("read", "fold", "alone", "check", "store")
SAMPLE: Final = 20
"""Captures of a journal that are read, folded and encoded by themselves."""


def written(name: str, captures: int, folder: Path) -> Path:
    """A journal of some captures of a model."""
    path = folder / f"{name}.journal"
    model, x = build(name)
    with torch.no_grad(), tl.wrapped():
        for step in range(captures):
            tl.trace(model, x, save=[], journal=path, name=f"step {step}").cleanup()
    return path


def read(journal: Journal, info: StreamInfo) -> None:
    for _ in journal.rows(info.stream):
        pass


def fold(journal: Journal, info: StreamInfo) -> None:
    Projector(StreamSource(journal, info.stream)).tables()


def alone(journal: Journal, info: StreamInfo) -> None:
    folded.fold(journal, info, info.head, Twins())


def least(run: Callable[[], object], rounds: int) -> float:
    """Seconds of CPU, of the fastest round."""
    times: list[float] = []
    for _ in range(rounds):
        gc.collect()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(path: Path, rounds: int) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    journal = open_for_reading(path)
    streams = journal.streams()
    sample = streams[:SAMPLE]
    share = sum(info.head for info in streams) / sum(info.head for info in sample)
    for name, part in (("read", read), ("fold", fold), ("alone", alone)):
        seconds[name] = share * least(lambda part=part: [part(journal, info) for info in sample], rounds)
    journal.close()
    cache = path / "cache"

    def store() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        assert tl.reproject(path).ok

    seconds["store"] = least(store, rounds)
    seconds["check"] = least(lambda: tl.reproject(path, check=True), rounds)
    events = sum(info.head for info in streams)
    return {
        "captures": len(streams),
        "events": events,
        "seconds": seconds,
        "events_per_second": {name: events / spent for name, spent in seconds.items()},
        "cache_bytes_per_event": sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) / events,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp100,gpt2,loop100000", help="comma-separated")
    parser.add_argument("--captures", type=int, default=1000, help="captures of the first model; a tenth of the others")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=120)
    table = Table(title="events a second of CPU", caption="alone: no capture has a twin; check, store: tl.reproject")
    for heading in ("model", "captures", "events", *WAYS, "cache B/event"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place, name in enumerate(options.models.split(",")):
            captures = options.captures if place == 0 else max(1, options.captures // 10)
            row = found[name] = measure(
                written(name, 1 if name.startswith("loop") else captures, Path(folder)), options.rounds
            )
            table.add_row(
                name,
                f"{row['captures']:,}",
                f"{row['events']:,}",
                *(f"{row['events_per_second'][way]:,.0f}" for way in WAYS),
                f"{row['cache_bytes_per_event']:.0f}",
            )
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
