"""What the cases promise in words of a backward, beyond what their runner checks."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchlens as tl
from tests.cases.test_case_texts import built, load
from torchlens.validation.default_loss import weighted

SAVED = tl.CaptureOptions(save_grads=True)


def differentiated(name: str, **options: Any) -> tl.Trace:
    """A trace of a case, and a backward from the case's loss, every gradient saved."""
    model, args, kwargs = built(name)
    trace = tl.trace(model, args, kwargs, capture=SAVED, **options)
    loss: Callable[[Any], Any] = getattr(load(name), "loss", weighted)
    trace.backward(loss(trace.output), retain_graph=True)
    return trace


def test_010_each_call_of_a_reused_module_has_a_gradient_of_its_own() -> None:
    trace = differentiated("010")
    grads = [trace.module_calls[f"act:{k}"].grad for k in (1, 2, 3)]
    assert [tuple(grad.shape) for grad in grads] == [(3, 8), (3, 6), (3, 2)]
    assert all(torch.equal(grad, trace.ops[f"relu_1_2:{k}"].grad) for k, grad in enumerate(grads, 1))


def test_013_the_gradient_of_a_tied_weight_is_recorded_once_and_is_the_sum_of_both_uses() -> None:
    model, args, kwargs = built("013")
    trace = tl.trace(model, args, kwargs, capture=SAVED)
    trace.backward(trace.output.square().sum())
    (record,) = trace.params["embed.weight"].grads
    assert torch.equal(record.grad, model.embed.weight.grad)
    bare, _, _ = built("013")
    bare(*args).square().sum().backward()
    assert torch.equal(bare.embed.weight.grad, record.grad)


def test_025_gradients_of_a_value_under_two_names_are_not_counted_twice() -> None:
    trace = differentiated("025")
    product = trace.ops["mul_1_1"]
    assert len(product.autograd.grads) == 1
    assert product.grad.tolist() == [1, 1, 1]
    assert torch.equal(trace.ops["output_1"].grad, trace.ops["output_2"].grad)
    assert torch.equal(trace.ops["input_1"].grad, 2 * trace.ops["input_1"].out)


def test_043_gradients_go_through_float_casts_and_integer_and_boolean_ops_say_that_they_have_none() -> None:
    trace = differentiated("043")
    assert trace.ops["input_1"].grad.dtype == torch.float64
    assert trace.ops["to_2_4"].grad.dtype == torch.bfloat16
    for label in ("gt_1_5", "argmax_1_9", "input_2"):
        found = trace.autograd.explain(label)
        assert found is not None
        assert found.reason == "not differentiable"


def test_070_the_mask_that_a_function_marks_has_no_gradient_and_is_told_why() -> None:
    trace = differentiated("070")
    assert trace.ops["clampinplace_1_2"].grad.tolist() == [2, 2, 2, 2]
    found = trace.autograd.explain("clampinplace_2_3")
    assert found is not None
    assert found.reason == "not differentiable"


def test_076_the_backward_node_that_let_a_nan_through_is_the_one_whose_own_gradient_is_finite() -> None:
    trace = differentiated("076")
    (broken,) = [op for op in trace.ops if op.has_grad and op.grad.isnan().any()]
    assert broken.is_input
    through = trace.ops["log_1_2"]
    assert through.grad.isfinite().all()
    (log,) = [grad_fn for grad_fn in trace.autograd.grad_fns if grad_fn.op_label == through.label]
    assert log.type == "log"


def test_079_inside_a_frozen_backbone_there_is_no_graph_and_the_reason_is_given() -> None:
    trace = differentiated("079")
    assert trace["head"].grad.shape == (2, 2)
    found = trace.autograd.explain("relu_1_2")
    assert found is not None
    assert (found.reason, found.at) == ("frozen", "input_1")
    assert [trace.autograd.explain(param).reason for param in trace.params.frozen] == ["frozen", "frozen"]
    with pytest.raises(tl.TorchLensError) as refused:
        trace["relu_1_2"].grad  # noqa: B018
    assert refused.value.code == "gradient_not_saved"


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_091_hooks_of_the_user_s_see_what_is_recorded() -> None:
    trace = differentiated("091")
    model, args, _ = built("091")
    weighted(model(*args)).backward()  # type: ignore[union-attr]
    expected = {number: total for number, _, total in model.log}
    assert trace["2"].grad.sum().item() == expected[2]
    assert trace["0"].grad.sum().item() == expected[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_097_a_capture_with_gradients_saved_does_not_trip_over_a_transform() -> None:
    trace = differentiated("097")
    assert trace.output_ops[0].grad == 1
    assert any(param.grads for param in trace.params)


def test_100_the_inner_backward_is_of_the_forward_and_no_pass() -> None:
    trace = differentiated("100")
    assert len(trace.autograd.backward_passes) == 1
    (record,) = trace.params["fast.weight"].grads
    assert torch.equal(record.grad, trace.params["fast.weight"].grad)


def test_112_two_passes_have_equal_gradients_and_a_third_that_raises_leaves_them_as_they_are() -> None:
    model, args, _ = built("112")
    trace = tl.trace(model, args, capture=SAVED)
    loss = trace.output.sum()
    trace.backward(loss, retain_graph=True)
    trace.backward(loss)
    kept = {op.label: [op.autograd.grad_for(bwd=k) for k in (1, 2)] for op in trace.ops if op.has_grad}
    assert kept
    assert all(torch.equal(*pair) for pair in kept.values())
    for param in trace.params:
        first, second = (record.grad for record in param.grads)
        assert torch.equal(first, second)
        assert torch.equal(param.grad, first + second)
    with pytest.raises(RuntimeError, match="second time"):
        trace.backward(loss)
    assert [backward.status for backward in trace.autograd.backward_passes] == ["ok", "ok", "error"]
    for label, pair in kept.items():
        assert all(torch.equal(trace.ops[label].autograd.grad_for(bwd=k), pair[k - 1]) for k in (1, 2))


def test_115_the_report_names_the_detach_that_cut_the_path_and_tells_the_spare_module_apart() -> None:
    trace = differentiated("115")
    told = {found.subject: str(found) for found in trace.autograd.explanations if found.kind == "parameter"}
    assert set(told) == {"enc.weight", "enc.bias", "spare.weight", "spare.bias"}
    for name in ("enc.weight", "enc.bias"):
        assert "detach_1_3 takes what it is given off the graph" in told[name]
        assert "115_detach_in_the_middle.py:" in told[name]
    assert told["spare.weight"] == "spare.weight has no gradient: no op took it"


def test_118_gradients_recorded_under_create_graph_go_when_the_records_do() -> None:
    model, args, _ = built("118")
    counts = []
    for _ in range(4):
        for _ in range(5):
            trace = tl.trace(model, args, capture=SAVED)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trace.backward(trace.output.sum(), create_graph=True)
            trace.cleanup()
            for parameter in model.parameters():
                parameter.grad = None
            del trace
        counts.append(sum(type(held) is torch.Tensor for held in gc.get_objects()))
    assert counts[-1] <= counts[1]
