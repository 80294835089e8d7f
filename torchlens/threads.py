"""Torch's threads, held back while many small tensors are worked on one after the other.

Note  On a machine with other work the threads of one operation wait for each other: copying 400 kB took 7 ms on two
      threads, and 0.03 ms on one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def one_of_torch() -> Iterator[None]:
    """Let torch's operations run on one thread, and put their number back on every way out; nothing without torch."""
    try:
        import torch  # artifacts are read without
    except ModuleNotFoundError:
        yield
        return
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)
