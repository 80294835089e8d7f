"""What is shown of the place where a cursor stands: its event, the record, the source, the values. Lines of text.

Reads  a cursor, and the records of the whole trace: what a row says of itself does not depend on where one stands.
Rule   nothing here costs more than a lookup in the tables of the head, but for the values, which are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any, Final

from journal import TorchLensError
from journal.events import GradientObserved, NodeFired, Stamped
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from torchlens.printable import amount, cut, printable
from torchlens.reading.backward import GradFn, GradFnCall, GradientRecord
from torchlens.reading.facade import Trace
from torchlens.reading.records import Op
from torchlens.travel.about import told_by
from torchlens.travel.cursor import Cursor

__all__ = ["event_line", "record_lines", "records_at", "source_lines", "state_line", "value_lines"]

BARS: Final = 12
"""Bars of a histogram."""

BAR_WIDTH: Final = 24
"""Columns of the longest one."""

LONGEST: Final = 200
"""Characters of a field that is shown."""


def event_line(trace: Trace, stamped: Stamped, begun_ns: int) -> str:
    """An event in a line: number, milliseconds since the first one, type, and whom it is about.

    Args:
        trace: The capture.
        stamped: The event.
        begun_ns: The time of the first one.
    """
    elapsed = (stamped.time_ns - begun_ns) / 1e6
    with over_events():
        subject = told_by(trace, stamped).subject(trace.tables)
    return printable(f"{stamped.at:>7} {elapsed:>10.3f} {stamped.event.event_name:<18} {subject}").rstrip()


def state_line(cursor: Cursor) -> str:
    """Where the cursor stands, and how much there is by then."""
    counts = cursor.trace.moment.counts
    there = [amount(counts.get(name, 0), word) for name, word in COUNTED if counts.get(name)]
    here = f"event {cursor.position - 1}" if cursor.position else "before the first"
    return "  ".join((f"{here} of {cursor.num_events}", *there))


COUNTED: Final = (("ops", "op"), ("backward_passes", "pass"), ("grad_fn_calls", "firing"))
"""What is counted in the line of the state, and the word for one."""


def records_at(trace: Trace, stamped: Stamped) -> Iterator[Any]:
    """The records that an event tells of: ops, islands' ops, gradients, firings."""
    with over_events():
        tables, about = trace.tables, told_by(trace, stamped)
        if isinstance(about.event, GradientObserved):
            for row, event in enumerate(tables.gradients.column("event")):
                if event == about.at:
                    yield trace.record("gradients", row)
        elif isinstance(about.event, NodeFired):
            for call in GradFn(trace, about.node).calls if about.node != NOWHERE else ():
                if call.backward_pass_index == about.event.pass_number + 1:
                    yield call
        elif about.pass_number is None:
            for name, row in about.sites:
                yield trace.record(name, row)


FIELDS: Final[dict[type, tuple[str, ...]]] = {
    Op: (
        *("label", "func_name", "shape", "dtype", "device_ref", "parents", "children", "module"),
        *("param_names", "grad_fn_class_name", "is_inplace", "func_duration", "flops_forward", "activation_memory"),
    ),
    GradientRecord: ("owner_kind", "backward_pass_index", "shape", "dtype", "grad_fn_label", "is_saved", "memory"),
    GradFnCall: ("call_label", "backward_pass_index", "ordinal_in_pass", "backward_duration", "is_saved"),
}
"""What is shown of a record, by its class."""


def record_lines(cursor: Cursor) -> list[str]:
    """The records that the event tells of, a field a line, and what it says itself where it made none of them."""
    stamped = cursor.event
    if stamped is None:
        return ["before the first event"]
    lines: list[str] = []
    has_made = False
    for record in records_at(cursor.whole, stamped):
        has_made = has_made or record.read("event") == stamped.at
        lines.append(repr(record))
        for name in FIELDS.get(type(record), ()):
            value = getattr(record, name)
            if value is not None and (not isinstance(value, Sized) or len(value)):
                lines.append(f"  {name:<20} {value if isinstance(value, str) else text_of(value)}")
    if not has_made:
        lines.append(stamped.event.event_name)
        lines += [f"  {name:<20} {getattr(stamped.event, name)!r}" for name in stamped.event.fields]
    return [cut(line, LONGEST) for line in lines]


def text_of(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) if all(isinstance(one, str) for one in value) else str(tuple(value))
    return str(value)


def source_lines(cursor: Cursor) -> list[str]:
    """Where the event happened, with the lines around it where they were kept."""
    if cursor.event is None:
        return []
    where = cursor.where()
    lines = [] if not where.modules else [f"in {' > '.join(where.modules)}"]
    place = where.place
    if place is None:
        return [printable(line) for line in lines]
    lines.append(f"at {place}")
    code = around(cursor.whole, where.labels, str(place))
    if code is not None:
        lines += code.split("\n")
    elif place.text is not None:
        lines.append(f"  {place.text}")
    return [printable(line) for line in lines]


def around(trace: Trace, labels: tuple[str, ...], place: str) -> str | None:
    """The lines around the call of an op, its own with an arrow; None where there are none."""
    if not labels or labels[0] not in trace.ops:
        return None
    here = next((frame for frame in trace.ops[labels[0]].code_context if str(frame) == place), None)
    return None if here is None else here.code_context_labeled


def value_lines(cursor: Cursor) -> list[str]:
    """Statistics of the tensors that the event made, and a histogram of each whose elements were kept."""
    stamped = cursor.event
    lines: list[str] = []
    for record in [] if stamped is None else records_at(cursor.whole, stamped):
        match record:
            case Op():
                name, is_kept = record.label, record.has_saved_activation
            case GradientRecord():
                name, is_kept = f"gradient of {record.read('owner')}", record.is_saved
            case _:
                continue
        try:
            lines.append(f"{name}: {record.stats}")
            if is_kept:
                elements = record.out if isinstance(record, Op) else record.grad
                lines += [f"  {line}" for line in histogram_lines(elements)]
        except TorchLensError as exc:
            lines.append(f"{name}: {exc}")
    return [cut(line, LONGEST) for line in lines]


def histogram_lines(tensor: Any) -> list[str]:
    """Bars over the finite elements of a tensor, of complex ones over magnitudes; none where all are the same."""
    from torchlens.measuring import histogram_of  # for cost: there is a tensor, so there is torch

    found = histogram_of(tensor, BARS)
    if found is None:
        return []
    low, high, counts = found
    width, most = (high - low) / BARS, max(counts)
    return [
        f"{low + place * width:>11.4g} {'#' * math.ceil(count / most * BAR_WIDTH):<{BAR_WIDTH}} {count}"
        for place, count in enumerate(counts)
    ]
