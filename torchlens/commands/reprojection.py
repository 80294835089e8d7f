"""``journal reproject``: every capture folded anew, and what differs from the stored records."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial
from typing import Any, Final

import attrs

from torchlens.commands.parsing import Commands
from torchlens.commands.printing import shown_progress, write_json, write_rows
from torchlens.journals.reprojection import (
    FIELDS,
    ChangedField,
    Difference,
    ReprojectedCapture,
    Reprojection,
    reproject_watched,
)
from torchlens.printable import amount

FEW: Final = 20
"""Captures that get a line each; of more, the numbers are told."""

MOST_FIELDS: Final = 5

SHORT: Final = 12
"""Digits of a fingerprint that tell two apart for people."""

CHANGED_FIELDS: Final = ("table", "field", "change", "differences", "captures", "for example", "before", "after")

CAPTURE_FIELDS: Final = ("stream", "name", "events", "status", "differences", "stored by", "stored at", "fingerprint")


def add(commands: Commands) -> None:
    command = commands.add(
        "reproject", reproject, "fold every capture anew, and tell which records and fields are not as they were stored"
    )
    command.add_argument("--check", action="store_true", help="compare, and store nothing")
    command.add_argument("--fields", action="store_true", help="a line for each field that differs, not for each cell")


def reproject(asked: argparse.Namespace) -> int:
    """0 where every capture could be folded, and with ``--check`` each was compared and none differs; else 1."""
    found = reproject_watched(asked.path, check=asked.check, watch=partial(shown_progress, what="folding captures"))
    if asked.json:
        facts = attrs.asdict(found)
        write_json({"path": found.path, "ok": found.ok, "num_uncompared": found.num_uncompared, **facts})
    else:
        show(found, by_field=asked.fields)
    if found.num_uncompared and asked.check:
        told = f"{found.num_uncompared} captures have nothing stored to be compared with"
        sys.stderr.write(f"torchlens: {told}; run this without --check once before an upgrade\n")
    is_failed = any(capture.status == "failed" for capture in found.captures)
    return int(is_failed or (asked.check and not (found.ok and not found.num_uncompared)))


def show(found: Reprojection, *, by_field: bool = False) -> None:
    if len(found.captures) <= FEW:
        write_rows(
            CAPTURE_FIELDS,
            [dict(zip(CAPTURE_FIELDS, capture_cells(capture), strict=True)) for capture in found.captures],
            right=("stream", "events", "differences", "stored at"),
            wrap=("name",),
            spare=("stored at", "stored by", "fingerprint"),
        )
    else:
        counts = Counter(capture.status for capture in found.captures)
        events = sum(capture.num_events for capture in found.captures)
        told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        sys.stdout.write(f"{len(found.captures)} captures, {events} events: {told}\n")
    for capture in found.captures:
        if capture.status == "failed":
            sys.stdout.write(f"capture of stream {capture.stream}: {capture.problem} [{capture.code}]\n")
    if found.differences and by_field:
        sys.stdout.write(f"{amount(found.num_differences, 'difference')}\n")
        write_rows(
            CHANGED_FIELDS,
            [dict(zip(CHANGED_FIELDS, field_cells(one), strict=True)) for one in found.fields],
            right=("differences", "captures"),
            wrap=("before", "after"),
            spare=("change", "captures"),
        )
        return
    if found.differences:
        fields = Counter(f"{one.table}.{one.field}" if one.field else one.table for one in found.differences)
        most = ", ".join(f"{name} {count}" for name, count in fields.most_common(MOST_FIELDS))
        sys.stdout.write(f"{found.num_differences} differences, most of them in {most}\n")
        write_rows(
            FIELDS,
            [dict(zip(FIELDS, difference_cells(one), strict=True)) for one in found.differences],
            right=("stream",),
            wrap=("before", "after"),
            spare=("change", "stream", "table"),
        )
    left = found.num_differences - len(found.differences)
    if left:
        sys.stdout.write(f"and {left} more\n")


def capture_cells(capture: ReprojectedCapture) -> tuple[Any, ...]:
    return (
        capture.stream,
        capture.name,
        capture.num_events,
        capture.status,
        capture.num_differences,
        capture.stored_by,
        capture.stored_head,
        None if capture.fingerprint is None else capture.fingerprint[:SHORT],
    )


def difference_cells(one: Difference) -> tuple[Any, ...]:
    is_cell = one.change == "changed" and one.field is not None
    values = (repr(one.before), repr(one.after)) if is_cell else (None, None)
    return (one.stream, one.capture, one.table, one.record, one.field, one.change, *values)


def field_cells(one: ChangedField) -> tuple[Any, ...]:
    *_, before, after = difference_cells(one.example)
    return (
        one.table,
        one.field,
        one.change,
        one.num_differences,
        one.num_captures,
        one.example.record,
        before,
        after,
    )
