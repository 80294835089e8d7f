"""How large records may become: what an event says once and many records repeat.

Reads  a ``Forward``.
Gives  a refusal, ``records_too_large``, before anything of that size is made.
Rule   The bound is a flat amount, which a recursion some thousand calls deep stays below, and as much for each op,
       call, module and tensor as no capture comes near. What is worked out a cell at a time counts only where all
       cells are written out.
Not    what is as large as the graph makes it (siblings, ancestors), or the edges of one call (folds/graph.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from journal.errors import JournalError
from projections.folds.backward import FIRE_WIDTH, NODE_WIDTH
from projections.folds.graph import OPAQUE
from projections.forward import Forward

FLAT: Final = 1 << 27
EACH: Final = 1 << 13
"""Bytes that the records of any capture may take, and as many more for each op, call, module and tensor."""

ITEM: Final = 16
"""What an item of a list takes beside its characters."""

BELOW: Final = 8
"""Columns of a module that gather what stands in the modules below it."""

KEYS: Final = 12
"""Texts of an op that have its function's name in them: labels, lookup keys and the function itself."""


def require_bounded(forward: Forward) -> None:
    """Refuse records that would take memory out of all proportion to their events.

    Raises:
        JournalError: ``records_too_large``.
    """
    rows, words = forward.rows, forward.words
    modules = [
        len(module.address) + len(module.class_name) + len(module.class_qualname) + sum(map(len, module.aliases))
        for module in words.modules
    ]
    weight = total(rows.function, function_weights(forward)) + total(forward.calls.module, modules)
    weight += ITEM * (len(rows.parents.items) + sum(call_depths(forward)) + BELOW * sum(nesting(forward)))
    weight += sum(node_weights(forward))
    require(forward, weight)


def require_writable(forward: Forward) -> None:
    """Refuse to write out records whose paths and frames would take room out of all proportion to their events.

    Raises:
        JournalError: ``records_too_large``.
    """
    rows, names = forward.rows, function_weights(forward)
    paths, sites = path_weights(forward), site_weights(forward)
    weight = sum(paths) + total(rows.call, paths) + total(rows.site, sites)
    if rows.branches:
        weight += forward.conditionals.weight * (4 * ITEM + max(map(len, forward.conditional_ids), default=0))
    if len(rows.parents.items) * max(names, default=0) > FLAT:
        weight += sum([weight_at(names, rows.function[parent]) for parent in rows.parents.items]) // KEYS
    weight += edge_weight(forward)
    require(forward, weight)


def require(forward: Forward, weight: int) -> None:
    words = forward.words
    told = len(forward.rows) + len(forward.calls) + len(words.modules) + len(words.parameters) + len(words.buffers)
    told += len(forward.backward.numbers) + len(forward.backward.durations)
    if weight > FLAT + EACH * told:
        raise JournalError(
            code="records_too_large",
            problem=f"the records of this stream would take about {weight} bytes, for {told} ops, calls and modules",
            remedy="read its events, or single records; no model is known that has such names or is so nested",
            weight=weight,
            told=told,
        )


def total(numbers: Sequence[int], weights: Sequence[int]) -> int:
    """The weights of some numbers, added; of a negative number that from the end, of an unknown one nothing."""
    return sum([weight_at(weights, number) * times for number, times in Counter(numbers).items()])


def weight_at(weights: Sequence[int], number: int) -> int:
    return weights[number] if -len(weights) <= number < len(weights) else 0


def function_weights(forward: Forward) -> list[int]:
    """By number of the function, what each of its ops says of it; unwatched ones and kinds of row at the end."""
    words = forward.words
    reasons = [len(reason or "") for reason in words.func_opaque]
    seen = zip(words.func_names, words.func_qualnames, reasons, strict=True)
    unwatched = [KEYS * (len(name) + ITEM) for name in reversed(forward.names.opaque)]
    return [
        *(KEYS * (len(name) + ITEM) + len(path) + reason for name, path, reason in seen),
        *unwatched,
        *[KEYS * ITEM] * -(OPAQUE + 1),
    ]


def node_weights(forward: Forward) -> list[int]:
    """By autograd node, as the fold has them, what is made of its class's name: the labels of it and of its firings."""
    backward = forward.backward
    names = [len(name) + len(qualname) + ITEM for name, qualname, _ in backward.classes]
    weights = [2 * names[kind] for kind in backward.nodes[0::NODE_WIDTH]]
    for node in backward.fires[0::FIRE_WIDTH]:
        weights[node] += names[backward.nodes[node * NODE_WIDTH]]
    return weights


def edge_weight(forward: Forward) -> int:
    """The labels at both ends of the edges between autograd nodes."""
    backward = forward.backward
    names = [len(name) + ITEM for name, _, _ in backward.classes]
    kinds = backward.nodes[0::NODE_WIDTH]
    bounds = zip(kinds, pairwise(backward.ends), strict=True)
    weight = sum([names[kind] * (behind - first) for kind, (first, behind) in bounds])
    towards = [node for number in backward.edges[0::2] if (node := backward.told.get(number)) is not None]
    return weight + sum([names[kinds[node]] for node in towards])


def call_depths(forward: Forward) -> list[int]:
    """By module call, how many calls it is inside of, itself counted. A call stands behind the one around it."""
    depths: list[int] = []
    for outer in forward.calls.parent:
        depths.append(1 if outer < 0 else depths[outer] + 1)
    return depths


def nesting(forward: Forward) -> list[int]:
    """Of each module and each tensor, how many modules hold it, one in another."""
    depths: list[int] = []
    for module in forward.words.modules:  # behind the one that holds it
        depths.append(1 if module.parent is None else depths[module.parent] + 1)
    tensors = (*forward.words.parameters, *forward.words.buffers)
    return [*depths, *(depths[tensor.module] for tensor in tensors if 0 <= tensor.module < len(depths))]


def path_weights(forward: Forward) -> list[int]:
    """By module call, the labels of the calls around it and its own."""
    weights: list[int] = []
    for module, outer in zip(forward.calls.module, forward.calls.parent, strict=True):
        around = weights[outer] if outer >= 0 else 0
        weights.append(around + len(forward.words.module_path(module)) + ITEM)
    return weights


def site_weights(forward: Forward) -> list[int]:
    """By call site, its frames."""
    codes = [len(code.file) + len(code.name) + len(code.qualname) + ITEM for code in forward.words.codes]
    weights: list[int] = []
    for number, site in enumerate(forward.words.sites):
        around = weights[site.caller] if site.caller is not None and 0 <= site.caller < number else 0
        weights.append(around + weight_at(codes, site.code))
    return weights
