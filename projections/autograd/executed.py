"""Executed FLOPs: what the operators that ran in backward passes add up to, by firing and by pass.

Reads  the nodes and firings of ``Autograd``, and the events that tell of operators.
Gives  of each operator its name, count and firing; of firings and passes which operators they ran, the sums of those,
       and what these leave out.
Rule   an operator is charged to the firing that it ran in. Those in no recorded node are unattributed; those in a node
       of another capture are that one's, and in no sum here.
Not    what an operator costs (formulas/operator_flops.py), or whether a pass told all that it ran
       (records/executed_columns.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from journal.events import BackwardDispatched, Row
from projections.autograd.nodes import Autograd, gathered
from projections.columnar.sequences import Ragged
from projections.folds.backward import DISPATCHED_WIDTH, FIRE_WIDTH
from projections.folds.graph import NOWHERE
from projections.formulas.operator_flops import family_of, has_no_work, operator_flops
from projections.structure.details import field

OPERATOR: Final = field(BackwardDispatched, "operator")
IS_ELSEWHERE: Final = field(BackwardDispatched, "is_elsewhere")
GRAD_ENABLED: Final = field(BackwardDispatched, "grad_enabled")
INPUTS: Final = field(BackwardDispatched, "inputs")
OUTPUTS: Final = field(BackwardDispatched, "outputs")
SETTINGS: Final = field(BackwardDispatched, "settings")

Families = tuple[tuple[str, int], ...]
"""Families of operators, and how many calls of each."""


class Dispatched(NamedTuple):
    """What an event tells of an operator, with its count. Equal ones are one object."""

    name: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    flops: int | None  # None where it has no formula
    is_elsewhere: bool
    grad_enabled: bool


class Executed:
    """The operators of one capture's backward passes.

    Args:
        autograd: Nodes, passes and firings.
        scan: Gives place and row of each of some events.
    """

    def __init__(self, autograd: Autograd, scan: Callable[[Sequence[int]], Iterator[tuple[int, Row]]]) -> None:
        self.autograd: Final = autograd
        self.scan: Final = scan
        told = autograd.state.dispatched
        self.passes: Final[Sequence[int]] = told[0::DISPATCHED_WIDTH]
        self.folded: Final[Sequence[int]] = told[1::DISPATCHED_WIDTH]  # the node, as the fold has it
        self.events: Final[Sequence[int]] = told[2::DISPATCHED_WIDTH]

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def told(self) -> list[Dispatched]:
        """By operator, in order."""
        known: dict[Dispatched, Dispatched] = {}
        made: list[Dispatched] = []
        for _, event in self.scan(self.events):
            name, inputs, outputs = event[OPERATOR], event[INPUTS], event[OUTPUTS]
            flops = operator_flops(name, inputs, outputs, event[SETTINGS])
            call = Dispatched(name, inputs, outputs, flops, event[IS_ELSEWHERE], event[GRAD_ENABLED])
            made.append(known.setdefault(call, call))
        return made

    @cached_property
    def nodes(self) -> list[int]:
        """By operator, the row of the node that ran; NOWHERE for none that this capture was told of."""
        rows = self.autograd.rows
        return [node if node == NOWHERE else rows[node] for node in self.folded]

    @cached_property
    def fires(self) -> list[int]:
        """By operator, the firing that it ran in; NOWHERE for none.

        It is the next one of its node in its pass. What ran behind the hooks of a node may have been told after the
        firing: then it is the last.
        """
        state = self.autograd.state
        fired: dict[tuple[int, int], list[int]] = {}
        for fire, key in enumerate(zip(state.fires[1::FIRE_WIDTH], state.fires[0::FIRE_WIDTH], strict=True)):
            fired.setdefault(key, []).append(fire)
        at, made = state.fires[2::FIRE_WIDTH], list[int]()
        for number, node, event in zip(self.passes, self.folded, self.events, strict=True):
            fires = fired.get((number, node))
            place = 0 if fires is None else bisect_left(fires, event, key=at.__getitem__)
            made.append(NOWHERE if fires is None else fires[min(place, len(fires) - 1)])
        return made

    @cached_property
    def in_fires(self) -> Ragged[int]:
        """By firing, the operators that ran in it."""
        count = self.autograd.num_fires
        found = gathered([count if fire == NOWHERE else fire for fire in self.fires], count + 1)
        return Ragged(found.items, found.ends[: count + 1])

    @cached_property
    def in_passes(self) -> Ragged[int]:
        """By pass, the operators that ran in it."""
        return gathered(list(self.passes), self.autograd.num_passes)

    def own(self, number: int) -> list[int]:
        """The operators of a pass that are this capture's."""
        return [row for row in self.in_passes[number] if not self.told[row].is_elsewhere]

    def of_others(self, number: int) -> list[int]:
        """The operators of a pass that ran in a node of another capture."""
        return [row for row in self.in_passes[number] if self.told[row].is_elsewhere]

    def unattributed(self, number: int) -> list[int]:
        """The operators of a pass that ran in no firing of a recorded node."""
        return [row for row in self.own(number) if self.fires[row] == NOWHERE]

    def flops(self, rows: Iterable[int]) -> int:
        """The FLOPs of those of some operators that have a count."""
        return sum([flops for row in rows if (flops := self.told[row].flops) is not None])

    @cached_property
    def in_all(self) -> list[int]:
        """By pass, the FLOPs of its operators."""
        return [self.flops(self.own(number)) for number in range(self.autograd.num_passes)]

    def uncounted(self, rows: Iterable[int]) -> Families:
        """The families of some operators that do work and have no count, as they first appear."""
        found = Counter([family_of(self.told[row].name) for row in rows if self.told[row].flops is None])
        return tuple([(family, calls) for family, calls in found.items() if not has_no_work(family)])
