"""Activation checkpoints are witnessed: tokens, where they are unpacked, and what says that more may have happened."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchlens as tl
from journal.events import CheckpointEntered, CheckpointLeft, CheckpointUnpacked, CheckpointUnwitnessed, Event
from projections.records.checkpoint_witness import saw_checkpointing
from torchlens import compat
from torchlens.capture.checkpoints import Evidence, Packing, Token
from torchlens.testing.checking.diary_order import check_diary

OBSERVED = "checkpoint_invocations_observed"
NONE_OBSERVED = "no_checkpoint_invocation_observed"
INCOMPLETE = "evidence_incomplete"

KEEP = tl.CaptureOptions(save_grads=True)


METHODS = (saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__)


@pytest.fixture(autouse=True)
def torch_has_its_own_again() -> Iterator[None]:
    yield
    found = (saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__)
    saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = METHODS  # type: ignore[method-assign]  # as said
    assert found == METHODS


def block(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


class Blocks(nn.Module):
    """Two blocks, run in a way that is handed to it."""

    def __init__(self, run: Callable[[Blocks, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = block(), block()
        self.dropout = nn.Dropout(0.5)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def kept(fn: Callable[..., Any], *args: Any, **how: Any) -> Tensor:
    """In a non-reentrant checkpoint."""
    made: Tensor = checkpoint(fn, *args, use_reentrant=False, **how)
    return made


def bare(model: Blocks, x: Tensor) -> Tensor:
    return model.second(model.first(x))  # type: ignore[no-any-return]


def one_after_the_other(model: Blocks, x: Tensor) -> Tensor:
    return kept(model.second, kept(model.first, x))


def nested(model: Blocks, x: Tensor) -> Tensor:
    return kept(lambda y: kept(model.second, model.first(y)), x)


def reentrant(model: Blocks, x: Tensor) -> Tensor:
    return model.second(checkpoint(model.first, x, use_reentrant=True))  # type: ignore[no-any-return]


def sequential(model: Blocks, x: Tensor) -> Tensor:
    return checkpoint_sequential(model.first, 2, x, use_reentrant=False)  # type: ignore[no-any-return]


def stimulus() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 4, requires_grad=True)


def traced(run: Callable[[Blocks, Tensor], Tensor], **options: Any) -> tl.Trace:
    return tl.trace(Blocks(run), stimulus(), capture=KEEP, **options)


def witness_of(run: Callable[[Blocks, Tensor], Tensor]) -> dict[str, Any]:
    """After a backward; the order of events holds, too."""
    trace = traced(run)
    trace.backward(trace.output.sum())
    check_diary(events_of(trace))
    told = trace.checkpoint_invocation_witness
    assert told is not None
    trace.cleanup()
    return told


def events_of(trace: tl.Trace) -> list[Event]:
    return [stamped.event for stamped in trace.events()]


# -- what is witnessed


def test_two_checkpoints_have_a_token_each_with_what_was_unpacked_where() -> None:
    trace = traced(one_after_the_other)
    before = trace.checkpoint_invocation_witness
    assert before is not None
    assert before["tokens"][1] == {
        "pack_count": 5,
        "unpack_evidence_count": 0,
        "site_key_candidates": [],
        "window_evidence": [],
    }
    trace.backward(trace.output.sum())
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert told.keys() == {"token_count", "tokens", "degrade_flags", "verdict"}
    assert (told["token_count"], told["degrade_flags"], told["verdict"]) == (2, [], OBSERVED)
    first = told["tokens"][1]
    assert (first["pack_count"], first["unpack_evidence_count"]) == (5, 5)
    assert first["site_key_candidates"] == [
        "s1|first/first.2|linear||1",
        "s1|first/first.1|tanh||1",
        "s1|first/first.0|linear||1",
    ]
    windows = [("addmm", 1), ("addmm", 1), ("tanh", 1), ("addmm", 1), ("addmm", 1)]
    assert [(label.split("_")[0], call) for _, label, call in first["window_evidence"]] == windows
    for number, label, call in first["window_evidence"]:
        firing = trace.autograd.grad_fn_calls[f"{label}:{call}"]
        assert (number, firing.backward_pass_index) == (1, 1)
        assert firing.grad_fn.op.module.startswith("first.")


def test_each_region_is_told_where_it_begins_and_ends() -> None:
    trace = traced(nested)
    told = [event for event in events_of(trace) if isinstance(event, CheckpointEntered | CheckpointLeft)]
    assert told == [
        CheckpointEntered(token=0),
        CheckpointEntered(token=1),
        CheckpointLeft(token=1, num_packed=5),
        CheckpointLeft(token=0, num_packed=6),  # what the inner one was given is kept by the outer one
    ]


def test_a_plain_model_has_no_witness_before_a_backward_and_none_observed_after_it() -> None:
    trace = traced(bare)
    assert trace.checkpoint_invocation_witness is None
    trace.backward(trace.output.sum())
    assert trace.checkpoint_invocation_witness == {
        "token_count": 0,
        "tokens": {},
        "degrade_flags": [],
        "verdict": NONE_OBSERVED,
    }
    assert not saw_checkpointing(trace.tables.forward)


def test_a_reentrant_checkpoint_has_no_token_and_withdraws_the_verdict() -> None:
    told = witness_of(reentrant)
    assert told == {
        "token_count": 0,
        "tokens": {},
        "degrade_flags": ["reentrant_node_discovered"],
        "verdict": INCOMPLETE,
    }


@pytest.mark.parametrize("run", [one_after_the_other, nested, reentrant, sequential])
def test_checkpointing_was_seen(run: Callable[[Blocks, Tensor], Tensor]) -> None:
    trace = traced(run)
    trace.backward(trace.output.sum())
    assert saw_checkpointing(trace.tables.forward)


def test_every_kept_pass_unpacks_again() -> None:
    trace = traced(nested)
    loss = trace.output.sum()
    trace.backward(loss, retain_graph=True)
    trace.backward(loss)
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert [one["unpack_evidence_count"] for one in told["tokens"].values()] == [12, 10]
    assert {number for number, _, _ in told["tokens"][1]["window_evidence"]} == {1, 2}


def test_nothing_is_told_of_a_capture_without_a_checkpoint() -> None:
    trace = traced(bare)
    trace.backward(trace.output.sum())
    kinds = (CheckpointEntered, CheckpointLeft, CheckpointUnpacked, CheckpointUnwitnessed)
    assert not [event for event in events_of(trace) if isinstance(event, kinds)]


# -- what is not


class Derived(checkpointing._checkpoint_hook):  # type: ignore[misc]  # torch's stub lacks it
    """A checkpoint of somebody else's kind."""

    def __init__(self) -> None:
        saved_tensors_hooks.__init__(self, lambda tensor: tensor, lambda tensor: tensor)


def derived(model: Blocks, x: Tensor) -> Tensor:
    with Derived():
        return bare(model, x)


def in_a_thread(model: Blocks, x: Tensor) -> Tensor:
    made: list[Tensor] = []
    thread = threading.Thread(target=lambda: made.append(kept(model.first, x)))
    thread.start()
    thread.join()
    return model.second(made[0])  # type: ignore[no-any-return]


def in_a_pool(model: Blocks, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return model.second(pool.submit(kept, model.first, x).result())  # type: ignore[no-any-return]


class Opaque(torch.autograd.Function):
    """What it runs is not watched."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            kept(torch.tanh, x.detach().requires_grad_())
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def inside_an_opaque_op(model: Blocks, x: Tensor) -> Tensor:
    return bare(model, Opaque.apply(x))


def in_a_backward(model: Blocks, x: Tensor) -> Tensor:
    y = nested(model, x)  # the inner one is entered again where the outer one is computed again
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    return y


def replacing(model: Blocks, x: Tensor) -> Tensor:
    """Somebody puts a function in our place, which calls ours."""
    ours = saved_tensors_hooks.__enter__

    def theirs(self: saved_tensors_hooks) -> None:
        ours(self)

    saved_tensors_hooks.__enter__ = theirs  # type: ignore[method-assign]  # as said
    return kept(model.first, x)


@pytest.mark.parametrize(
    ("run", "flag", "count"),
    [
        (derived, "exotic_subclass", 0),
        (in_a_thread, "unwitnessed_checkpoint_enter", 0),
        (in_a_pool, "unwitnessed_checkpoint_enter", 0),
        (inside_an_opaque_op, "unwitnessed_checkpoint_enter", 0),
    ],
)
def test_what_is_entered_unwitnessed_has_no_token_and_is_told(
    run: Callable[[Blocks, Tensor], Tensor], flag: str, count: int
) -> None:
    trace = traced(run)
    before = trace.checkpoint_invocation_witness
    assert before is not None
    assert (before["degrade_flags"], before["verdict"]) == ([flag], INCOMPLETE)
    trace.backward(trace.output.sum())
    assert trace.checkpoint_invocation_witness == before | {"token_count": count}
    assert gradients_of(run) == gradients_of(run, traced_too=True)


def test_a_checkpoint_of_a_backward_within_the_forward_is_the_engines() -> None:
    trace = traced(in_a_backward)
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert [one["unpack_evidence_count"] for one in told["tokens"].values()] == [6, 5]
    assert [one["window_evidence"] for one in told["tokens"].values()] == [[], []]  # that run is no recorded pass
    assert {event.pass_number for event in events_of(trace) if isinstance(event, CheckpointUnpacked)} == {None}


def in_a_backward_of_more(model: Blocks, x: Tensor) -> Tensor:
    """The inner one is entered again, to compute what follows it."""
    y = kept(lambda y: kept(model.second, model.first(y)).sin(), x)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    return y


def test_a_checkpoint_that_a_backward_within_the_forward_enters_is_told() -> None:
    told = traced(in_a_backward_of_more).checkpoint_invocation_witness
    assert told is not None
    assert (told["token_count"], told["degrade_flags"]) == (2, ["unwitnessed_checkpoint_enter"])


def test_what_another_thread_unpacks_in_the_forward_is_told_at_its_end() -> None:
    def elsewhere(model: Blocks, x: Tensor) -> Tensor:
        y = one_after_the_other(model, x)
        thread = threading.Thread(target=lambda: torch.autograd.grad(y.sum(), x, retain_graph=True))
        thread.start()
        thread.join()
        return y

    trace = traced(elsewhere)
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert [one["unpack_evidence_count"] for one in told["tokens"].values()] == [5, 5]
    assert told["degrade_flags"] == []
    check_diary(events_of(trace), is_whole=False)


def gradients_of(run: Callable[[Blocks, Tensor], Tensor], *, traced_too: bool = False) -> list[list[float]]:
    model, x = Blocks(run), stimulus()
    output = tl.trace(model, x, capture=KEEP).output if traced_too else model(x)
    output.sum().backward()
    return [tensor.grad.flatten().tolist() for tensor in (x, *model.parameters()) if tensor.grad is not None]


@pytest.mark.parametrize("run", [one_after_the_other, nested, reentrant, sequential, in_a_backward, in_a_thread])
def test_gradients_are_bit_for_bit_those_of_a_bare_run(run: Callable[[Blocks, Tensor], Tensor]) -> None:
    assert gradients_of(run) == gradients_of(run, traced_too=True)


def test_a_version_without_the_class_mints_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "CHECKPOINT_HOOK", None)
    for run in (bare, one_after_the_other):
        told = traced(run).checkpoint_invocation_witness
        assert told == {
            "token_count": 0,
            "tokens": {},
            "degrade_flags": ["classifier_unavailable"],
            "verdict": INCOMPLETE,
        }


class OwnWay(checkpointing._checkpoint_hook):  # type: ignore[misc]  # torch's stub lacks it
    """As a later version might have it, past the methods of the base."""

    def __enter__(self) -> None:
        super().__enter__()


def test_a_class_that_is_entered_another_way_cannot_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "CHECKPOINT_HOOK", OwnWay)
    told = traced(one_after_the_other).checkpoint_invocation_witness
    assert told is not None
    assert (told["token_count"], told["degrade_flags"]) == (0, ["patch_unavailable"])


def test_who_put_a_function_in_our_place_keeps_it_and_the_verdict_is_withdrawn() -> None:
    trace = traced(replacing)
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert (told["token_count"], told["degrade_flags"]) == (1, ["patch_unavailable"])
    assert saved_tensors_hooks.__enter__.__qualname__ == "replacing.<locals>.theirs"
    again = traced(one_after_the_other).checkpoint_invocation_witness  # theirs calls the old one, which passes on
    assert again is not None
    assert (again["token_count"], again["degrade_flags"]) == (2, [])
    assert saved_tensors_hooks.__enter__.__qualname__ == "replacing.<locals>.theirs"
    saved_tensors_hooks.__enter__ = METHODS[0]  # type: ignore[method-assign]  # torch's own


def test_who_was_there_before_is_called_and_there_again() -> None:
    entered: list[type] = []

    def theirs(self: saved_tensors_hooks) -> None:
        entered.append(type(self))
        METHODS[0](self)

    saved_tensors_hooks.__enter__ = theirs  # type: ignore[method-assign]  # as said
    told = traced(one_after_the_other).checkpoint_invocation_witness
    assert told is not None
    assert (told["token_count"], told["degrade_flags"]) == (2, [])
    assert saved_tensors_hooks.__enter__ is theirs
    assert entered == [checkpointing._checkpoint_hook] * 2
    saved_tensors_hooks.__enter__ = METHODS[0]  # type: ignore[method-assign]  # torch's own


def unannounced(loss: Tensor) -> None:
    torch.ops.aten._backward(loss, [], None, False, False)


def test_a_run_that_no_pass_records_is_told_once() -> None:
    trace = tl.trace(Blocks(one_after_the_other), stimulus())
    loss = trace.output.sum()
    torch.ops.aten._backward(loss, [], None, True, False)
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert (told["degrade_flags"], told["verdict"]) == (["unmatched_backward"], INCOMPLETE)
    unannounced(loss)
    assert events_of(trace).count(CheckpointUnwitnessed(reason="unmatched_backward")) == 1
    assert told == trace.checkpoint_invocation_witness


def test_an_unannounced_run_that_is_recorded_is_evidence() -> None:
    trace = traced(one_after_the_other)
    unannounced(trace.output.sum())
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert [one["unpack_evidence_count"] for one in told["tokens"].values()] == [5, 5]
    assert told["degrade_flags"] == []


def test_a_disarmed_trace_is_told_nothing_more() -> None:
    trace = traced(one_after_the_other)
    before, loss = trace.checkpoint_invocation_witness, trace.output.sum()
    trace.autograd.disarm()
    loss.backward()
    assert trace.checkpoint_invocation_witness == before


def test_to_look_at_what_a_node_saved_is_no_backward() -> None:
    trace = tl.trace(Blocks(lambda model, x: kept(lambda y: torch.tanh(y), x)), stimulus())
    before, live = trace.checkpoint_invocation_witness, trace.ops["tanh_1_1"].out
    node = compat.node_of(live)
    while "Tanh" not in type(node).__name__:
        node = node.next_functions[0][0]
    assert torch.equal(node._saved_result, live)
    assert trace.checkpoint_invocation_witness == before


# -- hooks with state of their own


class Internal(saved_tensors_hooks):
    """The protocol of a later torch: entered, it keeps something in an attribute of the hook that it has."""

    seen: ClassVar[list[Any]] = []

    def __enter__(self) -> None:
        self.pack_hook._user_hooks = ("theirs", self)  # type: ignore[attr-defined]  # as said
        super().__enter__()

    def __exit__(self, *args: object) -> None:
        Internal.seen.append(self.pack_hook._user_hooks)  # type: ignore[attr-defined]  # as said
        super().__exit__(*args)
        del self.pack_hook._user_hooks  # type: ignore[attr-defined]  # as said


class Stateful(Internal):
    """A checkpoint of that version."""

    def __init__(self, pack: Callable[[Tensor], Any] | None = None) -> None:
        def pack_hook(tensor: Tensor) -> Any:
            return tensor.detach()

        pack_hook._checkpoint_internal = True  # type: ignore[attr-defined]  # as said
        super().__init__(pack or pack_hook, lambda held: held)


class Forgetful:
    """A hook whose attribute is another thing whenever it is asked for."""

    def __init__(self) -> None:
        vars(self)["_user_hooks"] = None

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def __getattribute__(self, name: str) -> Any:
        return [name] if name == "_user_hooks" else super().__getattribute__(name)


@pytest.fixture
def later_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    Internal.seen.clear()
    monkeypatch.setattr(compat, "CHECKPOINT_HOOK", Stateful)
    monkeypatch.setattr(compat, "CHECKPOINT_INTERNAL_HOOK", Internal)


@pytest.mark.usefixtures("later_torch")
def test_a_hook_with_state_keeps_it_through_what_stands_for_it() -> None:
    contexts: list[Stateful] = []

    def run(model: Blocks, x: Tensor) -> Tensor:
        contexts.append(Stateful())
        for _ in range(2):  # entered again, it is another checkpoint
            with contexts[-1]:
                assert contexts[-1].pack_hook._checkpoint_internal  # type: ignore[attr-defined]  # as torch reads it
                assert contexts[-1].pack_hook._user_hooks == ("theirs", contexts[-1])  # type: ignore[attr-defined]
                x = torch.tanh(x)
        return x

    trace = traced(run)
    trace.backward(trace.output.sum())
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert [(one["pack_count"], one["unpack_evidence_count"]) for one in told["tokens"].values()] == [(1, 1), (1, 1)]
    assert told["verdict"] == OBSERVED
    assert [seen for _, seen in Internal.seen] == contexts * 2
    assert not hasattr(contexts[0].pack_hook, "_user_hooks")
    assert not isinstance(contexts[0].pack_hook, Packing)


@pytest.mark.usefixtures("later_torch")
def test_a_hook_whose_state_would_be_lost_is_left_alone() -> None:
    def run(model: Blocks, x: Tensor) -> Tensor:
        context = saved_tensors_hooks.__new__(Stateful)
        hook = Forgetful()
        saved_tensors_hooks.__init__(context, hook, lambda held: held)
        Internal.__bases__[0].__enter__(context)
        assert context.pack_hook is hook
        y = torch.tanh(x)
        Internal.__bases__[0].__exit__(context)
        return y

    told = witness_of(run)
    assert (told["token_count"], told["degrade_flags"]) == (0, ["hook_identity_unpreserved"])


def test_what_stands_for_a_hook_has_its_attributes_and_no_others() -> None:
    def hook(tensor: Tensor) -> Tensor:
        """Of the user's."""
        return tensor

    evidence = object.__new__(Evidence)
    token = Token(0, evidence)
    bearer = Packing(hook, token)
    bearer.mark = 1
    assert vars(hook) == {"mark": 1}
    assert bearer.__name__ == "hook"
    del bearer.mark
    assert not hasattr(bearer, "mark")
    assert not vars(hook)
    with pytest.raises(AttributeError):
        _ = bearer.nothing
    tensor = torch.ones(1)
    assert bearer(tensor) is tensor
    assert token.num_packed == 1


# -- what goes wrong


def test_a_region_that_raises_is_left_and_the_error_is_torchs() -> None:
    def fails(x: Tensor) -> Tensor:
        torch.tanh(x)
        raise ValueError("no")

    with pytest.raises(tl.TraceCaptureError) as caught:
        traced(lambda model, x: kept(fails, x))
    assert isinstance(caught.value.__cause__, ValueError)
    partial = caught.value.partial_trace
    assert partial is not None
    assert events_of(partial).count(CheckpointLeft(token=0, num_packed=1)) == 1


@pytest.mark.parametrize("how", ["raises", "differs"])
def test_what_fails_when_it_is_computed_again_fails_as_in_a_bare_run(how: str) -> None:
    def failing() -> Callable[[Blocks, Tensor], Tensor]:
        times: list[None] = []

        def region(x: Tensor) -> Tensor:
            times.append(None)
            if how == "raises" and len(times) > 1:
                raise ValueError("not again")
            return torch.tanh(x) if len(times) > 1 else torch.tanh(x).sin()

        return lambda model, x: kept(region, model.first(x))

    def error_of(output: Tensor) -> str:
        with pytest.raises((ValueError, checkpointing.CheckpointError)) as caught:
            output.sum().backward()
        return f"{type(caught.value).__name__}: {caught.value}"

    trace = traced(failing())
    assert error_of(Blocks(failing())(stimulus())) == error_of(trace.output)
    (failed,) = trace.autograd.backward_passes
    assert failed.status == "error"
    told = trace.checkpoint_invocation_witness
    assert told is not None
    assert told["tokens"][1]["unpack_evidence_count"] == 1  # it was asked for, and did not come


def test_a_context_that_torch_refuses_is_not_entered() -> None:
    def refused(model: Blocks, x: Tensor) -> Tensor:
        with (
            torch.autograd.graph.disable_saved_tensors_hooks("not here"),
            pytest.raises(RuntimeError, match="not here"),
        ):
            kept(model.first, x)
        return bare(model, x)

    told = witness_of(refused)
    assert (told["tokens"][1]["pack_count"], told["degrade_flags"]) == (0, [])


def test_a_region_that_is_interrupted_is_left() -> None:
    packed: list[Tensor] = []

    def interrupted(model: Blocks, x: Tensor) -> Tensor:
        def region(y: Tensor) -> Tensor:
            torch.tanh(y)
            raise KeyboardInterrupt

        return kept(region, x)

    with saved_tensors_hooks(lambda tensor: packed.append(tensor) or tensor, lambda held: held):
        with pytest.raises(KeyboardInterrupt):
            traced(interrupted)
        packed.clear()
        torch.tanh(stimulus())
    assert len(packed) == 1  # those of the user's are the innermost again


def test_a_context_without_hooks_is_torchs_to_refuse() -> None:
    def hookless(model: Blocks, x: Tensor) -> Tensor:
        context = object.__new__(checkpointing._checkpoint_hook)
        with pytest.raises(AttributeError, match="pack_hook"):
            context.__enter__()
        return bare(model, x)

    told = witness_of(hookless)
    assert (told["token_count"], told["degrade_flags"]) == (0, ["hook_identity_unpreserved"])


def test_a_checkpoint_that_is_never_left_is_told_at_the_end() -> None:
    left: list[Any] = []

    def open_still(model: Blocks, x: Tensor) -> Tensor:
        context = checkpointing._checkpoint_hook(checkpointing._CheckpointFrame(None, True, None, None))
        context.__enter__()
        left.append(context)
        return torch.tanh(x)

    try:
        trace = traced(open_still)
    finally:
        left[0].__exit__()
    assert events_of(trace).count(CheckpointLeft(token=0, num_packed=1)) == 1


def test_a_failure_of_ours_costs_the_backward_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(one_after_the_other)
    assert trace.backwards is not None
    diary = trace.backwards.diary
    monkeypatch.setattr(type(diary), "unpacked", lambda self, token: 1 / 0)
    trace.output.sum().backward()
    (failed,) = trace.autograd.backward_passes
    assert failed.status == "incomplete"
    assert "ZeroDivisionError" in str(failed.incomplete_reason)


# -- beside other captures


def test_a_thread_that_checkpoints_beside_a_capture_is_left_alone() -> None:
    model, begun, done = Blocks(one_after_the_other), threading.Event(), threading.Event()
    losses: list[float] = []

    def train() -> None:
        begun.wait()
        while not done.is_set() or not losses:
            loss = model(stimulus()).sum()
            loss.backward()
            losses.append(loss.item())

    def slowly(other: Blocks, x: Tensor) -> Tensor:
        begun.set()
        while not losses:
            done.wait(0.001)
        return one_after_the_other(other, x)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        told = traced(slowly).checkpoint_invocation_witness
    finally:
        begun.set()
        done.set()
        thread.join()
    assert told is not None
    assert told["token_count"] == 2
    assert told["degrade_flags"] == ["unwitnessed_checkpoint_enter"]  # whose it was is not known
    assert set(losses) == {Blocks(one_after_the_other)(stimulus()).sum().item()}


def test_two_captures_are_told_of_their_own_checkpoints() -> None:
    one = traced(one_after_the_other)
    other = tl.trace(Blocks(nested), one.output, capture=KEEP)
    other.output.sum().backward()
    counts = []
    for trace in (one, other):
        told = trace.checkpoint_invocation_witness
        assert told is not None
        assert told["degrade_flags"] == []
        counts.append([one["unpack_evidence_count"] for one in told["tokens"].values()])
    assert counts == [[5, 5], [6, 5]]


def test_wrappers_that_stay_on_between_captures_leave_checkpoints_alone() -> None:
    with tl.wrapped():
        for _ in range(2):
            told = traced(one_after_the_other).checkpoint_invocation_witness
            assert told is not None
            assert told["token_count"] == 2
            assert (saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__) == METHODS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_in_a_forward_has_torchs_own_methods() -> None:
    def forks(model: Blocks, x: Tensor) -> Tensor:
        child = os.fork()
        if child == 0:
            os._exit(int((saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__) != METHODS))
        assert os.waitpid(child, 0)[1] == 0
        return kept(model.first, x)

    told = traced(forks).checkpoint_invocation_witness
    assert told is not None
    assert told["token_count"] == 1


# -- what is kept


class Marked(torch.autograd.Function):
    """Its node can be referred to weakly, as those that torch implements cannot."""

    nodes: ClassVar[list[weakref.ref[Any]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        Marked.nodes.append(weakref.ref(ctx))
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + 0 * ctx.saved_tensors[0]


@pytest.mark.parametrize("end", ["cleanup", "dropped", "disarmed"])
@pytest.mark.parametrize("way", ["whole", "kept", "unannounced", "never"])
def test_hooks_of_a_checkpoint_keep_neither_graph_nor_trace(end: str, way: str) -> None:
    Marked.nodes.clear()
    gc.collect()
    gc.disable()
    try:
        trace = tl.trace(
            Blocks(lambda model, x: kept(lambda y: Marked.apply(model.first(y)), x)), stimulus(), capture=KEEP
        )
        seen = [weakref.ref(trace), weakref.ref(trace.backwards), *Marked.nodes]
        loss = trace.output.sum()
        if way == "unannounced":
            unannounced(loss)
        elif way != "never":
            trace.backward(loss, retain_graph=way == "kept")
        del loss
        if end == "cleanup":
            trace.cleanup()
        elif end == "disarmed":
            trace.autograd.disarm()
        del trace
        if way == "unannounced" and end == "dropped":
            tl.trace(nn.Linear(4, 4), torch.ones(1, 4)).cleanup()
        assert [held() for held in seen] == [None] * len(seen)
    finally:
        gc.enable()


def test_a_graph_that_outlives_its_trace_still_computes_its_gradients() -> None:
    model, x = Blocks(nested), stimulus()
    trace = tl.trace(model, x, capture=KEEP)
    loss, seen = trace.output.sum(), weakref.ref(trace)
    trace.cleanup()
    del trace
    assert seen() is None
    loss.backward()
    assert x.grad is not None
    assert [x.grad.flatten().tolist()] == gradients_of(nested)[:1]


# -- in any process

READING = """
import json, sys
import torchlens as tl
print(json.dumps([tl.load(path).checkpoint_invocation_witness for path in sys.argv[1:]]))
"""


@pytest.mark.parametrize("run", [one_after_the_other, nested, reentrant, in_a_thread, in_a_backward])
def test_a_witness_is_the_same_live_and_in_memory_and_on_disk(
    run: Callable[[Blocks, Tensor], Tensor], tmp_path: Path
) -> None:
    told: list[Any] = []
    for journal in (None, tmp_path / "run.journal"):
        trace = traced(run, **({} if journal is None else {"journal": journal}))
        trace.backward(trace.output.sum())
        told.append(trace.checkpoint_invocation_witness)
        trace.cleanup()
    told.append(tl.load(tmp_path / "run.journal").checkpoint_invocation_witness)
    assert told[0] == told[1] == told[2]


def test_a_witness_is_the_same_in_another_process(tmp_path: Path) -> None:
    told: list[Any] = []
    for number, run in enumerate((one_after_the_other, nested, reentrant)):
        trace = traced(run, journal=tmp_path / f"{number}.journal")
        trace.backward(trace.output.sum())
        told.append(json.loads(json.dumps(trace.checkpoint_invocation_witness)))
        trace.cleanup()
    paths = [str(tmp_path / f"{number}.journal") for number in range(3)]
    done = subprocess.run([sys.executable, "-c", READING, *paths], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == told
