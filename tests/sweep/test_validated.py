"""Every architecture of the sweep is validated: outputs again, each call made again, parents perturbed, invariants; and
its gradients against runs without recording.

A file of its own, so that another worker can take it.
"""

from __future__ import annotations

from typing import Final

import pytest
import torch

from tests.sweep.architectures import ARCHITECTURES
from torchlens import validation

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_recorded_as_it_ran(name: str) -> None:
    model, kwargs = ARCHITECTURES[name].build()
    torch.manual_seed(0)
    report = validation.report(model, (), kwargs)
    assert [str(failure) for failure in report.failures] == []


NOT_TRAINED: Final = {
    "reformer": "its configuration refuses a backward in eval mode",
    "rwkv": "its forward writes what its backward needs",
}
"""Architectures whose backward torch or the model itself refuses, and why."""


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in NOT_TRAINED])
def test_the_backward_of_an_architecture_is_recorded_as_it_ran(name: str) -> None:
    model, kwargs = ARCHITECTURES[name].build()
    report = validation.report(model, (), kwargs, scope="backward", random_seed=0)
    assert [str(failure) for failure in report.failures] == []
    assert report.reasons("skipped").keys() <= {"module_call_unseen"}  # of a forward that is called by itself
