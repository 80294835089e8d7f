"""Selectors as plain data, and back: names and arguments, nothing that runs.

    spec = selector_to_spec(tl.func("relu") & tl.in_module("encoder"))
    (1, ("and", ("func", "relu"), ("in_module", "encoder")))

A spec is a version and a tree of tuples that msgpack or JSON keep as they are. Its words are closed: ``WORDS``.

Rule   a predicate goes by its import path, and comes back only if the reader allows that very path. What has no
       name (a lambda, a selection of one trace) is refused.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias, cast

from projections.errors import SelectionError
from projections.selecting import backward_terms, nearby, queries, selector
from projections.selecting.backward_terms import AtInputs, AtOutputs, InPass, OfNode, WithoutOp
from projections.selecting.nearby import FollowedBy, PrecededBy
from projections.selecting.queries import Beyond, TopFraction, TopK
from projections.selecting.selector import (
    MAX_LEVELS,
    MAX_PARTS,
    AllOf,
    AnyOf,
    Contains,
    Func,
    GradientOf,
    InModule,
    Label,
    ModuleOutput,
    Not,
    Output,
    Regex,
    Selector,
    Where,
    intersection,
    union,
)

Spec: TypeAlias = "tuple[Any, ...]"

VERSION: Final = 1

MAX_TEXT: Final = 4096


def selector_to_spec(given: Selector) -> Spec:
    """A selector as plain data, for msgpack or JSON.

    Raises:
        SelectionError: ``selector_not_portable``, where a part of it has no name.
    """
    return (VERSION, _spec(given))


def _spec(given: Selector) -> Spec:
    def inside(part: Any) -> Any:
        if isinstance(part, Selector):
            return _spec(part)
        if part is None or isinstance(part, str | int | float):
            return part
        raise not_portable(given, f"{part!r} belongs to one trace or to this process")

    match given:
        case AnyOf() | AllOf():
            return (given.word, *(inside(part) for part in given.of))
        case Not() | GradientOf():
            return (given.word, inside(given.of))
        case Func() | Label():
            return (given.word, given.name)
        case ModuleOutput() | InModule():
            return (given.word, given.address)
        case Output():
            return (given.word, given.slot)
        case Contains():
            return (given.word, given.text)
        case Regex():
            return (given.word, given.pattern)
        case Where():
            return (given.word, path_of(given), given.name_hint)
        case OfNode():
            return (given.word, given.type, given.label, given.is_custom)
        case WithoutOp() | AtInputs() | AtOutputs():
            return (given.word,)
        case InPass():
            return (given.word, given.number)
        case PrecededBy() | FollowedBy():
            return (given.word, inside(given.of), given.within)
        case TopK():
            return (given.word, inside(given.within), given.k, inside(given.by), given.largest)
        case TopFraction():
            return (given.word, inside(given.within), given.fraction, inside(given.by), given.largest)
        case Beyond():
            return (given.word, inside(given.within), given.above, given.below, inside(given.by))
        case _:
            raise not_portable(given, f"{type(given).__name__} has no name of its own")


def path_of(given: Where) -> str:
    """Import path of a predicate: ``package.module:name``."""
    predicate = given.predicate
    module, name = getattr(predicate, "__module__", None), getattr(predicate, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and module != "__main__":
        here: Any = sys.modules.get(module)
        for part in name.split("."):
            here = getattr(here, part, None)
        if here is predicate:
            return f"{module}:{name}"
    raise not_portable(given, "its predicate cannot be imported by a name")


def not_portable(given: Selector, why: str) -> SelectionError:
    shown = repr(given)
    return SelectionError(
        code="selector_not_portable",
        problem=f"{shown[:200]} cannot be saved: {why}",
        remedy="build it of named selectors; a predicate of tl.where must be a function at the top of a module",
        selector=shown[:200],
    )


# -- and back


Maker: TypeAlias = "Callable[..., Selector]"


def _not(of: Selector) -> Selector:
    return ~of


def _preceded_by(of: Selector, within: int) -> Selector:
    return nearby.preceded_by(of, within=within)


def _followed_by(of: Selector, within: int) -> Selector:
    return nearby.followed_by(of, within=within)


def _grad_fn(type: str | None, label: str | None, is_custom: bool | None) -> Selector:
    return backward_terms.grad_fn(type, label=label, is_custom=is_custom)


def _top_k(within: Selector | None, k: int, by: str, largest: bool) -> Selector:
    return queries.top_k(within, k, by=by, largest=largest)


def _top_fraction(within: Selector | None, fraction: float, by: str, largest: bool) -> Selector:
    return queries.top_fraction(within, fraction, by=by, largest=largest)


def _threshold(within: Selector | None, above: float | None, below: float | None, by: str) -> Selector:
    return queries.threshold(within, above=above, below=below, by=by)


Nothing: Final = type(None)

WORDS: Final[dict[str, tuple[Maker, tuple[tuple[type, ...], ...]]]] = {
    "func": (selector.func, ((str,),)),
    "module": (selector.module, ((str,),)),
    "in_module": (selector.in_module, ((str,),)),
    "label": (selector.label, ((str,),)),
    "contains": (selector.contains, ((str,),)),
    "regex": (selector.regex, ((str,),)),
    "output": (selector.output, ((int, str),)),
    "not": (_not, ((Selector,),)),
    "grad": (selector.grad, ((Selector,),)),
    "grad_fn": (_grad_fn, ((str, Nothing), (str, Nothing), (bool, Nothing))),
    "without_op": (backward_terms.without_op, ()),
    "grad_input": (backward_terms.grad_input, ()),
    "grad_output": (backward_terms.grad_output, ()),
    "in_backward_pass": (backward_terms.in_backward_pass, ((int,),)),
    "preceded_by": (_preceded_by, ((Selector,), (int,))),
    "followed_by": (_followed_by, ((Selector,), (int,))),
    "top_k": (_top_k, ((Selector, Nothing), (int,), (str,), (bool,))),
    "top_fraction": (_top_fraction, ((Selector, Nothing), (int, float), (str,), (bool,))),
    "threshold": (_threshold, ((Selector, Nothing), (int, float, Nothing), (int, float, Nothing), (str,))),
}
"""How each word is made a selector again, and of what; ``and``, ``or`` and ``where`` have ways of their own."""


def selector_from_spec(spec: Any, *, allow: Collection[str] = ()) -> Selector:
    """The selector that a spec tells of. Nothing is imported or run but what ``allow`` names.

    Args:
        spec: What ``selector_to_spec`` gave, from wherever it comes by now; lists will do for tuples.
        allow: Import paths of predicates that may be imported: ``"package.module:name"``.

    Raises:
        SelectionError: ``selector_spec_invalid``, ``selector_spec_newer`` or ``selector_callable_not_allowed``.
    """
    version, *tree = items_of(spec) or (None,)
    if type(version) is not int or len(tree) != 1:
        raise invalid("a spec is a version and a tree")
    if version > VERSION:
        raise SelectionError(
            code="selector_spec_newer",
            problem=f"the selector was saved in form {version}; this version reads up to {VERSION}",
            remedy="install the version that saved it, or a later one",
            version=version,
        )
    return Reading((allow,) if isinstance(allow, str) else allow).node(tree[0], 0)


def items_of(given: object) -> Sequence[Any] | None:
    """The items of a list or tuple; None for anything else."""
    return cast("Sequence[Any]", given) if isinstance(given, list | tuple) else None


class Reading:
    """One spec being read.

    Args:
        allow: Import paths of predicates that may be imported.
    """

    def __init__(self, allow: Collection[str]) -> None:
        self.allow = allow
        self.nodes = 0

    def node(self, given: Any, depth: int) -> Selector:
        self.nodes += 1
        if depth >= MAX_LEVELS or self.nodes > MAX_PARTS:
            raise invalid("it is too deep, or too long")
        word, *arguments = items_of(given) or (None,)
        if not isinstance(word, str):
            raise invalid("a node is a word and its arguments")
        if word in ("and", "or"):
            parts = [self.node(part, depth + 1) for part in arguments]
            if not parts:
                raise invalid(f"{word!r} combines nothing")
            return (union if word == "or" else intersection)(*parts)
        if word == "where":
            return self.predicate(arguments)
        if word not in WORDS:
            raise invalid(f"{word[:40]!r} is no selector")
        make, kinds = WORDS[word]
        if len(arguments) != len(kinds):
            raise invalid(f"{word!r} takes {len(kinds)} arguments, not {len(arguments)}")
        made = [self.argument(word, one, of, depth) for one, of in zip(arguments, kinds, strict=True)]
        return make(*made)

    def argument(self, word: str, given: object, kinds: tuple[type, ...], depth: int) -> Any:
        if Selector in kinds and given is not None:
            return self.node(given, depth + 1)
        if type(given) not in kinds:  # a bool is no number here
            raise invalid(f"{word!r} was given {type(given).__name__}")
        if isinstance(given, str) and len(given) > MAX_TEXT:
            raise invalid(f"{word!r} was given a text of {len(given)} letters")
        return given

    def predicate(self, arguments: Sequence[Any]) -> Selector:
        if len(arguments) != 2 or not isinstance(arguments[0], str) or not isinstance(arguments[1], str | None):
            raise invalid("'where' takes an import path, and a name or nothing")
        path, name_hint = arguments
        if path not in self.allow:
            raise SelectionError(
                code="selector_callable_not_allowed",
                problem=f"the selector asks a predicate, {path[:200]!r}, which was not allowed",
                remedy=f"if you trust it, pass allow=[{path[:200]!r}]",
                path=path,
            )
        module, _, name = path.partition(":")
        try:
            here: Any = importlib.import_module(module)
            for part in name.split("."):
                here = getattr(here, part)
        except (ImportError, AttributeError, ValueError) as exc:
            raise invalid(f"{path!r} cannot be imported: {exc}") from exc
        if not callable(here):
            raise invalid(f"{path!r} is no predicate")
        return selector.where(here, name_hint=name_hint)


def invalid(why: str) -> SelectionError:
    return SelectionError(
        code="selector_spec_invalid",
        problem=f"this is no selector that was saved: {why}",
        remedy="pass what selector_to_spec() gave, unchanged",
    )
