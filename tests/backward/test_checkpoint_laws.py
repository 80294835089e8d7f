"""Laws of checkpoints: whatever is nested how, a traced run computes what a bare one does, and each is counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import attrs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import torchlens as tl
from projections.records.checkpoint_witness import saw_checkpointing
from torchlens.testing.checking.diary_order import check_diary

Kind: TypeAlias = Literal["kept", "selective", "without_rng", "reentrant", "offloaded", "hooked"]

Region: TypeAlias = "str | tuple[Kind, tuple[Region, ...]]"
"""A step of a model, or a region with steps in it."""

STEPS = ("linear", "tanh", "dropout", "square", "inplace")
KEPT = ("kept", "selective", "without_rng")
KINDS: tuple[Kind, ...] = ("kept", "selective", "without_rng", "reentrant", "offloaded", "hooked")

SAVED = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


def regions(*kinds: Kind) -> st.SearchStrategy[tuple[Region, ...]]:
    """Up to three levels of regions of these kinds."""

    def within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        parts = st.lists(inner, min_size=1, max_size=3).map(lambda items: tuple(items))
        return st.one_of(st.sampled_from(STEPS), st.tuples(st.sampled_from(kinds), parts))

    steps: st.SearchStrategy[Any] = st.sampled_from(STEPS)
    for _ in range(3):
        steps = within(steps)
    return st.lists(steps, min_size=1, max_size=3).map(lambda items: tuple(items))


@attrs.define
class Counted:
    """How often hooks of the user's were called."""

    packed: int = 0
    unpacked: int = 0

    def pack(self, tensor: Tensor) -> tuple[Tensor]:
        self.packed += 1
        return (tensor.detach().clone(),)

    def unpack(self, held: tuple[Tensor]) -> Tensor:
        self.unpacked += 1
        return held[0]


class Nest(nn.Module):
    """Runs regions."""

    def __init__(self, parts: tuple[Region, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.4)
        self.parts = parts
        self.counted = Counted()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.parts, x)

    def run(self, parts: tuple[Region, ...], x: Tensor) -> Tensor:
        for part in parts:
            x = self.step(part, x) if isinstance(part, str) else self.region(*part, x)
        return x

    def step(self, name: str, x: Tensor) -> Tensor:
        steps: dict[str, Callable[[], Tensor]] = {
            "linear": lambda: self.linear(x),
            "tanh": lambda: torch.tanh(x),
            "dropout": lambda: self.dropout(x),
            "square": lambda: x * x,
            "inplace": lambda: (x * 0.5).add_(1.0),
        }
        return steps[name]()

    def region(self, kind: Kind, parts: tuple[Region, ...], x: Tensor) -> Tensor:
        inside = functools.partial(self.run, parts)
        made: Tensor
        if kind == "offloaded":
            with save_on_cpu():
                made = inside(x)
        elif kind == "hooked":
            with saved_tensors_hooks(self.counted.pack, self.counted.unpack):
                made = inside(x)
        elif kind == "selective":
            contexts = functools.partial(create_selective_checkpoint_contexts, SAVED)
            made = checkpoint(inside, x, use_reentrant=False, context_fn=contexts)
        else:
            made = checkpoint(inside, x, use_reentrant=kind == "reentrant", preserve_rng_state=kind != "without_rng")
        return made


@attrs.frozen
class Ran:
    """What a forward and its backward left."""

    output: Tensor | None
    gradients: tuple[Tensor | None, ...]
    counted: Counted
    generator: Tensor
    error: str | None


def ran(parts: tuple[Region, ...], forward: Callable[[nn.Module, Tensor], Tensor]) -> Ran:
    model = Nest(parts)
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    torch.manual_seed(3)
    output, error = None, None
    try:
        output = forward(model, x)
        output.sum().backward()
    except Exception as raised:  # noqa: BLE001  # whatever torch makes of it
        cause = raised.__cause__ if isinstance(raised, tl.TraceCaptureError) else raised
        error = f"{type(cause).__name__}: {cause}"
    gradients = tuple(tensor.grad for tensor in (x, *model.parameters()))
    return Ran(None if output is None else output.detach(), gradients, model.counted, torch.get_rng_state(), error)


def is_same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def assert_same(one: Ran, other: Ran) -> None:
    assert one.error == other.error
    assert is_same(one.output, other.output)
    assert [is_same(*pair) for pair in zip(one.gradients, other.gradients, strict=True)] == [True] * 3
    assert one.counted == other.counted
    assert torch.equal(one.generator, other.generator)


def kept_in(parts: tuple[Region, ...]) -> Iterator[str]:
    """The non-reentrant checkpoints that a forward enters: none in a reentrant one, where gradients are off."""
    for part in parts:
        if not isinstance(part, str):
            kind, inside = part
            if kind in KEPT:
                yield kind
            if kind != "reentrant":
                yield from kept_in(inside)


def kinds_in(parts: tuple[Region, ...]) -> set[str]:
    found: set[str] = set()
    for part in parts:
        if not isinstance(part, str):
            found |= {part[0], *kinds_in(part[1])}
    return found


@given(regions(*KINDS))
@settings(max_examples=60, deadline=None)
def test_a_traced_run_of_any_nesting_is_a_bare_one(parts: tuple[Region, ...]) -> None:
    made: list[tl.Trace] = []

    def traced(model: nn.Module, x: Tensor) -> Tensor:
        made.append(tl.trace(model, x, capture=tl.CaptureOptions(save_grads=True)))
        output: Tensor = made[-1].output
        return output

    assert_same(ran(parts, lambda model, x: model(x)), ran(parts, traced))
    for trace in made:
        told = trace.checkpoint_invocation_witness
        check_diary([stamped.event for stamped in trace.events()])
        count = len(list(kept_in(parts)))
        assert told is not None
        assert told["token_count"] == count
        assert [*told["tokens"]] == list(range(1, 1 + count))
        has_reentrant = "reentrant" in kinds_in(parts)
        assert told["degrade_flags"] == (["reentrant_node_discovered"] if has_reentrant else [])
        assert saw_checkpointing(trace.tables.forward) is (count > 0 or has_reentrant)
        trace.cleanup()


@given(regions("kept", "selective", "offloaded"))
@settings(max_examples=40, deadline=None)
def test_every_window_is_a_firing_of_its_pass_and_every_candidate_an_op(parts: tuple[Region, ...]) -> None:
    trace = tl.trace(Nest(parts), torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_())
    trace.backward(trace.output.sum())
    told = trace.checkpoint_invocation_witness
    assert told is not None
    for token in told["tokens"].values():
        assert token["unpack_evidence_count"] == len(token["window_evidence"])
        for number, label, call in token["window_evidence"]:
            firing = trace.autograd.grad_fn_calls[f"{label}:{call}"]
            assert firing.backward_pass_index == number
        keys = {op.site_key for op in trace.ops}
        assert set(token["site_key_candidates"]) <= keys
    trace.cleanup()
