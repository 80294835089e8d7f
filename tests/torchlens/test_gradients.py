"""What is told of gradients where no backward pass is recorded, and what stays live: nodes, functions, the model."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import LookupRefused, PayloadUnavailableError
from torchlens.quantities import Bytes


def test_a_gradient_is_refused_and_never_none(worked: tl.Trace) -> None:
    for read in (
        lambda: worked["head"].grad,
        lambda: worked["add_1_8"].grad,
        lambda: worked.layers["add_1_8"].grad,
        lambda: worked.module_calls["head"].grad,
        lambda: worked.module_calls["head"].grads,
        lambda: worked.modules["head"].grad,
    ):
        with pytest.raises(PayloadUnavailableError) as caught:
            read()
        assert caught.value.code == "gradient_not_saved"
    assert worked.module_calls["scale:1"].grads == ()


def test_no_backward_pass_is_told_of(worked: tl.Trace, loaded: tl.Trace) -> None:
    for trace in (worked, loaded):
        assert not trace.has_backward_pass
        assert trace.saved_grad_ops.labels == ()
        assert trace.saved_gradient_memory == 0
        assert trace.autograd.last_backward_pass is None
        assert (
            trace.autograd.num_backward_passes == trace.autograd.num_grad_fns == trace.autograd.num_grad_fn_calls == 0
        )
        for op in trace.ops:
            assert not op.has_grad
            assert not op.save_grads
            assert (op.grad_shape, op.grad_dtype, op.gradient_memory, op.num_saved_grads) == (None, None, 0, 0)
        assert isinstance(trace.layers[0].total_gradient_memory, Bytes)
        assert not trace.buffers[0].has_grad


def test_the_collections_of_a_backward_are_empty_and_take_every_kind_of_key(worked: tl.Trace) -> None:
    autograd = worked.autograd
    by_pass = (autograd.grad_fn_calls, autograd.backward_passes, worked[1].autograd.grads, worked.params[0].grads)
    for records in (autograd.grad_fns, *by_pass):
        assert len(records) == len(records.to_pandas()) == 0
        assert list(records) == records[:] == records.values() == records.items() == []
        assert len(records.find("a")) == len(records.head()) == 0
        assert records.keys() == records.labels == ()
        assert "mul_back_1_1" not in records
        for key, code in (("mul_back_1_1", "record_lookup_not_found"), (0, "record_lookup_index_out_of_range")):
            with pytest.raises(KeyError) as caught:
                records[key]
            assert isinstance(caught.value, LookupRefused)
            assert caught.value.code == code
    for records in by_pass:
        with pytest.raises(KeyError) as caught:
            records.for_pass(1)
        assert isinstance(caught.value, LookupRefused)
        assert caught.value.code == "backward_pass_unknown"
    with pytest.raises(LookupRefused) as refused:
        worked[1].autograd.grad_for(bwd=1)
    assert refused.value.code == "backward_pass_unknown"
    assert next(iter(autograd.backward_passes.to_pandas().columns)) == "pass_index"


def test_the_autograd_node_is_live_in_the_process_that_captured(worked: tl.Trace, loaded: tl.Trace) -> None:
    for op in worked.ops:
        node = op.autograd.grad_fn_handle
        assert (node is None) == (op.autograd.grad_fn_object_id is None) == (op.autograd.grad_fn_class_name is None)
        assert node is None or type(node).__name__ == op.autograd.grad_fn_class_name
    first, second = worked.ops["chunk_1_6"].autograd, worked.ops["chunk_2_7"].autograd
    assert first.grad_fn_handle is second.grad_fn_handle
    assert worked.output.grad_fn is worked["head"].autograd.grad_fn_handle
    for mine, theirs in zip(worked.ops, loaded.ops, strict=True):
        assert theirs.autograd.grad_fn_handle is None
        assert theirs.autograd.grad_fn_object_id == mine.autograd.grad_fn_object_id
        assert theirs.autograd.grad_fn_class_name == mine.autograd.grad_fn_class_name


def test_the_function_is_that_of_torch(loaded: tl.Trace) -> None:
    def model(x: Tensor) -> Tensor:
        return torch.relu(x + 1).T

    trace = tl.trace(model, torch.ones(2, 3))
    assert trace.layers["relu_1_2"].func is trace.ops["relu_1_2"].func is torch.relu
    assert torch.equal(trace.ops["t_1_3"].func(torch.ones(2, 3)), torch.ones(3, 2))
    assert trace["input_1"].func is None
    assert loaded["head"].func is None
    trace.cleanup()


def test_the_model_is_held_weakly() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    trace = tl.trace(model, torch.ones(3, 2), save="none", capture=tl.CaptureOptions(inference_only=True))
    assert trace.root_module.handle is model
    assert trace.modules["0"].handle is model[0]
    assert trace.modules["0"].cls is nn.Linear
    assert trace.params["0.weight"].handle is model[0].weight
    assert trace.buffers["1.running_mean"].handle is model[1].running_mean
    assert trace.params["0.weight"].value_basis == "live"
    del model
    gc.collect()
    assert trace.root_module.handle is None
    assert trace.modules["0"].handle is trace.modules["0"].cls is None
    assert trace.params["0.weight"].handle is None
    assert trace.buffers["1.running_mean"].handle is None
    assert trace.params["0.weight"].value_basis is None


def test_a_module_that_the_model_does_not_register_is_held_by_its_number() -> None:
    inner = nn.Linear(2, 2)
    trace = tl.trace(lambda x: inner(x), torch.ones(1, 2))
    (module,) = [module for module in trace.modules if module.class_name == "Linear"]
    assert module.handle is inner
    assert [param.handle for param in trace.params] == [inner.weight, inner.bias]


def test_a_parameter_tells_the_gradient_that_torch_has_now() -> None:
    model = nn.Linear(2, 3)
    trace = tl.trace(model, torch.ones(1, 2))
    weight = trace.params["weight"]
    assert weight.grad is None
    assert (weight.has_grad, weight.grad_shape, weight.grad_dtype, weight.gradient_memory) == (False, None, None, 0)
    model.weight.grad = torch.ones(3, 2)
    assert weight.grad is model.weight.grad
    assert not weight.has_grad, "no recorded pass made it"
    value = weight.value
    assert torch.equal(value, model.weight)
    value.zero_()
    assert model.weight.any(), "what is given is a copy"


@pytest.mark.parametrize("field", ["value", "grad"])
def test_what_only_the_parameter_can_tell_is_refused_where_it_is_not(loaded: tl.Trace, field: str) -> None:
    with pytest.raises(PayloadUnavailableError) as caught:
        getattr(loaded.params[0], field)
    assert caught.value.code == "parameter_not_live"


def test_a_barcode_names_a_parameter_of_a_model_class_in_every_capture(worked: tl.Trace, loaded: tl.Trace) -> None:
    assert [param.barcode for param in worked.params] == [param.barcode for param in loaded.params]
    assert len({param.barcode for param in worked.params}) == len(worked.params)
    first, second = (tl.trace(nn.Linear(2, 2), torch.ones(1, 2)).params["weight"] for _ in range(2))
    assert first.barcode == second.barcode != tl.trace(nn.Linear(2, 3), torch.ones(1, 2)).params["weight"].barcode


def test_the_call_tree_has_every_call_under_the_one_that_made_it(worked: tl.Trace) -> None:
    assert worked.modules["blk"].call_tree == {
        "blk:1": {"blk.lin:1": {}, "blk.act:1": {}},
        "blk:2": {"blk.lin:2": {}, "blk.act:2": {}},
    }
    assert list(worked.root_module.call_tree["self:1"]) == worked.module_calls["self:1"].call_children
    assert worked.modules["unused"].call_tree == {}


def test_an_outcome_says_what_was_going_on_and_who_ended_it() -> None:
    def model(x: Tensor) -> Tensor:
        raise ValueError("no further")

    whole = tl.trace(nn.ReLU(), torch.ones(2))
    assert (whole.outcome.phase, whole.outcome.origin) == (None, None)
    halted = tl.trace(nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(2), stop_after="0")
    assert (halted.outcome.phase, halted.outcome.origin) == ("forward", "request")
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(model, torch.ones(2))
    partial = caught.value.partial_trace
    assert partial is not None
    assert (partial.outcome.phase, partial.outcome.origin) == ("forward", "model")
    assert partial.outcome.error == "builtins.ValueError"


def test_inference_only_is_asked_for_or_comes_of_grad_mode_unless_the_model_switches_it_on() -> None:
    def opens(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.requires_grad_() * 2

    assert not tl.trace(nn.ReLU(), torch.ones(2)).inference_only
    assert tl.trace(nn.ReLU(), torch.ones(2), capture=tl.CaptureOptions(inference_only=True)).inference_only
    with torch.no_grad():
        assert tl.trace(nn.ReLU(), torch.ones(2)).inference_only
        assert not tl.trace(opens, torch.ones(2)).inference_only


def test_a_trace_as_captured_is_pristine(worked: tl.Trace) -> None:
    assert worked.state == "pristine"
    assert worked.state_history == ()
    assert not worked.backward_ready
