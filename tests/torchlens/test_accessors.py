"""The typed collections and the records in them: positions, labels, filters, frames, facades."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from projections import COLUMNS
from torchlens.errors import AmbiguousReadError, LookupRefused, PayloadUnavailableError, TraceCleanedUpError
from torchlens.quantities import Bytes, Duration
from torchlens.reading import tabular
from torchlens.reading.facade import RECORDS
from torchlens.reading.fields import Field, Record
from torchlens.reading.records import Op
from torchlens.reading.records.layers import PassField
from torchlens.reading.records.modules import CallField

COLLECTIONS = ("ops", "layers", "modules", "module_calls", "params", "buffers")

# -- laws of every collection


@pytest.mark.parametrize("name", COLLECTIONS)
@given(data=st.data())
def test_a_collection_is_the_sequence_of_its_records(worked: tl.Trace, name: str, data: st.DataObject) -> None:
    collection = getattr(worked, name)
    records = list(collection)
    position = data.draw(st.integers(-len(records), len(records) - 1))
    part = slice(*data.draw(st.tuples(*[st.none() | st.integers(-30, 30)] * 2)))
    assert collection[position] == records[position]
    assert collection[part] == records[part]
    assert collection.keys() == collection.labels
    assert collection.values() == records
    assert collection.items() == list(zip(collection.labels, records, strict=True))
    assert list(collection.head(2)) == records[:2]
    assert records[position] in collection


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_shows_how_many_and_the_first(worked: tl.Trace, name: str) -> None:
    collection = getattr(worked, name)
    assert str(len(collection)) in repr(collection)
    assert collection.labels[0] in repr(collection)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_position_that_is_not_there_is_refused(worked: tl.Trace, name: str) -> None:
    collection = getattr(worked, name)
    with pytest.raises(IndexError) as caught:
        collection[len(collection)]
    assert isinstance(caught.value, LookupRefused)
    assert caught.value.code.endswith("lookup_index_out_of_range")


def test_find_looks_into_labels_whatever_their_case(worked: tl.Trace) -> None:
    assert [module.address for module in worked.modules.find("BLK")] == ["blk", "blk.lin", "blk.act"]
    assert worked.params.find("nothing").labels == ()


# -- what each collection takes for a label


def test_ops_take_every_key_of_an_op(worked: tl.Trace) -> None:
    ops = worked.ops
    for key in ("linear_3_9", "linear_3_9:1", "linear_3", "head", "head:1", "linear_3_9:last", "linear_17_raw"):
        assert ops[key] == worked["linear_3_9:1"]
    assert ops["tanh_1_2:last"].pass_index == 3
    with pytest.raises(KeyError) as caught:
        ops["tanh_1_2"]
    assert isinstance(caught.value, LookupRefused)
    assert caught.value.code == "ambiguous_op_lookup"
    assert "tanh_1_2" not in ops


def test_modules_take_any_of_their_names_and_calls(worked: tl.Trace) -> None:
    modules = worked.modules
    assert modules["blk"] == modules["also"] == modules["blk:2"] == modules["also:1"]
    assert modules[""] == modules["self"] == modules[0] == worked.root_module
    assert modules["blk"].all_addresses == ("blk", "also")


def test_module_calls_take_an_address_where_there_is_one_call(worked: tl.Trace) -> None:
    calls = worked.module_calls
    assert calls["head"] == calls["head:1"] == calls["head:last"]
    assert calls["also:2"] == calls["blk:last"] == calls["blk:2"]
    for key, code in (("blk", "ambiguous_record_lookup"), ("blk:3", "op_lookup_pass_out_of_range")):
        with pytest.raises(LookupRefused) as caught:
            calls[key]
        assert caught.value.code == code


def test_parameters_and_buffers_take_a_last_name_that_one_has(worked: tl.Trace) -> None:
    assert worked.buffers["factor"] == worked.buffers["scale.factor"]
    assert worked.params["also.lin.bias"].address == "blk.lin.bias"
    with pytest.raises(LookupRefused) as caught:
        worked.params["bias"]
    assert caught.value.code == "ambiguous_record_lookup"


# -- filters


def test_filters_give_collections(worked: tl.Trace) -> None:
    assert worked.layers.recurrent.labels == ("linear_1_1", "tanh_1_2", "linear_2_3", "relu_1_4")
    assert worked.layers.compute.recurrent.labels == worked.recurrent_layers.labels
    assert [op.label for op in worked.ops if not op.is_compute_op] == ["input_1", "buffer_1", "output_1"]
    assert len(worked.ops.compute) == worked.num_ops == len(worked.compute_ops)
    assert worked.params.frozen.labels == ("head.bias",)
    assert len(worked.params.trainable) == len(worked.params) - 1
    assert worked.input_ops.labels == ("input_1",)
    assert worked.output_ops.labels == tuple(worked.output_layers) == ("output_1",)
    assert worked.layers["tanh_1_2"].ops.labels == ("tanh_1_2:1", "tanh_1_2:2", "tanh_1_2:3")
    assert worked.modules["blk"].calls.labels == ("blk:1", "blk:2")


def test_filters_chain_and_part_a_collection(worked: tl.Trace) -> None:
    ops, layers = worked.ops, worked.layers
    kinds = (ops.inputs, ops.buffers, ops.compute, ops.outputs)
    assert sorted(label for kind in kinds for label in kind.labels) == sorted(ops.labels)
    assert ops.compute.saved.where(lambda op: op.func_name == "tanh").labels == worked["tanh_1_2:all"].labels()
    assert ops.compute.inputs.labels == ()
    kinds = (layers.inputs, layers.buffers, layers.compute, layers.outputs)
    assert sorted(label for kind in kinds for label in kind.labels) == sorted(layers.labels)
    assert layers.saved.recurrent.labels == layers.recurrent.labels
    assert worked.modules.uncalled.labels == ("unused",) == tuple(worked.uncalled_modules)
    assert len(worked.modules.called) == worked.num_modules
    assert worked.params.unused.labels == tuple(worked.unexecuted_param_names)
    assert set(worked.params.used.frozen.labels) == {"head.bias"}
    assert worked.buffers.overwritten.labels == ()
    assert list(worked.layers.compute.find("TANH")) == [worked["tanh_1_2"]]
    assert list(worked.params.trainable.head(1)) == [worked.params[0]]


def test_a_filtered_collection_knows_only_its_own(worked: tl.Trace) -> None:
    tanh = worked.layers["tanh_1_2"].ops
    assert "tanh_1_2:2" in tanh
    assert "linear_1_1:2" not in tanh
    with pytest.raises(LookupRefused):
        tanh["linear_1_1:2"]
    assert tanh["tanh_1_2:all"].labels() == tanh.labels


# -- records


@pytest.mark.parametrize("table", RECORDS)
def test_every_field_is_a_documented_column(table: str) -> None:
    record = RECORDS[table]
    for name in dir(record):
        field = getattr(record, name)
        if isinstance(field, Field):
            assert field.__doc__
            if isinstance(field, PassField):
                assert hasattr(RECORDS["ops"], name)
            elif isinstance(field, CallField):
                assert hasattr(RECORDS["module_calls"], name)
            else:
                assert name in COLUMNS[table]


def test_every_fact_of_a_trace_is_a_documented_column() -> None:
    facts = {name: fact for name in dir(tl.Trace) if isinstance(fact := getattr(tl.Trace, name), Field)}
    assert facts
    assert set(facts) <= set(COLUMNS["capture"])
    assert all(fact.__doc__ for fact in facts.values())


REFUSALS = (AmbiguousReadError, PayloadUnavailableError)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_field_of_every_record_reads_or_refuses_by_code(worked: tl.Trace, name: str) -> None:
    for record in getattr(worked, name):
        for field in dir(type(record)):
            if field.startswith("_"):
                continue
            try:
                getattr(record, field)
            except REFUSALS as refused:
                assert refused.code in (  # noqa: PT017  # most fields of most records do not raise
                    "gradient_not_saved",
                    "conditional_pass_ambiguous",
                    "layer_pass_ambiguous",
                    "module_call_ambiguous",
                    "module_not_called",
                    "module_output_ambiguous",
                    "parameter_not_live",
                )


def test_facades_of_one_row_are_equal_and_hash_alike(worked: tl.Trace, loaded: tl.Trace) -> None:
    assert worked["fc:2"] == worked.ops["linear_1_1:2"] == worked[3]
    assert hash(worked["fc:2"]) == hash(worked[3])
    assert worked[0] != worked[1]
    assert worked[0] != worked.layers[0]
    assert worked[0] != loaded[0]
    assert worked[0] in worked
    assert worked[0] not in loaded
    assert worked[0] != "input_1"


def test_a_record_cannot_be_changed(worked: tl.Trace) -> None:
    op: Any = worked[0]
    with pytest.raises(AttributeError):
        op.shape = (1,)
    with pytest.raises(AttributeError):
        op.something_new = 1


def test_an_op_says_what_ran(worked: tl.Trace) -> None:
    op = worked["fc:2"]
    assert isinstance(op, Op)
    assert (op.func_name, op.layer_type, op.label, op.pass_index, op.num_passes) == (
        "linear",
        "linear",
        "linear_1_1:2",
        2,
        3,
    )
    assert (op.shape, op.dtype, op.device_ref) == ((2, 4), torch.float32, "cpu")
    assert isinstance(op.activation_memory, Bytes)
    assert op.activation_memory == 32
    assert isinstance(op.func_duration, Duration)
    assert op.func_duration > 0
    assert (op.parents, op.children) == (("tanh_1_2:1",), ("tanh_1_2:2",))
    assert (op.module, op.modules) == ("fc:2", ("fc:2",))
    assert [param.address for param in op.params] == ["fc.weight", "fc.bias"]
    assert op.layer == worked.layers["linear_1_1"]
    assert op.atomic_module == worked.modules["fc"]
    assert op.input_ancestors == {"input_1"}
    assert op.parent_arg_positions == {"args": {0: "tanh_1_2:1"}, "kwargs": {}}
    assert "linear_1_1:2" in repr(op)


def test_a_module_owns_parameters_and_holds_those_of_submodules(worked: tl.Trace) -> None:
    block, root = worked.modules["blk"], worked.modules["self"]
    assert block.params.labels == root.params.labels == ()
    assert [param.address for param in block.recursive_params] == ["blk.lin.weight", "blk.lin.bias"]
    assert root.recursive_params.labels == worked.params.labels


def test_a_module_call_says_what_it_returned(worked: tl.Trace) -> None:
    head, scale = worked.module_calls["head:1"], worked.module_calls["scale:1"]
    assert (head.out_shapes, head.out_dtypes) == (((2, 3),), (torch.float32,))
    assert (head.out_shape, head.out_dtype) == ((2, 3), torch.float32)
    assert (scale.out_shapes, scale.out_dtypes) == ((), ())


def test_an_op_says_where_it_was_called(worked: tl.Trace) -> None:
    outer, inner, caller = worked["fc:2"].code_context
    assert (outer.func_qualname, inner.func_qualname) == ("Worked.forward", "Linear.forward")
    assert outer.call_line == "x = torch.tanh(self.fc(x))"
    assert outer.source_context is not None
    assert outer.source_context.strip().startswith("def forward(self, x: Tensor)")
    assert caller == worked.called_from
    assert (caller.func_name, caller.call_line, caller.source_loading_enabled) == ("capture", None, False)
    assert Path(outer.file).name == "conftest.py"
    assert worked["input_1"].ops[0].code_context == []


def test_fields_of_a_pass_are_refused_where_a_layer_has_several(worked: tl.Trace) -> None:
    assert worked.layers["linear_3_9"].label == "linear_3_9"
    assert torch.equal(worked.layers["linear_3_9"].out, worked["linear_3_9:1"].out)
    for field in ("out", "label", "func_duration", "lookup_keys", "has_saved_activation"):
        with pytest.raises(AmbiguousReadError) as caught:
            getattr(worked.layers["tanh_1_2"], field)
        assert caught.value.code == "layer_pass_ambiguous"
        assert "tanh_1_2:1" in caught.value.remedy


def test_fields_of_a_call_are_refused_where_a_module_has_several(worked: tl.Trace) -> None:
    assert torch.equal(worked.modules["head"].out, worked["head"].out)
    assert worked.modules["head"].out_shape == (2, 3)
    for address, code in (("fc", "module_call_ambiguous"), ("unused", "module_not_called")):
        with pytest.raises(AmbiguousReadError) as caught:
            _ = worked.modules[address].out
        assert caught.value.code == code
    with pytest.raises(AmbiguousReadError) as none:
        _ = worked.modules["scale"].out
    assert none.value.code == "module_output_ambiguous"


def test_a_buffer_gives_its_versions() -> None:
    model = nn.BatchNorm1d(3, momentum=0.5)
    x = torch.randn(4, 3)
    trace = tl.trace(model, x)
    mean = trace.buffers["running_mean"]
    assert torch.equal(mean.initial_value, torch.zeros(3))
    assert torch.equal(mean.final_value, model.running_mean)
    assert torch.equal(mean.value_at(2), mean.value_after(1))
    assert [op.buffer_write_kind for op in mean.versions] == [None, "fused"]
    assert mean.write_versions.labels == (mean.versions[1].label,)
    for read in (mean.value_at, mean.value_after):
        with pytest.raises(LookupRefused) as caught:
            read(3)
        assert caught.value.code == "buffer_version_out_of_range"


# -- activations


def test_a_saved_activation_is_a_fresh_connected_copy(worked: tl.Trace) -> None:
    first, again = worked["head"].out, worked["head"].out
    assert first is not again
    assert first.requires_grad
    with torch.no_grad():
        first.zero_()
    assert torch.equal(worked["head"].out, again)


def test_a_loaded_trace_reads_the_stored_bytes(worked: tl.Trace, loaded: tl.Trace) -> None:
    for op in worked.ops:
        assert torch.equal(loaded.ops[op.label].out, op.out)
    assert not loaded["head"].out.requires_grad
    assert loaded.ops.labels == worked.ops.labels


def test_an_output_reads_the_value_of_its_parent(worked: tl.Trace) -> None:
    assert torch.equal(worked["output_1"].out, worked["head"].out)
    assert torch.equal(worked["output_1"].out, worked.output)


def test_what_was_not_kept_is_refused_naming_the_op() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2), save=tl.func("relu"))
    assert torch.equal(trace["relu_1_2"].out, trace["relu_1_2:1"].out)
    assert trace.saved_ops.labels
    assert not trace["linear_1_1"].has_saved_activation
    with pytest.raises(PayloadUnavailableError) as caught:
        _ = trace["linear_1_1"].out
    assert caught.value.code == "activation_not_saved"
    assert "linear_1_1" in str(caught.value)
    assert trace["relu_1_2:1"].input_activations == (None,)


def test_the_returned_object_is_live_only(worked: tl.Trace, loaded: tl.Trace) -> None:
    assert isinstance(worked.output, Tensor)
    with pytest.raises(PayloadUnavailableError) as caught:
        _ = loaded.output
    assert caught.value.code == "output_not_stored"


def test_nothing_is_worked_out_of_the_events_for_the_returned_object() -> None:
    trace = tl.trace(nn.Linear(2, 2), torch.ones(1, 2))
    assert tuple(trace.output.shape) == (1, 2)
    assert trace.projector is not None
    assert trace.projector.built is None
    trace.cleanup()
    with pytest.raises(TraceCleanedUpError):
        _ = trace.output


# -- data frames


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_frame_has_a_row_for_each_record_and_plain_numbers(worked: tl.Trace, name: str) -> None:
    frame = getattr(worked, name).to_pandas()
    assert len(frame) == len(getattr(worked, name))
    assert tuple(frame.columns) == tabular.COLUMNS[name]
    assert set(frame.columns) <= {*COLUMNS[name], *dir(RECORDS[name]), *tabular.STATISTICS}
    assert not any(isinstance(value, Bytes | Duration) for column in frame for value in frame[column])


def test_a_filtered_frame_has_the_filtered_rows(worked: tl.Trace) -> None:
    frame = worked.layers.recurrent.to_pandas()
    assert list(frame["layer_label"]) == list(worked.layers.recurrent.labels)


def test_the_frame_of_a_trace_is_that_of_its_ops_without_what_is_large(worked: tl.Trace) -> None:
    frame, ops = worked.to_pandas(), worked.ops.to_pandas()
    assert tuple(frame.columns) == tabular.COLUMNS["trace"]
    assert frame.equals(ops[list(frame.columns)])
    assert set(ops.columns) - set(frame.columns) >= {"out", "func", "code_context", "input_activations"}
    assert all(torch.equal(out, op.out) for out, op in zip(ops["out"], worked.ops, strict=True))


def test_a_cell_that_would_be_refused_is_none_with_a_count_beside_it() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2), save=tl.func("relu"))
    frame = trace.ops.to_pandas()
    assert [out is not None for out in frame["out"]] == list(frame["has_saved_activation"])
    assert not any(grad is not None for grad in frame["grad"])
    assert list(frame["num_saved_grads"]) == [0] * len(frame)


def test_a_frame_shows_settings_as_python_values(worked: tl.Trace) -> None:
    frame = worked.ops.to_pandas()
    chunk = frame[frame["label"] == "chunk_1_6"].iloc[0]
    assert chunk["non_tensor_pos_args"] == [2, 1]
    assert chunk["parent_arg_positions"] == {"args": {0: "relu_1_4:2"}, "kwargs": {}}
    assert chunk["func"] is worked["chunk_1_6"].func
    assert chunk["func_autocast_state"] == {"grad_enabled": True, "inference_mode": False}


# -- the life of a trace


def test_after_cleanup_every_read_is_refused() -> None:
    trace = tl.trace(nn.Linear(2, 2), torch.ones(1, 2))
    op, ops = trace[1], trace.ops
    trace.cleanup()
    trace.cleanup()
    reads = (
        lambda: trace.ops,
        lambda: trace.layers,
        lambda: trace.output,
        lambda: trace.status,
        lambda: trace.health,
        lambda: trace["linear_1_1"],
        lambda: trace[0],
        lambda: trace.summary(),
        lambda: trace.fingerprint,
        lambda: list(trace.events()),
        lambda: len(trace),
        lambda: op.shape,
        lambda: op.out,
        lambda: ops[0].label,
        lambda: list(ops),
        lambda: trace.check_metadata_invariants(),
    )
    for read in reads:
        with pytest.raises(TraceCleanedUpError) as caught:
            read()
        assert caught.value.code == "trace_cleaned_up"
    assert not hasattr(trace, "ops")
    assert repr(trace) == "<Trace, cleaned up>"


def test_a_partial_trace_reads_like_any_other() -> None:
    def model(x: Tensor) -> Tensor:
        x = torch.sin(x)
        raise ValueError("no further")

    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(model, torch.ones(2))
    partial = caught.value.partial_trace
    assert partial is not None
    assert partial.ops.labels == ("input_1", "sin_1_1")
    assert partial.outcome.status == partial.status == "failed"
    assert partial.outcome.partial
    assert partial.error == "builtins.ValueError: no further"
    assert "partial_trace" not in caught.value.fields
    with pytest.raises(PayloadUnavailableError) as none:
        _ = partial.output
    assert none.value.code == "output_not_stored"
    assert partial.health.notes


def test_islands_are_shown_where_they_were_asked_for() -> None:
    def model(x: Tensor) -> Tensor:
        torch.ones(3).mul(2)
        return x + 1

    assert len(tl.trace(model, torch.ones(2)).orphans) == 0
    kept = tl.trace(model, torch.ones(2), capture=tl.CaptureOptions(keep_orphans=True))
    assert [op.func_name for op in kept.orphans] == ["ones", "mul"]
    assert all(op.is_orphan for op in kept.orphans)
    assert torch.equal(kept.orphans[1].out, torch.full((3,), 2.0))
    assert kept.orphans[0] != kept.ops[0]
    assert len(kept.orphans.to_pandas()) == 2
    assert isinstance(kept.orphans[0], Record)


def test_quantities_keep_their_class_and_print_their_unit() -> None:
    assert repr(Bytes(1536)) == "Bytes('1.5 KB')"
    assert isinstance(sum([Bytes(1), Bytes(2)]), Bytes)
    assert isinstance(Bytes(2) * 3, Bytes)
    assert isinstance(2 * Duration(0.5) - Duration(0.5), Duration)
    assert repr(Duration(0.0312)) == "Duration('31.2 ms')"
    assert f"{Bytes(2048)} {Bytes(2048):d}" == "2.0 KB 2048"


def test_arguments_come_back_as_python_values() -> None:
    def model(x: Tensor) -> Tensor:
        return x[..., 1:].to(torch.float64).transpose(0, 1).flatten(start_dim=0).clamp(min=-1, max=2.5)

    ops = {op.layer_type: op for op in tl.trace(model, torch.ones(2, 3)).ops}
    assert ops["getitem"].non_tensor_pos_args == [(..., slice(1, None, None))]
    assert ops["to"].non_tensor_pos_args == [torch.float64]
    assert ops["transpose"].non_tensor_pos_args == [0, 1]
    assert ops["flatten"].non_tensor_kwargs == {"start_dim": 0}
    assert ops["clamp"].non_tensor_kwargs == {"min": -1, "max": 2.5}


def test_a_frame_without_pandas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(torch.nn.ReLU(), torch.ones(1))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tl.TorchLensError) as refused:
        trace.ops.to_pandas()
    assert refused.value.code == "pandas_not_installed"


def test_a_module_whose_forward_was_left_on_purpose_has_no_duration() -> None:
    trace = tl.trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), torch.ones(1), stop_after="0")
    assert trace.modules["self"].total_forward_duration is None
    assert trace.modules["0"].total_forward_duration > 0


def test_what_is_found_and_the_first_members_are_collections_again(worked: tl.Trace) -> None:
    found = worked.ops.find("RELU")
    assert found.labels == tuple(label for label in worked.ops.labels if "relu" in label)
    assert worked.ops.compute.find("relu").head(1).labels == found.labels[:1]
    assert worked.modules.head(2).labels == worked.modules.labels[:2]
    assert len(found.to_pandas()) == len(found)
