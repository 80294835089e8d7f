"""What saving and loading an artifact costs, against safetensors writing and reading the same tensors.

    python tools/bench_artifact.py [--model gpt2] [--tokens 128] [--batch 1] [--rounds 7] [--folder DIR]

``save_file`` is ``safetensors.torch.save_file`` of every stored activation, in one file, which is then flushed to the
disk with its folder; nothing else is written. ``first`` is ``trace.save`` of a trace of which nothing was read, so that
its records are made, too; ``again`` is another one of the same trace.

``load_file`` is safetensors reading all its tensors, each copied, since it maps the file and would read nothing;
``load`` is ``tl.load`` and every activation of it, ``lazy`` the same with ``lazy=True``. Each load has a process of its
own, as memory that a process has had before is several times as quick as fresh one; it has imported everything, and has
loaded a small artifact and a small file before. Which is first changes from round to round; the file cache is warm.

A ratio is the median of those of the rounds. A save, or a load, may cost at most 1.5 times what ``save_file`` needs.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 (this tree's packages come first)
from bench_models import build  # noqa: E402 (the same)
from rich.console import Console  # noqa: E402 (the same)
from rich.table import Table  # noqa: E402 (the same)
from safetensors.torch import load_file, save_file  # noqa: E402 (the same)

import torchlens as tl  # noqa: E402 (the same)

MOST: Final = 1.5

ARTIFACT: Final = "all.tlspec"
PLAIN: Final = "all.safetensors"
SMALL: Final = "small"
"""Folder with the same of a small model."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="one of bench_models.py")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk to be tried")
    parser.add_argument("--load", choices=LOADS, help="time one load from --folder, in this process")
    return parser.parse_args()


def timed(of: Callable[[], Any]) -> float:
    gc.collect()
    os.sync()  # what was written or removed before is not waited for
    start = time.perf_counter()
    made = of()
    spent = time.perf_counter() - start
    del made
    return spent


# Saved ------------------------------------------------------------------------------------------------


def stored_activations(trace: tl.Trace) -> dict[str, torch.Tensor]:
    """Every activation whose bytes an artifact has, once: what is one payload with another is in that one's."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    refs = trace.tables.ops.column("payload_ref")
    for op in trace.ops.saved:
        found.setdefault(refs[op.row][0], (op.label, op.out.detach().contiguous().clone()))
    return dict(found.values())


def flushed(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
    for place in (path, path.parent):
        file = os.open(place, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


# Loaded, each in a process of its own -------------------------------------------------------------------


def copied(folder: Path) -> list[torch.Tensor]:
    return [one.clone() for one in load_file(folder / PLAIN).values()]


def read_all(folder: Path, *, lazy: bool) -> list[torch.Tensor]:
    trace = tl.load(folder / ARTIFACT, lazy=lazy)
    return [op.out for op in trace.ops.saved]


LOADS: Final[Mapping[str, Callable[[Path], list[torch.Tensor]]]] = {
    "load_file": copied,
    "load": lambda folder: read_all(folder, lazy=False),
    "lazy": lambda folder: read_all(folder, lazy=True),
}


def timed_alone(name: str, folder: Path) -> float:
    """Seconds that a load takes in a fresh process."""
    command = [sys.executable, __file__, "--load", name, "--folder", str(folder)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def load_here(name: str, folder: Path) -> int:
    for load in LOADS.values():
        load(folder / SMALL)
    print(timed(lambda: LOADS[name](folder)))
    return 0


# Rounds -------------------------------------------------------------------------------------------------


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)  # copies of many small tensors: on a machine with other work, threads wait for each other
    if options.load:
        return load_here(options.load, options.folder)
    model, x = build(options.model)
    if options.model == "gpt2":
        torch.manual_seed(0)
        x = torch.randint(model.config.vocab_size, (options.batch, options.tokens))
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    (folder / SMALL).mkdir()
    small = tl.trace(torch.nn.ReLU(), torch.ones(4))
    small.save(folder / SMALL / ARTIFACT)
    save_file(stored_activations(small), folder / SMALL / PLAIN)
    with torch.no_grad():
        tensors = stored_activations(tl.trace(model, x))
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    path, plain = folder / ARTIFACT, folder / PLAIN
    times: dict[str, list[float]] = {name: [] for name in ("save_file", "first", "again", *LOADS)}
    for number in range(options.rounds):
        with torch.no_grad():
            trace = tl.trace(model, x)
        times["save_file"].append(timed(lambda: flushed(tensors, plain)))
        times["first"].append(timed(lambda trace=trace: trace.save(path)))
        shutil.rmtree(path)
        times["again"].append(timed(lambda trace=trace: trace.save(path)))
        trace.cleanup()
        names = list(LOADS)
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            times[name].append(timed_alone(name, folder))
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        shutil.rmtree(path)
        plain.unlink()
    shutil.rmtree(folder)
    return report(options, times, len(tensors), nbytes, size)


def ratio(times: Mapping[str, list[float]], name: str, of: str) -> float:
    """Median over rounds, so that a slow minute slows both sides."""
    return statistics.median(one / other for one, other in zip(times[name], times[of], strict=True))


def report(options: argparse.Namespace, times: dict[str, list[float]], count: int, nbytes: int, size: int) -> int:
    table = Table(
        title=f"{options.model}: {count} tensors, {nbytes / 1e6:.0f} MB; artifact {size / 1e6:.0f} MB",
        caption=f"{options.rounds} rounds",
    )
    for heading in ("", "seconds", "smallest", "x save_file", "x load_file"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, spent in times.items():
        of_load = f"{ratio(times, name, 'load_file'):.2f}" if name in LOADS else "-"
        of_save = f"{ratio(times, name, 'save_file'):.2f}"
        table.add_row(name, f"{statistics.median(spent):.3f}", f"{min(spent):.3f}", of_save, of_load)
    Console(width=100).print(table)
    over = [name for name in ("first", "again", "load", "lazy") if ratio(times, name, "save_file") > MOST]
    print(f"at most {MOST} times save_file: " + (f"NOT HELD by {', '.join(over)}" if over else "held"))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
