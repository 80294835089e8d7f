"""What a refused backward can be told beyond the loss itself: where the values that it may be of were cut off.

Reads  the explanations of the outputs.
Rule   a loss that requires no gradient was made without grad mode, or of outputs that require none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchlens.errors import BackwardRefused
from torchlens.reading.explaining import explain
from torchlens.reading.view import View

__all__ = ["told_where_cut"]


@contextmanager
def told_where_cut(trace: View) -> Iterator[None]:
    """Within it, the refusal of a loss that requires no gradient has the line where the first such output was cut."""
    try:
        yield
    except BackwardRefused as refused:
        where = cut_output(trace) if refused.fields.get("requires_grad") is False else None
        if where is None:
            raise
        label, said = where
        raise BackwardRefused(
            code=refused.code,
            problem=f"{refused.problem}; {said}",
            remedy="take the gradient on past that line, or make the loss of a value before it, with grad mode on",
            requires_grad=False,
            output=label,
        ) from None


def cut_output(trace: View) -> tuple[str, str] | None:
    """The first output that requires no gradient and was cut off somewhere, and why, with the line."""
    ops = trace.table("ops")
    for row in trace.tables.fact("output_rows"):
        if not ops.value("requires_grad", row):
            found = explain(trace, trace.record("ops", row))
            if found is not None and found.at is not None:
                return found.subject, str(found)
    return None
