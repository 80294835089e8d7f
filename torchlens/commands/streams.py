"""``journal follow|prune|export``: a journal as it grows, the part worth keeping, all of it for other tools."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import attrs

from torchlens.commands.parsing import Commands, add_capture, count, seconds
from torchlens.commands.printing import EventLines, event_facts, json_text, write_facts, write_json
from torchlens.commands.reading import reading
from torchlens.commands.refusing import of_the_command
from torchlens.journals.journal_view import JournalView, open_journal
from torchlens.whole_file import written


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
    export_command.add_argument("--overwrite", action="store_true", help="replace FILE where it is there")


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
    lines = (json_text(event_facts(item), one_line=True) + "\n" for item in stamped)
    if asked.output is None:
        sys.stdout.writelines(lines)
        return
    with of_the_command():
        written(
            asked.output,
            lambda: map(str.encode, lines),
            overwrite=asked.overwrite,
            what="the export",
            exists_code="export_path_exists",
            failed_code="export_not_written",
        )
