"""The backward diary keeps its order in captures that are made up, and whatever it may tell is made up."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import Event, IllegalTransition
from journal.events import (
    CaptureSettled,
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    EngineEntered,
    GradientKept,
    GradientObserved,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)
from tests.projections.making import Made
from tests.projections.making_backward import Passes
from tests.strategies import capture_streams, opened, payloads_named
from torchlens.testing.checking.diary_order import DiaryOrder, check_diary

DIARY = (
    EngineEntered,
    GradientKept,
    GradientObserved,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)


def is_whole(events: list[Event]) -> bool:
    counts = [sum(isinstance(event, cls) for event in events) for cls in (PassOpened, PassFinalized)]
    return counts[0] == counts[1]


@given(capture_streams(backward=True))
def test_every_number_is_given_before_it_is_used_and_every_pass_steps_its_machine(events: list[Event]) -> None:
    check_diary(events, is_whole=is_whole(events))
    named = [number for event in events for number in payloads_named(event)]
    assert sorted(named) == list(range(len(named)))


@given(capture_streams(backward=True), st.integers(0, 200))
def test_every_prefix_keeps_the_order_too(events: list[Event], cut: int) -> None:
    check_diary(events[:cut], is_whole=False)


def traits(events: list[Event], diary: DiaryOrder) -> set[str]:
    """What is special about the passes of a capture."""
    found = {cls.__name__ for cls in map(type, events) if cls in DIARY}
    for number, each in enumerate(diary.opened):
        found |= {each.trigger, f"nested {sum(1 for _ in diary.around(number))}"}
        found |= {"sums" if each.accumulates else "returns", "creates" if each.create_graph else "plain"}
    for event in events:
        match event:
            case PassJournaled(closed_by=closed_by, raised_in=raised_in):
                found |= {closed_by, "raised in a node" if raised_in is not None else "not in a node"}
            case NodesFound(is_cut=is_cut, nodes=nodes):
                found |= {"cut"} if is_cut else set()
                found |= {"parameter" if row[5] < 0 else "leaf" for row in nodes if row[5] is not None}
            case GradientObserved(side=side):
                found.add(side)
            case CheckpointUnpacked(pass_number=None):
                found.add("unpacked in the forward")
            case CheckpointUnpacked():
                found.add("unpacked")
            case NodeFired(duration_ns=None):
                found.add("only begun")
            case _:
                pass
    if diary.made.keys() & {node for _, node in diary.fired}:
        found.add("a made node fired")
    if not is_whole(events):
        found.add("unfinished")
    return found


def test_whatever_a_diary_may_tell_is_made_up() -> None:
    seen: set[str] = set()

    @settings(max_examples=400, derandomize=True, database=None)
    @given(capture_streams(backward=True, min_steps=2))
    def collect(events: list[Event]) -> None:
        seen.update(traits(events, check_diary(events, is_whole=is_whole(events))))

    collect()
    assert seen == {
        *(cls.__name__ for cls in DIARY),
        *("backward", "recording_backward", "autograd_backward", "autograd_grad", "implicit"),
        *("trigger_return", "engine_drain", "sync_point", "engine_error"),
        *("nested 0", "nested 1", "nested 2", "sums", "returns", "creates", "plain", "raised in a node"),
        *("not in a node", "cut", "parameter", "leaf", "output", "input", "only begun", "a made node fired"),
        *("unfinished", "unpacked", "unpacked in the forward"),
    }


# That the check can fail ------------------------------------------------------------------------------


def nested() -> list[Event]:
    made = Made()
    made.events = [opened(), CaptureSettled(torch_restored=True)]
    passes = Passes(made, first=0)
    leaf = passes.node("AccumulateGrad", number=1, leaf=0)
    root = passes.node("MulBackward0", leaf, None, number=0, sequence=3)
    outer = passes.open(root, create_graph=True, has_census=True)
    passes.find(root, leaf)
    passes.enter()
    waiting = passes.observe(root)
    passes.open(root)
    passes.enter()
    passes.fire(root)
    inner = passes.journal()
    passes.fire(root)
    passes.observe(leaf)
    passes.fire(leaf)
    passes.journal()
    passes.finalize(inner)
    passes.keep(waiting, payload=0)
    new = passes.node("MulBackward0", root, None, number=2, sequence=4)
    passes.make(new, by=outer)
    passes.see_makers((4, root), (5, new), by=outer)
    passes.finalize(outer)
    return made.events


NESTED = nested()
"""A pass within another one, which keeps a gradient when the engine has ended, and made a node."""


ENTERED, LEFT = CheckpointEntered(token=0), CheckpointLeft(token=0, num_packed=2)
UNPACKED = CheckpointUnpacked(token=0, pass_number=0, node=0)
BEHIND = [event for event in NESTED[5:] if not isinstance(event, GradientKept)]  # which names an event by number
CHECKPOINTED: list[Event] = [opened(), ENTERED, LEFT, *NESTED[1:5], UNPACKED, *BEHIND]
"""The same behind a checkpoint."""


@pytest.mark.parametrize(
    ("event", "at"),
    [
        (ENTERED, 2),
        (LEFT, 3),
        (CheckpointUnpacked(token=1, pass_number=0, node=0), 7),
        (CheckpointUnpacked(token=0, pass_number=None, node=0), 7),
        (CheckpointUnpacked(token=0, pass_number=1, node=0), 7),
        (UNPACKED, 3),
        (UNPACKED, 15),
    ],
    ids=lambda given: str(given) if isinstance(given, int) else type(given).__name__,
)
def test_what_is_told_of_a_checkpoint_out_of_turn_is_noticed(event: Event, at: int) -> None:
    check_diary(CHECKPOINTED)
    with pytest.raises(BROKEN):
        check_diary([*CHECKPOINTED[:at], event, *CHECKPOINTED[at:]])


def test_a_nested_pass_is_sound() -> None:
    assert check_diary(NESTED).made == {2: 0}


BROKEN = (AssertionError, KeyError, IllegalTransition)
NOT_NEEDED = (GradientKept, GradientObserved, MakersSeen, NodeFired)
"""Nothing that follows needs the first of these."""


@pytest.mark.parametrize("cls", [cls for cls in DIARY if cls not in NOT_NEEDED])
def test_an_event_less_is_noticed(cls: type[Event]) -> None:
    at = next(place for place, event in enumerate(NESTED) if isinstance(event, cls))
    with pytest.raises(BROKEN):
        check_diary([*NESTED[:at], *NESTED[at + 1 :]])


@pytest.mark.parametrize("cls", [cls for cls in DIARY if cls not in (GradientObserved, MakersSeen)])
def test_an_event_twice_is_noticed(cls: type[Event]) -> None:
    at = next(place for place, event in enumerate(NESTED) if isinstance(event, cls))
    with pytest.raises(BROKEN):
        check_diary([*NESTED[: at + 1], *NESTED[at:]])


@pytest.mark.parametrize("cls", [NodesFound, NodeFired, GradientObserved, PassJournaled, PassScavenged, PassFinalized])
def test_a_pass_that_was_not_opened_is_noticed(cls: type[Event]) -> None:
    changed = [attrs.evolve(event, pass_number=99) if isinstance(event, cls) else event for event in NESTED]  # type: ignore[call-arg]
    with pytest.raises(AssertionError):
        check_diary(changed)
