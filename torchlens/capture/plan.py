"""What a capture was asked to keep and where to stop, as decisions that a running call can be given.

A selector that knows enough while the model runs answers at once. One that needs final labels, or what
a module will return, answers "not yet": the value is held until the forward has ended (``driver``).
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

import attrs
from torch import Tensor

from journal.events import PayloadRef
from projections.folds.vocabulary import ROOT
from projections.selecting.selector import (
    ANY_CALL,
    LAST_CALL,
    AllOf,
    AnyOf,
    Func,
    ModuleOutput,
    Selector,
    Verdict,
    Where,
    named_among,
)
from torchlens.capture.facts import TOLD, Facts, FactsOfCapture
from torchlens.capture.functions import Function
from torchlens.errors import ConfigurationError, NotYetKnown, SelectionError, TorchLensError, message_of

__all__ = ["NEVER", "Plan", "Stop", "Unanswered", "asked", "checked", "request_failed", "runs_code"]

NEVER: Final = False


class Running(Protocol):
    """Where the forward is, as the recorder knows it."""

    call: int
    stack: list[tuple[int, int]]


@attrs.define(slots=True, frozen=True)
class Stop:
    """Where to leave the forward.

    Attributes:
        text: The request as the user wrote it.
        matches: Decides per op, and again when a module call returns it.
        exploratory: Never to stop is no mistake, as with a predicate of the user's.
        runs_code: To decide, code of the user's is run.
        module: The module, or the call of one, after which to stop, where the request is no more than that: then only
            what that call returns need be looked at.
    """

    text: str
    matches: Callable[[Facts], bool]
    exploratory: bool = False
    runs_code: bool = False
    module: str | None = None


class Plan:
    """Decides per value whether its payload is kept, and per op whether to stop.

    A value that may yet be wanted is held. Wanting it is asked again when a module returns it and when what it waits
    for has run; what a module only might return is not held for that, since the module hands the value over then.

    Args:
        save: True keeps everything, False nothing; a selector what it matches.
        modules: Address and other names of each module, by number.
        buffers: Address of each buffer, by number.
        later: Names of what the finished op tells and an op that has just run may not.
        stop: Where to leave the forward, if anywhere.

    Attributes:
        simple: Every value has one answer, and there is nowhere to stop but after a module call.
        answers: By function and slot, where a request asks for nothing else: whether such results are kept.
        rowless: Values that no op stands for.
        tracks_calls: Module calls matter: tell of those that begin and end.
        follows_calls: Something may be due after each torch call: ask.
    """

    __slots__ = (
        "_by_function",
        "_by_module",
        "_by_place",
        "_facts_vary",
        "_known",
        "_question",
        "_reread_now",
        "_rereads",
        "_runs_code",
        "_save",
        "_shown",
        "_stop",
        "_stop_key",
        "_unanswered",
        "_waiting",
        "answers",
        "everything",
        "follows_calls",
        "kept",
        "kept_at_exit",
        "leave",
        "rowless",
        "simple",
        "stop",
        "stopping",
        "tracks_calls",
        "working",
    )

    def __init__(
        self,
        save: Selector | bool,
        modules: Iterable[tuple[str, Sequence[str]]],
        buffers: Iterable[str],
        later: Container[str],
        stop: Stop | None = None,
    ) -> None:
        selector = None if isinstance(save, bool) else save
        looks_around = stop is not None or (selector is not None and bool(selector.ahead or selector.behind))
        remembers = stop is not None or (selector is not None and selector.names_modules)
        self._save = save
        self.simple = isinstance(save, bool) and (stop is None or stop.module is not None)
        self._by_function = selector is not None and stop is None and asks_functions_alone(selector)
        self.tracks_calls = stop is not None or not (self.simple or self._by_function)
        if not self.tracks_calls:  # no module is asked for, so no name is needed
            modules, buffers = (), ()
        self._known = FactsOfCapture(modules, tuple(buffers), later, remembers=remembers, looks_around=looks_around)
        self._by_module = None if selector is None or stop is not None else modules_alone(selector, self._known)
        self._reread_now: dict[int, tuple[int, int]] = {}  # on leaving this call: what it was of, and who wrote that
        self._rereads: set[int] = set()  # values that no row shows: the call that wrote their memory has it
        self._stop = stop
        self._question = None if selector is None else functools.partial(asked, selector)
        self._runs_code = (stop is not None and stop.runs_code) or (selector is not None and runs_code(selector))
        self._unanswered = False
        self.let_go()
        self._by_place: dict[tuple[Any, ...], Verdict] = {}
        self._shown: set[int] = set()  # values that several rows show
        self._waiting: deque[Facts] = deque()  # ops that wait for others to run
        self._facts_vary = selector is not None and (selector.needs_facts or remembers)
        self._stop_key = None if stop is None or stop.module is None else self._known.call_key(stop.module)
        self.follows_calls = (stop is not None and not self.simple) or (selector is not None and bool(selector.ahead))
        self.everything: Verdict = save if isinstance(save, bool) else False
        self.stop = "" if stop is None else stop.text
        self.stopping: int | None = None  # the value with which the forward is to be left
        self.answers: dict[tuple[Function, int | None], Verdict] = {}
        self.rowless: set[int] = set()
        self.kept: set[int] = set()  # values that were kept as they were made
        self.kept_at_exit: dict[int, PayloadRef | None] = {}  # None where only what was made of it was kept

    @property
    def selector(self) -> Selector | None:
        return None if isinstance(self._save, bool) else self._save

    def let_go(self) -> None:
        """Nothing is asked any more: undo the circle with the listener, so that both are freed at once."""
        self.leave: Callable[[Any], None] = _go_on
        self.working: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    # -- modules

    def entered(self, number: int, call: int) -> None:
        """A module call begins."""
        self._known.entered(number, call)

    def discovered(self, class_name: str) -> None:
        """A module that the model does not register was called."""
        self._known.discovered(class_name)

    # -- values as they are made

    def source(
        self,
        kind: str,
        running: Running,
        value: int,
        tensor: Tensor,
        func_name: str = "none",
        buffer: int | None = None,
    ) -> Verdict:
        """Whether an input or a buffer version is kept."""
        if self.simple or self._by_module is not None:
            return self.everything
        self._known.event()
        return self._decided(self._known.source(kind, self._stack(running), value, tensor, func_name, buffer))

    def unwatched(self, running: Running, node_class: str, value: int, tensor: Tensor) -> Verdict:
        """Whether the result of a call that nobody watched is kept."""
        if self.simple or self._by_module is not None:
            return self.everything
        self._known.event()
        return self._decided(self._known.unwatched(node_class, self._stack(running), value, tensor))

    def verdict(
        self,
        running: Running,
        function: Function,
        slot: int | None,
        value: int,
        tensor: Tensor,
        returned: tuple[Any, tuple[Any, ...]],
        *,
        wrote: bool,
    ) -> Verdict:
        """Whether a result of a call is kept.

        Args:
            running: Where the forward is.
            function: What was called.
            slot: Position among the results; None for the only one.
            value: Its number.
            tensor: The result.
            returned: Template of what the call returned, and the path of the result in it.
            wrote: The call wrote to memory that other tensors may stand for.
        """
        if self._by_module is not None:
            return None if wrote else False  # as in _answer
        if self._by_function:
            facts = self._known.called(self._stack(running), function, slot, value, tensor, returned)
            answer = self.answers[function, slot] = self._decided(facts)
            return answer
        if not slot:
            self._known.event()
        if self._stop is None and not self._facts_vary:
            place = (function, running.call, slot)
            if place not in self._by_place:
                facts = self._known.called(running.stack, function, slot, value, tensor, returned)
                self._by_place[place] = self._decided(facts)
            else:
                self._known.rows += 1
            found = self._by_place[place]
            if found:
                self.kept.add(value)
            return found
        return self._decided(self._known.called(running.stack, function, slot, value, tensor, returned), wrote=wrote)

    def _stack(self, running: Running) -> Sequence[tuple[int, int]]:
        """The running module calls, where they were told of; else the root's alone."""
        return running.stack if self.tracks_calls else running.stack[:1]

    def _decided(self, facts: Facts, *, wrote: bool = False) -> Verdict:
        """Ask about an op that has just run whether to stop and what to do with its value."""
        self._look_for_stop(facts)
        if isinstance(self._save, bool):
            return self._save
        answer = self._answer(self._save, facts, wrote=wrote)
        if answer is True:
            self.kept.add(facts.value)
        return answer

    def _look_for_stop(self, facts: Facts) -> None:
        if self._stop is not None and self.stopping is None and self._asked(self._stop.matches, facts):
            self.stopping = facts.value

    def _asked(self, question: Callable[[Facts], Verdict], facts: Facts) -> Verdict:
        """An answer of the request; where there is none, the forward is left, and nothing is asked any more.

        What the user's own code calls meanwhile is no call of the model's, and what it raises goes past the model's
        frames, which could catch it.
        """
        if self._unanswered:
            return False
        try:
            with self.working() if self._runs_code else contextlib.nullcontext():
                return question(facts)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            self._unanswered = True
            self.leave(Unanswered(request_failed(error)))
            return False

    def _answer(self, save: Selector, facts: Facts, *, wrote: bool = False) -> Verdict:
        """Keep, hold, or neither: a value that only a module's return could make wanted comes by again then.

        Not so what a call wrote: the module may return the same memory under another name.
        """
        assert self._question is not None  # there is a selector
        answer = self._asked(self._question, facts)
        if answer is not None:
            return answer
        if save.ahead:
            self._waiting.append(facts)
        elif save.names_modules and not wrote and not save.behind:
            before, self._known.at_end = self._known.at_end, True
            try:
                return False if self._asked(self._question, facts) is False else None
            finally:
                self._known.at_end = before
        return None

    def due(self) -> Iterator[tuple[int, Verdict]]:
        """Held values of which it has become known whether they are wanted: what they waited for has run."""
        save = self._save
        if isinstance(save, bool) or self._question is None:
            return
        while self._waiting and self._waiting[0].after(save.ahead)[1]:
            facts = self._waiting.popleft()
            answer = self._asked(self._question, facts)
            if answer is True or (answer is False and facts.value not in self._shown):
                yield facts.value, answer

    # -- values as they are returned

    def reread(self, value: int, of: int, writer: int) -> None:
        """A tensor, ``of`` before, got a new number, since its memory was written by the call that made ``writer``."""
        self._known.reread(value, writer)
        self._rereads.add(value)
        self._reread_now[value] = of, writer

    def given(self, given: list[int], writers: Sequence[int | None] | None) -> list[int]:
        """The values that the call which is left was given; those read again on leaving it, if it did not write them.

        Args:
            given: The values that it was given.
            writers: Who had written the memory of each last when it began.
        """
        again, self._reread_now = self._reread_now, {}
        if not again or writers is None:
            return given
        before = set(zip(given, writers, strict=True))
        return [*given, *[value for value, was in again.items() if was in before]]

    def passes_over(self, call: int) -> bool:
        """Whether nothing is to be done with what a module call returned."""
        if self.simple:
            return self.stopping is None and not self.is_where_to_stop(call)
        return self._by_module is not None and not self._rereads and not self._is_named(call)

    def _is_named(self, call: int) -> bool:
        """Whether a request for modules alone names a call."""
        address, _, number = self._known.label(call).rpartition(":")
        tokens = (self._by_module or {}).get(address, ())
        return ANY_CALL in tokens or number in tokens

    def is_where_to_stop(self, call: int) -> bool:
        """Whether a module call is one that the request to stop names; asked where it names nothing else."""
        return self._stop_key is not None and bool(named_among(self._stop_key, (self._known.label(call),)))

    def stop_with(self, given: Sequence[int], values: Sequence[int]) -> None:
        """Stop with what such a call has returned, if an op stands for some of it, or will: for what it was given."""
        if self.stopping is None:
            shown = (value for value in values if value >= 0 and (value in given or value not in self.rowless))
            self.stopping = next(shown, None)

    def left(
        self, running: Running, call: int, given: Sequence[int], results: Sequence[tuple[int, Tensor]]
    ) -> Iterator[tuple[int, Tensor | None, Verdict]]:
        """What a module call has just returned, where something is to be done with it: kept, held, or let go of.

        Args:
            running: Where the forward is, the call left.
            call: The call.
            given: The values it was given.
            results: The values it returned; of the root's own call none, since ``ended`` tells of those.
        """
        if self._by_module is not None:
            is_named = self._is_named(call)
            for value, tensor in results:
                if value in given:
                    self._rereads.discard(value)  # a row shows it from now on
                is_shown = value >= 0 and (value in given or value not in self.rowless)
                if is_named and is_shown and value not in self._rereads:
                    yield value, tensor, True
            return
        self._known.event()
        for value, tensor in results:
            if value < 0:
                continue
            made = self._known.handed_on(running.stack, call, value, tensor) if value in given else None
            if made is not None:
                self._shown.add(value)
            facts = self._known.returned(call, value) or made
            if facts is not None:
                yield facts.value, tensor if facts.value == value else None, self._again(facts)

    def ended(self, results: Sequence[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor | None, Verdict]]:
        """The same of what the forward returned, or of where it was left. Nothing runs any more."""
        if self._by_module is not None:
            return
        self._known.event()
        self._known.at_end = True
        for value, tensor in results:
            if value >= 0:
                self._shown.add(value)
                yield value, tensor, self._again(self._known.output(value, tensor))

    def _again(self, facts: Facts) -> Verdict:
        """``_answer`` of a value that came by before; what another row of it may want is not let go of."""
        self._look_for_stop(facts)
        if isinstance(self._save, bool):
            return self._save
        answer = self._answer(self._save, facts)
        return None if answer is False and facts.value in self._shown else answer


def asks_functions_alone(selector: Selector) -> bool:
    """Whether an answer depends on the function that was called alone, and no module can change it.

    A module that hands on what it was given makes a row of its own, named ``identity``.
    """
    return all(
        isinstance(node, (AllOf, AnyOf)) or (isinstance(node, Func) and node.name != "identity")
        for node in selector.nodes()
    )


def modules_alone(selector: Selector, known: FactsOfCapture) -> dict[str, set[str]] | None:
    """The calls, by address of the module, whose values are all that a selector asks for; None where it asks for else.

    Such a call hands over all that is wanted as it returns, so that no op need be asked about.
    """
    made: dict[str, set[str]] = {}
    for term in selector.nodes():
        if isinstance(term, AnyOf):
            continue
        if not isinstance(term, ModuleOutput):
            return None
        address, token = known.call_key(term.address)
        if (
            address == ROOT or token == LAST_CALL
        ):  # its values are shown by rows of their own, or not known for the last
            return None
        made.setdefault(address, set()).add(token)
    return made


def runs_code(selector: Selector) -> bool:
    """Whether a selector asks a predicate of the user's."""
    return any(isinstance(node, Where) for node in selector.nodes())


class Unanswered(NamedTuple):
    """A predicate raised, or gave no answer; ``error`` says so."""

    error: TorchLensError


def asked(selector: Selector, facts: Facts) -> Verdict:
    """A selector's answer; a predicate in it that raises is the request's fault and not the model's.

    Raises:
        ConfigurationError: ``predicate_evaluation_failed``.
    """
    try:
        return selector.live(facts)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        failed = request_failed(error, selector)
        raise failed from (failed.__cause__ if failed is error else error)


def checked(predicate: Callable[[Facts], Any]) -> Callable[[Facts], bool]:
    """A user's predicate whose answer must be True or False."""

    def matches(facts: Facts) -> bool:
        try:
            answer = predicate(facts)
        except NotYetKnown:
            raise
        except Exception as error:
            raise predicate_failed(error) from error
        if not isinstance(answer, bool):
            raise ConfigurationError(
                code="predicate_return_invalid",
                problem=f"the predicate returned {type(answer).__name__}, not a bool",
                remedy="return True or False",
                received_type=type(answer).__name__,
            )
        return answer

    return matches


def request_failed(error: Exception, selector: Selector | None = None) -> TorchLensError:
    """What is wrong with a request that gave no answer: what its parts say of it, or that its predicate raised."""
    if isinstance(error, SelectionError) or (isinstance(error, ConfigurationError) and error.code in TOLD_BY_REQUEST):
        return error
    return predicate_failed(error, selector)


TOLD_BY_REQUEST: Final = ("predicate_evaluation_failed", "predicate_return_invalid", "stop_after_site_not_live")


def predicate_failed(error: Exception, selector: Selector | None = None) -> ConfigurationError:
    made = ConfigurationError(
        code="predicate_evaluation_failed",
        problem=f"the predicate{'' if selector is None else f' in {selector!r}'} raised {type(error).__name__}: "
        f"{message_of(error)}",
        remedy=f"it is given what is known as the op returns: {', '.join(TOLD)}",
        **({} if selector is None else {"selector": repr(selector)}),
    )
    made.__cause__ = error
    return made


def _go_on(why: Any) -> None:
    """Nobody listens."""
