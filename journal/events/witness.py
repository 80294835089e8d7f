"""What ran beside or below the calls that are ops: operators of the dispatcher, calls that no wrapper heard, threads.

Events of operators are written only where the request asks for it (``verify_capture``), one for each call that was
open while they ran.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from journal.events.base import At, Event, Value, event

Owner: TypeAlias = Literal["op", "opaque", "question", "raised", "composite", "engine", "nobody"]

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

Dispatched: TypeAlias = tuple[int, bool, Shapes, Shapes]
"""Operator, whether gradients were on, shapes of the tensors it was given, shapes of those that it returned."""


@event("operator_seen", version=1)
class OperatorSeen(Event):
    """The dispatcher ran an operator for the first time in this capture; later events name it by ``number``."""

    number: int  # 0, 1, 2, ... in order of this event
    name: str  # with its overload: "aten.addmm.default"


@event("operators_dispatched", version=1)
class OperatorsDispatched(Event):
    """The dispatcher ran these operators, in order, while one wrapped call was the innermost open one.

    ``owner`` says what became of that call: ``op`` and ``opaque`` (an op that is not watched inside) were recorded
    by the event ``by``; a ``question`` returned no tensor; ``raised``; of a ``composite`` the inner calls were the ops,
    or its result stands for tensors and is none, so that these operators belong to no op. ``engine`` is the autograd
    engine's work within the forward. While ``nobody`` was open, the operator was called past the wrappers.
    """

    owner: Owner
    by: At | None
    function: int | None  # of the open call; None without one, and before any call of it was recorded
    calls: tuple[Dispatched, ...]


@event("call_escaped", version=1)
class CallEscaped(Event):
    """An operator ran that no recorded call accounts for: Python reached torch where no wrapper stands."""

    operator: int
    site: int
    call: int  # innermost running module call
    candidates: tuple[str, ...]  # watched functions of that name, by import path: perhaps one was called bare
    bound: tuple[str, ...]  # where in the calling frames such a bare function is bound: "relu in models.py"


@event("thread_called", version=1)
class ThreadCalled(Event):
    """Another thread called watched functions during the forward; none of these calls is recorded."""

    thread: str  # its name
    num_calls: int
    functions: tuple[tuple[str, int], ...]  # import path and number of calls, by first call; cut where there are many


@event("value_overwritten", version=1)
class ValueOverwritten(Event):
    """The memory of a kept value holds something else than when it was kept, and no recorded call wrote it."""

    value: Value
