"""Going through captures that somebody made up: every move ends with an answer or a coded error, and soon."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchlens as tl
from tests.hostile import Outcomes, mutated, sound_streams, write

SOUND = sound_streams()

SENT = (tl.func("linear"), tl.grad(tl.contains("_")), tl.grad_fn(), "node_fired", tl.where(lambda op: op.num_children))


def gone_through(cursor: tl.Cursor, found: Outcomes, places: int) -> None:
    """What a cursor says at some places, and where it is sent from there."""
    for place in range(places + 1):
        found.of(f"seek {place}", lambda place=place: cursor.seek(place / places))
        for name, ask in (
            ("event", lambda: cursor.event),
            ("counts", lambda: cursor.trace.moment.counts),
            ("labels", lambda: cursor.trace.ops.labels),
            ("nodes", lambda: cursor.trace.autograd.grad_fns.labels),
            ("where", lambda: str(cursor.where()) + repr(cursor.where())),
            ("changed", lambda: str(cursor.changed())),
            ("trace", lambda: repr(cursor.trace) + str(cursor.trace.summary())),
        ):
            found.of(f"{name} at {place}", ask)
        for what in SENT:
            for move in (cursor.next, cursor.previous):
                found.of(f"{move.__name__} {what!r} from {place}", lambda move=move, what=what: move(what))


@pytest.mark.parametrize("capture", range(len(SOUND)))
def test_a_sound_capture_is_gone_through_without_a_refusal(tmp_path: Path, capture: int) -> None:
    """Else the law below would hold for want of anything to go through."""
    rows, payloads = SOUND[capture]
    found = Outcomes()
    with tl.time_travel(write(tmp_path / "j", rows, payloads)) as cursor:
        gone_through(cursor, found, 4)
    refused = {code for what, code in found.items() if code and not what.startswith(("next", "previous"))}
    assert refused <= {"cursor_before_first"}


@given(st.sampled_from(range(len(SOUND))), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_any_change_to_a_capture_gives_answers_or_coded_errors(
    tmp_path_factory: pytest.TempPathFactory, capture: int, seed: int
) -> None:
    rows, payloads = SOUND[capture]
    folder = tmp_path_factory.mktemp("changed")
    found = Outcomes()
    write(folder / "j", mutated(rows, random.Random(seed)), payloads)
    try:
        cursor = tl.time_travel(folder / "j")
    except tl.TorchLensError:
        return
    with cursor:
        gone_through(cursor, found, 3)
    shutil.rmtree(folder)
