"""What a capture was asked to keep and where to stop, as decisions that a running call can be given.

A selector that knows enough while the model runs answers at once. One that needs final labels, or what
a module will return, answers "not yet": the value is held until the forward has ended (``driver``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs
from torch import Tensor

from journal.events import PayloadRef
from projections.selector import Selector, Verdict
from torchlens.capture.functions import Function
from torchlens.errors import ConfigurationError, TorchLensError

NEVER: Final = False


class Running(Protocol):
    """Where the forward is, as the recorder knows it."""

    call: int
    stack: list[tuple[int, int]]


@attrs.define(slots=True, frozen=True)
class Facts:
    """What is known of an op as it returns; a selector and a predicate see this and no tensor value.

    Attributes:
        func_name: Name of the wrapped function, such as ``relu``.
        layer_type: The name as labels spell it.
        modules: Labels of the enclosing module calls, outermost first, without the root.
        output_of: Labels of the module calls this value has been returned from so far.
        multi_output_index: Position among the results of one call; None for a single result.
        raw_label: ``{layer_type}_{ordinal}_raw``.
        shape, dtype, device, requires_grad: Of the result; dtype and device as words, ``"float32"``, ``"cpu"``.
    """

    func_name: str
    layer_type: str
    modules: tuple[str, ...]
    output_of: tuple[str, ...]
    multi_output_index: int | None
    raw_label: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool


@attrs.define(slots=True, frozen=True)
class Stop:
    """Where to leave the forward.

    Attributes:
        text: The request as the user wrote it.
        matches: Decides per op, and again when a module call returns it.
        exploratory: Never to stop is no mistake, as with a predicate of the user's.
    """

    text: str
    matches: Callable[[Facts], bool]
    exploratory: bool = False


class Plan:
    """Decides per value whether its payload is kept, and per op whether to stop.

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
        "_made",
        "_save",
        "_stop",
        "at_exit",
        "constant",
        "everything",
        "kept_at_exit",
        "simple",
        "stop",
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
        self._made: dict[int, Facts] = {}  # by value, where a module's return may be asked about
        self.simple = isinstance(save, bool)
        self.tracks_calls = not isinstance(save, bool) or stop is not None
        self.everything: Verdict = save if isinstance(save, bool) else False
        self.constant: Verdict = self.everything
        self.stop = None if stop is None else stop.text
        self.at_exit = None if isinstance(save, bool) or not save.names_modules else save
        self._facts_vary = not isinstance(save, bool) and save.needs_facts
        self.kept_at_exit: dict[int, PayloadRef | None] = {}  # None where only what was made of it was kept

    @property
    def selector(self) -> Selector | None:
        return None if isinstance(self._save, bool) else self._save

    def source(self, kind: str, ordinal: int, tensor: Tensor) -> Verdict:
        """Whether an input or a buffer version is kept."""
        if isinstance(self._save, bool):
            return self._save
        return asked(self._save, _facts("none", kind, (), None, f"{kind}_{ordinal}_raw", tensor))

    def entered(self, number: int, call: int) -> None:
        """A module call begins; its label is ``address:k``."""
        count = self._call_counts[number] = self._call_counts.get(number, 0) + 1
        self._call_labels[call] = f"{self._addresses[number] or 'self'}:{count}"

    def discovered(self, class_name: str) -> None:
        """A module that the model does not register gets the next number, and the name its records will have."""
        count = self._found[class_name] = self._found.get(class_name, 0) + 1
        self._addresses.append(f"~{class_name}_{count}")

    def verdict(self, running: Running, function: Function, slot: int | None, value: int, tensor: Tensor) -> Verdict:
        save = self._save
        if isinstance(save, bool):
            return save
        if self._facts_vary or self.at_exit is not None:
            return asked(save, self._facts_of(running, function, slot, value, tensor))
        place = (function, running.call, slot)
        if place in self._by_place:
            return self._by_place[place]
        found = asked(save, self._facts_of(running, function, slot, value, tensor))
        self._by_place[place] = found
        return found

    def _facts_of(self, running: Running, function: Function, slot: int | None, value: int, tensor: Tensor) -> Facts:
        known = self._made.get(value)
        if known is not None:
            return known
        layer_type = self._layer_type_of(function.func_name)
        modules = tuple(self._call_labels[call] for _, call in running.stack[1:])
        raw_label = f"{layer_type}_{value + 1}_raw"
        made = _facts(function.func_name, layer_type, modules, slot, raw_label, tensor)
        if self.at_exit is not None or self.stop is not None:
            self._made[value] = made
        return made

    def returned(self, running: Running, call: int, value: int, tensor: Tensor, *, untouched: bool) -> Facts:
        """Facts of a value that a module call has just returned."""
        label = self._call_labels[call]
        made = self._made.get(value)
        if made is None or untouched:  # handed on: the call itself is the op, ``identity``
            modules = (*(self._call_labels[c] for _, c in running.stack[1:]), label)
            made = _facts("identity", "identity", modules, None, "", tensor)
        made = attrs.evolve(made, output_of=(*made.output_of, label))
        self._made[value] = made
        return made

    def wants(self, facts: Facts) -> bool:
        """Whether what a module call returned is wanted because of that module."""
        return self.at_exit is not None and asked(self.at_exit, facts) is True

    def stops(self, facts: Facts) -> bool:
        """Whether to leave the forward here."""
        return self._stop is not None and self._stop.matches(facts)

    def stops_after(self, running: Running, function: Function, results: Sequence[tuple[int, Tensor]]) -> bool:
        """Whether to leave the forward after the op with these results."""
        many = len(results) > 1
        return any(
            self.stops(self._facts_of(running, function, slot if many else None, value, tensor))
            for slot, (value, tensor) in enumerate(results)
        )


def _facts(
    func_name: str, layer_type: str, modules: tuple[str, ...], slot: int | None, raw_label: str, tensor: Tensor
) -> Facts:
    return Facts(
        func_name,
        layer_type,
        modules,
        (),
        slot,
        raw_label,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        str(tensor.device),
        tensor.requires_grad,
    )


def asked(selector: Selector, facts: Facts) -> Verdict:
    """A selector's answer; a predicate in it that raises is the request's fault and not the model's.

    Raises:
        ConfigurationError: ``predicate_evaluation_failed``.
    """
    try:
        return selector.live(facts)
    except TorchLensError:
        raise
    except Exception as error:
        raise ConfigurationError(
            code="predicate_evaluation_failed",
            problem=f"the predicate in {selector!r} raised {type(error).__name__}: {error}",
            remedy=f"it is given what is known as the op returns: {', '.join(Facts.__slots__[:10])}",
            selector=repr(selector),
        ) from error


def checked(predicate: Callable[[Facts], Any]) -> Callable[[Facts], bool]:
    """A user's predicate whose answer must be True or False."""

    def matches(facts: Facts) -> bool:
        try:
            answer = predicate(facts)
        except Exception as error:
            raise ConfigurationError(
                code="predicate_evaluation_failed",
                problem=f"the predicate raised {type(error).__name__}: {error}",
                remedy=f"it is given what is known as the op returns: {', '.join(Facts.__slots__[:10])}",
            ) from error
        if not isinstance(answer, bool):
            raise ConfigurationError(
                code="predicate_return_invalid",
                problem=f"the predicate returned {type(answer).__name__}, not a bool",
                remedy="return True or False",
                received_type=type(answer).__name__,
            )
        return answer

    return matches
