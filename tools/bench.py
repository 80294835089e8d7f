"""What tracing costs, against the bare forward and, if asked, against TorchLens 2.36.1.

    python tools/bench.py [--models mlp100,resnet18,gpt2] [--rounds 12] [--no-grad] [--json FILE]
    python tools/bench.py --peer OTHER/bin/python      # the release, in its own virtual environment
    python tools/bench.py --growth                     # a loop of 1,000 to 100,000 calls
    python tools/bench.py --backward                   # forward and backward, every gradient saved (bench_backward.py)

Everything is timed in one run, the ways of running in turn, since the same machine gives other times
minutes later: compare ratios, never two runs' milliseconds. Two torch threads, grad mode on unless
``--no-grad``. A round in which other processes used more than 15 % of one core is done again and left out,
and the table says how many were; without /proc/stat every round counts.

Each sample follows an untimed bare forward, so that all find the same caches and the same free memory, the
other process too. A trace is timed until it is returned and, where records are read, until its tables are there; it is
cleaned up before the next is timed. The wrappers go on and off within every timed trace, except in
the rows that stand inside ``tl.wrapped()``.

The row "replayable" is a capture that ``trace.run`` can run again: compare it with "every payload in memory".

The row "held open" appends to one journal that someone else keeps open too, as a training loop does. The rows by event
and with sync="all" wait for the disk at every commit, so each is sampled once a round; ``--no-slow`` leaves them out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import bench_backward  # noqa: E402 (beside this file)
from bench_models import MODELS, build  # noqa: E402 (the peer's process must find it beside this file)

import torchlens as tl  # noqa: E402 (this tree's, also where it is not installed)
from journal import LmdbJournal, open_for_writing  # noqa: E402 (likewise)
from journal.lmdb_journal import Durability  # noqa: E402 (likewise)
from journal.lmdb_opening import Sync  # noqa: E402 (likewise)

QUIET: Final = 0.15  # of one core, used by others
MODEL_SECONDS: Final = 120  # of rounds for one model, once there are three of them
ROUND_SECONDS: Final = 0.3  # a round is repeated within itself up to this, as /proc/stat counts in 10 ms
SIZES: Final = (1_000, 10_000, 100_000)
PEER_SIZES: Final = (1_000, 10_000)  # at 100,000 the release takes minutes a trace

WAYS: Final[dict[str, dict[str, Any]]] = {
    "events only": {"save": [], "read": False, "stored": False},
    "events and records": {"save": [], "read": True, "stored": False},
    "every payload in memory": {"save": None, "read": True, "stored": False},
    "every payload in memory, unread": {"save": None, "read": False, "stored": False},
    "every payload in memory, replayable": {"save": None, "read": True, "stored": False, "replayable": True},
    "every payload in a journal": {"save": None, "read": True, "stored": True},
    "every payload in a journal, held open": {"save": None, "read": True, "stored": True, "held": True},
}

SLOW_WAYS: Final[dict[str, dict[str, Any]]] = {
    "every payload in a journal, by event": {"save": None, "read": True, "stored": True, "durability": "event"},
    "every payload in a journal, sync all": {"save": None, "read": True, "stored": True, "sync": "all"},
}

SPARSE_WAYS: Final = ("relu in memory", "recorded relu", "stopped at a quarter")
"""Part of the payloads, the same through ``tl.record``, and the forward left after a quarter of its compute ops.

Nothing is read: compare the first two with "every payload in memory, unread", the last with "bare: left at a quarter".
"""

HELD_BYTES: Final = 2 << 30
"""A journal that is held open is begun anew when it has grown to this."""


RELU: Final = tl.func("relu") | tl.func("tanh")
"""What the sparse ways keep: the activation functions of the models."""


class Left(BaseException):
    """Leaves a bare forward."""


class Ours:
    """One model, run bare or traced one of the ways above."""

    def __init__(self, name: str, *, grad: bool, folder: Path) -> None:
        self.model, self.x = build(name)
        self.grad = grad
        self.folder = folder
        self.num_traces = 0
        self.held: LmdbJournal | None = None
        self.stop: str | None = None

    def bare(self) -> int:
        with torch.set_grad_enabled(self.grad):
            start = time.perf_counter_ns()
            out = self.model(self.x)
            spent = time.perf_counter_ns() - start
        del out  # its graph goes after the clock stopped, as that of a trace does
        return spent

    def traced(
        self,
        *,
        save: Any,
        read: bool,
        stored: bool,
        held: bool = False,
        replayable: bool = False,
        durability: Durability = "batch",
        sync: Sync = "events",
    ) -> int:
        self.num_traces += 1
        path = Path(self.held_open().path) if held else self.folder / f"{self.num_traces}.journal"
        journal = tl.JournalOptions(path, durability=durability, sync=sync) if stored else None
        capture = tl.CaptureOptions(replayable=True) if replayable else None
        with torch.set_grad_enabled(self.grad):
            start = time.perf_counter_ns()
            trace = tl.trace(self.model, self.x, save=save, journal=journal, capture=capture)
            if read:
                read_tables(trace)
            spent = time.perf_counter_ns() - start
        trace.cleanup()
        if stored and not held:
            shutil.rmtree(path)
        return spent

    def sparse(self, way: str) -> int:
        """One of ``SPARSE_WAYS``; nothing is read."""
        quarter = self.quarter()
        with torch.set_grad_enabled(self.grad):
            start = time.perf_counter_ns()
            if way == "recorded relu":
                made: Any = tl.record(self.model, self.x, save=RELU)
            elif way == "relu in memory":
                made = tl.trace(self.model, self.x, save=RELU)
            else:
                made = tl.trace(self.model, self.x, save=[], stop_after=quarter)
            spent = time.perf_counter_ns() - start
        made.cleanup()
        return spent

    def left_at_quarter(self) -> int:
        """The bare forward, left where "stopped at a quarter" is: no capture can cost less."""
        address, _, number = self.quarter().partition(":")
        calls_left = int(number)

        def leave(*_: Any) -> None:
            nonlocal calls_left
            calls_left -= 1
            if not calls_left:
                raise Left

        hook = self.model.get_submodule(address).register_forward_hook(leave)
        with torch.set_grad_enabled(self.grad):
            start = time.perf_counter_ns()
            with contextlib.suppress(Left):
                self.model(self.x)
            spent = time.perf_counter_ns() - start
        hook.remove()
        return spent

    def quarter(self) -> str:
        """The module call whose result is made nearest to a quarter of the compute ops."""
        if self.stop is None:
            trace = tl.trace(self.model, self.x, save=[])
            steps = dict(zip(trace.ops.labels, trace.ops.column("step_index"), strict=True))
            wanted = trace.num_ops / 4
            calls = [(call.call_label, steps[call.output_ops[0]]) for call in trace.module_calls if call.output_ops]
            self.stop = min(calls, key=lambda call: abs(call[1] - wanted))[0]
            trace.cleanup()
        return self.stop

    def held_open(self) -> LmdbJournal:
        """The journal that is open all the time, begun anew where it has grown too large."""
        if self.held is not None and size_of(Path(self.held.path)) > HELD_BYTES:
            self.close()
        if self.held is None:
            self.held = open_for_writing(self.folder / "held.journal")
        return self.held

    def close(self) -> None:
        if self.held is not None:
            self.held.close()
            shutil.rmtree(self.held.path)
            self.held = None

    def num_ops(self) -> int:
        trace = tl.trace(self.model, self.x, save=[])
        count = int(trace.num_ops)
        trace.cleanup()
        return count


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def read_tables(trace: Any) -> None:
    for table in (trace.ops, trace.layers, trace.modules, trace.module_calls):
        _ = table.labels


class PeerProcess:
    """The release, answering over pipes."""

    def __init__(self, python: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, str(ROOT / "tools" / "bench_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.cpu = 0.0

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the other process ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        self.cpu = answer.get("cpu", self.cpu)
        return answer

    def run(self, mode: str) -> int:
        return int(self.ask(run=mode)["ns"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Watch:
    """How much of one core other processes used since ``start``."""

    def __init__(self, peer: PeerProcess | None) -> None:
        self.peer = peer

    def start(self) -> None:
        self.at = self.read()

    def others(self) -> float | None:
        busy, ours, wall = (new - old for new, old in zip(self.read(), self.at, strict=True))
        return None if self.at[0] == 0 else max(0.0, busy - ours) / wall

    def read(self) -> tuple[float, float, float]:
        ours = time.process_time() + (self.peer.cpu if self.peer else 0.0)
        return busy_seconds(), ours, time.perf_counter()


def busy_seconds() -> float:
    """CPU time that this machine has spent on anything, all cores together; 0 where it does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    idle, iowait = int(fields[3]), int(fields[4])
    return (sum(map(int, fields[:8])) - idle - iowait) / os.sysconf("SC_CLK_TCK")


Round = dict[str, float]
"""Median nanoseconds of each way of running."""


def one_round(ours: Ours, peer: PeerProcess | None, inner: int, *, slow: bool) -> Round:
    samples: dict[str, list[int]] = defaultdict(list)

    def sample(name: str, run: Callable[[], int]) -> None:
        ours.bare()  # untimed: every sample finds the caches and the allocator as a bare forward leaves them
        samples[name].append(run())

    gc.collect()
    for _ in range(3):  # the collection and the other process have left the caches cold
        ours.bare()
    for _ in range(inner):
        sample("bare", ours.bare)
        for name, way in WAYS.items():
            sample(name, lambda way=way: ours.traced(**way))
        for name in SPARSE_WAYS:
            sample(name, lambda name=name: ours.sparse(name))
        sample("bare: left at a quarter", ours.left_at_quarter)
        with tl.wrapped():
            sample("wrapped: bare", ours.bare)
            for name, way in WAYS.items():
                sample(f"wrapped: {name}", lambda way=way: ours.traced(**way))
    for name, way in SLOW_WAYS.items() if slow else ():
        sample(name, lambda way=way: ours.traced(**way))
    if peer is not None:
        for mode in ("bare", "nothing", "everything"):
            sample(f"peer: {mode}", lambda mode=mode: peer.run(mode))
    return {name: statistics.median(times) for name, times in samples.items()}


def quiet_rounds(
    take: Callable[[], Round], peer: PeerProcess | None, wanted: int
) -> tuple[list[Round], dict[str, int]]:
    """Rounds in which nobody else was busy, at most twice ``wanted`` tries and not for long; all if none was quiet."""
    watch = Watch(peer)
    kept: list[Round] = []
    loud: list[Round] = []
    end = time.monotonic() + MODEL_SECONDS
    while len(kept) < wanted and len(kept) + len(loud) < 2 * wanted:
        if len(kept) + len(loud) >= 3 and time.monotonic() > end:
            break
        watch.start()
        taken = take()
        others = watch.others()
        (kept if others is None or others < QUIET else loud).append(taken)
    counts = {"quiet": len(kept), "disturbed": len(loud)}
    return kept or loud, counts


def ratio(rounds: list[Round], above: str, below: str) -> float:
    """Median over rounds, so that a slow minute slows both sides."""
    return statistics.median(one[above] / one[below] for one in rounds)


def measure(
    name: str, *, grad: bool, wanted: int, peer: PeerProcess | None, folder: Path, slow: bool
) -> dict[str, Any]:
    ours = Ours(name, grad=grad, folder=folder)
    num_ops = ours.num_ops()
    if peer is not None:
        peer.ask(build=name, grad=grad)
    warm = [sum(one_round(ours, None, 1, slow=False).values()) for _ in range(3)]
    inner = max(1, min(50, round(1e9 * ROUND_SECONDS / min(warm))))
    rounds, counts = quiet_rounds(lambda: one_round(ours, peer, inner, slow=slow), peer, wanted)
    ours.close()
    rows = {}
    for way in rounds[0]:
        times = [one[way] for one in rounds]
        rows[way] = {
            "median_ms": statistics.median(times) / 1e6,
            "least_ms": min(times) / 1e6,
            "ratio": ratio(rounds, way, "bare"),
            "us_per_op": statistics.median(one[way] - one["bare"] for one in rounds) / num_ops / 1e3,
        }
    found: dict[str, Any] = {"model": name, "num_ops": num_ops, "grad": grad, "rounds": counts, "ways": rows}
    if peer is not None:
        found["against"] = {
            f"{mine} / {theirs}": {
                "total": ratio(rounds, f"peer: {theirs}", mine),
                "per_op": quotient(rows[f"peer: {theirs}"]["us_per_op"], rows[mine]["us_per_op"]),
            }
            for theirs, mine in pairs()
        }
    return found


def quotient(theirs: float, ours: float) -> float | None:
    """None where ours costs nothing that this machine can tell from noise."""
    return theirs / ours if ours > 0 else None


def pairs() -> Iterator[tuple[str, str]]:
    """(the peer's way, ours) that do the same for a reader."""
    for prefix in ("", "wrapped: "):
        yield "nothing", f"{prefix}events and records"
        yield "everything", f"{prefix}every payload in memory"
        yield "everything", f"{prefix}every payload in a journal"


# -- backward -----------------------------------------------------------------------------------


def backward_round(ours: bench_backward.Differentiated, peer: PeerProcess | None, inner: int) -> Round:
    samples: dict[str, list[int]] = defaultdict(list)
    gc.collect()
    ours.bare()
    for _ in range(inner):
        samples["bare"].append(ours.bare())
        for name, way in bench_backward.WAYS.items():
            ours.bare()
            samples[name].append(ours.traced(**way))
    if peer is not None:
        for mode in ("bare backward", "backward"):
            samples[f"peer: {mode}"].append(peer.run(mode))
    return {name: statistics.median(times) for name, times in samples.items()}


def measure_backward(name: str, *, wanted: int, peer: PeerProcess | None) -> dict[str, Any]:
    ours = bench_backward.Differentiated(name)
    if peer is not None:
        peer.ask(build=name, grad=True)
    num_nodes = ours.num_nodes()
    warm = [sum(backward_round(ours, None, 1).values()) for _ in range(2)]
    inner = max(1, min(50, round(1e9 * ROUND_SECONDS / min(warm))))
    rounds, counts = quiet_rounds(lambda: backward_round(ours, peer, inner), peer, wanted)
    rows = {
        way: {
            "median_ms": statistics.median([one[way] for one in rounds]) / 1e6,
            "ratio": ratio(rounds, way, "peer: bare backward" if way.startswith("peer") else "bare"),
            "us_per_node": statistics.median([one[way] - one["bare"] for one in rounds]) / num_nodes / 1e3,
        }
        for way in rounds[0]
    }
    return {"model": name, "num_nodes": num_nodes, "rounds": counts, "ways": rows}


def show_backward(console: Console, found: dict[str, Any]) -> None:
    rounds = found["rounds"]
    table = Table(
        title=f"{found['model']}: forward and backward, {found['num_nodes']} autograd nodes",
        caption=f"{rounds['quiet']} quiet rounds, {rounds['disturbed']} disturbed",
    )
    table.add_column("way of running")
    for heading in ("median ms", "x bare", "wanted at most", "us per node over bare"):
        table.add_column(heading, justify="right")
    targets = bench_backward.TARGETS.get(found["model"], {})
    for way, row in found["ways"].items():
        wanted = targets.get(way, "-")
        table.add_row(way, f"{row['median_ms']:.2f}", f"{row['ratio']:.2f}", f"{wanted}", f"{row['us_per_node']:.1f}")
    console.print(table)


# -- growth -------------------------------------------------------------------------------------


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def growth_of(size: int) -> dict[str, Any]:
    """Figures of one loop, in a process of its own, since a peak of memory never goes down again."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(f"loop{size}", grad=True, folder=Path(folder))
        Ours("loop100", grad=True, folder=Path(folder)).traced(save=[], read=True, stored=False)
        ours.bare()
        before = peak_bytes()
        trace = tl.trace(ours.model, ours.x, save=[])
        after_events = peak_bytes()
        read_tables(trace)
        after_records = peak_bytes()
        assert trace.num_ops == size
        trace.cleanup()
        path = Path(folder) / "size.journal"
        tl.trace(ours.model, ours.x, save=[], journal=path).cleanup()
        stored = size_of(path)
        rounds, counts = quiet_rounds(lambda: growth_round(ours, max(1, 20_000 // size)), None, 5)
    middle = {way: statistics.median(one[way] for one in rounds) / size / 1e3 for way in rounds[0]}
    return {
        "num_ops": size,
        "rounds": counts,
        "bare_us": middle["bare"],
        "events_us": middle["events only"] - middle["bare"],
        "records_us": middle["events and records"] - middle["events only"],
        "stored_bytes_per_op": stored / size,
        "peak_bytes_per_op": {
            "events": (after_events - before) / size,
            "events and records": (after_records - before) / size,
        },
    }


def growth_round(ours: Ours, inner: int) -> Round:
    times: dict[str, list[int]] = defaultdict(list)
    gc.collect()
    ours.bare()
    for _ in range(inner):
        times["bare"].append(ours.bare())
        for way in ("events only", "events and records"):
            times[way].append(ours.traced(**WAYS[way]))
    return {way: statistics.median(taken) for way, taken in times.items()}


def growth(peer: PeerProcess | None) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        done = subprocess.run(
            [sys.executable, __file__, "--growth-of", str(size)], stdout=subprocess.PIPE, text=True, check=True
        )
        row = json.loads(done.stdout)
        if peer is not None and size in PEER_SIZES:
            peer.ask(build=f"loop{size}", grad=True)
            times = [peer.run("nothing") - peer.run("bare") for _ in range(3)]
            row["peer_us"] = statistics.median(times) / size / 1e3
        rows.append(row)
    return rows


# -- report -------------------------------------------------------------------------------------


def show_model(console: Console, found: dict[str, Any]) -> None:
    grad = "on" if found["grad"] else "off"
    rounds = found["rounds"]
    note = f"{rounds['quiet']} quiet rounds, {rounds['disturbed']} disturbed ones left out"
    if not rounds["quiet"]:
        note = f"no quiet round: all {rounds['disturbed']} disturbed ones are counted, distrust them"
    table = Table(title=f"{found['model']}: {found['num_ops']} ops, grad mode {grad}", caption=note)
    table.add_column("way of running")
    for heading in ("median ms", "least ms", "x bare", "us per op over bare"):
        table.add_column(heading, justify="right")
    for way, row in found["ways"].items():
        table.add_row(
            way,
            f"{row['median_ms']:.2f}",
            f"{row['least_ms']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['us_per_op']:.1f}",
        )
    console.print(table)
    if "against" in found:
        table = Table(title=f"{found['model']}: TorchLens 2.36.1 over ours")
        table.add_column("ours / theirs")
        table.add_column("total", justify="right")
        table.add_column("per op, over bare", justify="right")
        for names, row in found["against"].items():
            per_op = "-" if row["per_op"] is None else f"{row['per_op']:.0f}"
            table.add_row(names, f"{row['total']:.1f}", per_op)
        console.print(table)


def show_growth(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="a loop, nothing saved: per op", caption="us and bytes per op; quiet: rounds")
    headings = (
        "ops",
        "bare us",
        "events us",
        "records us",
        "stored B",
        "peak B",
        "peak B, records",
        "peer us",
        "quiet",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['num_ops']:,}",
            f"{row['bare_us']:.2f}",
            f"{row['events_us']:.2f}",
            f"{row['records_us']:.2f}",
            f"{row['stored_bytes_per_op']:.0f}",
            f"{row['peak_bytes_per_op']['events']:.0f}",
            f"{row['peak_bytes_per_op']['events and records']:.0f}",
            f"{row['peer_us']:.0f}" if "peer_us" in row else "-",
            f"{row['rounds']['quiet']} of {sum(row['rounds'].values())}",
        )
    console.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=12, help="quiet rounds wanted per model")
    parser.add_argument("--no-grad", action="store_true", help="run everything under torch.no_grad()")
    parser.add_argument("--no-slow", action="store_true", help="leave out the rows that wait for the disk")
    parser.add_argument("--growth", action="store_true", help="only the loop, at three sizes")
    parser.add_argument("--backward", action="store_true", help="only forward and backward, every gradient saved")
    parser.add_argument("--growth-of", type=int, metavar="OPS", help="one size, as JSON")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has TorchLens 2.36.1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(2)
    if options.growth_of:
        print(json.dumps(growth_of(options.growth_of)))
        return
    console = Console() if sys.stdout.isatty() else Console(width=120)
    found: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0]}
    with contextlib.ExitStack() as stack:
        peer = None
        if options.peer:
            peer = PeerProcess(options.peer)
            stack.callback(peer.close)
        if options.growth:
            found["growth"] = growth(peer)
            show_growth(console, found["growth"])
        elif options.backward:
            found["backward"] = []
            for name in options.models.split(","):
                row = measure_backward(name, wanted=options.rounds, peer=peer)
                found["backward"].append(row)
                show_backward(console, row)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            found["models"] = []
            for name in options.models.split(","):
                row = measure(
                    name,
                    grad=not options.no_grad,
                    wanted=options.rounds,
                    peer=peer,
                    folder=folder,
                    slow=not options.no_slow,
                )
                found["models"].append(row)
                show_model(console, row)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
