"""The functions that a run may call: by the name and import path that an event has, in closed tables.

Rule  a stored path is a key and nothing else. What is not in a table is not called, whatever it names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torchlens import compat
from torchlens.capture import wrap
from torchlens.capture.functions import FUSED, NESTED
from torchlens.capture.replayable import ADDRESSES, LENDING, READING, TAKING_FUNCTIONS, TAKING_METHODS

WHOLE_INSIDE: Final = frozenset((None, FUSED, NESTED))
"""Why a function was not watched inside, where it is torch's own and can be called as it was."""

ANSWERING: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    **{(name, f"torch.Tensor.{name}"): compat.unwrapped_method(name) for name in TAKING_METHODS},
    **{(name, f"torch.{name}"): getattr(compat.VARIABLE_FUNCTIONS, name) for name in TAKING_FUNCTIONS},
}
"""What takes numbers and answers out of tensors."""

HANDING_OUT: Final = frozenset((name, f"torch.Tensor.{name}") for name in READING | LENDING | ADDRESSES)
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
