"""FLOPs of backward passes as torch itself counts them, for tests that hold recorded ones against them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import torchlens as tl
from torchlens.generators import seed_all
from torchlens.validation.default_loss import weighted

Build = Callable[[], tuple[Any, Sequence[Any], Mapping[str, Any]]]
"""Makes a model and its arguments, the same each time."""


def bare(build: Build) -> dict[str, int] | None:
    """What ``FlopCounterMode`` counts by family around a backward without tracing; None where there is no loss."""
    model, args, kwargs = build()
    seed_all(0)
    loss = weighted(model(*args, **kwargs))
    return None if loss is None else flops_of(loss)


def flops_of(loss: Tensor) -> dict[str, int]:
    """What torch counts by family in a backward from this loss."""
    with FlopCounterMode(display=False) as counted:
        loss.backward()
    return {f"aten.{packet.__name__}": flops for packet, flops in counted.get_flop_counts().get("Global", {}).items()}


def traced(build: Build, **known: Any) -> tl.Trace:
    """A trace of the same, with its backward."""
    model, args, kwargs = build()
    seed_all(0)
    trace = tl.trace(model, list(args), dict(kwargs), capture=tl.CaptureOptions(backward_ready=True), **known)
    loss = weighted(trace.output)
    assert loss is not None
    trace.backward(loss)
    return trace


def require_counted_as_torch_counts(trace: tl.Trace, right: Mapping[str, int]) -> None:
    """Every way of adding up what was executed gives torch's number."""
    status = tl.report.backward_status(trace)
    assert status.reason is None
    assert status.executed_flops == sum(right.values())
    told: dict[str, int] = {}
    for op in trace.autograd.dispatched_ops.counted:
        told[op.family] = told.get(op.family, 0) + op.flops
    assert told == dict(right)
    assert [one.backward_pass_index for one in status.flops_attributions] == [one.pass_index for one in status.passes]
    rows = [row for account in status.flops_attributions for row in account.rows]
    apart = sum(account.unattributed_flops for account in status.flops_attributions)
    assert sum(row.flops for row in rows) + apart == status.executed_flops
    by_op = sum(count for account in status.flops_attributions for count in account.flops_by_op().values())
    assert by_op == sum(row.flops for row in rows if row.op_label is not None)
    assert sum(op.flops for op in trace.autograd.dispatched_ops.counted) == status.executed_flops
    tree = tl.report.cost_tree(trace)
    assert sum(row.self_backward_flops or 0 for row in tree.rows) == tree.executed_flops == status.executed_flops
    assert trace.check_metadata_invariants()
