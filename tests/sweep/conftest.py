"""How the architectures run: on one thread, and without what they say of their fallbacks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Models say much about what they fall back to, each in its own way."""
    logging.disable(logging.WARNING)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)
    logging.disable(logging.NOTSET)
