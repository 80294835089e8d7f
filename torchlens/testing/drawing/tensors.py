"""Tensors as inputs of models, as hypothesis draws them: plain ones first, then those at which models go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from hypothesis import strategies as st
from torch import Tensor

from torchlens.testing.given import argument_invalid

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["tensors"]

Fill = Callable[[tuple[int, ...], torch.Generator], Tensor]


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ramp(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.linspace(-1, 1, count, dtype=torch.float64).reshape(shape)


def holed(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Normal ones, every third a zero, whose sign may be negative."""
    made = normal(shape, generator)
    made.view(-1)[::3] *= 0
    return made


def spoilt(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Normal ones, one of them none that is finite."""
    made = normal(shape, generator)
    if made.numel():
        place = int(torch.randint(made.numel(), (1,), generator=generator))
        made.view(-1)[place] = (torch.nan, torch.inf, -torch.inf)[place % 3]
    return made


FILLS: Final[dict[str, Fill]] = {
    "ones": lambda shape, generator: torch.ones(shape, dtype=torch.float64),
    "zeros": lambda shape, generator: torch.zeros(shape, dtype=torch.float64),
    "ramp": ramp,
    "normal": normal,
    "holed": holed,
    "large": lambda shape, generator: 1e3 * normal(shape, generator),
    "small": lambda shape, generator: 1e-3 * normal(shape, generator),
}


def is_shape(shape: Any) -> bool:
    """Whether something is a sequence of sizes."""
    return isinstance(shape, tuple | list) and all(type(size) is int and size >= 0 for size in shape)


def tensors(
    shape: Any, *, dtype: torch.dtype = torch.float32, requires_grad: bool = False, nonfinite: bool = False
) -> SearchStrategy[Tensor]:
    """Tensors of a shape: ones, zeros, a ramp from -1 to 1, normal numbers, these with zeros in between, large, small.

    A failing one shrinks towards ones.

    Args:
        shape: Sizes, or a strategy of tuples of sizes.
        dtype: Floating; of whole numbers, -2, -1, 0, 1 and 2 are drawn; of booleans both.
        requires_grad: Of each tensor.
        nonfinite: Some have a NaN or an infinity in them.

    Raises:
        ConfigurationError: ``testing_argument_invalid``.
    """
    if not isinstance(dtype, torch.dtype):
        raise argument_invalid(f"dtype={dtype!r} is no dtype of torch", "pass one, such as torch.float32")
    if not is_shape(shape) and not isinstance(shape, st.SearchStrategy):
        raise argument_invalid(f"{shape!r} is no shape", "pass whole numbers from 0 on, (2, 3), or a strategy of such")
    if (requires_grad or nonfinite) and not (dtype.is_floating_point or dtype.is_complex):
        asked = "requires_grad" if requires_grad else "nonfinite"
        raise argument_invalid(f"tensors of {dtype} were asked for with {asked}=True", "ask for a floating dtype")
    shapes: Any = shape if isinstance(shape, st.SearchStrategy) else st.just(tuple(shape))
    fills = {**FILLS, **({"spoilt": spoilt} if nonfinite else {})}

    @st.composite
    def tensor(draw: DrawFn) -> Tensor:
        sizes = tuple(draw(shapes))
        if not dtype.is_floating_point and not dtype.is_complex:
            generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
            return torch.randint(-2, 3, sizes, generator=generator).to(dtype)
        fill = fills[draw(st.sampled_from(list(fills)))]
        made = fill(sizes, torch.Generator().manual_seed(draw(st.integers(0, 99))))
        return made.to(dtype).requires_grad_(requires_grad)

    return tensor()
