"""Every architecture of the sweep is validated: outputs again, each call made again, parents perturbed, invariants.

A file of its own, so that another worker can take it.
"""

from __future__ import annotations

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
