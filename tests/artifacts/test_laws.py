"""Laws over random models: what is loaded is what was captured, at every level, and what is not is refused by code."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchlens as tl
from projections.stored.artifact_tables import ACCOUNTED, OF_PASSES
from tests.artifacts.test_round_trip import Model, digests
from tests.torchlens.test_laws_over_captures import kept
from torchlens.reading.fields import Record, public_names
from torchlens.testing import Program, programs

LEFT_OUT: Final[Mapping[str, str]] = {
    "portable": "argument generator",
    "audit": "activation argument generator gradient",
    "executable_with_callables": "",
}
"""By level, the kinds of payloads that it leaves out."""


def tells(**columns: str) -> Mapping[str, frozenset[str]]:
    return {table: frozenset(names.split()) for table, names in columns.items()}


OF_GRADIENT = "has_grad save_grads gradient_memory grad_shape grad_dtype"

TELL: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "activation": tells(
        ops="has_saved_activation has_saved_payload payload_ref transformed_payload_ref transformed_out_shape"
        " transformed_out_dtype input_activations",
        layers="has_saved_activation has_saved_payload",
        buffers="has_saved_activation",
        capture="saved_ops saved_layers saved_rows saved_activation_memory",
    ),
    "argument": tells(
        ops="has_saved_args arguments_event",
        module_calls="has_saved_forward_args arguments_event hooks_arguments_event",
    ),
    "generator": tells(ops="rng_payload rng_states"),
    "gradient": tells(
        ops=f"{OF_GRADIENT} num_saved_grads gradient_rows",
        layers="has_grad save_grads total_gradient_memory",
        modules="total_output_gradient_memory total_internal_gradient_memory",
        module_calls="output_gradient_memory internal_gradient_memory",
        params="gradient_rows grads",
        buffers=OF_GRADIENT,
        grad_fns="has_saved_call",
        grad_fn_calls="grad_outputs grad_inputs grad_outputs_like grad_inputs_like is_saved",
        capture="saved_grad_ops saved_grad_rows saved_gradient_memory",
    ),
}
"""By kind of payload, the columns and fields that tell of it, which change where it is left out; so does the whole
table of gradients."""


def may_differ(level: str) -> Mapping[str, frozenset[str]]:
    made: dict[str, frozenset[str]] = {"orphans": frozenset()}
    for kind in LEFT_OUT[level].split():
        for table, names in TELL[kind].items():
            made[table] = made.get(table, frozenset()) | names
    made["orphans"] |= made.get("ops", frozenset())
    made["backward_passes"] = made.get("backward_passes", frozenset()) | frozenset(ACCOUNTED)
    return made


def check_columns(live: tl.Trace, loaded: tl.Trace, level: str) -> None:
    mine, theirs, apart = digests(live.tables), digests(loaded.tables), may_differ(level)
    assert mine.keys() == theirs.keys()
    for table in mine.keys() - {"dispatched_ops"}:
        if table == "gradients" and "gradient" in LEFT_OUT[level]:
            continue
        lacks = mine[table].keys() - theirs[table].keys()
        assert lacks <= OF_PASSES.get(table, frozenset()), table
        differ = {name for name, digest in theirs[table].items() if mine[table][name] != digest}
        assert differ <= apart.get(table, frozenset()), (level, table, differ - apart.get(table, frozenset()))


def check_tensors(live: tl.Trace, loaded: tl.Trace) -> None:
    for op in live.ops:
        if op.has_saved_activation:
            again, mine = loaded.ops[op.ordinal_index].out, op.out
            assert again.dtype == mine.dtype
            assert torch.equal(bits(again), bits(mine)), op.label
    for mine, theirs in zip(live.autograd.gradients, loaded.autograd.gradients, strict=True):
        if mine.is_saved:
            assert torch.equal(bits(mine.grad), bits(theirs.grad)), mine


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else plain


def traced(program: Program, *, backward: bool) -> tl.Trace:
    capture = tl.CaptureOptions(
        save_arg_values=True, save_rng_states=True, save_grads=True if backward else None, keep_orphans=True
    )
    trace = kept(program, capture=capture)
    if backward:
        run_backward(trace)
    return trace


def run_backward(trace: tl.Trace) -> None:
    """A backward from whatever may have one; it may raise, as where the model wrote to what it needs."""
    if trace.status != "complete":
        return
    for op in trace.output_ops:
        if op.has_saved_activation and op.out.requires_grad and not op.out.is_complex():
            with contextlib.suppress(RuntimeError):
                trace.backward(op.out.sum())
            return


@given(programs(), st.sampled_from(sorted(LEFT_OUT)), st.booleans())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_columns_and_tensors_are_those_of_the_capture_at_every_level(
    tmp_path_factory: pytest.TempPathFactory, program: Program, level: str, backward: bool
) -> None:
    folder = tmp_path_factory.mktemp("law")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = traced(program, backward=backward)
        trace.save(folder / "a.tlspec", level=level, strict=False)
        loaded = tl.load(folder / "a.tlspec")
        check_columns(trace, loaded, level)
        assert loaded.fingerprint == trace.fingerprint_at(level)
        assert loaded.check_metadata_invariants()
        if level != "audit":
            check_tensors(trace, loaded)
        loaded.save(folder / "b.tlspec", level=level, strict=False)
    for path in sorted((folder / "a.tlspec").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (folder / "b.tlspec" / path.relative_to(folder / "a.tlspec")).read_bytes()
    trace.cleanup()


# -- every field of every record

LIVE: Final = frozenset(("func", "handle", "cls", "grad_fn_handle", "value_basis", "autograd"))
"""What belongs to the process that captured, or has records of its own."""

WITHIN: Final = {"layers": "ops", "modules": "module_calls"}
"""The record of one pass or call, whose fields a record of several has too."""

REFUSED: Final = frozenset(
    (
        *("payload_unavailable", "output_not_stored", "run_capability_unavailable", "parameter_not_live"),
        *("aten_ops_not_stored", "grad_fn_fire_timing_unavailable", "diary_not_stored", "column_not_stored"),
    )
)
"""Codes by which a loaded trace may refuse what the live one answers; all stand in docs/artifacts.md."""


def cell(record: object, name: str) -> tuple[str, object]:
    try:
        value = getattr(record, name)
    except tl.TorchLensError as exc:
        return "refused", exc.code
    if callable(value):
        return "is", "method"
    return "is", plain(value)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), bits(value).tolist()
    if isinstance(value, Record):
        return type(value).__name__, value.row
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if hasattr(value, "rows") and hasattr(value, "table_name"):
        return value.table_name, list(value.rows)
    return repr(value)


def fields_of(record: Record) -> Iterator[str]:
    yield from (name for name in public_names(type(record)) if name not in LIVE and name != "trace")


def check_fields(live: tl.Trace, loaded: tl.Trace, level: str) -> set[str]:
    """Every public field of every record; the codes by which some were refused."""
    apart, refused = may_differ(level), set[str]()
    names = ("ops", "layers", "modules", "module_calls", "params", "buffers", "conditionals", "orphans")
    of_autograd = ("grad_fns", "grad_fn_calls", "backward_passes", "gradients", "explanations")
    for table in (*names, *of_autograd):
        if table == "gradients" and "gradient" in LEFT_OUT[level]:
            continue
        mine_of, theirs_of = ((one if table in names else one.autograd) for one in (live, loaded))
        told = apart.get(table, frozenset()) | apart.get(WITHIN.get(table, ""), frozenset())
        for mine, theirs in zip(getattr(mine_of, table), getattr(theirs_of, table), strict=True):
            for name in fields_of(mine):
                one, other = cell(mine, name), cell(theirs, name)
                if other[0] == "refused" and one != other:
                    assert other[1] in REFUSED, (level, table, name, one, other)
                    refused.add(str(other[1]))
                elif name not in told and name not in apart["orphans"]:
                    assert one == other, (level, table, name, mine)
    return refused


@pytest.mark.parametrize("level", sorted(LEFT_OUT))
def test_every_field_of_every_record_is_the_same_or_refused_by_code(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    capture = tl.CaptureOptions(
        save_arg_values=True, save_grads=True, backward_ready=True, measure_autograd_memory=True
    )
    trace = tl.trace(Model(), torch.randn(3, 4, requires_grad=True), capture=capture)
    trace.backward(trace.output["y"].sum())
    trace.save(tmp_path / "a.tlspec", level=level)
    refused = check_fields(trace, tl.load(tmp_path / "a.tlspec"), level)
    assert refused >= {"aten_ops_not_stored", "grad_fn_fire_timing_unavailable", "parameter_not_live"}
    assert ("payload_unavailable" in refused) is (level != "executable_with_callables")
