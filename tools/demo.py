"""Trace a small GPT-2 into a journal on disk, forward and backward, check it, and read it back in another process.

    python tools/demo.py                 # everything
    python tools/demo.py --read PATH     # the reading alone, on any journal that holds one capture

Leaves under ``demo/``, to look at: ``page.html``, all of it as a page for a browser; ``graph.svg``, a picture of the
forward and backward; ``gpt2.tlspec``, the capture as an artifact; the journal itself, ``summary.txt``, and ``ops.csv``
with one row per op.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 (after the path above)

import torchlens as tl  # noqa: E402 (this tree's, also where it is not installed)
from torchlens.quantities import Bytes  # noqa: E402 (likewise)

FOLDER = ROOT / "demo"
JOURNAL = FOLDER / "gpt2.journal"
COLUMNS = (
    *("label", "func_name", "shape", "dtype", "module", "parents", "var_names"),
    *("func_duration", "flops_forward", "activation_memory", "mean", "std", "has_grad"),
)
"""What ``ops.csv`` has of each op."""


def small_gpt2() -> tuple[torch.nn.Module, torch.Tensor]:
    """The real architecture at a small size; random weights, nothing is downloaded."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_head=4, n_embd=64, vocab_size=256, n_positions=64, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval(), torch.randint(config.vocab_size, (2, 24))


def write() -> None:
    model, tokens = small_gpt2()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    bare = model(tokens)

    trace = tl.trace(model, tokens, journal=JOURNAL)
    assert torch.equal(trace.output.logits, bare.logits)
    print(f"Traced {trace.num_ops} ops and {len(trace.module_calls)} module calls; the logits are bit for bit those of")
    print("the model without tracing.")
    trace.backward(loss_of(trace.output.logits, tokens), save_grads=True)
    print(
        f"Its backward fired {len(trace.autograd.grad_fn_calls)} nodes; {same_gradients(model, tokens)} parameters got"
    )
    trace.cleanup()
    print(f"the gradient of a bare backward, bit for bit. The journal has {Bytes(size_of(JOURNAL))}.\n")
    check(model, tokens)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """How badly each token but the first was foretold, in nats."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def same_gradients(model: torch.nn.Module, tokens: torch.Tensor) -> int:
    """How many parameters have the gradient that a backward without tracing gives them, as all must."""
    traced = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    loss_of(model(tokens).logits, tokens).backward()
    for before, parameter in zip(traced, model.parameters(), strict=True):
        assert before is not None
        assert torch.equal(before, parameter.grad)
    return len(traced)


def check(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    """Whether the forward was seen whole, and whether what was recorded of it is true."""
    watched = tl.trace(model, tokens, save="none", capture=tl.CaptureOptions(verify_capture=True))
    print(f"In a second trace, which keeps no values, every operator that torch ran was counted:\n{watched.health}\n")
    watched.cleanup()
    report = tl.validation.report(model, tokens)
    print(f"Every call was made again, and each of its parents changed:\n{report.summary()}\n")
    assert report


def read(path: Path) -> None:
    trace = tl.load(path)
    summary = str(trace.summary())
    print(f"{summary}\n\nWhere the work is: {work_of(trace)}")
    if (op := last_kept(trace)) is not None:
        print(f"{op.label} ran in {' > '.join(op.modules) or 'the model itself'}")
        shape, mean = tuple(op.out.shape), op.out.float().mean().item()
        print(f"and returned a tensor of shape {shape}, mean {mean:+.6f}, read from disk.")
    tell_backward(trace)
    walk(path)
    with tl.open_journal(path) as view:
        report = view.verify()
    stored = f"{report.events:,} events and {Bytes(report.payload_bytes)} of payloads"
    print(f"Every byte was looked at: {stored} are {'as they were written' if report.ok else 'DAMAGED'}.")
    results = tl.reproject(path)
    print(f"The records were folded anew and kept for a later version to compare: {results.captures[0].status}.")
    leave(trace, FOLDER)


def leave(trace: Any, folder: Path) -> None:
    """Write what there is to look at, and say where it is."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.txt").write_text(f"{trace.summary()}\n", encoding="utf-8")
    trace.to_pandas()[list(COLUMNS)].to_csv(folder / "ops.csv", index=False)
    save(trace, folder / "gpt2.tlspec")
    picture = draw(trace, folder / "graph.svg")
    page = trace.to_html(folder / "page.html", overwrite=True)
    print("\nOpen in a browser:")
    print(f"  {page.as_uri()}\n    the graph, every op with its source and values, and a time scrubber over all events")
    if picture is not None:
        print(f"  {picture.as_uri()}\n    a picture of the forward and the backward")


def save(trace: Any, path: Path) -> None:
    """Save the capture as an artifact, and hold what is loaded from it against the capture."""
    trace.save(path, overwrite=True)
    loaded = tl.load(path, lazy=True)
    difference = tl.first_difference(trace, loaded)
    told = "nothing differs" if not difference else f"DIFFERENT: {difference}"
    print(f"Saved as {path.name}, {Bytes(size_of(path))}, and loaded back: {len(loaded.ops)} ops, and {told}.")
    loaded.cleanup()
    assert not difference


def draw(trace: Any, path: Path) -> Path | None:
    """Draw the forward and the backward side by side; None where nothing is installed that draws."""
    try:
        trace.draw(graph="combined").save(path, overwrite=True)
    except tl.TorchLensError as exc:
        if exc.code != "graphviz_unavailable":
            raise
        print(f"No picture: {exc}")
        return None
    return path


def tell_backward(trace: Any) -> None:
    """The backward passes, and the largest gradients of ops that were kept."""
    for one in trace.autograd.backward_passes:
        print(f"Backward pass {one.pass_index}, begun by {one.trigger}: {one.status}, {one.num_grad_fn_calls} firings.")
    norms = {op.label: op.grad.norm().item() for op in trace.ops if op.has_grad}
    most = sorted(norms, key=norms.__getitem__, reverse=True)[:3]
    if most:
        print("The largest gradients, read from disk:", ", ".join(f"{label} {norms[label]:.3f}" for label in most))


def walk(path: Path) -> None:
    """Through the last softmax or attention, forwards, and to its gradient, then back to where the backward began."""
    with tl.time_travel(path) as cursor:
        most = last_kept(cursor.whole)
        if most is None or not len(cursor.whole.autograd.backward_passes):
            return
        cursor.next(tl.label(most.label))
        print(
            f"Time travel: at event {cursor.event.at} of {cursor.num_events}, {len(cursor.trace.ops)} ops have run;",
            end=" ",
        )
        print(f"{most.label} changes {len(cursor.changed())} cells and rows.")
        cursor.next(tl.grad(most.label))
        fired, all_fired = len(cursor.trace.autograd.grad_fn_calls), len(cursor.whole.autograd.grad_fn_calls)
        place = cursor.where().place
        print(f"Its gradient comes at event {cursor.event.at}, when {fired} of {all_fired} nodes have fired;", end=" ")
        print(f"the forward made it at {Path(place.file).name}:{place.line}.")
        cursor.previous("pass_opened")
        increments = sum(len(param.grads) for param in cursor.trace.params)
        print(
            f"Back at event {cursor.event.at}, as this backward begins, {increments} parameters have a gradient of it."
        )


def work_of(trace: Any) -> str:
    """The functions with the most FLOPs, and their share of the forward's."""
    costs = {name: cost["forward"] for name, cost in trace.flops_by_op_type.items()}
    most = sorted(costs, key=costs.__getitem__, reverse=True)[:3]
    shares = (f"{name} {costs[name]} ({costs[name] / sum(costs.values()):.0%})" for name in most if costs[name])
    return ", ".join(shares) or "no FLOPs"


def last_kept(trace: Any) -> Any:
    """The last attention where the model has one, else the last op, of those whose tensor was kept."""
    kept = [op for op in trace.ops if op.is_compute_op and op.has_saved_activation]
    attentions = [op for op in kept if op.func_name == "scaled_dot_product_attention"]
    return (attentions or kept or [None])[-1]


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", type=Path, metavar="PATH", help="only read this journal")
    options = parser.parse_args()
    if options.read:
        read(options.read)
        return
    write()
    print("Another process reads the journal:\n", flush=True)
    subprocess.run([sys.executable, __file__, "--read", str(JOURNAL)], check=True)
    left = ", ".join(sorted(entry.name for entry in FOLDER.iterdir()))
    print(f"\nTo look at, in {FOLDER.relative_to(ROOT)}/: {left}")


if __name__ == "__main__":
    main()
