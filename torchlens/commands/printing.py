"""How answers are written: tables for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from journal import Stamped
from journal.events import Event
from journal.events.template import LONG_TEXT
from torchlens.printable import printable

T = TypeVar("T")

WIDTH_OF_PIPE: Final = 1000
"""Columns where standard output is no terminal: cells are not cut to fit a screen that is not there."""

LONGEST_CELL: Final = 100

NARROW: Final = 16
"""As narrow as a column may get whose text goes on in a further line."""

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
        return f"{where}  {milliseconds(stamped.time_ns - begun):>11}  {stamped.event.event_name:<20}  {cut(text)}\n"


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
) -> None:
    """A table. Where the terminal is too narrow for it, it loses columns and not the ends of labels and numbers.

    Args:
        names: The columns, in order.
        rows: Cells by column.
        right: Columns of numbers.
        wrap: Columns whose text may go on in a further line.
        spare: Columns that may be left out, the first one first.
    """
    cells = [{name: cell(row[name]) for name in names} for row in rows]
    needed: dict[str, int] = {}
    for name in names:
        longest = max(map(cell_len, (name, *[row[name].plain for row in cells])))
        needed[name] = min(longest, NARROW) if name in wrap else longest
    shown = list(names)
    for name in spare:
        if sum(needed[name] + GAP for name in shown) <= width_of_output():
            break
        shown.remove(name)
    table = Table(box=None, header_style="bold")
    for name in shown:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in wrap, overflow="fold")
    for row in cells:
        table.add_row(*(row[name] for name in shown))
    write_table(table)


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
    return Text("-" if value is None else cut(shown(value)))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else str(plain_text(value))


def fact(value: Any) -> Text:
    """A value in a cell that is not cut."""
    return Text("-" if value is None else printable(shown(value)))


def plain_text(value: Any) -> Any:
    """A stored value as people read it; long text by its beginning."""
    if isinstance(value, tuple) and len(value) == 3 and value[0] == LONG_TEXT:
        return f"{value[1]}..."
    return value


def cut(text: str) -> str:
    flat = printable(text[: 8 * LONGEST_CELL].replace("\n", " "))
    return flat if len(flat) <= LONGEST_CELL else flat[: LONGEST_CELL - 1] + "…"


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
