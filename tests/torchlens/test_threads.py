"""Torch's threads are as many as before, however what needed one alone ended."""

from __future__ import annotations

import pytest
import torch

from torchlens import threads


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(ZeroDivisionError), threads.one_of_torch():
            raise ZeroDivisionError(torch.get_num_threads())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
