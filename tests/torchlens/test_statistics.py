"""Statistics in place of tensors: the same as those of the tensors, whatever these are and wherever they lie."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import ConfigurationError, PayloadUnavailableError
from torchlens.measuring import extent_of, histogram_of, measured, measured_with_histogram, nonfinite_in

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY = st.floats(width=32)


class Everything(nn.Module):
    """Ops whose results lie in memory in all the ways there are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.lin = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.lin(self.norm(x))
        flipped = x.t()
        wide = flipped[::2].expand(2, 3, 8)
        half = wide.half() * 3
        whole = (x * 10).long()
        turned = torch.complex(x, -x).conj()
        windows = x.reshape(-1).unfold(0, 4, 2)
        x.mul_(2)
        return half, whole, turned, windows, torch.log(x), x.bfloat16(), (x > 0), x[:0], x.to_sparse()


def test_a_capture_that_keeps_statistics_alone_has_a_fingerprint() -> None:
    options = tl.CaptureOptions(save_grads=tl.stats_only())
    trace = tl.trace(nn.Linear(2, 2), torch.ones(1, 2), save=tl.stats_only(), capture=options)
    trace.backward(trace.output.sum())
    assert len(trace.fingerprint) == 64
    for table in ("ops", "gradients"):
        assert any(type(cell) is tuple for cell in trace.table(table).column("figures"))


@given(st.lists(FINITE, min_size=1, max_size=40))
def test_the_figures_are_what_arithmetic_says(numbers: list[float]) -> None:
    made = measured(torch.tensor(numbers))
    assert made is not None
    assert made[:5] == (len(numbers), 0, 0, min(numbers), max(numbers))
    assert made[5] == pytest.approx(statistics.fmean(numbers), rel=1e-9, abs=1e-30)
    assert made[6] == pytest.approx(statistics.pstdev(numbers), rel=1e-6, abs=1e-30)


@given(st.lists(ANY, max_size=40), st.integers(1, 2**16))
def test_range_and_counts_are_those_of_the_finite_elements(numbers: list[float], times: int) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float32).repeat(times % 3000 + 1)
    finite = [number for number in numbers if math.isfinite(number)]
    made, extent = measured(tensor), extent_of(tensor)
    assert made is not None
    assert extent is not None
    assert made[:5] == tuple(extent)
    each = times % 3000 + 1
    assert made[0] == len(numbers) * each
    assert made[1] == sum(map(math.isnan, numbers)) * each
    assert made[2] == sum(map(math.isinf, numbers)) * each
    assert made[3:5] == ((min(finite), max(finite)) if finite else (None, None))


@given(st.integers(1, 70000), st.integers(1, 7), st.integers(0, 10**6))
def test_how_elements_lie_in_memory_changes_no_bit(size: int, width: int, seed: int) -> None:
    plain = torch.randn(width, size // width + 1, generator=torch.Generator().manual_seed(seed))
    laid_out = plain.t().contiguous().t()
    padded = torch.zeros(width, size // width + 3)
    padded[:, 1:-1] = plain
    assert measured(plain) == measured(laid_out) == measured(padded[:, 1:-1]) == measured(plain.clone())


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4), st.integers(0, 2**32))
def test_each_place_in_memory_counts_as_often_as_it_is_an_element(axes: list[tuple[int, int]], seed: int) -> None:
    shape, strides = zip(*axes, strict=True)
    memory = torch.randn(200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    memory[0], memory[2], memory[3] = math.nan, math.inf, -math.inf
    view = memory.as_strided(shape, strides)
    found, plain = measured(view), measured(view.contiguous())
    assert found is not None
    assert plain is not None
    assert found[:5] == plain[:5]
    assert found[5:] == (None, None) if plain[5] is None else found[5:] == pytest.approx(plain[5:], abs=1e-12)
    assert histogram_of(view, 3) == histogram_of(view.contiguous(), 3)
    for tensor in (view, view.to(torch.complex128) * 1e300, view.to(torch.int32), view.to("meta")):
        assert measured_with_histogram(tensor, 3) == (measured(tensor), histogram_of(tensor, 3))
    assert nonfinite_in(view) == plain[1:3]


@pytest.mark.parametrize("turned", [torch.conj, lambda x: x, lambda x: x.conj().imag])
def test_a_view_of_more_elements_than_there_is_memory_for_is_measured(turned: Any) -> None:
    memory = torch.randn(2**12 + 2**9, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    view = turned(memory).as_strided((2**12, 2**9), (turned(memory).stride(0),) * 2)
    found, plain = measured(view), measured(view.resolve_conj().contiguous())
    assert found is not None
    assert plain is not None
    assert found[5:] == pytest.approx(plain[5:])
    assert found[:5] == plain[:5]
    wide = torch.ones(2**20).as_strided((2**19, 2**19, 1000), (1, 1, 0))
    assert measured(wide) == (2**38 * 1000, 0, 0, 1.0, 1.0, 1.0, 0.0)
    assert nonfinite_in(wide) == (0, 0)


def test_the_number_of_threads_changes_no_bit() -> None:
    tensor = torch.randn(3, 100_001)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = measured(tensor)
        torch.set_num_threads(4)
        assert measured(tensor) == one
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("tensor", "figures"),
    [
        (torch.tensor([-0.0, 0.0]), (2, 0, 0, 0.0, 0.0, 0.0, 0.0)),
        (torch.tensor([math.inf, -math.inf, math.nan]), (3, 1, 2, None, None, None, None)),
        (torch.zeros(0), (0, 0, 0, None, None, None, None)),
        (torch.tensor(3), (1, 0, 0, 3, 3, 3.0, 0.0)),
        (torch.tensor([True, False]), (2, 0, 0, 0, 1, 0.5, 0.5)),
        (torch.tensor([2**62 + 1, 2**62 - 1]), (2, 0, 0, 2**62 - 1, 2**62 + 1, float(2**62), 0.0)),
        (torch.tensor([1e308, -1e308], dtype=torch.float64), (2, 0, 0, -1e308, 1e308, 0.0, 1e308)),
        (torch.tensor([1e-310, 3e-310], dtype=torch.float64), (2, 0, 0, 1e-310, 3e-310, 2e-310, 1e-310)),
        (torch.tensor([3 + 4j, complex(math.nan, 0)]), (2, 1, 0, 5.0, 5.0, 5.0, 0.0)),
        (torch.tensor([3 + 4j], dtype=torch.complex128) * 2.0**700, (1, 0, 0, *[5 * 2.0**700] * 3, 0.0)),
        (torch.tensor([1.5, 2.5], dtype=torch.bfloat16), (2, 0, 0, 1.5, 2.5, 2.0, 0.5)),
        (torch.tensor([1.5, 2.5]).to(torch.float8_e4m3fn), (2, 0, 0, 1.5, 2.5, 2.0, 0.5)),
        (torch.tensor([1, 3], dtype=torch.uint16), (2, 0, 0, 1, 3, 2.0, 1.0)),
        (torch.tensor([0.0, 2.0]).to_sparse(), (1, 0, 0, 2.0, 2.0, 2.0, 0.0)),
        (torch.tensor([1.0, 3.0]).expand(1000, 2), (2000, 0, 0, 1.0, 3.0, 2.0, 1.0)),
        (torch.empty(2, device="meta"), None),
    ],
    ids=str,
)
def test_figures_of_odd_tensors(tensor: Tensor, figures: Any) -> None:
    made = measured(tensor)
    assert (made is None) is (figures is None)
    if made is not None:
        assert made[:5] == figures[:5]
        assert made[5:] == (None, None) if figures[5] is None else made[5:] == pytest.approx(figures[5:], rel=1e-12)
        assert all(math.copysign(1, number) == 1 for number in made if number == 0)


def captures(save: Any, **asked: Any) -> tl.Trace:
    torch.manual_seed(0)
    model, x = Everything(), torch.linspace(-2, 2, 32).reshape(8, 4)
    trace = tl.trace(model, x, save=save, **asked)
    trace.backward(sum(each.float().sum() for each in trace.output[:1]))
    return trace


@pytest.mark.parametrize("journaled", [False, True])
def test_statistics_kept_and_worked_out_are_the_same_bit_for_bit(journaled: bool, tmp_path: Path) -> None:
    def asked(name: str, grads: Any) -> dict[str, Any]:
        kept = {"journal": tmp_path / name} if journaled else {}
        return {**kept, "capture": tl.CaptureOptions(save_grads=grads)}

    small = captures(tl.stats_only(), **asked("a", tl.stats_only()))
    full = captures(None, **asked("b", True))
    assert small.ops.labels == full.ops.labels
    assert len(small.ops) > 15
    for one, other in zip(small.ops, full.ops, strict=True):
        assert one.has_stored_stats
        assert not one.has_saved_payload
        assert not other.has_stored_stats
        assert one.stats == other.stats, one.label
    gradients = list(zip(small.autograd.gradients, full.autograd.gradients, strict=True))
    assert len(gradients) > 5
    for kept, worked_out in gradients:
        assert kept.has_stored_stats
        assert kept.stats == worked_out.stats
    assert small.check_metadata_invariants()
    if journaled:
        small.cleanup()
        full.cleanup()
        code = (
            "import sys, torchlens as tl; one, other = map(tl.load, sys.argv[1:]);"
            "same = [a.stats == b.stats for a, b in zip(one.ops, other.ops) if b.layout is None];"
            "same += [a.stats == b.stats for a, b in zip(one.autograd.gradients, other.autograd.gradients)];"
            "sys.exit(0 if len(same) > 20 and all(same) else 1)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "b")], check=True)


def test_only_what_was_named_is_measured_and_the_rest_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    trace = tl.trace(model, torch.ones(1, 2), save=tl.stats_only(tl.func("relu")))
    assert [op.label for op in trace.ops if op.has_stored_stats] == ["relu_1_2"]
    assert trace.save_request == "stats_only(func('relu'))"
    assert trace["relu_1_2"].stats.count == 3
    assert trace.layers["relu_1_2"].stats == trace["relu_1_2"].stats
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["relu_1_2"].out  # noqa: B018
    assert refused.value.code == "statistics_only"
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["linear_1_1"].stats  # noqa: B018
    assert refused.value.code == "activation_not_saved"


@pytest.mark.parametrize("select", [tl.label("relu_1_2"), "1", tl.module("1"), lambda op: op.func_name == "relu_", 2])
def test_whatever_save_takes_names_what_is_measured(select: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    trace = tl.trace(model, torch.ones(1, 2), save=tl.stats_only(select))
    assert [op.label for op in trace.ops if op.has_stored_stats] == ["relu_1_2"]
    assert trace["relu_1_2"].stats == tl.trace(model, torch.ones(1, 2))["relu_1_2"].stats


def test_what_is_written_in_place_later_is_measured_as_it_was() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(5)
        return y

    trace = tl.trace(forward, torch.ones(3), save=tl.stats_only(tl.label("mul_1_1")))
    assert trace["mul_1_1"].stats.max == 2.0


def test_gradients_of_one_pass_are_measured_and_not_kept() -> None:
    x = torch.ones(1, 2)
    trace = tl.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), x)
    trace.backward(trace.output.sum(), save_grads=tl.stats_only(tl.grad("relu_1_2")))
    assert trace.autograd.backward_passes[0].save_grads_policy == "stats_only(grad('relu_1_2'))"
    (record,) = trace["relu_1_2"].autograd.grads
    assert (record.stats.count, record.stats.min, record.stats.max) == (3, 1.0, 1.0)
    assert record.has_stored_stats
    assert not record.is_saved
    assert record.quiet_grad is None
    assert not trace["relu_1_2"].has_grad
    assert trace.ops["relu_1_2"].quiet_grad is None
    assert trace.saved_gradient_memory == 0
    with pytest.raises(PayloadUnavailableError) as refused:
        trace["relu_1_2"].grad  # noqa: B018
    assert refused.value.code == "statistics_only"
    assert trace.check_metadata_invariants()


def test_statistics_at_firings_are_told_by_side() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))
    trace.backward(trace.output.sum(), save_grads=tl.stats_only(tl.grad_fn("ReluBackward0") | tl.grad_input()))
    (call,) = [each for each in trace.autograd.grad_fn_calls if each.grad_fn.class_name == "ReluBackward0"]
    assert call.grad_outputs is None
    assert call.grad_output_stats is not None
    assert call.grad_input_stats is not None
    assert call.grad_output_stats[0] is not None
    assert call.grad_output_stats[0].max == 1.0


@pytest.mark.parametrize("save", [[tl.stats_only(), "relu"], tl.stats_only(tl.stats_only())], ids=str)
def test_statistics_of_some_beside_payloads_of_others_are_refused(save: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tl.trace(nn.ReLU(), torch.ones(2), save=save)
    assert refused.value.code == "statistics_mixed"
    trace = tl.trace(nn.Linear(2, 2), torch.ones(2))
    with pytest.raises(ConfigurationError) as refused:
        trace.backward(trace.output.sum(), save_grads=[tl.stats_only()])
    assert refused.value.code == "statistics_mixed"


def test_elements_that_cannot_be_looked_at_have_no_statistics() -> None:
    trace = tl.trace(lambda x: (x + 1, torch.ones(2, device="meta")), torch.ones(2), save=tl.stats_only())
    with pytest.raises(PayloadUnavailableError) as refused:
        trace.output_ops[1].stats  # noqa: B018
    assert refused.value.code == "statistics_unavailable"
    assert trace.output_ops[0].stats.min == 2.0


def test_a_recording_may_keep_statistics_alone() -> None:
    recording = tl.record(nn.ReLU(), torch.ones(2), save=tl.stats_only())
    assert [record.stats.max for record in recording] == [1.0, 1.0]
    assert recording.to_trace().ops["relu_1_1"].stats.max == 1.0


def test_frames_tell_the_statistics_that_were_kept_and_none_elsewhere() -> None:
    pytest.importorskip("pandas")
    options = tl.CaptureOptions(save_grads=tl.stats_only(tl.func("linear")))
    trace = tl.trace(
        torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU()),
        torch.randn(5, 4),
        save=tl.stats_only(tl.func("linear")),
        capture=options,
    )
    trace.backward(trace.output.sum())
    frame, op = trace.to_pandas().set_index("label"), trace.ops["linear_1_1"]
    for name in ("num_nan", "num_inf", "min", "max", "mean", "std"):
        assert frame.loc["linear_1_1", name] == getattr(op.stats, name)
        assert frame[name].drop("linear_1_1").isna().all()
    (record,) = [one for one in trace.autograd.gradients if one.has_stored_stats]
    gradients = trace.autograd.gradients.to_pandas().set_index("owner")
    assert gradients.loc["linear_1_1", "max"] == record.stats.max
    trace.cleanup()
