"""What saving and loading an artifact costs, against safetensors writing and reading the same tensors.

    python tools/bench_artifact.py [--model gpt2] [--tokens 128] [--batch 1] [--rounds 5] [--folder DIR]

``save_file`` is ``safetensors.torch.save_file`` of every stored activation, in one file, which is then flushed to the
disk with its folder; nothing else is written. ``first`` is ``trace.save`` of a trace of which nothing was read, so that
its records are made, too; ``again`` is another one of the same trace. ``load_file`` is safetensors reading all its
tensors, each copied, since it maps the file and would read nothing; ``load`` is ``tl.load`` and every activation of it,
``lazy`` the same with ``lazy=True``. All in turn, round by round; the ratio is that of the medians. A save, or a load,
may cost at most 1.5 times what safetensors needs.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="one of bench_models.py")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="on the disk to be tried")
    return parser.parse_args()


def timed(of: Callable[[], Any]) -> float:
    gc.collect()
    start = time.perf_counter()
    made = of()
    spent = time.perf_counter() - start
    del made
    return spent


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


def read_all(path: Path, *, lazy: bool) -> list[torch.Tensor]:
    trace = tl.load(path, lazy=lazy)
    return [op.out for op in trace.ops.saved]


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)  # copies of many small tensors: on a machine with other work, threads wait for each other
    model, x = build(options.model)
    if options.model == "gpt2":
        torch.manual_seed(0)
        x = torch.randint(model.config.vocab_size, (options.batch, options.tokens))
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    path, plain = folder / "a.tlspec", folder / "plain.safetensors"
    with torch.no_grad():
        tensors = stored_activations(tl.trace(model, x))
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    times: dict[str, list[float]] = {name: [] for name in ("save_file", "first", "again", "load_file", "load", "lazy")}
    for _ in range(options.rounds):
        with torch.no_grad():
            trace = tl.trace(model, x)
        os.sync()
        times["save_file"].append(timed(lambda: flushed(tensors, plain)))
        times["first"].append(timed(lambda trace=trace: trace.save(path)))
        shutil.rmtree(path)
        times["again"].append(timed(lambda trace=trace: trace.save(path)))
        times["load_file"].append(timed(lambda: [one.clone() for one in load_file(plain).values()]))
        times["load"].append(timed(lambda: read_all(path, lazy=False)))
        times["lazy"].append(timed(lambda: read_all(path, lazy=True)))
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        shutil.rmtree(path)
        plain.unlink()
        trace.cleanup()
    shutil.rmtree(folder)
    return report(options, times, len(tensors), nbytes, size)


def report(options: argparse.Namespace, times: dict[str, list[float]], count: int, nbytes: int, size: int) -> int:
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    table = Table(title=f"{options.model}: {count} tensors, {nbytes / 1e6:.0f} MB; artifact {size / 1e6:.0f} MB")
    for heading in ("", "seconds", "smallest", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, spent in medians.items():
        base = medians["save_file" if name in ("save_file", "first", "again") else "load_file"]
        table.add_row(name, f"{spent:.3f}", f"{min(times[name]):.3f}", f"{spent / base:.2f}")
    Console(width=100).print(table)
    saves = max(medians["first"], medians["again"]) <= MOST * medians["save_file"]
    loads = max(medians["load"], medians["lazy"]) <= MOST * medians["load_file"]
    said = {True: "held", False: "NOT HELD"}
    print(f"at most {MOST} times safetensors: save {said[saves]}, load {said[loads]}")
    return 0 if saves and loads else 1


if __name__ == "__main__":
    sys.exit(main())
