"""Run cases on request: one line ``NAME [--journal]`` in, one line of JSON ``[ok, note]`` out.

Every case runs in a process forked from this one, which has loaded torch and done nothing else. The
process of the tests itself is not forked, since it may hold threads and locks of tests before.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

CASES = Path(__file__).resolve().parents[1] / "data" / "cases"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a case prints does not belong among the answers
    sys.path.insert(0, str(CASES))
    import run_traced
    import torch
    import transformers  # noqa: F401 (loaded once, before the forks)

    import torchlens  # noqa: F401 (the same)

    torch.set_num_threads(1)
    for line in sys.stdin:
        name, *options = line.split()
        ok, note = run_traced.in_child(CASES / "cases" / f"{name}.py", "--journal" in options, forward=False)
        answers.write(json.dumps([ok, note]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
