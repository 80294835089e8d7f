"""Trace a small GPT-2 into a journal on disk, then read it back in another process.

    python tools/demo.py                 # both halves
    python tools/demo.py --read PATH     # the second half alone, on any journal that holds one capture

Leaves under ``demo/``, to look at: the journal itself, ``summary.txt``, ``ops.csv`` with one row per op,
and ``ops.html``, the same as a page.
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

FOLDER = ROOT / "demo"
JOURNAL = FOLDER / "gpt2.journal"
COLUMNS = ("label", "func_name", "shape", "dtype", "modules", "parents", "num_passes", "func_duration")


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
    trace.cleanup()
    print(f"the model without tracing. The journal has {size_of(JOURNAL) / 1e6:.1f} MB.\n")


def read(path: Path) -> None:
    trace = tl.load(path)
    summary = str(trace.summary())
    print(summary)
    op = last_attention(trace)
    print(f"\n{op.label} ran in {' > '.join(op.modules)}")
    print(f"and returned a tensor of shape {tuple(op.out.shape)}, mean {op.out.mean().item():+.6f}, read from disk.")
    folder = path.parent
    (folder / "summary.txt").write_text(summary + "\n")
    rows = trace.ops.to_pandas()
    rows.to_csv(folder / "ops.csv", index=False)
    rows[[name for name in COLUMNS if name in rows]].to_html(folder / "ops.html", index=False)


def last_attention(trace: Any) -> Any:
    return [op for op in trace.ops if op.func_name == "scaled_dot_product_attention"][-1]


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
