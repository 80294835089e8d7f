"""What autograd kept for the backward of each call.

Reads  SavedForBackward, which stands behind the forward where it was asked for.
Gives  the fold of what each autograd node kept; makers of columns, by name; and the memory that some rows keep.
Rule   what a call kept is what the nodes of its results kept, told at each of its results. A result that is a tensor of
       an earlier call's, handed on, keeps nothing more. Memory that several nodes keep counts at each of them, and
       once in a sum over several calls.
Rule   None where it was not asked, where the call ran without autograd, for what is no call, and where torch does not
       tell.
Not    which tensors these are: only their size and memory were seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from journal.events import MODE_GRAD, SavedForBackward
from projections.fold import Fold
from projections.forward import Forward, first_results, once, one_each
from projections.makers import per_row
from projections.sequences import Each
from projections.split import appended
from projections.tables import Column, Maker, Table

Entry: TypeAlias = "tuple[int, int, int, int]"
"""A kept tensor: number of its storage, bytes of that, first byte within it, bytes."""

ASKED: Final = "measure_autograd_memory"
"""The capture option."""


@attrs.define(slots=True)
class Saved:
    """What nodes kept, as far as it was told."""

    nodes: list[int] = appended()
    tensors: list[tuple[Entry, ...] | None] = appended()  # of the node at the same place

    def by_node(self) -> dict[int, tuple[Entry, ...] | None]:
        return dict(zip(self.nodes, self.tensors, strict=True))


def saved_for_backward(
    saved: Saved, at: int, type_id: int, time_ns: int, node: int, tensors: tuple[Entry, ...] | None
) -> None:
    saved.tensors.append(tensors)
    saved.nodes.append(node)


SAVED: Final = Fold("saved", version=1, initial=Saved, handlers={SavedForBackward: saved_for_backward})


Kept: TypeAlias = "frozenset[Entry] | None"


@once
def kept_by_row(forward: Forward, _whole: int) -> Sequence[Kept]:
    """Per op row what its call kept; None where that is unknown or no question."""
    made: list[Kept] = [None] * len(forward)
    if not dict(forward.course.options).get(ASKED):
        return made
    first, details, function = first_results(forward, 0), forward.details, forward.rows.function
    owners: dict[int, int] = {}  # the call of each node: the first whose result has it
    of_call: dict[int, Kept] = {}
    for row, node in enumerate(details.nodes):
        brief = details.briefs[row]
        if function[row] < 0 or brief.mode is None or not brief.mode & MODE_GRAD:
            continue
        call = first[row]
        before = of_call.get(call, frozenset[Entry]())
        of_call[call] = None if before is None else joined(before, kept_of(forward, node, call, owners, brief))
    for row, call in enumerate(first):
        if call in of_call:
            made[row] = of_call[call]
    return made


def kept_of(forward: Forward, node: int | None, call: int, owners: dict[int, int], brief: Any) -> Kept:
    """What the node of one result kept, where it is this call's."""
    if node is None:
        return None if brief.requires_grad and brief.grad_fn is None else frozenset()
    if owners.setdefault(node, call) != call:
        return frozenset()
    found = forward.saved.get(node)
    return None if found is None else frozenset(found)


def joined(some: frozenset[Entry], more: Kept) -> Kept:
    return None if more is None else some | more


def memory_of(kept: Iterable[Entry]) -> int:
    """Bytes of some tensors: what stands twice counts once, and no storage counts for more than it is."""
    sizes: dict[int, int] = {}
    within: dict[int, int] = {}
    for storage, size, _, nbytes in set(kept):
        sizes[storage] = size
        within[storage] = within.get(storage, 0) + nbytes
    return sum([min(sizes[storage], nbytes) for storage, nbytes in within.items()])


def memory_inside(forward: Forward, rows: Iterable[int]) -> int | None:
    """Bytes that the calls which made some op rows keep, each once; None where none of them is known of."""
    kept = kept_by_row(forward, 0)
    known = [found for row in one_each(forward, rows) if (found := kept[row]) is not None]
    return memory_of([entry for found in known for entry in found]) if known else None


def of_kept(read: Callable[[frozenset[Entry]], int]) -> Maker[Forward]:
    """A column of something of what each row's call kept."""

    def one(forward: Forward, row: int) -> int | None:
        kept = kept_by_row(forward, 0)[row]
        return None if kept is None else read(kept)

    return per_row(one)


def of_passes(ops: Table[Forward]) -> Column:
    forward = ops.context
    return Each(
        forward,
        range(len(forward.groups.passes)),
        lambda context, layer: memory_inside(context, context.layer_ops[layer]),
    )


OPS: Final[Mapping[str, Maker[Forward]]] = {"autograd_memory": of_kept(memory_of), "num_autograd_tensors": of_kept(len)}
"""How each column of the op table that tells of kept memory is made, in order."""
