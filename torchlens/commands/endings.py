"""``journal postmortem``: how a capture ended, and the call it ended in."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import attrs

from torchlens.commands.parsing import Commands, add_capture
from torchlens.commands.printing import clock, write_facts, write_json
from torchlens.journals.ending import PassBegun, Postmortem
from torchlens.journals.ending import postmortem as postmortem_of
from torchlens.printable import amount
from torchlens.quantities import Duration
from torchlens.reading.calls_made import CallMade, Place


def add(commands: Commands) -> None:
    made = commands.add("postmortem", postmortem, "how a capture ended and, where it died, the call it died in")
    add_capture(made, otherwise="; the last one by default")


def postmortem(asked: argparse.Namespace) -> int:
    """Exit status 1 where the capture died, failed or was interrupted."""
    found = postmortem_of(asked.path, asked.capture)
    if asked.json:
        write_json(facts_of(found))
    else:
        write_facts(lines_of(found))
    return 0 if found.is_well else 1


def facts_of(found: Postmortem) -> dict[str, Any]:
    return {**attrs.asdict(found), "died": found.died, "verdict": found.verdict}


def lines_of(found: Postmortem) -> Iterator[tuple[str, str]]:
    yield "verdict", found.verdict
    name = "" if found.name is None else f" {found.name!r}"
    yield "capture", f"{found.capture}{name} of {found.model}, {found.num_events} events from {clock(found.opened_ns)}"
    if found.call is not None:
        yield from lines_of_call("raised by" if found.call.raised else "call", found.call)
        yield "begun", f"{moment(found.call.begun_ns)}, {after(found.call.begun_ns, found.opened_ns)} after the opening"
        for outer in reversed(found.around):
            yield from lines_of_call("made inside", outer)
    elif found.raised_at:
        yield from lines_of_places("raised in", found.raised_in, found.raised_at)
    if found.backward is not None:
        yield from lines_of_pass(found.backward)
    if found.last_op is not None and found.status != "complete":
        yield from lines_of_call("last op", found.last_op)
    yield "last event", f"{moment(found.last_ns)}, {after(found.last_ns, found.opened_ns)} after the opening"


def lines_of_pass(begun: PassBegun) -> Iterator[tuple[str, str]]:
    within = f", within {' > '.join(map(str, begun.around))}" if begun.around else ""
    yield "pass", f"{begun.pass_index}, begun by {begun.trigger}{within}"
    yield "  fired", f"{amount(begun.num_fired, 'node')}; last {begun.last_fired or 'none'}"
    if begun.place is not None:
        yield from lines_of_places("", (), (begun.place,))


def lines_of_call(what: str, call: CallMade) -> Iterator[tuple[str, str]]:
    label = "" if call.label is None else f"{call.label}: "
    yield what, f"{label}{call}"
    yield from lines_of_places("  in", call.modules, call.places)


def lines_of_places(what: str, modules: Sequence[str], places: Sequence[Place]) -> Iterator[tuple[str, str]]:
    if modules:
        yield what, " > ".join(modules)
    for number, place in enumerate(reversed(places)):
        yield ("  called from" if number else "  at"), str(place)
        if place.text is not None:
            yield "", f"    {place.text}"


def moment(wall_time_ns: int) -> str:
    return datetime.fromtimestamp(wall_time_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds")


def after(end_ns: int, start_ns: int) -> str:
    return str(Duration((end_ns - start_ns) / 1e9))
