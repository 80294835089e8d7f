"""NaN and infinities among the kept gradients, for ``trace.health.gradients``.

Reads  the records of gradients and of firings, and what was kept of each gradient (extents.py), once.
Rule   the first is the first that came, in the order in which the engine ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import attrs

from journal.events import KeptTensor
from projections.errors import over_events
from projections.folds.graph import NOWHERE
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


class Came(NamedTuple):
    """A gradient that came and was kept, or measured in its place."""

    label: str
    pass_index: int
    op: int  # the op row that it is of; NOWHERE for others
    kept: KeptTensor | None
    figures: tuple[Any, ...] | None


def nonfinite_gradients_of(view: View) -> GradientFinding:
    """Every kept gradient, or its statistics, is looked at, one after the other."""
    extents = Extents(view)
    found: list[NonfiniteGradient] = []
    checked = unchecked = 0
    for label, number, op, kept, figures in came(view):
        extent = extents.of_cell(figures) if kept is None else extents.of_kept(kept)
        if extent is None:  # not to be had any more, or not to be looked at
            unchecked += 1
            continue
        checked += 1
        if extent.num_nonfinite:
            found.append(NonfiniteGradient(label, number, place_in_model(view, op), extent.num_nan, extent.num_inf))
    verdict = "found" if found else "checked_and_clean" if checked else "not_checked"
    return GradientFinding(verdict, checked, unchecked, tuple(found))


def came(view: View) -> list[Came]:
    """Every gradient that was kept or measured, in the order in which they came, each once."""
    with over_events():
        found = {**at_firings(view), **with_owners(view)}
        return [found[place] for place in sorted(found)]


Place: TypeAlias = "tuple[int, int, int, int]"
"""Event of the firing, or of what came at none; whether it left its node; node; place there."""


def with_owners(view: View) -> dict[Place, Came]:
    """Those of ops and parameters; of several whose it is, under the name of the first."""
    table = view.table("gradients")
    calls = view.table("grad_fn_calls").column("event")
    names = ("owner", "backward_pass_index", "op_row", "payload_ref", "shape", "dtype", "figures", "has_stored_stats")
    columns = [table.column(name) for name in (*names, "call_row", "grad_fn_row", "slot", "event")]
    made: dict[Place, Came] = {}
    for owner, number, op, ref, shape, dtype, figures, measured, call, node, slot, event in zip(*columns, strict=True):
        if ref is not None or measured:
            at = event if call == NOWHERE else calls[call]
            made.setdefault(
                (at, 0, node, slot), Came(owner, number, op, None if ref is None else (ref, shape, dtype), figures)
            )
    return made


def at_firings(view: View) -> dict[Place, Came]:
    """Those that came to a node that fired, or left one."""
    table = view.table("grad_fn_calls")
    labels, passes, nodes, events = (
        table.column(name) for name in ("call_label", "backward_pass_index", "grad_fn_row", "event")
    )
    made: dict[Place, Came] = {}
    for left, side in enumerate(("grad_outputs", "grad_inputs")):
        refs, likes, figures = (table.column(f"{side}{part}") for part in ("", "_like", "_figures"))
        for row, (kept, measured) in enumerate(zip(refs, figures, strict=True)):
            for slot in range(max(len(kept or ()), len(measured or ()))):
                ref = kept[slot] if kept is not None and slot < len(kept) else None
                cell = measured[slot] if measured is not None and slot < len(measured) else None
                if ref is not None or cell is not None:
                    shape, dtype = likes[row][slot][:2] if ref is not None else ((), "")
                    one = Came(labels[row], passes[row], NOWHERE, None if ref is None else (ref, shape, dtype), cell)
                    made[events[row], left, nodes[row], slot] = one
    return made
