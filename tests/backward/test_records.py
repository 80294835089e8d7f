"""The records of the backward, over passes that were written by hand: lookups, refusals, and what each record tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchlens as tl
from tests.backward.by_hand import Hand, small_model
from torchlens.errors import (
    AmbiguousOpLookupError,
    AmbiguousReadError,
    IndexOutOfRange,
    LookupRefused,
    PayloadUnavailableError,
    SelectionError,
)
from torchlens.quantities import Bytes, Duration
from torchlens.reading.backward import BackwardPass, GradFn, GradFnCall, GradientRecord
from torchlens.reading.locations import FuncCallLocation


def code_of(read: Callable[[], object]) -> str:
    with pytest.raises(tl.TorchLensError) as caught:
        read()
    return str(caught.value.code)


@pytest.fixture
def trace() -> Iterator[tl.Trace]:
    made = tl.trace(small_model(), torch.ones(1, 2))
    yield made
    made.cleanup()


@pytest.fixture
def once(trace: tl.Trace) -> tl.Trace:
    """With one pass that kept the gradients of the ops."""
    Hand(trace).write()
    return trace


@pytest.fixture
def twice(trace: tl.Trace) -> tl.Trace:
    """With a second one, which kept that of the relu alone."""
    hand = Hand(trace)
    hand.write()
    hand.write(policy="func('relu')", keeps=("relu",), value=3.0, frame=None, trigger="autograd_backward")
    return trace


LABELS = (
    *("sum_back_1_1", "addmm_back_1_2", "accumulategrad_back_1_3", "relu_back_1_4", "t_back_1_5"),
    *("accumulategrad_back_2_6", "addmm_back_2_7", "accumulategrad_back_3_8", "t_back_2_9", "accumulategrad_back_4_10"),
)

# -- collections and lookups


def test_nodes_are_labelled_as_they_are_found_and_firings_behind_a_colon(twice: tl.Trace) -> None:
    autograd = twice.autograd
    assert autograd.grad_fns.labels == LABELS
    assert autograd.grad_fn_calls.labels == tuple(f"{label}:{k}" for k in (1, 2) for label in LABELS)
    assert autograd.backward_passes.labels == ("1", "2")
    assert (autograd.num_grad_fns, autograd.num_grad_fn_calls, autograd.num_backward_passes) == (10, 20, 2)
    assert (autograd.num_grad_fns_with_op, autograd.num_grad_fns_without_op) == (3, 7)
    assert autograd.num_backward_edges == 9


def test_a_trace_finds_nodes_and_firings_by_label(twice: tl.Trace) -> None:
    node, call = twice["addmm_back_1_2"], twice["addmm_back_1_2:2"]
    assert isinstance(node, GradFn)
    assert isinstance(call, GradFnCall)
    assert (call.grad_fn, call.call_index, call.backward_pass_index) == (node, 2, 2)
    assert twice["ADDMM_BACK_1_2"] == node
    assert twice["addmm_back_1_2:last"] == call
    assert "addmm_back_1_2:1" in twice
    assert "addmm_back_1_2:3" not in twice
    with pytest.raises(IndexOutOfRange, match="it has 2") as caught:
        twice["addmm_back_1_2:3"]
    assert caught.value.code == "op_lookup_pass_out_of_range"
    assert ":all" not in caught.value.remedy
    for key in ("addmm_back_1_2:all", "addmm_back", "sum_back_1_2"):
        with pytest.raises(KeyError):
            twice[key]
    with pytest.raises(LookupRefused, match="sum_back_1_1"):
        twice["sum_back_1_2"]


def test_an_op_goes_before_a_node_and_a_part_of_a_label_names_ops_alone(once: tl.Trace) -> None:
    assert once["relu"].layer_label == "relu_1_2" if hasattr(once["relu"], "layer_label") else False
    assert code_of(lambda: once["accumulategrad"]) == "op_lookup_not_found"


def test_grad_fns_are_found_by_position_label_call_and_part_of_a_label(twice: tl.Trace) -> None:
    nodes = twice.autograd.grad_fns
    assert nodes[0] == nodes[-10] == nodes["sum_back_1_1"] == nodes["sum"] == nodes["sum_back_1_1:2"]
    assert nodes["relu"].class_name == "ReluBackward0"
    assert [node.label for node in nodes[1:3]] == ["addmm_back_1_2", "accumulategrad_back_1_3"]
    assert nodes.find("addmm").labels == ("addmm_back_1_2", "addmm_back_2_7")
    assert "sum_back_1_1" in nodes
    assert "sum" not in nodes
    with pytest.raises(AmbiguousOpLookupError) as caught:
        nodes["addmm"]
    assert caught.value.code == "ambiguous_record_lookup"
    assert code_of(lambda: nodes["conv"]) == "record_lookup_not_found"
    assert code_of(lambda: nodes[""]) == "record_lookup_not_found"
    assert code_of(lambda: nodes[10]) == "record_lookup_index_out_of_range"
    assert nodes.with_op.labels == ("addmm_back_1_2", "relu_back_1_4", "addmm_back_2_7")
    assert len(nodes.without_op) == 7
    assert nodes.fired.labels == LABELS
    assert len(nodes.custom) == 0
    assert nodes.where(lambda node: node.type == "t").labels == ("t_back_1_5", "t_back_2_9")


def test_firings_are_found_by_label_and_by_pass(twice: tl.Trace) -> None:
    calls = twice.autograd.grad_fn_calls
    assert calls["sum_back_1_1:2"] == calls["sum_back_1_1:last"] == calls[10]
    assert code_of(lambda: calls["sum_back_1_1"]) == "ambiguous_record_lookup"
    assert code_of(lambda: calls["sum_back_1_1:7"]) == "op_lookup_pass_out_of_range"
    assert [call.label for call in calls.in_pass(2)] == list(LABELS)
    assert calls.saved.labels == (*("addmm_back_1_2:1", "relu_back_1_4:1", "addmm_back_2_7:1", "relu_back_1_4:2"),)
    assert code_of(lambda: calls.in_pass(3)) == "backward_pass_unknown"


def test_a_node_that_fired_once_names_its_firing(once: tl.Trace) -> None:
    calls = once.autograd.grad_fn_calls
    assert calls["sum_back_1_1"] == calls["sum"] == calls[0]
    assert once.autograd.grad_fns["sum"].backward_duration == Duration(1e-6)


def test_positions_count_from_0_and_passes_from_1(twice: tl.Trace) -> None:
    passes = twice.autograd.backward_passes
    assert passes[0] == passes.for_pass(1) == passes["1"]
    assert passes[1] == passes[-1] == passes.for_pass(2) == twice.autograd.last_backward_pass
    node = twice.autograd.grad_fns["addmm_back_1_2"]
    assert node.calls[0].call_label == "addmm_back_1_2:1"
    assert node.calls.for_pass(2) == node.calls[1]
    for number in (0, 3, -1, True, "1"):
        for collection in (passes, node.calls, twice.ops["relu_1_2"].autograd.grads):
            with pytest.raises(KeyError) as caught:
                collection.for_pass(number)  # type: ignore[arg-type]  # what is refused
            assert isinstance(caught.value, LookupRefused)
            assert (caught.value.code, caught.value.fields["passes"]) == ("backward_pass_unknown", (1, 2))


def test_a_number_of_numpy_is_a_number_and_nothing_else_that_looks_like_one(twice: tl.Trace) -> None:
    one, grads = np.int64(1), twice.ops["relu_1_2"].autograd
    assert twice.autograd.backward_passes.for_pass(one).pass_index == 1
    assert len(twice.autograd.grad_fn_calls.in_pass(one)) == 10
    assert torch.equal(grads.grad_for(bwd=one), grads.grad_for(bwd=1))
    assert repr(tl.in_backward_pass(one)) == "in_backward_pass(1)"
    assert code_of(lambda: twice.ops["linear_1_1"].autograd.grad_for(bwd=np.int64(2))) == "gradient_not_saved"
    for wrong in (True, 1.0, np.float64(1), torch.tensor(1), None):
        for read in (
            lambda wrong=wrong: grads.grad_for(bwd=wrong),
            lambda wrong=wrong: twice.autograd.grad_fn_calls.in_pass(wrong),
            lambda wrong=wrong: twice.autograd.backward_passes.for_pass(wrong),
        ):
            assert code_of(read) == "backward_pass_unknown"
        assert code_of(lambda wrong=wrong: tl.in_backward_pass(wrong)) == "selector_pass_invalid"


def test_a_node_is_found_by_the_label_of_any_of_its_firings_and_of_no_other(twice: tl.Trace) -> None:
    nodes = twice.autograd.grad_fns
    label = LABELS[1]
    assert nodes[f"{label}:1"] == nodes[f"{label}:2"] == nodes[f"{label}:last"] == nodes[label]
    assert code_of(lambda: nodes[f"{label}:3"]) == "op_lookup_pass_out_of_range"
    assert f"{label}:3" not in nodes
    assert code_of(lambda: nodes[f"{label}:all"]) == "record_lookup_not_found"


@pytest.mark.parametrize("wrong", ["tanh", None, lambda op: True])
def test_what_is_no_selector_matches_nothing_and_is_told_so(once: tl.Trace, wrong: Any) -> None:
    assert code_of(lambda: once.autograd.grad_fns.matching(wrong)) == "selector_argument_type_invalid"
    assert code_of(lambda: once.autograd.grad_fn_calls.matching(wrong)) == "selector_argument_type_invalid"


def test_the_short_form_of_anything_is_had_after_cleanup_too(once: tl.Trace) -> None:
    held = [once.ops, once.autograd.grad_fns, once.ops[0], once.autograd.grad_fns[0], once.ops[1].autograd]
    once.cleanup()
    assert all(repr(once) in repr(one) for one in held)


def test_a_parameter_that_thousands_of_steps_share_leaves_the_frame_of_the_nodes_readable() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4500):
                x = x * self.scale
            return x

    trace = tl.trace(Steps(), torch.ones(2))
    trace.backward(trace.output.sum())
    frame = trace.autograd.grad_fns.to_pandas()
    assert len(frame) == 4502
    assert frame["co_parents"].isna().all()
    assert len(trace.autograd.grad_fns[1].co_parents) > 4000
    assert len(trace.fingerprint) == 64
    trace.cleanup()


def test_two_firings_in_one_pass_are_ambiguous_and_had_one_by_one(trace: tl.Trace) -> None:
    Hand(trace).write(fires=(*Hand.ORDER, "relu"))
    node = trace.autograd.grad_fns["relu"]
    assert node.call_labels == ["relu_back_1_4:1", "relu_back_1_4:2"]
    with pytest.raises(AmbiguousReadError) as caught:
        node.calls.for_pass(1)
    assert caught.value.code == "gradient_pass_ambiguous"
    assert node.calls.in_pass(1).labels == ("relu_back_1_4:1", "relu_back_1_4:2")
    assert node.calls[1].ordinal_in_pass == 10
    assert code_of(lambda: node.backward_duration) == "gradient_pass_ambiguous"
    assert node.total_backward_duration == pytest.approx(2e-6)
    relu = trace.ops["relu_1_2"]
    assert code_of(lambda: relu.autograd.grad_for(bwd=1)) == "gradient_pass_ambiguous"
    assert len(relu.autograd.grads) == 2


# -- gradients of ops


def test_an_op_reads_its_only_gradient(once: tl.Trace) -> None:
    relu = once.ops["relu_1_2"]
    (record,) = relu.autograd.grads
    assert isinstance(record, GradientRecord)
    assert torch.equal(relu.grad, torch.ones(1, 3))
    assert torch.equal(relu.autograd.grad_for(bwd=1), relu.grad)
    assert (relu.has_grad, relu.grad_shape, relu.grad_dtype) == (True, (1, 3), torch.float32)
    assert (relu.num_saved_grads, relu.gradient_memory) == (1, Bytes(12))
    assert (record.owner, record.backward_pass_index, record.shape, record.memory) == (relu, 1, (1, 3), 12)
    assert record.grad_fn_call == once["relu_back_1_4:1"]
    assert torch.equal(once.layers["relu_1_2"].grad, relu.grad)
    assert torch.equal(once.module_calls["1:1"].grad, relu.grad)
    assert torch.equal(once.modules["1"].grad, relu.grad)
    assert [grad.shape for grad in once.module_calls["1:1"].grads] == [(1, 3)]
    assert once.saved_grad_ops.labels == ("linear_1_1", "relu_1_2", "linear_2_3")
    assert once.saved_gradient_memory == 12 + 12 + 4


def test_what_is_read_of_a_gradient_is_a_copy(once: tl.Trace) -> None:
    once.ops["relu_1_2"].grad.zero_()
    assert torch.equal(once.ops["relu_1_2"].grad, torch.ones(1, 3))


def test_an_output_reads_the_gradient_of_the_op_whose_tensor_it_is(once: tl.Trace) -> None:
    output = once.output_ops[0]
    assert torch.equal(output.grad, once.ops["linear_2_3"].grad)
    assert torch.equal(output.autograd.grad_for(bwd=1), output.grad)
    assert (output.has_grad, output.num_saved_grads, len(output.autograd.grads)) == (True, 0, 0)
    assert output.label not in once.saved_grad_ops


def test_several_gradients_are_refused_with_their_passes(twice: tl.Trace) -> None:
    relu = twice.ops["relu_1_2"]
    with pytest.raises(AmbiguousReadError, match="passes 1, 2") as caught:
        relu.grad  # noqa: B018  # the refusal is asked for
    assert caught.value.code == "gradient_pass_ambiguous"
    assert torch.equal(relu.autograd.grad_for(bwd=2), torch.full((1, 3), 3.0))
    assert [record.backward_pass_index for record in relu.autograd.grads] == [1, 2]
    assert relu.autograd.grads[1] == relu.autograd.grads["2"] == relu.autograd.grads.for_pass(2)
    assert code_of(lambda: twice["1"].grad) == "gradient_pass_ambiguous"


def test_a_gradient_that_was_not_kept_says_why(twice: tl.Trace) -> None:
    first = twice.ops["linear_1_1"]
    assert first.grad.shape == (1, 3)
    with pytest.raises(PayloadUnavailableError, match=r"of backward pass 2: .*func\('relu'\)") as caught:
        first.autograd.grad_for(bwd=2)
    assert caught.value.code == "gradient_not_saved"
    with pytest.raises(PayloadUnavailableError, match="requires none") as caught:
        twice.ops["input_1"].grad  # noqa: B018  # the refusal is asked for
    assert caught.value.code == "gradient_not_saved"
    with pytest.raises(KeyError):
        first.autograd.grad_for(bwd=3)


class Halves(nn.Module):
    """Of whose two results each pass may be of one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).split(2)


def test_a_pass_that_gave_another_result_its_gradient_says_that_none_came() -> None:
    trace = tl.trace(Halves(), torch.ones(4, requires_grad=True), capture=tl.CaptureOptions(save_grads=True))
    first, second = trace.output
    trace.backward(first.sum(), retain_graph=True)
    trace.backward(second.sum())
    for op, others, bwd in ((trace.ops["split_1_2"], 1, 2), (trace.ops["output_1"], 1, 2)):
        with pytest.raises(PayloadUnavailableError, match=f"of backward pass {bwd}: what that began with") as caught:
            op.autograd.grad_for(bwd=bwd)
        assert caught.value.fields["reason"] == "not upstream of the loss"
        assert f"passes {others}" in caught.value.remedy
        assert op.autograd.grad_for(bwd=others).shape == (2,)


def test_a_refused_gradient_says_what_was_asked_of_the_pass(trace: tl.Trace) -> None:
    with pytest.raises(PayloadUnavailableError, match="no backward pass is recorded"):
        trace.ops["relu_1_2"].grad  # noqa: B018  # the refusal is asked for
    Hand(trace).write(fires=("sum", "second"), policy=None, keeps=())
    with pytest.raises(PayloadUnavailableError, match="that one kept no gradient") as caught:
        trace.ops["relu_1_2"].grad  # noqa: B018  # the refusal is asked for
    assert caught.value.fields["reason"] == "not saved by policy"
    with pytest.raises(PayloadUnavailableError, match="that one kept no gradient"):
        trace.ops["linear_2_3"].grad  # noqa: B018  # the refusal is asked for


def test_an_op_knows_its_node_once_a_pass_has_found_it(trace: tl.Trace) -> None:
    relu = trace.ops["relu_1_2"].autograd
    assert relu.grad_fn is relu.grad_fn_label is None
    Hand(trace).write()
    assert relu.grad_fn == trace["relu_back_1_4"]
    assert relu.grad_fn_label == "relu_back_1_4"
    assert trace["relu_back_1_4"].op == relu.op
    assert trace["relu_back_1_4"].handle is relu.grad_fn_handle
    assert trace.ops["input_1"].autograd.grad_fn is None


def test_a_gradient_that_its_process_holds_alone_is_refused_elsewhere(trace: tl.Trace) -> None:
    Hand(trace).write(has_bytes=False)
    assert code_of(lambda: trace.ops["relu_1_2"].grad) == "gradient_not_stored"
    assert trace.ops["relu_1_2"].has_grad
    assert list(trace.to_pandas()["grad"]) == [None] * 5


# -- parameters


def test_a_parameter_has_an_increment_for_each_firing_that_gathered_it(trace: tl.Trace) -> None:
    hand = Hand(trace)
    hand.write(keeps=("first", "first.bias"))
    hand.write(trigger="autograd_grad", accumulates=False, fires=("sum", "second", "relu"), keeps=())
    hand.write(policy=None, keeps=())
    bias = trace.params["0.bias"]
    assert [record.backward_pass_index for record in bias.grads] == [1, 3]
    assert [record.is_saved for record in bias.grads] == [True, False]
    assert torch.equal(bias.grads[0].grad, torch.ones(3))
    assert bias.grads[1].shape == (3,)
    assert code_of(lambda: bias.grads[1].grad) == "gradient_not_saved"
    assert code_of(lambda: bias.grads.for_pass(2)) == "backward_pass_unknown"
    assert bias.grads[0].owner == bias
    assert bias.grad is None, "that of torch is another"
    node = trace.autograd.grad_fns["accumulategrad_back_3_8"]
    assert (node.param, node.param_address, node.op, node.has_op) == (bias, "0.bias", None, False)


# -- what each record tells


def test_a_pass_tells_how_it_began_what_it_kept_and_how_it_ended(twice: tl.Trace) -> None:
    first, second = twice.autograd.backward_passes
    assert isinstance(first, BackwardPass)
    assert (first.pass_index, first.trigger, first.implicit, first.status) == (1, "backward", False, "ok")
    assert first.save_grads_policy == "True"
    place = first.backward_call_context
    assert isinstance(place, FuncCallLocation)
    assert (place.file, place.line_number, place.func_name) == ("loop.py", 7, "step")
    assert first.root_meta == ({"shape": (), "dtype": "float32", "device": "cpu"},)
    assert first.engine_flags == {"retain_graph": True, "create_graph": False}
    assert first.outer_context is None
    assert (first.order, first.order_attribution_coverage, first.origin_backward_pass) == (1, 1.0, None)
    assert first.num_grad_fn_calls == len(first.grad_fn_calls) == 10
    assert first.grad_fn_calls.labels == tuple(f"{label}:1" for label in LABELS)
    assert isinstance(first.duration, Duration)
    assert first.peak_memory is None
    assert second.backward_call_context is None
    assert second.save_grads_policy == "func('relu')"
    assert twice.has_backward_pass


def test_a_pass_that_raised_has_the_firings_before_it(trace: tl.Trace) -> None:
    Hand(trace).write(fires=("sum",), closed_by="engine_error", exception="builtins.ValueError", keeps=())
    (failed,) = trace.autograd.backward_passes
    assert failed.status == "error"
    assert failed.grad_fn_calls.labels == ("sum_back_1_1:1",)
    assert "error" in repr(failed)


def test_a_pass_within_another_names_it(trace: tl.Trace) -> None:
    hand = Hand(trace)
    hand.write()
    hand.write(trigger="implicit", frame=None, roots=(), parent=0)
    second = trace.autograd.backward_passes[1]
    assert (second.outer_context, second.implicit, second.root_meta) == (1, True, ())
    assert second.backward_call_context is None


def test_a_node_tells_its_neighbours_its_op_and_its_modules(once: tl.Trace) -> None:
    node = once["addmm_back_1_2"]
    assert (node.type, node.type_index, node.ordinal_index, node.step_index) == ("addmm", 1, 1, 2)
    assert (node.class_name, node.class_qualname, node.is_custom) == (
        "AddmmBackward0",
        "builtins.AddmmBackward0",
        False,
    )
    assert node.parents == ["sum_back_1_1"]
    assert node.children == ["accumulategrad_back_1_3", "relu_back_1_4", "t_back_1_5"]
    assert once["t_back_1_5"].siblings == ["accumulategrad_back_1_3", "relu_back_1_4"]
    assert (node.op_label, node.op, node.has_op) == ("linear_2_3", once.ops["linear_2_3"], True)
    assert (node.order, node.origin_backward_pass, node.differentiates, node.creator_object_id) == (1, None, None, None)
    assert (node.modules, node.module_address, node.module_membership_source) == (["2"], "2", "paired")
    assert once["t_back_1_5"].module_membership_source == "inferred"
    assert once["sum_back_1_1"].module_membership_source is None
    assert node.has_saved_call
    assert not once["t_back_1_5"].has_saved_call
    assert not once["sum_back_1_1"].has_parents


def test_a_firing_has_the_gradients_that_were_kept_there(once: tl.Trace) -> None:
    call = once["relu_back_1_4:1"]
    assert call.is_saved
    (arrived,) = call.grad_outputs
    assert torch.equal(arrived, torch.ones(1, 3))
    assert call.grad_inputs is None
    assert (call.ordinal, call.ordinal_in_pass) == (1, 3)
    assert call.backward_duration == Duration(1e-6)
    assert call.timestamp is not None
    assert call.backward_pass == once.autograd.backward_passes[0]
    assert once["sum_back_1_1:1"].grad_outputs is None


def test_records_show_themselves_in_a_line(once: tl.Trace) -> None:
    shown = (once.autograd.backward_passes[0], once["relu_back_1_4"], once["relu_back_1_4:1"])
    assert list(map(repr, shown)) == [
        "<BackwardPass 1 backward, ok, 10 firings>",
        "<GradFn relu_back_1_4 ReluBackward0 of relu_1_2, 1 call>",
        "<GradFnCall relu_back_1_4:1 in pass 1>",
    ]
    assert repr(once.ops["relu_1_2"].autograd.grads[0]) == "<GradientRecord of relu_1_2 in pass 1, (1, 3) float32>"
    assert repr(once.ops["relu_1_2"].autograd.grads) == "<1 gradient record: relu_1_2 in pass 1>"
    assert "1 backward pass" in repr(once.autograd)
    assert "1 gradient" in repr(once.ops["relu_1_2"].autograd)


# -- timings, and the end


def test_timings_are_had_by_call_label_in_order(once: tl.Trace) -> None:
    timings = once.autograd.grad_fn_fire_timings
    assert tuple(timings) == once.autograd.grad_fn_calls.labels
    assert all(time == Duration(1e-6) for time in timings.values())


def test_timings_are_refused_once_the_trace_is_cleaned_up(once: tl.Trace) -> None:
    autograd = once.autograd
    once.cleanup()
    assert code_of(lambda: autograd.grad_fn_fire_timings) == "grad_fn_fire_timing_unavailable"
    assert code_of(lambda: once.autograd.grad_fn_fire_timings) == "grad_fn_fire_timing_unavailable"
    assert code_of(lambda: list(once.autograd.backward_passes)) == "trace_cleaned_up"
    assert "cleaned up" in repr(once.autograd)
    once.autograd.disarm()


def test_a_reopened_journal_keeps_the_records_and_the_gradients(tmp_path: Path) -> None:
    trace = tl.trace(small_model(), torch.ones(1, 2), journal=tmp_path / "run.journal")
    Hand(trace).write()
    before = {name: list(table.rows()) for name, table in trace.tables.all.items()}
    trace.cleanup()
    again = tl.load(str(tmp_path / "run.journal"))
    assert {name: list(table.rows()) for name, table in again.tables.all.items()} == before
    assert torch.equal(again.ops["relu_1_2"].grad, torch.ones(1, 3))
    assert again["addmm_back_1_2"].handle is None
    assert again.ops["relu_1_2"].autograd.grad_fn_handle is None
    assert len(again.autograd.grad_fn_fire_timings) == 10
    again.cleanup()


# -- selectors


def test_a_selector_of_gradients_gives_sites_that_are_gradients(twice: tl.Trace) -> None:
    sites = twice[tl.grad(tl.func("linear"))]
    assert sites.labels() == ("linear_1_1", "linear_2_3")
    assert {site.kind for site in sites} == {"gradient"}
    assert torch.equal(sites[0].grad, twice.ops["linear_1_1"].grad)
    assert twice[tl.grad("relu_1_2")][0] != twice[tl.label("relu_1_2")][0]
    assert twice[tl.func("relu") & tl.in_backward_pass(2)].labels() == ("relu_1_2",)
    assert len(twice[tl.in_backward_pass(3)]) == 0
    assert (~sites).labels() == ("relu_1_2",)
    assert {site.kind for site in ~sites} == {"gradient"}
    assert (sites | twice[tl.grad("relu_1_2")]).labels() == ("linear_1_1", "relu_1_2", "linear_2_3")
    assert "gradient" in repr(sites[0])


def test_an_op_to_which_no_gradient_came_is_no_gradient_site(trace: tl.Trace) -> None:
    Hand(trace).write(fires=("sum", "second", "relu"), missing=("relu",))
    assert trace[tl.grad(tl.contains("_"))].labels() == ("linear_2_3",)


def test_kinds_of_sites_are_not_mixed(once: tl.Trace) -> None:
    both = (
        lambda: once[tl.grad("relu_1_2") | "relu_1_2"],
        lambda: once[tl.grad("relu_1_2")] | once[tl.label("relu_1_2")],
        lambda: once[tl.label("relu_1_2")] - once[tl.grad("relu_1_2")],
        lambda: once[tl.grad_fn("relu")],
        lambda: once[tl.grad(tl.top_k(k=1))],
        lambda: once[tl.top_k(once[tl.grad("relu_1_2")], k=1)],
    )
    for ask in both:
        with pytest.raises(SelectionError) as caught:
            ask()
        assert caught.value.code == "selection_kind_incompatible"


def test_selectors_of_nodes_find_nodes_and_firings(twice: tl.Trace) -> None:
    autograd = twice.autograd
    assert autograd.grad_fns.matching(tl.grad_fn("addmm")).labels == ("addmm_back_1_2", "addmm_back_2_7")
    second = tl.grad_fn("addmm") & tl.in_backward_pass(2)
    assert autograd.grad_fn_calls.matching(second).labels == ("addmm_back_1_2:2", "addmm_back_2_7:2")
    assert twice["addmm_back_1_2"].calls.matching(second).labels == ("addmm_back_1_2:2",)
    assert len(autograd.grad_fns.matching(tl.without_op())) == autograd.num_grad_fns_without_op == 7
    assert autograd.grad_fns.matching(tl.func("relu")).labels == ("relu_back_1_4",)
    assert len(autograd.grad_fn_calls.matching(tl.in_backward_pass(3))) == 0
    assert code_of(lambda: autograd.grad_fns.matching(tl.threshold(above=0.0))) == "selection_kind_incompatible"


def test_nothing_matches_a_selector_of_nodes_before_any_pass(trace: tl.Trace) -> None:
    assert code_of(lambda: trace.autograd.grad_fns.matching(tl.grad_fn())) == "gradient_sites_unavailable"


# -- data frames


def test_frames_have_a_row_for_each_record_and_trip_over_nothing(twice: tl.Trace) -> None:
    pytest.importorskip("pandas")
    frame = twice.to_pandas().set_index("label")
    assert frame.loc["relu_1_2", "grad"] is None
    assert frame.loc["relu_1_2", "num_saved_grads"] == 2
    assert torch.equal(frame.loc["linear_1_1", "grad"], torch.ones(1, 3))
    assert frame.loc["input_1", "grad"] is None
    assert list(frame["has_grad"]) == [False, True, True, True, True]
    assert torch.equal(frame.loc["output_1", "grad"], torch.ones(1, 1))
    nodes = twice.autograd.grad_fns.to_pandas()
    assert list(nodes["label"]) == list(LABELS)
    calls = twice.autograd.grad_fn_calls.to_pandas()
    assert len(calls) == 20
    (arrived,) = calls["grad_outputs"][3]
    assert torch.equal(arrived, torch.ones(1, 3))
    passes = twice.autograd.backward_passes.to_pandas()
    assert list(passes["pass_index"]) == [1, 2]
    assert passes["backward_call_context"][0].line_number == 7
    assert passes["engine_flags"][0] == {"retain_graph": True, "create_graph": False}
    kept = twice.ops["relu_1_2"].autograd.grads.to_pandas()
    assert list(kept["backward_pass_index"]) == [1, 2]
    assert torch.equal(kept["grad"][1], torch.full((1, 3), 3.0))


def test_the_frame_of_increments_has_none_where_one_was_not_kept(once: tl.Trace) -> None:
    pytest.importorskip("pandas")
    frame = once.params["0.bias"].grads.to_pandas()
    assert list(frame["grad"]) == [None]
    assert list(frame["shape"]) == [(3,)]


def test_a_summary_tells_of_backward_passes_where_there_are_any(trace: tl.Trace) -> None:
    assert "backward" not in trace.summary()
    Hand(trace).write()
    (line,) = [line for line in str(trace.summary()).splitlines() if line.startswith("backward")]
    assert "1 pass, 10 firings, " in line
    assert line.endswith("gradients of 3 ops, 28 B kept")


def test_the_time_of_all_passes_counts_what_ran_inside_another_once() -> None:
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            inner.backward(retain_graph=True)
            return grads[0]

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner = self.fc(x)
            made: torch.Tensor = Again.apply(self.inner)
            return made

    model = Looped()
    trace = tl.trace(model, torch.ones(1, 2))
    inner = model.inner.sum()
    trace.backward(trace.output.sum(), retain_graph=True)
    passes = trace.autograd.backward_passes
    assert [one.outer_context for one in passes] == [None, 1]
    assert trace.tables.fact("backward_duration") == passes[0].duration
    assert f"2 passes, {len(trace.autograd.grad_fn_calls)} firings, {passes[0].duration};" in trace.summary()


def test_every_field_of_a_backward_record_reads(twice: tl.Trace) -> None:
    autograd = twice.autograd
    collections: tuple[Any, ...] = (autograd.backward_passes, autograd.grad_fns, autograd.grad_fn_calls)
    for records in (*collections, twice.ops["relu_1_2"].autograd.grads):
        for record in records:
            for name in dir(record):
                if (type(record), name) == (GradFn, "backward_duration"):
                    assert code_of(lambda record=record: record.backward_duration) == "gradient_pass_ambiguous"
                elif name == "aten_ops":
                    assert code_of(lambda record=record: record.aten_ops) == "aten_ops_not_recorded"
                else:
                    getattr(record, name)
