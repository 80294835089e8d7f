"""``journal info|captures|summary|ops|events``: what a journal holds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Final

from journal import JournalError, StreamInfo
from torchlens.commands.parsing import Commands, add_capture, count
from torchlens.commands.printing import (
    EventLines,
    clock,
    event_facts,
    shown_progress,
    write_facts,
    write_json,
    write_rows,
)
from torchlens.errors import ConfigurationError
from torchlens.journals.journal_view import JournalView, holds_none, open_journal
from torchlens.printable import printable
from torchlens.quantities import Bytes, Duration
from torchlens.questions.nonfinite_answer import NONFINITE, Nonfinite
from torchlens.reading.facade import Trace


def add(commands: Commands) -> None:
    commands.add("info", info, "what the journal holds, in total")
    captures_command = commands.add("captures", captures, "one line for each capture")
    captures_command.add_argument("--limit", type=count, metavar="N", help="at most N captures")
    captures_command.add_argument("--tag", metavar="T", help="only those with this tag")
    sought = captures_command.add_mutually_exclusive_group()
    for kind, what in zip(NONFINITE, ("holds NaN or infinity", "holds NaN"), strict=True):
        sought.add_argument(
            f"--{kind}",
            dest="sought",
            action="store_const",
            const=kind,
            help=f"tell the first tensor of each that {what}: from statistics and raise_on_nan where a capture has "
            "them; else its payloads are read",
        )
    events_command = commands.add("events", events, "the stored facts of a capture, in order")
    ops_command = commands.add("ops", ops, "the ops of a capture, in order")
    for made, what in ((events_command, "events"), (ops_command, "ops")):
        add_capture(made)
        made.add_argument("--limit", type=count, metavar="N", help=f"at most N {what}")
    add_capture(commands.add("summary", summary, "the modules of a capture, and totals", is_plain=True))
    events_command.add_argument("--start", type=count, default=0, metavar="N", help="begin with event N")


def reading(
    answer: Callable[[argparse.Namespace, JournalView], int | None],
) -> Callable[[argparse.Namespace], int | None]:
    """Opens the journal for an answer, and closes it."""

    @wraps(answer)
    def answered(asked: argparse.Namespace) -> int | None:
        with open_journal(asked.path) as view:
            return answer(asked, view)

    return answered


@reading
def info(asked: argparse.Namespace, view: JournalView) -> None:
    streams = view.streams
    opened = [info.opened for info in streams]
    facts: dict[str, Any] = {
        "path": view.path,
        "streams": len(streams),
        "captures": len(view.capture_streams),
        "events": sum(info.head for info in streams),
        "bytes_on_disk": sum(file.stat().st_size for file in Path(view.path).rglob("*") if file.is_file()),
        "first_opened": clock(opened[0].wall_time_ns) if opened else None,
        "last_opened": clock(opened[-1].wall_time_ns) if opened else None,
        "unfinished_copy": view.is_unfinished_copy,
        "written_by": sorted({header.written_by for header in opened}),
        "environment": dict(opened[-1].environment) if opened else {},
    }
    if asked.json:
        write_json(facts)
        return
    facts["written_by"] = ", ".join(facts["written_by"])
    facts["environment"] = ", ".join(f"{name} {value}" for name, value in facts["environment"].items())
    facts["bytes_on_disk"] = Bytes(facts["bytes_on_disk"])
    write_facts((name.replace("_", " "), value) for name, value in facts.items())


CAPTURE_FIELDS: Final[tuple[str, ...]] = (
    *("capture", "stream", "name", "tags", "model", "status", "ops", "layers", "events", "opened", "seconds"),
)


@reading
def captures(asked: argparse.Namespace, view: JournalView) -> int:
    """One that cannot be read, as of a newer version, is told and keeps no other from being shown."""
    if view.is_unfinished_copy:
        sys.stderr.write(f"torchlens: {view.path!r} holds a copy that did not end; captures may be missing\n")
    found = view.matching(None, asked.tag)[: asked.limit]
    rows = [capture_row(number, view, info, asked.sought) for number, info in shown_progress(found, "reading captures")]
    status = int(any(row["status"] == UNREADABLE for row in rows))
    if asked.json:
        write_json(rows)
        return status
    fields = CAPTURE_FIELDS if asked.sought is None else (*CAPTURE_FIELDS, SOUGHT)
    for row in rows:
        row["tags"] = ", ".join(row["tags"]) or None
        if row.get(SOUGHT) is not None:
            row[SOUGHT] = nonfinite_cell(row[SOUGHT])
        row["seconds"] = None if row["seconds"] is None else Duration(row["seconds"])
    write_rows(
        fields,
        rows,
        right=("capture", "stream", "ops", "layers", "events", "seconds"),
        wrap=("name", "tags", "model", SOUGHT),
        spare=("layers", "stream", "opened", "tags", "seconds", "model"),
    )
    return status


UNREADABLE: Final = "unreadable"
"""Status of a capture whose events are refused."""


SOUGHT: Final = "first_nonfinite"
"""The field that is there where it was asked for."""


def nonfinite_facts(trace: Trace, kind: Nonfinite) -> dict[str, Any]:
    """The first tensor of a capture that is not finite, or that there is none."""
    found = trace.first_nonfinite(kind)
    return {
        "verdict": found.verdict,
        **{name: getattr(found, name) for name in ("at", "kind", "label", "backward_pass", "num_nan", "num_inf")},
        "num_examined": found.num_examined,
        "num_unexamined": len(found.unexamined),
    }


def nonfinite_cell(facts: dict[str, Any]) -> str:
    """The same in a few words."""
    missed = f", {facts['num_unexamined']} not looked at" if facts["num_unexamined"] else ""
    if facts["label"] is None:
        return "not checked" if facts["verdict"] == "not_checked" else f"none{missed}"
    of = "gradient of " if facts["kind"] == "gradient" else ""
    return f"{of}{facts['label']}, event {facts['at']}{missed and missed + ' before'}"


def capture_row(number: int, view: JournalView, info: StreamInfo, sought: Nonfinite | None) -> dict[str, Any]:
    trace = view.trace(info)
    row: dict[str, Any] = dict.fromkeys(CAPTURE_FIELDS if sought is None else (*CAPTURE_FIELDS, SOUGHT))
    row |= {"capture": number, "stream": int(info.stream), "events": info.head}
    row |= {"name": info.opened.label, "tags": list(info.opened.tags), "opened": clock(info.opened.wall_time_ns)}
    try:
        fact = trace.tables.fact
        if sought is not None:
            row[SOUGHT] = nonfinite_facts(trace, sought)
    except JournalError as exc:
        sys.stderr.write(f"torchlens: capture {number}: {printable(str(exc))}\n")
        return row | {"status": UNREADABLE}
    seconds = fact("forward_duration")
    row |= {
        "name": fact("trace_label"),
        "model": fact("model_class_name"),
        "status": fact("status"),
        "ops": fact("num_ops"),
        "layers": fact("num_compute_layers"),
        "seconds": None if seconds is None else round(seconds, 6),
    }
    view.forget(info)  # a journal may hold thousands
    return row


@reading
def events(asked: argparse.Namespace, view: JournalView) -> None:
    trace = chosen(view, asked.capture)
    stamped = trace.events(asked.start, None if asked.limit is None else asked.start + asked.limit)
    lines = EventLines()
    for item in stamped:
        if asked.json:
            write_json(event_facts(item), one_line=True)
        else:
            sys.stdout.write(lines.line(item))


OP_FIELDS: Final = {
    "op": "label",
    "function": "func_name",
    "shape": "shape",
    "dtype": "dtype",
    "module": "module",
    "parents": "parents",
    "kept": "has_saved_payload",
    "seconds": "func_duration",
}
"""The column of the op table behind each field."""


@reading
def ops(asked: argparse.Namespace, view: JournalView) -> None:
    table = chosen(view, asked.capture).tables.ops
    columns = [list(islice(table.column(name), asked.limit)) for name in OP_FIELDS.values()]
    rows = [dict(zip(OP_FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]
    if asked.json:
        write_json(rows)
        return
    for row in rows:
        row["seconds"] = Duration(row["seconds"]) if row["seconds"] else None
        row["kept"] = "yes" if row["kept"] else "no"
        row["parents"] = ", ".join(row["parents"]) or None
    write_rows(
        tuple(OP_FIELDS),
        rows,
        right=("seconds",),
        wrap=("module", "parents"),
        spare=("kept", "dtype", "function", "seconds", "module", "shape", "parents"),
    )


@reading
def summary(asked: argparse.Namespace, view: JournalView) -> None:
    sys.stdout.write(f"{chosen(view, asked.capture).summary()}\n")


def chosen(view: JournalView, asked: str | None) -> Trace:
    """The capture asked for, by number or name; the only one where none was asked for."""
    if asked is not None:
        return view.capture(asked)
    streams = view.capture_streams
    if not streams:
        raise holds_none(view.path)
    if len(streams) == 1:
        return view.trace(streams[0])
    raise ConfigurationError(
        code="capture_not_chosen",
        problem=f"the journal {view.path!r} holds {len(streams)} captures",
        remedy="add --capture with a number or name that `torchlens journal captures` shows",
        captures=len(streams),
    )
