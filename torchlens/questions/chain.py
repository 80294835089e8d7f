"""Why a value or a gradient is what it is: the chain of events that produced it, back to inputs or to the loss.

Reads  the edges of ops, through writes in place, buffers and what modules hand on; or the firings of a backward pass,
       along the edges of the autograd graph.
Gives  a ``Chain`` of ``Link``s, the newest event first.
Rule   each event is in a chain once, however many ways lead to it: the work is that of the graph, and the text form
       shows each once, some of them, and counts the rest.
Note   a value that another name of its memory was written through comes from that write, which comes from those before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, overload

import attrs

from projections.errors import over_events
from projections.folds.graph import NOWHERE
from projections.selecting.selector import Selector
from torchlens.errors import AmbiguousReadError, ConfigurationError, LookupRefused
from torchlens.printable import amount, printable
from torchlens.questions.sending import Sending
from torchlens.reading.explaining import op_rows_of
from torchlens.reading.fields import Record
from torchlens.reading.locations import FuncCallLocation, place_of_op
from torchlens.reading.lookup import at_position, listed
from torchlens.reading.tabular import frame_of
from torchlens.reading.view import View

if TYPE_CHECKING:
    import pandas

__all__ = ["Chain", "Link", "why"]

Kind: TypeAlias = Literal["activation", "gradient"]
LinkKind: TypeAlias = Literal[
    "call", "write", "input", "output", "buffer", "buffer write", "handed on", "gradient", "firing"
]

LINES: Final = 40
"""Most lines of the text form, unless others are asked for."""

DEPTH: Final = 8
"""Deepest indentation of it."""


@attrs.frozen
class Link:
    """One event of a chain."""

    at: int  # number of the event
    kind: LinkKind
    label: str  # of the op or the firing; of a gradient, whose it is
    func_name: str | None  # function of the op that it is, or that the firing differentiates; None where there is none
    op: str | None  # label of that op
    module: str | None  # label of the innermost module call around it; None at the root
    place: FuncCallLocation | None  # the line of that op; None where it was called at none
    distance: int  # events on the shortest way to what was asked about
    parents: tuple[str, ...]  # labels of the events that it came from, as far as they are in the chain
    parameters: tuple[str, ...]  # addresses of the parameters that it took, or whose gradient it gathers

    def __str__(self) -> str:
        parts = [self.label]
        if self.kind not in ("call", "firing", self.func_name):
            parts.append(f"({self.kind})")
        if self.op is not None and self.op != self.label:
            parts.append(f"of {self.op}")
        said = [
            f"with {', '.join(self.parameters)}" if self.parameters else "",
            f"at {self.place.brief}" if self.place is not None else "",
            f"in {self.module}" if self.module else "",
        ]
        return printable(", ".join((" ".join(parts), *filter(None, said))))


class Chain(Sequence[Link]):
    """The events that produced a value or a gradient, the newest first.

    Attributes:
        subject: What was asked about: label of the op, or whose gradient it is.
        kind: ``activation`` or ``gradient``.
        backward_pass: Number of the pass of a gradient, from 1; None for an activation.
        links: The events; the first is that of the subject.
        sources: Labels of those that come from no other: inputs, buffers, constants' readers; of a gradient, firings at
            which the pass began.
    """

    def __init__(
        self, subject: str, kind: Kind, backward_pass: int | None, links: Sequence[Link], edges: Sequence[Sequence[int]]
    ) -> None:
        self.subject: Final = subject
        self.kind: Final = kind
        self.backward_pass: Final = backward_pass
        self.links: Final = tuple(links)
        self.edges: Final = edges  # by link, the places of its parents among the links

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Link, ...]: ...
    def __getitem__(self, index: int | slice) -> Link | tuple[Link, ...]:
        return self.links[index]

    def __len__(self) -> int:
        return len(self.links)

    @property
    def sources(self) -> tuple[str, ...]:
        """Labels of the events that come from no other, the newest first."""
        return tuple(link.label for link, parents in zip(self.links, self.edges, strict=True) if not parents)

    @property
    def modules(self) -> tuple[str, ...]:
        """Labels of the module calls that the events were made in, the newest first, each once."""
        return tuple(dict.fromkeys(link.module for link in self.links if link.module is not None))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per event, in the order of the chain; needs pandas."""
        names = [field.name for field in attrs.fields(Link)]
        columns = {name: [getattr(link, name) for link in self.links] for name in names}
        columns["place"] = [None if place is None else place.brief for place in columns["place"]]
        return frame_of(columns, len(self.links))

    def tree(self, *, lines: int = LINES, depth: int = DEPTH) -> str:
        """The chain as text: what an event came from stands below it, indented where it came from several.

        Args:
            lines: Most lines; the rest is counted.
            depth: Deepest indentation; what lies deeper is counted.

        Raises:
            ConfigurationError: ``chain_tree_argument_invalid``, for what is no whole number from 0 on.
        """
        for name, value in (("lines", lines), ("depth", depth)):
            if type(value) is not int or value < 0:
                raise ConfigurationError(
                    code="chain_tree_argument_invalid",
                    problem=f"{name}={value!r} is no whole number from 0 on",
                    remedy=f"give one, such as {name}={LINES if name == 'lines' else DEPTH}, or leave it out",
                    argument=name,
                )
        during = "" if self.backward_pass is None else f" in backward pass {self.backward_pass}"
        head = f"{self.kind} of {self.subject}{during}: {amount(len(self.links), 'event')}"
        shown, made = set[int](), list[str]()
        waiting: list[tuple[int, str, str, int]] = [(0, "", "", 0)]  # link, its lead, that of what follows, indentation
        while waiting and len(made) < lines:
            place, lead, below, level = waiting.pop()
            if place in shown:
                made.append(f"{lead}{self.links[place].label} (above)")
                continue
            shown.add(place)
            made.append(f"{lead}{self.links[place]}")
            parents = self.edges[place]
            if len(parents) == 1:
                waiting.append((parents[0], below, below, level))
            elif parents and level < depth:
                for parent in reversed(parents):
                    arm, rest = ("└─ ", "   ") if parent == parents[-1] else ("├─ ", "│  ")
                    waiting.append((parent, below + arm, below + rest, level + 1))
        left = len(self.links) - len(shown)
        if left:
            made.append(f"and {amount(left, 'more event')}, which to_pandas() lists")
        return "\n".join(printable(line) for line in (head, *made))

    def __str__(self) -> str:
        return self.tree()

    __repr__ = __str__


class Start(NamedTuple):
    """What is asked about."""

    table: str  # "ops" or "orphans" for an activation, "gradients" for a gradient, "grad_fn_calls" for a firing
    row: int  # of the op; of a gradient or firing, row of the fold of its node
    slot: int = 0
    number: int = NOWHERE  # the pass, from 0
    at: int = NOWHERE  # the event that tells of the gradient; NOWHERE where none does
    subject: str = ""


def why(view: View, site: object, *, bwd: int | None = None) -> Chain:
    """See ``Trace.why``."""
    subject = subject_of(view, site)
    with over_events():
        start = start_of(view, subject, bwd)
        return forward_chain(view, start) if start.number == NOWHERE else gradient_chain(view, start)


def chain(start: int, parents_of: Callable[[int], Sequence[int]]) -> tuple[dict[int, int], dict[int, Sequence[int]]]:
    """How far each thing is from a first one, and what it came from."""
    distance, parents, waiting = {start: 0}, dict[int, Sequence[int]](), deque((start,))
    while waiting:
        here = waiting.popleft()
        found = parents[here] = tuple(dict.fromkeys(parents_of(here)))
        for each in found:
            if each not in distance:
                distance[each] = distance[here] + 1
                waiting.append(each)
    return distance, parents


def put_together(
    start: Start, kind: Kind, keys: Sequence[int], parents: dict[int, Sequence[int]], link: Callable[[int], Link]
) -> Chain:
    places = {key: place for place, key in enumerate(keys)}
    edges = [tuple(sorted(places[parent] for parent in parents[key])) for key in keys]
    number = None if start.number == NOWHERE else start.number + 1
    return Chain(start.subject, kind, number, [link(key) for key in keys], edges)


# -- activations


def forward_chain(view: View, start: Start) -> Chain:
    table = view.table(start.table)
    column = table.value
    distance, parents = chain(start.row, lambda row: column("parent_rows", row))
    labels, events = table.column("label"), table.column("event")
    params = view.table("params").column("address")

    def link(row: int) -> Link:
        kind = kind_of(view, start.table, row)
        calls = kind in ("call", "write")
        return Link(
            at=events[row],
            kind=kind,
            label=labels[row],
            func_name=column("func_name", row) if calls else None,
            op=labels[row],
            module=column("module", row),
            place=place_of_op(view, row, start.table),
            distance=distance[row],
            parents=tuple(labels[parent] for parent in parents[row]),
            parameters=tuple(params[param] for param in column("param_rows", row)),
        )

    others = [row for row in distance if row != start.row]
    keys = [start.row, *sorted(others, key=lambda row: (events[row], row), reverse=True)]
    return put_together(start, "activation", keys, parents, link)


def kind_of(view: View, table: str, row: int) -> LinkKind:
    read = view.table(table).value
    if read("is_buffer", row):
        return "buffer" if read("buffer_write_kind", row) is None else "buffer write"
    if read("is_input", row) or read("is_output", row):
        return "input" if read("is_input", row) else "output"
    if read("func_name", row) == "identity" and read("func_qualname", row) is None:
        return "handed on"
    return "write" if read("is_inplace", row) else "call"


# -- gradients


def gradient_chain(view: View, start: Start) -> Chain:
    forward = view.tables.forward
    state, autograd, pairing = forward.backward, forward.autograd, forward.pairing
    sending = Sending(state, start.number)
    fires = sending.fires
    asks_firing = start.table == "grad_fn_calls"

    def parents_of(node: int) -> Sequence[int]:
        if node == NOWHERE:  # the gradient itself
            return sending.to(start.row, start.slot)
        return sending.to(node)

    distance, parents = chain(start.row if asks_firing else NOWHERE, parents_of)
    ops = view.table("ops")

    def at(node: int) -> int:
        if node != NOWHERE:
            return state.firing(fires[node]).at
        if start.at != NOWHERE:
            return start.at
        own = fires.get(start.row)
        return state.opened_at(start.number) if own is None else state.firing(own).at

    def label(node: int) -> str:
        return start.subject if node == NOWHERE else autograd.call_label(fires[node])

    def link(node: int) -> Link:
        row = autograd.rows[start.row if node == NOWHERE else node]
        op = pairing.op_of[row] if node != NOWHERE else NOWHERE
        parameter = NOWHERE if node == NOWHERE else pairing.leaf_params[row]
        return Link(
            at=at(node),
            kind="gradient" if node == NOWHERE else "firing",
            label=label(node),
            func_name=None if op == NOWHERE else ops.value("func_name", op),
            op=None if op == NOWHERE else ops.value("label", op),
            module=None if op == NOWHERE else ops.value("module", op),
            place=None if op == NOWHERE else place_of_op(view, op),
            distance=distance[node],
            parents=tuple(map(label, parents[node])),
            parameters=() if parameter == NOWHERE else (forward.words.parameters[parameter].address,),
        )

    first = start.row if asks_firing else NOWHERE
    keys = [first, *sorted((node for node in distance if node != first), key=at, reverse=True)]
    return put_together(start, "gradient", keys, parents, link)


# -- what is asked about


class Subject(NamedTuple):
    """What a caller means, before its rows are read."""

    table: str
    rows: tuple[int, ...]
    said: str  # as the caller wrote it
    is_gradient: bool = False  # of an op, that its gradient is meant
    record: Record | None = None


def subject_of(view: View, site: object) -> Subject:
    if isinstance(site, Selector):
        found: Any = view[site]  # type: ignore[index]  # a trace takes selectors
        return Subject("ops", tuple(each.row for each in found), repr(site), site.names_gradients)
    if isinstance(site, str):
        site = view.found(view.index().find(site))
    elif isinstance(site, int) and not isinstance(site, bool):
        return Subject("ops", (at_position(site, len(view.table("ops")), "op"),), repr(site))
    record = site if isinstance(site, Record) else getattr(site, "op", None)
    if not isinstance(record, Record) or record.trace is not view:
        raise invalid(f"{site!r} stands for nothing of this trace")
    is_gradient = not isinstance(site, Record) and getattr(site, "kind", None) == "gradient"
    return Subject(record.table_name, (record.row,), repr(site), is_gradient, record)


def start_of(view: View, subject: Subject, bwd: int | None) -> Start:
    rows, said, record = subject.rows, subject.said, subject.record
    match subject.table:
        case "gradients":
            return require_pass(of_gradient(view, rows[0]), bwd)
        case "grad_fn_calls":
            return require_pass(of_firing(view, rows[0]), bwd)
        case "params":
            return of_parameter(view, rows[0], bwd)
        case "grad_fns":
            assert record is not None
            return of_firing(view, firing_of(view, record, bwd))
        case "ops" if subject.is_gradient:
            if not rows:
                raise missing(f"{said} names no gradient that came")
            return of_gradient_at(view, only(rows, said, labels_of(view, rows)), bwd)
        case "ops" | "orphans":
            table = subject.table
        case _:
            assert record is not None
            table, rows = "ops", op_rows_of(record)
    if bwd is not None:
        raise contradicted(
            f"{said} stands for an activation, which belongs to no backward pass",
            "leave bwd= out, or ask about its gradient: why(tl.grad(label), bwd=...)",
        )
    return of_op(view, table, rows[0] if table == "orphans" else only(rows, said, labels_of(view, rows)))


def labels_of(view: View, rows: Sequence[int]) -> list[str]:
    return [view.table("ops").value("label", row) for row in rows]


def firing_of(view: View, node: Record, bwd: int | None) -> int:
    """The firing of a node that is asked about, or the only one."""
    calls = view.table("grad_fn_calls")
    rows = [row for row in node.read("call_rows") if bwd is None or calls.value("pass_row", row) == bwd - 1]
    if not rows:
        during = "" if bwd is None else f" in backward pass {bwd}"
        raise missing(f"{node!r} did not fire{during}")
    return only(rows, repr(node), [calls.value("call_label", row) for row in rows])


def require_pass(start: Start, bwd: int | None) -> Start:
    if bwd is not None and bwd - 1 != start.number:
        raise contradicted(
            f"{start.subject} was asked about in backward pass {bwd}, and it is of pass {start.number + 1}",
            f"leave bwd= out, or ask about the one of pass {bwd}",
        )
    return start


def only(rows: Sequence[int], of: str, labels: Sequence[str]) -> int:
    if not rows:
        raise invalid(f"{of} stands for no op and no firing")
    if len(rows) > 1:
        raise AmbiguousReadError(
            code="why_subject_ambiguous",
            problem=f"{of} stands for {len(rows)} events, each with a chain of its own",
            remedy=f"ask about one of them: why({labels[0]!r}), to why({labels[-1]!r})",
            labels=tuple(labels),
        )
    return rows[0]


def of_op(view: View, table: str, row: int) -> Start:
    return Start(table, row, subject=view.table(table).value("label", row))


def of_gradient_at(view: View, row: int, bwd: int | None) -> Start:
    """The gradient of an op in the pass that is asked about, or in the only one."""
    ops = view.table("ops")
    row = ops.value("origin_row", row) if ops.value("is_output", row) else row
    label = ops.value("label", row)
    node, passes = ops.value("gradient_node_row", row), ops.value("gradient_pass_rows", row)
    number = the_pass(label, passes, bwd)
    forward = view.tables.forward
    slot = ops.value("grad_slot", row) or 0
    return with_event(view, Start("gradients", forward.autograd.folded[node], slot, number, subject=label))


def of_parameter(view: View, row: int, bwd: int | None) -> Start:
    """What a backward pass added to the gradient of a parameter."""
    params, gradients = view.table("params"), view.table("gradients")
    records = params.value("gradient_rows", row)
    address = params.value("address", row)
    number = the_pass(address, sorted({gradients.value("pass_row", each) for each in records}), bwd)
    return of_gradient(view, next(each for each in records if gradients.value("pass_row", each) == number))


def of_gradient(view: View, row: int) -> Start:
    read = view.table("gradients").value
    node = view.tables.forward.autograd.folded[read("grad_fn_row", row)]
    return Start("gradients", node, read("slot", row), read("pass_row", row), read("event", row), read("owner", row))


def of_firing(view: View, row: int) -> Start:
    read = view.table("grad_fn_calls").value
    node = view.tables.forward.autograd.folded[read("grad_fn_row", row)]
    return Start("grad_fn_calls", node, 0, read("pass_row", row), read("event", row), read("call_label", row))


def with_event(view: View, start: Start) -> Start:
    """With the event that tells of the gradient, where one does."""
    gradients = view.table("gradients")
    columns = (gradients.column(name) for name in ("grad_fn_row", "slot", "pass_row", "event"))
    row = view.tables.forward.autograd.rows[start.row]
    for node, slot, number, event in zip(*columns, strict=True):
        if (node, slot, number) == (row, start.slot, start.number):
            return start._replace(at=event)
    return start


def the_pass(of: str, passes: Sequence[int], bwd: int | None) -> int:
    """Which pass is meant, from 0, of those in which a gradient came."""
    if not passes or (bwd is not None and bwd - 1 not in passes):
        during = "" if bwd is None else f" in backward pass {bwd}"
        raise missing(f"no gradient came to {of}{during}")
    if bwd is None and len(passes) > 1:
        numbers = [number + 1 for number in passes]
        raise AmbiguousReadError(
            code="gradient_pass_ambiguous",
            problem=f"gradients came to {of!r} in backward passes {listed(list(map(str, numbers)))}",
            remedy=f"ask about one: why(..., bwd={numbers[0]})",
            label=of,
            passes=tuple(numbers),
        )
    return passes[0] if bwd is None else bwd - 1


def invalid(problem: str) -> LookupRefused:
    return LookupRefused(
        code="why_subject_invalid",
        problem=problem,
        remedy="ask about an op, its label, a selector of one, a gradient (tl.grad(label)), a parameter, or a firing",
    )


def missing(problem: str) -> LookupRefused:
    return LookupRefused(
        code="why_gradient_missing",
        problem=problem,
        remedy="trace.autograd.explain(...) says why there is none; trace.autograd.backward_passes has the passes",
    )


def contradicted(problem: str, remedy: str) -> LookupRefused:
    return LookupRefused(code="why_pass_contradicted", problem=problem, remedy=remedy)
