"""Taking back what a capture did to what it found: every step is taken, whatever another one raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

__all__ = ["undo"]

MAX_INTERRUPTS: Final = 100
"""How many interrupts are put off; with more, someone insists."""


def undo(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step, in order, and then raise what the first failing one raised.

    A step that raises an ``Exception`` is given up. One that is interrupted is taken again, so a step must bear being
    taken twice.
    """
    waiting = list(steps)
    waiting.reverse()
    first: BaseException | None = None
    interrupts = 0
    while waiting:
        try:
            while waiting:
                waiting[-1]()
                waiting.pop()
        except Exception as error:  # noqa: BLE001, PERF203  # a model's class may refuse in any way; one round is usual
            first = first or error
            waiting.pop()
        except BaseException as error:  # noqa: BLE001  # raised below, when all is put back
            first = first or error
            interrupts += 1
            if interrupts > MAX_INTERRUPTS:
                waiting.pop()
    if first is not None:
        raise first
