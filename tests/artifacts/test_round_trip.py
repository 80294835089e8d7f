"""What was captured is what is loaded: records, tensors and questions, at each level."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from projections import CaptureTables
from projections.stored.encoding import Encoder
from torchlens.errors import TorchLensError
from torchlens.tlspec.asked import SaveAsked


class Model(nn.Module):
    """A loop, a buffer that is written, a branch, and a call that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(4, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(0.5),
            nn.Linear(6, 2),
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.norm(self.first(x))
        for _ in range(3):
            x = torch.tanh(x) * 0.5
        if x.sum() > 100:
            x = -x
        return {"y": self.last(self.drop(x)), "x": x}


def captured(**capture: Any) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Model(), torch.randn(3, 4, requires_grad=True), capture=tl.CaptureOptions(**capture), name="it")


def digests(tables: CaptureTables) -> dict[str, dict[str, str]]:
    """By table and column."""
    encoder = Encoder(tables)
    encoded = [encoder.table(table).summary for table in tables.all.values()]
    return {table.name: {name: digest.hex() for name, digest in table.columns.items()} for table in encoded}


def code_of(read: Any) -> str | None:
    try:
        read()
    except TorchLensError as refused:
        return refused.code
    return None


def test_everything_of_a_forward_is_there_again(tmp_path: Path) -> None:
    trace = captured(save_arg_values=True, save_rng_states=True)
    trace.save(tmp_path / "a.tlspec", level="executable_with_callables")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert loaded.fingerprint == trace.fingerprint
    assert digests(loaded.tables) == digests(trace.tables)
    for op in trace.ops:
        again = loaded.ops[op.label]
        assert torch.equal(again.out, op.out)
        assert again.out.dtype == op.out.dtype
        for one, other in zip(again.saved_args or (), op.saved_args or (), strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert loaded.check_metadata_invariants()


@pytest.mark.parametrize("level", ["portable", "audit"])
def test_what_is_loaded_and_saved_again_is_the_same_byte_for_byte(tmp_path: Path, level: str) -> None:
    captured().save(tmp_path / "a.tlspec", level=level)
    tl.load(tmp_path / "a.tlspec").save(tmp_path / "b.tlspec", level=level)
    assert contents(tmp_path / "a.tlspec") == contents(tmp_path / "b.tlspec")


def test_what_is_loaded_and_saved_with_less_is_as_if_it_had_been_saved_so(tmp_path: Path) -> None:
    trace = captured(save_arg_values=True)
    trace.save(tmp_path / "a.tlspec", level="executable_with_callables")
    tl.load(tmp_path / "a.tlspec").save(tmp_path / "b.tlspec", level="audit")
    trace.save(tmp_path / "c.tlspec", level="audit")
    assert contents(tmp_path / "b.tlspec") == contents(tmp_path / "c.tlspec")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_audit_artifact_says_of_no_tensor_that_it_is_there(tmp_path: Path) -> None:
    trace = captured(save_arg_values=True)
    trace.save(tmp_path / "a.tlspec", level="audit")
    audit = tl.load(tmp_path / "a.tlspec")
    assert not any(op.has_saved_activation or op.has_saved_args for op in audit.ops)
    assert {code_of(lambda op=op: op.out) for op in audit.ops} == {"payload_unavailable"}
    assert {code_of(lambda op=op: op.saved_args) for op in audit.ops} == {"payload_unavailable"}
    assert {op.transformed_out for op in audit.ops} == {None}  # as in the capture, which made nothing
    for read in (lambda: audit.raw_input, lambda: audit.raw_output, lambda: audit.ops[1].input_activations):
        assert code_of(read) == "payload_unavailable"
    assert audit.ops[0].input_activations == ()
    assert [op.var_names for op in audit.ops] == [op.var_names for op in trace.ops]
    assert audit.ops["mul_1_5:2"].var_names == ["x"]
    assert audit.check_metadata_invariants()
    assert not [path for path in (tmp_path / "a.tlspec").rglob("*.safetensors") if path.stat().st_size > 100_000]


def test_states_of_generators_are_refused_where_there_were_any(tmp_path: Path) -> None:
    captured().save(tmp_path / "a.tlspec")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert {op.func_name for op in loaded.ops if code_of(lambda op=op: op.func_rng_states) is not None} == {"dropout"}
    assert code_of(lambda: loaded["dropout"].func_rng_states) == "payload_unavailable"
    assert loaded["linear_1_1"].func_rng_states == {}
    captured(save_rng_states=True).save(tmp_path / "b.tlspec")
    asked = tl.load(tmp_path / "b.tlspec")
    assert code_of(lambda: asked["linear_1_1"].func_rng_states) == "payload_unavailable"
    assert asked.ops[0].func_rng_states == {}


def test_what_save_made_of_activations_is_refused_where_it_made_something(tmp_path: Path) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2), save=tl.SaveOptions(transform=lambda kept: kept[:1]))
    trace.save(tmp_path / "a.tlspec", level="audit")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert trace["relu"].transformed_out is not None
    assert code_of(lambda: loaded["relu"].transformed_out) == "payload_unavailable"


def test_questions_are_answered_as_by_the_capture(tmp_path: Path) -> None:
    trace = captured()
    trace.save(tmp_path / "a.tlspec")
    loaded = tl.load(tmp_path / "a.tlspec")
    for query in (tl.func("tanh"), tl.in_module("first"), tl.label("mul_1_5:2"), tl.top_k(k=5), tl.contains("tanh")):
        assert loaded[query].labels() == trace[query].labels()
    assert loaded["tanh_1_4:last"].label == trace["tanh_1_4:last"].label
    assert str(loaded.why("output_1")) == str(trace.why("output_1"))
    assert str(loaded.first_nonfinite()) == str(trace.first_nonfinite())
    assert loaded.to_pandas().equals(trace.to_pandas())
    assert str(tl.report.cost_tree(loaded)) == str(tl.report.cost_tree(trace))
    assert str(loaded.summary()) == str(trace.summary())
    assert loaded.raw_output.keys() == {"y", "x"}
    assert loaded.as_of(20).counts == trace.as_of(20).counts


def test_what_lives_in_the_process_that_captured_is_refused(tmp_path: Path) -> None:
    captured().save(tmp_path / "a.tlspec")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert code_of(lambda: loaded.output) == "output_not_stored"
    assert code_of(lambda: loaded.backward(torch.ones(()))) == "run_capability_unavailable"
    assert code_of(lambda: loaded.capture_backward()) == "run_capability_unavailable"
    assert code_of(lambda: loaded.params[0].value) == "parameter_not_live"
    assert code_of(lambda: loaded.journal.open_stream(loaded.opened)) == "artifact_read_only"
    assert code_of(lambda: loaded.journal.continue_stream(loaded.stream)) == "artifact_read_only"
    assert code_of(lambda: loaded.table("backward_passes").column("dispatched_rows")) is None
    loaded.cleanup()
    assert code_of(lambda: loaded.ops) == "trace_cleaned_up"
    assert code_of(lambda: loaded.save(tmp_path / "b.tlspec")) == "trace_cleaned_up"


def test_a_journal_is_made_of_an_artifact(tmp_path: Path) -> None:
    trace = captured()
    trace.save(tmp_path / "a.tlspec")
    tl.load(tmp_path / "a.tlspec").journal.copy_to(tmp_path / "j")
    again = tl.load(tmp_path / "j")
    assert torch.equal(again.ops[3].out, trace.ops[3].out)
    assert again.ops.labels == trace.ops.labels


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"level": "whole"}, "artifact_save_level_invalid"),
        ({"level": "audit", "include_outs": True}, "save_payload_level_conflict"),
        ({"level": "audit", "include_weights": True}, "save_payload_level_conflict"),
        ({"include_activations": True}, "save_payload_level_conflict"),
        ({"level": "executable_with_callables", "include_saved_args": False}, "save_payload_level_conflict"),
        ({"include_outs": "yes"}, "option_value_invalid"),
        ({"overwrite": 1}, "option_value_invalid"),
        ({"level": "runnable"}, "sparse_preflight_failed"),
        ({"strict": 0}, "option_value_invalid"),
    ],
)
def test_options_that_contradict_the_level_are_refused(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    assert code_of(lambda: trace.save(tmp_path / "a.tlspec", **options)) == code
    assert not (tmp_path / "a.tlspec").exists()


def test_both_saves_take_the_same_options_and_no_others(tmp_path: Path) -> None:
    (_, *of_trace), (_, *of_function) = (
        inspect.signature(verb).parameters.values() for verb in (tl.Trace.save, tl.save)
    )
    assert of_trace == of_function
    assert [one.name for one in of_trace] == ["path", *SaveAsked.__annotations__]
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    with pytest.raises(TypeError, match="include_nothing"):
        trace.save(tmp_path / "a.tlspec", include_nothing=True)


def test_options_narrow_a_level(tmp_path: Path) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    trace.save(tmp_path / "a.tlspec", include_outs=False, include_source=False)
    assert not any(op.has_saved_activation for op in tl.load(tmp_path / "a.tlspec").ops)


class Sparse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.sum(x.to_sparse() * 2)


def test_a_tensor_without_bytes_is_refused_or_left_out_and_told(tmp_path: Path) -> None:
    trace = tl.trace(Sparse(), torch.eye(3))
    assert code_of(lambda: trace.save(tmp_path / "a.tlspec")) == "payload_without_bytes"
    with pytest.warns(tl.errors.TorchLensWarning, match=r"sparse.*\.out") as told:
        trace.save(tmp_path / "a.tlspec", strict=False)
    assert [str(one.message).count("payloads_left_out") for one in told] == [1]
    loaded = tl.load(tmp_path / "a.tlspec")
    assert code_of(lambda: loaded.ops[1].out) == "activation_not_stored"
    assert loaded.ops["output_1"].out == 6


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j")
    trace.save(tmp_path / "a")  # an artifact is known by its manifest, not by its name
    trace.cleanup()
    assert code_of(lambda: tl.load(tmp_path / "a", capture=0)) == "load_option_not_applicable"
    assert code_of(lambda: tl.load(tmp_path / "j", lazy=True)) == "load_option_not_applicable"
    assert code_of(lambda: tl.load(tmp_path / "j", map_location="cpu")) == "load_option_not_applicable"
    assert code_of(lambda: tl.load(tmp_path / "none.tlspec")) == "manifest_missing"
    assert code_of(lambda: tl.save(nn.ReLU(), tmp_path / "b")) == "save_type_invalid"
    assert tl.load(tmp_path / "a").ops.labels == tl.load(tmp_path / "j", capture=0).ops.labels


def test_a_save_gives_the_absolute_path_and_a_tilde_is_somebodys_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    assert trace.save("~/one.tlspec") == tmp_path / "one.tlspec"
    assert tl.save(trace, "two") == tmp_path / "two"
    assert tl.load("~/one.tlspec").ops.labels == tl.load("~/two").ops.labels == trace.ops.labels
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.tlspec", "two"]


@pytest.mark.parametrize("lazy", ["no", 1])
def test_lazy_is_true_or_false(tmp_path: Path, lazy: Any) -> None:
    path = tl.trace(nn.ReLU(), torch.ones(2)).save(tmp_path / "it.tlspec")
    assert code_of(lambda: tl.load(path, lazy=lazy)) == "option_value_invalid"
