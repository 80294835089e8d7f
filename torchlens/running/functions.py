"""The functions that a run may call: by the name and import path that an event has, in closed tables.

Rule  a stored path is a key and nothing else. What is not in a table is not called, whatever it names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from torchlens import compat
from torchlens.capture import wrap
from torchlens.capture.functions import FUSED, NESTED
from torchlens.capture.taking import (
    ADDRESSES,
    FACTS,
    HELD,
    LENDING,
    READING,
    TAKING_FUNCTIONS,
    TAKING_METHODS,
    fact_of,
)

WHOLE_INSIDE: Final = frozenset((None, FUSED, NESTED))
"""Why a function was not watched inside, where it is torch's own and can be called as it was."""


def told_fact(name: str, tensor: Tensor, *rest: Any) -> Any:
    """What is told of a fact of a tensor; ``is_pinned`` is given a device, too, which torch does not look at."""
    return fact_of(name, tensor)


ANSWERING: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    **{(name, f"torch.Tensor.{name}"): compat.plain_method(name) for name in TAKING_METHODS},
    **{
        (name, f"torch.{name}"): getattr(compat.VARIABLE_FUNCTIONS, name)
        for name in TAKING_FUNCTIONS
        if hasattr(compat.VARIABLE_FUNCTIONS, name)
    },
    **{(name, f"torch.Tensor.{name}"): functools.partial(told_fact, name) for name in FACTS},
}
"""What takes numbers and answers out of tensors."""

OF_OBJECTS: Final = frozenset((name, f"torch.Tensor.{name}") for name in FACTS)
"""Those that are true of a tensor as an object, or of where it lies; of a copy another may be."""

HANDING_OUT: Final = frozenset(
    (
        *((name, f"torch.Tensor.{name}") for name in READING | LENDING | ADDRESSES),
        ("to_dlpack", "torch.to_dlpack"),
        (HELD.func_name, HELD.qualname),
    )
)
"""What gives the elements themselves, or leads to them; they are compared, and nothing is called."""


def function_of(name: str, path: str, opaque: str | None) -> Callable[..., Any] | None:
    """The function of a recorded call; None where there is none that may be called."""
    if opaque not in WHOLE_INSIDE:
        return None
    known = wrap.wrappers().function(name, path)
    if known is not None:
        return known.original if known.opaque in WHOLE_INSIDE else None
    found = compat.op_at(path)
    return found if found is not None and compat.is_computing_operator(found) else None


def is_writing(name: str, path: str) -> bool:
    """Whether a function is one of those that may write to an argument."""
    known = wrap.wrappers().function(name, path)
    return known is not None and known.writes is not None
