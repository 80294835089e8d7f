"""What autograd kept for the backward of each call, and what of that is there because of it.

Reads  SavedForBackward, which stands behind the forward where it was asked for.
Gives  the fold of what each autograd node kept; makers of columns, by name; and sums over any op rows.
Rule   what a call kept is what the nodes of its results kept, told at each of its results. A result that is a tensor of
       an earlier call's, handed on, keeps nothing more. Memory that several nodes keep counts at each of them, and
       once in a sum over several calls.
Rule   each storage is charged whole, once, to the first call that keeps some of it: without the graph it would have
       been free to go. What was there before the forward is told apart: the model's parameters and buffers, and the
       inputs. So charges add up, over ops, modules or layers, to the same.
Rule   None where it was not asked, where the call ran without autograd, for what is no call, and where torch does not
       tell; the reason is told. A sum over a layer or a module is None where torch does not tell a part; one over the
       whole capture is over what is known, beside the list of what is not.
Not    which tensors these are: only their size and memory were seen. What a backward within the forward freed is
       gone, and a call whose memory that was kept nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from journal.events import MODE_GRAD, SavedForBackward
from projections.columnar.sequences import Each
from projections.columnar.tables import Column, Maker, Table
from projections.errors import contradictory
from projections.folds.fold import Fold
from projections.folds.graph import IDENTITY, OPAQUE, OUTPUT
from projections.folds.split import appended, first_of
from projections.forward import Forward, first_results, once, one_each
from projections.records.makers import fact, per_row
from projections.structure.rows import is_op

Entry: TypeAlias = "tuple[int, int, int, int, str | None]"
"""A kept tensor: number of its storage, bytes of that, first byte within it, bytes; whose the storage was before."""

ASKED: Final = "measure_autograd_memory"
"""The capture option."""


@attrs.define(slots=True)
class Saved:
    """What nodes kept, as far as it was told."""

    nodes: list[int] = appended()
    tensors: list[tuple[Entry, ...] | str] = appended()  # of the node at the same place, or what of it did not tell
    told: dict[int, int] = first_of("nodes")
    numbers: list[int] = appended()  # of storages
    by_number: dict[int, int] = first_of("numbers")
    storages: list[tuple[int, str | None]] = appended()  # bytes and owner of the storage at the same place

    def by_node(self) -> dict[int, tuple[Entry, ...] | str]:
        return dict(zip(self.nodes, self.tensors, strict=True))


def saved_for_backward(
    saved: Saved,
    at: int,
    type_id: int,
    time_ns: int,
    node: int,
    tensors: tuple[Entry, ...] | None,
    untold: str | None,
) -> None:
    what = untold if tensors is None else tensors
    if what is None or (tensors is not None and untold is not None):
        raise contradictory(f"what autograd node {node} kept is told and is not, or neither")
    if saved.told.setdefault(node, len(saved.nodes)) != len(saved.nodes):
        raise contradictory(f"what autograd node {node} kept is told twice")
    for entry in tensors or ():
        require_sound(saved, entry)
    saved.tensors.append(what)
    saved.nodes.append(node)


def require_sound(saved: Saved, entry: Entry) -> None:
    """A kept tensor with possible sizes, in a storage that is the same wherever it is told of."""
    number, size, first, nbytes, owner = entry
    if min(number, size, first, nbytes) < 0:
        raise contradictory(f"a tensor is kept in storage {number} that has less than no bytes, or begins before it")
    row = saved.by_number.setdefault(number, len(saved.numbers))
    if row == len(saved.numbers):
        saved.numbers.append(number)
        saved.storages.append((size, owner))
    elif saved.storages[row] != (size, owner):
        raise contradictory(f"storage {number} is told of with several sizes or owners")


SAVED: Final = Fold("saved", version=1, initial=Saved, handlers={SavedForBackward: saved_for_backward})


# What each call kept ------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """What the call of an op row kept.

    Attributes:
        tensors: None where that is unknown, or no question.
        reason: Why; None for inputs, outputs and buffers, of which nobody asks.
        is_untold: Whether it kept something that torch does not tell.
    """

    tensors: frozenset[Entry] | None
    reason: str | None = None
    is_untold: bool = False


NOTHING: Final = Kept(frozenset())
NO_QUESTION: Final = Kept(None)
UNASKED: Final = Kept(None, f"it was not measured: {ASKED}=True asks for that")
OFF: Final = Kept(
    None,
    "autograd was off; what a node around it keeps, as that of a reentrant checkpoint, is charged to the next recorded"
    " op that uses it, and is in no sum where none does",
)
UNSEEN: Final = Kept(None, "its autograd node was not looked at", is_untold=True)


def untold_by(what: str) -> Kept:
    return Kept(None, f"torch does not tell what a {what} holds", is_untold=True)


@once
def kept_by_row(forward: Forward, _whole: int) -> Sequence[Kept]:
    """Per op row what its call kept."""
    function = forward.rows.function
    if not dict(forward.course.options).get(ASKED):
        return [UNASKED if is_op(number) else NO_QUESTION for number in function]
    first, details = first_results(forward, 0), forward.details
    made = [NO_QUESTION] * len(forward)
    owners: dict[int, int] = {}  # the call of each node: the first whose result has it
    of_call: dict[int, Kept] = {}
    unwatched: list[int] = []  # tensors that came from where no wrapper looks: theirs are the nodes that no call has
    for row, node in enumerate(details.nodes):
        brief, number, call = details.briefs[row], function[row], first[row]
        if number <= OPAQUE:
            unwatched.append(row)
        elif number < 0:
            of_call[row] = NOTHING if number == IDENTITY else NO_QUESTION
        elif brief.mode is not None and not brief.mode & MODE_GRAD:
            of_call[call] = OFF
        else:
            of_call[call] = joined(of_call.get(call, NOTHING), kept_of(forward, node, call, owners, brief))
    for row in unwatched:
        of_call[row] = kept_of(forward, details.nodes[row], row, owners, details.briefs[row])
    for row in forward.of_kind(OUTPUT, IDENTITY):  # a write through a view leaves the whole a node that no result has
        node, parents = details.nodes[row], forward.parents[row]
        if node is None or node in owners or not parents:
            continue
        call = first[forward.origin(parents[0])]
        if function[call] >= 0:
            of_call[call] = joined(of_call[call], kept_of(forward, node, call, owners, details.briefs[row]))
    for row, call in enumerate(first):
        made[row] = of_call[call]
    return made


def kept_of(forward: Forward, node: int | None, call: int, owners: dict[int, int], brief: Any) -> Kept:
    """What the node of one result kept, where it is this call's."""
    if node is None:
        return UNSEEN if brief.requires_grad and brief.grad_fn is None else NOTHING
    if owners.setdefault(node, call) != call:
        return NOTHING
    found = forward.saved.get(node)
    if found is None:
        return UNSEEN
    return untold_by(found) if isinstance(found, str) else Kept(frozenset(found))


def joined(some: Kept, more: Kept) -> Kept:
    if some.tensors is None or more.tensors is None:
        return some if some.tensors is None else more
    return Kept(some.tensors | more.tensors) if more.tensors else some


def memory_of(kept: Iterable[Entry]) -> int:
    """Bytes of some tensors: what stands twice counts once, and no storage counts for more than it is."""
    sizes: dict[int, int] = {}
    within: dict[int, int] = {}
    for storage, size, _, nbytes, _ in set(kept):
        sizes[storage] = size
        within[storage] = within.get(storage, 0) + nbytes
    return sum([min(sizes[storage], nbytes) for storage, nbytes in within.items()])


def memory_inside(forward: Forward, rows: Iterable[int]) -> int | None:
    """Bytes that the calls which made some op rows keep, each once; None where none of them is known of."""
    kept = kept_by_row(forward, 0)
    known = [found for row in one_each(forward, rows) if (found := kept[row].tensors) is not None]
    return memory_of([entry for found in known for entry in found]) if known else None


def of_kept(read: Callable[[frozenset[Entry]], int]) -> Maker[Forward]:
    """A column of something of what each row's call kept."""

    def one(forward: Forward, row: int) -> int | None:
        kept = kept_by_row(forward, 0)[row].tensors
        return None if kept is None else read(kept)

    return per_row(one)


# What each call is charged with -------------------------------------------------------------------------


class Charge(NamedTuple):
    """Bytes of the storages that a call was the first to keep, by whose they were before the forward."""

    nobodys: int = 0
    models: int = 0
    inputs: int = 0


WHOSE: Final = {"parameter": 1, "buffer": 1, "input": 2}
"""Place in a charge by owner; 0 for what no one had."""


@once
def charges(forward: Forward, _whole: int) -> Sequence[Charge | None]:
    """Per op row what its call is charged with; None where that is unknown, or no question."""
    first, kept = first_results(forward, 0), kept_by_row(forward, 0)
    made: list[Charge | None] = []
    charged: set[int] = set()
    for row, found in enumerate(kept):
        if first[row] != row:
            made.append(made[first[row]])
        elif found.tensors is None:
            made.append(None)
        else:
            amounts = [0, 0, 0]
            for storage, size, _, _, owner in sorted(found.tensors, key=str):
                if storage not in charged:
                    charged.add(storage)
                    amounts[WHOSE.get(owner or "", 0)] += size
            made.append(Charge(*amounts))
    return made


def charged_with(place: int) -> Maker[Forward]:
    """A column of a part of what each row's call is charged with."""

    def one(forward: Forward, row: int) -> int | None:
        charge = charges(forward, 0)[row]
        return None if charge is None else charge[place]

    return per_row(one)


def charged_inside(forward: Forward, rows: Iterable[int], place: int) -> int | None:
    """A part of what the calls that made some op rows are charged with, added; None where torch does not tell one."""
    kept, own = kept_by_row(forward, 0), one_each(forward, rows)
    if any(kept[row].is_untold for row in own):
        return None
    return charged_of(forward, own, place)


def charged_of(forward: Forward, firsts: Iterable[int], place: int) -> int | None:
    """The same of the first rows of some calls, over what is known; None where nothing is."""
    charge = charges(forward, 0)
    known = [found[place] for row in firsts if (found := charge[row]) is not None and forward.is_op[row]]
    return sum(known) if known else None


def of_passes(inside: Callable[[Forward, Iterable[int]], int | None]) -> Maker[Table[Forward]]:
    """The sum over the passes of a layer."""

    def make(ops: Table[Forward]) -> Column:
        forward = ops.context
        return Each(
            forward,
            range(len(forward.groups.passes)),
            lambda context, layer: inside(context, context.layer_ops[layer]),
        )

    return make


def part(place: int) -> Callable[[Forward, Iterable[int]], int | None]:
    return lambda forward, rows: charged_inside(forward, rows, place)


def over_capture(place: int) -> Maker[Forward]:
    """The sum over all calls of which it is known; None where it is known of none."""
    return fact(lambda forward: charged_of(forward, one_each(forward, range(len(forward))), place))


def untold_ops(forward: Forward) -> tuple[str, ...]:
    labels = forward.labels.op
    return tuple([labels[row] for row, kept in enumerate(kept_by_row(forward, 0)) if kept.is_untold])


PARTS: Final[Mapping[str, int]] = {
    "saved_for_backward": 0,
    "saved_params_for_backward": 1,
    "saved_inputs_for_backward": 2,
}
"""Place in a charge by the name of its column."""

INSIDE: Final[Mapping[str, Callable[[Forward, Iterable[int]], int | None]]] = {
    name: part(place) for name, place in PARTS.items()
}
"""The sum over some op rows, by the name of the column that tells it of one."""

OPS: Final[Mapping[str, Maker[Forward]]] = {
    "autograd_memory": of_kept(memory_of),
    "num_autograd_tensors": of_kept(len),
    **{name: charged_with(place) for name, place in PARTS.items()},
    "saved_for_backward_reason": per_row(lambda forward, row: kept_by_row(forward, 0)[row].reason),
}
"""How each column of the op table that tells of kept memory is made, in order."""

LAYERS: Final[Mapping[str, Maker[Table[Forward]]]] = {
    "total_autograd_memory": of_passes(memory_inside),
    **{f"total_{name}": of_passes(inside) for name, inside in INSIDE.items()},
}
"""How each sum over the passes of a layer is made, in order."""

CAPTURE: Final[Mapping[str, Maker[Forward]]] = {
    "total_autograd_memory": fact(lambda forward: memory_inside(forward, range(len(forward)))),
    **{f"total_{name}": over_capture(place) for name, place in PARTS.items()},
    "untold_saved_ops": fact(untold_ops),
}
"""How each fact about the whole capture's kept memory is made, in order."""
