"""How far a capture can be trusted, for people: ``trace.health``.

Everything here but ``nonfinite`` and ``gradients`` is read from the tables. These look at the kept activations and
gradients, once (extents.py), since no event says what is in them; where statistics were kept in their place, at these.
The text form and ``is_clean`` look too, unless there is very much to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from journal import JournalError
from projections import CaptureTables
from torchlens.errors import PayloadUnavailableError
from torchlens.printable import amount, printable
from torchlens.quantities import Bytes
from torchlens.reading.extents import Extents
from torchlens.reading.locations import place_in_model
from torchlens.reading.nonfinite_gradients import GradientFinding
from torchlens.reading.view import View

__all__ = [
    "Completeness",
    "Escape",
    "EscapeFinding",
    "NonfiniteFinding",
    "OtherThread",
    "TraceHealth",
    "Unaccounted",
    "health_of",
    "nonfinite_of",
]

NAMED: Final = 8
"""Most labels or places that the text of a finding names."""

MOST_LOOKED_AT: Final = 1 << 30
"""Bytes of kept activations, and of kept gradients, that are looked at unasked, in a second or two; more only by
``nonfinite`` and ``gradients``."""


@attrs.frozen
class Escape:
    """One operator that ran past the wrappers, with the place that called it."""

    operator: str  # "aten.gelu.default"
    candidates: tuple[str, ...]  # import paths of the functions it may have been
    export_sites: tuple[str, ...]  # where such a function is bound bare: "act in models.py"
    file: str | None
    line: int | None
    function: str | None  # qualified name of the calling Python function
    stack: tuple[tuple[str, int, str], ...]  # file, line and function, outermost first, from the module's forward on
    module: str | None  # label of the innermost module call

    def __str__(self) -> str:
        where = f" at {self.file}:{self.line} in {self.function}" if self.file else ""
        bound = f"; bare: {', '.join(self.export_sites)}" if self.export_sites else ""
        return printable(f"{self.operator}{where}{bound}")


@attrs.frozen
class EscapeFinding:
    """What the escape detector saw: calls that reached torch past the wrappers."""

    mode: str  # "on", or "off" where ``verify_capture`` was not asked for
    verified: bool | None  # whether there were none; None where not looked for
    event_count: int | None
    diagnostics: tuple[Escape, ...]


@attrs.frozen
class Unaccounted:
    """Operators that ran inside a call of which only inner calls were recorded, and that belong to none of these."""

    function: str | None  # import path of that call
    operators: tuple[str, ...]

    def __str__(self) -> str:
        return printable(f"{self.function}: {', '.join(self.operators)}")


@attrs.frozen
class Completeness:
    """What the completeness witness counted: every operator that torch's dispatcher ran.

    ``accounted_count + expected_opaque_count + unaccounted_count == event_count``. The first are those of recorded
    calls, of questions to a tensor, and of calls that raised; the second those inside opaque ops and of the
    autograd engine; the third are escapes and what ``diagnostics`` names.
    """

    mode: str  # "on" or "off"
    verified: bool | None
    event_count: int | None
    accounted_count: int | None
    unaccounted_count: int | None
    expected_opaque_count: int | None
    diagnostics: tuple[Unaccounted, ...]
    decompositions: Mapping[str, tuple[str, ...]] = attrs.field(repr=False)  # op label -> operators that ran for it


@attrs.frozen
class OtherThread:
    """A thread that called torch during the forward; none of its calls is recorded."""

    name: str
    num_calls: int
    functions: Mapping[str, int]  # import path -> number of calls

    def __str__(self) -> str:
        calls = amount(self.num_calls, "call")
        return printable(f"{self.name}: {calls} of {', '.join(list(self.functions)[:NAMED])}")


@attrs.frozen(repr=False)
class NonfiniteFinding:
    """NaN and infinities among the kept activations."""

    verdict: str  # "found", "checked_and_clean", or "not_checked" where no kept activation could be looked at
    checked: int  # activations looked at, or statistics of them
    unchecked: int  # ops of whose activation neither was kept, or it is not to be had here, or cannot be looked at
    labels: tuple[str, ...]  # ops with NaN or infinity, in order
    nan_labels: tuple[str, ...]  # of them those with NaN
    first_place: str | None  # "model.py:17", the line that ``first`` was called at; None where that is not known
    first_nan_place: str | None  # the same of ``first_nan``

    @property
    def first(self) -> str | None:
        """The first op with NaN or infinity; None where there is none."""
        return self.labels[0] if self.labels else None

    @property
    def first_nan(self) -> str | None:
        """The first op with NaN. Infinities are often meant, as in a mask; a NaN hardly ever is."""
        return self.nan_labels[0] if self.nan_labels else None

    def __str__(self) -> str:
        return printable("; ".join(self.parts()))

    def __repr__(self) -> str:
        return f"<NonfiniteFinding {self.verdict}: {self}>"

    def parts(self) -> Iterator[str]:
        infinite = len(self.labels) - len(self.nan_labels)
        for what, count, label, place in (
            ("NaN", len(self.nan_labels), self.first_nan, self.first_nan_place),
            ("infinities and no NaN", infinite, self.first_infinite, None),
        ):
            if label is not None:
                at = f" ({place})" if place else ""
                yield f"{what} first in {label}{at}, {count} of {amount(self.checked, 'activation')}"
        if not self.labels and self.checked:
            yield f"all values of {amount(self.checked, 'activation')} are finite"
        if self.unchecked:
            yield f"{amount(self.unchecked, 'op')} not looked at, whose values were not kept or cannot be"

    @property
    def first_infinite(self) -> str | None:
        """The first op with infinities and no NaN; None where there is none."""
        nan = frozenset(self.nan_labels)
        return next((label for label in self.labels if label not in nan), None)


@attrs.frozen
class TraceHealth:
    """What the capture could not watch, and what else a reader should know."""

    capture_verified: bool | None  # whether every operator is accounted for; None where that was not asked for
    capture_verification_reason: str
    escape: EscapeFinding
    completeness: Completeness
    unseen_tensors: tuple[str, ...]  # ops that stand for tensors made where no wrapper looks
    opaque_ops: tuple[str, ...]  # ops that were not watched inside; ``op.opaque_reason`` says why
    opaque_reasons: Mapping[str, str]  # the reason of each op of both kinds, by label
    overwritten: tuple[str, ...]  # ops whose memory was written where no wrapper looks after the value was kept
    threads: tuple[OtherThread, ...]  # threads whose calls are not recorded
    unstored: tuple[str, ...]  # ops that were kept in the capturing process alone, though there is a journal on disk
    unstored_gradients: tuple[str, ...]  # ops and parameters of which a gradient was kept there alone
    notes: tuple[str, ...]  # what a reader should know, in words
    held: Bytes  # size of the kept activations
    look: Callable[[], NonfiniteFinding] = attrs.field(repr=False, eq=False)
    known: Callable[[], NonfiniteFinding | None] = attrs.field(repr=False, eq=False)
    has_backward_pass: bool  # whether one is recorded
    held_gradients: Bytes  # size of the kept gradients
    look_at_gradients: Callable[[], GradientFinding] = attrs.field(repr=False, eq=False)
    known_of_gradients: Callable[[], GradientFinding | None] = attrs.field(repr=False, eq=False)

    @property
    def nonfinite(self) -> NonfiniteFinding:
        """NaN and infinities. Every kept activation is looked at, once.

        Raises:
            PayloadUnavailableError: ``torch_not_installed``.
        """
        return self.look()

    @property
    def gradients(self) -> GradientFinding:
        """NaN and infinities in what backward passes left. Every kept gradient is looked at, once.

        Raises:
            PayloadUnavailableError: ``torch_not_installed``.
        """
        return self.look_at_gradients()

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to report, NaN and infinities included.

        Where more than a gigabyte is kept, activations count only once ``nonfinite`` was read, gradients once
        ``gradients`` was.
        """
        values, gradients = self.values(), self.values_of_gradients()
        return not (
            self.capture_verified is False
            or self.unseen_tensors
            or self.opaque_ops
            or self.threads
            or self.notes
            or (values is not None and values.labels)
            or (gradients is not None and gradients.found)
        )

    def values(self) -> NonfiniteFinding | None:
        """NaN and infinities; None where that was not looked at, and would take long or cannot be done here."""
        if self.held > MOST_LOOKED_AT:
            return self.known()
        try:
            return self.look()
        except PayloadUnavailableError:  # torch is not installed
            return None

    def values_of_gradients(self) -> GradientFinding | None:
        """The same of gradients."""
        if self.held_gradients > MOST_LOOKED_AT:
            return self.known_of_gradients()
        try:
            return self.look_at_gradients()
        except PayloadUnavailableError:  # torch is not installed
            return None

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in self.lines())

    __repr__ = __str__

    def lines(self) -> Iterator[str]:
        counted = self.completeness
        verdict = {True: "verified", False: "NOT verified", None: "not verified"}[self.capture_verified]
        yield f"capture {verdict if counted.mode == 'on' else ''}".rstrip() + f": {self.capture_verification_reason}"
        if counted.mode == "on":
            yield (
                f"  operators: {counted.event_count} ran, {counted.accounted_count} accounted for, "
                f"{counted.expected_opaque_count} inside opaque ops, {counted.unaccounted_count} not accounted for"
            )
        yield from several("  escaped: ", self.escape.diagnostics)
        yield from several(
            "  not accounted for, in ", [f"{u.function}: {', '.join(u.operators)}" for u in counted.diagnostics]
        )
        yield from several("  thread ", self.threads)
        for label, reason in list(self.opaque_reasons.items())[:NAMED]:
            yield f"  opaque: {label} ({reason})"
        if len(self.opaque_reasons) > NAMED:
            yield f"  opaque: {len(self.opaque_reasons) - NAMED} more"
        yield from several("  record of before: ", self.overwritten)
        yield from (f"  {note}" for note in self.notes)
        values = self.values()
        if values is None:
            yield f"  values: {self.held} of activations not looked at; read .nonfinite"
        else:
            yield f"  values: {values}"
        is_all = values is not None and not values.unchecked
        if self.has_backward_pass:
            gradients = self.values_of_gradients()
            if gradients is None:
                yield f"  gradients: {self.held_gradients} not looked at; read .gradients"
            else:
                yield f"  gradients: {gradients}"
            is_all = is_all and gradients is not None and gradients.checked > 0 and not gradients.unchecked
        if self.is_clean:
            yield "  nothing to report" if is_all else "  nothing else to report"


def several(lead: str, items: Any) -> Iterator[str]:
    yield from (f"{lead}{item}" for item in items[:NAMED])
    if len(items) > NAMED:
        yield f"{lead}{len(items) - NAMED} more"


def health_of(
    tables: CaptureTables,
    look: Callable[[], NonfiniteFinding],
    known: Callable[[], NonfiniteFinding | None],
    look_at_gradients: Callable[[], GradientFinding],
    known_of_gradients: Callable[[], GradientFinding | None],
    unstored: Sequence[int],
    unstored_gradients: Sequence[str] = (),
) -> TraceHealth:
    """The health of a trace, from its tables.

    Args:
        tables: They.
        look: Looks at the kept activations.
        known: What was found in them, where they were looked at.
        look_at_gradients, known_of_gradients: The same of the kept gradients.
        unstored: Rows of the ops of which a payload was kept, and its bytes are not in the journal on disk.
        unstored_gradients: Names of the ops and parameters of which that is so of a gradient.
    """
    fact, ops = tables.fact, tables.ops
    mode = "on" if fact("verifies_capture") else "off"
    labels, reasons = ops.column("label"), ops.column("opaque_reason")
    unseen, opaque = fact("unseen_rows"), fact("opaque_rows")
    escapes = escapes_of(tables)
    unaccounted_count = fact("num_unaccounted")
    names = fact("operators")
    return TraceHealth(
        capture_verified=fact("capture_verified"),
        capture_verification_reason=fact("capture_verification_reason"),
        escape=EscapeFinding(mode, None if mode == "off" else not escapes, fact("num_escapes"), escapes),
        completeness=Completeness(
            mode=mode,
            verified=None if unaccounted_count is None else unaccounted_count == 0,
            event_count=fact("num_dispatched"),
            accounted_count=fact("num_accounted"),
            unaccounted_count=unaccounted_count,
            expected_opaque_count=fact("num_expected_opaque"),
            diagnostics=tuple(
                Unaccounted(function, tuple(names[number] for number in numbers))
                for function, numbers in fact("unaccounted")
            ),
            decompositions={
                labels[row]: tuple(names[number] for number in numbers) for row, numbers in fact("decompositions")
            },
        ),
        unseen_tensors=tuple(labels[row] for row in unseen),
        opaque_ops=tuple(labels[row] for row in opaque),
        opaque_reasons={labels[row]: reasons[row] for row in sorted((*unseen, *opaque))},
        overwritten=tuple(labels[row] for row in fact("overwritten_rows")),
        threads=tuple(OtherThread(name, count, dict(functions)) for name, count, functions in fact("threads")),
        unstored=tuple(labels[row] for row in unstored),
        unstored_gradients=tuple(unstored_gradients),
        notes=(*notes_of(tables, unstored), *notes_of_gradients(unstored_gradients)),
        held=Bytes(fact("saved_activation_memory")),
        look=look,
        known=known,
        has_backward_pass=fact("has_backward_pass"),
        held_gradients=Bytes(fact("saved_gradient_memory")),
        look_at_gradients=look_at_gradients,
        known_of_gradients=known_of_gradients,
    )


def notes_of(tables: CaptureTables, unstored: Sequence[int]) -> Iterator[str]:
    fact = tables.fact
    unseen, opaque, threads = len(fact("unseen_rows")), len(fact("opaque_rows")), len(fact("threads"))
    if unseen:
        yield f"{counted(unseen, 'tensor')} made where no wrapper looks; each stands as an opaque op"
    if opaque:
        yield f"{counted(opaque, 'op')} not watched inside"
    if threads:
        yield f"{counted(threads, 'other thread')} calling torch; what they called is not recorded"
    if unstored:
        yield (
            f"{counted(len(unstored), 'activation')} kept in the capturing process alone: sparse, nested, quantised "
            "and meta tensors have no bytes to store, or the disk refused them"
        )
    overwritten = len(fact("overwritten_rows"))
    if overwritten:
        yield f"{counted(overwritten, 'op')} written where no wrapper looks since the value was kept"
    raised = fact("num_raised_ops")
    if raised:
        yield f"{amount(raised, 'torch call')} raised"
    passes = tables.backward_passes
    for number, reason in zip(passes.column("pass_index"), passes.column("incomplete_reason"), strict=True):
        if reason is not None:
            yield f"backward pass {number} is incomplete, and no pass after it was recorded: {reason}"
    if fact("is_partial"):
        yield f"the capture is {fact('status')}: the records are a prefix"


def notes_of_gradients(unstored: Sequence[str]) -> Iterator[str]:
    if unstored:
        yield (
            f"gradients of {len(unstored)} of the ops and parameters were kept in the capturing process alone: sparse, "
            "nested and quantised ones have no bytes to store, or the disk refused them"
        )


def unstored_gradients(view: View) -> tuple[str, ...]:
    """Names of the ops and parameters of which a gradient was kept, and its bytes are not in the journal on disk."""
    if view.journal.path is None and view.artifact is None:
        return ()
    gradients, ops, params = view.tables.gradients, view.tables.ops, view.tables.params
    columns = (gradients.column(name) for name in ("payload_ref", "op_row", "param_row"))
    return tuple(
        dict.fromkeys(
            params.value("address", param) if op < 0 else ops.value("label", op)
            for ref, op, param in zip(*columns, strict=True)
            if ref is not None and not is_stored(view, ref)
        )
    )


def unstored_rows(view: View) -> tuple[int, ...]:
    """The ops of which a payload was kept, and its bytes are not in the journal on disk; none for one in memory."""
    if view.journal.path is None and view.artifact is None:
        return ()
    ops = view.tables.ops
    refs = zip(ops.column("payload_ref"), ops.column("transformed_payload_ref"), strict=True)
    return tuple(
        row for row, both in enumerate(refs) if any(ref is not None and not is_stored(view, ref) for ref in both)
    )


def is_stored(view: View, ref: Any) -> bool:
    try:
        return view.journal.payload_size(view.stream, ref[0]) is not None
    except JournalError:  # what is wrong with it is told when it is read
        return True


def counted(count: int, what: str) -> str:
    return f"{amount(count, what)} {'was' if count == 1 else 'were'}"


def escapes_of(tables: CaptureTables) -> tuple[Escape, ...]:
    fact = tables.fact
    names, sites = fact("operators"), dict(fact("escape_sites"))
    calls = tables.module_calls.column("call_label")
    made: list[Escape] = []
    for operator, site, call, candidates, bound in fact("escapes"):
        stack = tuple((frame[0], frame[1], frame[3]) for frame in sites.get(site, ()))
        file, line, function = stack[-1] if stack else (None, None, None)
        module = calls[call] if 0 <= call < len(calls) else None
        made.append(Escape(names[operator], candidates, bound, file, line, function, stack, module))
    return tuple(made)


def nonfinite_of(view: View) -> NonfiniteFinding:
    """NaN and infinities: every kept activation, or its statistics, is looked at once, one after the other."""
    ops, extents = view.tables.ops, Extents(view)
    labels, values = ops.column("label"), ops.column("value")
    kept = [ops.column(name) for name in ("payload_ref", "dtype", "shape")]
    by_value: dict[int, tuple[int, int] | None] = {}
    stop = view.tables.fact("nonfinite_stop")
    if stop is not None:
        _, value, num_nan, num_inf = stop
        by_value[value] = (num_nan, num_inf)
    found: list[int] = []
    with_nan: list[int] = []
    checked = 0
    for row, value in enumerate(values):
        if value not in by_value:
            extent = extents.of_value(value, *(column[row] for column in kept))
            by_value[value] = None if extent is None else (extent.num_nan, extent.num_inf)
        counts = by_value[value]
        if counts is None:
            continue
        checked += 1
        if any(counts):
            found.append(row)
        if counts[0]:
            with_nan.append(row)
    verdict = "found" if found else "checked_and_clean" if checked else "not_checked"
    return NonfiniteFinding(
        verdict=verdict,
        checked=checked,
        unchecked=len(labels) - checked,
        labels=tuple(labels[row] for row in found),
        nan_labels=tuple(labels[row] for row in with_nan),
        first_place=place_in_model(view, found[0] if found else -1),
        first_nan_place=place_in_model(view, with_nan[0] if with_nan else -1),
    )
