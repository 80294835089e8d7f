"""``journal follow|prune|export``: a journal as it grows, the part worth keeping, all of it for other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import attrs

from torchlens.commands.parsing import Commands, add_capture, count, seconds
from torchlens.commands.printing import EventLines, event_facts, json_text, write_facts, write_json
from torchlens.commands.reading import reading
from torchlens.journals.journal_view import JournalView, open_journal


def add(commands: Commands) -> None:
    follow_command = commands.add("follow", follow, "the events as they arrive, until the journal is sealed")
    add_capture(follow_command)
    text = "end after S seconds without an event; wait so long for a journal that is not there yet"
    follow_command.add_argument("--timeout", type=seconds, metavar="S", help=text)
    text = "go on when nobody writes: the next capture opens the journal again"
    follow_command.add_argument("--through-seals", action="store_true", help=text)
    prune_command = commands.add(
        "prune", prune, "write a new journal with some captures, or with all, compacted", path="SOURCE"
    )
    prune_command.add_argument("target", metavar="TARGET", help="directory of the new journal; nothing may be there")
    prune_command.add_argument("--keep-last", type=count, metavar="N", help="keep the last N captures")
    text = "keep this capture, by number or name; may be given several times"
    prune_command.add_argument("--capture", action="append", default=[], metavar="N", help=text)
    text = "keep captures with this tag; may be given several times"
    prune_command.add_argument("--tag", action="append", default=[], metavar="T", help=text)
    export_command = commands.add("export", export, "every event as JSON, a line each, in the order of storing")
    add_capture(export_command)
    export_command.add_argument("--jsonl", action="store_true", help="lines of JSON, which it writes in any case")
    export_command.add_argument("--output", metavar="FILE", help="write to FILE; to standard output by default")


def follow(asked: argparse.Namespace) -> None:
    lines = EventLines(with_stream=asked.capture is None)
    with open_journal(asked.path, wait=asked.timeout or 0.0) as view:
        for item in view.follow(asked.capture, timeout=asked.timeout, through_seals=asked.through_seals):
            if asked.json:
                write_json(event_facts(item), one_line=True)
            else:
                sys.stdout.write(lines.line(item))
            sys.stdout.flush()
    if asked.capture is None and not asked.through_seals and sys.stderr.isatty():
        sys.stderr.write("torchlens: nobody writes this journal now; --through-seals waits for the next capture\n")


@reading
def prune(asked: argparse.Namespace, view: JournalView) -> None:
    copied = view.prune(asked.target, captures=asked.capture, tags=asked.tag, keep_last=asked.keep_last)
    facts: dict[str, Any] = {"path": asked.target, "streams": copied.streams, **attrs.asdict(copied)}
    del facts["numbers"]
    if asked.json:
        write_json(facts)
        return
    write_facts((name.replace("_", " "), value) for name, value in facts.items())


@reading
def export(asked: argparse.Namespace, view: JournalView) -> None:
    stamped = view.journal.since(0) if asked.capture is None else view.capture(asked.capture).events()
    with output_of(asked.output) as out:
        for item in stamped:
            out.write(json_text(event_facts(item), one_line=True) + "\n")


@contextmanager
def output_of(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with open(path, "w", encoding="utf-8") as file:
        yield file
