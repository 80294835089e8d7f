"""What one event tells of a torch call, whether it was only announced, returned or raised.

Reads  a ``Forward`` and one OpStarted, OpExecuted or OpRaised of its stream.
Gives  a ``CallFacts``: function, arguments, where it was made.
Not    which event to look at: the capture table knows the calls in progress, the last one and the one that raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import attrs

from journal.events import Event, Frame, OpExecuted, OpRaised, OpStarted, event_class
from projections.columnar.arguments import argument_paths, arguments_text, flat_kwargs, has_hole, keywords_text, text_of
from projections.errors import contradictory, over_events
from projections.forward import Forward
from projections.records.ops import shapes_of, tensor_text
from projections.source.sites import frames
from projections.structure.details import field

TELLING: Final[tuple[type[Event], ...]] = (OpStarted, OpExecuted, OpRaised)


@attrs.frozen
class TensorFacts:
    """A tensor argument."""

    argument: str  # position or name, and the way into it: "0", "input", "tensors.1"
    shape: tuple[int, ...] | None  # None where unknown
    dtype: str | None


class CallFacts(NamedTuple):
    """A torch call."""

    event: int
    time_ns: int
    func_name: str
    func_qualname: str
    args: str
    kwargs: str
    tensors: tuple[TensorFacts, ...]
    settings: tuple[tuple[str, str], ...]  # position or name of each argument without a tensor, and its text
    modules: tuple[str, ...]  # labels of the module calls it was made in, the root's first
    frames: tuple[Frame, ...]  # outermost first
    exception: str | None  # qualified class of what it raised
    message: str | None


def call_facts(forward: Forward, event: int, islands: Forward | None = None) -> CallFacts:
    """What the event of this number tells.

    Args:
        forward: The records of the stream.
        event: Number of the event.
        islands: Those that are on islands, as nearly everything is just before a capture breaks off: tensors that
            ``forward`` does not know are looked for there.

    Raises:
        JournalCorrupt: ``events_contradictory``, where it tells of no call.
    """
    with over_events():
        return facts_of(forward, islands, event, forward.source.row(event))


def facts_of(forward: Forward, islands: Forward | None, event: int, row: Any) -> CallFacts:
    cls = event_class(row[0])
    if cls not in TELLING:
        raise contradictory(f"event {event} is no torch call")
    args, kwargs = row[field(cls, "args")], row[field(cls, "kwargs")]
    known: list[tuple[tuple[int, ...] | None, str | None]]
    if cls is OpStarted:
        known = [(tuple(shape), dtype) for shape, dtype in row[field(cls, "shapes")]]
    else:
        known = shapes_of(forward, row[field(cls, "inputs")])
        if islands is not None:
            others = shapes_of(islands, row[field(cls, "inputs")])
            known = [mine if mine[0] is not None else other for mine, other in zip(known, others, strict=True)]
    texts = [tensor_text(shape, dtype) for shape, dtype in known]
    paths = argument_paths(args, kwargs)
    before = len(argument_paths(args, ()))
    function = row[field(cls, "function")]
    raised = cls is OpRaised
    return CallFacts(
        event=event,
        time_ns=row[1],
        func_name=forward.words.func_names[function],
        func_qualname=forward.words.func_qualnames[function],
        args=arguments_text(args, iter(texts)),
        kwargs=keywords_text(kwargs, iter(texts[before:])),
        tensors=tuple(
            [
                TensorFacts(".".join(map(str, (argument, *way))), shape, dtype)
                for (argument, way), (shape, dtype) in zip(paths, known, strict=True)
            ]
        ),
        settings=settings_of(args, kwargs),
        modules=module_labels(forward, row[field(cls, "call")]),
        frames=frames_of(forward, row[field(cls, "call")], row[field(cls, "site")]),
        exception=row[field(cls, "exception")] if raised else None,
        message=row[field(cls, "message")] if raised else None,
    )


def settings_of(args: Sequence[Any], kwargs: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    named = [*((str(position), template) for position, template in enumerate(args)), *flat_kwargs(kwargs)]
    return tuple([(name, text_of(template)) for name, template in named if not has_hole(template)])


def module_labels(forward: Forward, call: int) -> tuple[str, ...]:
    """Of the root's call and of those around a call and it itself."""
    if not 0 <= call < len(forward.calls):
        return ()
    return (forward.call_labels[0], *forward.label_paths[call])


def frames_of(forward: Forward, call: int, site: int) -> tuple[Frame, ...]:
    calls = forward.call_paths[call] if 0 <= call < len(forward.calls) else ()
    outer = [frame for one in calls for frame in frames(forward.words, forward.calls.site[one])]
    return (*outer, *frames(forward.words, site))
