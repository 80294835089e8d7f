"""Recordings: what was kept, by the labels from while the model ran, and the trace that comes of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from projections import fingerprint
from projections.columns import OCCASION
from tests.torchlens.conftest import Worked, capture
from torchlens.testing import Program, programs


def recorded(save: Any, **options: Any) -> tl.Recording:
    torch.manual_seed(0)
    return tl.record(Worked(), torch.randn(2, 4), save=save, **options)


def cells(trace: tl.Trace) -> dict[tuple[str, str], list[Any]]:
    """Every column that does not tell of the occasion."""
    return {
        (name, column): list(table.column(column))
        for name, table in trace.tables.all.items()
        for column in table.names
        if column not in OCCASION.get(name, ())
    }


saves = st.sampled_from(
    ["all", "linear", "relu", "block_1", -1, [0, "dropout"], tl.func("tanh"), tl.in_module("block_1")]
)


def seeded(program: Program) -> Any:
    torch.manual_seed(program.seed)
    random.seed(program.seed)
    np.random.seed(program.seed)
    return program.build()


@pytest.mark.filterwarnings("ignore:.*save_matched_nothing")
@given(programs(), saves, st.booleans())
@settings(max_examples=40)
def test_the_trace_of_a_recording_is_the_trace_of_the_same_request(
    tmp_path: Path, program: Program, save: Any, on_disk: bool
) -> None:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.journal"
    options: dict[str, Any] = {"journal": path} if on_disk else {}
    recording = tl.record(*seeded(program), save=save, on_forward_error="return_partial", **options)
    try:
        traced = tl.trace(*seeded(program), save=save)
    except tl.TraceCaptureError as raised:
        traced = raised.partial_trace
    mine, theirs = cells(recording.to_trace()), cells(traced)
    assert mine.keys() == theirs.keys()
    # On disk, views share the bytes of one payload.
    assert [name for name in theirs if name[1] != "payload_ref" and mine[name] != theirs[name]] == []
    kept = {op.raw_label: op for op in traced.saved_ops if not op.is_output and op.func_name != "identity"}
    assert kept.keys() <= {record.label for record in recording}
    for record in recording:
        op = kept.get(record.label)
        if op is not None:
            if op.func_name != "empty":  # whatever was in that memory
                assert torch.equal(record.out, op.out) or op.out.isnan().any()
            assert (record.func_name, record.shape, record.dtype) == (op.func_name, op.shape, op.dtype)
            assert (record.module, record.pass_index) == (op.module, op.pass_index)
    recording.cleanup()


def test_a_recording_is_a_sequence_of_what_was_kept() -> None:
    recording = recorded(["fc", tl.func("chunk"), "scale.factor"])
    labels = [record.label for record in recording]
    assert labels == [record.label for record in recording.records]
    assert [record.layer_type for record in recording] == ["linear"] * 3 + ["buffer"] + ["chunk"] * 2
    assert len(recording) == recording.n_records == 6
    assert recording[0] == recording[labels[0]]
    assert recording[-2:] == [recording[4], recording[5]]
    assert [record.output_index for record in recording[-2:]] == [0, 1]
    assert [record.kind for record in recording[2:5]] == ["op", "buffer", "op"]


def test_members_are_found_by_module_pass_and_label() -> None:
    recording = recorded("all")
    fc = recording.by_address("fc")
    assert [record.module for record in fc] == ["fc:1", "fc:2", "fc:3"]
    assert [record.pass_index for record in fc] == [1, 2, 3]
    assert [record.layer_type for record in recording.by_pass(3)] == ["linear", "tanh"]
    assert recording.by_pass(3)[0] == fc[2]
    assert recording.n_passes == 3
    assert {record.layer_type for record in recording.by_address("self")} == {"input", "tanh", "chunk", "add"}
    assert recording.by_address("scale.factor")[0].kind == "buffer"
    assert fc[1].parents == (recording.by_address("self")[1].label,)
    for asked in (recording.by_address, recording.__getitem__):
        with pytest.raises(tl.TorchLensError, match="did you mean 'scale'") as caught:
            asked("scalee")
        assert caught.value.code == "record_lookup_not_found"


def test_a_module_finds_what_it_returned_and_what_ran_in_the_modules_inside() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.Identity()))
    recording = tl.record(model, torch.ones(1, 2), save=["0", "1"])
    assert [record.address for record in recording] == ["0.1", "1.0"]
    assert recording.by_address("0") == recording.by_address("0.1") == [recording["0"]] == [recording["0.1"]]
    assert recording["1"].out.shape == (1, 2)
    assert recording.by_address("0.0") == []
    with pytest.raises(tl.TorchLensError, match="activation_not_saved"):
        recording["0.0"]
    everything = tl.record(model, torch.ones(1, 2), save="all")
    assert [record.layer_type for record in everything.by_address("0")] == ["linear", "relu"]


def test_what_was_not_selected_is_refused_and_what_is_no_op_is_not_found() -> None:
    recording = recorded(tl.func("relu"))
    tanh = recorded(tl.func("tanh"))[0].label
    for key, code in ((tanh, "activation_not_saved"), ("relu_1_4", "record_lookup_not_found")):
        with pytest.raises(tl.TorchLensError) as refused:
            _ = recording[key]
        assert refused.value.code == code
    with pytest.raises(IndexError) as out_of_range:
        _ = recording[2]
    assert getattr(out_of_range.value, "code", None) == "record_lookup_index_out_of_range"
    with pytest.raises(tl.TorchLensError) as refused:
        _ = recording.to_trace()["tanh_1_2:1"].out
    assert refused.value.code == "activation_not_saved"


def test_nothing_is_folded_before_something_is_read() -> None:
    recording = recorded(tl.func("relu"))
    assert recording._trace.projector is not None
    assert recording._trace.projector.built is None
    assert recording[0].out.shape == (2, 4)
    assert recording._trace.projector.built is not None


@pytest.mark.parametrize("save", [None, "none", [], (), tl.SaveOptions([]), tl.SaveOptions("none")])
def test_a_recording_of_nothing_is_refused(save: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        recorded(save)
    assert refused.value.code == "recording_nothing_requested"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"on_forward_error": "ignore"}, "on_forward_error_invalid"),
        ({"save_rng_states": True}, "trace_forward_kwargs_unrouted"),
        ({"backend": "jax"}, "unknown_backend"),
    ],
)
def test_an_option_that_a_recording_does_not_serve_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        recorded("fc", **options)
    assert refused.value.code == code


def test_a_failing_predicate_is_blamed_and_what_ran_is_told() -> None:
    with pytest.raises(tl.errors.ConfigurationError) as refused:
        recorded(lambda facts: facts.func_name == "linear" and facts.nothing)
    assert refused.value.code == "predicate_evaluation_failed"
    assert isinstance(refused.value.__cause__, AttributeError)
    assert refused.value.partial_trace.ops.labels == ("input_1", "linear_1_1")


def fails(x: Tensor) -> Tensor:
    x = x.relu()
    raise ValueError("no")


def test_a_forward_that_fails_gives_what_came_before_one_way_or_the_other() -> None:
    with pytest.raises(ValueError, match="no") as raised:
        tl.record(fails, torch.ones(2), save="all")
    assert raised.value.partial_trace.ops.labels == ("input_1", "relu_1_1")
    recording = tl.record(fails, torch.ones(2), save="all", on_forward_error="return_partial")
    assert recording.status == "failed"
    assert [record.layer_type for record in recording] == ["input", "relu"]
    assert recording.to_trace().is_partial


def test_a_halted_forward_tells_where() -> None:
    recording = recorded("all", stop_after="blk")
    assert recording.halted
    assert recording.outcome.status == "halted"
    assert recording.halt_reason == "blk"
    assert recording[-1].func_name == "relu"


def test_a_backward_was_not_asked_for_and_the_loss_is_on_the_graph() -> None:
    recording = recorded("head")
    with pytest.raises(tl.errors.CaptureError) as refused:
        recording.backward(recording.output.sum())
    assert refused.value.code == "recording_backward_not_requested"
    recording[0].out.sum().backward()


def test_a_recording_keeps_as_save_options_say_and_where_storage_says(tmp_path: Path) -> None:
    save = tl.SaveOptions("fc", transform=lambda t: t.mean(0))
    recording = recorded(save, storage=tl.to_disk(tmp_path / "j"))
    assert [record.transformed_out.shape for record in recording] == [(4,)] * 3
    with pytest.raises(tl.TorchLensError, match="activation_not_saved"):
        _ = recording[0].out
    assert torch.equal(recording[1].transformed_out, capture()["linear_1_1:2"].out.mean(0))


def test_reports_say_what_was_kept() -> None:
    recording = recorded(tl.func("relu") | tl.func("chunk"))
    assert repr(recording) == "<Recording Worked: 4 activations, complete>"
    assert str(recording.summary()).splitlines() == [
        "<Recording Worked: 4 activations, complete>, save=(func('relu') | func('chunk'))",
        "  relu       2  64 B",
        "  chunk      2  32 B",
    ]
    frame = pytest.importorskip("pandas") and recording.to_pandas()
    assert list(frame["label"]) == [record.label for record in recording]


def test_a_recording_and_its_trace_are_cleaned_up_together() -> None:
    recording = recorded("fc")
    trace = recording.to_trace()
    recording.cleanup()
    recording.cleanup()
    assert trace.is_cleaned_up
    assert repr(recording) == "<Recording, cleaned up>"
    with pytest.raises(tl.TorchLensError) as refused:
        recording.to_trace()
    assert refused.value.code == "trace_cleaned_up"


def test_a_stored_recording_reads_back_as_a_trace(tmp_path: Path) -> None:
    recorded("fc", journal=tmp_path / "run.journal").cleanup()
    again = tl.load(tmp_path / "run.journal")
    assert [op.label for op in again.saved_ops] == ["linear_1_1:1", "linear_1_1:2", "linear_1_1:3"]
    assert fingerprint(again.tables) == again.fingerprint
    again.cleanup()
