"""Selectors: questions about ops that can be asked of any trace, while it is made or when it is done.

    tl.func("relu") & tl.in_module("encoder") - tl.label("relu_1_3")

A selector is a value: terms combined with ``|``, ``&``, ``-`` and ``~``, equal when they are built alike. A
bare string in a combination means its label.

Asked live, of an op that has just run, it answers True, False or None: not yet known. Asked of finished
tables it gives the rows it matches. The two agree: what was True matches, what was False does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeAlias

import attrs

from projections.build import CaptureTables
from projections.errors import SelectionError, SelectorTypeError
from projections.vocabulary import ROOT

Verdict: TypeAlias = "bool | None"
"""Matches, does not match, or cannot be told yet."""

RAW_TAIL: Final = "_raw"

LABEL_FORM: Final = re.compile(r"[a-z0-9]+_\d+(_\d+)?(:(\d+|last|all))?")

TYPE_TEXT: Final = re.compile(r"[A-Za-z0-9]*[A-Za-z][A-Za-z0-9]*")
"""Text that can only stand in the type part of a label: the other parts are numbers."""

TYPE_PATTERN: Final = re.compile(rf"\^?{TYPE_TEXT.pattern}(\|\^?{TYPE_TEXT.pattern})*")
"""A pattern that searches a label as it searches the label's type part."""


class LiveFacts(Protocol):
    """What is known of an op that has just run."""

    @property
    def func_name(self) -> str: ...
    @property
    def layer_type(self) -> str: ...
    @property
    def modules(self) -> tuple[str, ...]:
        """Labels of the enclosing module calls, outermost first, without the root's."""
        ...

    @property
    def output_of(self) -> tuple[str, ...]:
        """Labels of the module calls that its value has been returned from so far."""
        ...

    @property
    def multi_output_index(self) -> int | None: ...
    @property
    def raw_label(self) -> str: ...


Record: TypeAlias = Callable[[int], Any]
"""Gives what a predicate is asked about, for an op row."""


class Selector:
    """A question about ops. Made by the functions of this file and by combining."""

    __slots__ = ()

    @property
    def needs_labels(self) -> bool:
        """Whether it may be undecided until the labels of a finished forward are there."""
        return any(term.undecided for term in self.terms())

    @property
    def names_modules(self) -> bool:
        """Whether it asks what a module returns, which is known when the module is left."""
        return any(isinstance(term, ModuleOutput) for term in self.terms())

    @property
    def needs_facts(self) -> bool:
        """Whether ops of one function, module call and output slot may be answered differently."""
        return any(term.varies for term in self.terms())

    def terms(self) -> Iterator[Term]:
        """The terms it is built from, left to right."""
        stack: list[Selector] = [self]
        while stack:
            here = stack.pop()
            if isinstance(here, Term):
                yield here
            else:
                stack.extend(reversed(here.parts()))

    def parts(self) -> tuple[Selector, ...]:
        """The selectors it combines."""
        return ()

    def live(self, facts: LiveFacts) -> Verdict:
        """What it says of an op that has just run."""
        raise NotImplementedError

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        """The op rows it matches."""
        raise NotImplementedError

    def rows(self, tables: CaptureTables, record: Record | None = None) -> tuple[int, ...]:
        """The op rows it matches in finished tables, ascending.

        Args:
            tables: The tables of a forward.
            record: What ``where`` predicates are asked about; by default a view of the row's columns.

        Raises:
            SelectionError: ``multipass_bare_label_ambiguous``, for a label without a pass that names a layer
                with several.
        """
        return tuple(sorted(self.found(tables, record or (lambda row: OpView(tables, row)))))

    def __or__(self, other: Selector | str) -> Selector:
        return AnyOf((self, operand(other, "|")))

    def __ror__(self, other: str) -> Selector:
        return AnyOf((operand(other, "|"), self))

    def __and__(self, other: Selector | str) -> Selector:
        return AllOf((self, operand(other, "&")))

    def __rand__(self, other: str) -> Selector:
        return AllOf((operand(other, "&"), self))

    def __sub__(self, other: Selector | str) -> Selector:
        return AllOf((self, Not(operand(other, "-"))))

    def __rsub__(self, other: str) -> Selector:
        return AllOf((operand(other, "-"), Not(self)))

    def __invert__(self) -> Selector:
        return Not(self)

    def __bool__(self) -> bool:
        raise SelectionError(
            code="selection_bool_ambiguous",
            problem="a selector is a question and has no truth of its own",
            remedy="combine selectors with |, &, - and ~, not with and, or and not; or ask a trace: trace[selector]",
            selector=repr(self),
        )


def operand(given: object, operator: str) -> Selector:
    """A selector, or the label a string names; anything else is refused."""
    if isinstance(given, Selector):
        return given
    if isinstance(given, str):
        return Label(given)
    raise SelectorTypeError(
        code="selector_subtraction_operand_invalid" if operator == "-" else "selector_operand_invalid",
        problem=f"{type(given).__name__} cannot stand beside {operator!r} in a selector",
        remedy="combine selectors with selectors, or with a string that names a label",
        operator=operator,
        received_type=type(given).__name__,
    )


class OpView:
    """An op row as an object: its columns are its attributes."""

    __slots__ = ("row", "tables")

    def __init__(self, tables: CaptureTables, row: int) -> None:
        self.tables = tables
        self.row = row

    def __getattr__(self, name: str) -> Any:
        try:
            return self.tables.ops.value(name, self.row)
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"<op {self.label}>"


# -- combinations


def combine(selectors: Iterable[Selector], sign: str) -> str:
    return f"({f' {sign} '.join(map(repr, selectors))})"


@attrs.frozen(repr=False)
class AnyOf(Selector):
    """What some part matches."""

    of: tuple[Selector, ...]

    def parts(self) -> tuple[Selector, ...]:
        return self.of

    def live(self, facts: LiveFacts) -> Verdict:
        answers = [part.live(facts) for part in self.of]
        return True if True in answers else None if None in answers else False

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        found: set[int] = set()
        for part in self.of:
            found |= part.found(tables, record)
        return found

    def __repr__(self) -> str:
        return combine(self.of, "|")


@attrs.frozen(repr=False)
class AllOf(Selector):
    """What all parts match."""

    of: tuple[Selector, ...]

    def parts(self) -> tuple[Selector, ...]:
        return self.of

    def live(self, facts: LiveFacts) -> Verdict:
        answers = [part.live(facts) for part in self.of]
        return False if False in answers else None if None in answers else True

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        first, *others = [part.found(tables, record) for part in self.of]
        return first.intersection(*others)

    def __repr__(self) -> str:
        return combine(self.of, "&")


@attrs.frozen(repr=False)
class Not(Selector):
    """What a part does not match."""

    of: Selector

    def parts(self) -> tuple[Selector, ...]:
        return (self.of,)

    def live(self, facts: LiveFacts) -> Verdict:
        answer = self.of.live(facts)
        return None if answer is None else not answer

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        return set(range(len(tables.ops))) - self.of.found(tables, record)

    def __repr__(self) -> str:
        return f"~{self.of!r}"


# -- terms


class Term(Selector):
    """A question that is no combination of others."""

    __slots__ = ()

    @property
    def undecided(self) -> bool:
        """Whether a live answer may have to wait for finished labels."""
        return False

    @property
    def varies(self) -> bool:
        """Whether it looks at more than function, module call and output slot."""
        return False


@attrs.frozen(repr=False)
class Func(Term):
    """Ops of a function, by its name or by the type it has in labels."""

    name: str

    def live(self, facts: LiveFacts) -> Verdict:
        return self.name in (facts.func_name, facts.layer_type)

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        pairs = zip(tables.ops.column("func_name"), tables.ops.column("layer_type"), strict=True)
        return {row for row, names in enumerate(pairs) if self.name in names}

    def __repr__(self) -> str:
        return f"func({self.name!r})"


@attrs.frozen(repr=False)
class Output(Term):
    """One result of calls that return several, by position or by name."""

    slot: int | str

    @property
    def undecided(self) -> bool:
        return isinstance(self.slot, str)

    def live(self, facts: LiveFacts) -> Verdict:
        if facts.multi_output_index is None:
            return False
        return None if isinstance(self.slot, str) else facts.multi_output_index == self.slot

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        by_name = isinstance(self.slot, str)
        column = tables.ops.column("multi_output_name" if by_name else "multi_output_index")
        several = tables.ops.column("in_multi_output")
        return {row for row, slot in enumerate(column) if several[row] and slot == self.slot}

    def __repr__(self) -> str:
        return f"output({self.slot!r})"


def calls_named(tables: CaptureTables, address: str) -> list[int]:
    """Rows of the module calls that an address, an alias or a call label names."""
    base, colon, token = address.rpartition(":")
    if not colon or not (token.isdigit() or token in ("last", "all")):
        base, token = address, "all"
    modules = tables.aliases
    if base not in modules:
        return []
    wanted = modules[base]
    calls = [row for row, owner in enumerate(tables.module_calls.column("address")) if owner == wanted]
    if token == "all":
        return calls
    if token == "last":
        return calls[-1:]
    return [row for row in calls if tables.module_calls.value("call_index", row) == int(token)]


def names_call(address: str, call_label: str) -> bool:
    """Whether an address, with or without a call number, names a call."""
    return call_label == address or call_label.rpartition(":")[0] == address


def names_root(address: str) -> bool:
    return address.partition(":")[0] in ("", ROOT)


@attrs.frozen(repr=False)
class ModuleOutput(Term):
    """Ops whose value a module returned; with a call number, that call."""

    address: str

    @property
    def undecided(self) -> bool:
        return names_root(self.address)

    def live(self, facts: LiveFacts) -> Verdict:
        """A value that a module returns without having made it is known once it was returned."""
        if any(names_call(self.address, label) for label in facts.output_of):
            return True
        inside = names_root(self.address) or any(names_call(self.address, label) for label in facts.modules)
        return None if inside else False

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        outputs = tables.module_calls.column("output_op_rows")
        return {row for call in calls_named(tables, self.address) for row in outputs[call]}

    def __repr__(self) -> str:
        return f"module({self.address!r})"


@attrs.frozen(repr=False)
class InModule(Term):
    """Ops that ran inside a module, nested modules included; with a call number, inside that call."""

    address: str

    def live(self, facts: LiveFacts) -> Verdict:
        return names_root(self.address) or any(names_call(self.address, label) for label in facts.modules)

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        if names_root(self.address):
            return set(range(len(tables.ops)))
        inside = tables.module_calls.column("op_rows")
        return {row for call in calls_named(tables, self.address) for row in inside[call]}

    def __repr__(self) -> str:
        return f"in_module({self.address!r})"


@attrs.frozen(repr=False)
class Label(Term):
    """The op with a label: final, with a pass, short, or raw."""

    name: str

    @property
    def is_raw(self) -> bool:
        return self.name.endswith(RAW_TAIL)

    @property
    def undecided(self) -> bool:
        return not self.is_raw

    @property
    def varies(self) -> bool:
        return True

    def live(self, facts: LiveFacts) -> Verdict:
        return facts.raw_label == self.name if self.is_raw else None

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        if self.is_raw:
            return {row for row, raw in enumerate(tables.ops.column("raw_label")) if raw == self.name}
        base, colon, token = self.name.rpartition(":")
        layers = tables.layers
        for names in (layers.column("layer_label"), layers.column("layer_label_short")):
            for layer, name in enumerate(names):
                if name == self.name:
                    return {self.only_pass(tables, layer)}
                if colon and name == base:
                    return set(passes_named(layers.value("op_rows", layer), token))
        return set()

    def only_pass(self, tables: CaptureTables, layer: int) -> int:
        rows: tuple[int, ...] = tables.layers.value("op_rows", layer)
        if len(rows) == 1:
            return rows[0]
        raise SelectionError(
            code="multipass_bare_label_ambiguous",
            problem=f"{self.name!r} names {len(rows)} passes of one layer",
            remedy=f"ask for one, label({self.name + ':1'!r}), or for all, label({self.name + ':all'!r})",
            label=self.name,
            num_passes=len(rows),
        )

    def __repr__(self) -> str:
        return f"label({self.name!r})"


def passes_named(rows: tuple[int, ...], token: str) -> tuple[int, ...]:
    """The op rows of the passes that a token names; none where there is no such pass."""
    if token == "all":
        return rows
    if token == "last":
        return rows[-1:]
    return rows[int(token) - 1 : int(token)] if token.isdigit() and int(token) else ()


@attrs.frozen(repr=False)
class Contains(Term):
    """Ops whose label contains a text, whatever its case; the raw label where the text speaks of it."""

    text: str

    @property
    def is_raw(self) -> bool:
        return RAW_TAIL in self.text.lower()

    @property
    def undecided(self) -> bool:
        return not self.is_raw and not TYPE_TEXT.fullmatch(self.text)

    @property
    def varies(self) -> bool:
        return self.is_raw

    def live(self, facts: LiveFacts) -> Verdict:
        if self.is_raw:
            return self.text.lower() in facts.raw_label.lower()
        return None if self.undecided else self.text.lower() in facts.layer_type.lower()

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        text = self.text.lower()
        labels = tables.ops.column("raw_label" if self.is_raw else "label")
        return {row for row, label in enumerate(labels) if text in label.lower()}

    def __repr__(self) -> str:
        return f"contains({self.text!r})"


@attrs.frozen(repr=False)
class Regex(Term):
    """Ops in whose label a pattern is found; in the raw label where the pattern speaks of it."""

    pattern: str

    @property
    def is_raw(self) -> bool:
        return RAW_TAIL in self.pattern

    @property
    def undecided(self) -> bool:
        return not self.is_raw and not TYPE_PATTERN.fullmatch(self.pattern)

    @property
    def varies(self) -> bool:
        return self.is_raw

    def live(self, facts: LiveFacts) -> Verdict:
        if self.undecided:
            return None
        return re.search(self.pattern, facts.raw_label if self.is_raw else facts.layer_type) is not None

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        search = re.compile(self.pattern).search
        labels = tables.ops.column("raw_label" if self.is_raw else "label")
        return {row for row, label in enumerate(labels) if search(label)}

    def __repr__(self) -> str:
        return f"regex({self.pattern!r})"


@attrs.frozen(repr=False)
class Where(Term):
    """Ops for which a predicate holds."""

    predicate: Callable[[Any], Any]
    name_hint: str | None = None

    @property
    def varies(self) -> bool:
        return True

    def live(self, facts: LiveFacts) -> Verdict:
        return bool(self.predicate(facts))

    def found(self, tables: CaptureTables, record: Record) -> set[int]:
        return {row for row in range(len(tables.ops)) if self.predicate(record(row))}

    def __repr__(self) -> str:
        name = self.name_hint or getattr(self.predicate, "__qualname__", type(self.predicate).__qualname__)
        return f"where({name})"


# -- what people call


def func(name: str, *, output: int | str | None = None) -> Selector:
    """Ops of a function: ``func("relu")``, ``func("max", output="values")``.

    Args:
        name: The function's name, exactly, or the type it has in labels: ``add`` also matches ``__add__`` and ``add_``.
        output: Which of several results, by position or name.

    Raises:
        SelectorTypeError: ``selector_function_pattern_type_invalid``, when the name is no string.
    """
    term = Func(text_argument(name, "func", code="selector_function_pattern_type_invalid"))
    return term if output is None else AllOf((term, Output(slot_argument(output))))


def module(address: str) -> Selector:
    """What a module returns: ``module("encoder.0")``, or one call of it, ``module("encoder.0:2")``."""
    return ModuleOutput(text_argument(address, "module"))


def in_module(address: str) -> Selector:
    """Everything that runs inside a module, nested modules included."""
    return InModule(text_argument(address, "in_module"))


def label(name: str) -> Selector:
    """The op with a label: ``relu_1_2``, ``relu_1_2:3``, ``relu_1`` or ``relu_4_raw``."""
    return Label(text_argument(name, "label"))


def contains(text: str) -> Selector:
    """Ops whose label contains a text, whatever its case."""
    return Contains(text_argument(text, "contains"))


def regex(pattern: str) -> Selector:
    """Ops in whose label ``re.search`` finds a pattern. A bad pattern is refused here, by ``re.error``."""
    re.compile(text_argument(pattern, "regex"))
    return Regex(pattern)


def where(predicate: Callable[[Any], Any], *, name_hint: str | None = None) -> Selector:
    """Ops for which a predicate holds; what it raises is passed on.

    Args:
        predicate: Asked about the facts of an op that has just run, or about a finished op.
        name_hint: What the selector is called when it is shown.
    """
    if not callable(predicate):
        raise SelectorTypeError(
            code="selector_predicate_type_invalid",
            problem=f"a predicate was given as {type(predicate).__name__}",
            remedy="pass a function of one op",
            received_type=type(predicate).__name__,
        )
    return Where(predicate, name_hint)


def output(slot: int | str) -> Selector:
    """One result of calls that return several: ``module("lstm") & output(0)``, ``output("values")``."""
    return Output(slot_argument(slot))


def slot_argument(given: object) -> int | str:
    if isinstance(given, int | str) and not isinstance(given, bool):
        return given
    raise SelectorTypeError(
        code="selector_output_type_invalid",
        problem=f"a result was named by {type(given).__name__}",
        remedy="pass its position from 0 or its name",
        received_type=type(given).__name__,
    )


def text_argument(given: object, name: str, code: str = "selector_argument_type_invalid") -> str:
    if isinstance(given, str):
        return given
    raise SelectorTypeError(
        code=code,
        problem=f"{name}() was given {type(given).__name__}",
        remedy=f"pass a string to {name}()",
        received_type=type(given).__name__,
    )


def in_label_form(text: str) -> bool:
    """Whether a text looks like a label of a finished forward."""
    return LABEL_FORM.fullmatch(text) is not None
