"""How long this process works at something, and what its garbage collector looks at meanwhile.

Time that passes says how busy a machine is, so no test bounds it, but for how late followed events
are (test_follow.py): bounds here are of the seconds that this process has
had a processor for, and many times what the work takes. They are there for work that grows with a square or a power.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def set_aside() -> None:
    """Have the collector pass over all that is there now.

    What was imported and collected stays to the end of the tests: half a million objects, a third of a second for each
    full collection, and some tests ask for hundreds.
    """
    gc.collect()
    gc.freeze()


def seconds(act: Callable[[], object]) -> float:
    """Seconds of work that ``act`` takes, without the collector's, which depend on what other tests left behind."""
    was_on = gc.isenabled()
    gc.disable()
    begun = time.process_time()
    try:
        act()
        return time.process_time() - begun
    finally:
        if was_on:
            gc.enable()


@contextmanager
def at_most(bound: float) -> Iterator[None]:
    """What is done inside is so many seconds of work at most."""
    begun = time.process_time()
    yield
    taken = time.process_time() - begun
    assert taken < bound, f"{taken:.1f} s of work"
