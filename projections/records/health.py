"""How far a capture can be trusted: what was not seen, and whether what ran was accounted for.

Reads  a ``Forward``, in it what the witness fold made.
Gives  makers of the facts about it in the capture table.
Rule   nothing is verified unless it was asked for, and a capture that did not come to its end is never verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from projections.columnar.tables import Maker
from projections.folds.graph import NOWHERE
from projections.forward import Forward
from projections.records.bounds import require, site_weights
from projections.records.makers import fact
from projections.records.opacity import opaque_rows
from projections.source.sites import frames

VERIFY: Final = "verify_capture"
"""The capture option that turns the escape detector and the completeness witness on."""

ACCOUNTED: Final = ("op", "question", "raised")
EXPECTED_OPAQUE: Final = ("opaque", "engine")
UNACCOUNTED: Final = ("composite", "nobody")
"""The owners of dispatched operators, by what they mean."""

Decomposition: TypeAlias = "tuple[int, tuple[int, ...]]"


def verifies(forward: Forward) -> bool:
    """Whether the capture was asked to account for every operator."""
    return dict(forward.course.options).get(VERIFY) is True


def count(forward: Forward, owners: tuple[str, ...]) -> int | None:
    """Dispatched operators with one of these owners; None where they were not counted."""
    if not verifies(forward):
        return None
    return sum([len(ran.operators) for ran in forward.witnessed.ran if ran.owner in owners])


def counted(owners: tuple[str, ...]) -> Callable[[Forward], int | None]:
    return lambda forward: count(forward, owners)


def num_escapes(forward: Forward) -> int | None:
    return len(forward.witnessed.escapes) if verifies(forward) else None


def finding(forward: Forward) -> tuple[bool | None, str]:
    """Whether the capture is verified, and why."""
    if not verifies(forward):
        return None, f"verification was not asked for; CaptureOptions({VERIFY}=True) accounts for every operator"
    escapes, unaccounted = num_escapes(forward) or 0, count(forward, ("composite",)) or 0
    if escapes or unaccounted:
        found: list[str] = []
        if escapes:
            found.append(f"{escapes} operator{'s' if escapes > 1 else ''} ran past the wrappers")
        if unaccounted:
            found.append(f"{unaccounted} ran inside a recorded call and belong to no op")
        return False, "; ".join(found)
    if forward.witnessed.threads:
        return False, "other threads called torch during the forward"
    if forward.witnessed.overwritten:
        return False, "some values were written where no wrapper looks after they were kept"
    if opaque_rows(forward, unseen=True):
        return False, "some tensors were made where no wrapper looks"
    status = forward.course.status
    if status not in ("complete", "halted"):
        return (
            None,
            f"the capture is {status}: what was recorded is accounted for, what would have followed is not known",
        )
    return True, "every operator that the dispatcher ran is accounted for"


def decompositions(forward: Forward) -> tuple[Decomposition, ...]:
    """Per op row, by its first result, the numbers of the operators that ran for it; islands are left out."""
    first: dict[int, int] = {}
    for row, event in enumerate(forward.rows.event):
        first.setdefault(event, row)
    ran = [(first.get(ran.by, NOWHERE), ran.operators) for ran in forward.witnessed.ran if ran.by is not None]
    return tuple([(row, operators) for row, operators in ran if row != NOWHERE])


def unaccounted(forward: Forward) -> tuple[Any, ...]:
    """Operators inside calls that were not recorded themselves: import path of the call, numbers of the operators."""
    paths = forward.words.func_qualnames
    found: list[Any] = []
    for ran in forward.witnessed.ran:
        if ran.owner == "composite":
            known = ran.function is not None and 0 <= ran.function < len(paths)
            found.append((paths[ran.function] if known and ran.function is not None else None, ran.operators))
    return tuple(found)


def escapes(forward: Forward) -> tuple[Any, ...]:
    """Per escape the number of its operator, its call site, the row of its module call, candidates, bindings."""
    return tuple([tuple(escape) for escape in forward.witnessed.escapes])


def escape_sites(forward: Forward) -> tuple[Any, ...]:
    """Call site and frames, outermost first, of each place of an escape, once."""
    sites = sorted({escape.site for escape in forward.witnessed.escapes})
    weights = site_weights(forward)
    require(forward, sum([weights[site] for site in sites if 0 <= site < len(weights)]))
    return tuple([(site, tuple(frames(forward.words, site))) for site in sites])


def overwritten_rows(forward: Forward) -> tuple[int, ...]:
    """Op rows whose values were written unseen after they were kept."""
    values = frozenset(forward.witnessed.overwritten)
    return tuple([row for row, value in enumerate(forward.rows.value) if value in values]) if values else ()


def nonfinite_reason(forward: Forward) -> str | None:
    """What the value had that the forward was left at."""
    stop = forward.course.nonfinite
    if stop is None:
        return None
    _, _, num_nan, num_inf = stop
    counts = ((num_nan, "NaN"), (num_inf, "infinite"))
    named = [f"{number} {what} element{'' if number == 1 else 's'}" for number, what in counts if number]
    return " and ".join(named)


CAPTURE: Final[dict[str, Maker[Forward]]] = {
    "opaque_rows": fact(lambda forward: opaque_rows(forward, unseen=False)),
    "unseen_rows": fact(lambda forward: opaque_rows(forward, unseen=True)),
    "overwritten_rows": fact(overwritten_rows),
    "threads": fact(lambda forward: tuple([tuple(thread) for thread in forward.witnessed.threads])),
    "verifies_capture": fact(verifies),
    "capture_mode": fact(lambda forward: "witnessed" if verifies(forward) else "wrapped"),
    "capture_verified": fact(lambda forward: finding(forward)[0]),
    "capture_verification_reason": fact(lambda forward: finding(forward)[1]),
    "num_escapes": fact(num_escapes),
    "escapes": fact(escapes),
    "escape_sites": fact(escape_sites),
    "num_dispatched": fact(counted((*ACCOUNTED, *EXPECTED_OPAQUE, *UNACCOUNTED))),
    "num_accounted": fact(counted(ACCOUNTED)),
    "num_expected_opaque": fact(counted(EXPECTED_OPAQUE)),
    "num_unaccounted": fact(counted(UNACCOUNTED)),
    "operators": fact(lambda forward: tuple(forward.witnessed.operators)),
    "decompositions": fact(decompositions),
    "unaccounted": fact(unaccounted),
    "nonfinite_stop": fact(lambda forward: forward.course.nonfinite),
    "nonfinite_reason": fact(nonfinite_reason),
}
"""The facts of the capture table that are made here, in order."""
