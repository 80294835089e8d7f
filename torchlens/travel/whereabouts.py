"""Where an event happened: the line of source, the module calls around it, the backward pass and the node.

Reads  one event, and the tables of the head.
Gives  a ``Whereabouts``.
Rule   an event happened where the op was called that it is about (about.py): the engine has no line of the user's, and
       what was kept of a value has none of its own. What tells nothing of its place happened in the module calls that
       were running.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from journal.events import Frame, PassOpened, Stamped
from projections import CaptureTables
from projections.accounts.call_facts import frames_of, module_labels
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from projections.source.sites import whole_frame
from torchlens.printable import printable
from torchlens.reading.calls_made import Place, places_of
from torchlens.reading.facade import Trace
from torchlens.reading.locations import innermost_own
from torchlens.travel.about import MODULE_CALLS, About, told_by
from torchlens.travel.past import PastTrace

__all__ = ["Whereabouts", "whereabouts"]


@attrs.frozen(repr=False)
class Whereabouts:
    """Where an event happened.

    Attributes:
        at: Number of the event.
        event_name: Name of its type, as stored.
        labels: Labels of the ops that the event made; of one that tells of a value, of the op that made this; of one of
            a backward pass, of the op that its node differentiates.
        modules: Labels of the module calls it happened in, the root's first; of the module call itself, where the event
            is that it was entered or left. Of a node that differentiates no op, the addresses of the modules that it
            belongs in.
        places: From the root's forward to the line; () where that is not known.
        place: The line itself: the innermost one outside installed packages and Python's library, where there is one.
        backward_pass: Number of the backward pass, from 1; None outside any.
        node: Label of the autograd node; None where it is about none.
        parameter: Address of the parameter whose gradient that node gathers, or whose truth was asked; None for others.
    """

    at: int
    event_name: str
    labels: tuple[str, ...]
    modules: tuple[str, ...]
    places: tuple[Place, ...]
    place: Place | None
    backward_pass: int | None
    node: str | None
    parameter: str | None

    @property
    def module(self) -> str | None:
        """Label of the innermost module call."""
        return self.modules[-1] if self.modules else None

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and texts, for people."""
        yield "event", f"{self.at} {self.event_name}"
        if self.labels:
            yield "op", ", ".join(self.labels)
        if self.backward_pass is not None:
            yield "pass", f"{self.backward_pass}{'' if self.node is None else f', node {self.node}'}"
        if self.parameter is not None:
            yield "parameter", self.parameter
        if self.modules:
            yield "in", " > ".join(self.modules)
        for number, place in enumerate(reversed(self.places)):
            yield ("called from" if number else "at"), str(place)
            if place.text is not None:
                yield "", f"  {place.text}"

    def __str__(self) -> str:
        found = list(self.lines())
        width = max(len(name) for name, _ in found) + 2
        return "\n".join(printable(f"{name:<{width}}{text}").rstrip() for name, text in found)

    def __repr__(self) -> str:
        place = self.place
        said = (
            f"event {self.at} {self.event_name}",
            ", ".join(self.labels),
            "" if self.backward_pass is None else f"pass {self.backward_pass}",
            "" if self.node is None else f"node {self.node}",
            self.parameter or "",
            "" if self.module is None else f"in {self.module}",
            "" if place is None else f"at {place}{'' if place.text is None else f': {place.text}'}",
        )
        return printable(f"<Where {'; '.join(filter(None, said))}>")


def whereabouts(whole: Trace, then: PastTrace, stamped: Stamped) -> Whereabouts:
    """Where an event of a capture happened.

    Args:
        whole: The trace of the capture.
        then: The same right after the event.
        stamped: The event.
    """
    with over_events():
        tables, about = whole.tables, told_by(whole, stamped)
        if about.pass_number is None:
            modules, frames = in_forward(tables, then, about)
        else:
            modules, frames = in_backward(tables, about)
        places = places_of(whole, frames)
        return Whereabouts(
            at=stamped.at,
            event_name=stamped.event.event_name,
            labels=about.labels(tables),
            modules=modules,
            places=places,
            place=innermost_own(places, lambda place: place.file),
            backward_pass=None if about.pass_number is None else about.pass_number + 1,
            node=None if about.node == NOWHERE else tables.forward.autograd.labels[about.node],
            parameter=None if about.parameter == NOWHERE else tables.forward.words.parameters[about.parameter].address,
        )


def in_forward(tables: CaptureTables, then: PastTrace, about: About) -> tuple[tuple[str, ...], tuple[Frame, ...]]:
    """Module calls and frames of an event of the forward; of what tells of a value, those of the op that made it."""
    forward, running = tables.forward, then.moment.running
    if about.sites and getattr(about.event, "site", None) is None:
        name, row = about.sites[0]
        table = tables.table(name)
        return module_labels(table.context, table.context.rows.call[row]), table.value("code_context", row)
    call = about.call if about.call is not None else running[-1] if running else NOWHERE
    modules = module_labels(forward, call)
    if isinstance(about.event, MODULE_CALLS):  # the way to the call of the module
        return modules, frames_of(forward, call, NOWHERE)
    site: int | None = getattr(about.event, "site", None)
    return modules, () if site is None else frames_of(forward, call, site)


def in_backward(tables: CaptureTables, about: About) -> tuple[tuple[str, ...], tuple[Frame, ...]]:
    """Module calls and frames of the op that a node differentiates; of a pass that opens, where it was asked for."""
    if about.sites:
        row = about.sites[0][1]
        modules = module_labels(tables.forward, tables.forward.rows.call[row])
        return modules, tables.ops.value("code_context", row)
    if isinstance(about.event, PassOpened) and about.event.frame is not None:
        return (), (whole_frame(about.event.frame),)
    return () if about.node == NOWHERE else tuple(tables.grad_fns.value("modules", about.node)), ()
