"""How a capture ended that did not come to its end: what was said, and the op or call it ended in.

Rule  A call that did not return is no record. A page shows it as an op behind the others, of the kind ``failed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from projections import CaptureTables
from projections.accounts.ended import broken_call, ended
from torchlens.page.texts import LONGEST
from torchlens.printable import cut, printable
from torchlens.reading.calls_made import failure_of
from torchlens.reading.view import View

__all__ = ["ending", "parents_of"]

WHOLE: Final = 4 * LONGEST
"""Characters of what is said once."""


def ending(view: View, tables: CaptureTables, at: int | None) -> dict[str, Any] | None:
    """How a capture ended; None of one that came to its end.

    Args:
        view: The trace.
        tables: Its tables.
        at: Row of the op that it ended in; None where there is none.
    """
    end = ended(tables)
    if end is None:
        return None
    failure, call = failure_of(view), broken_call(tables)
    where = None if failure is None else failure.said
    if where is None and call is not None:
        where = f"in {call.func_qualname}({call.args})"
    return {
        "kind": printable(end.kind),
        "message": None if end.message is None else cut(end.message, WHOLE),
        "where": None if where is None else cut(where, WHOLE),
        "op": at,
    }


def parents_of(tables: CaptureTables, given: Sequence[int]) -> tuple[list[int], list[str]]:
    """Rows of the ops whose values a call was given, and addresses of the parameters, each once.

    Args:
        tables: The tables.
        given: Its tensor arguments, as ``OpExecuted.inputs`` has them.
    """
    rows = {value: row for row, value in reversed(list(enumerate(tables.ops.column("value"))))}
    words = tables.forward.words
    ops = [rows[number] for number in given if number >= 0 and number in rows]
    params = [words.parameters[-1 - number].address for number in given if number < 0]
    return list(dict.fromkeys(ops)), list(dict.fromkeys(params))
