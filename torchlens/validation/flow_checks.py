"""Whether gradients flowed as the records say: what nodes sent on adds up to what arrived where they lead.

Reads  firings that kept what arrived and what was sent, and the edges that passes told.
Gives  one ``Check`` for each gradient that arrived at an output of a node.
Rule   of what an edit or a hook of the user's touched, nothing is said: a hook on a tensor, or before the node of a
       leaf, stands between the sum and what arrives. A root gets its seed from outside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from projections.records.passes import ROOTS, opened
from torchlens import compat
from torchlens.bits import gap, is_close, same_bits
from torchlens.reading.facade import Trace
from torchlens.validation.findings import Check

__all__ = ["HookedPlaces", "flow_checks"]

Edge: TypeAlias = "tuple[Any, int]"
"""A node, or its row, and which of its outputs."""


class HookedPlaces:
    """Where hooks of the user's stand on tensors, for those put on while this is on."""

    def __init__(self) -> None:
        self.places: Final[set[Edge]] = set()

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        original = Tensor.register_hook
        places = self.places

        def register_hook(tensor: Tensor, hook: Callable[..., Any]) -> Any:
            node = compat.node_of(tensor)
            if node is not None:
                places.add((node, tensor.output_nr))
            return original(tensor, hook)

        Tensor.register_hook = register_hook  # type: ignore[method-assign]  # put back below
        try:
            yield
        finally:
            Tensor.register_hook = original  # type: ignore[method-assign]  # likewise

    def has(self, node: Any, slot: int) -> bool:
        """Whether a hook may change what arrives there; a leaf has its own."""
        leaf = None if node is None else compat.leaf_of(node)
        if leaf is not None:
            return compat.num_tensor_hooks(leaf) > 0 or compat.has_prehooks(node)
        return (node, slot) in self.places


def flow_checks(trace: Trace, hooked: HookedPlaces) -> Iterator[Check]:
    """Each gradient that arrived, against the sum of those that were sent there, pass by pass."""
    autograd = trace.tables.forward.autograd
    passes, missing = trace.autograd.backward_passes, trace.tables.grad_fn_calls.column("missing_outputs")
    at, with_op = frozenset(trace.tables.forward.pairing.at), trace.tables.grad_fns.column("has_op")

    def told(place: Edge) -> bool:
        """Whether what arrives there is kept: of a node with ops, at the outputs at which one of them stands."""
        return place in at or not with_op[place[0]]

    calls, nodes = trace.autograd.grad_fn_calls, trace.autograd.grad_fns
    for number in range(autograd.num_passes):
        firings = () if passes[number].is_transient else autograd.fires_in[number]
        sent: dict[Edge, list[Tensor]] = {}
        reached: dict[int, set[int]] = {}  # by row of a node, the outputs that something was sent to
        unknown: set[Edge] = set()
        for fire in firings:
            row, given = autograd.fire_rows[fire], calls[fire].grad_inputs
            for place, towards in enumerate(autograd.inputs_of(row)):
                if towards is None:
                    continue
                if given is None:
                    unknown.add(towards)
                elif place < len(given) and given[place] is not None:
                    sent.setdefault(towards, []).append(given[place])
                    reached.setdefault(towards[0], set()).add(towards[1])
        roots = rooted(trace, number)
        for fire in firings:
            row = autograd.fire_rows[fire]
            came = calls[fire].grad_outputs or ()
            for slot in sorted({*range(len(came)), *reached.get(row, ())}):
                here, arrived = (row, slot), came[slot] if slot < len(came) else None
                if here in roots:
                    continue
                name = f"{calls[fire].call_label} output {slot}"
                terms = sent.get(here, [])
                if adds_up(terms, arrived):
                    yield Check("flow", name)
                elif here in unknown or (arrived is None and not told(here) and slot not in missing[fire]):
                    yield Check("flow", name, None, None, "skipped", "gradient_not_kept")
                elif hooked.has(nodes[row].handle, slot):
                    yield Check("flow", name, None, None, "skipped", "changed_by_hook")
                else:
                    yield Check("flow", name, None, None, "failed", "flow_inconsistent", missed(terms, arrived))


def rooted(trace: Trace, number: int) -> frozenset[Edge]:
    """The places at which a pass began."""
    forward = trace.tables.forward
    edges = (edge for edge, _ in opened(forward, number)[ROOTS] if edge is not None)
    return frozenset([(forward.autograd.row_of(node), slot) for node, slot in edges])


def adds_up(terms: Sequence[Tensor], arrived: Tensor | None) -> bool:
    """Whether gradients, added in the order in which they came, are what arrived.

    Several threads of the engine may add in another order, so three and more may differ as sums do.
    """
    if arrived is None or not terms:
        return arrived is None and not terms
    made = total(terms)
    return same_bits(made, arrived) or (len(terms) > 2 and is_close(made, arrived, None, None))


def total(terms: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        made = terms[0]
        for term in terms[1:]:
            made = term + made if made.layout != torch.strided else made + term  # dense + sparse, never the other way
        return made


def missed(terms: Sequence[Tensor], arrived: Tensor | None) -> str:
    if arrived is None or not terms:
        return f"{len(terms)} gradients were sent there, and {'none' if arrived is None else 'one'} arrived"
    return gap(total(terms), arrived)
