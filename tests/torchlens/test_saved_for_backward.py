"""Memory that is there for the backward: each storage once, charged to the op that kept it first, as torch itself
tells it through hooks around a bare run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from tests.programs import ROOT, run
from tests.torchlens.holding import Held, held_by
from torchlens.generators import seed_all
from torchlens.testing import Program, programs

MEASURED = tl.CaptureOptions(measure_autograd_memory=True)

FREED = ("caught", "inner_gradient", "raises", "wrong_shape", "write_chunk")
"""Snippets of which something is saved that the forward itself frees again."""

BEHIND = ("checkpointed_reentrant", "own_function_of_a_module")
"""Those with a node that is no recorded call's: it counts with the call that goes on from it, if one does."""

REFUSED = ("derived",)
"""Those that torch does not run under hooks of saved tensors."""


def measured(model: Any, args: Any, kwargs: Any = None, **more: Any) -> tl.Trace:
    return tl.trace(model, list(args), kwargs or {}, capture=MEASURED, save="none", **more)


def totals(trace: tl.Trace) -> Held:
    found = (
        trace.total_saved_for_backward,
        trace.total_saved_params_for_backward,
        trace.total_saved_inputs_for_backward,
    )
    return Held(*(int(amount or 0) for amount in found))


def both(program: Program) -> tuple[Held | None, Held, bool]:
    """What the hooks and the capture say, and whether torch tells the capture all; None where the bare run raises."""
    model, args, kwargs = program.build()
    seed_all(0)
    try:
        told, _ = held_by(model, args, kwargs)
    except Exception:  # noqa: BLE001  # whatever a drawn program raises
        told = None
    model, args, kwargs = program.build()
    seed_all(0)
    if told is None:
        return None, Held(0, 0, 0), False
    trace = measured(model, args, kwargs)
    found, is_whole = totals(trace), not trace.untold_saved_ops
    trace.cleanup()
    return told, found, is_whole


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40)
@given(program=programs(without=(*FREED, *BEHIND, *REFUSED)))
def test_it_is_what_torch_saves_in_a_bare_run(program: Program) -> None:
    told, found, is_whole = both(program)
    if told is not None and is_whole:
        assert found == told


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=15)
@given(program=programs(without=REFUSED))
def test_it_is_never_more(program: Program) -> None:
    told, found, _ = both(program)
    if told is not None:
        assert all(ours <= theirs for ours, theirs in zip(found, told, strict=True))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.inner(x, x, x)[0]
        return x


class Squared(torch.autograd.Function):
    """Keeps one tensor as torch wants it, and one as it does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def flat(grad: bool = True) -> Tensor:
    return torch.rand(3, 4, requires_grad=grad)


CASES: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)),
        (torch.rand(2, 3, 8, 8),),
    ),
    "norm_in_training": (nn.BatchNorm1d(4), (flat(grad=False),)),
    "norm_in_evaluation": (nn.BatchNorm1d(4).eval(), (flat(grad=False),)),
    "recurrent": (nn.LSTM(4, 5, 2), (torch.rand(6, 3, 4),)),
    "attention": (Attention(), (torch.rand(1, 3, 4),)),
    "encoder": (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (torch.rand(2, 3, 4),)),
    "loss": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])), (flat(),)),
    "views": (lambda x: (x * 2)[0].exp() * (x * 3)[1], (flat(),)),
    "in_place": (lambda x: (x * 2).relu_().exp_(), (flat(),)),
    "dead_end": (lambda x: (torch.sin(x), x.exp())[1], (flat(),)),
    "own_function": (lambda x: Squared.apply(x * 3).exp(), (flat(),)),
    "checkpoint": (lambda x: checkpoint(lambda y: y.exp().tanh(), x * 2, use_reentrant=False).exp(), (flat(),)),
    "checkpoint_of_an_input": (lambda x: checkpoint(torch.exp, x, use_reentrant=False).exp(), (flat(),)),
    "checkpoint_reentrant": (lambda x: checkpoint(torch.exp, x * 2, use_reentrant=True).exp(), (flat(),)),
    "numbers_are_no_tensors": (lambda x: (x * 2) * 2.5 * torch.tensor(3.0), (flat(),)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_torch_saves(name: str) -> None:
    model, args = CASES[name]
    told, _ = held_by(model, args, {})
    with_trace = measured(model, args)
    assert totals(with_trace) == told
    assert not with_trace.untold_saved_ops
    with_trace.cleanup()


def test_a_storage_is_charged_whole_to_the_first_op_that_keeps_some_of_it() -> None:
    def forward(x: Tensor) -> Tensor:
        wide = x * x  # 4 rows of 12 bytes; of x nothing more is needed
        first, second = wide[0].exp(), wide[1].sin()
        return first + second.exp()

    trace = measured(forward, [torch.rand(4, 3, requires_grad=True)])
    told = {op.label: (op.saved_for_backward, op.saved_inputs_for_backward) for op in trace.compute_ops}
    assert told["mul_1_1"] == (0, 48)
    assert told["exp_1_3"] == (12, 0), "its own result"
    assert told["sin_1_5"] == (48, 0), "a row is needed, and the rows beside it are not freed without it"
    assert trace.ops["sin_1_5"].autograd_memory == 12
    assert repr(trace.total_saved_for_backward) == "Bytes('72 B')"
    trace.cleanup()


def test_weights_and_inputs_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    trace = measured(model, [torch.randn(5, 4)])
    told = {
        op.label: (op.saved_for_backward, op.saved_params_for_backward, op.saved_inputs_for_backward)
        for op in trace.compute_ops
    }
    assert told == {"linear_1_1": (0, 0, 80), "relu_1_2": (120, 0, 0), "linear_2_3": (0, 72, 0)}
    assert trace.modules["1"].total_saved_for_backward == trace.module_calls["1:1"].saved_for_backward == 120
    assert trace.modules["2"].total_saved_params_for_backward == 72
    assert trace.layers["linear_1_1"].total_saved_inputs_for_backward == 80
    assert totals(trace) == (120, 72, 80)
    trace.cleanup()


def test_charges_add_up_over_ops_layers_and_calls() -> None:
    trace = measured(Attention(), [torch.rand(1, 3, 4)])
    names = ("saved_for_backward", "saved_params_for_backward", "saved_inputs_for_backward")
    for name in names:
        whole = getattr(trace, f"total_{name}")
        firsts = {op.func_call_id: op for op in reversed(list(trace.compute_ops))}  # a call of several results once
        assert sum(getattr(op, name) for op in firsts.values()) == whole
        assert getattr(trace.module_calls["self:1"], name) == whole
        inner = sum(getattr(call, name) for call in trace.module_calls if call.call_parent == "self:1")
        assert inner == whole, "all that runs, runs in one of its calls"
        assert getattr(trace.modules["inner"], f"total_{name}") == whole
    trace.cleanup()


def test_the_charge_of_several_results_is_told_at_each_and_counts_once() -> None:
    trace = measured(lambda x: x.max(1)[0] + x.max(1)[1], [torch.rand(3, 4, requires_grad=True)])
    values, indices = trace.ops["max_1_1"], trace.ops["max_2_2"]
    assert values.saved_for_backward == indices.saved_for_backward == 24
    assert trace.total_saved_for_backward == 48
    trace.cleanup()


def test_what_is_not_told_is_none_with_a_reason() -> None:
    def write(x: Tensor) -> Tensor:
        out = torch.zeros(2, 3)
        out[0] = x
        with torch.no_grad():
            x.sin()
        return out * x

    trace = measured(write, [torch.rand(3, requires_grad=True)])
    untold, off = trace.ops["setitem_1_2"], trace.ops["sin_1_3"]
    assert untold.saved_for_backward is untold.saved_params_for_backward is None
    assert untold.saved_for_backward_reason == "torch does not tell what a CopySlices holds"
    assert off.saved_for_backward is None
    assert off.saved_for_backward_reason.startswith("autograd was off; what a node around it keeps")
    assert trace.ops["mul_1_4"].saved_for_backward_reason is None
    assert (trace.ops["input_1"].saved_for_backward, trace.ops["input_1"].saved_for_backward_reason) == (None, None)
    assert trace.untold_saved_ops == ("setitem_1_2",)
    assert trace.modules["self"].total_saved_for_backward is None, "a part of it is unknown"
    assert trace.total_saved_for_backward == 24, "over what is told"
    trace.cleanup()
    unasked = tl.trace(write, torch.rand(3, requires_grad=True))
    assert unasked.total_saved_for_backward is None
    assert unasked.untold_saved_ops == ()
    assert "measure_autograd_memory=True" in unasked.ops["mul_1_4"].saved_for_backward_reason
    unasked.cleanup()


@pytest.mark.parametrize("passed_on", [False, True])
@pytest.mark.parametrize("write", [lambda y: y[:1].exp_(), lambda y: y[:1].mul_(torch.ones(9, 4)[:1])])
def test_a_write_through_a_view_is_not_told_where_nothing_follows_it_either(write: Any, passed_on: bool) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.same = nn.Linear(4, 4), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x).clone()
            write(y)
            result: Tensor = self.same(y) * 2 if passed_on else y
            return result

    trace = measured(Writes(), (flat(grad=False),))
    (label,) = trace.untold_saved_ops
    assert trace.ops[label].func_name in ("exp_", "mul_")
    assert trace.ops[label].saved_for_backward is None
    assert trace.ops[label].saved_for_backward_reason == "torch does not tell what a CopySlices holds"


def test_memory_without_a_storage_is_named() -> None:
    def forward(x: Tensor) -> Tensor:
        weights = torch.eye(3).to_sparse()
        return torch.sparse.mm(weights, x)

    trace = measured(forward, [torch.rand(3, 2, requires_grad=True)])
    assert trace.ops[trace.untold_saved_ops[0]].saved_for_backward_reason == (
        "torch does not tell what a sparse_coo tensor holds"
    )
    trace.cleanup()


def test_what_a_backward_within_the_forward_freed_is_not_there_any_more() -> None:
    def force(x: Tensor) -> Tensor:
        energy = (x**2).sum()
        (gradient,) = torch.autograd.grad(energy, x)
        return gradient * x

    trace = measured(force, [torch.rand(3, requires_grad=True)])
    assert trace.ops["pow_1_1"].saved_for_backward == trace.ops["pow_1_1"].saved_inputs_for_backward == 0
    trace.cleanup()


def test_what_a_function_puts_into_attributes_of_its_ctx_counts() -> None:
    class Hoarding(Squared):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.beside = (torch.ones(5), "text")
            ctx.save_for_backward(x)
            return x * x

    trace = measured(lambda x: Hoarding.apply(x), [torch.rand(3, requires_grad=True)])
    (op,) = trace.compute_ops
    assert (op.saved_for_backward, op.saved_inputs_for_backward) == (20, 12)
    trace.cleanup()


def test_it_is_the_same_in_a_process_that_has_only_the_journal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    trace = measured(model, [torch.randn(5, 4)], journal=tmp_path / "j")
    trace.cleanup()
    told = run(
        """
        import sys
        import torchlens as tl
        trace = tl.load(sys.argv[1])
        ops = [(op.saved_for_backward, op.saved_params_for_backward) for op in trace.compute_ops]
        sys.stdout.write(f"{[tuple(map(int, op)) for op in ops]} {int(trace.total_saved_inputs_for_backward)}")
        """,
        tmp_path / "j",
    ).stdout
    assert told == "[(0, 0), (120, 0), (0, 72)] 80"


ZOO = ROOT / "tests" / "data" / "zoo"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(path.stem for path in (ZOO / "peer").glob("[a-z]*.json")))
def test_it_is_what_torch_saves_in_the_zoo(name: str) -> None:
    spec = importlib.util.spec_from_file_location("measured_zoo", ZOO / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, args, kwargs = module.MODELS[name]()
    seed_all(0)
    told, _ = held_by(model, args, kwargs)
    model, args, kwargs = module.MODELS[name]()
    seed_all(0)
    trace = measured(model, args, kwargs)
    found = totals(trace)
    if trace.untold_saved_ops:
        assert all(ours <= theirs for ours, theirs in zip(found, told, strict=True))
    else:
        assert found == told
    trace.cleanup()


@pytest.mark.parametrize("is_used", [True, False])
def test_what_a_reentrant_checkpoint_keeps_is_charged_to_the_next_recorded_op_or_is_in_no_sum(is_used: bool) -> None:
    linear = nn.Linear(4, 4)

    def forward(x: Any) -> Any:
        result = checkpoint(lambda given: linear(given).tanh(), x * 2, use_reentrant=True)
        return result.exp() if is_used else result

    trace = tl.trace(
        forward, torch.ones(3, 4, requires_grad=True), capture=tl.CaptureOptions(measure_autograd_memory=True)
    )
    input_and_result = 2 * 4 * 3 * 4  # the input of the checkpoint, and the result that exp keeps
    assert trace.total_saved_for_backward == (input_and_result if is_used else 0)
    inside = trace["tanh_1_3"]
    assert inside.saved_for_backward is None
    assert "in no sum where none does" in inside.saved_for_backward_reason
    trace.cleanup()
