"""What a picture is asked for: options that were checked, with what is refused about them.

Gives  ``PictureOptions``, the words of a caller with what they are by default, and ``Request``, made of them by
       ``asked``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from projections.build import CaptureTables
from projections.errors import ConfigurationError, PayloadUnavailableError
from projections.picture.firings import Firings

GraphKind: TypeAlias = Literal["forward", "backward", "combined"]
Showing: TypeAlias = Literal["never", "meaningful", "always"]
Mode: TypeAlias = Literal["none", "auto", "max"]
Collapse: TypeAlias = "Mode | int | float | str | Iterable[str]"
Line: TypeAlias = Literal["shape", "module", "params", "flops", "time", "memory"]

WORDS: Final[Mapping[GraphKind, tuple[str, ...]]] = {
    "forward": ("ops",),
    "backward": ("grad_fns",),
    "combined": ("ops", "grad_fns"),
}
"""What a picture is of, as it is counted."""

MODES: Final[tuple[Mode, ...]] = ("none", "auto", "max")

SMALL: Final = 30
"""Ops or autograd nodes up to which nothing is folded unless that is asked for: with what stands beside them, inputs,
parameters and buffers, so many fit into ``MOST_NODES``, and folding them would hide what there is room for."""

MOST_NODES: Final = 40
"""Nodes that an automatic picture has at most, where that can be: of a GPT-2 of two layers as many take two screens,
and sixty took three."""


def as_lines(given: Any) -> Any:
    """Some lines as a tuple, and anything else as if it were one, to be refused."""
    is_several = isinstance(given, list | tuple)
    lines: list[Any] = [*given] if is_several else [given]
    return tuple(lines)


def as_passes(given: Any) -> Any:
    """The number of a backward pass, or some, as a tuple; anything else as if it were one, to be refused."""
    return given if given is None else as_lines(given)


@attrs.frozen(kw_only=True)
class PictureOptions:
    """What a picture is to show, as it was asked for; ``picture_of`` checks it.

    Attributes:
        graph: ``forward``; ``backward``, the autograd nodes that backward passes met; ``combined``, both, each op
            joined with its own.
        rolled: Draw each layer once, with its passes, and each module once; else every op and every call.
        collapse: Which modules are drawn closed, as one node: ``none``; ``max``, all that the root calls; a depth, all
            that have so many calls around them, the root's counted; a part, from 0.0 (none) to 1.0 (as ``max``);
            addresses of modules or labels of their calls; ``auto``, so that there are ``most_nodes`` or a few more.
        fold_repeats: Draw equal siblings as one, ``x N``, where that tells the truth, and inputs or outputs that differ
            in a number; None does so where there are more than 30 ops, unless ``collapse="none"``.
        buffers: Versions of buffers to draw: ``never``, ``always``, or those that carry a value between ops.
        params: Parameters to draw: ``never``, ``always``, or those that several modules take. In a backward, where they
            are what gathers a gradient, all are meaningful.
        node_lines: What nodes tell under their title, in this order: ``shape``, ``module``, ``params``, ``flops``,
            ``time``, ``memory``.
        most_nodes: Of ``auto``.
        bwd: Numbers of the backward passes to draw, from 1, or the number of one; None for all.
        orphans: Draw ops that neither an input nor an output reaches, where the records have them.
    """

    graph: GraphKind = "forward"
    rolled: bool = False
    collapse: Collapse = "auto"
    fold_repeats: bool | None = None
    buffers: Showing = "meaningful"
    params: Showing = "meaningful"
    node_lines: Sequence[Line] = attrs.field(default=("shape", "module"), converter=as_lines)
    most_nodes: int = MOST_NODES
    bwd: int | Sequence[int] | None = attrs.field(default=None, converter=as_passes)
    orphans: bool = False


USUAL: Final = PictureOptions()
"""What a picture shows where nothing else is asked for."""


@attrs.frozen
class Request:
    """Options that were checked, and what they mean for these records.

    Attributes:
        options: The options.
        collapse: A mode; a depth as int; a part as float; or the module calls that are drawn closed.
        fold_repeats: Whether equal siblings are drawn as one.
        passes: Numbers of the backward passes that are drawn; None for all.
    """

    options: PictureOptions
    collapse: Mode | int | float | frozenset[int]
    fold_repeats: bool
    passes: frozenset[int] | None = None


def asked(tables: CaptureTables, options: PictureOptions) -> Request:
    """The options as a request; here they are whatever somebody gave.

    Raises:
        ConfigurationError: for what is no value of an option.
        PayloadUnavailableError: ``backward_graph_unavailable``.
    """
    graph, folds, most_nodes = options.graph, options.fold_repeats, options.most_nodes
    require_one_of("visualization_mode_invalid", "graph", graph, get_args(GraphKind))
    for name in ("rolled", "orphans"):
        if type(getattr(options, name)) is not bool:
            raise no_option(name, getattr(options, name), "give True or False")
    if folds is not None and type(folds) is not bool:
        raise ConfigurationError(
            code="fold_repeats_invalid",
            problem=f"fold_repeats is {folds!r}",
            remedy='give True or False; None folds what is large unless collapse="none"',
        )
    require_one_of("buffer_visibility_invalid", "buffers", options.buffers, get_args(Showing))
    require_one_of("buffer_visibility_invalid", "params", options.params, get_args(Showing))
    for line in options.node_lines:
        require_one_of("visualization_node_style_invalid", "node_lines", line, get_args(Line))
    if type(most_nodes) is not int or most_nodes < 1:
        raise no_option("most_nodes", most_nodes, "give a whole number from 1 on: nodes that an automatic picture has")
    if graph != "forward" and not len(tables.grad_fns):
        raise PayloadUnavailableError(
            code="backward_graph_unavailable",
            problem=f"a {graph} picture shows autograd nodes, and no backward pass of this capture was recorded",
            remedy='call trace.backward(loss) first, or draw graph="forward"',
        )
    passes = chosen_passes(tables, options)
    how = collapsing(tables, options.collapse)
    folds = (how != "none" and is_large(tables, options, passes)) if folds is None else folds
    return Request(options, how, folds, passes)


def chosen_passes(tables: CaptureTables, options: PictureOptions) -> frozenset[int] | None:
    """The backward passes that are asked for."""
    given: Any = options.bwd
    if given is None:
        return None
    if options.graph == "forward":
        raise no_option("bwd", given, 'leave it out, or draw graph="backward" or "combined": a forward shows no pass')
    recorded = len(tables.backward_passes)
    if not given or not all(type(number) is int and 1 <= number <= recorded for number in given):
        raise no_option("bwd", given, f"give the number of a backward pass, or several, from 1 to {recorded}")
    return frozenset(given)


def is_large(tables: CaptureTables, options: PictureOptions, passes: frozenset[int] | None) -> bool:
    """Whether there is enough to draw that one would rather see less of it."""
    if options.graph == "backward":
        return sum(Firings(tables, passes).drawn) > SMALL
    rows = tables.layers if options.rolled else tables.ops
    return len(rows) > SMALL and len(rows) - sum(rows.column("is_buffer")) > SMALL


def require_one_of(code: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise invalid(code, name, value, allowed)


def invalid(code: str, name: str, value: Any, allowed: Iterable[Any]) -> ConfigurationError:
    return ConfigurationError(
        code=code,
        problem=f"{name} is {value!r}",
        remedy=f"give one of {', '.join(map(repr, allowed))}",
    )


def no_option(argument: str, value: Any, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        code="option_value_invalid", problem=f"{argument} is {value!r}", remedy=remedy, argument=argument
    )


def collapsing(tables: CaptureTables, collapse: Any) -> Mode | int | float | frozenset[int]:
    """Which modules are drawn closed, as a request has it."""
    if isinstance(collapse, str):
        for mode in MODES:
            if collapse == mode:
                return mode
        return calls_named(tables, (collapse,))
    if isinstance(collapse, bool) or collapse is None:
        raise no_mode(collapse)
    if isinstance(collapse, int):
        if collapse < 0:
            raise no_level(collapse)
        return collapse
    if isinstance(collapse, float):
        if not 0.0 <= collapse <= 1.0:
            raise no_level(collapse)
        return collapse
    try:
        named = tuple(collapse)
    except TypeError:
        raise no_mode(collapse) from None
    if not all(isinstance(name, str) for name in named):
        raise no_mode(collapse)
    return calls_named(tables, named)


def no_mode(collapse: Any) -> ConfigurationError:
    return ConfigurationError(
        code="collapse_mode_invalid",
        problem=f"collapse is {collapse!r}",
        remedy='give "none", "auto", "max", a depth such as 1, a part from 0.0 to 1.0, or addresses of modules',
    )


def no_level(collapse: float) -> ConfigurationError:
    return ConfigurationError(
        code="collapse_level_invalid",
        problem=f"collapse is {collapse!r}",
        remedy="give a depth from 0 on as a whole number, or a part from 0.0 (all open) to 1.0 (all closed)",
    )


def calls_named(tables: CaptureTables, named: Sequence[str]) -> frozenset[int]:
    """Rows of the module calls of these addresses, or call labels."""
    calls = tables.module_calls
    rows: dict[str, list[int]] = {}
    for row, (label, names) in enumerate(zip(calls.column("call_label"), calls.column("all_addresses"), strict=True)):
        for name in (label, *names):
            rows.setdefault(name, []).append(row)
    found: set[int] = set()
    for name in named:
        if name not in rows:
            near = difflib.get_close_matches(name, rows, n=3)
            raise ConfigurationError(
                code="collapse_mode_invalid",
                problem=f"collapse names {name!r}, and no module of that address was called",
                remedy=(f"did you mean {' or '.join(map(repr, near))}? " if near else "")
                + 'give addresses of modules, labels of their calls, "none", "auto", "max", a depth or a part',
            )
        found.update(rows[name])
    return frozenset(found)
