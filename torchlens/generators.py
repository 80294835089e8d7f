"""The random generators that a forward may draw from: torch's on each device, Python's, and NumPy's.

NumPy's counts only where something has imported it.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch

from torchlens import compat

__all__ = ["RandomState", "seed_all", "seeded", "state_of", "states"]


class RandomState:
    """The generators as they were found, to be put back.

    Args:
        wakes_cuda: Look at the generators of CUDA devices that nothing has used yet, too, which takes them into use.
    """

    def __init__(self, *, wakes_cuda: bool = False) -> None:
        cuda = torch.cuda.is_initialized() or (wakes_cuda and torch.cuda.is_available())
        self.torch: Final = compat.generator_state(torch.default_generator)
        self.cuda: Final = torch.cuda.get_rng_state_all() if cuda else None
        self.python: Final = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy: Final[Any] = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        torch.default_generator.set_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


def seed_all(seed: int) -> None:
    """Seed every generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed every generator and put each back afterwards; None touches nothing."""
    if seed is None:
        yield
        return
    found = RandomState(wakes_cuda=True)  # seeding reaches them all
    try:
        seed_all(seed)
        yield
    finally:
        found.restore()


def states() -> tuple[tuple[str, bytes], ...]:
    """The state of each generator of torch, by device."""
    generators = [("cpu", torch.default_generator)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators += [(f"cuda:{number}", one) for number, one in enumerate(torch.cuda.default_generators)]
    return tuple([(device, state_of(generator)) for device, generator in generators])


def state_of(generator: torch.Generator) -> bytes:
    """The state of one generator; without NumPy, which ``Tensor.numpy`` needs."""
    state = compat.generator_state(generator)
    return ctypes.string_at(compat.data_ptr(state), state.nbytes)
