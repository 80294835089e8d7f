"""What a capture was asked to keep and where to stop, as decisions that a running call can be given.

A selector that knows enough while the model runs answers at once. One that needs final labels, or what
a module will return, answers "not yet": the value is held until the forward has ended (``driver``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs

from journal.events import PayloadRef
from projections.selector import Selector
from torchlens.capture.functions import Function
from torchlens.errors import ConfigurationError

Verdict = bool | None
"""Keep, do not keep, or not yet known."""

NEVER: Final = False


class Running(Protocol):
    """Where the forward is, as the recorder knows it."""

    call: int
    stack: list[tuple[int, int]]


@attrs.define(slots=True, frozen=True)
class Facts:
    """What is known of an operation as it returns; a selector and a predicate see this and no tensor value.

    Attributes:
        func_name: Name of the wrapped function, such as ``relu``.
        layer_type: The name as labels spell it.
        modules: Labels of the enclosing module calls, outermost first, without the root.
        output_of: Labels of the module calls this value has been returned from so far.
        multi_output_index: Position among the results of one call; None for a single result.
        raw_label: ``{layer_type}_{ordinal}_raw``.
    """

    func_name: str
    layer_type: str
    modules: tuple[str, ...]
    output_of: tuple[str, ...]
    multi_output_index: int | None
    raw_label: str


@attrs.define(slots=True, frozen=True)
class Stop:
    """Where to leave the forward.

    Attributes:
        text: The request as the user wrote it.
        module: Number of a module: leave when one of its calls returns.
        func_name: Name of a function: leave after its first call.
        matches: Decides per operation.
        exploratory: Never to stop is no mistake, as with a predicate of the user's.
    """

    text: str
    module: int | None = None
    func_name: str | None = None
    matches: Callable[[Facts], bool] | None = None
    exploratory: bool = False


class Plan:
    """Decides per value whether its payload is kept, and per operation whether to stop.

    Args:
        save: True keeps everything, False nothing; a selector what it matches.
        addresses: Module addresses by number.
        layer_type_of: Spelling of a function name in labels.
        stop: Where to leave the forward, if anywhere.
    """

    __slots__ = (
        "_addresses",
        "_by_place",
        "_call_counts",
        "_call_labels",
        "_facts_vary",
        "_found",
        "_layer_type_of",
        "_save",
        "_stop",
        "at_exit",
        "constant",
        "everything",
        "kept_at_exit",
        "simple",
        "stop",
        "stopped",
        "tracks_calls",
    )

    def __init__(
        self,
        save: Selector | bool,
        addresses: Sequence[str],
        layer_type_of: Callable[[str], str],
        stop: Stop | None = None,
    ) -> None:
        self._save = save
        self._addresses = list(addresses)
        self._layer_type_of = layer_type_of
        self._stop = stop
        self._by_place: dict[tuple[Any, ...], Verdict] = {}
        self._call_labels: dict[int, str] = {}
        self._call_counts: dict[int, int] = {}
        self._found: dict[str, int] = {}
        self.simple = isinstance(save, bool)
        self.tracks_calls = not isinstance(save, bool) or stop is not None
        self.everything: Verdict = save if isinstance(save, bool) else False
        self.constant: Verdict = self.everything
        self.stop = None if stop is None else stop.text
        self.stopped = False
        self.at_exit = None if isinstance(save, bool) or not save.names_modules else save
        self._facts_vary = not isinstance(save, bool) and save.needs_facts
        self.kept_at_exit: dict[int, PayloadRef] = {}

    @property
    def selector(self) -> Selector | None:
        return None if isinstance(self._save, bool) else self._save

    def source(self, kind: str, ordinal: int) -> Verdict:
        """Whether an input or a buffer version is kept."""
        if isinstance(self._save, bool):
            return self._save
        return self._save.live(Facts("none", kind, (), (), None, f"{kind}_{ordinal}_raw"))

    def entered(self, number: int, call: int) -> None:
        """A module call begins; its label is ``address:k``."""
        count = self._call_counts[number] = self._call_counts.get(number, 0) + 1
        self._call_labels[call] = f"{self._addresses[number] or 'self'}:{count}"

    def discovered(self, class_name: str) -> None:
        """A module that the model does not register gets the next number, and the name its records will have."""
        count = self._found[class_name] = self._found.get(class_name, 0) + 1
        self._addresses.append(f"~{class_name}_{count}")

    def verdict(self, running: Running, function: Function, slot: int | None, value: int) -> Verdict:
        save = self._save
        if isinstance(save, bool):
            return save
        if self._facts_vary:
            return save.live(self._facts(running, function, slot, value))
        place = (function, running.call, slot)
        if place in self._by_place:
            return self._by_place[place]
        found = self._by_place[place] = save.live(self._facts(running, function, slot, value))
        return found

    def _facts(self, running: Running, function: Function, slot: int | None, value: int) -> Facts:
        layer_type = self._layer_type_of(function.func_name)
        modules = tuple(self._call_labels[call] for _, call in running.stack[1:])
        return Facts(function.func_name, layer_type, modules, (), slot, f"{layer_type}_{value + 1}_raw")

    def wants_exit(self, running: Running, call: int, value: int, *, untouched: bool) -> bool:
        """Whether what a module call returns is wanted because of that module."""
        if self.at_exit is None or call not in self._call_labels:
            return False
        outer = tuple(self._call_labels[c] for _, c in running.stack[1:])
        label = self._call_labels[call]
        name = "identity" if untouched else ""
        facts = Facts(name, name, (*outer, label), (label,), None, "")
        return self.at_exit.live(facts) is True

    def stops(self, running: Running, function: Function, first: int, count: int) -> bool:
        """Whether to leave the forward after this operation."""
        stop = self._stop
        if stop is None or stop.module is not None:
            return False
        if stop.func_name is not None:
            self.stopped = function.func_name == stop.func_name
        elif stop.matches is not None:
            slots: Sequence[int | None] = (None,) if count == 1 else range(count)
            for slot in slots:
                if stop.matches(self._facts(running, function, slot, first + (slot or 0))):
                    self.stopped = True
        return self.stopped

    def stops_at_module(self, number: int) -> bool:
        stop = self._stop
        if stop is not None and stop.module == number:
            self.stopped = True
        return self.stopped


def checked(predicate: Callable[[Facts], Any]) -> Callable[[Facts], bool]:
    """A user's predicate whose answer must be True or False."""

    def matches(facts: Facts) -> bool:
        answer = predicate(facts)
        if not isinstance(answer, bool):
            raise ConfigurationError(
                code="predicate_return_invalid",
                problem=f"the predicate returned {type(answer).__name__}, not a bool",
                remedy="return True or False",
                received_type=type(answer).__name__,
            )
        return answer

    return matches
