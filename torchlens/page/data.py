"""The data of a page, from a trace: columns of plain values, made a column at a time.

Reads  the tables of the trace, single events of a call that did not return, and the times of events.
Gives  one dictionary that JSON can hold, by ``page_data``; ``docs/page.md`` has its form.
Rule   Every text in a column is a number in ``texts``, None for none. What is not known is None.
       A row of the timeline exists once the number of its event is below the position; None: from the start.
Rule   Bounded: a page has as many rows as it may (``MOST_ROWS``), and its texts are cut and counted (texts.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from projections.accounts.call_facts import CallFacts
from projections.accounts.ended import broken_call, left_at
from projections.accounts.roles import roles_of
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from torchlens import collector
from torchlens.errors import ConfigurationError
from torchlens.page.cells import number_of, numbers, rows_of
from torchlens.page.ending import ending, parents_of
from torchlens.page.facts import NANOSECONDS, facts
from torchlens.page.places import Places
from torchlens.page.texts import LONGEST, Texts, too_large
from torchlens.page.values import Statistics, Values
from torchlens.printable import cut, shapes_text
from torchlens.reading.view import View

__all__ = ["VERSION", "page_data"]

VERSION: Final = 1
"""Of the form of the data."""

MOST_ROWS: Final = 400_000
"""Module calls, ops, edges, gradients, passes and firings of one page, together."""

MOST_TIMES: Final = 500_000
"""Events up to which each has its time."""

MOST_PARENTS: Final = 1_000_000
"""Uses of ops by ops, before equal ones are told once."""

MARKS: Final = {
    "has_saved_payload": "saved",
    "has_stored_stats": "statistics",
    "is_inplace": "inplace",
    "is_opaque": "opaque",
    "is_internal_source": "internal_source",
    "is_internal_sink": "internal_sink",
    "is_terminal_bool": "bool",
    "has_grad": "grad",
}
"""What an op is marked with, by the column that says so."""


def page_data(view: View, *, statistics: Statistics = True) -> dict[str, Any]:
    """Everything that the page of a trace shows.

    Args:
        view: A trace: live, journaled or loaded; whole or partial.
        statistics: True for statistics and histograms of what was kept, "kept" for the statistics that were kept in
            place of payloads, False for none.

    Raises:
        CompatibilityError: ``page_too_large``.
        ConfigurationError: ``page_option_invalid``.
    """
    if statistics is not True and statistics is not False and statistics != "kept":
        raise ConfigurationError(
            code="page_option_invalid",
            problem=f"statistics={statistics!r} is no choice",
            remedy='give True, False, or "kept" for those that were kept in place of payloads',
            option="statistics",
        )
    view.require_open()
    with collector.paused(), over_events():
        return Page(view, statistics).data()


class Page:
    """What the parts of a page are made from.

    Args:
        view: Whose page.
        statistics: Whose statistics.
    """

    def __init__(self, view: View, statistics: Statistics) -> None:
        self.view = view
        self.tables = tables = view.tables
        self.head = tables.head
        rows = {name: len(tables.table(name)) for name in ("module_calls", "ops", "backward_passes", "grad_fn_calls")}
        self.room = MOST_ROWS - sum(rows.values()) - len(tables.gradients)
        if self.room < 0:
            most = max(rows, key=rows.__getitem__)
            raise too_large(f"more than {MOST_ROWS:,} rows, {rows[most]:,} of them {most.replace('_', ' ')}")
        tables.require_writable()
        self.texts = Texts()
        self.places = Places(view, tables)
        self.values = Values(view, tables, statistics)
        self.stopped_at = left_at(tables, tables.ops)
        self.broken = broken_call(tables)

    def data(self) -> dict[str, Any]:
        calls = self.calls()
        ops, edges = self.ops(len(calls["label"]))
        has_diary = self.tables.has_diary
        gradients, passes, firings = self.gradients(has_diary), self.passes(has_diary), self.firings(has_diary)
        fact = self.tables.fact
        return {
            "version": VERSION,
            "title": cut(fact("trace_label"), LONGEST),
            "model": cut(fact("model_class_qualname"), LONGEST),
            "status": cut(fact("status"), LONGEST),
            "ending": ending(self.view, self.tables, self.stopped_at if self.broken is None else len(self.tables.ops)),
            "facts": [[name, cut(text, LONGEST)] for name, text in facts(fact, self.values, self.places) if text],
            "texts": self.texts.listed,
            "calls": calls,
            "ops": ops,
            "edges": edges,
            "places": self.places.listed,
            "values": self.values.listed,
            "gradients": gradients,
            "passes": passes,
            "firings": firings,
            "events": {"count": self.head, "has_diary": has_diary, "times": self.times()},
        }

    # -- columns

    def text(self, cells: Iterable[str | None]) -> list[int | None]:
        number = self.texts.number
        return [number(cell) for cell in cells]

    def each(self, cells: Iterable[Any]) -> list[int | None]:
        """Cells as text."""
        number, memo = self.texts.number, dict[Any, "int | None"]()
        made: list[int | None] = []
        for cell in cells:
            if cell not in memo:
                memo[cell] = None if cell is None else number(str(cell))
            made.append(memo[cell])
        return made

    def events(self, cells: Iterable[Any], *, told: bool = True) -> list[int | None]:
        """Numbers of events; None where there is none, or the stream has not these events."""
        return [cell if told and type(cell) is int and 0 <= cell < self.head else None for cell in cells]

    def listed(self, cells: Iterable[Sequence[str]]) -> list[list[int | None]]:
        number = self.texts.number
        return [[number(item) for item in cell] if cell else [] for cell in cells]

    def calls(self) -> dict[str, list[Any]]:
        table, ops = self.tables.module_calls, self.tables.ops
        column = table.column
        if not len(table):  # the forward did not start
            return self.no_calls()
        parents = [
            parent if 0 <= parent < row else (0 if row else -1) for row, parent in enumerate(column("parent_row"))
        ]
        params = self.tables.modules.column("num_recursive_params")
        shapes = ops.column("shape")
        returned = [shapes_text(shapes[rows[0]], len(rows)) if rows else None for rows in column("output_op_rows")]
        return {
            "label": self.text(column("call_label")),
            "address": self.text(column("address")),
            "class": self.text(column("class_name")),
            "parent": parents,
            "time": numbers(column("func_calls_duration")),
            "flops": numbers(column("flops_forward")),
            "params": [number_of(params[row]) if row >= 0 else None for row in column("module_row")],
            "entered": self.events(column("event")),
            "left": self.events(column("left_event")),
            "shape": self.text(returned),
        }

    def no_calls(self) -> dict[str, list[Any]]:
        """The root alone, which is in no table where it was not called."""
        name = self.texts.number(self.tables.fact("model_class_name"))
        root = self.texts.number("self")
        cells = {"label": root, "address": root, "class": name, "parent": -1, "entered": 0}
        columns = ("label", "address", "class", "parent", "time", "flops", "params", "entered", "left", "shape")
        return {column: [cells.get(column)] for column in columns}

    def ops(self, num_calls: int) -> tuple[dict[str, list[Any]], dict[str, list[int]]]:
        column = self.tables.ops.column
        kinds = roles_of(self.tables.ops)
        pseudo = [kind != "op" for kind in kinds]
        times = [None if skip else number_of(time) for time, skip in zip(column("func_duration"), pseudo, strict=True)]
        flops = [None if skip else number_of(work) for work, skip in zip(column("flops_forward"), pseudo, strict=True)]
        arguments = zip(column("args_summary"), column("kwargs_summary"), pseudo, strict=True)
        given = (None if skip else ", ".join(filter(None, (args, kwargs))) for args, kwargs, skip in arguments)
        made: dict[str, list[Any]] = {
            "label": self.text(column("label")),
            "kind": self.text(kinds),
            "type": self.text(column("layer_type")),
            "call": [row if 0 <= row < num_calls else 0 for row in column("call_row")],
            "shape": self.each(column("shape")),
            "dtype": self.text(column("dtype")),
            "time": times,
            "flops": flops,
            "memory": numbers(column("activation_memory")),
            "place": [self.places.number(frames) if frames else None for frames in column("code_context")],
            "layer": self.text(column("layer_label")),
            "pass": numbers(column("pass_index")),
            "passes": numbers(column("num_passes")),
            "marks": self.marks(),
            "params": self.listed(column("param_names")),
            "event": self.events(column("event")),
            "origin": rows_of(column("origin_row"), len(self.tables.ops)),
            "values": self.values.ops,
            "args": self.text(given),
        }
        edges = self.edges()
        if self.broken is not None:
            self.add_broken(self.broken, made, edges, num_calls)
        return made, edges

    def marks(self) -> list[list[int | None]]:
        made: list[list[int | None]] = [[] for _ in range(len(self.tables.ops))]
        for column, mark in MARKS.items():
            number = self.texts.number(mark)
            for row, is_so in enumerate(self.tables.ops.column(column)):
                if is_so:
                    made[row].append(number)
        if self.stopped_at is not None:
            made[self.stopped_at].append(self.texts.number("nonfinite"))
        return made

    def edges(self) -> dict[str, list[int]]:
        """Of each op those from its parents, each once."""
        begun: list[int] = []
        ended: list[int] = []
        uses, count = 0, len(self.tables.ops)
        for row, parents in enumerate(self.tables.ops.column("parent_rows")):
            uses += len(parents)
            if uses > MOST_PARENTS:
                raise too_large(f"more than {MOST_PARENTS:,} uses of ops")
            different = dict.fromkeys(rows_of(parents, count))
            different.pop(NOWHERE, None)
            begun += different
            ended += [row] * len(different)
        if len(begun) > self.room:
            raise too_large(f"more than {MOST_ROWS:,} rows, {len(begun):,} of them edges")
        return {"from": begun, "to": ended}

    def add_broken(
        self, broken: CallFacts, ops: dict[str, list[Any]], edges: dict[str, list[int]], num_calls: int
    ) -> None:
        """The call that did not return, as an op behind the others."""
        text, row = self.texts.number, len(ops["label"])
        labels = self.tables.module_calls.column("call_label")
        inside = broken.modules[-1] if broken.modules else None
        name = broken.func_name.strip("_") or broken.func_name
        parents = parents_of(self.tables, self.view.event(broken.event).inputs)
        cells: dict[str, Any] = {
            "label": text(f"{name}_failed"),
            "kind": text("failed"),
            "type": text(name),
            "call": list(labels).index(inside) if inside in labels and num_calls else 0,
            "place": self.places.number(broken.frames) if broken.frames else None,
            "layer": text(f"{name}_failed"),
            "pass": 1,
            "passes": 1,
            "marks": [],
            "params": [text(address) for address in parents[1]],
            "event": broken.event,
            "origin": row,
            "args": text(", ".join(filter(None, (broken.args, broken.kwargs)))),
        }
        for column, made in ops.items():
            made.append(cells.get(column))
        edges["from"] += parents[0]
        edges["to"] += [row] * len(parents[0])

    # -- backward

    def gradients(self, has_diary: bool) -> dict[str, list[Any]]:
        table = self.tables.gradients
        column = table.column
        params = self.tables.params.column("address")
        return {
            "op": rows_of(column("op_row"), len(self.tables.ops)),
            "param": self.text([params[row] if row >= 0 else None for row in column("param_row")]),
            "pass": rows_of(column("pass_row"), len(self.tables.backward_passes)),
            "event": self.events(column("event"), told=has_diary),
            "shape": self.each(column("shape")),
            "values": self.values.gradients,
            "kept": [bool(is_saved) for is_saved in column("is_saved")],
        }

    def passes(self, has_diary: bool) -> dict[str, list[Any]]:
        column, nodes = self.tables.backward_passes.column, self.tables.grad_fns
        raised = column("raised_in")
        op_of = dict(zip(nodes.column("label"), nodes.column("op_row"), strict=True)) if any(raised) else {}
        told = zip(column("error_type"), column("error_message"), strict=True)
        errors = [f"{kind.rpartition('.')[2]}: {said or ''}".rstrip(": ") if kind else None for kind, said in told]
        return {
            "label": self.text([f"backward {number}" for number in column("pass_index")]),
            "status": self.text(column("status")),
            "error": self.text(errors),
            "raised_in": self.text(raised),
            "op": rows_of([op_of.get(node, NOWHERE) for node in raised], len(self.tables.ops)),
            "trigger": self.text(column("trigger")),
            "begun": self.events(column("event"), told=has_diary),
            "ended": self.events(column("closed_event"), told=has_diary),
        }

    def firings(self, has_diary: bool) -> dict[str, list[Any]]:
        table, nodes = self.tables.grad_fn_calls, self.tables.grad_fns
        column = table.column
        rows = list(column("grad_fn_row"))
        times = column("backward_duration") if "backward_duration" in table.names else [None] * len(table)
        types, ops, params = nodes.column("type"), nodes.column("op_row"), nodes.column("param_address")
        return {
            "pass": rows_of(column("pass_row"), len(self.tables.backward_passes)),
            "event": self.events(column("event"), told=has_diary),
            "node": self.text(column("label")),
            "type": self.text([types[row] for row in rows]),
            "op": rows_of([ops[row] for row in rows], len(self.tables.ops)),
            "param": self.text([params[row] for row in rows]),
            "time": numbers(times),
        }

    # -- the whole

    def times(self) -> list[float | None] | None:
        """Seconds from the first event to each; None for a capture of too many."""
        if self.head > MOST_TIMES:
            return None
        made: list[float | None] = []
        begun: int | None = None
        for run in self.view.journal.rows(self.view.stream, 0, self.head):
            for row in run:
                begun = row[1] if begun is None else begun
                made.append(round((row[1] - begun) / NANOSECONDS, 6))
        return made
