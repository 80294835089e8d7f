"""How far the elements of what a capture kept reach: of activations, arguments and gradients, each by its number.

Reads  statistics as they are; else a live tensor, else a payload, which is read once for all values that lie in it.
Gives  ``torchlens.measuring.Extent``; None where nothing was kept of a tensor, it is not to be had any more, or its
       elements cannot be looked at.
Rule   whoever asks whether a kept tensor is finite asks here: a trace's health and its first NaN are of one mind.
"""

from __future__ import annotations

from typing import Any, Final

from projections.errors import over_events
from projections.folds.graph import IDENTITY, OUTPUT
from projections.folds.retention import Figures, plain_ref
from projections.forward import Forward
from torchlens.reading.view import View, if_there, no_torch

__all__ = ["Extents"]


class Extents:
    """How far the tensors of a capture reach.

    Args:
        view: The capture.

    Raises:
        PayloadUnavailableError: ``torch_not_installed``.
    """

    def __init__(self, view: View) -> None:
        try:
            from torchlens import measuring  # for cost: records are read without torch
        except ModuleNotFoundError as exc:
            raise no_torch(exc) from exc
        self.view: Final = view
        self.forward: Final[Forward] = view.tables.forward
        self.measuring: Final = measuring
        self.ahead: dict[int, Any] = {}  # by value, of those that lie in a payload that was read
        self.shared: Final = shared_payloads(self.forward)

    def of_value(self, value: int, payload: Any, dtype: str, shape: Any) -> Any:
        """Of a value.

        Args:
            value: Its number.
            payload: Where it was kept with its own event; None where it was not.
            dtype, shape: Its own.
        """
        forward = self.forward
        if value in forward.measured:
            return self.of_figures(forward.measured[value])
        if value in self.ahead:
            return self.ahead.pop(value)
        ref = forward.payloads.get(value, payload)
        if ref is None:
            return None
        ref = plain_ref(ref)
        handles = self.view.handles
        held = None if handles is None else if_there(lambda: handles.tensor(value))  # None: overwritten since
        if held is not None:
            return self.measuring.extent_of(held)
        return self.of_stored(value, ref, dtype, tuple(shape))

    def of_stored(self, value: int, ref: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Of stored bytes, which are read once for all values that lie in them."""
        from torchlens.tensors import from_payload  # for cost: records are read without torch

        def taken() -> Any:
            with over_events():
                data = self.view.journal.payload(self.view.stream, ref[0])
                found = self.measuring.extent_of(from_payload(data, dtype, shape, *ref[1:]))
                data = memoryview(data).toreadonly()  # what was measured may lie in it
                for other, (_, *place), kind, sizes in self.shared.pop(ref[0], ()):
                    if other != value:
                        self.ahead[other] = self.measuring.extent_of(from_payload(data, kind, sizes, *place))
                return found

        return if_there(taken)

    def of_gradient(self, gradient: int) -> Any:
        """Of an observed gradient."""
        autograd = self.forward.autograd
        if gradient in autograd.figures:
            return self.of_figures(autograd.figures[gradient])
        ref = autograd.payloads[gradient]
        shape, dtype, _ = autograd.like(gradient)
        return None if ref is None else self.of_kept((ref, shape, dtype))

    def of_kept(self, kept: Any) -> Any:
        """Of an argument or a gradient that was kept beside a call."""
        return if_there(lambda: self.measuring.extent_of(self.view.kept(kept)))

    def of_cell(self, figures: Any) -> Any:
        """Of statistics that were kept, as a table has them."""
        return self.of_figures(None if figures is None else Figures(*figures))

    def of_figures(self, figures: Any) -> Any:
        """Of statistics that were kept."""
        if figures is None:
            return None
        return self.measuring.Extent(figures.size, figures.num_nan, figures.num_inf, figures.min, figures.max)


def shared_payloads(forward: Forward) -> dict[int, list[tuple[int, Any, str, tuple[int, ...]]]]:
    """By payload in which several values lie, these: value, reference, dtype and shape."""
    refs, found = forward.payload_refs, dict[int, int]()
    shared: dict[int, list[tuple[int, Any, str, tuple[int, ...]]]] = {}
    for row, ref in enumerate(refs):
        if ref is None or forward.rows.function[row] in (OUTPUT, IDENTITY):  # these show the value of another row
            continue
        first = found.setdefault(ref[0], row)
        if first != row:
            for each in (first, row) if ref[0] not in shared else (row,):
                brief, value = forward.detail(each).brief, forward.rows.value[each]
                shared.setdefault(ref[0], []).append((value, refs[each], str(brief.dtype), brief.shape or ()))
    return shared
