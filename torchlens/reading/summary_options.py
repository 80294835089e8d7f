"""What a summary is asked for, checked before anything is worked out.

Gives  ``SummaryAsked``, the keywords of both summaries, and ``SummaryOptions``, what they come to; and the refusals of
       what is no option of a summary, or only one of ``tl.summary``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypedDict, get_args

import attrs

from projections.accounts.summing import Level
from torchlens.errors import ConfigurationError
from torchlens.reading.summary_columns import BUNDLES, COLUMNS, SummaryRow

__all__ = [
    "ONE_CALL",
    "USUAL",
    "Buffers",
    "Filter",
    "FlopConvention",
    "Style",
    "SummaryAsked",
    "SummaryLevel",
    "SummaryOptions",
    "SummaryView",
    "Units",
    "chosen_columns",
    "options_of",
]

SummaryLevel: TypeAlias = Literal["auto", "module", "op"]
SummaryView: TypeAlias = Literal["overview", "compute"]
Buffers: TypeAlias = Literal["summary", "hide", "show"]
FlopConvention: TypeAlias = Literal["fma2", "fma1"]
Units: TypeAlias = Literal["auto", "raw", "K", "M", "G"]
Style: TypeAlias = Literal["auto", "ascii", "unicode"]
Filter: TypeAlias = str | Callable[[SummaryRow], Any]

ONE_CALL: Final = ("input_size", "execution_mode", "grad_mode")
"""Options of ``tl.summary``, which runs the model, and of no summary of a capture that there is."""

REMOVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "preset": 'view="overview" or view="compute" chooses columns, level= what a row is',
        "fields": "columns= takes names of columns, or +name and -name to change those of the view",
        "show_ops": 'level="op" has a row for each op',
        "include_ops": 'level="op" has a row for each op',
        "mode": 'level="op" has a row for each op; fold_repeats=False shows repeated ones apart',
        "print_to": "print the summary, which is a text: print(trace.summary(), file=...)",
        "count_fma_as_two": 'flop_convention="fma2" counts a multiply-accumulate as two FLOPs, "fma1" as one',
        "show_input_preprocessing_details": "nothing: inputs are recorded as the model was given them",
    }
)
"""Options of older summaries, and what does the same."""


class SummaryAsked(TypedDict, total=False):
    """The keywords of a summary, beside its level; see ``Trace.summary``."""

    view: SummaryView | None
    depth: int | Literal["auto", "all"] | None
    columns: Sequence[str] | str | None
    filter: Filter | None
    buffers: Buffers
    fold_repeats: bool | Literal["auto"]
    max_rows: int | None
    flop_convention: FlopConvention
    units: Units
    style: Style


@attrs.frozen(kw_only=True)
class SummaryOptions:
    """What was asked for, and what each option is unless it was given; see ``Trace.summary``."""

    level: SummaryLevel = "auto"
    view: SummaryView | None = None
    depth: int | Literal["auto", "all"] | None = None
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    buffers: Buffers = "summary"
    fold_repeats: bool | Literal["auto"] = "auto"
    max_rows: int | None = 48
    flop_convention: FlopConvention = "fma2"
    units: Units = "auto"
    style: Style = "auto"


USUAL: Final[Mapping[str, Any]] = MappingProxyType(
    {field.name: field.default for field in attrs.fields(SummaryOptions)}
)

NAMES: Final = tuple(USUAL)


def options_of(given: Mapping[str, Any], others: Collection[str] = ()) -> SummaryOptions:
    """The options, checked.

    Args:
        given: By name what was given.
        others: Names that the caller takes besides.

    Raises:
        ConfigurationError: ``summary_level_invalid``, ``summary_option_invalid``, ``fold_repeats_invalid``,
            ``summary_one_call_only``, ``summary_option_conflict``.
    """
    refuse_names(given, others)
    choice("level", given, get_args(SummaryLevel))
    for name, kind in (
        *(("view", SummaryView), ("buffers", Buffers), ("flop_convention", FlopConvention)),
        *(("units", Units), ("style", Style)),
    ):
        choice(name, given, get_args(kind))
    number("depth", given, 0, ("auto", "all"))
    number("max_rows", given, 1)
    if not (given.get("fold_repeats", "auto") == "auto" or type(given["fold_repeats"]) is bool):
        raise ConfigurationError(
            code="fold_repeats_invalid",
            problem=f"fold_repeats is {given['fold_repeats']!r}",
            remedy='give True or False, or "auto" to fold what would not fit otherwise',
        )
    check_filter(given.get("filter"))
    options = SummaryOptions(**{**given, "columns": columns_of(given.get("columns"))})
    refuse_conflicts(options)
    return options


def invalid(name: str, value: object, remedy: str) -> NoReturn:
    raise ConfigurationError(
        code="summary_option_invalid", problem=f"{name} is {value!r}", remedy=remedy, argument=name
    )


def refuse_names(given: Mapping[str, Any], others: Collection[str]) -> None:
    for name in given:
        if name in NAMES:
            continue
        if name in ONE_CALL:
            raise ConfigurationError(
                code="summary_one_call_only",
                problem=f"{name}= says how the model is run, and a trace's summary runs none",
                remedy=f"give it to tl.summary(model, x, {name}=...)",
                argument=name,
            )
        if name in REMOVED:
            invalid(name, given[name], f"there is no such option; {REMOVED[name]}")
        near = difflib.get_close_matches(name, (*NAMES, *others), 1)
        invalid(name, given[name], f"there is no such option; {f'did you mean {near[0]}? ' if near else ''}{listed()}")


def listed() -> str:
    return f"there are {', '.join(NAMES)}"


def choice(name: str, given: Mapping[str, Any], choices: Sequence[Any]) -> None:
    if name not in given or given[name] in choices or (name == "view" and given[name] is None):
        return
    if name == "level":
        raise ConfigurationError(
            code="summary_level_invalid",
            problem=f"level is {given[name]!r}",
            remedy='give "module" for the tree of modules, "op" for each op, or "auto"; trace.draw() shows a graph',
            argument="level",
        )
    invalid(name, given[name], f"give one of {', '.join(choices)}")


def number(name: str, given: Mapping[str, Any], least: int, words: Sequence[str] = ()) -> None:
    value = given.get(name)
    if value is None or (type(value) is int and value >= least) or (isinstance(value, str) and value in words):
        return
    invalid(name, value, f"give a whole number from {least} on, {''.join(f'{word}, ' for word in words)}or None")


def check_filter(value: Any) -> None:
    if value is None or (callable(value) and not isinstance(value, str)):
        return
    if not isinstance(value, str):
        invalid("filter", value, "give a regular expression, or a function of a row")
    try:
        re.compile(value)
    except re.error as exc:
        invalid("filter", value, f"give a regular expression; this is none: {exc}")


def columns_of(value: Any) -> tuple[str, ...] | None:
    """Names of columns, or changes to those of the view."""
    if value is None:
        return None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence) or not value or not all(isinstance(name, str) for name in value):
        invalid("columns", value, f"give a list of names: {', '.join(COLUMNS)}")
    for name in value:
        if bare(name) not in COLUMNS:
            near = difflib.get_close_matches(bare(name), COLUMNS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            invalid("columns", name, f"{hint}there are {', '.join(COLUMNS)}; +name and -name change those of the view")
    changes = [name for name in value if name[0] in "+-"]
    if changes and len(changes) < len(value):
        conflict(
            "columns",
            f"columns={list(value)!r} both lists columns and changes those of the view",
            "give names alone, or +name and -name alone",
        )
    if len(set(value)) < len(value):
        invalid("columns", value, "name each once")
    return tuple(value)


def bare(name: str) -> str:
    """The name of a column without the sign that adds or removes it."""
    return name[1:] if name[:1] in ("+", "-") else name


def conflict(name: str, problem: str, remedy: str) -> NoReturn:
    raise ConfigurationError(code="summary_option_conflict", problem=problem, remedy=remedy, argument=name)


def refuse_conflicts(options: SummaryOptions) -> None:
    if options.level == "op" and options.depth is not None:
        conflict("depth", "depth= is of the tree of modules, and level is op", 'leave it out, or say level="module"')
    if options.level == "module" and options.buffers == "show":
        conflict("buffers", 'buffers="show" adds rows for versions of buffers, and level is module', 'say level="op"')
    if options.view is not None and options.columns is not None and options.columns[0][0] not in "+-":
        conflict("columns", "view= and columns= both say which columns there are", "leave out one of them")


def chosen_columns(options: SummaryOptions, level: Level, unmeasured: Collection[str]) -> tuple[str, ...]:
    """The columns to show, in order.

    Args:
        options: What was asked for.
        level: What a row is.
        unmeasured: Amounts that the capture does not tell of, which are shown only where they are asked for by name.

    Raises:
        ConfigurationError: ``summary_option_conflict``, for a column that rows of this level do not have.
    """
    asked = options.columns
    for name in asked or ():
        of = COLUMNS[bare(name)].level
        if of not in (None, level):
            conflict("columns", f"rows of level {level} have no column {bare(name)}", f'say level="{of}"')
    if asked is not None and asked[0][0] not in "+-":
        return asked
    bundle = BUNDLES[options.view or "overview", level]
    shown = [name for name in bundle if name.removesuffix("_pct") not in unmeasured]
    shown = [name for name in shown if f"-{name}" not in (asked or ())]
    shown += [name[1:] for name in asked or () if name[0] == "+" and name[1:] not in shown]
    if not shown:
        conflict("columns", "no column is left", "leave out some of the -name")
    return tuple(shown)
