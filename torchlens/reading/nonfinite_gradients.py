"""NaN and infinities among the kept gradients, for ``trace.health.gradients``.

Reads  what was kept of the gradients that came, or the statistics taken of them (extents.py), each once.
Rule   the first is the first that came, in the order in which the engine ran.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from projections.graph import NOWHERE
from torchlens.printable import amount, printable
from torchlens.reading.extents import Extents
from torchlens.reading.locations import place_in_model
from torchlens.reading.view import View

__all__ = ["GradientFinding", "NonfiniteGradient", "nonfinite_gradients_of"]


@attrs.frozen
class NonfiniteGradient:
    """A gradient with NaN or infinity."""

    label: str  # of the op, address of the parameter, or label of the firing where it is of neither
    pass_index: int  # the backward pass, from 1
    place: str | None  # "model.py:17", the line that the op was called at; None where that is not known
    num_nan: int
    num_inf: int

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place else ""
        return printable(f"{self.label}{at} in backward pass {self.pass_index}")


@attrs.frozen(repr=False)
class GradientFinding:
    """NaN and infinities among the kept gradients."""

    verdict: str  # "found", "checked_and_clean", or "not_checked" where no kept gradient could be looked at
    checked: int  # gradients looked at, or statistics of them
    unchecked: int  # kept gradients that are not to be had here, or cannot be looked at
    found: tuple[NonfiniteGradient, ...]  # those with NaN or infinity, in the order in which they came

    @property
    def first(self) -> NonfiniteGradient | None:
        """The first with NaN or infinity; None where there is none."""
        return self.found[0] if self.found else None

    @property
    def first_nan(self) -> NonfiniteGradient | None:
        """The first with NaN; None where there is none."""
        return next((each for each in self.found if each.num_nan), None)

    def __str__(self) -> str:
        return printable("; ".join(self.parts()))

    def __repr__(self) -> str:
        return f"<GradientFinding {self.verdict}: {self}>"

    def parts(self) -> Iterator[str]:
        nan = [each for each in self.found if each.num_nan]
        infinite = [each for each in self.found if not each.num_nan]
        for what, those in (("NaN", nan), ("infinities and no NaN", infinite)):
            if those:
                yield f"{what} first in that of {those[0]}, {len(those)} of {amount(self.checked, 'gradient')}"
        if not self.found and self.checked:
            yield f"all values of {amount(self.checked, 'gradient')} are finite"
        if self.unchecked:
            yield f"{amount(self.unchecked, 'gradient')} not looked at, which are not here or cannot be"
        if not self.checked and not self.unchecked:
            yield "none kept"


def nonfinite_gradients_of(view: View) -> GradientFinding:
    """Every kept gradient, or its statistics, is looked at, one after the other."""
    extents, forward = Extents(view), view.tables.forward
    autograd = forward.autograd
    owners = owners_of(view)
    found: list[NonfiniteGradient] = []
    checked = unchecked = 0
    for gradient, payload in enumerate(autograd.payloads):
        if payload is None and gradient not in autograd.figures:
            continue
        extent = extents.of_gradient(gradient)
        if extent is None:  # not to be had any more, or not to be looked at
            unchecked += 1
            continue
        checked += 1
        if extent.num_nonfinite:
            label, op = owners.get(gradient) or (firing_label(view, gradient), NOWHERE)
            number = autograd.gradient_fact(gradient, 1) + 1
            found.append(NonfiniteGradient(label, number, place_in_model(view, op), extent.num_nan, extent.num_inf))
    verdict = "found" if found else "checked_and_clean" if checked else "not_checked"
    return GradientFinding(verdict, checked, unchecked, tuple(found))


def owners_of(view: View) -> dict[int, tuple[str, int]]:
    """By observed gradient, whose it is, the first of several: op label or address of the parameter, and the op row."""
    made: dict[int, tuple[str, int]] = {}
    owned = view.tables.forward.gradients.owned
    for each, label in zip(owned, view.table("gradients").column("owner"), strict=True):
        made.setdefault(each.gradient, (label, each.op))
    return made


def firing_label(view: View, gradient: int) -> str:
    """Where a gradient came that is no op's and no parameter's; the label of the node where that did not fire."""
    autograd = view.tables.forward.autograd
    fire = autograd.fire_of[gradient]
    if fire == NOWHERE:
        return str(autograd.labels[autograd.rows[autograd.gradient_fact(gradient, 0)]])
    return autograd.call_label(fire)
