"""Where two captures part: ``tl.first_difference(a, b)``.

Reads  two captures, their ops aligned (projections/accounts/aligning.py), and of each pair the payloads or statistics,
       once.
Gives  a ``FirstDifference`` (difference_answer.py): the first, and of each op, gradient and module call how much error
       it has (tensor_error.py) and how much it adds.
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
from typing import Any, Final, NamedTuple, TypeAlias

from journal import JournalError
from projections.accounts.aligning import Aligned, aligned
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from torchlens.journals.journal_view import load
from torchlens.questions.difference_answer import Compared, ComparedKind, FirstDifference, Kind, argument_invalid
from torchlens.questions.tensor_error import Basis, Parted, of_figures, relative
from torchlens.questions.verdict import verdict_of
from torchlens.reading.facade import Trace
from torchlens.reading.locations import place_of_op
from torchlens.reading.view import if_there, no_torch

__all__ = ["first_difference"]

Capture: TypeAlias = "Trace | str | os.PathLike[str] | tuple[str | os.PathLike[str], int | str]"

RECORD: Final = ("func_name", "shape", "func_config")
"""Fields of an op that make it another one; dtype and device are told beside, since runs in several are compared."""

STATISTICS_ALONE: Final = "(only statistics were)"
"""What is said of tensors whose statistics are the same, which does not show that the tensors are."""


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
        if self.table == "ops":
            return if_there(lambda: self.trace.activation(self.row))
        return if_there(lambda: self.trace.gradient(self.row))

    def figures(self) -> Any:
        """Its statistics, kept or worked out; None where there is neither."""
        if self.is_measured:
            return self.trace.table(self.table).value("figures", self.row)
        tensor = self.tensor()
        return None if tensor is None else elements().measured(tensor)


def elements() -> Any:
    """The file that looks at elements."""
    try:
        from torchlens.questions import elements as found  # for cost: records and statistics are read without torch
    except ModuleNotFoundError as exc:
        raise no_torch(exc) from exc
    return found


def first_difference(a: Capture, b: Capture, *, rtol: float = 1e-5, atol: float = 1e-8) -> FirstDifference:
    """Where two captures part: the first event whose record or payload differs, and what each block adds to the error.

    Ops are aligned by module path where what ran there agrees, else by structure, so that an inserted or removed op is
    told as such and shifts nothing behind it, and modules may have other names. Records differ where function, shape,
    settings or the aligned ops that something was made from do; dtype and device may be others, so that a run in
    float32 is compared with one in bfloat16. Payloads differ where an element does by more than
    ``atol + rtol * |a|``, whole numbers being compared exactly; where a side kept statistics, these are compared, and
    where they are the same the tensors may still not be. Gradients follow, pass by pass; those that one side alone has
    are told as not compared.

    The *error* of a tensor is relative: the length (root of the sum of squares) of ``b - a`` divided by that of ``a``.
    What an op, gradient or module call *adds* is its error less that of all tensors that it was made from, taken as
    one: of an op its parents, of a module call its inputs, of a gradient the gradients of the ops that used the op.
    Parameters are no part of it. Nothing is run again, so what an ill-conditioned step amplifies counts as added.

    Args:
        a, b: Each a trace, the path of a journal that holds one capture, or a pair of a path and the number or name of
            a capture.
        rtol, atol: How far elements may be apart.

    Returns:
        The first difference with all comparisons, false where none was found. Its ``verdict`` is ``first``, or
        ``first_seen`` where something before it was not compared; ``clean`` where all was compared and nothing differs,
        ``clean_as_seen`` where some was not compared, ``not_checked`` where nothing was.

    Raises:
        ConfigurationError: ``difference_argument_invalid``.
        PayloadUnavailableError: ``torch_not_installed``, where there are payloads to compare, and not statistics.
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
    try:
        made = load(path, capture=which)
    except JournalError as exc:
        if exc.code != "journal_holds_many":
            raise
        where, last = os.fspath(path), exc.fields["captures"] - 1
        raise JournalError(
            code="journal_holds_many",
            problem=exc.problem,
            remedy=f"say which, in pairs: first_difference(({where!r}, {last - 1}), ({where!r}, {last})) compares the "
            "last two; `torchlens journal captures` lists them",
            path=where,
            captures=exc.fields["captures"],
        ) from exc
    opened.append(made)
    return made


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
        self.missed: list[str] = []  # what was not compared, before it

    def result(self) -> FirstDifference:
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
        nothing = ("kind", "label", "other_label", "at", "other_at", "module", "place", "backward_pass", "field")
        found: dict[str, Any] = {**dict.fromkeys((*nothing, "before", "after", "first")), **(self.found or {})}
        unexamined = tuple(dict.fromkeys(self.missed))
        num_examined = sum(each.basis is not None for each in (*ops, *gradients))
        return FirstDifference(
            verdict=verdict_of(self.found is not None, num_examined, unexamined),
            unexamined=unexamined,
            **found,
            ops=tuple(ops),
            gradients=tuple(gradients),
            blocks=tuple(blocks),
            only_first=tuple(only[0]),
            only_second=tuple(only[1]),
            rtol=self.rtol,
            atol=self.atol,
        )

    # -- ops

    def told_alone(self, pair: Aligned, only: tuple[list[str], list[str]]) -> None:
        side = 0 if pair.after == NOWHERE else 1
        trace, row = (self.a, pair.before) if side == 0 else (self.b, pair.after)
        label = trace.tables.ops.value("label", row)
        only[side].append(label)
        names = ("label", "at") if side == 0 else ("other_label", "other_at")
        facts = dict(zip(names, (label, trace.tables.ops.value("event", row)), strict=True))
        self.first("only_first" if side == 0 else "only_second", trace, row, **facts)

    def first(self, kind: Kind, trace: Trace, row: int, **facts: Any) -> None:
        """Remember a difference, if it is the first."""
        if self.found is None:
            where = (
                {"module": trace.tables.ops.value("module", row), "place": place_of_op(trace, row)} if row >= 0 else {}
            )
            self.found = {"kind": kind, **where, **facts}

    def miss(self, name: str) -> None:
        """Remember what is not compared, if nothing differs before it."""
        if self.found is None:
            self.missed.append(name)

    def op(self, pair: Aligned) -> Compared:
        one, other = self.a.tables.ops, self.b.tables.ops
        row, twin = pair.before, pair.after
        labels = one.value("label", row), other.value("label", twin)
        events = one.value("event", row), other.value("event", twin)
        named = {"label": labels[0], "other_label": labels[1], "at": events[0], "other_at": events[1]}
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
        if parted is None:
            self.miss(labels[0])
        elif parted.basis == "statistics" and not compared.differs:
            self.miss(f"{labels[0]} {STATISTICS_ALONE}")
        if compared.differs:
            self.first(compared.basis or "payload", self.a, row, first=compared, **named)
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
        kind: ComparedKind,
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
            at=events[0],
            other_at=events[1],
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
            basis: Basis = "payload" if all(part.basis == "payload" for part in known) else "statistics"
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
        twin_params = self.twin_params()
        twins: dict[tuple[str, int, int, int], int] = {}
        for row, key in enumerate(keys_of(other)):
            twins.setdefault(key, row)
        known: dict[tuple[int, int], Parted | None] = {}  # by op and pass
        looked_at = set[int]()  # passes of which a gradient was compared
        children = self.a.tables.ops.column("child_rows")
        for row, (kind, owner, number, ordinal) in enumerate(keys_of(one)):
            if kind == "op":
                there = self.match.get(owner, NOWHERE)
            else:
                there = twin_params.get(owner, NOWHERE)
            twin = twins.pop((kind, there, number, ordinal), None)
            held = Held(self.a, "gradients", row)
            parted = None if twin is None else self.apart(held, Held(self.b, "gradients", twin))
            if twin is None or parted is None:
                if there != NOWHERE:
                    self.miss(missed_gradient(one, row, number))
                continue
            looked_at.add(number)
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
                events = {"at": compared.at, "other_at": compared.other_at}
                op = owner if kind == "op" else NOWHERE
                self.first("gradient", self.a, op, first=compared, backward_pass=number + 1, **labels, **events)
            elif compared.basis == "statistics":
                self.miss(f"{missed_gradient(one, row, number)} {STATISTICS_ALONE}")
            yield compared
        known_there = {"op": set(self.match.values()), "param": set(twin_params.values())}
        for (kind, there, number, _), row in twins.items():
            if there in known_there["op" if kind == "op" else "param"]:
                self.miss(missed_gradient(other, row, number))
        for number in range(max(len(each.tables.backward_passes) for each in (self.a, self.b))):
            if number not in looked_at:
                self.miss(f"gradients of backward pass {number + 1}")

    def twin_params(self) -> dict[int, int]:
        """By row of a parameter of the first capture, that of the second: of the aligned op that took it, else the one
        of its address."""
        one, other = self.a.tables, self.b.tables
        addresses = {address: row for row, address in enumerate(other.params.column("address"))}
        found = {
            row: addresses[address] for row, address in enumerate(one.params.column("address")) if address in addresses
        }
        taken = one.ops.column("param_rows"), other.ops.column("param_rows")
        by_op = (zip(taken[0][row], taken[1][twin], strict=False) for row, twin in self.match.items())
        return found | {param: twin for pairs in by_op for param, twin in pairs}

    # -- two tensors

    def apart(self, one: Held, other: Held) -> Parted | None:
        """How two tensors differ; None where a side kept nothing that can be looked at."""
        if not one.is_measured and not other.is_measured:
            tensors = one.tensor(), other.tensor()
            return (
                None
                if tensors[0] is None or tensors[1] is None
                else elements().of_tensors(*tensors, self.rtol, self.atol)
            )
        both = one.figures(), other.figures()
        return None if both[0] is None or both[1] is None else of_figures(*both, self.rtol, self.atol)


def missed_gradient(gradients: Any, row: int, number: int) -> str:
    return f"gradient of {gradients.value('owner', row)} in backward pass {number + 1}"


def keys_of(gradients: Any) -> Iterator[tuple[str, int, int, int]]:
    """Of each gradient: kind and row of its owner, the pass, and which of that owner in that pass."""
    counts: dict[tuple[str, int, int], int] = {}
    columns = (gradients.column(name) for name in ("owner_kind", "op_row", "param_row", "pass_row"))
    for kind, op, param, number in zip(*columns, strict=True):
        key = (kind, op if kind == "op" else param, number)
        counts[key] = counts.get(key, -1) + 1
        yield (*key, counts[key])
