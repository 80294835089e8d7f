"""Checkpoints of a captured forward: each that its thread enters gets a token, and hooks that tell of it.

Torch enters a non-reentrant checkpoint by a context of a class of its own, whose two hooks take what is saved for the
backward and give it back. While a capture runs, functions of ours stand where such contexts are entered and left. They
know the class exactly, or mint no token; and they have its hooks borne by ours, which count, tell and call on.
What is no checkpoint, a user's own hooks on saved tensors above all, is passed on untouched.

Rule   hooks live as long as the graph: from them no path leads to a trace or a node (``Evidence``).
       What goes wrong in a hook is told to whoever records; a hook raises nothing of its own.
Not    what follows from what was told (projections/folds/checkpoint.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import ref

from journal.events import (
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    CheckpointUnwitnessed,
    Event,
    Unwitnessed,
)
from torchlens import compat
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.recorder import Recorder

__all__ = ["Checkpoints", "Evidence", "Unpacking", "leave_child"]

MISSING: Final = object()

HOOKS: Final = ("pack_hook", "unpack_hook")
"""Where a context has its hooks."""

ENTER: Final = "__enter__"
EXIT: Final = "__exit__"


class Unpacking(Protocol):
    """Who is told of what is unpacked when the forward has ended; see ``Diary``."""

    def unpacked(self, token: int) -> None:
        """What was packed under a token is asked for."""

    def failed(self, error: Exception) -> None:
        """It could not be told."""


class Evidence:
    """What the hooks of one capture's checkpoints tell: to its recorder while the forward runs, to its diary then."""

    __slots__ = ("_diary", "_late", "_reasons", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder: Recorder | None = recorder  # while the forward runs
        self._diary: ref[Unpacking] | None = None
        self._reasons: set[Unwitnessed] = set()
        self._late: list[Event] = []  # of other threads, which must not append while the forward's does

    def go_on_with(self, diary: Unpacking) -> None:
        self._diary = ref(diary)

    def unwitnessed(self, reason: Unwitnessed) -> None:
        if reason not in self._reasons:
            self._reasons.add(reason)
            self.tell(CheckpointUnwitnessed(reason=reason))

    def unpacked(self, token: int) -> None:
        recorder = self.recorder
        diary = None if self._diary is None else self._diary()
        try:
            if recorder is not None:
                node = recorder.nodes.get(compat.running_node())
                self.tell(CheckpointUnpacked(token=token, pass_number=None, node=node))
            elif diary is not None:
                diary.unpacked(token)
        except Exception as error:  # noqa: BLE001  # the user's backward goes on
            if diary is not None:
                diary.failed(error)

    def tell(self, event: Event) -> None:
        recorder = self.recorder
        if recorder is not None and threading.get_ident() == recorder.thread:
            recorder.note(event)
        else:
            self._late.append(event)

    def tell_late(self) -> None:
        """Tell what other threads did."""
        late, self._late = self._late, []
        for event in late:
            self.tell(event)


class Token:
    """One checkpoint that was entered, with the tensors that were packed in it so far."""

    __slots__ = ("evidence", "num_packed", "number")

    def __init__(self, number: int, evidence: Evidence) -> None:
        self.number = number
        self.evidence = evidence
        self.num_packed = 0


class Bearer:
    """Stands for a hook and bears a token. All other attributes are the hook's: torch keeps some state of it there."""

    __slots__ = ("_torchlens_hook", "_torchlens_token")

    def __init__(self, hook: Callable[[Any], Any], token: Token) -> None:
        object.__setattr__(self, "_torchlens_hook", hook)
        object.__setattr__(self, "_torchlens_token", token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchlens_hook, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._torchlens_hook, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._torchlens_hook, name)


class Packing(Bearer):
    """Counts what is packed."""

    __slots__ = ()

    def __call__(self, tensor: Any) -> Any:
        self._torchlens_token.num_packed += 1
        return self._torchlens_hook(tensor)


class Unpacker(Bearer):
    """Tells what is unpacked."""

    __slots__ = ()

    def __call__(self, packed: Any) -> Any:
        token = self._torchlens_token
        token.evidence.unpacked(token.number)
        return self._torchlens_hook(packed)


OWN_CODE.update((Packing.__call__.__code__, Unpacker.__call__.__code__))


def carries(bearer: Bearer, hook: Any) -> bool:
    """Whether the attributes by which torch knows a hook are the same through what stands for it."""
    try:
        names = {*compat.CHECKPOINT_HOOK_MARKS, *getattr(hook, "__dict__", ())}
        return all(getattr(bearer, name, MISSING) is getattr(hook, name, MISSING) for name in names)
    except Exception:  # noqa: BLE001  # code of whoever made the hook
        return False


class Checkpoints:
    """The listening of one capture; ``restore`` ends it.

    Args:
        recorder: Of the capture.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.evidence: Final = Evidence(recorder)
        self._open: list[Token] = []
        self._count = 0
        self._kind = compat.CHECKPOINT_HOOK
        self._ours: dict[str, Any] = {}
        self._originals: dict[str, Any] = {}

    # -- the way in and out of contexts

    def install(self) -> None:
        """Stand where contexts of hooks on saved tensors are entered and left."""
        kind, base, evidence = self._kind, compat.SAVED_TENSORS_HOOKS, self.evidence
        if kind is None:
            evidence.unwitnessed("classifier_unavailable")
            return
        enter, leave = (vars(base).get(name) for name in (ENTER, EXIT))
        if not callable(enter) or not callable(leave) or not compat.is_entered_by(kind, base):
            evidence.unwitnessed("patch_unavailable")
            return

        def entering(context: Any) -> Any:
            recorder = evidence.recorder
            if recorder is None or not isinstance(context, kind):
                return enter(context)
            token = self._bear(context)  # all of it before torch has the hooks: an interrupt may come
            try:
                return enter(context)
            except BaseException:  # torch refuses hooks at times
                self._left(context, token)
                raise

        def leaving(context: Any, *args: Any) -> Any:
            try:
                return leave(context, *args)
            finally:
                if isinstance(context, kind):
                    self._left(context, _token_of(context))

        OWN_CODE.update((entering.__code__, leaving.__code__))
        self._originals = {ENTER: enter, EXIT: leave}
        self._ours = {ENTER: functools.wraps(enter)(entering), EXIT: functools.wraps(leave)(leaving)}
        _installed.append(self)
        for name, ours in self._ours.items():
            setattr(base, name, ours)

    def restore(self) -> None:
        """Give torch its own back, unless somebody else has replaced ours meanwhile: then it only passes on."""
        self.evidence.recorder = None
        for name, ours in self._ours.items():
            if vars(compat.SAVED_TENSORS_HOOKS).get(name) is ours:
                setattr(compat.SAVED_TENSORS_HOOKS, name, self._originals[name])
        if self in _installed:
            _installed.remove(self)
        self._ours.clear()  # they hold this

    def tell_end(self) -> None:
        """The forward has ended: tell of checkpoints that are open still, and whether all could be heard."""
        while self._open:
            self._tell_left(self._open[-1])
        base = vars(compat.SAVED_TENSORS_HOOKS)
        if any(base.get(name) is not ours for name, ours in self._ours.items()):
            self.evidence.unwitnessed("patch_unavailable")
        self.evidence.tell_late()

    # -- checkpoints

    def _bear(self, context: Any) -> Token | None:
        """Have the hooks of a checkpoint borne, and give it a token; None where it may have none."""
        reason = self._against(context)
        if reason is not None:
            self.evidence.unwitnessed(reason)
            return None
        hooks = tuple([_own(getattr(context, name, None)) for name in HOOKS])
        token = Token(self._count, self.evidence)
        bearers = (Packing(hooks[0], token), Unpacker(hooks[1], token))
        if not all(map(callable, hooks)) or not all(map(carries, bearers, hooks)):
            self.evidence.unwitnessed("hook_identity")
            return None
        self._count += 1
        self._open.append(token)
        self.evidence.tell(CheckpointEntered(token=token.number))
        for name, bearer in zip(HOOKS, bearers, strict=True):
            setattr(context, name, bearer)
        return token

    def _against(self, context: Any) -> Unwitnessed | None:
        """Why a checkpoint gets no token; None where it gets one."""
        recorder = self.evidence.recorder
        if recorder is None or threading.get_ident() != recorder.thread:
            return "other_thread"
        if recorder.paused:
            return "paused"
        if compat.running_task() != -1:
            return "inside_engine"
        return None if type(context) is self._kind else "exotic_subclass"

    def _left(self, context: Any, token: Token | None) -> None:
        """A checkpoint is not entered any more. One that another thread leaves is told of at the end."""
        for name in HOOKS:
            bearer = getattr(context, name, None)
            if isinstance(bearer, Bearer) and bearer._torchlens_token is token:
                setattr(context, name, bearer._torchlens_hook)
        recorder = self.evidence.recorder
        if token in self._open and recorder is not None and threading.get_ident() == recorder.thread:
            self._tell_left(token)

    def _tell_left(self, token: Token) -> None:
        self._open.remove(token)
        self.evidence.tell(CheckpointLeft(token=token.number, num_packed=token.num_packed))


def _token_of(context: Any) -> Token | None:
    """Of a checkpoint whose hooks are borne."""
    bearer = getattr(context, HOOKS[0], None)
    return bearer._torchlens_token if isinstance(bearer, Packing) else None


def _own(hook: Any) -> Any:
    """A hook as torch made it: a context may be entered again."""
    return hook._torchlens_hook if isinstance(hook, Bearer) else hook


_installed: Final[list[Checkpoints]] = []


def leave_child() -> None:
    """In a forked child: its checkpoints are not those of the parent's capture."""
    while _installed:
        _installed[-1].restore()
