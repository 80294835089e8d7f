"""``journal verify|recover``: whether a journal is as it was written, and what is left of one that is not.

Neither opens the journal in this process: reading a damaged one may end the process that does.
"""

from __future__ import annotations

import argparse
from typing import Any

import attrs

from journal import Damage, Report, recover, verify
from torchlens.commands.parsing import Commands, seconds
from torchlens.commands.printing import write_facts, write_json, write_rows
from torchlens.quantities import Bytes


def add(commands: Commands) -> None:
    made = commands.add(
        "verify", verified, "whether every byte that means anything is as it was written; status 1 if not"
    )
    made.add_argument("--timeout", type=seconds, metavar="S", help="give up after S seconds")
    made = commands.add("recover", recovered, "write what a damaged journal can prove into a new one", path="SRC")
    made.add_argument("target", metavar="DST", help="where nothing is yet")


def verified(asked: argparse.Namespace) -> int:
    report = verify(asked.path, timeout=asked.timeout)
    if asked.json:
        write_json({**attrs.asdict(report), "ok": report.ok})
    else:
        write_report(report)
    return 0 if report.ok else 1


def write_report(report: Report) -> None:
    damages = len(report.damages) + report.omitted
    facts: dict[str, Any] = {
        "events": report.events,
        "commits": report.commits,
        "streams": report.streams,
        "payloads": report.payloads,
        "payload bytes": Bytes(report.payload_bytes),
        "sealed": "yes" if report.is_sealed else "no",
        "damages": damages or "none",
    }
    write_facts(facts.items())
    for title, found in (("damaged", report.damages), ("not understood", report.unread)):
        if found:
            rows = [{title: one.code, "where": place_of(one), "what": one.problem} for one in found]
            write_rows((title, "where", "what"), rows, wrap=("where", "what"))
    if report.omitted:
        write_facts([("and", f"{report.omitted} more")])
    for note in report.notes:
        write_facts([("note", note)])


def place_of(damage: Damage) -> str:
    parts = [damage.file]
    if damage.stream is not None:
        parts.append(f"stream {damage.stream}")
    if damage.seq is not None:
        parts.append(f"event {damage.seq}")
    if damage.number is not None:
        parts.append(f"payload {damage.number}")
    return ", ".join(parts)


def recovered(asked: argparse.Namespace) -> None:
    report = recover(asked.path, asked.target)
    if asked.json:
        write_json(attrs.asdict(report))
        return
    facts = {name.replace("_", " "): value for name, value in attrs.asdict(report).items()}
    write_facts({**facts, "payload bytes": Bytes(report.payload_bytes)}.items())
