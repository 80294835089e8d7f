"""Where two captures part: ``tl.first_difference(a, b)``.

Reads  two captures, their ops aligned (projections/aligning.py), and of each pair the payloads or statistics, once.
Gives  a ``Difference``: the first, and of each op, gradient and module call how much error it has and how much it adds.
Rule   the *error* of a tensor is relative: the length (the root of the sum of squares, in double precision) of the
       difference, divided by the length of ``a``'s. Elements that are the same infinity, or NaN on both sides, differ
       by nothing; where one side alone has them the error is infinite.
Rule   the error that something *inherits* is that of all tensors that it was made from, as if they were one; what it
       *adds* is its own error less that. A step that only passes on the relative error of what it is given adds
       nothing, one that damps it adds less than nothing. Parameters are no part of what is inherited: what other
       weights bring about is added where they are used.
Note   Nothing is run again: whether an ill-conditioned step has amplified an error or made one cannot be told apart,
       and counts as added.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs

from journal import JournalError
from projections.aligning import NOWHERE, Aligned, aligned
from projections.errors import over_events
from torchlens import compat
from torchlens.errors import ConfigurationError, PayloadUnavailableError
from torchlens.journals.journal_view import load
from torchlens.measuring import measured
from torchlens.printable import amount, printable
from torchlens.reading.facade import Trace
from torchlens.reading.locations import place_in_model
from torchlens.reading.tabular import frame_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Compared", "Difference", "first_difference"]

Capture: TypeAlias = "Trace | str | os.PathLike[str] | tuple[str | os.PathLike[str], int | str]"

SHOWN: Final = 5
"""Blocks that the text form names."""

RECORD: Final = ("func_name", "shape", "func_config")
"""Fields of an op that make it another one; dtype and device are told beside, since runs in several are compared."""


@attrs.frozen
class Compared:
    """An op, a gradient or a module call that both captures have."""

    kind: str  # "op", "gradient" or "module_call"
    label: str  # in the first capture: of the op or call, or whose gradient it is
    other_label: str  # in the second
    event: int  # in the first
    other_event: int
    backward_pass: int | None  # of a gradient, from 1
    dtypes: tuple[str, str]  # on both sides; of a module call, of its first output
    error: float | None  # relative; None where it was not compared
    inherited: float | None  # that of what it was made from; None where not all of that was compared
    max_abs: float | None  # largest difference of two finite elements
    num_beyond: int  # elements that differ by more than the tolerance; of a module call, of its outputs
    basis: str | None  # "payload" or "statistics", what was compared; None where nothing was

    @property
    def added(self) -> float | None:
        """The error that it adds: its own less what it inherits; None where one is not known."""
        if self.error is None or self.inherited is None:
            return None
        if math.isinf(self.error):
            return 0.0 if math.isinf(self.inherited) else math.inf
        return self.error - self.inherited

    @property
    def differs(self) -> bool:
        """Whether some element is beyond the tolerance."""
        return self.num_beyond > 0


@attrs.frozen(repr=False)
class Difference:
    """The first difference of two captures; false where there is none in what could be compared."""

    kind: str | None  # "only_first", "only_second", "record", "payload", "statistics" or "gradient"; None for none
    label: str | None  # of the op in the first capture, or whose gradient it is; None where only the second has it
    other_label: str | None
    event: int | None  # in the first capture
    other_event: int | None
    module: str | None  # label of the innermost module call around it; None at the root
    place: str | None  # "model.py:17"
    backward_pass: int | None
    field: str | None  # of a record, the field that differs
    before: Any  # what it holds in the first
    after: Any
    first: Compared | None  # of a payload, statistics or a gradient: the pair
    ops: tuple[Compared, ...]  # all pairs of ops, in order
    gradients: tuple[Compared, ...]  # all pairs of gradients, in order
    blocks: tuple[Compared, ...]  # all pairs of module calls, in order of entry
    only_first: tuple[str, ...]  # labels of ops that the second capture has not
    only_second: tuple[str, ...]
    not_compared: tuple[str, ...]  # labels of ops of which a side kept nothing that can be compared
    rtol: float
    atol: float

    def __bool__(self) -> bool:
        return self.kind is not None

    def worst(self, count: int = SHOWN) -> tuple[Compared, ...]:
        """The module calls that add most error, most first; those of which it is known. A call counts what the calls
        inside it add.

        Args:
            count: How many at most.

        Raises:
            ConfigurationError: ``difference_argument_invalid``.
        """
        if type(count) is not int or count < 0:
            raise argument_invalid(f"count={count!r} is no whole number from 0 on", f"pass one, such as {SHOWN}")
        known = [block for block in self.blocks if block.added is not None]
        return tuple(sorted(known, key=lambda block: -(block.added or 0.0))[:count])

    def to_pandas(self) -> pandas.DataFrame:
        """One row per op, gradient and module call that both have, in this order; needs pandas."""
        rows = (*self.ops, *self.gradients, *self.blocks)
        names = [field.name for field in attrs.fields(Compared)]
        columns = {name: [getattr(row, name) for row in rows] for name in (*names, "added")}
        return frame_of(columns, len(rows))

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in self.lines())

    __repr__ = __str__

    def lines(self) -> Iterator[str]:
        compared = sum(each.basis is not None for each in (*self.ops, *self.gradients))
        tolerance = f"rtol {self.rtol:g}, atol {self.atol:g}"
        if self.kind is None:
            yield f"no difference in {amount(compared, 'tensor')} ({tolerance})"
        else:
            during = "" if self.backward_pass is None else f" in backward pass {self.backward_pass}"
            where = (f" at {self.place}" if self.place else "") + (f" in {self.module}" if self.module else "")
            yield f"first difference: {self.said()}{during}{where}"
            if self.first is not None and self.first.error is not None:
                yield f"  {self.figures(self.first)} ({tolerance})"
        if self.only_first or self.only_second:
            counts = amount(len(self.only_first), "op"), amount(len(self.only_second), "op")
            yield f"  only in the first: {counts[0]}; only in the second: {counts[1]}"
        for block in self.worst() if self.kind is not None else ():
            if (block.added or 0.0) > 0:
                yield f"  {block.label} adds {block.added:.3g} to {block.inherited:.3g}"
        if self.not_compared:
            yield f"  not compared: {amount(len(self.not_compared), 'op')}, of which a side kept nothing"

    def said(self) -> str:
        label = self.label if self.label == self.other_label else f"{self.label}, which is {self.other_label} there,"
        if self.kind == "only_first":
            return f"{self.label} is only in the first"
        if self.kind == "only_second":
            return f"{self.other_label} is only in the second"
        if self.kind == "record":
            return f"{label} has {self.field} {self.before!r} in the first and {self.after!r} in the second"
        return f"{'the gradient of ' if self.kind == 'gradient' else ''}{label} differs"

    def figures(self, pair: Compared) -> str:
        beyond = (
            f"{amount(pair.num_beyond, 'element')} beyond the tolerance" if pair.basis == "payload" else "statistics"
        )
        most = "" if pair.max_abs is None else f", at most by {pair.max_abs:.3g}"
        given = "" if pair.inherited is None else f", of which {pair.inherited:.3g} is inherited"
        return f"{beyond}{most}; relative error {pair.error:.3g}{given}"


class Parted(NamedTuple):
    """How two tensors differ."""

    apart: float  # length of the difference; infinite where one side alone is not finite
    size: float  # length of the first
    max_abs: float | None
    num_beyond: int
    basis: str

    @property
    def error(self) -> float:
        return relative([self])


class Held(NamedTuple):
    """A row of which a tensor or statistics may have been kept."""

    trace: Trace
    table: str  # "ops" or "gradients"
    row: int

    @property
    def is_measured(self) -> bool:
        """Whether statistics were kept in its place."""
        return bool(self.trace.table(self.table).value("has_stored_stats", self.row))

    def tensor(self) -> Any:
        """The tensor; None where it was not kept, or is not to be had any more."""
        try:
            return self.trace.activation(self.row) if self.table == "ops" else self.trace.gradient(self.row)
        except (PayloadUnavailableError, JournalError) as exc:
            if exc.code == "events_contradictory":
                raise
            return None

    def figures(self) -> Any:
        """Its statistics, kept or worked out; None where there is neither."""
        if self.is_measured:
            return self.trace.table(self.table).value("figures", self.row)
        tensor = self.tensor()
        return None if tensor is None else measured(tensor)


def relative(parts: Iterable[Parted]) -> float:
    """The relative error of tensors taken as one."""
    found = list(parts)
    apart, size = math.hypot(*(part.apart for part in found)), math.hypot(*(part.size for part in found))
    if apart == 0.0:
        return 0.0
    return math.inf if size == 0.0 or math.isinf(apart) else apart / size


def first_difference(a: Capture, b: Capture, *, rtol: float = 1e-5, atol: float = 1e-8) -> Difference | None:
    """Where two captures part: the first event whose record or payload differs, and what each block adds to the error.

    Ops are aligned by module path, then by structure, so that an inserted or removed op is told as such and shifts
    nothing behind it. Records differ where function, shape, settings or the aligned ops that something was made from
    do; dtype and device may be others, so that a run in float32 is compared with one in bfloat16. Payloads differ where
    an element does by more than ``atol + rtol * |a|``; where a side kept statistics, these are compared. Gradients
    follow, pass by pass.

    The *error* of a tensor is relative: the length (root of the sum of squares) of ``b - a`` divided by that of ``a``.
    What an op, gradient or module call *adds* is its error less that of all tensors that it was made from, taken as
    one: of an op its parents, of a module call its inputs, of a gradient the gradients of the ops that used the op.
    Parameters are no part of it. Nothing is run again, so what an ill-conditioned step amplifies counts as added.

    Args:
        a, b: Each a trace, the path of a journal that holds one capture, or a pair of a path and the number or name of
            a capture.
        rtol, atol: How far elements may be apart.

    Returns:
        The first difference with all comparisons; one that is false where nothing differs in what both kept, and some
        was not compared; None where all was compared and nothing differs.

    Raises:
        ConfigurationError: ``difference_argument_invalid``.
        JournalError: What ``tl.load`` raises.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not is_tolerance(value):
            raise argument_invalid(f"{name}={value!r} is no number from 0 on", f"pass one, such as {name}=1e-5")
    opened: list[Trace] = []
    try:
        sides = [capture_of(each, opened) for each in (a, b)]
        with over_events():
            return Comparison(sides[0], sides[1], rtol, atol).result()
    finally:
        for trace in opened:
            trace.cleanup()


def is_tolerance(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def capture_of(given: Any, opened: list[Trace]) -> Trace:
    if isinstance(given, Trace):
        given.require_open()
        return given
    path, which = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(path, str | os.PathLike):
        raise argument_invalid(
            f"{type(given).__name__} is no capture",
            "pass a trace, the path of a journal, or a pair of a path and the number or name of a capture",
        )
    made = load(path, capture=which)
    opened.append(made)
    return made


def argument_invalid(problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(code="difference_argument_invalid", problem=problem, remedy=remedy)


class Comparison:
    """One comparison of two captures."""

    def __init__(self, a: Trace, b: Trace, rtol: float, atol: float) -> None:
        self.a: Final = a
        self.b: Final = b
        self.rtol: Final = rtol
        self.atol: Final = atol
        self.pairs: Final = list(aligned(a.tables, b.tables))
        self.match: Final = {
            pair.before: pair.after for pair in self.pairs if pair.table == "ops" and NOWHERE not in pair
        }
        self.of_op: dict[int, Parted | None] = {}  # by row of the first capture
        self.of_value: dict[tuple[int, int], Parted | None] = {}
        self.found: dict[str, Any] | None = None  # what is told of the first difference

    def result(self) -> Difference | None:
        ops: list[Compared] = []
        only: tuple[list[str], list[str]] = ([], [])
        for pair in self.pairs:
            if pair.table != "ops":
                continue
            if pair.before == NOWHERE or pair.after == NOWHERE:
                self.told_alone(pair, only)
            else:
                ops.append(self.op(pair))
        gradients = list(self.gradients())
        blocks = [self.block(pair) for pair in self.pairs if pair.table == "module_calls" and NOWHERE not in pair]
        missed = tuple(each.label for each in ops if each.basis is None)
        if self.found is None and not missed:
            return None
        nothing = ("kind", "label", "other_label", "event", "other_event", "module", "place", "backward_pass", "field")
        found: dict[str, Any] = {**dict.fromkeys((*nothing, "before", "after", "first")), **(self.found or {})}
        return Difference(
            **found,
            ops=tuple(ops),
            gradients=tuple(gradients),
            blocks=tuple(blocks),
            only_first=tuple(only[0]),
            only_second=tuple(only[1]),
            not_compared=missed,
            rtol=self.rtol,
            atol=self.atol,
        )

    # -- ops

    def told_alone(self, pair: Aligned, only: tuple[list[str], list[str]]) -> None:
        side = 0 if pair.after == NOWHERE else 1
        trace, row = (self.a, pair.before) if side == 0 else (self.b, pair.after)
        label = trace.tables.ops.value("label", row)
        only[side].append(label)
        names = ("label", "event") if side == 0 else ("other_label", "other_event")
        facts = dict(zip(names, (label, trace.tables.ops.value("event", row)), strict=True))
        self.first("only_first" if side == 0 else "only_second", trace, row, **facts)

    def first(self, kind: str, trace: Trace, row: int, **facts: Any) -> None:
        """Remember a difference, if it is the first."""
        if self.found is None:
            where = (
                {"module": trace.tables.ops.value("module", row), "place": place_in_model(trace, row)}
                if row >= 0
                else {}
            )
            self.found = {"kind": kind, **where, **facts}

    def op(self, pair: Aligned) -> Compared:
        one, other = self.a.tables.ops, self.b.tables.ops
        row, twin = pair.before, pair.after
        labels = one.value("label", row), other.value("label", twin)
        events = one.value("event", row), other.value("event", twin)
        named = {"label": labels[0], "other_label": labels[1], "event": events[0], "other_event": events[1]}
        for field in RECORD:
            before, after = one.value(field, row), other.value(field, twin)
            if before != after:
                self.first("record", self.a, row, field=field, before=before, after=after, **named)
                break
        else:
            wanted = [self.match.get(parent, NOWHERE) for parent in one.value("parent_rows", row)]
            if wanted != list(other.value("parent_rows", twin)) and NOWHERE not in wanted:
                before, after = one.value("parents", row), other.value("parents", twin)
                self.first("record", self.a, row, field="parents", before=before, after=after, **named)
        parted = self.of_op[row] = self.parted(row, twin)
        compared = self.compared(
            "op",
            labels,
            events,
            (one.value("dtype", row), other.value("dtype", twin)),
            parted,
            self.joined(dict.fromkeys(one.value("parent_rows", row)), self.of_op),
        )
        if compared.differs:
            kind = "payload" if compared.basis == "payload" else "statistics"
            self.first(kind, self.a, row, first=compared, **named)
        return compared

    def parted(self, row: int, twin: int) -> Parted | None:
        """How the activations of two ops differ; those of rows that show one value are compared once."""
        key = (self.a.tables.ops.value("value", row), self.b.tables.ops.value("value", twin))
        if key not in self.of_value:
            self.of_value[key] = self.apart(Held(self.a, "ops", row), Held(self.b, "ops", twin))
        return self.of_value[key]

    def joined(self, rows: Iterable[Any], known: Mapping[Any, Parted | None]) -> float | None:
        """The error of several as one; None where one was not compared."""
        parts = [known.get(row) for row in rows]
        found = [part for part in parts if part is not None]
        return relative(found) if len(found) == len(parts) else None

    def compared(
        self,
        kind: str,
        labels: tuple[str, str],
        events: tuple[int, int],
        dtypes: tuple[str, str],
        parted: Parted | None,
        inherited: float | None,
        number: int | None = None,
    ) -> Compared:
        return Compared(
            kind=kind,
            label=labels[0],
            other_label=labels[1],
            event=events[0],
            other_event=events[1],
            backward_pass=number,
            dtypes=dtypes,
            error=None if parted is None else parted.error,
            inherited=inherited,
            max_abs=None if parted is None else parted.max_abs,
            num_beyond=0 if parted is None else parted.num_beyond,
            basis=None if parted is None else parted.basis,
        )

    # -- module calls

    def block(self, pair: Aligned) -> Compared:
        one, other = self.a.tables.module_calls, self.b.tables.module_calls
        ops = self.a.tables.ops
        outputs = one.value("output_op_rows", pair.before)
        parts = [self.of_op.get(row) for row in outputs]
        known = [part for part in parts if part is not None]
        whole = None
        if known and len(known) == len(parts):
            apart, size = math.hypot(*(part.apart for part in known)), math.hypot(*(part.size for part in known))
            most = max((part.max_abs for part in known if part.max_abs is not None), default=None)
            basis = "payload" if all(part.basis == "payload" for part in known) else "statistics"
            whole = Parted(apart, size, most, sum(part.num_beyond for part in known), basis)
        twins = other.value("output_op_rows", pair.after)
        words = (
            ops.value("dtype", outputs[0]) if outputs else "",
            self.b.tables.ops.value("dtype", twins[0]) if twins else "",
        )
        return self.compared(
            "module_call",
            (one.value("call_label", pair.before), other.value("call_label", pair.after)),
            (one.value("event", pair.before), other.value("event", pair.after)),
            words,
            whole,
            self.joined(dict.fromkeys(one.value("input_op_rows", pair.before)), self.of_op),
        )

    # -- gradients

    def gradients(self) -> Iterator[Compared]:
        """Gradients that both kept, of the same owner in the same pass, in the order of the first capture."""
        one, other = self.a.tables.gradients, self.b.tables.gradients
        addresses = {address: row for row, address in enumerate(self.b.tables.params.column("address"))}
        twins: dict[tuple[str, int, int, int], int] = {}
        for row, key in enumerate(keys_of(other)):
            twins.setdefault(key, row)
        known: dict[tuple[int, int], Parted | None] = {}  # by op and pass
        children = self.a.tables.ops.column("child_rows")
        for row, (kind, owner, number, ordinal) in enumerate(keys_of(one)):
            if kind == "op":
                there = self.match.get(owner, NOWHERE)
            else:
                there = addresses.get(self.a.tables.params.value("address", owner), NOWHERE)
            twin = twins.get((kind, there, number, ordinal))
            if twin is None:
                continue
            parted = self.apart(Held(self.a, "gradients", row), Held(self.b, "gradients", twin))
            if parted is None:
                continue
            if kind == "op":
                known[owner, number] = parted
                users: Sequence[int] = children[owner]
            else:
                users = self.a.tables.params.value("op_rows", owner)
            came = [(user, number) for user in users if (user, number) in known]
            compared = self.compared(
                "gradient",
                (one.value("owner", row), other.value("owner", twin)),
                (one.value("event", row), other.value("event", twin)),
                (one.value("dtype", row), other.value("dtype", twin)),
                parted,
                self.joined(came, known) if came else None,
                number + 1,
            )
            if compared.differs:
                labels = {"label": compared.label, "other_label": compared.other_label}
                events = {"event": compared.event, "other_event": compared.other_event}
                op = owner if kind == "op" else NOWHERE
                self.first("gradient", self.a, op, first=compared, backward_pass=number + 1, **labels, **events)
            yield compared

    # -- two tensors

    def apart(self, one: Held, other: Held) -> Parted | None:
        """How two tensors differ; None where a side kept nothing that can be looked at."""
        if not one.is_measured and not other.is_measured:
            tensors = one.tensor(), other.tensor()
            return None if tensors[0] is None or tensors[1] is None else self.of_tensors(*tensors)
        both = one.figures(), other.figures()
        return None if both[0] is None or both[1] is None else self.of_figures(*both)

    def of_tensors(self, one: Any, other: Any) -> Parted | None:
        import torch  # for cost

        with compat.NoTorchFunction(), torch.no_grad():
            try:
                pair = [wide(each) for each in (one, other)]
            except (RuntimeError, TypeError):  # a class or layout that does not tell its elements
                return None
            a, b = pair
            if a.shape != b.shape:
                return None
            finite = torch.isfinite(a) & torch.isfinite(b)
            same = (a == b) | (torch.isnan(a) & torch.isnan(b))
            odd = int((~finite & ~same).sum())
            apart = torch.where(finite, b - a, 0.0).abs()
            size = torch.where(finite, a, 0.0).abs()
            beyond = int((apart > self.atol + self.rtol * size).sum()) + odd
            return Parted(
                apart=math.inf if odd else length(apart),
                size=length(size),
                max_abs=float(apart.max()) if apart.numel() else None,
                num_beyond=beyond,
                basis="payload",
            )

    def of_figures(self, one: Any, other: Any) -> Parted:
        """Statistics compared: counts must be the same, range, mean and deviation within the tolerance. The error is
        that of these four numbers."""
        counts = sum(x != y for x, y in zip(one[:3], other[:3], strict=True))
        pairs = [(x, y) for x, y in zip(one[3:], other[3:], strict=True) if x is not None and y is not None]
        odd = counts + sum((x is None) != (y is None) for x, y in zip(one[3:], other[3:], strict=True))
        apart = [abs(y - x) for x, y in pairs]
        beyond = sum(gap > self.atol + self.rtol * abs(x) for gap, (x, _) in zip(apart, pairs, strict=True)) + odd
        size = math.hypot(*(float(x) for x, _ in pairs))
        return Parted(math.inf if odd else math.hypot(*apart), size, max(apart, default=None), beyond, "statistics")


def keys_of(gradients: Any) -> Iterator[tuple[str, int, int, int]]:
    """Of each gradient: kind and row of its owner, the pass, and which of that owner in that pass."""
    counts: dict[tuple[str, int, int], int] = {}
    columns = (gradients.column(name) for name in ("owner_kind", "op_row", "param_row", "pass_row"))
    for kind, op, param, number in zip(*columns, strict=True):
        key = (kind, op if kind == "op" else param, number)
        counts[key] = counts.get(key, -1) + 1
        yield (*key, counts[key])


def wide(tensor: Any) -> Any:
    """The elements in double precision, on the CPU, in the order of the axes."""
    import torch  # for cost

    plain = compat.detach(tensor)
    if plain.is_meta or plain.is_nested:
        raise TypeError("its elements do not lie in one order")
    if plain.is_quantized:
        plain = compat.dequantized(plain)
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return compat.to(plain.cpu(), torch.complex128 if plain.dtype.is_complex else torch.float64)


def length(magnitudes: Any) -> float:
    """The root of the sum of squares, without overflow on the way."""
    most = float(magnitudes.max()) if magnitudes.numel() else 0.0
    if most == 0.0:
        return 0.0
    return most * math.sqrt(float(((magnitudes / most) ** 2).sum()))
