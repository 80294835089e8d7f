"""A trace as a notebook shows it: what it is, how it ended, and its module calls as a tree that opens.

Reads  the tables, of no more calls than are shown.
Gives  HTML without script, whatever the capture's size a few dozen kilobytes: the page itself is for ``Trace.to_html``.
Rule   every text is escaped, printable and cut; no attribute holds any.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from projections import CaptureTables
from projections.errors import over_events
from torchlens.printable import amount, cut, shapes_text
from torchlens.quantities import Bytes, Duration, Flops
from torchlens.reading.calls_made import failure_of
from torchlens.reading.view import View

__all__ = ["notebook_html"]

MOST_CALLS: Final = 150
"""Module calls that are shown, those of the outer levels first."""

WIDEST: Final = 80
"""Characters of one text."""

LONGEST: Final = 600
"""Characters of what is said of a failure."""

QUIET: Final = "color:#777"
RED: Final = "color:#b00020"


def notebook_html(view: View) -> str:
    """The HTML of a trace that is open."""
    with over_events():
        tables = view.tables
        failure = failure_of(view)
        lines = [
            f"<div><strong>{shown(tables.fact('trace_label'))}</strong> <span style='{QUIET}'>{heading(tables)}</span>"
        ]
        if failure is not None:
            said = "; ".join(filter(None, (failure.error, failure.said)))
            lines.append(f"<div style='{RED}'>{shown(said, LONGEST)}</div>")
        lines += tree(tables)
        lines.append(f"<div style='{QUIET}'>trace.to_html(path) writes a page of it for a browser</div></div>")
        return "\n".join(lines)


def heading(tables: CaptureTables) -> str:
    """How it ended and its totals, in a line."""
    fact = tables.fact
    parts = [
        fact("status"),
        amount(fact("num_ops"), "op"),
        amount(fact("num_module_calls"), "module call"),
        f"{amount(fact('num_params'), 'parameter')}, {Bytes(fact('total_param_memory'))}",
        str(Flops(fact("total_flops_forward"))),
    ]
    parts.append(f"{Duration(fact('func_calls_duration'))} in torch calls")
    if fact("num_backward_passes"):
        parts.append(amount(fact("num_backward_passes"), "backward pass"))
    return shown(" · ".join(parts), LONGEST)


def tree(tables: CaptureTables) -> Iterator[str]:
    """The module calls that are shown, each with those inside it."""
    calls = tables.module_calls
    if not len(calls):
        return
    listed = {0: list[int]()}
    level = [0]
    while level and len(listed) < MOST_CALLS:
        below: list[int] = []
        for row in level:
            for child in calls.value("child_rows", row):
                if len(listed) < MOST_CALLS and child not in listed:
                    listed[row].append(child)
                    listed[child] = []
                    below.append(child)
        level = below
    yield from branch(tables, listed)
    if len(listed) < len(calls):
        yield f"<div style='{QUIET}'>{amount(len(calls) - len(listed), 'module call')} not shown</div>"


def branch(tables: CaptureTables, listed: dict[int, list[int]]) -> Iterator[str]:
    """The lines of all calls, outermost first; what is inside one stands between the lines that open and close it."""
    waiting: list[int | str] = [0]
    while waiting:
        row = waiting.pop()
        if isinstance(row, str):
            yield row
        elif listed[row]:
            yield f"<details{'' if row else ' open'}><summary>{line(tables, row)}</summary>"
            yield "<div style='margin-left:1.5em'>"
            waiting.append("</div></details>")
            waiting += reversed(listed[row])
        else:
            yield f"<div style='margin-left:1em'>{line(tables, row)}</div>"


def line(tables: CaptureTables, row: int) -> str:
    """What is said of a call: its module, what it returned, its ops, and the time in them."""
    value = tables.module_calls.value
    returned = value("output_op_rows", row)
    parts = [amount(value("num_ops", row), "op")]
    if returned:
        parts.insert(0, shapes_text(tables.ops.value("shape", returned[0]), len(returned)))
    elif not value("is_returned", row):
        parts.insert(0, "did not return")
    parts.append(f"{Duration(value('func_calls_duration', row))} in torch calls")
    name, kind = shown(value("call_label", row) if row else "self"), shown(value("class_name", row))
    return f"{name} <em>{kind}</em> <span style='{QUIET}'>{shown(' · '.join(parts))}</span>"


def shown(text: str, width: int = WIDEST) -> str:
    return escape(cut(text, width))
