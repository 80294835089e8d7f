"""The first tensor of a capture that is not finite: ``trace.first_nonfinite()``.

Reads  the tensors of a capture in the order of its events (extents.py), until one holds NaN or infinity.
Gives  a ``FirstNonfinite`` (nonfinite_answer.py).
Rule   what it was made from are its *operands*: of an op what the call was given, parameters too; of a gradient the
       gradients that came to the nodes that sent it. It was ``made`` here where all of them were looked at and hold
       nothing of the kind, ``inherited`` where one does, ``given`` where no call made it, and else it is ``unknown``.
Rule   where something before it was not looked at it is the first *seen*; what that is, is told.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from journal.events import (
    BufferSeen,
    BufferWritten,
    ConstantSeen,
    InputSeen,
    OpExecuted,
    PassOpened,
    ValueReread,
)
from projections.errors import over_events
from projections.forward import Forward
from projections.structure.details import field
from torchlens.errors import ConfigurationError
from torchlens.questions.extents import Seen, seen_in
from torchlens.questions.nonfinite_answer import NONFINITE, FirstNonfinite, Nonfinite, Operand, OperandKind, Origin
from torchlens.questions.sending import Sending
from torchlens.questions.verdict import verdict_of
from torchlens.reading.extents import Extents
from torchlens.reading.locations import place_of_op
from torchlens.reading.view import View, if_there

__all__ = ["NonfiniteEvents", "first_nonfinite"]

Reach: TypeAlias = "tuple[int, int, float | None, float | None]"

NOT_LOOKED_AT: Final = (None, None, None, None)

ROOTS: Final = field(PassOpened, "roots")
SEEDS: Final = field(PassOpened, "seeds")


def first_nonfinite(view: View, kind: Nonfinite = "nonfinite") -> FirstNonfinite:
    """See ``Trace.first_nonfinite``."""
    if kind not in NONFINITE:
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"first_nonfinite() looks for {kind!r}, which is neither 'nonfinite' nor 'nan'",
            remedy='pass "nan" to pass over infinities, which masks are often made of; or leave it out',
            argument="kind",
        )
    with over_events():
        return Search(view, kind).run()


class NonfiniteEvents:
    """The events of a capture at which a tensor is not finite, for those who go from one to the next.

    Args:
        view: The capture.
        kind: What is looked for.

    Attributes:
        num_unexamined: Tensors that the last look passed over, since nothing was kept of them.
    """

    def __init__(self, view: View, kind: Nonfinite) -> None:
        self.view: Final = view
        self.kind: Final = kind
        self.num_unexamined = 0

    def first(self, start: int, stop: int) -> int | None:
        """Number of the first one from ``start`` to before ``stop``; nothing before ``start`` is read."""
        self.num_unexamined = 0
        with over_events():
            return next(self.among(Search(self.view, self.kind), start, stop), None)

    def last(self, runs: Iterable[tuple[int, int]]) -> int | None:
        """Number of the last one in the first of some runs of events that has one."""
        self.num_unexamined = 0
        with over_events():
            search = Search(self.view, self.kind)
            for start, stop in runs:
                found = deque(self.among(search, start, stop), maxlen=1)
                if found:
                    return found[0]
        return None

    def among(self, search: Search, start: int, stop: int) -> Iterator[int]:
        for seen in search.tensors(start, stop):
            if seen.extent is None:
                self.num_unexamined += 1
            elif search.is_sought(seen.extent.num_nan, seen.extent.num_inf):
                yield seen.at


class Packed:
    """Extents by number, in few bytes each, of tensors that hold no NaN."""

    def __init__(self) -> None:
        self.low, self.high, self.num_inf = array("d"), array("d"), array("q")

    def put(self, number: int, extent: Any) -> None:
        missing = number + 1 - len(self.low)
        if missing > 0:
            self.low.extend([math.nan] * missing)
            self.high.extend([math.nan] * missing)
            self.num_inf.extend([-1] * missing)
        self.low[number] = math.nan if extent.min is None else extent.min
        self.high[number] = math.nan if extent.max is None else extent.max
        self.num_inf[number] = extent.num_inf

    def has(self, number: int) -> bool:
        return 0 <= number < len(self.low) and self.num_inf[number] >= 0

    def get(self, number: int) -> Reach | None:
        """NaN, infinite, smallest and largest finite; None for what was not looked at."""
        if not self.has(number):
            return None
        low, high = self.low[number], self.high[number]
        return (0, self.num_inf[number], None if math.isnan(low) else low, None if math.isnan(high) else high)


class Search:
    """One look through a capture."""

    def __init__(self, view: View, kind: Nonfinite) -> None:
        self.view: Final = view
        self.extents: Final = Extents(view)
        self.forward: Final[Forward] = view.tables.forward
        self.kind: Final = kind
        self.stop: Final = view.tables.fact("nonfinite_stop")
        self.values: Final = Packed()
        self.gradients: Final = Packed()
        self.arguments: dict[int, Any] = {}  # by place, of the call that was seen last
        self.arguments_of = -1  # its event
        self.unexamined: Final = array("q")  # values
        self.roots: dict[int, dict[int, bool]] = {}  # by pass and node at which it began: whether torch made the ones
        self.num_examined = 0

    def is_sought(self, num_nan: int, num_inf: int) -> bool:
        return num_nan > 0 or (self.kind == "nonfinite" and num_inf > 0)

    @property
    def stopped_at(self) -> int | None:
        """The value at which ``raise_on_nan`` ended the forward."""
        return None if self.stop is None else self.stop[1]

    def where_stopped(self) -> Any:
        """What the event that ended it tells of that value."""
        _, value, num_nan, num_inf = self.stop
        count = math.prod(self.forward.brief_of(value).shape or ())
        return self.extents.measuring.Extent(max(count, num_nan + num_inf), num_nan, num_inf, None, None)

    def tensors(self, start: int = 0, stop: int | None = None) -> Iterator[Seen]:
        """The tensors of some events, with what was told of the one at which ``raise_on_nan`` ended the forward."""
        for seen in seen_in(self.extents, start, stop):
            if seen.extent is None and seen.kind == "value" and seen.number == self.stopped_at:
                yield seen._replace(extent=self.where_stopped())
            else:
                yield seen

    def run(self) -> FirstNonfinite:
        for seen in self.tensors():
            extent = seen.extent
            if extent is None:
                if seen.kind == "value":
                    self.unexamined.append(seen.number)
                continue
            self.num_examined += 1
            if seen.kind == "argument":
                if seen.at != self.arguments_of:
                    self.arguments_of, self.arguments = seen.at, {}
                self.arguments[seen.number] = extent
            else:
                (self.values if seen.kind == "value" else self.gradients).put(seen.number, extent)
            if self.is_sought(extent.num_nan, extent.num_inf):
                return self.found(seen)
        missed = self.missed(None)
        return FirstNonfinite(verdict_of(False, self.num_examined, missed), self.num_examined, missed)

    def found(self, seen: Seen) -> FirstNonfinite:
        missed, extent = self.missed(seen), seen.extent
        return FirstNonfinite(
            verdict=verdict_of(True, self.num_examined, missed),
            num_examined=self.num_examined,
            unexamined=missed,
            at=seen.at,
            count=extent.size,
            num_nan=extent.num_nan,
            num_inf=extent.num_inf,
            min=extent.min,
            max=extent.max,
            **(self.of_gradient(seen) if seen.kind == "gradient" else self.of_value(seen)),
        )

    def origin(self, operands: Sequence[Operand]) -> Origin:
        """Whether something was made of these, or inherited from one."""
        if any(self.is_sought(each.num_nan or 0, each.num_inf or 0) for each in operands):
            return "inherited"
        return "made" if all(each.is_examined for each in operands) else "unknown"

    # -- names and places

    def site(self, value: int) -> tuple[str, int] | None:
        """The table and row at which a value is described; None for a constant that no row shows."""
        row = self.forward.value_rows.get(value)
        if row is not None:
            return "ops", row
        row = self.view.tables.orphans.context.value_rows.get(value)
        return None if row is None else ("orphans", row)

    def name(self, value: int) -> str:
        site = self.site(value)
        return f"constant {value}" if site is None else self.label(site)

    def label(self, site: tuple[str, int]) -> str:
        label: str = self.view.table(site[0]).value("label", site[1])
        return label

    def around(self, site: tuple[str, int] | None) -> dict[str, Any]:
        """Module calls and line of an op."""
        if site is None:
            return {}
        table, row = site
        place = place_of_op(self.view, row, table)
        line = None if place is None else place.call_line
        return {"modules": tuple(self.view.table(table).value("modules", row)), "place": place, "call_line": line}

    # -- values

    def of_value(self, seen: Seen) -> dict[str, Any]:
        at, event = seen.at, self.view.event(seen.at)
        if seen.kind == "argument":
            return self.of_argument(at, event, seen.number)
        site = self.site(seen.number)
        told = {"label": self.name(seen.number), **self.around(site)}
        match event:
            case InputSeen():
                return told | {"kind": "input", "origin": "given"}
            case BufferSeen():
                return told | {"kind": "buffer", "origin": "given"}
            case ConstantSeen(made_by=maker):
                is_made = maker is not None and event.inside
                operands = [self.operand(number) for number in event.inputs] if is_made else []
                origin = "given" if not is_made else self.origin(operands) if operands else "unknown"
                kind = "activation" if is_made else "constant"
                return told | {"kind": kind, "origin": origin, "operands": tuple(operands)}
            case BufferWritten(how="reassign", source=source):
                operands = [] if source is None else [self.operand(source)]
                made_by = () if source is None else (self.name(source),)
            case BufferWritten(source=source):
                writer = None if source is None else self.site(source)
                operands = [] if writer is None else self.operands_of_op(writer)
                made_by = () if writer is None else (self.label(writer),)
                told |= self.around(writer)
            case ValueReread(of=of, writer=writer):
                operands, made_by = [self.operand(of), self.operand(writer)], (self.name(writer),)
                return told | self.made("activation", operands, made_by)
            case _:
                operands, made_by = self.operands_of_call(at, event.inputs, event.writers), (told["label"],)
                return told | self.made("activation", operands, made_by)
        return told | self.made("buffer", operands, made_by)

    def made(self, kind: str, operands: Sequence[Operand], made_by: tuple[str, ...]) -> dict[str, Any]:
        return {"kind": kind, "origin": self.origin(operands), "made_by": made_by, "operands": tuple(operands)}

    def of_argument(self, at: int, event: Any, place: int) -> dict[str, Any]:
        """A copy of what a call was given: it holds what nothing before it did."""
        number = event.inputs[place]
        if isinstance(event, OpExecuted):
            site = self.site(event.first)
            told = {"label": self.name(event.first), **self.around(site)}
        else:
            calls = self.view.table("module_calls")
            known = list(calls.column("event"))
            told = {"label": calls.value("call_label", known.index(at)) if at in known else f"module {event.module}"}
        given = self.operand(number, self.arguments[place])
        origin = "given" if given.kind != "activation" else "unknown"
        return told | {"kind": "argument", "origin": origin, "operands": (given,)}

    def operands_of_op(self, site: tuple[str, int]) -> list[Operand]:
        at = self.view.table(site[0]).value("event", site[1])
        event = self.view.event(at)
        return self.operands_of_call(at, event.inputs, event.writers) if isinstance(event, OpExecuted) else []

    def operands_of_call(self, at: int, inputs: Sequence[int], writers: Sequence[int | None] | None) -> list[Operand]:
        """Each thing that a call was given, once."""
        copies = self.arguments if self.arguments_of == at else {}
        found: dict[str, Operand] = {}
        for place, number in enumerate(inputs):
            writer = None if writers is None else writers[place]
            one = self.operand(number if writer is None else writer, copies.get(place))
            found.setdefault(one.label, one)
        return list(found.values())

    def operand(self, number: int, extent: Any = None) -> Operand:
        """A value, or -1 - n for parameter n."""
        if number < 0:
            address = self.forward.words.parameters[-1 - number].address
            extent = self.of_parameter(-1 - number) if extent is None else extent
            return Operand("parameter", address, *told_of(extent))
        kind: OperandKind = "constant" if self.site(number) is None else "activation"
        return Operand(kind, self.name(number), *(self.reach_of(number) if extent is None else told_of(extent)))

    def reach_of(self, value: int) -> Sequence[Any]:
        return self.values.get(value) or NOT_LOOKED_AT

    def of_parameter(self, row: int) -> Any:
        """The extent of a parameter as the capture had it; None where it is not to be had."""
        read = self.view.record("params", row).as_captured
        return if_there(lambda: self.extents.measuring.extent_of(read("first_nonfinite")))

    # -- gradients

    def of_gradient(self, seen: Seen) -> dict[str, Any]:
        forward, state = self.forward, self.forward.backward
        autograd, pairing = forward.autograd, forward.pairing
        node, number, is_input, slot = state.gradient(seen.number)[:4]
        if is_input:  # its firing is told right behind it
            sent = [(node, f"{autograd.labels[autograd.rows[node]]}")]
        else:
            sending = Sending(state, number, seen.at)
            sent = [(each, autograd.call_label(sending.fires[each])) for each in sending.to(node, slot)]
        operands: list[Operand] = []
        made_by: list[str] = []
        site = None
        for sender, label in sent:
            op = pairing.op_of[autograd.rows[sender]]
            operands += self.arrived(sender, number, seen)
            made_by.append(label if op < 0 else f"{label} ({forward.labels.op[op]})")
            site = ("ops", op) if site is None and op >= 0 else site
        origin = self.origin(operands) if sent else "given"
        for sender, _ in sent:
            op = pairing.op_of[autograd.rows[sender]]
            operands += self.operands_of_op(("ops", op)) if op >= 0 else []
        own = pairing.ops_at(autograd.rows[node], slot)
        site = ("ops", own[0]) if site is None and own else site
        return {
            "kind": "gradient",
            "label": self.owner(node, slot, is_input=bool(is_input)),
            "backward_pass": number + 1,
            "origin": origin,
            "made_by": tuple(made_by),
            "operands": tuple({each.label + each.kind: each for each in operands}.values()),
            **self.around(site),
        }

    def owner(self, node: int, slot: int, *, is_input: bool = False) -> str:
        """Whose gradient stands at a place of a node: a parameter's, an op's, or the node's own."""
        forward = self.forward
        row = forward.autograd.rows[node]
        if is_input:
            return f"{forward.autograd.labels[row]}, input {slot}"
        parameter = forward.pairing.leaf_params[row]
        if parameter >= 0:
            return forward.words.parameters[parameter].address
        ops = forward.pairing.ops_at(row, slot)
        return forward.labels.op[ops[0]] if ops else f"{forward.autograd.labels[row]}"

    def arrived(self, node: int, number: int, before: Seen) -> list[Operand]:
        """What came to the outputs of a node in a pass."""
        state, found = self.forward.backward, dict[int, Operand]()
        for gradient in range(before.number):
            of_node, of_pass, is_input, slot = state.gradient(gradient)[:4]
            if of_node == node and of_pass == number and not is_input:
                reached = self.gradients.get(gradient) or NOT_LOOKED_AT
                found[slot] = Operand("gradient", self.owner(node, slot), *reached)
        if not found and self.is_seeded_with_ones(node, number):
            return [Operand("gradient", "the loss", 0, 0, 1.0, 1.0)]
        return list(found.values()) or [Operand("gradient", self.owner(node, 0), *NOT_LOOKED_AT)]

    def is_seeded_with_ones(self, node: int, number: int) -> bool:
        """Whether a pass began at a node, with the ones that torch makes, and nothing else comes there."""
        roots = self.roots.get(number)
        if roots is None:
            event = self.forward.source.row(self.forward.backward.opened_at(number))
            pairs = zip(event[ROOTS], event[SEEDS], strict=False)
            roots = {edge[0]: seed is None for (edge, _), seed in pairs if edge is not None}
            self.roots[number] = roots
        return roots.get(self.forward.backward.numbers[node], False)

    # -- what was not looked at

    def missed(self, seen: Seen | None) -> tuple[str, ...]:
        """Names of what comes before a tensor, or of all, and was not looked at, in order, each once."""
        names = dict.fromkeys(map(self.name, self.unexamined))
        if (seen is None or seen.kind == "gradient") and self.forward.backward.fires:
            names |= dict.fromkeys(self.firings_missed(None if seen is None else seen.at))
        return tuple(names)

    def firings_missed(self, before: int | None) -> Iterator[str]:
        """Labels of the firings at which a gradient came that was not looked at."""
        state, autograd = self.forward.backward, self.forward.autograd
        looked: set[tuple[int, int]] = set()
        for gradient, one in enumerate(state.observed()):
            if not one.is_input and self.gradients.has(gradient):
                looked.add((one.node, one.pass_number))
        for fire, (node, number, at, _) in enumerate(state.firings()):
            if before is not None and at >= before:
                return
            if (node, number) not in looked and not self.is_seeded_with_ones(node, number):
                yield autograd.call_label(fire)


def told_of(extent: Any) -> Sequence[Any]:
    return NOT_LOOKED_AT if extent is None else tuple(extent[1:5])
