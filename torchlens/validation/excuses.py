"""Why a call may give the same whatever values a parent has: what torch's functions read, as tables.

Used only once a call has been seen to give the same. A row says what a function does by its documentation; it never
stands for a capture that recorded a wrong parent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from journal.events.template import HOLE
from projections.columnar.arguments import argument_paths, flat_kwargs
from projections.structure.memory import Executed

Argument: TypeAlias = "int | str"
"""An argument by position or by name."""


def rows(names: str, *arguments: Argument) -> dict[str, frozenset[Argument]]:
    return dict.fromkeys(names.split(), frozenset(arguments))


FORM_ONLY: Final[Mapping[str, frozenset[Argument]]] = {
    **rows("zeros_like ones_like empty_like full_like rand_like randn_like randint_like", 0, "input", "self"),
    **rows("_shape_as_tensor", 0, "self"),
    **rows("new_zeros new_ones new_empty new_full new_empty_strided new_tensor", 0, "self"),
    **rows("expand_as view_as reshape_as type_as align_as resize_as_ resize_as_sparse_ to", 1, "other"),
}
"""Arguments of which a function reads shape, dtype and device alone."""


def plain(call: Executed, position: int, name: str, default: Any) -> Any:
    """A plain argument by position or name; ``default`` where it was not given, or holds a tensor."""
    if position < len(call.args):
        found = call.args[position]
        return default if found == HOLE else found
    return dict(flat_kwargs(call.kwargs)).get(name, default)


def scalar_is(position: int, name: str, *values: Any) -> Callable[[Executed], bool]:
    return lambda call: plain(call, position, name, None) in values


def beta_or_alpha_is_nought(call: Executed) -> bool:
    named = dict(flat_kwargs(call.kwargs))
    return named.get("beta", 1) == 0 or named.get("alpha", 1) == 0


def always(call: Executed) -> bool:
    return True


def is_nan(call: Executed) -> bool:
    """Whether a plain argument is NaN, which most functions pass on whatever else they are given."""
    given = (*call.args, *(value for _, value in flat_kwargs(call.kwargs)))
    return any(type(value) is float and math.isnan(value) for value in given)


def table(names: str, holds: Callable[[Executed], bool]) -> dict[str, Callable[[Executed], bool]]:
    return dict.fromkeys(names.split(), holds)


CONSTANT: Final[Mapping[str, Callable[[Executed], bool]]] = {
    **table("pow pow_ __pow__ __ipow__ float_power", scalar_is(1, "exponent", 0)),
    **table("__rpow__", scalar_is(1, "other", 1)),
    **table(
        "mul mul_ multiply multiply_ __mul__ __rmul__ __imul__ bitwise_and bitwise_and_ __and__ __rand__ __iand__",
        scalar_is(1, "other", 0, False),
    ),
    **table("remainder remainder_ fmod fmod_ __mod__ __imod__", scalar_is(1, "other", 1, -1)),
    **table("bitwise_or __or__ logical_or", scalar_is(1, "other", True)),
    **table("addmm addmm_ baddbmm baddbmm_ addmv addmv_ addbmm addr sub add add_ sub_", beta_or_alpha_is_nought),
    **table("triu triu_ tril tril_ diagonal", always),  # by its shape and diagonal, nothing may be left
    **table("clamp clamp_ clip clip_ hardtanh hardtanh_", always),  # whole numbers, with equal bounds
}
"""Functions that give a constant for some plain arguments, and when."""


def arguments_of(call: Executed) -> Sequence[Argument]:
    """The argument in which each tensor of a call sits."""
    return [argument for argument, _ in argument_paths(call.args, call.kwargs)]
