"""FLOPs that backward passes execute: by firing, by op and in all, as torch's own counter counts them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from tests.counting import bare, require_counted_as_torch_counts
from tests.counting import traced as traced_as_built
from tests.programs import run
from torchlens.reading.failed import TraceCaptureError
from torchlens.testing import Program, programs

READY = tl.CaptureOptions(backward_ready=True)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def traced(model: nn.Module, x: torch.Tensor, **known: Any) -> tl.Trace:
    trace = tl.trace(model, x, capture=READY, **known)
    trace.backward(trace.output.sum())
    return trace


def only(trace: tl.Trace) -> Any:
    (one,) = trace.autograd.backward_passes
    return one


def test_a_small_network_executes_what_is_worked_out_by_hand() -> None:
    trace = traced(mlp(), torch.randn(5, 4))
    one = only(trace)
    account = one.flops_attribution
    assert one.executed_flops == account.executed_flops == 600
    assert account.flops_by_op() == {"linear_2_3": 360, "linear_1_1": 240}
    assert {row.grad_fn_label: row.flops for row in account.rows if row.flops} == {
        "addmm_back_1_2": 360,
        "addmm_back_2_6": 240,
    }
    assert [row.call_label for row in account.rows] == list(one.grad_fn_calls.labels)
    nodes = [call.grad_fn for call in one.grad_fn_calls]
    assert [row.op_label for row in account.rows] == [node.op_label or node.inner_of for node in nodes]
    assert account.unattributed_flops == 0
    assert [(op.name, op.flops, op.grad_fn) for op in account.unattributed_ops] == [
        ("aten.ones_like.default", None, None)
    ]
    assert len(account.other_trace_ops) == 0
    assert one.uncounted_families == account.uncounted_families == {"aten.sum": 2, "aten.threshold_backward": 1}
    products = one.aten_ops.find("aten.mm")
    assert [(op.grad_fn_label, op.flops) for op in products] == [
        ("addmm_back_1_2", 180),
        ("addmm_back_1_2", 180),
        ("addmm_back_2_6", 240),
    ]
    assert products[0].input_shapes == ((5, 3), (3, 6))
    assert products[0].output_dtypes == (torch.float32,)
    assert products[0].grad_fn_call == one.grad_fn_calls["addmm_back_1_2:1"]
    assert products[0].backward_pass == one
    assert [call.flops for call in one.grad_fn_calls["addmm_back_1_2:1"].aten_ops.counted] == [180, 180]


def test_operators_are_had_by_position_name_and_family() -> None:
    one = only(traced(mlp(), torch.randn(5, 4)))
    ran = one.aten_ops
    assert ran["aten.threshold_backward"] == ran["aten.threshold_backward.default"]
    assert "aten.mm" in ran
    assert "aten.bmm" not in ran
    assert ran[0] in ran
    assert len(ran.counted) + len(ran.uncounted) == len(ran) == len(one.trace.autograd.dispatched_ops)
    with pytest.raises(tl.errors.LookupRefused) as several:
        ran["aten.mm"]
    assert several.value.code == "ambiguous_record_lookup"
    with pytest.raises(tl.errors.LookupRefused) as missing:
        ran["aten.mmm.default"]
    assert missing.value.code == "record_lookup_not_found"
    assert "aten.mm.default" in missing.value.remedy
    assert repr(ran["aten.threshold_backward"]).endswith("in relu_back_1_4 of pass 1, no count>")


def test_frames_hold_plain_numbers() -> None:
    one = only(traced(mlp(), torch.randn(5, 4)))
    operators = one.aten_ops.to_pandas()
    assert operators["flops"].sum() == 600
    assert list(operators.columns) == list(one.trace.autograd.dispatched_ops.to_pandas().columns)
    rows = one.flops_attribution.to_pandas()
    assert list(rows["grad_fn_label"]) == [row.grad_fn_label for row in one.flops_attribution.rows]
    assert rows["flops"].sum() == 600
    assert list(one.trace.autograd.backward_passes.to_pandas()["executed_flops"]) == [600]
    assert one.trace.autograd.grad_fn_calls.to_pandas()["flops"].sum() == 600


def test_operators_that_were_not_recorded_are_refused_and_counts_are_none() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=True))
    assert len(trace.autograd.dispatched_ops) == 0, "there is no pass yet"
    trace.backward(trace.output.sum())
    one = only(trace)
    for ask in (lambda: one.aten_ops, lambda: one.grad_fn_calls[0].aten_ops, lambda: trace.autograd.dispatched_ops):
        with pytest.raises(tl.errors.PayloadUnavailableError) as refused:
            ask()
        assert refused.value.code == "aten_ops_not_recorded"
        assert "backward_ready=True" in refused.value.remedy
    assert one.executed_flops is one.flops_attribution is one.uncounted_families is one.grad_fn_calls[0].flops is None
    assert "backward_ready=True" in one.executed_reason


def test_a_pass_that_raises_tells_what_ran_before_and_has_no_count() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no gradient today")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(Fails.apply(self.first(x)))

    trace = tl.trace(Model(), torch.randn(2, 4), capture=READY)
    with pytest.raises(RuntimeError, match="no gradient today"):
        trace.backward(trace.output.sum())
    one = only(trace)
    assert one.executed_flops is one.flops_attribution is None
    assert one.executed_reason == "backward pass 1 raised before it finished"
    assert [op.flops for op in one.aten_ops.find("aten.mm")] == [64, 64]


def test_each_capture_counts_its_own_nodes_where_one_loss_has_two() -> None:
    first, second = mlp(), nn.Linear(4, 3)
    x = torch.randn(5, 4)
    traces = [tl.trace(model, x, capture=READY) for model in (first, second)]
    torch.autograd.backward([trace.output.sum() for trace in traces])
    accounts = [only(trace).flops_attribution for trace in traces]
    assert [account.executed_flops for account in accounts] == [600, 2 * 5 * 4 * 3]
    for account in accounts:
        assert sum(row.flops for row in account.rows) + account.unattributed_flops == account.executed_flops
    others = [sum(op.flops for op in account.other_trace_ops.counted) for account in accounts]
    assert others == [2 * 5 * 4 * 3, 600]


def test_everything_is_told_again_from_the_journal_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "run"
    trace = traced(mlp(), torch.randn(5, 4), journal=str(path))
    told = repr(told_of(trace)), trace.fingerprint
    trace.cleanup()
    script = (
        "import torchlens as tl\n"
        "from tests.backward.test_executed_flops import told_of\n"
        f"trace = tl.load({str(path)!r})\n"
        "print((repr(told_of(trace)), trace.fingerprint))\n"
    )
    assert run(script).stdout.strip() == repr(told)


def told_of(trace: tl.Trace) -> Any:
    one = only(trace)
    account = one.flops_attribution
    rows = [(row.call_label, row.op_label, int(row.flops), dict(row.uncounted_families)) for row in account.rows]
    ran = [(op.name, op.input_shapes, op.output_shapes, op.grad_fn_label, op.flops) for op in one.aten_ops]
    by_op = {label: int(count) for label, count in account.flops_by_op().items()}
    return int(one.executed_flops), rows, ran, by_op, int(account.unattributed_flops)


class Checkpointed(nn.Module):
    """The same small network, in one checkpoint."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.inner = reentrant, mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return out


def checkpointed(*, reentrant: bool = False) -> tl.Trace:
    return traced(Checkpointed(reentrant=reentrant), torch.randn(5, 4, requires_grad=True))


def test_what_a_checkpoint_runs_again_is_labelled_where_it_ran() -> None:
    account = only(checkpointed()).flops_attribution
    assert account.executed_flops == 1080
    assert account.recompute_flops == 240
    told = {row.op_label: (row.flops, row.recompute_flops) for row in account.rows if row.flops}
    assert told == {"linear_2_3": (600, 240), "linear_1_1": (480, 0)}, "it stops before the last layer"


def test_what_a_reentrant_checkpoint_runs_again_is_labelled_too() -> None:
    trace = checkpointed(reentrant=True)
    outer, inner = trace.autograd.backward_passes
    assert [(one.executed_flops, one.recompute_flops) for one in (outer, inner)] == [(420, 420), (840, 0)]
    assert tl.report.backward_status(trace).recompute == 420


def test_under_create_graph_what_a_checkpoint_ran_again_is_not_known() -> None:
    model, x = Checkpointed(reentrant=False), torch.randn(5, 4, requires_grad=True)
    trace = tl.trace(model, x, capture=READY)
    torch.autograd.grad(trace.output.sum(), [x, *model.parameters()], create_graph=True)
    account = only(trace).flops_attribution
    assert account.executed_flops == 1080
    assert account.recompute_flops is None
    assert {row.recompute_flops for row in account.rows} == {None}


class OwnCheckpoint(torch.autograd.Function):
    """A reentrant checkpoint by hand: what it runs again, nothing but grad mode tells of."""

    @staticmethod
    def forward(ctx: Any, inner: Any, x: torch.Tensor) -> Any:
        ctx.inner = inner
        ctx.save_for_backward(x)
        with torch.no_grad():
            return inner(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            result = ctx.inner(x)
        torch.autograd.backward(result, grads)
        return None, x.grad


def by_own_hooks(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Another one, that computes what was saved again as the first of it is asked for."""
    again: list[torch.Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks
    numbers = iter(range(100))

    def unpacked(number: int) -> torch.Tensor:
        if not again:
            with torch.enable_grad(), hooks(lambda tensor: again.append(tensor.detach()), lambda packed: packed):
                inner(x.detach().requires_grad_())
        return again[number]

    with hooks(lambda tensor: next(numbers), unpacked):
        result: torch.Tensor = inner(x)
        return result


class OwnCheckpointed(nn.Module):
    def __init__(self, do: Any) -> None:
        super().__init__()
        self.do, self.inner = do, mlp()

    def forward(self, x: torch.Tensor) -> Any:
        return self.do(self.inner, x)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("do", [lambda inner, x: inner(x), OwnCheckpoint.apply, by_own_hooks])
def test_where_no_checkpoint_was_seen_it_is_not_known_what_ran_a_forward_again(do: Any, create_graph: bool) -> None:
    model, x = OwnCheckpointed(do), torch.randn(5, 4, requires_grad=True)
    trace = tl.trace(model, x, capture=READY)
    torch.autograd.grad(trace.output.sum(), x, create_graph=create_graph)
    assert trace.checkpoint_invocation_witness is not None
    assert trace.checkpoint_invocation_witness["token_count"] == 0
    for one in trace.autograd.backward_passes:
        assert one.executed_flops is not None
        assert one.recompute_flops is None
        assert {row.recompute_flops for row in one.flops_attribution.rows} == {None}
    assert tl.report.backward_status(trace).recompute is None


def test_where_torch_does_not_tell_the_running_node_nothing_is_charged_and_the_count_is_unknown() -> None:
    script = """
        import torch
        del torch._C._current_autograd_node
        import torchlens as tl

        assert not tl.report.doctor().capabilities["HAS_CURRENT_AUTOGRAD_NODE"]
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU())
        trace = tl.trace(model, torch.ones(5, 4), capture=tl.CaptureOptions(backward_ready=True))
        trace.backward(trace.output.sum())
        (one,) = trace.autograd.backward_passes
        assert one.status == "ok" and len(one.grad_fn_calls) > 3 and model[0].weight.grad is not None
        assert one.executed_flops is one.flops_attribution is one.grad_fn_calls[0].flops is None
        status = tl.report.backward_status(trace)
        assert status.executed_flops is None and "does not tell which autograd node runs" in status.reason
        try:
            one.aten_ops
        except tl.TorchLensError as refused:
            print(refused.code, refused.remedy)
    """
    assert "tl.report.doctor() shows whether it does" in run(script).stdout


@given(program=programs())
@settings(max_examples=40)
def test_executed_flops_are_what_torch_counts_around_the_bare_backward(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            right = bare(program.build)
        except Exception:  # noqa: BLE001  # a program that raises by itself
            return
        if right is None:
            return
        try:
            trace = traced_as_built(program.build)
        except TraceCaptureError:
            return
        require_counted_as_torch_counts(trace, right)
        trace.cleanup()


def test_convolutions_attention_and_recurrences_are_counted_as_torch_counts_them() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2, groups=2)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.rnn = nn.GRU(16, 8, batch_first=True)
            self.out = nn.Bilinear(8, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(torch.relu(self.conv(x))).flatten(2)
            y, _ = self.attention(y, y, y, need_weights=False)
            y, _ = self.rnn(torch.einsum("bij,bkj->bik", y, y) @ y)
            return self.out(y, y)

    def build() -> Any:
        torch.manual_seed(1)
        return Mixed(), (torch.randn(2, 4, 4, 4, requires_grad=True),), {}

    right = bare(build)
    assert right is not None
    assert {"aten.convolution_backward", "aten.mm", "aten.bmm"} <= set(right)
    trace = traced_as_built(build)
    require_counted_as_torch_counts(trace, right)
    uncounted = tl.report.backward_status(trace).uncounted_families
    assert any("attention" in family for family in uncounted), "on the CPU torch counts none of it"


def test_every_pass_of_a_gradient_penalty_is_counted() -> None:
    def build() -> Any:
        torch.manual_seed(1)
        return mlp(), (torch.randn(5, 4, requires_grad=True),), {}

    def penalty(output: torch.Tensor, x: torch.Tensor) -> None:
        (grad,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        grad.pow(2).sum().backward()

    from torch.utils.flop_counter import FlopCounterMode

    model, (x,), _ = build()
    output = model(x)
    with FlopCounterMode(display=False) as counted:
        penalty(output, x)
    model, (x,), _ = build()
    trace = tl.trace(model, x, capture=READY)
    penalty(trace.output, x)
    status = tl.report.backward_status(trace)
    assert status.n_backward_passes == len(status.flops_attributions) == 2
    assert status.executed_flops == sum(one.executed_flops for one in trace.autograd.backward_passes)
    assert status.executed_flops == counted.get_total_flops()
