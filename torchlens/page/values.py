"""Statistics and small histograms of what a trace kept: activations and gradients, within bounds.

Reads  statistics that were kept in place of payloads, and payloads.
Rule   What was kept as statistics is told at once. Of payloads the smallest come first, until the work is as much as a
       page may cost; what is left out is counted, by why.
Not    what cannot be had (overwritten, lost, without torch): it has no statistics, and is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from journal.errors import JournalError
from projections import CaptureTables
from torchlens import threads
from torchlens.errors import PayloadUnavailableError
from torchlens.page.cells import number_of
from torchlens.printable import amount
from torchlens.reading.view import View

__all__ = ["Statistics", "Values"]

Statistics: TypeAlias = "Literal['kept'] | bool"
"""Whose statistics a page tells: True for all that was kept, "kept" for what was kept as statistics, False for none."""

BARS: Final = 24
"""Bars of a histogram."""

MOST_BYTES: Final = 1 << 30
"""Bytes of payloads that are looked at; those of one tensor at most, too."""

MOST_TENSORS: Final = 20_000

SECONDS: Final = 10.0
"""After which no further payload is read, however slow the disk is."""


class Wanted(NamedTuple):
    """A tensor that statistics are wanted of."""

    size: int  # bytes
    key: tuple[str, int]  # table and row
    also: tuple[tuple[str, int], ...]  # others that show the same value
    read: Callable[[], Any]


class Values:
    """The statistics of a page, and which rows have them.

    Args:
        view: The trace.
        tables: Its tables.
        asked: Whose statistics.
    """

    def __init__(self, view: View, tables: CaptureTables, asked: Statistics) -> None:
        self.view = view
        self.tables = tables
        self.listed: list[dict[str, Any]] = []
        self.ops: list[int | None] = [None] * len(tables.ops)
        self.gradients: list[int | None] = [None] * len(tables.gradients)
        self.left_out: Counter[str] = Counter()
        if asked is not False:
            for key, figures in self.kept():
                self.put((key,), told(figures))
        if asked is True:
            self.look(sorted(self.wanted(), key=lambda one: one.size))

    def kept(self) -> Iterator[tuple[tuple[str, int], Any]]:
        """What was kept as statistics."""
        for name in ("ops", "gradients"):
            table = self.tables.table(name)
            figures = table.column("figures")
            for row, has_stats in enumerate(table.column("has_stored_stats")):
                if has_stats:
                    yield (name, row), figures[row]

    def wanted(self) -> Iterator[Wanted]:
        """What was kept as payloads, each once."""
        ops, gradients = self.tables.ops, self.tables.gradients
        rows: dict[int, list[int]] = {}
        for row, (value, is_saved) in enumerate(
            zip(ops.column("value"), ops.column("has_saved_activation"), strict=True)
        ):
            if is_saved and self.ops[row] is None:
                rows.setdefault(value, []).append(row)
        memory = ops.column("activation_memory")
        for first, *others in rows.values():
            also = tuple([("ops", row) for row in others])
            yield Wanted(memory[first] or 0, ("ops", first), also, lambda row=first: self.view.activation(row))  # type: ignore[misc]  # a default is how a lambda keeps its row
        memory = gradients.column("memory")
        for row, is_saved in enumerate(gradients.column("is_saved")):
            if is_saved and self.gradients[row] is None:
                yield Wanted(memory[row] or 0, ("gradients", row), (), lambda row=row: self.view.gradient(row))  # type: ignore[misc]  # as above

    def look(self, wanted: list[Wanted]) -> None:
        try:
            from torchlens.measuring import measured_with_histogram  # for cost: a page is made without torch
        except ModuleNotFoundError:
            self.left_out["torch is not installed here"] += len(wanted)
            return
        with threads.one_of_torch():
            self.look_by(measured_with_histogram, wanted)

    def look_by(self, measure: Callable[[Any, int], tuple[Any, Any]], wanted: list[Wanted]) -> None:
        begun, size = time.monotonic(), 0
        for number, one in enumerate(wanted):
            size += max(0, one.size)
            over = time.monotonic() - begun > SECONDS
            if over or size > MOST_BYTES or number >= MOST_TENSORS:
                why = f"after {SECONDS:.0f} seconds" if over else "beyond what a page looks at"
                self.left_out[why] += len(wanted) - number
                return
            try:
                figures, bars = measure(one.read(), BARS)
            except (PayloadUnavailableError, JournalError):
                self.left_out["not to be had"] += 1
                continue
            if figures is not None:
                made = told(figures)
                if bars is not None:
                    low, high = number_of(bars.smallest), number_of(bars.largest)
                    made |= {"low": low, "high": high, "bars": list(bars.counts)}
                self.put((one.key, *one.also), made)

    def put(self, keys: tuple[tuple[str, int], ...], made: dict[str, Any]) -> None:
        if not made:
            return
        for name, row in keys:
            (self.ops if name == "ops" else self.gradients)[row] = len(self.listed)
        self.listed.append(made)

    def __str__(self) -> str:
        """Of how many tensors, and what was left out."""
        parts = [f"of {amount(len(self.listed), 'tensor')}"] if self.listed else []
        parts += [f"{amount(count, 'tensor')} left out: {why}" for why, count in self.left_out.items()]
        return "; ".join(parts)


def told(figures: Any) -> dict[str, Any]:
    """Figures of an event as a page has them; without those that are not known."""
    try:
        count, num_nan, num_inf, low, high, mean, std = figures
    except (TypeError, ValueError):  # None where the elements could not be looked at
        return {}
    made = {"count": count, "nan": num_nan, "inf": num_inf, "min": low, "max": high, "mean": mean, "std": std}
    return {name: number_of(value) for name, value in made.items() if number_of(value) is not None}
