"""Selectors of what a backward pass does: nodes by class and label, their two sides, passes; and what they match.

    (tl.grad_fn("addmm") | tl.without_op()) & tl.grad_output() - tl.in_backward_pass(1)

A question of this kind is asked of a ``Spot``: one side of an autograd node in one pass. Selectors of the forward
combine with these: of a spot they say what they say of the op that stands there, and there are none they match where
no op stands.

Rule   of ``Not``, what is left is of the same spots: of ops among ops, of nodes among nodes. A spot at which several
       ops stand is one spot for each.
       A selector that names nodes or sides is asked of both sides; any other of outputs alone, where gradients of ops
       and increments of leaves are.
Not    which spots there are: a pass that is about to run and finished tables ask the same (``matching``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from journal.events.backward import Side
from projections.autograd.nodes import type_of
from projections.build import CaptureTables
from projections.errors import SelectionError, SelectorTypeError
from projections.selecting.selector import (
    AllOf,
    AnyOf,
    GradientOf,
    LiveFacts,
    Not,
    Record,
    Selector,
    Tables,
    Term,
    Verdict,
    names_gradients,
    text_argument,
)

About: TypeAlias = Literal["op", "gradient", "node", "mixed"]
"""What a selector means: ops, gradients of ops, autograd nodes, or more than one of these side by side."""

NARROWEST_FIRST: Final[tuple[About, ...]] = ("mixed", "node", "gradient", "op")
"""Of selectors that must all match, the first of these says what is meant."""


@attrs.frozen(kw_only=True)
class Spot:
    """One side of an autograd node in one pass, at the place of one op or of none."""

    class_name: str  # of the node
    label: str  # of the node
    is_custom: bool  # a Python ``autograd.Function``
    has_op: bool  # it differentiates some op
    side: Side
    row: int | None  # of the op; None at an output that no op has
    pass_index: int  # from 1


@attrs.frozen(repr=False)
class BackwardTerm(Term):
    """A question about a spot."""

    is_of_backward: ClassVar[bool] = True
    names_nodes: ClassVar[bool] = True

    def holds(self, spot: Spot) -> bool:
        """Whether a spot matches."""
        raise NotImplementedError

    def live(self, facts: LiveFacts) -> Verdict:
        raise names_gradients(self)

    def found(self, tables: Tables, record: Record) -> set[int]:
        raise names_gradients(self)

    def __repr__(self) -> str:
        return f"{self.word}()"


@attrs.frozen(repr=False)
class OfNode(BackwardTerm):
    """Autograd nodes by class, label, and who wrote them."""

    word: ClassVar[str] = "grad_fn"

    type: str | None
    label: str | None
    is_custom: bool | None

    def holds(self, spot: Spot) -> bool:
        kind = None if self.type is None else self.type.lower()
        return (
            (kind is None or kind in (spot.class_name.lower(), type_of(spot.class_name)))
            and (self.label is None or self.label.lower() in spot.label)
            and (self.is_custom is None or self.is_custom is spot.is_custom)
        )

    def __repr__(self) -> str:
        given = [repr(self.type)] if self.type is not None else []
        given += [f"label={self.label!r}"] if self.label is not None else []
        given += [f"is_custom={self.is_custom}"] if self.is_custom is not None else []
        return f"grad_fn({', '.join(given)})"


@attrs.frozen(repr=False)
class WithoutOp(BackwardTerm):
    """Autograd nodes that differentiate no op."""

    word: ClassVar[str] = "without_op"

    def holds(self, spot: Spot) -> bool:
        return not spot.has_op


@attrs.frozen(repr=False)
class AtInputs(BackwardTerm):
    """Gradients that leave a node."""

    word: ClassVar[str] = "grad_input"

    def holds(self, spot: Spot) -> bool:
        return spot.side == "input"


@attrs.frozen(repr=False)
class AtOutputs(BackwardTerm):
    """Gradients that arrive at a node."""

    word: ClassVar[str] = "grad_output"

    def holds(self, spot: Spot) -> bool:
        return spot.side == "output"


@attrs.frozen(repr=False)
class InPass(BackwardTerm):
    """Everything in one backward pass."""

    word: ClassVar[str] = "in_backward_pass"
    names_nodes: ClassVar[bool] = False

    number: int  # from 1

    def holds(self, spot: Spot) -> bool:
        return spot.pass_index == self.number

    def __repr__(self) -> str:
        return f"in_backward_pass({self.number})"


# -- what a selector means


def about(selector: Selector) -> About:
    """What a selector means, by what it is built of.

    A selector of the forward means ops by itself, and beside a selector of gradients narrows what that one means.
    """
    if isinstance(selector, GradientOf):
        return "gradient"
    if isinstance(selector, BackwardTerm):
        return "node" if selector.names_nodes else "gradient"
    if isinstance(selector, Not):
        return about(selector.of)
    if isinstance(selector, AnyOf):
        kind = about(selector.of[0])
        return kind if all(about(part) == kind for part in selector.of) else "mixed"
    if isinstance(selector, AllOf):
        kinds = {about(part) for part in selector.of}
        for kind in NARROWEST_FIRST:
            if kind in kinds:
                return kind
    return "op"


def names_nodes(selector: Selector) -> bool:
    """Whether a selector names nodes or their sides, so that both sides of a node are asked about."""
    return any(isinstance(node, BackwardTerm) and node.names_nodes for node in selector.nodes())


def matching(selector: Selector, rows_of: Callable[[Selector], Iterable[int]]) -> Callable[[Spot], bool]:
    """Whether a selector matches a spot, as a function of the spot.

    Args:
        selector: Any selector; one of the forward alone will do.
        rows_of: Gives the op rows that a selector of the forward matches. It is asked once for each part.

    Raises:
        SelectionError: ``selector_names_gradients``, where one of gradients stands inside one of the forward.
    """
    if isinstance(selector, BackwardTerm):
        return selector.holds
    if isinstance(selector, GradientOf):
        of = matching(selector.of, rows_of)
        return lambda spot: spot.side == "output" and spot.row is not None and of(spot)
    if isinstance(selector, Not):
        other = matching(selector.of, rows_of)
        return lambda spot: not other(spot)
    if isinstance(selector, AnyOf | AllOf):
        parts = [matching(part, rows_of) for part in selector.of]
        some_or_all = any if isinstance(selector, AnyOf) else all
        return lambda spot: some_or_all(part(spot) for part in parts)
    rows = frozenset(rows_of(selector))
    return lambda spot: spot.row in rows


def behind_outputs(rows: Iterable[int], tables: CaptureTables) -> set[int]:
    """The op rows at which the gradients of some rows are: an output has that of the op whose value it is."""
    origins, is_output = tables.ops.column("origin_row"), tables.ops.column("is_output")
    found = {origins[row] if is_output[row] else row for row in rows}
    return {row for row in found if not is_output[row]}


# -- what people call


def grad_fn(
    type: str | type[object] | None = None, *, label: str | None = None, is_custom: bool | None = None
) -> Selector:
    """Autograd nodes: ``grad_fn("ReluBackward0")``, ``grad_fn("relu")``, ``grad_fn(label="addmm_back_1")``.

    Args:
        type: Class of the node, whole or as its label begins, whatever its case; or the class itself, of a node or of
            a Python ``autograd.Function``.
        label: Part of the node's label.
        is_custom: Whether it is of a Python ``autograd.Function``.

    Without arguments it matches every node. As ``save_grads=`` it keeps what arrives at these nodes and what leaves
    them, and the gradients of their ops.

    Raises:
        SelectorTypeError: ``selector_argument_type_invalid``.
    """
    if type is not None and not isinstance(type, str):
        type = text_argument(getattr(type, "__name__", type), "grad_fn")
    if label is not None:
        label = text_argument(label, "grad_fn")
    return OfNode(type, label, switch_argument(is_custom))


def switch_argument(given: object) -> bool | None:
    if given is None or isinstance(given, bool):
        return given
    raise SelectorTypeError(
        code="selector_argument_type_invalid",
        problem=f"is_custom={given!r} is neither True nor False",
        remedy="pass one of these, or leave it out",
        received_type=type(given).__name__,
    )


def without_op() -> Selector:
    """Autograd nodes that differentiate no op of the forward: those of a loss, of transposed weights, and of parameters
    and other leaves."""
    return WithoutOp()


def grad_input() -> Selector:
    """Gradients that leave a node, with respect to the inputs of the call that it differentiates."""
    return AtInputs()


def grad_output() -> Selector:
    """Gradients that arrive at a node, with respect to the outputs of the call that it differentiates."""
    return AtOutputs()


def in_backward_pass(number: int) -> Selector:
    """Everything in one backward pass, from 1: ``tl.func("attn") & tl.in_backward_pass(2)``.

    Raises:
        SelectionError: ``selector_pass_invalid``.
    """
    given: object = number
    if not isinstance(given, bool) and isinstance(given, Integral) and 1 <= int(given) < 2**63:
        return InPass(int(given))
    raise SelectionError(
        code="selector_pass_invalid",
        problem=f"{number!r} is no number of a backward pass",
        remedy="passes are numbered from 1: in_backward_pass(1) is the first",
        number=repr(number),
    )
