"""What the cases promise in words, beyond what their runner checks: as far as a forward goes.

The cases stand in ``tests/data/cases/cases``, each with a docstring that tells the right outcome. What they promise
of a backward is in ``test_gradient_texts.py``; ``LATER`` lists what needs an edit or an artifact.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.work import seconds

CASES = Path(__file__).resolve().parents[1] / "data" / "cases"

LATER: Final[Mapping[str, str]] = {
    "064 any step can be edited": "edits",
    "109 a rolled drawing and a saved artifact of 10000 passes": "drawing and artifacts",
}
"""What a text asks that is not there yet, and what it waits for."""


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(CASES))
    try:
        import run_plain
    finally:
        sys.path.remove(str(CASES))
    (path,) = (CASES / "cases").glob(f"{name}_*.py")
    module: ModuleType = run_plain.load(path)
    return module


def built(name: str) -> tuple[Any, Any, Any]:
    torch.manual_seed(11)
    model, args, kwargs = load(name).build()
    return model, args, kwargs


def traced(name: str, **options: Any) -> tl.Trace:
    model, args, kwargs = built(name)
    return tl.trace(model, args, kwargs, **options)


def test_what_is_left_for_later_is_named_with_its_reason() -> None:
    numbers = {path.stem[:3] for path in (CASES / "cases").glob("[0-9]*.py")}
    assert {text[:3] for text in LATER} <= numbers
    assert all(LATER.values())


# Writing in place -----------------------------------------------------------------------------------------------


def test_001_the_convolution_keeps_its_negative_entries_and_the_relu_is_a_record_of_its_own() -> None:
    trace = traced("001")
    assert (trace["conv2d_1_1"].out < 0).any()
    assert not (trace["relu_1_2"].out < 0).any()
    assert trace.ops["relu_1_2"].is_inplace
    assert trace.ops["relu_1_2"].parents == ("conv2d_1_1",)
    assert trace.ops["conv2d_2_3"].parents == ("relu_1_2",)


def test_004_the_indexed_assignment_has_input_and_update_as_parents_and_the_caller_s_tensor_is_as_it_was() -> None:
    model, args, kwargs = built("004")
    trace = tl.trace(model, args, kwargs)
    assignment = trace.ops["setitem_1_4"]
    assert assignment.parents[0] == "input_1"
    assert assignment.input_ancestors == {"input_1", "input_2"}
    assert assignment.children == ("output_1",)
    assert not args[0].any()
    assert torch.equal(trace["input_1"].out, args[0])


def test_007_the_same_error_comes_through_and_the_partial_record_ends_at_the_unbind() -> None:
    model, args, kwargs = built("007")
    with pytest.raises(RuntimeError) as bare:
        model(*args, **kwargs)
    with pytest.raises(tl.TraceCaptureError) as refused:
        tl.trace(*built("007"))
    assert str(refused.value.__cause__) == str(bare.value)
    assert isinstance(refused.value, RuntimeError)
    assert refused.value.partial_trace.ops.labels == ("input_1", "linear_1_1", "unbind_1_2", "unbind_2_3")


def test_070_the_tensor_that_a_function_wrote_is_a_new_version_and_later_users_hang_on_it() -> None:
    trace = traced("070")
    written, mask = trace.ops["clampinplace_1_2"], trace.ops["clampinplace_2_3"]
    assert written.is_inplace
    assert written.is_opaque
    assert written.parents == ("mul_1_1",)
    assert trace.ops["sum_1_4"].parents == ("clampinplace_1_2",)
    assert trace["mul_1_1"].out.tolist() == [-1, 2, -3, 4]
    assert written.out.tolist() == [0, 2, 0, 4]
    assert not mask.requires_grad


def test_100_a_weight_step_within_the_forward_is_a_write_to_the_parameter_that_later_readers_hang_on() -> None:
    trace = traced("100")
    step = trace.ops["isub_1_12"]
    assert step.is_inplace
    assert step.param_names == ("fast.weight",)
    assert "isub_1_12" in trace.ops["linear_1_4:2"].parents
    assert "isub_1_12" not in trace.ops["linear_1_4:1"].parents
    assert trace.outcome.status == "complete"
    trace.output.sum().backward()


# Modules and parameters -----------------------------------------------------------------------------------------


def test_010_each_call_of_a_reused_module_has_its_own_input_and_output() -> None:
    trace = traced("010")
    calls = [trace.module_calls[f"act:{k}"] for k in (1, 2, 3)]
    assert [list(call.input_ops) for call in calls] == [["linear_1_1"], ["linear_2_3"], ["linear_3_4"]]
    assert [list(call.output_ops) for call in calls] == [["relu_1_2:1"], ["relu_1_2:2"], ["relu_1_2:3"]]
    assert [trace.ops[f"relu_1_2:{k}"].shape for k in (1, 2, 3)] == [(3, 8), (3, 6), (3, 2)]


def test_013_a_tied_weight_is_one_record_with_two_addresses_and_both_users() -> None:
    trace = traced("013")
    (weight,) = trace.params
    assert weight.num_params == 400
    assert set(weight.all_addresses) == {"embed.weight", "head.weight"}
    assert set(weight.used_by_ops) == {"embedding_1_1", "linear_1_3"}
    assert trace.num_params == 400


def test_019_a_module_in_a_plain_list_has_no_invented_address_and_its_parameters_are_apart() -> None:
    trace = traced("019")
    assert trace.modules.labels == ("self", "~Conv2d_1")
    assert trace.ops["conv2d_1_1"].modules == ("~Conv2d_1:1",)
    assert not trace.params.labels or all(label.startswith("~") for label in trace.params.labels)


def test_046_a_cached_parametrization_is_recorded_once_and_outside_the_cache_twice() -> None:
    trace = traced("046")
    assert [op.label for op in trace.ops if op.func_name == "triu"] == ["triu_1_1", "triu_2_2"]
    assert all("add_1_4" in trace.ops[f"linear_1_5:{k}"].parents for k in (1, 2))
    model, args, _ = built("046")
    uncached = tl.trace(lambda x: model.lin(model.lin(x).relu()), args)
    assert sum(op.func_name == "triu" for op in uncached.ops) == 4


def test_088_addresses_of_a_wrapped_model_lead_to_its_modules_and_nothing_is_counted_twice() -> None:
    trace = traced("088")
    assert [module.num_calls for module in trace.modules] == [1, 1, 1, 1]
    assert trace.modules["module.0"].address == "0"
    assert "module.0" in trace.modules["0"].all_addresses
    assert trace.num_params == 23


def test_091_nodes_that_torch_puts_around_a_hooked_module_are_no_ops() -> None:
    assert [op.func_name for op in traced("091").ops if op.is_compute_op] == ["linear", "sigmoid", "linear"]


def test_094_an_edge_runs_through_a_hook_s_closure_and_the_hook_survives() -> None:
    model, args, kwargs = built("094")
    trace = tl.trace(model, args, kwargs)
    assert trace.ops["cat_1_4"].parents == ("conv1d_2_3", "relu_1_2")
    assert len(model.enc[1]._forward_hooks) == 1
    assert torch.equal(model(*args), trace.output)


def test_121_a_llama_gives_back_its_output_and_its_tied_weight_is_counted_once() -> None:
    trace = traced("121")
    assert type(trace.output).__name__ == "CausalLMOutputWithPast"
    assert [trace.modules[f"model.layers.{k}.self_attn"].num_calls for k in (0, 1)] == [1, 1]
    model, _, _ = built("121")
    assert trace.num_params == sum(parameter.numel() for parameter in model.parameters())
    roles = [op.io_role for op in trace.ops if op.is_input]
    assert roles == ["input.input_ids", "input.attention_mask"]  # the labels are the very ids


# Inputs and outputs ---------------------------------------------------------------------------------------------


def test_016_every_function_and_operator_is_a_record_with_a_name_and_its_parents() -> None:
    trace = traced("016")
    names = "matmul relu neg relu clamp rsub add pow truediv layernorm relu add neg".split()
    assert [op.layer_type for op in trace.ops if op.is_compute_op] == names
    assert all(op.parents for op in trace.ops if op.is_compute_op)
    assert trace.ops["matmul_1_1"].param_names == ("w",)


def test_022_a_chain_from_nothing_is_an_internal_source_and_a_constant_output_is_an_output() -> None:
    trace = traced("022")
    assert trace.ops["arange_1_1"].is_internal_source
    assert trace.ops["arange_1_1"].children == ("sin_1_2", "cos_1_3")
    constant = trace.ops["output_2"]
    assert constant.parents == ("mul_1_9",)
    assert not constant.has_input_ancestor
    assert constant.out.tolist() == [2, 2, 2]


def test_025_two_positions_of_one_tensor_are_one_source_and_two_outputs_are_one_op() -> None:
    trace = traced("025")
    assert trace.ops["mul_1_1"].parents == ("input_1", "input_1")
    assert len(trace.input_layers) == 1
    assert [trace.ops[f"output_{k}"].parents for k in (1, 2)] == [("mul_1_1",), ("mul_1_1",)]
    assert trace.output["first"] is trace.output["again"]


def test_028_tensors_of_a_dataclass_are_outputs_with_their_paths_and_the_rest_is_as_it_was() -> None:
    trace = traced("028")
    roles = [op.io_role for op in trace.ops if op.is_output]
    assert roles == ["output.logits", "output.hidden.0", "output.hidden.1", "output.extra.mean"]
    assert type(trace.output).__name__ == "Output"
    assert trace.output.cache is None
    assert type(trace.output.extra).__name__ == "Extra"


def test_031_keyword_inputs_have_their_names_and_a_module_s_keyword_inputs_are_its_parents() -> None:
    trace = traced("031")
    assert [op.io_role for op in trace.ops if op.is_input] == ["input.ids", "input.mask"]
    assert set(trace.module_calls["inner:1"].input_ops) == {"input_2", "embedding_1_1"}
    assert trace.ops["mul_2_4"].non_tensor_pos_args == [0.5]  # scale, as it was given


def test_034_only_tensors_become_inputs_and_nothing_is_cast() -> None:
    trace = traced("034")
    inputs = [op for op in trace.ops if op.is_input]
    assert [(op.io_role, op.dtype) for op in inputs] == [
        ("input.data.img", torch.uint8),
        ("input.data.ids.0", torch.int64),
    ]
    assert trace.output["k"] == (2.5,)


def test_037_an_input_with_history_is_a_plain_input_and_knows_nothing_of_an_earlier_capture() -> None:
    model, args, _ = built("037")
    first = tl.trace(model.upstream[0], args[0].detach())
    second = tl.trace(model, [first.output.relu()])
    assert second.ops.labels == ("input_1", "linear_1_1", "output_1")
    assert second.ops["input_1"].parents == ()
    second.output.sum().backward()
    assert model.upstream[0].weight.grad is not None


def test_040_a_function_is_captured_like_a_model_and_its_modules_are_found() -> None:
    trace = traced("040")
    assert [module.num_calls for module in trace.modules] == [1, 1, 1]
    assert trace.ops["linear_2_3"].modules == ("~Linear_2:1",)


def test_043_each_record_has_the_dtype_that_was() -> None:
    dtypes = {op.label: op.dtype for op in traced("043").ops}
    assert dtypes["input_1"] == torch.float64
    assert dtypes["to_2_4"] == dtypes["where_1_7"] == torch.bfloat16
    assert dtypes["gt_1_5"] == torch.bool
    assert dtypes["argmax_1_9"] == torch.int64
    assert not traced("043").ops["argmax_1_9"].requires_grad


# Sequences, loops and branches ----------------------------------------------------------------------------------


def test_058_packing_lstm_and_padding_are_connected_and_the_states_are_slots_of_one_call() -> None:
    trace = traced("058")
    slots = [op for op in trace.ops if op.func_name == "lstm"]
    assert [op.multi_output_index for op in slots] == [0, 1, 2]
    assert len({op.func_call_id for op in slots}) == 1
    assert "packpaddedsequence_1_6" in slots[0].parents
    padded = next(op for op in trace.ops if op.layer_type == "padpackedsequence")
    assert slots[0].label in padded.parents
    assert padded.input_ancestors == {"input_1", "input_2"}
    assert trace["sort_1_2"].out.tolist() == [5, 3, 2]


def test_061_the_attention_map_is_an_output_of_an_op_and_of_the_fused_call_there_is_none() -> None:
    trace = traced("061")
    weights = trace.ops["softmax_1_20"].out
    assert torch.allclose(weights.sum(-1), torch.ones(4, 5), atol=1e-5)
    assert trace.ops["output_2"].shape == (2, 2, 5, 5)
    fused = [op.func_name for op in trace.ops if op.modules == ("b:1",)]
    assert "softmax" not in fused
    assert "scaled_dot_product_attention" in fused


def test_064_the_steps_of_a_decoding_loop_are_passes_of_one_layer_with_shapes_of_their_own() -> None:
    trace = traced("064")
    layer = trace.layers["softmax_1_9"]
    assert layer.num_passes == 5
    assert [op.shape for op in layer.ops] == [(1, 1, keys) for keys in range(1, 6)]
    assert trace["softmax_1_9:4"].shape == (1, 1, 4)
    assert trace.modules["head"].num_calls == 5
    model, args, _ = built("064")
    assert tl.trace(model, args, {"steps": 7}).modules["head"].num_calls == 7


def test_103_another_input_gives_another_record_and_modules_that_did_not_run_are_told() -> None:
    model, args, _ = built("103")
    early, late = (tl.trace(model, args, {"threshold": threshold}) for threshold in (0.0, 0.99))
    assert [trace.modules["heads.2"].num_calls for trace in (early, late)] == [0, 1]
    assert {"blocks.1", "blocks.2", "heads.1", "heads.2"} <= set(early.uncalled_modules)
    (decision,) = [op for op in early.ops if op.is_terminal_bool]
    assert (decision.func_name, decision.bool_value) == ("__gt__", True)
    assert [op.bool_value for op in late.ops if op.is_terminal_bool] == [False] * 3


def test_109_ten_thousand_rounds_are_two_layers_in_linear_time() -> None:
    model, _, _ = built("109")

    def run(steps: int) -> None:
        trace = tl.trace(model, [torch.ones(3), steps], save=[])
        assert [layer.num_passes for layer in trace.layers.compute] == [steps, steps, 1]

    run(100)
    few = min(seconds(lambda: run(1_000)) for _ in range(3))
    assert seconds(lambda: run(10_000)) < 40 * few  # ten times the rounds


# States, streams and modes --------------------------------------------------------------------------------------


def test_049_random_ops_draw_what_they_draw_in_a_bare_run() -> None:
    model, args, _ = built("049")
    ends = []
    for call in (lambda: model(*args), lambda: tl.trace(model, args).output):
        torch.manual_seed(7)
        random.seed(7)
        ends.append((call(), torch.get_rng_state(), random.getstate()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2]


def test_055_a_tensor_kept_from_the_capture_before_is_no_op_of_this_one() -> None:
    model, args, _ = built("055")
    first, second = tl.trace(model, args), tl.trace(model, args)
    assert first.ops.labels == ("input_1", "linear_1_1", "detach_1_2", "output_1")
    assert second.ops["add_1_2"].parents == ("linear_1_1",)
    assert second.health.is_clean
    assert not vars(model.last)


def test_067_gradients_of_a_checkpoint_are_those_of_the_mask_of_the_forward() -> None:
    module = load("067")
    grads = []
    for use in (False, True):
        torch.manual_seed(11)
        model, args, _ = module.build()
        model.use = use
        torch.manual_seed(3)
        (tl.trace(model, args).output if use else model(*args)).sum().backward()
        grads.append(model.block[0].weight.grad)
    assert torch.equal(*grads)


def test_073_records_under_autocast_have_the_dtypes_that_were() -> None:
    trace = traced("073")
    linears = [op for op in trace.ops if op.func_name == "linear"]
    assert {op.dtype for op in linears} == {torch.bfloat16}
    assert trace.ops["softmax_1_4"].dtype == torch.float32
    assert trace.ops["softmax_1_4"].func_autocast_state != linears[0].func_autocast_state
    assert not torch.is_autocast_enabled("cpu")


def test_076_the_op_that_made_a_masked_nan_shows_it_and_the_output_is_finite() -> None:
    trace = traced("076")
    broken = [op.label for op in trace.ops if not op.out.isfinite().all()]
    assert broken == ["log_1_2"]
    assert trace.output.isfinite()


def test_079_a_frozen_backbone_is_captured_and_says_that_it_has_no_graph() -> None:
    trace = traced("079")
    assert not trace.ops["relu_1_2"].requires_grad
    assert trace.ops["linear_1_4"].requires_grad
    assert {param.address for param in trace.params.frozen} == {"backbone.0.weight", "backbone.0.bias"}


def test_115_the_detach_that_cuts_the_graph_is_a_record_with_its_line_and_the_spare_module_is_told_apart() -> None:
    trace = traced("115")
    cut = trace.ops["detach_1_3"]
    assert trace.ops["relu_1_2"].requires_grad
    assert not cut.requires_grad
    assert any(frame.file.endswith("115_detach_in_the_middle.py") for frame in cut.code_context)
    assert list(trace.uncalled_modules) == ["spare"]


def test_124_a_mode_of_the_user_s_sees_the_same_functions_and_records_carry_the_dtype_that_was() -> None:
    model, args, _ = built("124")
    model(*args)
    bare = [name for name in model.mode.names if name in ("relu", "ones", "mul", "add")]
    trace = tl.trace(model, args)
    assert [name for name in model.mode.names if name in ("relu", "ones", "mul", "add")] == bare
    assert trace.ops["ones_1_2"].dtype == torch.float32
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["relu", "ones", "mul", "add"]


# Odd tensors and transforms -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("journal", [False, True])
def test_082_a_sparse_tensor_has_its_layout_and_its_value_is_sparse_or_refused(journal: bool, tmp_path: Path) -> None:
    trace = traced("082", **({"journal": tmp_path / "run.journal"} if journal else {}))
    product = trace.ops["coalesce_1_5"]
    assert product.layout == "sparse_coo"
    assert product.shape == (4, 4)
    value = product.out
    assert value.layout == torch.sparse_coo
    assert value._nnz() == 4
    trace.cleanup()
    if journal:
        again = tl.load(tmp_path / "run.journal")
        with pytest.raises(tl.TorchLensError) as refused:
            _ = again.ops["coalesce_1_5"].out
        assert refused.value.code == "activation_not_stored"


def test_085_results_and_saved_activations_keep_the_class_and_the_tag() -> None:
    model, args, kwargs = built("085")
    trace = tl.trace(model, args, kwargs)
    assert type(trace.output).__name__ == "Tagged"
    saved = trace.ops["linear_1_1"].out
    assert type(saved) is type(args[0])
    assert saved.unit == "cm"
    assert trace.ops["linear_1_1"].tensor_class.endswith(".Tagged")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, at its first jvp
def test_097_transforms_are_records_and_the_backward_through_them_reaches_the_weights() -> None:
    model, args, kwargs = built("097")
    trace = tl.trace(model, args, kwargs)
    assert [op.layer_type for op in trace.ops if op.is_opaque] == ["vmap", "vmap", "jvp", "jvp"]
    trace.output.backward()
    assert model.net[0].weight.grad.abs().sum() > 0


# After an end ---------------------------------------------------------------------------------------------------


def test_106_after_a_hook_that_raised_the_model_runs_and_is_captured() -> None:
    model, args, kwargs = built("106")
    with pytest.raises(tl.TraceCaptureError):
        tl.trace(model, args, kwargs)
    assert all("forward" not in vars(module) for module in model.modules())
    assert torch.equal(model(*args), tl.trace(model, args).output)


def test_118_when_the_records_are_dropped_the_tensors_are_too() -> None:
    model, args, kwargs = built("118")

    def live() -> int:
        return sum(type(item) is Tensor for item in gc.get_objects())

    tl.trace(model, args, kwargs)
    gc.collect()
    before = live()
    gc.disable()
    try:
        for _ in range(10):
            tl.trace(model, args, kwargs)
        assert live() <= before
    finally:
        gc.enable()


def test_052_a_twin_of_a_captured_model_runs_without_the_tool() -> None:
    import copy

    model, args, _ = built("052")
    trace = tl.trace(model, args)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(*args), trace.output)
    assert isinstance(twin, nn.Sequential)
    assert all(not module._forward_hooks and "forward" not in vars(module) for module in twin.modules())


def test_112_a_third_backward_through_a_traced_output_raises_torch_s_own_error() -> None:
    model, args, _ = built("112")
    loss = tl.trace(model, args).output.sum()
    loss.backward(retain_graph=True)
    once = model[0].weight.grad.clone()
    loss.backward()
    assert torch.allclose(model[0].weight.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
