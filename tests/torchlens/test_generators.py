"""The generators are seeded, told and put back together."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

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
