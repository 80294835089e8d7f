"""Why there is no gradient: each reason, where the path was cut, and that what is claimed is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import torchlens as tl
from tests.differentiating import gradients, loss_of, places
from torchlens.errors import AmbiguousReadError, LookupRefused
from torchlens.reading.explaining import Explanation
from torchlens.testing import Program, programs


class Cutting(nn.Module):
    """One path for each way in which a forward cuts off a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.quiet = nn.Linear(4, 4)
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.idle = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        with torch.no_grad():
            quiet = torch.relu(self.quiet(hidden))
        target = hidden.detach() * self.scale
        chosen = hidden.argmax(1)
        drawn = nn.functional.one_hot(chosen, 4).float()
        return hidden + quiet + target + self.fixed(x).tanh(), drawn


def reason(trace: tl.Trace, key: str) -> str | None:
    found = trace.autograd.explain(key)
    return None if found is None else found.reason


@pytest.fixture
def cutting() -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Cutting(), torch.randn(3, 4))


def test_an_op_that_ran_without_gradients_says_so_and_where(cutting: tl.Trace) -> None:
    found = cutting.autograd.explain("relu")
    assert found is not None
    assert (found.subject, found.kind, found.reason, found.at) == ("relu_1_3", "op", "no_grad section", "linear_2_2")
    assert found.location is not None
    assert found.location.call_line == "quiet = torch.relu(self.quiet(hidden))"
    assert found.text == "relu_1_3 has no gradient: linear_2_2 ran while gradients were off"
    assert str(found).startswith(found.text + " (")
    assert __file__ in str(found)
    assert repr(found) == "<Explanation relu_1_3: no_grad section>"
    assert found.op == cutting.ops["relu_1_3"]
    assert found.param is None
    assert found.pass_index is None
    assert reason(cutting, "quiet.weight") == "no_grad section"


def test_what_comes_after_a_detach_names_it(cutting: tl.Trace) -> None:
    assert reason(cutting, "detach_1_4") == "detached at detach_1_4"
    found = cutting.autograd.explain("mul_1_5")
    assert found is not None
    assert (found.reason, found.at) == ("detached at detach_1_4", "detach_1_4")
    assert found.location is not None
    assert found.location.call_line == "target = hidden.detach() * self.scale"


def test_what_has_no_derivative_is_told_where_it_comes_to_be(cutting: tl.Trace) -> None:
    (argmax,) = cutting.ops.find("argmax")
    assert cutting.autograd.explain(argmax).text == (  # type: ignore[union-attr]
        f"{argmax.label} has no gradient: it is int64, which has no derivative"
    )
    drawn = cutting.autograd.explain(cutting.output_ops[1])
    assert drawn is not None
    assert (drawn.reason, drawn.at) == ("not differentiable", argmax.label)


def test_what_requires_no_gradient_is_frozen_and_so_is_what_is_made_of_it_alone(cutting: tl.Trace) -> None:
    for key in ("input_1", "scale", "fixed.weight", "fixed.bias"):
        found = cutting.autograd.explain(key)
        assert found is not None
        assert found.reason == "frozen"
        assert found.at == found.subject
    for op in (*cutting.modules["fixed"].calls[0].ops, *cutting.ops.find("tanh").labels):
        found = cutting.autograd.explain(op)
        assert found is not None
        assert (found.reason, found.at) == ("frozen", "input_1")


def test_a_parameter_that_no_op_took_was_never_called(cutting: tl.Trace) -> None:
    found = cutting.autograd.explain("idle.weight")
    assert found is not None
    assert (found.reason, found.at, found.location) == ("never called", None, None)
    assert found.param == cutting.params["idle.weight"]
    assert found.op is None


def test_before_any_backward_that_is_the_reason(cutting: tl.Trace) -> None:
    for key in ("first.weight", "linear_1_1", "output_1"):
        assert reason(cutting, key) == "no backward yet"


def test_what_only_leads_to_where_the_path_is_cut_is_cut_off_by_that() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.head(torch.relu(self.body(x)).data)
            return made

    trace = tl.trace(Frozen(), torch.randn(3, 4))
    for key in ("body.weight", "linear_1_1", "relu_1_2"):
        assert reason(trace, key) == "detached at detach_1_3"
    assert reason(trace, "head.weight") == "no backward yet"


def test_a_parameter_that_is_used_twice_is_cut_off_only_where_both_ways_are() -> None:
    class Shared(nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.layer, self.both = nn.Linear(4, 4), both

        def forward(self, x: Tensor) -> Tensor:
            cut = self.layer(x).detach()
            again: Tensor = self.layer(cut)
            return again.detach() if self.both else again

    x = torch.randn(3, 4)
    assert reason(tl.trace(Shared(both=False), x), "layer.weight") == "no backward yet"
    both = tl.trace(Shared(both=True), x)
    assert reason(both, "layer.weight") == "detached at detach_1_2"
    with pytest.raises(AmbiguousReadError) as refused:
        both.autograd.explain("linear_1_1")
    assert refused.value.code == "explanation_subject_ambiguous"
    assert [reason(both, f"linear_1_1:{number}") for number in (1, 2)] == [
        "detached at detach_1_2",
        "detached at detach_2_3",
    ]


def test_what_is_asked_about_may_be_given_in_many_ways(cutting: tl.Trace) -> None:
    explain = cutting.autograd.explain
    relu = explain("relu_1_3")
    assert relu is not None
    assert relu == explain(cutting["relu_1_3"]) == explain(cutting.layers["relu_1_3"]) == explain(relu.op.ordinal_index)
    assert relu == explain(cutting[tl.func("relu")].first())
    assert explain("quiet") == explain(cutting.modules["quiet"]) == explain(cutting.module_calls["quiet:1"])
    assert explain(cutting.buffers["scale"]) == explain("scale")
    assert explain(cutting.params["idle.weight"]) == explain("idle.weight")
    model = Cutting()
    trace = tl.trace(model, torch.randn(3, 4))
    assert trace.autograd.explain(model.idle.weight) == trace.autograd.explain("idle.weight")
    for odd in (None, 1.5, nn.Parameter(torch.ones(2)), cutting.modules["idle"], cutting):
        with pytest.raises(LookupRefused) as refused:
            explain(odd)
        assert refused.value.code == "explanation_subject_invalid"
    with pytest.raises(LookupRefused) as refused:
        explain("no such op")
    assert refused.value.code == "op_lookup_not_found"


def test_the_table_holds_all_of_them(cutting: tl.Trace) -> None:
    table = cutting.autograd.explanations
    assert all(isinstance(found, Explanation) for found in table)
    assert table.labels == (*cutting.ops.labels, *cutting.params.labels)
    assert table["relu_1_3"] == cutting.autograd.explain("relu_1_3")
    frame = table.to_pandas()
    assert list(frame.columns) == ["subject", "kind", "reason", "at", "pass_index", "location", "text"]
    assert list(frame["reason"]) == [found.reason for found in table]


def test_a_reopened_journal_explains_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trace = tl.trace(Cutting(), torch.randn(3, 4), journal=tmp_path / "run.journal")
    told = [str(found) for found in trace.autograd.explanations]
    trace.cleanup()
    assert [str(found) for found in tl.load(tmp_path / "run.journal").autograd.explanations] == told


# With a backward -------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Two outputs from one body, one of them past a call that may do anything on the way back."""

    def __init__(self, last: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.last = last

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.body(x))
        left: Tensor = self.left(hidden)
        right: Tensor = self.right(self.last(hidden))
        return left, right


def branches(last: Callable[[Tensor], Tensor] = torch.tanh, *, save_grads: Any = True) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Branches(last), torch.randn(3, 4), capture=tl.CaptureOptions(save_grads=save_grads))


class GivesNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None


class Fails(GivesNone):
    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ValueError("no way back")


def test_what_the_loss_was_not_made_from_says_so() -> None:
    trace = branches()
    trace.backward(trace.output[0].sum())
    for key in ("right.weight", "tanh", "output_2"):
        assert reason(trace, key) == "not upstream of the loss"
    for key in ("left.weight", "body.weight", "relu_1_2", "output_1"):
        assert reason(trace, key) is None
    assert {found.reason for found in trace.autograd.explanations} == {"not upstream of the loss", "frozen"}


def test_a_gradient_that_came_and_was_not_kept_was_not_in_the_policy() -> None:
    trace = branches(save_grads=None)
    trace.backward(trace.output[0].sum())
    found = trace.autograd.explain("linear_1_1")
    assert found is not None
    assert (found.reason, found.pass_index, found.at) == ("not saved by policy", 1, None)
    assert reason(trace, "body.weight") is None  # what was added to a parameter is told in any case
    assert reason(trace, "right.weight") == "not upstream of the loss"


def test_of_the_only_pass_is_said_what_is_said_of_all() -> None:
    trace = branches(save_grads="relu_1_2")
    trace.backward(trace.output[0].sum())
    whole, of_pass = trace.tables.explanations, trace.tables.explanations_of_pass(0)
    for name in ("subject", "reason", "at", "pass_index"):
        assert list(of_pass.column(name)) == list(whole.column(name))
    assert "of backward pass 1: " in of_pass.value("text", 0)


def test_torch_autograd_grad_adds_nothing_to_parameters_and_comes_no_further_than_asked() -> None:
    trace = branches()
    relu = trace["relu_1_2"].autograd.grad_fn_handle
    torch.autograd.grad(trace.output[0].sum(), [torch.autograd.graph.GradientEdge(relu, 0)])
    assert reason(trace, "relu_1_2") is None
    for key in ("body.weight", "linear_1_1", "left.weight"):
        assert reason(trace, key) == "not saved by policy"
    assert reason(trace, "right.weight") == "not upstream of the loss"


def test_an_explanation_is_of_the_same_thing_when_a_pass_has_brought_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(save_grads=True))
    held = list(trace.autograd.explanations)
    before = [(one.subject, one.reason, str(one), hash(one)) for one in held]
    part = trace.autograd.explanations.find("tanh")
    assert part.labels == ("tanh_1_2",)
    trace.backward(trace.ops["tanh_1_2"].out.sum())
    assert [(one.subject, one.reason, str(one), hash(one)) for one in held] == before
    assert not len(part), "it has a gradient now"
    assert held[1] not in trace.autograd.explanations
    assert "no backward yet" in {one.reason for one in held}
    kept = next(one for one in held if one.subject == "linear_2_3")
    now = trace.autograd.explain("linear_2_3")
    assert now is not None
    assert now != kept, "the reason is another now"
    assert now == trace.autograd.explain("linear_2_3")
    assert now in trace.autograd.explanations
    assert now.op == kept.op == trace.ops["linear_2_3"]


class Tied(nn.Module):
    """A layer that has two names, and is frozen while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.c = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.a.requires_grad_(False)
        x = self.a(x)
        self.a.requires_grad_(True)
        return self.c(x)


def test_what_is_frozen_for_a_call_alone_is_frozen_and_no_derivative_is_missed() -> None:
    trace = tl.trace(Tied(), torch.randn(3, 4), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    found = trace.autograd.explain("a.weight")
    assert found is not None
    assert (found.reason, found.at) == ("frozen", "linear_1_1")
    assert found.text == "a.weight has no gradient: a.weight required none when linear_1_1 took it"
    assert trace.autograd.explain("linear_1_1").reason == "frozen"  # type: ignore[union-attr]
    assert trace.autograd.explanations["b.weight"] == found, "by another of its names"
    assert trace.check_metadata_invariants() is True


def test_what_wrote_through_a_view_is_not_said_to_be_no_part_of_the_loss() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x)
            y[:, :2].mul_(0.5)
            return y * 2

    trace = tl.trace(Writes(), torch.randn(3, 4), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    assert {key: reason(trace, key) for key in ("getitem_1_2", "mul_1_3")} == dict.fromkeys(
        ("getitem_1_2", "mul_1_3"), "not in the graph"
    )
    assert reason(trace, "linear_1_1") is None
    assert "a write through a view" in str(trace.autograd.explain("mul_1_3"))
    assert trace.check_metadata_invariants() is True


def test_nothing_is_added_to_a_parameter_that_was_frozen_after_the_forward() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(save_grads=True))
    model[0].requires_grad_(False)
    trace.backward(trace.output.sum(), retain_graph=True)
    assert model[0].weight.grad is None
    assert {param.address: len(param.grads) for param in trace.params} == {
        "0.weight": 0,
        "0.bias": 0,
        "1.weight": 1,
        "1.bias": 1,
    }
    found = trace.autograd.explain("0.weight")
    assert found is not None
    assert (found.reason, found.at, found.pass_index) == ("frozen", "0.weight", 1)
    assert found.text == "0.weight has no gradient: it required none any more when backward pass 1 came to it"
    assert trace.check_metadata_invariants() is True
    model[0].requires_grad_(True)
    trace.backward(trace.output.sum())
    assert len(trace.params["0.weight"].grads) == 1
    assert torch.equal(trace.params["0.weight"].grads[0].grad, model[0].weight.grad)


def test_a_graph_that_an_earlier_pass_freed_is_the_reason_behind_it() -> None:
    trace = branches()
    loss = trace.output[0].sum()
    relu = trace["relu_1_2"].autograd.grad_fn_handle
    torch.autograd.grad(loss, [torch.autograd.graph.GradientEdge(relu, 0)])
    with pytest.raises(RuntimeError, match="second time"):
        trace.backward(loss)
    found = trace.autograd.explain("body.weight")
    assert found is not None
    assert (found.reason, found.pass_index) == ("graph freed", 2)
    assert found.text.endswith("graph freed by an earlier one")
    assert reason(trace, "linear_1_1") == "graph freed"


def test_a_backward_that_raised_is_the_reason_for_what_it_did_not_come_to() -> None:
    trace = branches(Fails.apply)
    with pytest.raises(ValueError, match="no way back"):
        trace.backward(trace.output[1].sum())
    assert reason(trace, "right.weight") is None
    for key in ("body.weight", "relu_1_2"):
        assert reason(trace, key) == "backward failed"
    assert reason(trace, "left.weight") == "not upstream of the loss"


def test_a_function_that_gives_no_gradient_back_is_named() -> None:
    trace = branches(GivesNone.apply)
    trace.backward(trace.output[1].sum())
    for key in ("body.weight", "relu_1_2", "linear_1_1"):
        found = trace.autograd.explain(key)
        assert found is not None
        assert (found.reason, found.at, found.pass_index) == ("not differentiable", "givesnone_1_4", 1)
        assert found.location is not None
        assert found.location.call_line == "right: Tensor = self.right(self.last(hidden))"
    assert reason(trace, "givesnone_1_4") is None


def test_one_pass_that_comes_there_is_enough() -> None:
    trace = branches()
    trace.backward(trace.output[0].sum(), retain_graph=True)
    assert reason(trace, "right.weight") == "not upstream of the loss"
    trace.backward(trace.output[1].sum())
    assert {found.reason for found in trace.autograd.explanations} == {"frozen"}


def test_a_cut_on_the_way_to_the_loss_goes_before_a_way_that_does_not_lead_there() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.head(hidden.detach()), hidden * 2

    trace = tl.trace(Both(), torch.randn(3, 4), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output[0].sum())
    assert reason(trace, "body.weight") == reason(trace, "linear_1_1") == "detached at detach_1_2"
    assert reason(trace, "output_2") == "not upstream of the loss"


# The law ----------------------------------------------------------------------------------------------------------

CUT: Final = frozenset(
    ("no_grad section", "frozen", "not upstream of the loss", "not in the graph", "not differentiable")
)
"""Reasons for which torch has no gradient either, beside those of a detach."""


@given(programs(without=["checkpointed_reentrant"]))  # of which torch gives no gradient of a single place
@settings(max_examples=40)
def test_there_is_an_explanation_exactly_where_torch_has_no_gradient_and_it_is_true(program: Program) -> None:
    torch.manual_seed(program.seed)
    model, args, kwargs = program.build()
    try:
        trace = tl.trace(model, args, kwargs, capture=tl.CaptureOptions(save_grads=True))
    except tl.TraceCaptureError:
        return
    with torch.inference_mode(False), torch.enable_grad():
        loss = loss_of(trace)
        if loss is None:
            return
        try:
            trace.backward(loss, retain_graph=True)
        except RuntimeError:
            return
        added = {param.address: param.grad for param in trace.params}  # a Function may have run a backward of its own
        told = [(record, trace.autograd.explain(record)) for record in (*trace.ops, *trace.params)]
        at = places(trace, (args, kwargs))
        own = dict(zip(at, gradients(loss, list(at.values())), strict=True))
    own |= added
    for record, found in told:
        name = record.label if record.table_name == "ops" else record.address
        if found is not None and found.reason == "not saved by policy":
            # It is what was written through a view of it, so no op has it for a result, nor its gradient.
            assert record.is_output
            assert own.get(name) is not None
            continue
        assert (found is None) == (own.get(name) is not None), (name, str(found))
        if found is not None:
            assert found.reason in CUT or found.reason == f"detached at {found.at}" or found.reason == "never called"
            is_true(trace, found)


def is_true(trace: tl.Trace, found: Explanation) -> None:
    """Whether what is claimed of the place of the cut holds of the ops there."""
    at = next((op for op in trace.ops if op.label == found.at), None)
    match found.reason:
        case "no_grad section":
            assert at is not None
            modes = at.func_autocast_state
            assert modes["inference_mode"] or not modes["grad_enabled"]
            assert not at.requires_grad
            assert feeds_gradient(trace, at)
        case "frozen":
            assert at is not None or not trace.params[found.at].is_trainable
            assert at is None or not at.requires_grad
        case "never called":
            assert not trace.params[found.subject].used_by_ops
        case "not differentiable" if at is not None and found.pass_index is None:
            assert not at.requires_grad
            assert not at.dtype.is_floating_point or feeds_gradient(trace, at)
        case reason if reason.startswith("detached"):
            assert at is not None
            assert at.func_name.startswith("detach")
            assert not at.requires_grad
            assert feeds_gradient(trace, at)


def feeds_gradient(trace: tl.Trace, op: Any) -> bool:
    """Whether something that an op took requires a gradient."""
    return any(trace.ops[label].requires_grad for label in op.parents) or any(p.is_trainable for p in op.params)
