"""Inner nodes: autograd nodes that a call made besides those at which its results stand.

Reads  the nodes of ``Autograd``, and the op rows that stand at them.
Gives  by node the op whose call made it, where that op's result stands at another node.
Rule   a call may make several nodes: ``linear`` of a batch of matrices makes one for a product and one for the view of
       it that is returned. An op stands at the last alone. The others lie behind it, in front of the nodes of the
       calls that gave its arguments: what is reached from the nodes of one call, with no node of an op between, is
       that call's, which is named by its first result. What several calls reach is nobody's.
Rule   nodes are numbered as they are made, so those of a call lie between those of the calls before and after. What
       does not was made elsewhere, as what lies behind a tensor of which the capture did not see how it was made.
       Where such a tensor is given to the first call of all, there is no number to tell: it has no inner nodes.
Rule   a node of a Python ``autograd.Function`` is no inner node, nor is what it leads to: what called it was no op, as
       with a reentrant checkpoint.
Not    which op a node differentiates (pairing.py), or where nodes belong that lead to no op (containment.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from projections.autograd.pairing import Pairing
from projections.folds.graph import NOWHERE, OPAQUE

SEVERAL: Final = -2
"""Stands for an op where several could be meant, or one that is none of the forward's calls."""

FIRST_ORDER: Final = 1


def inner_nodes(pairing: Pairing, first: Sequence[int], saw_arguments: Callable[[int], bool]) -> list[int]:
    """By node, the op whose call made it besides those of its results; NOWHERE for all other nodes.

    Each node is looked at when all that lead to it have been.

    Args:
        pairing: Nodes and op rows.
        first: By op row, the first of its call.
        saw_arguments: Of a call, by its first result, whether it was seen how all that was given to it was made.
    """
    autograd, op_of, functions = pairing.autograd, pairing.op_of, pairing.rows.function
    calls = [NOWHERE if op == NOWHERE else first[op] if is_call(functions[op]) else SEVERAL for op in op_of]
    numbers = Numbers(pairing, calls, first, saw_arguments)
    in_python = [is_python for _, _, is_python in autograd.state.classes]
    may_be = [
        op == NOWHERE and number is not None and not is_made and order == FIRST_ORDER and not in_python[kind]
        for op, number, is_made, order, kind in zip(
            op_of, numbers.of_nodes, autograd.is_made, autograd.orders, autograd.kinds, strict=True
        )
    ]
    waiting = autograd.parents.lengths()
    ready = [node for node, count in enumerate(waiting) if not count]
    for node in ready:
        call = calls[node]
        for child in autograd.children[node]:
            if call != NOWHERE and may_be[child] and (call == SEVERAL or numbers.allow(call, child)):
                calls[child] = call if calls[child] in (NOWHERE, call) else SEVERAL
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    return [call if call >= 0 and inner else NOWHERE for call, inner in zip(calls, may_be, strict=True)]


def is_call(function: int) -> bool:
    """Whether a row is of a call, be it of a function that was not watched."""
    return function >= 0 or function <= OPAQUE


class Numbers:
    """Which numbers the nodes of a call can have.

    Args:
        pairing: Nodes and op rows.
        calls: By node, the first result of the call at whose results it stands; below 0 for others.
        first: By op row, the first of its call.
        saw_arguments: Of a call, whether it was seen how all that was given to it was made.

    Attributes:
        of_nodes: By node, its number; None for one that gathers the gradient of a leaf.
    """

    def __init__(
        self, pairing: Pairing, calls: Sequence[int], first: Sequence[int], saw_arguments: Callable[[int], bool]
    ) -> None:
        autograd, count = pairing.autograd, len(first)
        self.of_nodes: Final = [autograd.state.sequences[node] for node in autograd.folded]
        self.least: Final[list[int | None]] = [None] * (count + 1)  # by row, of the calls from there on
        self.most: Final[list[int | None]] = [None] * (count + 1)  # by row, of all rows before it
        for op, call, number in zip(pairing.op_of, calls, self.of_nodes, strict=True):
            if op != NOWHERE and number is not None:
                row = call if call >= 0 else op
                self.most[row + 1] = larger(self.most[row + 1], number)
                if call >= 0:
                    self.least[row] = smaller(self.least[row], number)
        for row in range(count):
            self.most[row + 1] = larger(self.most[row + 1], self.most[row])
        for row in reversed(range(count)):
            self.least[row] = smaller(self.least[row], self.least[row + 1])
        self.behind: Final = list(range(1, count + 1))  # by row, the one behind the last result of its call
        for row in reversed(range(count - 1)):
            if first[row + 1] == first[row]:
                self.behind[row] = self.behind[row + 1]
        self.functions: Final = pairing.rows.function
        self.saw_arguments: Final = saw_arguments

    def allow(self, call: int, node: int) -> bool:
        """Whether a node can be one of a call, named by its first result."""
        number, before, after = self.of_nodes[node], self.most[call], self.least[self.behind[call]]
        if number is None:
            return False
        if before is None and (self.functions[call] <= OPAQUE or not self.saw_arguments(call)):
            return False  # it may be older than the forward
        return (before is None or number > before) and (after is None or number < after)


def larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def smaller(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
