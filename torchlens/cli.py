"""The command line: ``torchlens journal info|captures|events|ops PATH``.

Reading a journal needs no torch, and nothing here imports it. What goes to standard output is the answer,
as a table or with ``--json`` for programs; progress and refusals go to standard error. The exit status
is 0, or 1 with a coded error where the question could not be answered, or 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from journal import JournalError, StreamInfo, TorchLensError
from journal.events import Event
from journal.events.template import LONG_TEXT
from torchlens.errors import ConfigurationError
from torchlens.facade import Trace
from torchlens.journal_view import JournalView, open_journal
from torchlens.lookup import is_number
from torchlens.quantities import Bytes, Duration

__all__ = ["main"]

T = TypeVar("T")

WIDTH_OF_PIPE: Final = 200
"""Columns where standard output is no terminal: cells are not cut to fit a screen that is not there."""

LONGEST_CELL: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one command line; the exit status."""
    asked = parser().parse_args(arguments)
    if sys.stdout is None:  # closed by whoever started this
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may have letters that the terminal has not
    try:
        with open_journal(asked.path) as view:
            asked.answer(view, asked)
        sys.stdout.flush()
    except TorchLensError as exc:
        print(f"torchlens: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough
        let_go_of_output()
    except OSError as exc:
        let_go_of_output()
        print(f"torchlens: the answer could not be written: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def let_go_of_output() -> None:
    """What is still buffered goes nowhere, so that the exit is quiet."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="torchlens", description="Read what captures of PyTorch models recorded.")
    groups = top.add_subparsers(required=True, metavar="COMMAND")
    journal = groups.add_parser("journal", help="read a journal", description="Read a journal.")
    commands = journal.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, answer: Any, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made.add_argument("path", metavar="PATH", help="directory of the journal")
        made.add_argument("--json", action="store_true", help="for programs")
        made.set_defaults(answer=answer)
        return made

    command("info", info, "what the journal holds, in total")
    captures_command = command("captures", captures, "one line for each capture")
    captures_command.add_argument("--limit", type=count, metavar="N", help="at most N captures")
    events_command = command("events", events, "the stored facts of a capture, in order")
    ops_command = command("ops", ops, "the ops of a capture, in order")
    for made, what in ((events_command, "events"), (ops_command, "ops")):
        made.add_argument("--capture", metavar="N", help="which capture: its number in `captures`, or its name")
        made.add_argument("--limit", type=count, metavar="N", help=f"at most N {what}")
    events_command.add_argument("--start", type=count, default=0, metavar="N", help="begin with event N")
    return top


def count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return min(number, sys.maxsize)


# -- answers


def info(view: JournalView, asked: argparse.Namespace) -> None:
    streams = view.streams
    opened = [info.opened for info in streams]
    facts: dict[str, Any] = {
        "path": view.path,
        "streams": len(streams),
        "captures": sum(header.kind == "capture" for header in opened),
        "events": sum(info.head for info in streams),
        "bytes_on_disk": sum(file.stat().st_size for file in Path(view.path).rglob("*") if file.is_file()),
        "first_opened": clock(opened[0].wall_time_ns) if opened else None,
        "last_opened": clock(opened[-1].wall_time_ns) if opened else None,
        "written_by": sorted({header.written_by for header in opened}),
        "environment": dict(opened[-1].environment) if opened else {},
    }
    if asked.json:
        write_json(facts)
        return
    table = Table("", "", show_header=False, box=None)
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        elif name == "bytes_on_disk":
            value = Bytes(value)
        table.add_row(name.replace("_", " "), Text(str(value) if value is not None else "-"))
    write_table(table)


CAPTURE_FIELDS: Final = ("capture", "stream", "name", "model", "status", "ops", "layers", "events", "opened", "seconds")


def captures(view: JournalView, asked: argparse.Namespace) -> None:
    streams = view.capture_streams[: asked.limit]
    rows = [capture_row(number, view, info) for number, info in enumerate(shown_progress(streams, "reading captures"))]
    if asked.json:
        write_json(rows)
        return
    table = table_of(CAPTURE_FIELDS, right=("capture", "stream", "ops", "layers", "events", "seconds"))
    for row in rows:
        table.add_row(*(cell(row[name]) for name in CAPTURE_FIELDS))
    write_table(table)


def capture_row(number: int, view: JournalView, info: StreamInfo) -> dict[str, Any]:
    trace = view.trace(info)
    fact = trace.tables.fact
    seconds = fact("forward_duration")
    row = {
        "capture": number,
        "stream": int(info.stream),
        "name": fact("trace_label"),
        "model": fact("model_class_name"),
        "status": fact("status"),
        "ops": fact("num_ops"),
        "layers": fact("num_compute_layers"),
        "events": info.head,
        "opened": clock(info.opened.wall_time_ns),
        "seconds": None if seconds is None else round(seconds, 6),
    }
    trace.cleanup()  # a journal may hold thousands
    return row


def events(view: JournalView, asked: argparse.Namespace) -> None:
    trace = chosen(view, asked.capture)
    stamped = trace.events(asked.start, None if asked.limit is None else asked.start + asked.limit)
    if asked.json:
        for item in stamped:
            line = {"at": item.at, "seq": item.seq, "time_ns": item.time_ns, "event": item.event.event_name}
            write_json({**line, "body": body(item.event)}, one_line=True)
        return
    begun: int | None = None
    for item in stamped:
        begun = item.time_ns if begun is None else begun
        text = ", ".join(f"{name}={shown(value)}" for name, value in body(item.event).items())
        sys.stdout.write(
            f"{item.at:>7}  {milliseconds(item.time_ns - begun):>11}  {item.event.event_name:<20}  {cut(text)}\n"
        )


OP_FIELDS: Final = {
    "op": "label",
    "function": "func_name",
    "shape": "shape",
    "dtype": "dtype",
    "module": "module",
    "parents": "parents",
    "kept": "has_saved_activation",
    "seconds": "func_duration",
}
"""The column of the op table behind each field."""


def ops(view: JournalView, asked: argparse.Namespace) -> None:
    table = chosen(view, asked.capture).tables.ops
    columns = [list(islice(table.column(name), asked.limit)) for name in OP_FIELDS.values()]
    rows = [dict(zip(OP_FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]
    if asked.json:
        write_json(rows)
        return
    text = table_of(OP_FIELDS, right=("seconds",))
    for row in rows:
        row["seconds"] = Duration(row["seconds"]) if row["seconds"] else None
        row["kept"] = "yes" if row["kept"] else "no"
        row["parents"] = ", ".join(row["parents"])
        text.add_row(*(cell(value) for value in row.values()))
    write_table(text)


def chosen(view: JournalView, asked: str | None) -> Trace:
    """The capture asked for, by number or name; the only one where none was asked for."""
    streams = view.capture_streams
    if asked is None and len(streams) == 1:
        return view.trace(streams[0])
    if asked is None:
        raise ConfigurationError(
            code="capture_not_chosen",
            problem=f"the journal {view.path!r} holds {len(streams)} captures",
            remedy="add --capture with a number or name that `torchlens journal captures` shows",
            captures=len(streams),
        )
    if is_number(asked) and int(asked) < len(streams):
        return view.trace(streams[int(asked)])
    named = [info for info in streams if info.opened.label == asked]
    if len(named) == 1:
        return view.trace(named[0])
    raise JournalError(
        code="capture_unknown",
        problem=f"{asked!r} is no capture of {view.path!r}, or several",
        remedy="`torchlens journal captures` shows number and name of each",
        capture=asked,
    )


# -- how things are written


def body(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.fields}


def plain(value: Any) -> Any:
    """A stored value as JSON has it: tuples as arrays, bytes and infinite numbers as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(value: Any, *, one_line: bool = False) -> None:
    sys.stdout.write(json.dumps(plain(value), indent=None if one_line else 1) + "\n")


def table_of(names: Iterable[str], *, right: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    return table


def write_table(table: Table) -> None:
    # Rendered first and written here: rich would end the process by itself on a closed pipe.
    is_terminal = sys.stdout.isatty()
    width = Console().width if is_terminal else WIDTH_OF_PIPE
    text = io.StringIO()
    Console(file=text, width=width, force_terminal=is_terminal).print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines()))


def cell(value: Any) -> Text:
    return Text("-" if value is None else cut(shown(value)))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else str(plain_text(value))


def plain_text(value: Any) -> Any:
    """A stored value as people read it; long text by its beginning."""
    if isinstance(value, tuple) and len(value) == 3 and value[0] == LONG_TEXT:
        return f"{value[1]}..."
    return value


def cut(text: str) -> str:
    flat = text.replace("\n", " ")
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
