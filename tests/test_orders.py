"""Each event has its place in the order that recorded streams are held to, or names nothing that could be out of it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from journal import Event
from journal import events as told
from journal.events import EVENTS_BY_NAME
from tests.strategies import capture_streams
from torchlens.errors import ValidationError
from torchlens.testing import check_trace
from torchlens.testing.checking import diary_order, forward_order
from torchlens.testing.checking.recorded import check_order

NAMES_NOTHING = frozenset(
    {
        told.CaptureCalled,
        told.CaptureRequested,
        told.ClassDescribed,
        told.ExceptionTraced,
        told.ForwardInterrupted,
        told.ForwardRaised,
        told.LeftOut,
        told.StreamOpened,
        told.ThreadCalled,
    }
)
"""Events that neither give nor name a number of the capture."""

MATCHED = {
    ast.unparse(node.cls)
    for module in (forward_order, diary_order)
    for node in ast.walk(ast.parse(inspect.getsource(module)))
    if isinstance(node, ast.MatchClass)
}


@pytest.mark.parametrize("name", EVENTS_BY_NAME)
def test_every_event_is_held_to_an_order_or_names_nothing(name: str) -> None:
    event = EVENTS_BY_NAME[name]
    assert (event.__name__ in MATCHED) is not (event in NAMES_NOTHING), f"{name}: see CONTRIBUTING.md, Add an event"


FAR = 1 << 20

ELSEWHERE: dict[type[Event], Any] = {
    told.ArgumentsKept: {"of": FAR},
    told.CallEscaped: {"operator": FAR},
    told.ConstantKept: {"value": FAR},
    told.ForwardWitnessed: {"outputs": ((FAR, None),)},
    told.ValueTaken: {"inputs": (FAR,)},
    told.WrittenUnseen: {"value": FAR},
    told.ForwardAborted: {"value": FAR},
    told.ForwardHalted: {"outputs": (FAR,)},
    told.GeneratorsKept: {"of": 0},
    told.GradientStatisticsTaken: {"of": FAR},
    told.OpLeft: {"started": 0},
    told.OptimizerGiven: {"parameters": (FAR,)},
    told.SavedForBackward: {"node": FAR},
}
"""Changes that make an event speak of what was not told, or of an event of another kind."""


@given(capture_streams() | capture_streams(backward=True), st.data())
def test_an_event_that_speaks_of_what_was_not_told_is_refused(events: list[Event], data: st.DataObject) -> None:
    check_order(events)
    places = [at for at, event in enumerate(events) if type(event) in ELSEWHERE]
    if not places:
        return
    at = data.draw(st.sampled_from(places))
    wrong = attrs.evolve(events[at], **ELSEWHERE[type(events[at])])
    with pytest.raises(ValidationError) as refused:
        check_order([*events[:at], wrong])
    assert (refused.value.code, refused.value.fields["at"]) == ("stream_illegal", at)


class Busy(nn.Module):
    """Has most of what captures are told of beside ops."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.norm = nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(self.drop(self.first(x)))
        return checkpoint(self.first, x, use_reentrant=False)


def test_a_capture_with_all_that_may_be_asked_for_keeps_the_orders(tmp_path: Path) -> None:
    model, x = Busy(), torch.randn(3, 4, requires_grad=True)
    capture = tl.CaptureOptions(
        save_arg_values=True,
        save_rng_states=True,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        measure_autograd_memory=True,
        save_grads=tl.stats_only(),
    )
    journal = tl.JournalOptions(tmp_path / "j", durability="event")
    trace = tl.trace(model, x, capture=capture, journal=journal)
    trace.backward(trace.output.sum())
    check_trace(trace)
    found = {type(stamped.event) for stamped in trace.journal.events(trace.stream, 0, trace.tables.head)}
    assert found >= {
        told.ArgumentsKept,
        told.GeneratorsKept,
        told.GradientStatisticsTaken,
        told.OptimizerGiven,
        told.OpStarted,
        told.PreHooksStarted,
        told.SavedForBackward,
    }
    trace.cleanup()
    check_trace(tl.trace(model, x, stop_after="first"))
