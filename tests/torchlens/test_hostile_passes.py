"""Backward passes that somebody made up: reading ends with an answer or a coded error, soon and in little room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from journal import At, Event
from journal.events import (
    DESCRIPTION,
    BackwardDispatched,
    CaptureRequested,
    CaptureSettled,
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    CheckpointUnwitnessed,
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
    SavedForBackward,
)
from projections.records.saved import ASKED
from tests.hostile import read_journal, read_records, write
from tests.torchlens.test_hostile_reading import PLAIN, begun, op, parameter, rows_of
from tests.work import at_most, seconds

LIKE: Final = ((2,), "float32", "cpu")
FAR: Final = 1 << 40
TEXT: Final = "\x1b[31mred\x1b[0m\n\u202eback" + "x" * 5000


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    with at_most(60):
        yield


def capture() -> list[Event]:
    """A parameter and one op, whose value stands at node 0."""
    described = dict(zip(DESCRIPTION, PLAIN, strict=True)) | {"grad_node": 0, "grad_slot": 0, "requires_grad": True}
    return [
        *begun(parameters=[parameter()]),
        op(1, (0, -1), described=tuple(described.values())),
        CaptureSettled(torch_restored=True),
    ]


def node(number: int, *edges: Any, name: str = "MulBackward0", leaf: int | None = None, sequence: Any = 1) -> Any:
    return (number, name, f"torch.{name}", False, edges, leaf, sequence)


def opened(number: int = 0, **told: Any) -> PassOpened:
    plain: dict[str, Any] = {"trigger": "backward", "frame": None, "policy": "True", "parent": None}
    plain |= {"thread": "MainThread", "task": None, "roots": (((0, 0), LIKE),), "seeds": (None,), "inputs": None}
    plain |= {
        "retain_graph": False,
        "create_graph": False,
        "accumulates": True,
        "is_transient": False,
        "has_census": True,
    }
    return PassOpened(pass_number=number, **plain | told)


def found(*nodes: Any, number: int = 0) -> NodesFound:
    return NodesFound(pass_number=number, nodes=nodes, is_cut=False)


def fired(node: int, number: int = 0, **told: Any) -> NodeFired:
    plain: dict[str, Any] = {"duration_ns": 5, "missing": (), "sequence": None}
    return NodeFired(pass_number=number, node=node, **plain | told)


def observed(node: int, **told: Any) -> GradientObserved:
    plain: dict[str, Any] = {"side": "output", "slot": 0, "like": LIKE, "payload": (0, 0, None)}
    return GradientObserved(pass_number=0, node=node, **plain | told)


def journaled(number: int = 0, **told: Any) -> PassJournaled:
    plain: dict[str, Any] = {"closed_by": "trigger_return", "drain_queued": False, "exception": None}
    plain |= {"message": None, "raised_in": None, "peak_memory": None, "incomplete_reason": None}
    return PassJournaled(pass_number=number, **plain | told)


def ran(operator: str = "aten.mm.default", node: int | None = 0, **told: Any) -> BackwardDispatched:
    plain: dict[str, Any] = {"is_elsewhere": False, "grad_enabled": False, "settings": None}
    plain |= {"inputs": (((2, 3), "float32"), ((3, 4), "float32")), "outputs": (((2, 4), "float32"),)}
    return BackwardDispatched(pass_number=0, operator=operator, node=node, **plain | told)


TWO: Final = (node(0, (1, 0)), node(1, leaf=-1, sequence=None))
"""The node of the op, and that of its parameter."""


def small(*events: Event, nodes: Any = TWO) -> list[Event]:
    """A pass over some nodes, with these events in it, and its end."""
    return [
        *capture(),
        opened(),
        found(*nodes),
        EngineEntered(pass_number=0, task=0),
        *events,
        journaled(),
        PassScavenged(pass_number=0),
        PassFinalized(pass_number=0),
    ]


def entered(*events: Event, token: int = 0) -> list[Event]:
    """A checkpoint, and these events behind it."""
    return [CheckpointEntered(token=token), *events]


def unpacked(token: int = 0, number: int | None = 0, node: int | None = 0) -> CheckpointUnpacked:
    return CheckpointUnpacked(token=token, pass_number=number, node=node)


LEFT: Final = CheckpointLeft(token=0, num_packed=3)

SOUND: Final = small(*entered(LEFT, unpacked()), observed(0), fired(0), observed(1), fired(1))

ODD: dict[str, list[Event]] = {
    "a circle of nodes": small(fired(0), nodes=(node(0, (1, 0)), node(1, (2, 0)), node(2, (0, 0)))),
    "a node that is its own child": small(observed(0), fired(0), nodes=(node(0, (0, 0), (0, 1)),)),
    "edges to a node that was not told": small(fired(0), nodes=(node(0, (77, 0)),)),
    "numbers that jump": small(fired(2**62), nodes=(node(0, (2**62, 0)), node(2**62))),
    "a number beyond 2**63": small(nodes=(node(2**64 - 1),)),
    "an edge to a far output": small(fired(0), nodes=(node(0, (1, FAR)), node(1))),
    "a gradient at a far output": small(observed(0, slot=FAR), fired(0)),
    "a gradient at a far input": small(observed(0, side="input", slot=FAR), fired(0)),
    "missing at far outputs": small(fired(0, missing=(FAR, 2**62, -1))),
    "a pass inside itself": [*capture(), opened(parent=0), found(node(0))],
    "a pass inside a later one": [*capture(), opened(parent=1), opened(1, parent=0)],
    "a pass of a far number": [*capture(), opened(2**62)],
    "a firing of an unknown node": small(fired(5)),
    "a gradient of an unknown node": small(observed(5)),
    "an operator of an unknown node": small(ran(node=5), fired(0)),
    "an operator of a node that did not fire": small(ran(), ran(node=1), fired(0)),
    "an operator of a node and elsewhere": small(ran(is_elsewhere=True), fired(0)),
    "an operator of a pass that is not there": [*capture(), ran()],
    "operators behind the end": [*SOUND, ran(), ran(node=None)],
    "operators whose names a terminal obeys": small(ran(TEXT), ran(f"aten.{TEXT}.default"), ran(""), fired(0)),
    "operators of absurd shapes": small(
        ran(inputs=(((2**62, 2**62), TEXT), ((2**62,) * 2, ""))),
        ran(inputs=(((-1, 2), "float32"), ((2, -(2**62)), "float32"))),
        ran("aten.convolution.default", inputs=(((2**62,) * 5000, ""),) * 2, settings=(False,)),
        ran("aten.convolution_backward.default", settings=(((((1,),),),), TEXT, None, b"", 1.5, True)),
        fired(0),
    ),
    "more work than any run can do": small(
        *(ran(inputs=(((2**40, 2**10), "float32"), ((2**10, 2**11), "float32"))) for _ in range(9)), fired(0)
    ),
    "a firing after the end": [*SOUND, fired(0), observed(0)],
    "an end twice": [*SOUND, journaled()],
    "an unknown payload": small(observed(0, payload=(9, 0, None)), fired(0)),
    "a payload of a far number": small(observed(0, payload=(2**62, 0, None)), fired(0)),
    "a payload below zero": small(observed(0, payload=(-1, 0, None)), fired(0)),
    "a payload from a far element": small(observed(0, payload=(0, FAR, (FAR,))), fired(0)),
    "a payload that is too short": small(observed(0, like=((FAR, FAR), "float32", "cpu")), fired(0)),
    "a payload of no dtype": small(observed(0, like=((2,), TEXT, TEXT)), fired(0)),
    "a kept gradient of another event": small(GradientKept(of=At(2), payload=(0, 0, None))),
    "a kept gradient of no event": small(GradientKept(of=At(2**62), payload=(0, 0, None))),
    "a leaf of a far number": small(observed(0), fired(0), nodes=(node(0, leaf=FAR), node(1, leaf=-FAR))),
    "texts that a terminal obeys": [
        *capture(),
        opened(policy=TEXT, thread=TEXT, frame=(TEXT, 1, TEXT, TEXT, 1, None)),
        found(node(0, name=TEXT)),
        fired(0),
        journaled(closed_by="engine_error", exception=TEXT, message=TEXT, raised_in=0),
    ],
    "raised in an unknown node": [*capture(), opened(), journaled(raised_in=77, exception="E")],
    "roots of absurd shapes": [*capture(), opened(roots=((None, ((2**62,) * 5000, TEXT, TEXT)),), seeds=())],
    "inputs that are unknown": [*capture(), opened(inputs=((77, FAR), None))],
    "spans that end before they begin": small(
        fired(0, sequence=(9, 1), duration_ns=-(2**62)), fired(1, sequence=(-(2**62), 2**62))
    ),
    "makers of nothing": small(
        MakersSeen(pass_number=0, entries=((2**62, 77), (-(2**62), None), (2**62, 0))),
        NodesMade(pass_number=0, nodes=(node(7, (0, 0), sequence=-5), node(8, (7, 0), sequence=2**62))),
    ),
    "nodes made in a circle": small(
        fired(0, sequence=(1, 9)),
        NodesMade(pass_number=0, nodes=(node(7, (8, 0), sequence=3), node(8, (7, 0), sequence=3))),
    ),
    "a checkpoint of a far number": small(*entered(token=2**62)),
    "a checkpoint entered twice": small(*entered(*entered())),
    "a checkpoint left twice": small(*entered(LEFT, LEFT)),
    "a checkpoint that was not entered": small(LEFT, unpacked()),
    "a checkpoint below zero": small(*entered(unpacked(-1))),
    "a checkpoint that packed less than nothing": small(*entered(CheckpointLeft(token=0, num_packed=-(2**62)))),
    "unpacked in a far pass": small(*entered(unpacked(number=2**62))),
    "unpacked in a pass below zero": small(*entered(unpacked(number=-1))),
    "unpacked at a far node": small(*entered(unpacked(node=2**62)), fired(0)),
    "unpacked at a node below zero": small(*entered(unpacked(node=-5))),
    "unpacked nowhere": small(*entered(unpacked(number=None, node=None), unpacked(node=None)), fired(0)),
    "unwitnessed for a reason of no version": small(*[CheckpointUnwitnessed(reason=TEXT)] * 3),  # type: ignore[arg-type]  # as said
    "unpacked many times": small(*entered(*[unpacked()] * 5000), fired(0)),
    "an engine entered twice": small(EngineEntered(pass_number=0, task=2**62)),
    "many edges of one node": small(fired(0), nodes=(node(0, *[(1, k) for k in range(20_000)]), node(1))),
    "many passes": [*capture(), *[opened(number) for number in range(2000)]],
    "many firings of one node": small(*[fired(0) for _ in range(5000)]),
}
"""Passes that no engine runs."""


def test_the_sound_one_is_read_whole(tmp_path: Path) -> None:
    """Else the cases would be refused for something else than what they are."""
    assert {code for what, code in read_journal(write(tmp_path / "j", rows_of(SOUND), [bytes(8)])).items() if code} <= {
        "payload_unknown",
        "stream_unknown",
    }
    found_here = read_records(tmp_path / "j")
    refused = {what: code for what, code in found_here.items() if code == "events_contradictory"}
    assert refused == {}


@pytest.mark.parametrize("what", ODD)
def test_passes_that_no_engine_runs_are_read_or_refused_by_code(tmp_path: Path, what: str) -> None:
    path = write(tmp_path / "j", rows_of(ODD[what]), [bytes(8)])
    read_journal(path)
    read_records(path, fields=len(ODD[what]) < 100)


def keeping(*events: Event) -> list[Event]:
    """A capture that measured what autograd kept, told so."""
    made = [
        attrs.evolve(event, options=((ASKED, True),)) if isinstance(event, CaptureRequested) else event
        for event in capture()
    ]
    return [*made[:-1], *events, made[-1]]


def held(*tensors: Any, untold: str | None = None, node: int = 0) -> SavedForBackward:
    return SavedForBackward(node=node, tensors=tensors or None, untold=untold)


KEPT: Final = (0, 8, 0, 8, None)

CONTRADICTORY: dict[str, list[Event]] = {
    "an operator behind the end": [*SOUND, ran()],
    "an operator of no node behind the end": [*SOUND, ran(node=None)],
    "a firing behind the end": [*SOUND, fired(0)],
    "a gradient behind the end": [*SOUND, observed(0)],
    "an engine entered behind the end": [*SOUND, EngineEntered(pass_number=0, task=0)],
    "a storage below zero": keeping(held((-1, 8, 0, 8, None))),
    "a storage of less than nothing": keeping(held((0, -8, 0, 8, None))),
    "a kept tensor before its storage": keeping(held((0, 8, -8, 8, None))),
    "a kept tensor of less than nothing": keeping(held((0, 8, 0, -8, None))),
    "a storage of two sizes": keeping(held(KEPT, (0, 16, 0, 8, None))),
    "a storage of two owners": keeping(held(KEPT), held((0, 8, 0, 8, "parameter"), node=1)),
    "a node that kept something twice": keeping(held(KEPT), held(KEPT)),
    "a node that tells and does not": keeping(held(KEPT, untold="CopySlices")),
    "a node that neither tells nor does not": keeping(held()),
}
"""What contradicts itself, whichever version of torch ran."""


@pytest.mark.parametrize("what", CONTRADICTORY)
def test_what_contradicts_itself_is_refused(tmp_path: Path, what: str) -> None:
    found_here = read_records(write(tmp_path / "j", rows_of(CONTRADICTORY[what]), [bytes(8)]))
    assert "events_contradictory" in found_here.values()


LATE: Final = [*capture(), opened(), found(*TWO), fired(0), journaled(), ran(), fired(1)]

NOT_CONTRADICTORY: dict[str, list[Event]] = {
    "a hook on another thread tells something while the pass is closed": [*LATE, PassScavenged(pass_number=0), ran()],
    "two nodes share a storage": keeping(held(KEPT, (0, 8, 4, 4, None)), held(KEPT, node=1)),
    "torch does not tell": keeping(held(untold="CopySlices")),
    "a node that kept nothing": keeping(SavedForBackward(node=0, tensors=(), untold=None)),
}


@pytest.mark.parametrize("what", NOT_CONTRADICTORY)
def test_what_may_be_is_read(tmp_path: Path, what: str) -> None:
    found_here = read_records(write(tmp_path / "j", rows_of(NOT_CONTRADICTORY[what]), [bytes(8)]))
    assert "events_contradictory" not in found_here.values()


GROWING: dict[str, Callable[[int], list[Event]]] = {
    "a chain": lambda many: small(*[fired(n) for n in range(many)], nodes=[node(n, (n + 1, 0)) for n in range(many)]),
    "a star": lambda many: small(nodes=[node(0, *[(n, 0) for n in range(1, many)]), *map(node, range(1, many))]),
    "a fan": lambda many: small(nodes=[*[node(n, (many, 0)) for n in range(many)], node(many)]),
    "checkpoints": lambda many: small(
        *[event for token in range(many) for event in (CheckpointEntered(token=token), unpacked(token))],
        *[fired(0) for _ in range(many)],
    ),
    "gradients": lambda many: small(*[event for _ in range(many) for event in (observed(0), fired(0))]),
    "operators": lambda many: small(*[event for _ in range(many) for event in (ran(), fired(0))]),
    "operators of one firing": lambda many: small(
        *[ran(f"aten.o{number}.default") for number in range(many)], fired(0)
    ),
}


@pytest.mark.parametrize("what", GROWING)
def test_twice_the_pass_takes_about_twice_the_time(tmp_path: Path, what: str) -> None:
    few, many = (write(tmp_path / str(so), rows_of(GROWING[what](so)), [bytes(8)]) for so in (400, 1600))
    once = min(seconds(lambda: read_records(few, fields=False)) for _ in range(2))
    assert seconds(lambda: read_records(many, fields=False)) < 10 * once + 0.5  # the square would be 16
