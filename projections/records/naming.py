"""What the source says of an op: the variables its result was assigned to, and the text of its arguments.

Reads  the call site of an op, the text of the functions on the way to it (source/texts.py).
Gives  the columns ``var_names`` and ``arg_expressions``.
Rule   a result that a function or a module's forward returns as it is was assigned where that was called; one that a
       module of ``torch.nn`` returns, in any case, since its own variables are nobody's concern. Places of several
       results are matched to the parts of what they are assigned to.
Rule   only the function that the expression itself calls has its name and arguments: what C code calls on the way, as
       ``min``, ``sorted``, ``in`` or a comparison of lists do, has none. It is known by the names of what is called and
       of what was (``Call`` and ``Operation`` of source/syntax.py), and by the truth that is taken of it where it is
       made.
Rule   no source, or an interpreter that gives no columns: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from journal.events import ModuleLeft
from projections.columnar.arguments import holes
from projections.folds.vocabulary import Site
from projections.forward import Forward, once
from projections.source.syntax import Expression, Syntax
from projections.structure.details import field

RESULT: Final = field(ModuleLeft, "result")

FORWARD: Final = "forward"
"""What a call of a module runs."""

MOST: Final = 64
"""Variables or arguments that are told of one call."""


def read(forward: Forward, place: Site) -> tuple[Syntax, Expression] | None:
    """The expression at a call site."""
    syntax = forward.texts.at_site(place)
    found = None if syntax is None else syntax.expression_at(place.span)
    return None if syntax is None or found is None else (syntax, found)


def own_expression(forward: Forward, row: int) -> tuple[Syntax, Expression] | None:
    """The expression that a row's function was called by; None where C code called it for its own ends.

    Such code takes the truth of what it compares, right where it stands.
    """
    rows = forward.rows
    place = site_at(forward, rows.site[row]) if rows.function[row] >= 0 else None
    found = None if place is None else read(forward, place)
    if place is None or found is None or not found[1].does.may_be(forward.words.func_names[rows.function[row]]):
        return None
    is_for_itself = tested_where_made(forward, 0)[row] and found[0].test_at(place.span) is None
    return None if is_for_itself else found


@once
def tested_where_made(forward: Forward, _whole: int) -> bytes:
    """Per row, 1 where its truth was taken by the same expression that made it."""
    made, sites = bytearray(len(forward)), forward.rows.site
    for row, _, _, site, _ in forward.rows.branches:
        if row >= 0 and sites[row] == site:
            made[row] = 1
    return bytes(made)


def code_name(forward: Forward, place: Site) -> str:
    """Name of the code that a place stands in."""
    codes = forward.words.codes
    return codes[place.code].name if 0 <= place.code < len(codes) else ""


def site_at(forward: Forward, number: int) -> Site | None:
    sites = forward.words.sites
    return sites[number] if 0 <= number < len(sites) else None


def arg_expressions(forward: Forward, row: int) -> tuple[str, ...]:
    """Text of each argument as the call has it, keywords with their names; () for an operator."""
    found = own_expression(forward, row)
    return () if found is None else tuple([found[0].short(span) for span in found[1].args[:MOST]])


def var_names(forward: Forward, row: int) -> tuple[str, ...]:
    """Names, attributes and subscripts that the result was assigned to, as text; () where it was used at once."""
    rows = forward.rows
    if rows.function[row] < 0:
        return ()
    number, call = rows.site[row], rows.call[row]
    path: Sequence[int] | None = path_of(forward, row)
    while 0 < call < len(forward.calls) and is_torchs_own(forward, call) and is_result(forward, call, row):
        path = place_in_result(forward, call, row)
        number, call = forward.calls.site[call], forward.calls.parent[call]
    ran = FORWARD if number != rows.site[row] else None  # the code that was called; None for the function itself
    while path is not None and (place := site_at(forward, number)) is not None:
        found = own_expression(forward, row) if ran is None else read(forward, place)
        if found is None or (ran is not None and not found[1].does.may_run(ran)):
            return ()
        syntax, expression = found
        if expression.targets:
            spans = [target.at(path) for target in expression.targets[:MOST]]
            return tuple([syntax.short(span) for span in spans if span is not None])
        if not expression.is_returned:
            return ()
        if place.caller is not None and place.caller < number:
            number, ran = place.caller, code_name(forward, place)
        elif 0 < call < len(forward.calls) and place.caller is None and is_result(forward, call, row):
            number, call, ran = forward.calls.site[call], forward.calls.parent[call], FORWARD
        else:
            return ()
    return ()


def is_result(forward: Forward, call: int, row: int) -> bool:
    """Whether a module call returned what an op made."""
    return row in forward.calls.outputs[call]


def is_torchs_own(forward: Forward, call: int) -> bool:
    """Whether a module call is of a class of ``torch.nn``."""
    number, modules = forward.calls.module[call], forward.words.modules
    return 0 <= number < len(modules) and modules[number].class_qualname.startswith("torch.nn.")


def place_in_result(forward: Forward, call: int, row: int) -> Sequence[int] | None:
    """Where what an op made lies in what a module call returned, by positions; None where it is not found by these."""
    at = forward.calls.left[call][0]
    if at < 0:
        return None
    returned = forward.calls.outputs[call]
    found = list(islice(holes(forward.source.row(at)[RESULT]), len(returned) + 1))
    if len(found) != len(returned):
        return None
    steps = [step for _, step in found[returned.index(row)]]
    places = [step for step in steps if isinstance(step, int)]
    return places if len(places) == len(steps) else None


def path_of(forward: Forward, row: int) -> Sequence[int]:
    """Where a result lies in what the call returned, by positions; a field of a named tuple has that of its slot."""
    path = forward.detail(row).brief.path
    steps = [step for step in path if type(step) is int]
    if len(steps) == len(path):
        return steps
    return [forward.rows.slot[row]] if len(path) == 1 else []
