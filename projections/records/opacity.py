"""Which ops were not watched inside, and why.

Reads  a ``Forward``: its functions, and the events of tensors that were met after the fact.
Gives  the column of reasons in the op table, and the rows of the two kinds.
Rule   a recorded call says itself why it is opaque; a tensor that was made unseen stands as an op that has no call.
"""

from __future__ import annotations

from typing import Final

from journal.events import ConstantSeen
from projections.columnar.tables import Column
from projections.folds.graph import OPAQUE
from projections.forward import Forward
from projections.structure.details import field

UNSEEN: Final = "made where no wrapper looks"
IN_A_THREAD: Final = "made by another thread"

THREAD: Final = field(ConstantSeen, "thread")


def opaque_reason(forward: Forward) -> Column:
    """Why each op is opaque; None for those that are not."""
    rows, reasons = forward.rows, forward.words.func_opaque
    made = [reasons[function] if function >= 0 else None for function in rows.function]
    unseen = opaque_rows(forward, unseen=True)
    for position, event in forward.scan([rows.event[row] for row in unseen]):
        made[unseen[position]] = UNSEEN if event[THREAD] is None else IN_A_THREAD
    return made


def opaque_rows(forward: Forward, *, unseen: bool) -> tuple[int, ...]:
    """Op rows that were not watched inside: tensors that were only met afterwards, or recorded calls."""
    rows = enumerate(forward.rows.function)
    return tuple([row for row, function in rows if forward.is_opaque(function) and (function <= OPAQUE) == unseen])
