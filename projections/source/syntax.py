"""What the text of one function says of the places in it: tests and arms, assigned names, arguments.

Reads  the text of a function as it was when it ran, and the line it starts on.
Gives  a ``Syntax``, or None where the text is no Python that this interpreter knows, is not the function that ran, or
       is beyond ``LONGEST`` or ``DEEPEST``. Nothing is ever executed.
Rule   places are ``(line, column)`` in the file, columns in bytes, as the interpreter gives them to instructions.
Rule   an arm is asked for by a place. Where an interpreter gives no columns, a line counts only if nothing else of the
       statement stands on it.
Not    which of the tests a tensor decided, and how (structure/conditionals.py).
"""

from __future__ import annotations

import ast
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import attrs

LONGEST: Final = 1 << 16
"""Bytes of a function's text that are parsed. A parsed text takes some hundred times its size, for a moment."""

DEEPEST: Final = 200
"""Levels of expressions and statements in each other. Deeper text is read as none, whatever the stack would bear."""

SHORT: Final = 200
"""Characters of a variable or an argument."""

Place: TypeAlias = tuple[int, int]
Span: TypeAlias = tuple[Place, Place]

Role: TypeAlias = Literal["evaluation", "body"]

Context: TypeAlias = Literal["if_test", "elif_test", "ifexp", "while", "assert"]

CONDITIONAL: Final[frozenset[str]] = frozenset(("if_test", "elif_test", "ifexp"))
"""Contexts that make a conditional; the others are only told of the op."""

COMPREHENSIONS: Final[dict[type[ast.AST], str]] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}
"""Code that a comprehension is compiled to where it is not part of the function around it."""

OPERATORS: Final[Mapping[type[ast.AST], frozenset[str]]] = {
    kind: frozenset(names.split())
    for kind, names in {
        ast.Add: "add radd iadd",
        ast.Sub: "sub rsub isub",
        ast.Mult: "mul rmul imul",
        ast.MatMult: "matmul rmatmul imatmul",
        ast.Div: "truediv div rtruediv rdiv itruediv idiv",
        ast.FloorDiv: "floordiv rfloordiv ifloordiv",
        ast.Mod: "mod rmod imod",
        ast.Pow: "pow rpow ipow",
        ast.LShift: "lshift rlshift ilshift",
        ast.RShift: "rshift rrshift irshift",
        ast.BitAnd: "and rand iand",
        ast.BitOr: "or ror ior",
        ast.BitXor: "xor rxor ixor",
        ast.USub: "neg",
        ast.UAdd: "pos",
        ast.Invert: "invert",
        ast.Lt: "lt gt",
        ast.Gt: "gt lt",
        ast.LtE: "le ge",
        ast.GtE: "ge le",
        ast.Eq: "eq",
        ast.NotEq: "ne",
    }.items()
}
"""The methods by which Python does an operator, also with its operands in the other order."""

PROTOCOL: Final = frozenset(("abs", "contains", "getitem", "iter", "setitem")).union(*OPERATORS.values())
"""Methods that C code calls for its own ends: to compare, to add up, to go through."""

BUILTINS: Final = frozenset(
    (
        *("abs", "all", "any", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "filter", "float", "format"),
        *("frozenset", "getattr", "hasattr", "hash", "int", "isinstance", "issubclass", "iter", "len", "list", "map"),
        *("max", "min", "next", "pow", "print", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str"),
        *("sum", "tuple", "zip"),
    )
)
"""Builtins that call methods of what they are given, or functions that they are given."""

BY_METHOD: Final = frozenset(("abs", "pow", "round"))
"""Those that give back what a method of the same name gives."""

CALLING_BACK: Final = frozenset(
    (
        *("reduce", "accumulate", "starmap", "filterfalse", "takewhile", "dropwhile", "groupby"),
        *("index", "count", "remove"),
    )
)
"""The same of the standard library, and of lists."""

BARE: Final = frozenset(
    (
        *(ast.Name, ast.Constant, ast.Load, ast.Store, ast.Del, ast.Pass),
        *ast.operator.__subclasses__(),
        *ast.unaryop.__subclasses__(),
        *ast.cmpop.__subclasses__(),
        *ast.boolop.__subclasses__(),
    )
)
"""Most nodes: nothing is read from them, and there is nothing below them."""

CONTAINERS: Final = (
    *(ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""What is compared item by item. Containers that go by a name are not known for such."""

Tree: TypeAlias = "tuple[str, Any]"
"""How a test is put together: ("leaf", number), ("not", tree), ("and", trees), ("or", trees), ("const", bool).

("items", (number, truth, value)) is a comparison that takes the truths of items: one that is ``truth`` makes the whole
``value``, others alone tell nothing, since items that are one object, or no tensors, are not asked.
"""


@attrs.frozen
class Leaf:
    """A part of a test that Python takes the truth of by itself: of a comparison, or within any() or all(), several."""

    span: Span
    num_truths: int  # most that are taken for it in one evaluation: one for each comparison of a chain
    goes_on_after: bool | None  # the truth after which the next of them is taken; None where that is either
    wrapper: str | None  # "bool_cast" where it is a call of bool()
    is_own: bool  # a comparison: its truth is told at its own span, by every version of Python
    is_of_items: bool = False  # a comparison that takes its truths itself, with nothing else between them
    is_search: bool = False  # of these, one that looks for a value in a container

    def is_open(self, count: int, truth: bool) -> bool:
        """Whether it may take another truth, after so many and this last one."""
        return count < self.num_truths and self.goes_on_after in (None, truth)


@attrs.frozen
class Test:
    """What an if, elif, conditional expression, while or assert tests."""

    context: Context
    branching: int  # number of the branching; -1 for while and assert
    arm: int
    span: Span
    leaves: tuple[Leaf, ...]  # in order of evaluation
    tree: Tree


@attrs.frozen
class Branching:
    """An if with its elifs and else, or a conditional expression."""

    start: Place
    arms: tuple[str, ...]  # "then", "elif", "else"
    tests: tuple[int, ...]  # numbers of the tests, one for each arm but the else

    def name(self, arm: int) -> str:
        """What an arm is called; elifs are counted."""
        kind = self.arms[arm]
        return f"elif_{arm}" if kind == "elif" else kind


@attrs.frozen
class Region:
    """A test or an arm of a branching, as a stretch of text."""

    span: Span
    branching: int
    arm: int
    role: Role
    has_own_lines: bool  # nothing else of its branching stands on its lines
    around: int  # the region right around it, -1 for none


@attrs.frozen
class Call:
    """A call, by what its text says of what is called."""

    name: str | None  # the name or attribute that is called; None for anything else
    is_attribute: bool

    def may_be(self, func: str) -> bool:
        """Whether a torch function that was called from here may be what the text calls."""
        if self.name is not None and plain(self.name) == plain(func):
            return not self.is_builtin or self.name in BY_METHOD
        return not (self.calls_back or plain(func) in PROTOCOL)

    def may_run(self, code: str) -> bool:
        """The same of a function of Python, by the name of its code."""
        return self.name == code or not self.calls_back

    @property
    def calls_back(self) -> bool:
        """Whether what is called is C code by its name, which calls others for its own ends."""
        return self.name in CALLING_BACK or self.is_builtin

    @property
    def is_builtin(self) -> bool:
        return not self.is_attribute and self.name in BUILTINS


@attrs.frozen
class Operation:
    """An operator, a subscript or an attribute."""

    methods: frozenset[str]  # what may do it, without underscores

    def may_be(self, func: str) -> bool:
        return plain(func) in self.methods

    def may_run(self, code: str) -> bool:
        """The name of a decorated method is its wrapper's, which may be any but another method's of this kind."""
        is_method = code.startswith("__") and code.endswith("__")
        return bool(self.methods) and (not is_method or plain(code) in self.methods)


Does: TypeAlias = "Call | Operation"

NOTHING: Final = Operation(frozenset())
"""A comparison whose result is none of what its items gave: of items, or of several in a chain."""

READS: Final[Mapping[str, tuple[str, ...]]] = {"data": ("detach",)}
"""Attributes whose reading is told under another name."""


def plain(name: str) -> str:
    return name.strip("_")


@attrs.frozen
class Expression:
    """An expression that may be a call of torch."""

    args: tuple[Span, ...]  # of the arguments, keywords with their names; () for an operator
    targets: tuple[Target, ...]
    is_returned: bool  # the statement returns it as it is
    does: Does


@attrs.frozen
class Target:
    """What a result is assigned to: a name, attribute or subscript, or several of these in brackets."""

    span: Span
    parts: tuple[Target, ...] | None  # None where it is one
    starred: int | None = None  # which part takes what is left

    def part(self, place: int, count: int) -> tuple[Target, ...]:
        """The part that takes one of ``count`` values that are written out; none where that is not one by one."""
        is_even = self.parts is not None and self.starred is None and len(self.parts) == count
        return (self.parts[place],) if is_even and self.parts is not None else ()

    def at(self, path: Sequence[int]) -> Span | None:
        """The part that takes what lies at ``path`` in a returned container; None where none takes it as it is."""
        here = self
        for index in path:
            if here.parts is None:
                return here.span
            if here.starred is not None and index >= here.starred:
                return here.parts[here.starred].span
            if index >= len(here.parts):
                return None
            here = here.parts[index]
        return here.span if here.parts is None else None


class Syntax:
    """A parsed function.

    Attributes:
        branchings: Every if and conditional expression.
        tests: Every test.
    """

    def __init__(self, lines: Sequence[bytes], first_line: int) -> None:
        self.lines = lines
        self.first_line = first_line
        self.branchings: list[Branching] = []
        self.tests: list[Test] = []
        self.by_span: dict[Span, tuple[int, int | None]] = {}  # test and, where it is known, leaf
        self.expressions: dict[Span, Expression] = {}
        self.ending: dict[Place, list[Span]] = {}  # spans of calls by where they end
        self.regions: list[Region] = []
        self.starts: list[Place] = []
        self.scopes: list[tuple[Span, str]] = []  # body, and name of the code or "def"; outer ones first
        self.casts: set[Span] = set()  # calls of bool()
        self.texts: dict[Span, str] = {}
        self.docstring: str | None = None
        self.signature: str | None = None

    def short(self, span: Span) -> str:
        """The source text of a span, cut to a bound; equal ones are one object."""
        if span not in self.texts:
            text = self.text(span)
            self.texts[span] = text if len(text) <= SHORT else text[: SHORT - 3] + "..."
        return self.texts[span]

    def text(self, span: Span) -> str:
        """The source text of a span, with its lines joined by blanks."""
        (line, column), (end_line, end_column) = span
        first, last = line - self.first_line, end_line - self.first_line
        if not 0 <= first <= last < len(self.lines):
            return ""
        if first == last:
            found = [self.lines[first][column:end_column]]
        else:
            found = [self.lines[first][column:], *self.lines[first + 1 : last], self.lines[last][:end_column]]
        return " ".join(part for part in [line.decode(errors="replace").strip() for line in found] if part)

    # -- tests

    def test_at(self, span: Sequence[int]) -> tuple[int, int | None] | None:
        """Number of the test that takes a truth at this span, and of the leaf where the span tells it."""
        if len(span) == 4:
            return self.by_span.get(span_of(span))
        line = span[0]
        found = [number for number, test in enumerate(self.tests) if test.span[0][0] <= line <= test.span[1][0]]
        if len(found) != 1:
            return None
        return found[0], 0 if len(self.tests[found[0]].leaves) == 1 else None

    def is_cast(self, span: Sequence[int]) -> bool:
        """Whether a call of bool() has this span."""
        return len(span) == 4 and span_of(span) in self.casts

    def leaf_around(self, test: int, span: Sequence[int]) -> int | None:
        """The leaf that an expression stands in."""
        if len(span) == 4:
            for number, leaf in enumerate(self.tests[test].leaves):
                if contains(leaf.span, span_of(span)):
                    return number
        return None

    # -- arms

    def regions_at(self, span: Sequence[int], code_name: str) -> list[Region]:
        """The tests and arms around a place in a function or in code of this name within it, outermost first."""
        exact = len(span) == 4
        here = span_of(span) if exact else ((span[0], 0), (span[0], 1 << 30))
        kind = code_name if code_name.startswith("<") else "def"
        holds = contains if exact else contains_line
        bounds = [scope for scope, what in self.scopes if what == kind and holds(scope, here)]
        number = bisect_right(self.starts, here[0] if exact else here[1]) - 1
        found: list[Region] = []
        while number >= 0:
            region = self.regions[number]
            fits = contains(region.span, here) if exact else region.has_own_lines and contains_line(region.span, here)
            if fits and (not bounds or contains(bounds[-1], region.span)):
                found.append(region)
            number = region.around
        found.reverse()
        return found

    # -- results and arguments

    def expression_at(self, span: Sequence[int]) -> Expression | None:
        """The expression whose instruction has this span; None where there are no columns to tell it by."""
        if len(span) != 4:
            return None
        wanted = span_of(span)
        exact = self.expressions.get(wanted)
        if exact is not None:
            return exact
        # A method called on a line of its own is told from its name on.
        around = [other for other in self.ending.get(wanted[1], ()) if other[0] <= wanted[0]]
        return self.expressions[max(around)] if around else None


def span_of(span: Sequence[int]) -> Span:
    """Line, end line, column, end column as two places."""
    line, end_line, column, end_column = span
    return (line, column), (end_line, end_column)


def contains(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def contains_line(outer: Span, inner: Span) -> bool:
    return outer[0][0] <= inner[0][0] and inner[1][0] <= outer[1][0]


# Parsing -------------------------------------------------------------------------------------------


def parse(text: bytes, first_line: int, name: str) -> Syntax | None:
    """A function's syntax.

    Args:
        text: Its text, UTF-8, from its first line on, indented as it stands in its file.
        first_line: Number of that line.
        name: What its code is called.
    """
    if len(text) > LONGEST:
        return None
    is_indented = text[:1] in (b" ", b"\t")
    tree = parsed(b"if 1:\n" + text if is_indented else text)
    if tree is None or is_too_deep(tree):
        return None
    body: list[ast.stmt] = tree.body
    if is_indented:
        outer = tree.body[0]
        assert isinstance(outer, ast.If)
        body = outer.body
    if not name.startswith("<") and not is_named(body, name):
        return None
    shift = first_line - 2 if is_indented else first_line - 1
    made = Syntax(text.split(b"\n"), first_line)
    Reading(made, shift).read(body)
    return made


def parsed(text: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():  # of an odd escape in somebody's text
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return None


def is_too_deep(tree: ast.Module) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node) if type(child) not in BARE]
        if not level:
            return False
    return True


def is_named(body: Sequence[ast.stmt], name: str) -> bool:
    """Whether a text is that of a function of this name: a file may have been changed since it was imported."""
    first = body[0] if body else None
    return isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) and first.name == name


class Reading:
    """One walk over a tree, into a ``Syntax``.

    Args:
        made: Where what is found goes.
        shift: What is added to a line of the tree to give that of the file.
    """

    def __init__(self, made: Syntax, shift: int) -> None:
        self.made = made
        self.shift = shift
        self.stretches: list[tuple[Span, int, int, Role, bool]] = []
        self.chained: set[int] = set()  # by id: an if that is an elif of one before
        self.targets: dict[int, tuple[Target, ...]] = {}  # by id of the value
        self.returned: set[int] = set()

    def span(self, node: Any) -> Span:
        return (node.lineno + self.shift, node.col_offset), (node.end_lineno + self.shift, node.end_col_offset)

    def across(self, nodes: Sequence[Any]) -> Span:
        return self.span(nodes[0])[0], self.span(nodes[-1])[1]

    def read(self, body: Sequence[ast.stmt]) -> None:
        first = body[0] if body else None
        if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef):
            self.made.docstring = ast.get_docstring(first)
            self.made.signature = signature_of(first)
        stack: list[ast.AST] = list(reversed(body))
        while stack:
            node = stack.pop()
            self.meet(node)
            stack.extend([child for child in ast.iter_child_nodes(node) if type(child) not in BARE][::-1])
        self.arrange()

    def meet(self, node: ast.AST) -> None:
        """Read one node; those around it were read before."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.made.scopes.append((self.across(node.body), "def"))
            case ast.Lambda():
                self.made.scopes.append((self.span(node.body), "<lambda>"))
                self.returned.add(id(node.body))
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.made.scopes.append((self.span(node), COMPREHENSIONS[type(node)]))
            case ast.If() if id(node) not in self.chained:
                self.branching(node)
            case ast.IfExp():
                self.conditional_expression(node)
            case ast.While(test=test):
                self.test(node, test, "while", -1, 0)
            case ast.Assert(test=test):
                self.test(node, test, "assert", -1, 0)
            case ast.Return(value=ast.expr() as value):
                self.returned.add(id(value))
            case ast.Assign(targets=targets, value=value):
                self.assign(value, [self.target(target) for target in targets])
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                self.assign(value, [self.target(target)])
            case ast.AugAssign(target=target, op=op):
                self.add(node, methods_of(op), (), (self.target(target),))
            case ast.Call():
                given = sorted([self.span(argument) for argument in (*node.args, *node.keywords)])
                self.add(node, called_by(node), tuple(given))
                self.made.ending.setdefault(self.span(node)[1], []).append(self.span(node))
                if named_call(node) == "bool":
                    self.made.casts.add(self.span(node))
            case ast.Subscript(ctx=ast.Store()):
                self.add(node, Operation(frozenset(("setitem",))), (), (self.target(node),))
            case ast.BinOp(op=op) | ast.UnaryOp(op=op):
                self.add(node, methods_of(op))
            case ast.Compare(ops=[op]) if not is_of_items(node):
                self.add(node, methods_of(op))
            case ast.Compare():
                self.add(node, NOTHING)
            case ast.Subscript():
                self.add(node, Operation(frozenset(("getitem",))))
            case ast.Attribute(ctx=ast.Load(), attr=name):
                self.add(
                    node, Operation(frozenset((plain(name), "get", "getattr", "getattribute", *READS.get(name, ()))))
                )
            case _:
                pass

    # -- results and arguments

    def add(self, node: Any, does: Does, args: tuple[Span, ...] = (), targets: tuple[Target, ...] = ()) -> None:
        found = Expression(args, (*self.targets.get(id(node), ()), *targets), id(node) in self.returned, does)
        self.made.expressions.setdefault(self.span(node), found)

    def assign(self, value: ast.expr, targets: Sequence[Target]) -> None:
        if isinstance(value, ast.Tuple | ast.List) and not any(isinstance(item, ast.Starred) for item in value.elts):
            for place, item in enumerate(value.elts):
                parts = [part for target in targets for part in target.part(place, len(value.elts))]
                self.assign(item, parts)
            return
        self.targets[id(value)] = (*self.targets.get(id(value), ()), *targets)
        if isinstance(value, ast.NamedExpr):
            self.targets[id(value.value)] = tuple(targets)
        if isinstance(value, ast.IfExp):
            for arm in (value.body, value.orelse):
                self.assign(arm, targets)

    def target(self, node: ast.expr) -> Target:
        if isinstance(node, ast.Starred):
            return self.target(node.value)
        if not isinstance(node, ast.Tuple | ast.List):
            return Target(self.span(node), None)
        starred = [place for place, item in enumerate(node.elts) if isinstance(item, ast.Starred)]
        parts = tuple([self.target(item) for item in node.elts])
        return Target(self.span(node), parts, starred[0] if starred else None)

    # -- tests and arms

    def branching(self, node: ast.If) -> None:
        """An if with its elifs and else."""
        number = len(self.made.branchings)
        chain = [node]
        while is_elif(chain[-1]):
            inner = chain[-1].orelse[0]
            assert isinstance(inner, ast.If)
            self.chained.add(id(inner))
            chain.append(inner)
        last = chain[-1].orelse
        tests = range(len(self.made.tests), len(self.made.tests) + len(chain))
        kinds = ("then", *("elif",) * (len(chain) - 1), *(("else",) if last else ()))
        self.made.branchings.append(Branching(self.span(node)[0], kinds, tuple(tests)))
        stretches: list[tuple[Span, int, Role]] = []
        for arm, one in enumerate(chain):
            self.test(one, one.test, "elif_test" if arm else "if_test", number, arm)
            stretches.append((self.span(one.test), arm, "evaluation"))
            stretches.append((self.across(one.body), arm, "body"))
        if last:
            stretches.append((self.across(last), len(chain), "body"))
        self.stretch(number, stretches)

    def conditional_expression(self, node: ast.IfExp) -> None:
        number = len(self.made.branchings)
        self.made.branchings.append(Branching(self.span(node)[0], ("then", "else"), (len(self.made.tests),)))
        self.test(node, node.test, "ifexp", number, 0)
        if id(node) in self.returned:
            self.returned |= {id(node.body), id(node.orelse)}
        self.stretch(
            number,
            [
                (self.span(node.body), 0, "body"),
                (self.span(node.test), 0, "evaluation"),
                (self.span(node.orelse), 1, "body"),
            ],
        )

    def stretch(self, number: int, stretches: Sequence[tuple[Span, int, Role]]) -> None:
        """Remember the parts of a branching, given in the order of the text."""
        lines = [(span[0][0], span[1][0]) for span, _, _ in stretches]
        shared = {place for place, (one, two) in enumerate(pairwise(lines)) if two[0] <= one[1]}
        for place, (span, arm, role) in enumerate(stretches):
            self.stretches.append((span, number, arm, role, not {place - 1, place} & shared))

    def test(self, owner: Any, test: ast.expr, context: Context, branching: int, arm: int) -> None:
        number = len(self.made.tests)
        leaves: list[Leaf] = []
        spans: list[tuple[Span, int | None]] = []
        tree = self.tree(test, leaves, spans)
        self.made.tests.append(Test(context, branching, arm, self.span(test), tuple(leaves), tree))
        only = 0 if len(leaves) == 1 else None
        for span, leaf in spans:
            self.made.by_span.setdefault(span, (number, only if leaf is None else leaf))
        # Python 3.11 tells the whole statement where a test is no comparison.
        self.made.by_span.setdefault(self.span(owner), (number, only))

    def tree(self, node: ast.expr, leaves: list[Leaf], spans: list[tuple[Span, int | None]]) -> Tree:
        if isinstance(node, ast.BoolOp):
            spans.append((self.span(node), None))
            trees = tuple([self.tree(part, leaves, spans) for part in node.values])
            return ("and" if isinstance(node.op, ast.And) else "or", trees)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            first = len(leaves)
            inner = self.tree(node.operand, leaves, spans)
            spans.append((self.span(node), first if len(leaves) == first + 1 else None))
            return ("not", inner)
        if isinstance(node, ast.Constant):
            return ("const", bool(node.value))
        called = named_call(node)
        spans.append((self.span(node), len(leaves)))
        if isinstance(node, ast.NamedExpr):
            spans.append((self.span(node.value), len(leaves)))
        if isinstance(node, ast.Compare):
            return self.comparison(node, leaves)
        num_truths = LONGEST if called in ("any", "all") else 1
        leaves.append(
            Leaf(self.span(node), num_truths, called != "any", "bool_cast" if called == "bool" else None, False)
        )
        return ("leaf", len(leaves) - 1)

    def comparison(self, node: ast.Compare, leaves: list[Leaf]) -> Tree:
        number, span = len(leaves), self.span(node)
        if not is_of_items(node):
            leaves.append(Leaf(span, len(node.ops), True, None, is_own=True))
            return ("leaf", number)
        goes_on: bool | None = None
        count, value, is_search = LONGEST, None, False
        match node.ops:
            case [ast.In() | ast.NotIn() as op]:
                goes_on, value, is_search = False, isinstance(op, ast.In), True
                count = num_items(node.comparators[0])
            case [ast.Eq() | ast.NotEq() as op]:
                goes_on, value = True, isinstance(op, ast.NotEq)
            case _:
                pass
        leaves.append(Leaf(span, count, goes_on, None, is_own=True, is_of_items=True, is_search=is_search))
        return ("items", (number, None if goes_on is None else not goes_on, value))

    def arrange(self) -> None:
        """Put the regions in order, each with the one around it."""
        open_ones: list[int] = []
        ordered = sorted(self.stretches, key=lambda one: (one[0][0], (-one[0][1][0], -one[0][1][1])))
        for span, branching, arm, role, own in ordered:
            while open_ones and not contains(self.made.regions[open_ones[-1]].span, span):
                open_ones.pop()
            around = open_ones[-1] if open_ones else -1
            open_ones.append(len(self.made.regions))
            self.made.regions.append(Region(span, branching, arm, role, own, around))
            self.made.starts.append(span[0])


def methods_of(operator: ast.AST) -> Operation:
    """What may do an operator; nothing for ``not``, which asks for a truth."""
    return Operation(OPERATORS.get(type(operator), frozenset()))


def called_by(node: ast.Call) -> Call:
    match node.func:
        case ast.Name(id=name):
            return Call(name, is_attribute=False)
        case ast.Attribute(attr=name):
            return Call(name, is_attribute=True)
        case _:
            return Call(None, is_attribute=False)


def named_call(node: ast.expr) -> str | None:
    """What a call of a plain name calls."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def is_of_items(node: ast.Compare) -> bool:
    """Whether a comparison may compare items, each with a truth of its own."""
    is_search = any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
    return is_search or any(isinstance(part, CONTAINERS) for part in (node.left, *node.comparators))


def num_items(node: ast.expr) -> int:
    """How many items a container has; ``LONGEST`` where the text does not tell."""
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        return LONGEST
    return (
        LONGEST if any(isinstance(item, ast.Starred | ast.Tuple | ast.List) for item in node.elts) else len(node.elts)
    )


def is_elif(node: ast.If) -> bool:
    inner = node.orelse[0] if len(node.orelse) == 1 else None
    return isinstance(inner, ast.If) and inner.col_offset == node.col_offset


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """Parameters and what is returned, as text."""
    try:
        returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
        return f"({ast.unparse(node.args)}){returned}"
    except (RecursionError, ValueError):
        return None


def leaves_in(tree: Tree) -> Iterator[int]:
    """Numbers of the leaves of a tree, in order of evaluation."""
    stack = [tree]
    while stack:
        kind, inner = stack.pop()
        if kind == "leaf":
            yield inner
        elif kind == "items":
            yield inner[0]
        elif kind == "not":
            stack.append(inner)
        elif kind != "const":
            stack.extend(reversed(inner))


def outcome(tree: Tree, truths: dict[int, bool]) -> bool | None:
    """What a test came to, given the truths that were taken; None where others decided it that were not seen."""
    kind, inner = tree
    match kind:
        case "leaf":
            return truths.get(inner)
        case "items":
            number, truth, value = inner
            told: bool | None = value if truth is not None and truths.get(number) is truth else None
            return told
        case "const":
            return bool(inner)
        case "not":
            found = outcome(inner, truths)
            return None if found is None else not found
        case _:
            passes = kind == "and"  # the truth of a part with which evaluation goes on
            seen = [place for place, part in enumerate(inner) if any(leaf in truths for leaf in leaves_in(part))]
            if not seen:
                return None
            found = outcome(inner[seen[-1]], truths)
            if found is None or found is not passes:
                return found
            rest = inner[seen[-1] + 1 :]
            return passes if all(part == ("const", passes) for part in rest) else None
