"""What is told of backward passes that went wrong, or left nothing: each sentence is so, and leads to what it names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import BackwardRefused, LookupRefused, PayloadUnavailableError
from torchlens.options import CaptureOptions

EVERY = CaptureOptions(save_grads=True)


class Trapped(nn.Module):
    """Finite values, and NaN gradients: 0 * inf where the branch was not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return torch.where(h > 0, h.sqrt(), 0.0)


# -- gradients that are not finite ------------------------------------------------------------------------


def test_health_names_the_first_gradient_with_a_nan_its_op_pass_and_line() -> None:
    trace = tl.trace(Trapped(), torch.ones(2, 4), capture=EVERY)
    assert trace.health.is_clean
    trace.backward(trace.output.sum())
    health = trace.health
    assert health.nonfinite.verdict == "checked_and_clean"
    assert health.gradients.verdict == "found"
    assert not health.is_clean
    first = health.gradients.first_nan
    assert first is not None
    assert (first.label, first.pass_index, first.num_nan) == ("relu_1_2", 1, 8)
    line = Trapped.forward.__code__.co_firstlineno + 1
    assert first.place == f"test_told_of_passes.py:{line}"
    assert f"gradients: NaN first in that of relu_1_2 ({first.place}) in backward pass 1, 1 of 6 gradients" in str(
        health
    )
    assert "nothing" not in str(health)
    assert repr(health.gradients).startswith("<GradientFinding found: NaN first")


def test_what_was_kept_at_a_firing_beside_the_ops_is_looked_at_too() -> None:
    trace = tl.trace(Trapped(), torch.ones(2, 4))
    trace.backward(trace.output.sum(), save_grads=tl.grad_fn("sqrt"))
    first = trace.health.gradients.first
    assert first is not None
    assert first.label.startswith("sqrt_back_1_")
    assert first.place is None


def test_clean_gradients_are_called_so_and_none_kept_is_not_called_clean() -> None:
    model, x = nn.Linear(4, 2), torch.ones(2, 4)
    clean = tl.trace(model, x, capture=EVERY)
    clean.backward(clean.output.sum())
    assert clean.health.gradients.verdict == "checked_and_clean"
    assert "gradients: all values of" in str(clean.health)
    none = tl.trace(model, x)
    assert "gradients" not in str(none.health)
    none.backward(none.output.sum())
    assert none.health.gradients.verdict == "not_checked"
    assert "gradients: none kept" in str(none.health)
    assert "nothing else to report" in str(none.health)


def test_a_pass_after_the_look_is_looked_at_again() -> None:
    trace = tl.trace(nn.Linear(4, 2), torch.ones(2, 4), capture=EVERY)
    trace.backward(trace.output.sum(), retain_graph=True)
    assert trace.health.is_clean
    trace.backward((trace.output * float("inf")).sum())
    first = trace.health.gradients.first
    assert first is not None
    assert first.pass_index == 2


def test_many_gigabytes_of_gradients_are_looked_at_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchlens.reading.health.MOST_LOOKED_AT", 0)
    trace = tl.trace(Trapped(), torch.ones(2, 4), capture=EVERY)
    trace.backward(trace.output.sum())
    assert "not looked at; read .gradients" in str(trace.health)
    assert trace.health.gradients.verdict == "found"
    assert not trace.health.is_clean


# -- what a pass left nothing of --------------------------------------------------------------------------


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(torch.relu(self.first(x)))
        return made


def traced(**options: object) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Chain(), torch.randn(2, 4), capture=CaptureOptions(save_grads=True, **options))  # type: ignore[arg-type]  # any of them


def said_of(trace: tl.Trace, key: str) -> str:
    found = trace.autograd.explain(key)
    assert found is not None
    return found.text


def batched(trace: tl.Trace) -> None:
    node = trace["relu_1_2"].autograd.grad_fn_handle
    seeds = torch.eye(6).reshape(6, 2, 3)
    edge = torch.autograd.graph.GradientEdge(node, 0)
    torch.autograd.grad(trace.output, [edge], seeds, is_grads_batched=True, retain_graph=True)


def test_batched_gradients_are_said_not_to_be_kept() -> None:
    trace = traced()
    batched(trace)
    only = trace.autograd.backward_passes[0]
    assert (only.is_transient, only.save_grads_policy) == (True, "True")
    assert said_of(trace, "linear_2_3").endswith("backward pass 1 ran over batched gradients, which are not kept")
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["linear_2_3"].grad  # noqa: B018  # refused
    assert refused.value.code == "gradient_not_saved"
    assert "save_grads=True" not in str(refused.value)
    assert "is_grads_batched" in refused.value.remedy
    trace.backward(trace.output.sum())
    assert not trace.autograd.backward_passes[1].is_transient


def test_what_torch_autograd_grad_gives_no_parameter_is_said_and_what_it_was_not_asked_for() -> None:
    trace = traced()
    hidden = trace["relu_1_2"].autograd.grad_fn_handle
    torch.autograd.grad(trace.output.sum(), [torch.autograd.graph.GradientEdge(hidden, 0)])
    adds_nothing = "backward pass 1 was run by torch.autograd.grad, which adds nothing to parameters"
    assert said_of(trace, "second.weight").endswith(adds_nothing)
    assert said_of(trace, "linear_1_1").endswith(
        "backward pass 1 was asked with inputs= for other gradients alone, and did not work it out"
    )
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["linear_1_1"].grad  # noqa: B018  # refused
    assert "save_grads" not in refused.value.remedy
    assert "inputs=" in refused.value.remedy


def test_a_parameter_that_inputs_left_out_is_told_so() -> None:
    trace = traced()
    weight = trace.params["second.weight"].handle
    torch.autograd.backward(trace.output.sum(), inputs=[weight])
    assert said_of(trace, "second.bias").endswith("backward pass 1 was run with inputs=, which left it out")


def test_a_freed_graph_names_the_pass_and_the_node_that_met_it() -> None:
    trace = traced()
    loss = (trace.output**2).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        trace.backward(loss)
    failed = trace.autograd.backward_passes[1]
    assert failed.raised_in is not None
    said = f"backward pass 2 failed in {failed.raised_in}: graph freed by an earlier one"
    assert trace.autograd.explain("relu_1_2") is None
    again = trace.autograd.explain("relu_1_2", bwd=2)
    assert again is not None
    assert again.text == f"relu_1_2 has no gradient of backward pass 2: {said}"
    assert (again.reason, again.pass_index, again.subject) == ("graph freed", 2, "relu_1_2")
    assert repr(again) == "<Explanation relu_1_2: graph freed>"
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["relu_1_2"].autograd.grad_for(bwd=2)
    assert said in str(refused.value)
    assert "explain('relu_1_2')" not in refused.value.remedy
    with pytest.raises(LookupRefused) as unknown:
        trace.autograd.explain("relu_1_2", bwd=7)
    assert unknown.value.code == "backward_pass_unknown"


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_in_anomaly_mode_the_node_that_gave_a_nan_is_the_one_that_raised() -> None:
    trace = tl.trace(Trapped(), torch.ones(2, 4))
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan"):
        trace.backward(trace.output.sum())
    failed = trace.autograd.backward_passes[0]
    assert failed.status == "error"
    assert failed.raised_in == trace["sqrt"].autograd.grad_fn_label
    assert failed.raised_in in said_of(trace, "first.weight")


# -- a loss that requires no gradient ---------------------------------------------------------------------


class CutAtTheEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).detach()


def test_a_loss_of_an_output_that_was_cut_off_names_the_op_and_its_line() -> None:
    trace = tl.trace(CutAtTheEnd(), torch.ones(2, 4))
    with pytest.raises(BackwardRefused) as refused:
        trace.backward(trace.output.sum())
    error = refused.value
    line = CutAtTheEnd.forward.__code__.co_firstlineno + 1
    assert (error.code, error.fields["output"]) == ("loss_not_connected", "output_1")
    assert error.problem.startswith("the loss requires no gradient")
    assert "detach_1_2" in error.problem
    assert f"test_told_of_passes.py:{line}" in error.problem
    recording = tl.record(CutAtTheEnd(), torch.ones(2, 4), save="all", save_grads=True)
    with pytest.raises(BackwardRefused, match="detach_1_2"):
        recording.backward(recording.output.sum())


def test_a_loss_that_was_made_without_gradients_is_said_to_be() -> None:
    trace = traced()
    with torch.no_grad():
        loss = trace.output.sum()
    with pytest.raises(BackwardRefused) as refused:
        trace.backward(loss)
    assert refused.value.code == "loss_not_connected"
    assert refused.value.problem.startswith("the loss requires no gradient")
    assert "grad mode on" in refused.value.remedy


# -- the names of gradients -------------------------------------------------------------------------------


def test_every_name_that_gradient_records_are_shown_with_finds_them() -> None:
    recording = tl.record(Chain(), torch.ones(2, 4), save="all", save_grads=True)
    recording.backward(recording.output.sum())
    assert len(recording.grad_records) == 7
    for record in recording.grad_records:
        owner = record.owner
        name = owner.address if record.read("param_row") >= 0 else owner.label
        assert record in recording.grad_by_label(name)
    (of_module,) = recording.grad_by_label("first")
    assert [of_module] == recording.grad_by_label("linear_1_1") == recording.grad_by_label(1)
    assert recording.grad_by_label("output_1") == recording.grad_by_label("second")
    for wrong in ("nothing", 99):
        with pytest.raises(LookupRefused) as refused:
            recording.grad_by_label(wrong)
        assert refused.value.code in ("record_lookup_not_found", "record_lookup_index_out_of_range")


# -- a trace that is recorded no more ---------------------------------------------------------------------


def test_a_disarmed_trace_says_so_wherever_passes_are_asked_for() -> None:
    trace = traced()
    assert "disarmed" not in trace.summary() + repr(trace.autograd)
    trace.autograd.disarm()
    trace.output.sum().backward()
    assert repr(trace.autograd).endswith("0 backward passes, disarmed>")
    assert "disarmed    no further backward pass is recorded" in trace.summary()
    with pytest.raises(PayloadUnavailableError, match="disarmed") as refused:
        trace["relu_1_2"].grad  # noqa: B018  # refused
    assert "save_grads" not in refused.value.remedy


def test_a_trace_that_was_disarmed_after_a_pass_tells_of_both() -> None:
    trace = traced()
    trace.backward(trace.output.sum())
    trace.autograd.disarm()
    assert "1 backward pass, disarmed" in repr(trace.autograd)
    assert "kept disarmed no further backward pass is recorded" in " ".join(trace.summary().split())


# -- what is named, and what it stands for ----------------------------------------------------------------


def test_the_refusal_of_an_increment_names_its_parameter() -> None:
    trace = tl.trace(Chain(), torch.ones(2, 4))
    trace.backward(trace.output.sum())
    param = trace.params["first.weight"]
    assert param.has_grad
    assert not param.grads[0].is_saved
    with pytest.raises(PayloadUnavailableError, match=r"the gradient of first\.weight in backward pass 1 was not kept"):
        param.grads[0].grad  # noqa: B018  # refused


def test_the_gradient_of_a_layers_label_means_all_its_passes_as_save_grads_does() -> None:
    def looped(x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(x)
        return x

    trace = tl.trace(looped, torch.ones(2, requires_grad=True))
    trace.backward(trace.output.sum(), save_grads=tl.grad("tanh_1_1"))
    assert trace[tl.grad("tanh_1_1")].labels() == ("tanh_1_1:1", "tanh_1_1:2")
    assert [op.has_grad for op in trace.layers["tanh_1_1"].ops] == [True, True]
    assert trace[tl.grad("tanh_1_1:2")].labels() == ("tanh_1_1:2",)
    assert repr(tl.grad("tanh_1_1")) == "grad('tanh_1_1')"


def test_a_pass_that_there_is_not_is_the_reason_of_an_empty_selection() -> None:
    trace = traced()
    trace.backward(trace.output.sum())
    assert "no backward pass 7, of 1" in repr(trace[tl.grad("relu_1_2") & tl.in_backward_pass(7)])


def test_an_output_has_a_gradient_where_one_can_be_read_of_it_and_its_module_counts_that() -> None:
    trace = traced()
    trace.backward(trace.output.sum())
    for op in trace.ops:
        assert op.has_grad == (op.quiet_grad is not None)
    assert trace["output_1"].has_grad
    whole = trace.modules["self"]
    assert whole.total_output_gradient_memory == whole.grad.nbytes == 24
    assert whole.total_internal_gradient_memory == 2 * 2 * 4 * 4
    assert trace.saved_grad_ops.labels == ("linear_1_1", "relu_1_2", "linear_2_3")
    trace.check_metadata_invariants()


def test_a_remedy_is_something_to_do_and_has_the_line_of_the_cut_where_there_is_one() -> None:
    trace = traced()
    trace.backward(trace.output.sum())
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["input_1"].grad  # noqa: B018  # refused
    assert refused.value.remedy == "call .requires_grad_() on the input before tracing"
    cut = tl.trace(CutAtTheEnd(), torch.ones(2, 4))
    with pytest.raises(PayloadUnavailableError) as refused:
        cut["linear_1_1"].grad  # noqa: B018  # refused
    line = CutAtTheEnd.forward.__code__.co_firstlineno + 1
    assert refused.value.remedy.startswith("leave the detach out")
    assert f"test_told_of_passes.py:{line}" in refused.value.remedy
