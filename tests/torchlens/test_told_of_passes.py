"""What is told of backward passes that went wrong, or left nothing: each sentence is so, and leads to what it names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.options import CaptureOptions

EVERY = CaptureOptions(save_grads=True)


class Trapped(nn.Module):
    """Finite values, and NaN gradients: 0 * inf where the branch was not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return torch.where(h > 0, h.sqrt(), 0.0)


# -- gradients that are not finite ------------------------------------------------------------------------


def test_health_names_the_first_gradient_with_a_nan_its_op_pass_and_line() -> None:
    trace = tl.trace(Trapped(), torch.ones(2, 4), capture=EVERY)
    assert trace.health.is_clean
    trace.backward(trace.output.sum())
    health = trace.health
    assert health.nonfinite.verdict == "checked_and_clean"
    assert health.gradients.verdict == "found"
    assert not health.is_clean
    first = health.gradients.first_nan
    assert first is not None
    assert (first.label, first.pass_index, first.num_nan) == ("relu_1_2", 1, 8)
    line = Trapped.forward.__code__.co_firstlineno + 1
    assert first.place == f"test_told_of_passes.py:{line}"
    assert f"gradients: NaN first in that of relu_1_2 ({first.place}) in backward pass 1, 1 of 6 gradients" in str(
        health
    )
    assert "nothing" not in str(health)
    assert repr(health.gradients).startswith("<GradientFinding found: NaN first")


def test_what_was_kept_at_a_firing_beside_the_ops_is_looked_at_too() -> None:
    trace = tl.trace(Trapped(), torch.ones(2, 4))
    trace.backward(trace.output.sum(), save_grads=tl.grad_fn("sqrt"))
    first = trace.health.gradients.first
    assert first is not None
    assert first.label.startswith("sqrt_back_1_")
    assert first.place is None


def test_clean_gradients_are_called_so_and_none_kept_is_not_called_clean() -> None:
    model, x = nn.Linear(4, 2), torch.ones(2, 4)
    clean = tl.trace(model, x, capture=EVERY)
    clean.backward(clean.output.sum())
    assert clean.health.gradients.verdict == "checked_and_clean"
    assert "gradients: all values of" in str(clean.health)
    none = tl.trace(model, x)
    assert "gradients" not in str(none.health)
    none.backward(none.output.sum())
    assert none.health.gradients.verdict == "not_checked"
    assert "gradients: none kept" in str(none.health)
    assert "nothing else to report" in str(none.health)


def test_a_pass_after_the_look_is_looked_at_again() -> None:
    trace = tl.trace(nn.Linear(4, 2), torch.ones(2, 4), capture=EVERY)
    trace.backward(trace.output.sum(), retain_graph=True)
    assert trace.health.is_clean
    trace.backward((trace.output * float("inf")).sum())
    first = trace.health.gradients.first
    assert first is not None
    assert first.pass_index == 2


def test_many_gigabytes_of_gradients_are_looked_at_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchlens.reading.health.MOST_LOOKED_AT", 0)
    trace = tl.trace(Trapped(), torch.ones(2, 4), capture=EVERY)
    trace.backward(trace.output.sum())
    assert "not looked at; read .gradients" in str(trace.health)
    assert trace.health.gradients.verdict == "found"
    assert not trace.health.is_clean
