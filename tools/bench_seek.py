"""What it costs to see a long capture as it stood at any of its events.

    python tools/bench_seek.py [--events 1000000] [--spacing 4096] [--seeks 500] [--json FILE]

Writes a made-up capture of that many events through the journal's writer into a temporary folder: a loop of
one block with its modules, one of which hands its input through, calls with parameters, an in-place one and a
branch. Then folds it once, and asks for moments: at random events, and step by step backwards and
forwards; first of a projector, then through a cursor, which also looks for events by type, by predicate and by
selector. The garbage collector is paused meanwhile, as it is while a trace reads its tables: what is made has no
cycles, and looking for some in a million rows takes longer than the moment. A pass that fell due comes when it goes
on again: the largest times are those. Other processes disturb the times: the load of the machine before and
after stands with them, and so does the time of the processor alone, which they disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from journal import open_for_reading, open_for_writing  # noqa: E402 (this tree's, also where it is not installed)
from journal.events import Event, StreamId, StreamOpened  # noqa: E402 (the same)
from projections import Projector  # noqa: E402 (the same)
from projections.folds.snapshots import SPACING  # noqa: E402 (the same)
from projections.selecting.selector import func  # noqa: E402 (the same)
from tests.projections.making import TICK_NS, Made  # noqa: E402 (the same)
from torchlens import collector  # noqa: E402 (the same)
from torchlens.reading.source import StreamSource  # noqa: E402 (the same)
from torchlens.travel.cursor import time_travel  # noqa: E402 (the same)

STEPS = 2000

ENVIRONMENT = (("python", "3.11.7"), ("torch", "2.13.0+cpu"), ("platform", "linux"))


class Writing:
    """Appends what was made up so far, so that a long capture need not be held."""

    def __init__(self, path: Path, made: Made) -> None:
        self.journal = open_for_writing(path)
        self.made = made
        opened = made.events.pop(0)
        assert isinstance(opened, StreamOpened)
        self.writer = self.journal.open_stream(attrs.evolve(opened, environment=ENVIRONMENT), 0)
        self.count = 1

    def append(self) -> None:
        events: list[Event] = self.made.events
        for event in events:
            self.writer.append(event, TICK_NS * self.count)
            self.count += 1
        events.clear()

    def close(self) -> None:
        self.append()
        self.writer.close()
        self.journal.close()


def write(path: Path, count: int) -> int:
    """A journal with one capture of about ``count`` events; how many they are."""
    modules = {"blk": "Block", "blk.fc": "Linear", "blk.act": "ReLU", "blk.drop": "Dropout"}
    made = Made(modules, {"blk.fc.weight": (4, 4), "blk.fc.bias": (4,)})
    x = made.input("x")
    writing = Writing(path, made)
    while writing.count < count:
        with made.call("blk", x, site="blk") as block:
            with made.call("blk.fc", x, site="fc") as fc:
                fc.returns(made.op("linear", x, "blk.fc.weight", "blk.fc.bias", site="linear"))
            with made.call("blk.act", fc.output, site="act") as act:
                act.returns(made.op("relu", fc.output, site="relu"))
            with made.call("blk.drop", act.output, site="drop") as drop:
                drop.returns(act.output)
            y = made.op("add", drop.output, x, site="add", plain=(1.0,))
            y = made.op("mul_", y, site="mul", writes=0, plain=(0.5,))
            block.returns(made.op("tanh", y, site="tanh"))
        x = block.output
        writing.append()
    made.returns(x)
    writing.close()
    return writing.count


Times = list[tuple[float, float]]
"""Milliseconds that each took: on the wall, of the processor."""


def timed(one: Callable[[int], object], items: Sequence[int], *, is_paused: bool = True) -> Times:
    times: Times = []
    for item in items:
        start, start_cpu = time.perf_counter_ns(), time.process_time_ns()
        with collector.paused() if is_paused else nullcontext():
            one(item)
        stop, stop_cpu = time.perf_counter_ns(), time.process_time_ns()
        times.append(((stop - start) / 1e6, (stop_cpu - start_cpu) / 1e6))
    return times


def through_a_cursor(path: Path, count: int, seeks: int) -> dict[str, Any]:
    """The same through a cursor, with the event that it stands on; nothing is paused but what it pauses itself.

    What looks through events is told per event that was looked at.
    """
    with time_travel(path) as cursor:

        def look(number: int) -> None:
            assert cursor.seek(number).event is not None
            assert cursor.trace.moment.head == number + 1

        def go(move: Callable[[], object]) -> None:
            move()
            assert cursor.event is not None
            assert cursor.trace.moment.head == cursor.position

        draw = random.Random(1)
        ((first_ms, _),) = timed(look, [count - 1], is_paused=False)
        seek = timed(look, [draw.randrange(count) for _ in range(seeks)], is_paused=False)
        cursor.seek(0.5)
        back = timed(lambda _: go(cursor.back), range(STEPS), is_paused=False)
        forth = timed(lambda _: go(cursor.step), range(STEPS), is_paused=False)
        found: dict[str, float] = {"first_look_ms": first_ms}
        cursor.seek(-1)
        ((ms, _),) = timed(lambda _: cursor.previous("capture_requested"), [0], is_paused=False)
        found["previous_by_type_us_per_event"] = 1e3 * ms / count
        looked = min(count, 100_000)
        cursor.seek(looked - 1)
        ((ms, _),) = timed(lambda _: cursor.previous(lambda event, _: event.at == 0), [0], is_paused=False)
        found["previous_by_predicate_us_per_event"] = 1e3 * ms / looked
        last = min(count, 10_000)
        ((ms, _),) = timed(
            lambda _: cursor.next(lambda event, then: then.moment.counts["ops"] < 0 or event.at == last - 1), [0]
        )
        found["next_by_moment_us_per_event"] = 1e3 * ms / last
        ((ms, _),) = timed(lambda _: cursor.whole.tables, [0], is_paused=False)
        found["tables_ms"] = ms
        ((ms, _),) = timed(lambda _: cursor.seek(0.0).next(func("tanh")), [0], is_paused=False)
        found["first_answer_to_a_selector_ms"] = ms
        cursor.seek(0.5)
        ((ms, _),) = timed(lambda _: cursor.trace.ops.labels, [0], is_paused=False)
        found["trace_half_way_ms"] = ms
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seek by cursor": spread(seek),
        "back by cursor": spread(back),
        "step by cursor": spread(forth),
        "cursor": {**found, "peak_memory_mb": peak},
    }


def spread(times: Times) -> dict[str, float]:
    wall = sorted([one for one, _ in times])
    return {
        "median_ms": statistics.median(wall),
        "p95_ms": wall[int(0.95 * (len(wall) - 1))],
        "max_ms": wall[-1],
        "over_50_ms": sum([one > 50 for one in wall]),
        "cpu_median_ms": statistics.median([cpu for _, cpu in times]),
        "cpu_max_ms": max([cpu for _, cpu in times]),
    }


def measure(events: int, spacing: int, seeks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.journal"
        load = os.getloadavg()[0]
        count = write(path, events)
        journal_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        journal = open_for_reading(path)
        projector = Projector(StreamSource(journal, StreamId(0)), spacing=spacing)
        ((folding_ms, folding_cpu_ms),) = timed(projector.at, [count])
        draw = random.Random(0)
        random_times = timed(projector.at, [draw.randrange(count + 1) for _ in range(seeks)])
        middle = count // 2
        projector.at(middle)
        back = timed(projector.at, range(middle - 1, middle - STEPS, -1))
        forth = timed(projector.at, range(middle - STEPS, middle))
        journal.close()
        cursor = through_a_cursor(path, count, seeks)
    taken = projector.snapshots.taken
    snapshot_bytes = sum(map(len, taken.values()))
    return {
        "events": count,
        "spacing": spacing,
        "load": [load, os.getloadavg()[0]],
        "journal_bytes": journal_bytes,
        "snapshots": len(taken),
        "snapshot_bytes": snapshot_bytes,
        "snapshot_share": snapshot_bytes / journal_bytes,
        "fold_us_per_event": 1e3 * folding_ms / count,
        "fold_cpu_us_per_event": 1e3 * folding_cpu_ms / count,
        "seek": spread(random_times),
        "step back": spread(back),
        "step forward": spread(forth),
        **cursor,
    }


def show(console: Console, found: dict[str, Any]) -> None:
    table = Table(
        title=f"{found['events']:,} events, a snapshot every {found['spacing']:,}",
        caption=f"load of the machine {found['load'][0]:.1f} before, {found['load'][1]:.1f} after",
    )
    table.add_column("to get to a moment")
    names = ("median_ms", "p95_ms", "max_ms", "over_50_ms", "cpu_median_ms", "cpu_max_ms")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for way in ("seek", "step back", "step forward", "seek by cursor", "back by cursor", "step by cursor"):
        table.add_row(way, *[f"{found[way][name]:.{0 if name == 'over_50_ms' else 2}f}" for name in names])
    console.print(table)
    console.print(
        f"journal {found['journal_bytes'] / 1e6:.1f} MB, {found['snapshots']} snapshots of together "
        f"{found['snapshot_bytes'] / 1e3:.1f} kB, {found['snapshot_share']:.4%} of it; "
        f"folding once {found['fold_us_per_event']:.2f} us an event, reading and snapshots included, "
        f"{found['fold_cpu_us_per_event']:.2f} us of the processor"
    )
    console.print(
        "cursor: " + ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in found["cursor"].items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--spacing", type=int, default=SPACING, help="events between two snapshots")
    parser.add_argument("--seeks", type=int, default=500, help="random moments asked for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args()
    found = measure(options.events, options.spacing, options.seeks)
    show(Console() if sys.stdout.isatty() else Console(width=120), found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
