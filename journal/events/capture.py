"""A stream's life: opened, then, for a capture, requested, started, ended one of five ways, settled."""

from __future__ import annotations

from typing import Literal, TypeAlias

from journal.events.base import At, Event, Plain, StreamId, Value, event

StreamKind: TypeAlias = Literal["capture", "branch", "read"]

Template: TypeAlias = Plain
"""A Python value with its tensors taken out (see ``journal.events.template``)."""


@event("stream_opened", version=1)
class StreamOpened(Event):
    """First event of every stream: what it is and, for a branch, where it left its parent."""

    kind: StreamKind
    label: str | None  # name given by the user
    tags: tuple[str, ...]
    parent: StreamId | None
    branched_at: At | None  # events of the parent before this number belong to the branch too
    wall_time_ns: int  # since the epoch; for people, never for order
    written_by: str  # version of this package
    environment: tuple[tuple[str, str], ...]  # "python", "torch", "platform", ...


@event("capture_requested", version=1)
class CaptureRequested(Event):
    """A capture was asked for; nothing has been touched yet."""

    backend: str
    model_class: str
    model_qualname: str
    options: tuple[tuple[str, Plain], ...]  # capture options that differ from their defaults
    save: str  # the save request, as text
    stop_after: str | None


Frame: TypeAlias = tuple[str, int, str, str, int, int | None]
"""A place in the source: file, line, function, its qualified name and first line, column; None without columns."""


@event("capture_called", version=1)
class CaptureCalled(Event):
    """Where in the user's code the capture was asked for."""

    frame: Frame


@event("class_described", version=1)
class ClassDescribed(Event):
    """What the source says of a class of modules; told only where the request asked for it."""

    modules: tuple[int, ...]  # numbers of the modules of this class
    docstring: str | None
    class_location: tuple[str, int] | None  # file and line
    init_location: tuple[str, int] | None
    forward_location: tuple[str, int] | None
    init_signature: str | None
    forward_signature: str | None


@event("model_described", version=1)
class ModelDescribed(Event):
    """The model as it stood before the forward: its modules, parameters and buffers, each numbered by position.

    A module row is ``(address, class name, class qualname, parent module number or None, training,
    other addresses, names of forward hooks, forward pre-hooks and backward hooks)``; module 0 is the root
    with address ``""``. A parameter or buffer row is ``(address, shape, dtype, device, requires_grad,
    nbytes, other addresses)``.
    """

    modules: tuple[Plain, ...]
    parameters: tuple[Plain, ...]
    buffers: tuple[Plain, ...]


@event("forward_started", version=1)
class ForwardStarted(Event):
    """The root's forward is about to be called, with the inputs that were seen just before."""

    args: Template
    kwargs: Template  # flat: name, value, name, value, ...
    inputs: tuple[int, ...]  # the tensors of args, then of kwargs
    mode: int  # MODE_GRAD | MODE_INFERENCE | MODE_AUTOCAST
    random_seed: int | None  # set only if the request asked for one


@event("forward_returned", version=1)
class ForwardReturned(Event):
    """The forward ran to its end and returned this."""

    result: Template
    outputs: tuple[int, ...]  # the tensors of result
    paths: tuple[Template, ...]  # where each sits in the result: keys, field names and positions


@event("forward_halted", version=1)
class ForwardHalted(Event):
    """The forward was left on purpose after the event ``at``."""

    at: At
    reason: str
    outputs: tuple[int, ...]  # the values of that event, the frontier of this capture


@event("exception_traced", version=1)
class ExceptionTraced(Event):
    """The way that what ended the forward came: told right before that."""

    frames: tuple[Frame, ...]  # from the root's forward to the line that raised


@event("forward_raised", version=1)
class ForwardRaised(Event):
    """The model raised; what came before it is a true prefix."""

    exception: str  # qualified class name
    message: str


@event("forward_aborted", version=1)
class ForwardAborted(Event):
    """The forward was left after the event ``at``, because a value of it is not finite and the request forbids that."""

    at: At
    value: Value
    num_nan: int  # elements
    num_inf: int


@event("forward_interrupted", version=1)
class ForwardInterrupted(Event):
    """Something outside the model ended the forward, as a keyboard interrupt does."""

    exception: str


@event("capture_settled", version=1)
class CaptureSettled(Event):
    """The live capture has appended everything it had to say."""

    torch_restored: bool


@event("left_out", version=1)
class LeftOut(Event):
    """What was told here is not so in what the stream was made into: a payload was kept which the artifact does not
    hold, or it told of the values of a capture that was run again.

    It has the number and the time of the event in whose place it stands, so that all others keep theirs.
    """

    event: str  # name of that event
