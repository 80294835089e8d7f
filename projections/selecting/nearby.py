"""Selectors of what ran before or after: ``preceded_by`` and ``followed_by``, each within a bounded number of ops.

Reads  the op rows that stay and those on islands: what ran, ran, whether or not anything came of it.
Rule   calls follow each other in the order of their events; all results of one call come at once, so none
       of them is before another. Inputs, buffers and outputs are no ops and are not counted.
Note   What comes after an op is not known when the op returns: a live answer waits for so many further ops.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar, Final, TypeAlias

import attrs

from projections.build import CaptureTables
from projections.errors import SelectionError
from projections.selecting.selector import (
    AllOf,
    AnyOf,
    Compound,
    LiveFacts,
    Not,
    Record,
    Selector,
    Tables,
    Verdict,
    record_of_islands,
    selector_argument,
)

Both: TypeAlias = "tuple[set[int], set[int]]"
"""Op rows among those that stay, and among those on islands."""

MOST: Final = 1024
"""Ops that a look back or ahead may span, those of selectors inside it included."""


@attrs.frozen(repr=False)
class Nearby(Compound):
    """Ops near which, within so many ops, there is one that a selector matches."""

    of: Selector
    within: int

    @property
    def varies(self) -> bool:
        return True

    def parts(self) -> tuple[Selector, ...]:
        return (self.of,)

    def spans(self, event: int, events: list[int]) -> tuple[int, int]:
        """First and last place, the latter left out, of the ops that are looked at from a row of this event."""
        raise NotImplementedError

    def found(self, tables: Tables, record: Record) -> set[int]:
        kept, islands = self.everywhere(tables.kept, record)
        return kept if tables is tables.kept else islands

    def everywhere(self, kept: CaptureTables, record: Record) -> Both:
        """The op rows it matches among those that stay, and among those on islands."""
        matched = everywhere(self.of, kept, record)
        ran = sorted([*ops_of(kept, 0), *ops_of(kept.islands, 1)])
        events = [event for _, event, _, _ in ran]
        counts = [0, *accumulate(row in matched[side] for _, _, side, row in ran)]

        def rows_of(tables: Tables) -> Iterator[int]:
            for row, event in enumerate(tables.forward.rows.event):
                first, last = self.spans(event, events)
                if counts[max(first, 0)] < counts[min(last, len(ran))]:
                    yield row

        return set(rows_of(kept)), set(rows_of(kept.islands))

    def __repr__(self) -> str:
        return f"{self.word}({self.of!r}, within={self.within})"


def everywhere(selector: Selector, kept: CaptureTables, record: Record) -> Both:
    """What any selector matches among the rows that stay, and among those on islands.

    Both at once, since a look back from either side sees both: asked one by one, a look inside a look would be
    worked out anew for each side of each.
    """
    if isinstance(selector, Nearby):
        return selector.everywhere(kept, record)
    if isinstance(selector, Not):
        of_kept, of_islands = everywhere(selector.of, kept, record)
        return set(range(len(kept.ops))) - of_kept, set(range(len(kept.orphans))) - of_islands
    if isinstance(selector, AnyOf | AllOf):
        (of_kept, of_islands), *others = [everywhere(part, kept, record) for part in selector.of]
        for more_kept, more_islands in others:
            of_kept = of_kept | more_kept if isinstance(selector, AnyOf) else of_kept & more_kept
            of_islands = of_islands | more_islands if isinstance(selector, AnyOf) else of_islands & more_islands
        return of_kept, of_islands
    return selector.found(kept, record), selector.found(kept.islands, record_of_islands(kept, record))


def ops_of(tables: Tables, side: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each op that ran: its position among all rows, its event, its side, and its row there."""
    forward = tables.forward
    for row, is_op in enumerate(forward.is_op):
        if is_op:
            yield forward.rows.ordinal[row], forward.rows.event[row], side, row


class PrecededBy(Nearby):
    """Ops that ran within so many ops after a match."""

    __slots__ = ()

    word: ClassVar[str] = "preceded_by"

    @property
    def behind(self) -> int:
        return self.within + self.of.behind

    @property
    def ahead(self) -> int:
        return (
            self.of.ahead
        )  # from a buffer on, say, which is no op itself: what follows the op before it has yet to run

    def live(self, facts: LiveFacts) -> Verdict:
        answers = [self.of.live(one) for one in facts.before(self.within)]
        return True if True in answers else None if None in answers else False

    def spans(self, event: int, events: list[int]) -> tuple[int, int]:
        first = bisect_left(events, event)
        return first - self.within, first


class FollowedBy(Nearby):
    """Ops after which, within so many ops, a match ran."""

    __slots__ = ()

    word: ClassVar[str] = "followed_by"

    @property
    def behind(self) -> int:
        return self.of.behind  # likewise

    @property
    def ahead(self) -> int:
        return self.within + self.of.ahead

    def live(self, facts: LiveFacts) -> Verdict:
        following, is_all = facts.after(self.within)
        answers = [self.of.live(one) for one in following]
        if True in answers:
            return True
        return None if None in answers or not is_all else False

    def spans(self, event: int, events: list[int]) -> tuple[int, int]:
        behind = bisect_right(events, event)
        return behind, behind + self.within


def preceded_by(selector: Selector | str, *, within: int = 1) -> Selector:
    """Ops that ran soon after another: ``tl.func("linear") & tl.preceded_by(tl.func("relu"))``.

    Args:
        selector: What ran before; a string means a label.
        within: How many ops back, from 0 to 1,024; by default the one right before.

    Raises:
        SelectionError: ``lookback_invalid``.
    """
    return bounded(PrecededBy(selector_argument(selector, "preceded_by"), within))


def followed_by(selector: Selector | str, *, within: int = 1) -> Selector:
    """Ops after which another ran soon: ``tl.func("linear") & tl.followed_by(tl.func("relu"))``.

    As ``save=``, what it may match is held until ``within`` further ops have run. ``stop_after=`` refuses it: an op is
    known to match only when others have run.

    Args:
        selector: What ran afterwards; a string means a label.
        within: How many ops on, from 0 to 1,024; by default the very next one.

    Raises:
        SelectionError: ``lookback_invalid``.
    """
    return bounded(FollowedBy(selector_argument(selector, "followed_by"), within))


def bounded(selector: Nearby) -> Selector:
    within: object = selector.within
    if type(within) is int and within >= 0 and max(selector.behind, selector.ahead) <= MOST:
        return selector
    raise SelectionError(
        code="lookback_invalid",
        problem=f"within={within!r} is no number of ops from 0 to {MOST}, selectors inside included",
        remedy="pass a whole number within that range",
        within=repr(within),
        most=MOST,
    )
