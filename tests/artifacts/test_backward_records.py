"""What backward passes left is loaded as it was: records, gradients, and what their operators add up to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from tests.artifacts.test_round_trip import code_of, contents, digests
from torchlens.errors import TorchLensWarning
from torchlens.report import backward_status, cost_tree
from torchlens.testing import check_trace


class Model(nn.Module):
    """A loop, a checkpoint, and a parameter that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.relu(self.first(x))
        return self.last(checkpoint(self.first, x, use_reentrant=False))


class Pair(NamedTuple):
    live: tl.Trace
    loaded: tl.Trace
    folder: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    torch.manual_seed(0)
    trace = tl.trace(
        Model(),
        torch.randn(3, 4, requires_grad=True),
        capture=tl.CaptureOptions(save_grads=tl.func("relu") | tl.grad_fn("addmm"), backward_ready=True),
    )
    trace.backward(trace.output.sum(), retain_graph=True)
    (trace.output**2).sum().backward()
    folder = tmp_path_factory.mktemp("artifact") / "a.tlspec"
    trace.save(folder)
    yield Pair(trace, tl.load(folder), folder)
    trace.cleanup()


def test_every_record_of_a_backward_is_there_again(pair: Pair) -> None:
    live, loaded = digests(pair.live.tables), digests(pair.loaded.tables)
    of_passes = {"backward_passes": {"dispatched_rows"}, "grad_fn_calls": {"dispatched_rows", "backward_duration"}}
    renumbered = {"backward_passes": {"unattributed_rows", "other_trace_rows"}}
    for table in live.keys() - {"dispatched_ops"}:
        assert live[table].keys() - loaded[table].keys() == of_passes.get(table, set())
        differ = {name for name, digest in loaded[table].items() if live[table][name] != digest}
        assert differ <= renumbered.get(table, set())
    assert pair.loaded.check_metadata_invariants()


def test_gradients_are_there_again(pair: Pair) -> None:
    for op in pair.live.ops:
        for mine, theirs in zip(op.autograd.grads, pair.loaded.ops[op.label].autograd.grads, strict=True):
            assert torch.equal(mine.grad, theirs.grad)
    assert pair.live.ops["relu_1_2:1"].autograd.num_saved_grads == 2
    for mine, theirs in zip(pair.live.autograd.grad_fn_calls, pair.loaded.autograd.grad_fn_calls, strict=True):
        for side in ("grad_outputs", "grad_inputs"):
            one, other = getattr(mine, side), getattr(theirs, side)
            assert (one is None) is (other is None)
            for a, b in zip(one or (), other or (), strict=True):
                assert (a is None and b is None) or torch.equal(a, b)
    assert str(pair.loaded.health.gradients) == str(pair.live.health.gradients)


def test_what_operators_add_up_to_is_there_again(pair: Pair) -> None:
    mine, theirs = backward_status(pair.live), backward_status(pair.loaded)
    assert str(theirs) == str(mine)
    assert theirs.executed_flops
    for one, other in zip(mine.flops_attributions, theirs.flops_attributions, strict=True):
        assert one.rows == other.rows
        assert one.flops_by_op() == other.flops_by_op()
        assert one.unattributed_flops == other.unattributed_flops
        assert [op.name for op in one.unattributed_ops] == [op.name for op in other.unattributed_ops]
        assert repr(one) == repr(other)
    assert str(cost_tree(pair.loaded)) == str(cost_tree(pair.live))
    assert cost_tree(pair.loaded).to_pandas().equals(cost_tree(pair.live).to_pandas())


def test_what_only_events_of_a_backward_tell_is_refused(pair: Pair) -> None:
    autograd = pair.loaded.autograd
    one, call = autograd.backward_passes[0], autograd.grad_fn_calls[0]
    refused: dict[str, Any] = {
        "aten_ops_not_stored": (lambda: one.aten_ops, lambda: call.aten_ops, lambda: autograd.dispatched_ops),
        "grad_fn_fire_timing_unavailable": (lambda: autograd.grad_fn_fire_timings, lambda: call.backward_duration),
        "diary_not_stored": (
            lambda: pair.loaded.why(tl.grad("relu_1_2:1"), bwd=1),
            lambda: pair.loaded.why(call),
            lambda: pair.loaded.first_nonfinite(),
            lambda: autograd.explain("input_1", bwd=1),
        ),
        "column_not_stored": (lambda: pair.loaded.tables.backward_passes.column("dispatched_rows"),),
    }
    for code, reads in refused.items():
        assert {code_of(read) for read in reads} == {code}
    nodes = zip(pair.live.autograd.grad_fns, autograd.grad_fns, strict=True)
    assert all(theirs.total_backward_duration == mine.total_backward_duration for mine, theirs in nodes)
    assert autograd.grad_fn_calls.to_pandas()["backward_duration"].isna().all()


def test_why_there_is_no_gradient_is_there_again(pair: Pair) -> None:
    mine, theirs = pair.live.autograd.explanations, pair.loaded.autograd.explanations
    assert [str(one) for one in mine] == [str(one) for one in theirs]
    assert str(pair.loaded.autograd.explain("output_1")) == str(pair.live.autograd.explain("output_1"))
    assert pair.loaded.autograd.explain("relu_1_2:1") is None


def test_the_manifest_tells_of_backward_passes_without_a_record_being_read(pair: Pair) -> None:
    text = (pair.folder / "manifest.json").read_text()
    assert '"num_backward_passes": 2' in text
    assert '"kind": "gradient"' in text
    assert '"kind": "node_gradient"' in text


def test_a_loaded_backward_is_saved_again_byte_for_byte(pair: Pair, tmp_path: Path) -> None:
    pair.loaded.save(tmp_path / "b.tlspec")
    assert contents(tmp_path / "b.tlspec") == contents(pair.folder)


def test_a_loaded_trace_is_saved_with_less_where_that_can_be_told(pair: Pair, tmp_path: Path) -> None:
    assert code_of(lambda: pair.loaded.save(tmp_path / "b.tlspec", level="audit")) == "gradients_inseparable"
    pair.loaded.save(tmp_path / "b.tlspec", include_outs=False)
    pair.live.save(tmp_path / "c.tlspec", include_outs=False)
    assert contents(tmp_path / "b.tlspec") == contents(tmp_path / "c.tlspec")
    assert tl.load(tmp_path / "b.tlspec").autograd.num_grad_fn_calls


def test_a_cursor_goes_over_the_forward_alone(pair: Pair) -> None:
    cursor = tl.time_travel(pair.loaded)
    assert cursor.next(tl.func("relu")).trace.ops.labels[-1] == "relu_1_2:1"
    assert cursor.trace.autograd.num_backward_passes == 0
    assert code_of(lambda: cursor.next(tl.grad_fn())) == "diary_not_stored"
    check_trace(pair.loaded)


def test_an_audit_artifact_keeps_the_records_of_a_backward_and_no_gradient(pair: Pair, tmp_path: Path) -> None:
    pair.live.save(tmp_path / "c.tlspec", level="audit")
    audit = tl.load(tmp_path / "c.tlspec")
    assert audit.autograd.num_grad_fn_calls == pair.live.autograd.num_grad_fn_calls
    assert not any(record.is_saved for record in audit.autograd.gradients)
    assert code_of(lambda: audit.ops["relu_1_2:1"].grad) == "payload_unavailable"
    assert {code_of(lambda one=one: one.grad) for one in audit.autograd.gradients} == {"payload_unavailable"}
    assert [str(one) for one in audit.autograd.explanations] == [str(one) for one in pair.live.autograd.explanations]
    assert audit.check_metadata_invariants()
    pair.live.save(tmp_path / "d.tlspec", include_grads=False)
    assert tl.load(tmp_path / "d.tlspec").ops["relu_1_2:1"].has_saved_activation


def test_what_is_worked_out_of_backward_passes_is_refused_and_the_forward_is_there(pair: Pair) -> None:
    forward, live = pair.loaded.tables.forward, pair.live.tables.forward
    for name in ("backward", "autograd", "pairing", "inner_of", "containment", "gradients", "executed", "arrivals"):
        assert getattr(live, name) is not None
        assert code_of(lambda asked=name: getattr(forward, asked)) == "diary_not_stored"
    assert forward.labels.op == live.labels.op
    assert forward.call_labels == live.call_labels


def test_a_journal_of_an_artifact_warns_that_backward_passes_are_not_in_it(pair: Pair, tmp_path: Path) -> None:
    with pytest.warns(TorchLensWarning) as told:
        pair.loaded.journal.copy_to(tmp_path / "j")
    assert [warning.message.code for warning in told] == ["backward_not_copied"]  # type: ignore[union-attr]
    assert len(tl.load(tmp_path / "j").autograd.backward_passes) == 0 < len(pair.loaded.autograd.backward_passes)


def test_maps_are_in_the_order_that_they_had(pair: Pair) -> None:
    def in_order(trace: tl.Trace) -> list[str]:
        told = (trace.flops_by_op_type, trace.compute_coverage, trace.checkpoint_invocation_witness)
        passes = [(one.engine_flags, one.root_meta) for one in trace.autograd.backward_passes]
        return list(map(repr, (*told, *passes, *(op.parent_arg_positions for op in trace.ops))))

    assert in_order(pair.live) == in_order(pair.loaded)
    assert list(pair.live.flops_by_op_type) == ["linear", "relu"]
