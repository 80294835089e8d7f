"""How answers are written: tables for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import io
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, Literal, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from journal import Stamped
from journal.events import Event
from journal.events.template import LONG_TEXT
from torchlens.printable import cut, printable

T = TypeVar("T")

WIDTH_OF_PIPE: Final = 1000
"""Columns where standard output is no terminal: cells are not cut to fit a screen that is not there."""

LONGEST_CELL: Final = 100

LONGEST_WORD: Final = 48
"""A longer word may be broken, so that one of them does not push every other column out."""

NONE: Final = "-"

GAP: Final = 2
"""Columns between columns."""

DEEPEST: Final = 200
"""Levels of arrays that are written: Python's own limit is not far above, and programs that read JSON have one too."""


def body(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.fields}


def event_facts(stamped: Stamped) -> dict[str, Any]:
    """An event and its place, as programs get them."""
    event = stamped.event
    return {
        "stream": stamped.stream,
        "at": stamped.at,
        "seq": stamped.seq,
        "time_ns": stamped.time_ns,
        "type": event.event_name,
        "version": event.event_version,
        "body": body(event),
    }


class EventLines:
    """Events as people read them, a line each, with the time since the first one of the stream.

    Args:
        with_stream: Begin a line with the number of the stream.
    """

    def __init__(self, *, with_stream: bool = False) -> None:
        self.with_stream = with_stream
        self.begun: dict[int | None, int] = {}

    def line(self, stamped: Stamped) -> str:
        begun = self.begun.setdefault(stamped.stream if self.with_stream else None, stamped.time_ns)
        text = ", ".join(f"{name}={shown(value)}" for name, value in body(stamped.event).items())
        where = f"{stamped.stream:>6} {stamped.at:>7}" if self.with_stream else f"{stamped.at:>7}"
        return f"{where}  {milliseconds(stamped.time_ns - begun):>11}  {stamped.event.event_name:<20}  {flat(text)}\n"


def plain(value: Any, depth: int = 0) -> Any:
    """A stored value as JSON has it: tuples as arrays, bytes and infinite numbers as text, what is too deep as dots."""
    if depth > DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(value: Any, *, one_line: bool = False) -> None:
    sys.stdout.write(json_text(value, one_line=one_line) + "\n")


def json_text(value: Any, *, one_line: bool = False) -> str:
    text = json.dumps(plain(value), indent=None if one_line else 1)
    return text.replace("\x7f", "\\u007f")  # the one control character that json leaves as it is


def write_rows(
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    right: Sequence[str] = (),
    wrap: Sequence[str] = (),
    spare: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """A table. Where the terminal is too narrow for it, it loses columns and not the ends of labels and numbers, and
    says which.

    Args:
        names: The columns, in order.
        rows: Cells by column.
        right: Columns of numbers.
        wrap: Columns whose text may go on in a further line, between words.
        spare: Columns that may be left out, the first one first.
        below: Columns that few rows have, which go before any other from the table into a line below their row.
    """
    cells = [{name: cell(row[name]) for name in names} for row in rows]
    widest = {name: max(map(cell_len, (name, *[row[name].plain for row in cells]))) for name in names}
    widths = {name: widest_word(name, cells) if name in wrap else widest[name] for name in names}
    room = width_of_output()
    shown = list(names)
    for name in (*below, *spare):
        if table_width(shown, widths) <= room:
            break
        shown.remove(name)
    free = room - table_width(shown, widths)
    for name in shown:
        more = max(0, min(free, widest[name] - widths[name]))
        widths[name] += more
        free -= more
    moved = [name for name in names if name in below and name not in shown]
    table = header = table_of(shown, widths if free >= 0 else {}, right, wrap)
    for row in cells:
        table.add_row(*(row[name] for name in shown))
        notes = [f"{name}: {row[name].plain}" for name in moved if row[name].plain != NONE]
        if notes:
            write_table(table)
            write_wrapped("; ".join(notes), indent="    ")
            table = table_of(shown, widths if free >= 0 else {}, right, wrap, has_header=False)
    if table is header or table.row_count:
        write_table(table)
    left = [name for name in names if name not in (*shown, *moved)]
    if left:
        write_wrapped(f"left out for want of room: {', '.join(left)} (--json has all)")


def table_of(
    names: Sequence[str],
    widths: Mapping[str, int],
    right: Sequence[str],
    wrap: Sequence[str],
    *,
    has_header: bool = True,
) -> Table:
    table = Table(box=None, header_style="bold", show_header=has_header)
    for name in names:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=name not in wrap, overflow="fold", width=widths.get(name))
    return table


def table_width(names: Sequence[str], widths: Mapping[str, int]) -> int:
    return sum(widths[name] + GAP for name in names)


def widest_word(name: str, cells: Sequence[Mapping[str, Text]]) -> int:
    """How wide a column must be whose text may go on in a further line, for no label to be broken."""
    words = (cell_len(word) for row in cells for word in row[name].plain.split())
    return max(cell_len(name), min(LONGEST_WORD, max(words, default=0)))


def write_wrapped(text: str, *, indent: str = "") -> None:
    """A text in lines that fit."""
    room = width_of_output()
    for line in textwrap.wrap(text, room, initial_indent=indent, subsequent_indent=indent):
        sys.stdout.write(f"{line}\n")


def width_of_output() -> int:
    return Console().width if sys.stdout.isatty() else WIDTH_OF_PIPE


def write_table(table: Table) -> None:
    # Rendered first and written here: rich would end the process by itself on a closed pipe.
    text = io.StringIO()
    Console(file=text, width=width_of_output(), force_terminal=sys.stdout.isatty()).print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines()))


def write_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Names and values, a line each."""
    table = Table("", "", show_header=False, box=None)
    for name, value in facts:
        table.add_row(name, fact(value))
    write_table(table)


def cell(value: Any) -> Text:
    return Text(NONE if value is None else flat(shown(value)))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else str(plain_text(value))


def fact(value: Any) -> Text:
    """A value in a cell that is not cut."""
    return Text(NONE if value is None else printable(shown(value)))


def plain_text(value: Any) -> Any:
    """A stored value as people read it; long text by its beginning."""
    if isinstance(value, tuple) and len(value) == 3 and value[0] == LONG_TEXT:
        return f"{value[1]}..."
    return value


def flat(text: str) -> str:
    """A text as a cell has it: in a line, and cut."""
    return cut(text[: LONGEST_CELL + 1].replace("\n", " "), LONGEST_CELL)


def clock(wall_time_ns: int) -> str:
    return datetime.fromtimestamp(wall_time_ns / 1e9, timezone.utc).isoformat(timespec="seconds")


def milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3f} ms"


def shown_progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a progress bar on standard error where that is a terminal and there are several."""
    if len(items) < 2 or not sys.stderr.isatty():
        yield from items
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=len(items))
        for item in items:
            yield item
            bar.advance(task)
