"""``tl.report.backward_status``: what is known of the work of backward passes, and why not where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from torchlens.errors import ConfigurationError
from torchlens.report import backward_status, cost_tree

READY = tl.CaptureOptions(backward_ready=True)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def test_a_counted_backward_is_told_with_what_is_left_out() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=READY)
    trace.backward(trace.output.sum())
    status = backward_status(trace)
    assert (status.state, status.executed_flops, status.executed_evidence) == ("backward_observed", 600, "measured")
    assert (status.reason, status.recompute) == (None, None), "nothing was seen to checkpoint"
    assert status.uncounted_families == {"aten.sum": 2, "aten.threshold_backward": 1}
    assert (status.n_backward_passes, status.n_grad_fn_records) == (1, trace.autograd.num_grad_fns)
    assert status.measured_seconds == trace.autograd.last_backward_pass.duration
    assert status.status_line == "backward: 600 FLOPs in 1 pass, 2 families of operators not counted"
    assert repr(status) == f"<BackwardStatus: {status.status_line}>"
    lines = str(status).splitlines()
    assert lines[0] == status.status_line
    assert lines[2].split()[:4] == ["pass", "trigger", "status", "executed"]
    assert lines[3].split()[:5] == ["1", "backward", "ok", "600", "FLOPs"]
    assert lines[-1] == "not counted: aten.sum x2, aten.threshold_backward x1"


def test_its_passes_are_the_records_of_the_trace() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=READY)
    trace.backward(trace.output.sum())
    status = backward_status(trace)
    assert status.passes == tuple(trace.autograd.backward_passes)
    (one,) = status.passes
    assert one.flops_attribution is not None
    assert one.unattributed_flops == one.flops_attribution.unattributed_flops == 0
    assert list(status.to_pandas()["unattributed_flops"]) == [0]
    trace.cleanup()
    assert str(status) == status.status_line, "the passes went with the trace, the sum stays"


def test_a_backward_that_was_not_seen_is_unknown_and_never_zero() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=READY)
    status = backward_status(trace)
    assert (status.state, status.executed_flops, status.executed_evidence) == (
        "grad_enabled_unobserved",
        None,
        "unknown",
    )
    assert status.recompute is status.measured_seconds is None
    assert (status.n_backward_passes, status.flops_attributions, len(status.to_pandas())) == (0, (), 0)
    assert str(status) == status.status_line == f"backward: unknown FLOPs: {status.reason}"


def test_where_no_backward_could_be_it_is_zero() -> None:
    with torch.no_grad():
        trace = tl.trace(mlp(), torch.randn(5, 4))
    status = backward_status(trace)
    assert (status.state, status.executed_flops, status.executed_evidence) == ("grad_disabled", 0, "formula_exact")
    assert status.status_line == f"backward: 0 FLOPs: {status.reason}"


def test_one_pass_that_is_not_counted_leaves_the_whole_unknown_and_the_others_told() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=READY)
    trace.backward(trace.output.sum())
    with pytest.raises(RuntimeError):
        trace.backward(trace.output.sum())  # the graph is gone
    status = backward_status(trace)
    assert status.executed_flops is status.recompute is None
    assert status.reason == "backward pass 2 raised before it finished"
    assert [one.backward_pass_index for one in status.flops_attributions] == [1]
    frame = status.to_pandas()
    assert list(frame["status"]) == ["ok", "error"]
    assert frame["executed_flops"][0] == 600
    assert frame["executed_reason"].isna()[0]
    assert frame["executed_reason"][1] == status.reason
    assert "?" in str(status).splitlines()[4].split()


def test_without_a_census_the_reason_says_how_to_have_one() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4))
    trace.output.sum().backward()
    status = backward_status(trace)
    assert status.state == "backward_observed"
    assert status.executed_flops is None
    assert "backward_ready=True" in str(status.reason)
    assert status.uncounted_families == {}


@pytest.mark.parametrize("what", [None, "trace", mlp()])
def test_what_is_no_trace_is_refused(what: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        backward_status(what)
    assert refused.value.code == "backward_status_type_invalid"
    with pytest.raises(ConfigurationError) as of_tree:
        cost_tree(what)
    assert of_tree.value.code == "cost_tree_type_invalid"
    assert of_tree.value.remedy == refused.value.remedy
    assert [one.value.fields["received_type"] for one in (refused, of_tree)] == [type(what).__name__] * 2


def test_many_passes_are_shown_in_part() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=READY)
    for _ in range(25):
        trace.backward(trace.output.sum(), retain_graph=True)
    status = backward_status(trace)
    assert status.executed_flops == 25 * 600
    assert "... and 5 more" in str(status).splitlines()


def test_after_cleanup_it_is_refused() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4))
    trace.cleanup()
    with pytest.raises(tl.errors.TraceCleanedUpError):
        backward_status(trace)
