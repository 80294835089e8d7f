"""Selectors: questions about ops that can be asked of any trace, while it is made or when it is done.

    tl.func("relu") & tl.in_module("encoder") - tl.label("relu_1_3")

A selector is a value: terms combined with ``|``, ``&``, ``-`` and ``~``, equal when they are built alike. A
bare string in a combination means its label.

Asked live, of an op that has just run, it answers True, False or None: not yet known. Asked of finished
tables it gives the rows it matches. The two agree: what was True matches, what was False does not.

Not    values (queries.py), what ran before or after (nearby.py), or how a selector is saved (portable.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

import attrs

from projections.build import CaptureTables, Islands
from projections.errors import NotYetKnown, SelectionError, SelectorTypeError
from projections.folds.vocabulary import ROOT

Verdict: TypeAlias = "bool | None"
"""Matches, does not match, or cannot be told yet."""

RAW_TAIL: Final = "_raw"

LABEL_FORM: Final = re.compile(r"[^_.]+_\d+(_\d+)?(:(\d+|last|all))?", re.DOTALL)
"""A type, one number or two, perhaps a pass. A type is lower-case and has no underscore, and may have a colon or worse
in it, as the class of a ``Function`` may; only a dot is taken for that of an address."""

LABEL_PARTS: Final = re.compile(r"(?P<type>.*?)(_\d+){1,2}", re.DOTALL)
"""A label without its pass: the type, and one number or two."""

ANY_CALL: Final = "all"
LAST_CALL: Final = "last"

MAX_LEVELS: Final = 64
"""Selectors one in another; ``a | b | c`` is one level over its parts, however many they are."""

MAX_PARTS: Final = 10_000
"""Selectors that one is built of, itself and all levels included."""

TYPE_TEXT: Final = re.compile(r"[A-Za-z0-9]*[A-Za-z][A-Za-z0-9]*")
"""Text that can only stand in the type part of a label: the other parts are numbers."""

TYPE_PATTERN: Final = re.compile(rf"\^?{TYPE_TEXT.pattern}(\|\^?{TYPE_TEXT.pattern})*")
"""A pattern that searches a label as it searches the label's type part."""

LONGEST_SHOWN: Final = 80
"""Characters of a pattern that a refusal shows."""


class CallKey(NamedTuple):
    """What a module address asks for: a module, and which of its calls."""

    address: str  # the module's own address
    token: str  # the number of a call, "last" or "all"


def call_key(address: str, names: Mapping[str, str]) -> CallKey:
    """The module and the call that an address, an alias or a call label names.

    Args:
        address: As it was given.
        names: Address of a module by each of its names; others are taken as they stand.
    """
    if address in names:
        return CallKey(names[address], ANY_CALL)
    base, colon, token = address.rpartition(":")
    if colon and (token in (LAST_CALL, ANY_CALL) or is_count(token)):
        return CallKey(names.get(base, base), token if token in (LAST_CALL, ANY_CALL) else str(int(token)))
    return CallKey(address, ANY_CALL)


def is_count(token: str) -> bool:
    """Whether a token is a number that a pass or call may have."""
    return token.isascii() and token.isdecimal() and len(token) < 19


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
    def multi_output_name(self) -> str | None: ...
    @property
    def raw_label(self) -> str: ...
    @property
    def is_output(self) -> bool: ...
    @property
    def at_end(self) -> bool:
        """Whether no module returns anything any more, and no op comes any more."""
        ...

    def call_key(self, address: str) -> CallKey:
        """The module and the call that an address names."""
        ...

    def before(self, count: int) -> Sequence[LiveFacts]:
        """The ops that ran right before its call, at most so many."""
        ...

    def after(self, count: int) -> tuple[Sequence[LiveFacts], bool]:
        """The ops that ran right after its call, at most so many, and whether these are all there will be."""
        ...


Tables: TypeAlias = "CaptureTables | Islands"
"""The tables of a forward, or the same of the ops that are on islands."""

Record: TypeAlias = Callable[[int], Any]
"""Gives what a predicate is asked about, for an op row; an attribute ``islands`` of it does for a row on an island."""


class Selector:
    """A question about ops. Made by the functions of this file and by combining."""

    __slots__ = ()

    word: ClassVar[str] = ""
    """What it is called where a selector is saved."""

    is_of_backward: ClassVar[bool] = False
    """Whether it asks, itself, what a backward pass does."""

    levels: int = 1
    """How many selectors stand one in another, itself included."""

    num_parts: int = 1
    """How many selectors it is built of, itself included."""

    @property
    def needs_labels(self) -> bool:
        """Whether it may be undecided until the labels of a finished forward are there."""
        return any(node.undecided for node in self.nodes())

    @property
    def names_modules(self) -> bool:
        """Whether it asks what a module returns, which is known when the module is left."""
        return any(isinstance(term, ModuleOutput) for term in self.terms())

    @property
    def names_gradients(self) -> bool:
        """Whether it asks for gradients, which no forward has."""
        return any(node.is_of_backward for node in self.nodes())

    @property
    def reads_values(self) -> bool:
        """Whether it asks for values, which a finished trace has."""
        return any(part.reads_values for part in self.parts())

    @property
    def needs_facts(self) -> bool:
        """Whether ops of one function, module call and output slot may be answered differently."""
        return any(node.varies for node in self.nodes())

    @property
    def waits_for_end(self) -> bool:
        """Whether an op may be known to match only at the end: until then any module may still return its value."""
        return any(isinstance(node, Not) and node.of.names_modules for node in self.nodes())

    @property
    def ahead(self) -> int:
        """How many further ops must have run until its answer no longer waits for one."""
        return max((part.ahead for part in self.parts()), default=0)

    @property
    def behind(self) -> int:
        """How many earlier ops its answer may look at."""
        return max((part.behind for part in self.parts()), default=0)

    @property
    def undecided(self) -> bool:
        """Whether it waits, itself, for finished labels."""
        return False

    @property
    def varies(self) -> bool:
        """Whether it looks, itself, at more than function, module call and output slot."""
        return False

    def nodes(self) -> Iterator[Selector]:
        """Itself and everything it is built from, left to right."""
        stack: list[Selector] = [self]
        while stack:
            here = stack.pop()
            yield here
            stack.extend(reversed(here.parts()))

    def terms(self) -> Iterator[Term]:
        """The terms it is built from, left to right."""
        return (node for node in self.nodes() if isinstance(node, Term))

    def parts(self) -> tuple[Selector, ...]:
        """The selectors it combines."""
        return ()

    def live(self, facts: LiveFacts) -> Verdict:
        """What it says of an op that has just run."""
        raise NotImplementedError

    def found(self, tables: Tables, record: Record) -> set[int]:
        """The op rows it matches."""
        raise NotImplementedError

    def rows(self, tables: Tables, record: Record | None = None) -> tuple[int, ...]:
        """The op rows it matches in finished tables, ascending.

        Args:
            tables: The tables of a forward.
            record: What ``where`` predicates are asked about; by default a view of the row's columns.

        Raises:
            SelectionError: ``multipass_bare_label_ambiguous``, for a label without a pass that names a layer
                with several.
        """
        return tuple(sorted(self.found(tables, record or view_of(tables))))

    def __or__(self, other: Selector | str) -> Selector:
        return union(self, operand(other, "|"))

    def __ror__(self, other: str) -> Selector:
        return union(operand(other, "|"), self)

    def __and__(self, other: Selector | str) -> Selector:
        return intersection(self, operand(other, "&"))

    def __rand__(self, other: str) -> Selector:
        return intersection(operand(other, "&"), self)

    def __sub__(self, other: Selector | str) -> Selector:
        return intersection(self, ~operand(other, "-"))

    def __rsub__(self, other: str) -> Selector:
        return intersection(operand(other, "-"), ~self)

    def __invert__(self) -> Selector:
        return self.of if isinstance(self, Not) else Not(self)

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


def union(*selectors: Selector) -> Selector:
    """What any of them matches; a union among them is spread, so that a long one is not deep."""
    return AnyOf(tuple(chain.from_iterable([one.of if isinstance(one, AnyOf) else (one,) for one in selectors])))


def intersection(*selectors: Selector) -> Selector:
    """What all of them match; an intersection among them is spread."""
    return AllOf(tuple(chain.from_iterable([one.of if isinstance(one, AllOf) else (one,) for one in selectors])))


class OpView:
    """An op row as an object: its columns are its attributes."""

    __slots__ = ("row", "tables")

    def __init__(self, tables: Tables, row: int) -> None:
        self.tables = tables
        self.row = row

    def __getattr__(self, name: str) -> Any:
        try:
            return self.tables.ops.value(name, self.row)
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"<op {self.label}>"


def view_of(tables: Tables) -> Record:
    """Views of op rows, for predicates that are given no other records."""
    return lambda row: OpView(tables, row)


def record_of_islands(tables: Tables, record: Record) -> Record:
    """What a predicate is asked about, for a row on an island."""
    given: Record | None = getattr(record, "islands", None)
    return given or view_of(tables.islands)


# -- combinations


@attrs.frozen(repr=False)
class Compound(Selector):
    """A selector that holds others. One too large is refused as it is made: what is done with it recurses."""

    levels: int = attrs.field(init=False, eq=False)
    num_parts: int = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        parts = self.parts()
        levels = 1 + max(map(LEVELS_OF, parts), default=0)
        num_parts = 1 + sum(map(NUM_PARTS_OF, parts))
        if levels > MAX_LEVELS or num_parts > MAX_PARTS:
            raise SelectionError(
                code="selector_too_large",
                problem=f"a selector of {num_parts} parts would stand {levels} levels deep"
                if levels > MAX_LEVELS
                else f"a selector would have {num_parts} parts",
                remedy=f"stay within {MAX_LEVELS} levels and {MAX_PARTS:,} parts: ask with tl.where(...) what so many "
                "terms ask together",
                levels=levels,
                num_parts=num_parts,
            )
        object.__setattr__(self, "levels", levels)  # it is frozen from here on
        object.__setattr__(self, "num_parts", num_parts)


LEVELS_OF: Final = attrgetter("levels")
NUM_PARTS_OF: Final = attrgetter("num_parts")


def combine(selectors: Iterable[Selector], sign: str) -> str:
    return f"({f' {sign} '.join(map(repr, selectors))})"


@attrs.frozen(repr=False)
class AnyOf(Compound):
    """What some part matches."""

    word: ClassVar[str] = "or"

    of: tuple[Selector, ...]

    def parts(self) -> tuple[Selector, ...]:
        return self.of

    def live(self, facts: LiveFacts) -> Verdict:
        answers = [part.live(facts) for part in self.of]
        return True if True in answers else None if None in answers else False

    def found(self, tables: Tables, record: Record) -> set[int]:
        found: set[int] = set()
        for part in self.of:
            found |= part.found(tables, record)
        return found

    def __repr__(self) -> str:
        return combine(self.of, "|")


@attrs.frozen(repr=False)
class AllOf(Compound):
    """What all parts match."""

    word: ClassVar[str] = "and"

    of: tuple[Selector, ...]

    def parts(self) -> tuple[Selector, ...]:
        return self.of

    def live(self, facts: LiveFacts) -> Verdict:
        answers = [part.live(facts) for part in self.of]
        return False if False in answers else None if None in answers else True

    def found(self, tables: Tables, record: Record) -> set[int]:
        first, *others = [part.found(tables, record) for part in self.of]
        return first.intersection(*others)

    def __repr__(self) -> str:
        return combine(self.of, "&")


@attrs.frozen(repr=False)
class Not(Compound):
    """What a part does not match."""

    word: ClassVar[str] = "not"

    of: Selector

    def parts(self) -> tuple[Selector, ...]:
        return (self.of,)

    def live(self, facts: LiveFacts) -> Verdict:
        answer = self.of.live(facts)
        return None if answer is None else not answer

    def found(self, tables: Tables, record: Record) -> set[int]:
        return set(range(len(tables.ops))) - self.of.found(tables, record)

    def __repr__(self) -> str:
        return f"~{self.of!r}"


# -- terms


class Term(Selector):
    """A question that is no combination of others."""

    __slots__ = ()


@attrs.frozen(repr=False)
class Func(Term):
    """Ops of a function, by its name or by the type it has in labels."""

    word: ClassVar[str] = "func"

    name: str

    def live(self, facts: LiveFacts) -> Verdict:
        return self.name in (facts.func_name, facts.layer_type)

    def found(self, tables: Tables, record: Record) -> set[int]:
        pairs = zip(tables.ops.column("func_name"), tables.ops.column("layer_type"), strict=True)
        return {row for row, names in enumerate(pairs) if self.name in names}

    def __repr__(self) -> str:
        return f"func({self.name!r})"


@attrs.frozen(repr=False)
class Output(Term):
    """One result of calls that return several, by position or by name."""

    word: ClassVar[str] = "output"

    slot: int | str

    @property
    def varies(self) -> bool:
        return isinstance(self.slot, str)

    def live(self, facts: LiveFacts) -> Verdict:
        if facts.multi_output_index is None:
            return False
        return self.slot == (facts.multi_output_name if isinstance(self.slot, str) else facts.multi_output_index)

    def found(self, tables: Tables, record: Record) -> set[int]:
        by_name = isinstance(self.slot, str)
        column = tables.ops.column("multi_output_name" if by_name else "multi_output_index")
        several = tables.ops.column("in_multi_output")
        return {row for row, slot in enumerate(column) if several[row] and slot == self.slot}

    def __repr__(self) -> str:
        return f"output({self.slot!r})"


def calls_named(tables: Tables, address: str) -> list[int]:
    """Rows of the module calls that an address, an alias or a call label names."""
    base, token = call_key(address, tables.aliases)
    calls = [row for row, owner in enumerate(tables.module_calls.column("address")) if owner == base]
    if token == ANY_CALL:
        return calls
    if token == LAST_CALL:
        return calls[-1:]
    return [row for row in calls if tables.module_calls.value("call_index", row) == int(token)]


def named_among(key: CallKey, call_labels: Iterable[str]) -> Verdict:
    """Whether a call that a key names is among these; None where that depends on which will be the last."""
    for call_label in call_labels:
        base, _, number = call_label.rpartition(":")
        if base == key.address:
            if key.token == LAST_CALL:
                return None
            if key.token in (ANY_CALL, number):
                return True
    return False


def names_whole(key: CallKey) -> bool:
    """Whether a key is the root's own call, in which everything ran."""
    return key.address == ROOT and key.token in (ANY_CALL, "1")


@attrs.frozen(repr=False)
class ModuleOutput(Term):
    """Ops whose value a module returned; with a call number, that call."""

    word: ClassVar[str] = "module"

    address: str

    @property
    def undecided(self) -> bool:
        return self.address.endswith(f":{LAST_CALL}")

    def live(self, facts: LiveFacts) -> Verdict:
        """Known when a module returns the value; that none will return it is known at the end."""
        key = facts.call_key(self.address)
        if facts.is_output:
            return None if key == (ROOT, LAST_CALL) else names_whole(key)
        answer = named_among(key, facts.output_of)
        return answer if answer is not False or facts.at_end else None

    def found(self, tables: Tables, record: Record) -> set[int]:
        outputs = tables.module_calls.column("output_op_rows")
        return {row for call in calls_named(tables, self.address) for row in outputs[call]}

    def __repr__(self) -> str:
        return f"module({self.address!r})"


@attrs.frozen(repr=False)
class InModule(Term):
    """Ops that ran inside a module, nested modules included; with a call number, inside that call."""

    word: ClassVar[str] = "in_module"

    address: str

    @property
    def undecided(self) -> bool:
        return self.address.endswith(f":{LAST_CALL}")

    def live(self, facts: LiveFacts) -> Verdict:
        key = facts.call_key(self.address)
        if key == (ROOT, LAST_CALL):
            return None
        return names_whole(key) or named_among(key, facts.modules)

    def found(self, tables: Tables, record: Record) -> set[int]:
        if names_whole(call_key(self.address, tables.aliases)):
            return set(range(len(tables.ops)))
        inside = tables.module_calls.column("op_rows")
        return {row for call in calls_named(tables, self.address) for row in inside[call]}

    def __repr__(self) -> str:
        return f"in_module({self.address!r})"


@attrs.frozen(repr=False)
class Label(Term):
    """The op with a label: final, with a pass, short, or raw."""

    word: ClassVar[str] = "label"

    name: str

    @property
    def is_raw(self) -> bool:
        return self.name.endswith(RAW_TAIL)

    @property
    def undecided(self) -> bool:
        return not self.is_raw

    @property
    def varies(self) -> bool:
        return self.is_raw

    def live(self, facts: LiveFacts) -> Verdict:
        """A label begins with the type of its op, so that ops of other types are told at once."""
        if self.is_raw:
            return facts.raw_label == self.name
        bases = {self.name, self.name.rpartition(":")[0]}  # a type may have a colon in it
        parts = [LABEL_PARTS.fullmatch(base) for base in bases]
        return None if any(part is not None and part["type"] == facts.layer_type for part in parts) else False

    def found(self, tables: Tables, record: Record) -> set[int]:
        if self.is_raw:
            return {row for row, raw in enumerate(tables.ops.column("raw_label")) if raw == self.name}
        base, colon, token = self.name.rpartition(":")
        layers = tables.layers
        for names in (layers.column("layer_label"), layers.column("layer_label_short")):
            for layer, name in enumerate(names):
                if name == self.name:
                    return self.bare(tables, layer)
                if colon and name == base:
                    return set(passes_named(layers.value("op_rows", layer), token))
        return set()

    def bare(self, tables: Tables, layer: int) -> set[int]:
        """What the label of a layer stands for without a pass: the only one."""
        rows: tuple[int, ...] = tables.layers.value("op_rows", layer)
        if len(rows) == 1:
            return {rows[0]}
        raise SelectionError(
            code="multipass_bare_label_ambiguous",
            problem=f"{self.name!r} names {len(rows)} passes of one layer",
            remedy=f"ask for one, label({self.name + ':1'!r}), or for all, label({self.name + ':all'!r})",
            label=self.name,
            num_passes=len(rows),
        )

    def __repr__(self) -> str:
        return f"label({self.name!r})"


@attrs.frozen(repr=False)
class Site(Label):
    """What ``tl.grad`` takes a text for: a label, of which a layer's stands for all its passes."""

    word: ClassVar[str] = "site"

    def bare(self, tables: Tables, layer: int) -> set[int]:
        return set(tables.layers.value("op_rows", layer))

    def __repr__(self) -> str:
        return repr(self.name)


def passes_named(rows: tuple[int, ...], token: str) -> tuple[int, ...]:
    """The op rows of the passes that a token names; none where there is no such pass."""
    if token == "all":
        return rows
    if token == "last":
        return rows[-1:]
    return rows[int(token) - 1 : int(token)] if is_count(token) and int(token) else ()


@attrs.frozen(repr=False)
class Contains(Term):
    """Ops whose label contains a text, whatever its case; the raw label where the text speaks of it."""

    word: ClassVar[str] = "contains"

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

    def found(self, tables: Tables, record: Record) -> set[int]:
        text = self.text.lower()
        labels = tables.ops.column("raw_label" if self.is_raw else "label")
        return {row for row, label in enumerate(labels) if text in label.lower()}

    def __repr__(self) -> str:
        return f"contains({self.text!r})"


@attrs.frozen(repr=False)
class Regex(Term):
    """Ops in whose label a pattern is found; in the raw label where the pattern speaks of it."""

    word: ClassVar[str] = "regex"

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

    def found(self, tables: Tables, record: Record) -> set[int]:
        search = re.compile(self.pattern).search
        labels = tables.ops.column("raw_label" if self.is_raw else "label")
        return {row for row, label in enumerate(labels) if search(label)}

    def __repr__(self) -> str:
        return f"regex({self.pattern!r})"


@attrs.frozen(repr=False)
class Where(Term):
    """Ops for which a predicate holds."""

    word: ClassVar[str] = "where"

    predicate: Callable[[Any], Any]
    name_hint: str | None = None

    @property
    def varies(self) -> bool:
        return True

    def live(self, facts: LiveFacts) -> Verdict:
        try:
            return bool(self.predicate(facts))
        except NotYetKnown:
            return None

    def found(self, tables: Tables, record: Record) -> set[int]:
        return {row for row in range(len(tables.ops)) if self.predicate(record(row))}

    def __repr__(self) -> str:
        name = self.name_hint or getattr(self.predicate, "__qualname__", type(self.predicate).__qualname__)
        return f"where({name})"


def names_gradients(selector: Selector) -> SelectionError:
    """The refusal of a selector of gradients where ops are chosen by what the forward tells of them."""
    return SelectionError(
        code="selector_names_gradients",
        problem=f"{selector!r} asks what a backward pass does, where only a forward is asked about",
        remedy="choose ops by selectors of the forward; save_grads= chooses gradients, and trace[selector] finds them",
        selector=repr(selector),
    )


@attrs.frozen(repr=False)
class GradientOf(Compound):
    """The gradients of what a selector matches, which a backward pass makes."""

    word: ClassVar[str] = "grad"
    is_of_backward: ClassVar[bool] = True

    of: Selector

    def parts(self) -> tuple[Selector, ...]:
        return (self.of,)

    def live(self, facts: LiveFacts) -> Verdict:
        raise names_gradients(self)

    def found(self, tables: Tables, record: Record) -> set[int]:
        raise names_gradients(self)

    def __repr__(self) -> str:
        return f"grad({self.of!r})"


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
    """Ops in whose label ``re.search`` finds a pattern.

    Raises:
        SelectorTypeError: ``selector_argument_type_invalid``, when the pattern is no string.
        SelectionError: ``selector_pattern_invalid``, when Python compiles no such pattern.
    """
    try:
        re.compile(text_argument(pattern, "regex"))
    except (re.error, RecursionError, OverflowError) as exc:
        raise SelectionError(
            code="selector_pattern_invalid",
            problem=f"regex() was given {cut(pattern)}, which is no pattern: {exc}",
            remedy="write it as for re.compile, or use contains(), in which every character stands for itself",
            pattern=pattern,
        ) from exc
    return Regex(pattern)


def cut(pattern: str) -> str:
    return repr(pattern if len(pattern) <= LONGEST_SHOWN else f"{pattern[:LONGEST_SHOWN]}...")


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


def grad(site: Selector | str) -> Selector:
    """The gradient of a site: ``grad("relu_1_2")``, ``grad(tl.module("encoder"))``.

    Args:
        site: A selector, or a label; that of a layer means all its passes.

    It combines with other selectors, those of ``backward_terms`` included. A trace without a backward pass refuses to
    resolve it, with ``gradient_sites_unavailable``.
    """
    return GradientOf(site if isinstance(site, Selector) else Site(text_argument(site, "grad")))


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


def selector_argument(given: object, name: str) -> Selector:
    """A selector, or the label a string names, as an argument."""
    return given if isinstance(given, Selector) else Label(text_argument(given, name))


def text_argument(given: object, name: str, code: str = "selector_argument_type_invalid") -> str:
    if isinstance(given, str):
        return given
    raise SelectorTypeError(
        code=code,
        problem=f"{name}() was given {type(given).__name__}",
        remedy=f"pass a string to {name}()"
        + ("" if name not in ("grad", "preceded_by", "followed_by") else ", or a selector"),
        received_type=type(given).__name__,
    )


def in_label_form(text: str) -> bool:
    """Whether a text looks like a label of a finished forward."""
    return LABEL_FORM.fullmatch(text) is not None and text == text.lower()
