"""Activation checkpoints are witnessed: tokens, where they are unpacked, and what says that more may have happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchlens as tl
from journal.events import CheckpointEntered, CheckpointLeft, CheckpointUnpacked, CheckpointUnwitnessed, Event
from projections.checkpoint_witness import saw_checkpointing
from tests.diary_order import check_diary

OBSERVED = "checkpoint_invocations_observed"
NONE_OBSERVED = "no_checkpoint_invocation_observed"
INCOMPLETE = "evidence_incomplete"

KEEP = tl.CaptureOptions(save_grads=True)


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
