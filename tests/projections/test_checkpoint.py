"""The witness of checkpoints follows from events alone, whatever these are; and which events are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.errors import JournalError
from journal.events import (
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    CheckpointUnwitnessed,
    Event,
    NodesFound,
    PassOpened,
)
from projections import CaptureTables
from projections.records.checkpoint_witness import FLAGS, saw_checkpointing
from tests.projections.making import Made
from tests.projections.making_backward import Passes
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams

FACT = "checkpoint_invocation_witness"


def witness_of(tables: CaptureTables) -> Any:
    return tables.fact(FACT)


def checkpointed() -> Passes:
    """One op with a node of its own in one checkpoint, and no pass yet."""
    made = Made()
    value = made.input("x")
    made.add(CheckpointEntered(token=0))
    value = made.op("relu", value, grad_fn="ReluBackward0", grad_node=0, grad_slot=0)
    made.add(CheckpointLeft(token=0, num_packed=2))
    return Passes(made.returns(value), first=1)


def unpacked(node: int | None = 0, number: int | None = 0, token: int = 0) -> CheckpointUnpacked:
    return CheckpointUnpacked(token=token, pass_number=number, node=node)


# -- laws


@given(capture_streams())
@settings(max_examples=80)
def test_every_token_is_counted_with_what_was_packed_and_unpacked_of_it(events: list[Event]) -> None:
    tables = tables_of(events)
    told = witness_of(tables)
    entered = [event.token for event in events if isinstance(event, CheckpointEntered)]
    packed = {event.token: event.num_packed for event in events if isinstance(event, CheckpointLeft)}
    asked = [event for event in events if isinstance(event, CheckpointUnpacked)]
    reasons = [event.reason for event in events if isinstance(event, CheckpointUnwitnessed)]
    is_cut = any(event.is_cut for event in events if isinstance(event, NodesFound))
    flagged = [*dict.fromkeys(map(FLAGS.__getitem__, reasons)), *(["discovery_cut"] if is_cut else [])]
    if not entered and not flagged and not any(isinstance(event, PassOpened) for event in events):
        assert told is None
        return
    assert told["token_count"] == len(entered)
    assert told["degrade_flags"] == tuple(flagged)
    assert saw_checkpointing(tables.forward) is bool(entered)
    found = "checkpoint_invocations_observed" if entered else "no_checkpoint_invocation_observed"
    assert told["verdict"] == ("evidence_incomplete" if flagged else found)
    for number, token in told["tokens"].items():
        mine = [event for event in asked if event.token == number - 1]
        assert token["pack_count"] == packed.get(number - 1)
        assert token["unpack_evidence_count"] == len(mine)
        passes = [1 + event.pass_number for event in mine if event.pass_number is not None]
        assert [window[0] for window in token["window_evidence"]] == passes
        assert set(token["site_key_candidates"]) <= set(tables.ops.column("site_key"))


@given(capture_streams(backward=True), st.integers(0, 200))
@settings(max_examples=40)
def test_what_was_witnessed_stays_and_flags_only_join(events: list[Event], cut: int) -> None:
    before, after = witness_of(tables_of(events[:cut])), witness_of(tables_of(events))
    if before is None:
        return
    assert before["token_count"] <= after["token_count"]
    kept = [flag for flag in before["degrade_flags"] if flag != "discovery_cut"]
    assert set(kept) <= set(after["degrade_flags"])
    for number, token in before["tokens"].items():
        assert token["unpack_evidence_count"] <= after["tokens"][number]["unpack_evidence_count"]


# -- worked examples


def test_what_a_firing_asked_for_is_told_with_its_node_and_the_op_of_that() -> None:
    passes = checkpointed()
    relu = passes.node("ReluBackward0", number=0)
    passes.open(relu)
    passes.find(relu)
    passes.enter()
    passes.add(unpacked())
    passes.fire(relu)
    passes.add(unpacked(node=None), unpacked(node=77))
    passes.close()
    assert witness_of(passes.tables())["tokens"][1] == {
        "pack_count": 2,
        "unpack_evidence_count": 3,
        "site_key_candidates": ("s1||relu||1",),
        "window_evidence": ((1, "relu_back_1_1", 1), (1, None, None), (1, None, None)),
    }


def test_a_node_that_has_not_ended_yet_has_no_firing() -> None:
    passes = checkpointed()
    relu = passes.node("ReluBackward0", number=0)
    passes.open(relu)
    passes.find(relu)
    passes.enter()
    passes.add(unpacked())
    assert witness_of(passes.tables())["tokens"][1]["window_evidence"] == ((1, "relu_back_1_1", None),)


def test_a_forward_that_was_cut_short_tells_of_no_packed_tensors() -> None:
    made = Made()
    made.input("x")
    made.add(CheckpointEntered(token=0))
    assert witness_of(made.raises().tables())["tokens"][1]["pack_count"] is None


def test_the_node_of_a_reentrant_checkpoint_is_seen() -> None:
    passes = checkpointed()
    passes.run(passes.node("CheckpointFunctionBackward", is_custom=True))
    told = witness_of(passes.tables())
    assert (told["degrade_flags"], told["verdict"]) == (("reentrant_node_discovered",), "evidence_incomplete")


def test_a_reason_of_a_later_version_is_a_flag_too() -> None:
    made = Made()
    value = made.input("x")
    made.add(CheckpointUnwitnessed(reason="something new"))  # type: ignore[arg-type]  # as said
    assert witness_of(made.returns(value).tables())["degrade_flags"] == ("something new",)


# -- refusals


@pytest.mark.parametrize(
    "events",
    [
        [CheckpointEntered(token=0)],
        [CheckpointEntered(token=2)],
        [CheckpointLeft(token=1, num_packed=0)],
        [CheckpointLeft(token=0, num_packed=0)],
        [CheckpointEntered(token=1), CheckpointLeft(token=1, num_packed=-1)],
        [unpacked(token=1, number=None)],
        [unpacked(token=-1, number=None)],
        [unpacked(number=0)],
        [unpacked(number=-1)],
        [unpacked(node=-1, number=None)],
    ],
    ids=str,
)
def test_what_contradicts_is_refused(events: list[Event]) -> None:
    passes = checkpointed()
    passes.add(*events)
    with pytest.raises(JournalError) as caught:
        witness_of(passes.tables())
    assert caught.value.code == "events_contradictory"
