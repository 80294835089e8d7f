"""The generators are seeded, told and put back together."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.programs import run
from torchlens.generators import RandomState, seed_all, seeded, states


def drawn() -> tuple[Any, ...]:
    return torch.rand(2).tolist(), random.random(), float(np.random.rand())  # the global generators


def test_what_was_found_is_put_back() -> None:
    found = RandomState()
    first = drawn()
    found.restore()
    assert drawn() == first


def test_a_seed_gives_the_same_draws_and_leaves_the_generators_as_they_were() -> None:
    before = RandomState()
    expected = drawn()
    before.restore()
    with seeded(3):
        first = drawn()
    assert drawn() == expected
    before = RandomState()
    expected = drawn()
    before.restore()
    with pytest.raises(ZeroDivisionError), seeded(3):
        _ = drawn()[0][0] / 0
    assert drawn() == expected
    with seeded(None):
        drawn()
    found = RandomState()
    seed_all(3)
    assert drawn() == first
    found.restore()


def test_the_states_are_told_by_device() -> None:
    ((device, state),) = states()
    assert device == "cpu"
    assert state == bytes(torch.get_rng_state().numpy())


def test_what_draws_is_captured_without_numpy() -> None:
    run(
        """
        import sys, warnings
        sys.modules["numpy"] = None
        warnings.simplefilter("ignore")  # torch says that NumPy is missing
        import torch
        import torchlens as tl
        from torch import nn
        drawing = nn.Dropout(), nn.RReLU(), nn.LSTM(3, 3, num_layers=2, dropout=0.5)
        model = nn.Sequential(nn.Linear(3, 3), *drawing).train()
        trace = tl.trace(model, torch.ones(2, 3), capture=tl.CaptureOptions(replayable=True, save_rng_states=True))
        assert {"dropout", "rrelu", "lstm"} <= {op.func_name for op in trace.ops}
        assert "verified" in repr(trace.run(inputs=(torch.ones(2, 3),)))
        """
    )
