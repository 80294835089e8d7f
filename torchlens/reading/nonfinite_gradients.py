"""NaN and infinities among the kept gradients, for ``trace.health.gradients``.

Reads  the records of gradients, what was kept at firings beside them, and these gradients themselves, each once.
Rule   the first is the first that came, in the order in which the engine ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from journal import JournalError
from projections.errors import over_events
from torchlens.errors import PayloadUnavailableError
from torchlens.printable import amount, printable
from torchlens.reading.locations import place_in_model
from torchlens.reading.view import View, no_torch

__all__ = ["GradientFinding", "NonfiniteGradient", "nonfinite_gradients_of"]


@attrs.frozen
class NonfiniteGradient:
    """A kept gradient with NaN or infinity."""

    label: str  # of the op, address of the parameter, or label of the firing where it is of neither
    pass_index: int  # the backward pass, from 1
    place: str | None  # "model.py:17", the line that the op was called at; None where that is not known
    num_nan: int
    num_infinite: int

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place else ""
        return printable(f"{self.label}{at} in backward pass {self.pass_index}")


@attrs.frozen(repr=False)
class GradientFinding:
    """NaN and infinities among the kept gradients."""

    verdict: str  # "found", "checked_and_clean", or "not_checked" where no kept gradient could be looked at
    checked: int  # gradients looked at
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


@attrs.frozen
class Candidate:
    """A kept gradient, and whose it is."""

    event: int
    label: str
    pass_index: int
    op: int  # row of the op; -1 for none
    kept: Any  # reference, shape, dtype


def nonfinite_gradients_of(view: View) -> GradientFinding:
    """Every kept gradient is looked at, one after the other."""
    try:
        from torchlens.tensors import nonfinite_elements  # for cost: records are read without torch
    except ModuleNotFoundError as exc:
        raise no_torch(exc) from exc

    found: list[NonfiniteGradient] = []
    checked = unchecked = 0
    for each in sorted(candidates(view), key=lambda each: each.event):
        try:
            counts = nonfinite_elements(view.kept_gradient(each.kept))
        except (PayloadUnavailableError, JournalError):  # not to be had any more
            counts = None
        if counts is None:
            unchecked += 1
            continue
        checked += 1
        if any(counts):
            place = place_in_model(view, each.op)
            found.append(NonfiniteGradient(each.label, each.pass_index, place, *counts))
    verdict = "found" if found else "checked_and_clean" if checked else "not_checked"
    return GradientFinding(verdict, checked, unchecked, tuple(found))


def candidates(view: View) -> Iterator[Candidate]:
    """The kept gradients, each once: of ops and parameters, then what was kept at firings beside them."""
    seen: set[int] = set()
    names = ("event", "owner", "backward_pass_index", "op_row", "payload_ref", "shape", "dtype")
    columns = [view.table("gradients").column(name) for name in names]
    for event, label, number, op, ref, shape, dtype in zip(*columns, strict=True):
        if ref is not None and ref[0] not in seen:
            seen.add(ref[0])
            yield Candidate(event, label, number, op, (ref, shape, dtype))
    calls = view.table("grad_fn_calls")
    for side in ("grad_outputs", "grad_inputs"):
        told = ("event", "call_label", "backward_pass_index", side, f"{side}_like")
        for event, label, number, refs, likes in zip(*(calls.column(name) for name in told), strict=True):
            with over_events():
                pairs = list(zip(refs or (), likes or (), strict=True))
                kept = [(ref, like[0], like[1]) for ref, like in pairs if ref is not None and ref[0] not in seen]
            for ref, shape, dtype in kept:
                seen.add(ref[0])
                yield Candidate(event, label, number, -1, (ref, shape, dtype))
