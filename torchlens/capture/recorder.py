"""One capture's listener: turns wrapped calls and module calls into rows of a stream.

Everything here runs between the model's own calls, so it does the least that makes a fact
complete. A tensor carries the number of its value in an attribute, ``(capture, value)``; one of another
capture reads as none. Parameters have negative numbers, ``-1 - n``.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Final, Literal, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from journal.events import (
    MODE_AUTOCAST,
    MODE_INFERENCE,
    At,
    BranchTaken,
    BufferSeen,
    BufferWritten,
    ConstantSeen,
    Event,
    FunctionSeen,
    InputSeen,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    OpExecuted,
    OpLeft,
    OpRaised,
    OpStarted,
    ParameterSeen,
    PayloadKept,
    PreHooksStarted,
    ThreadCalled,
    Value,
    ValueOverwritten,
    ValueReread,
)
from journal.events.template import HOLE, SIZE, TUPLE
from journal.protocol import StreamWriter
from projections.selecting.selector import Verdict
from torchlens import compat
from torchlens.capture.callsite import OWN_CODE, CallSites
from torchlens.capture.changing import ChangingKeeper
from torchlens.capture.facts import shape_of
from torchlens.capture.functions import Function, generator_of, running_statistics
from torchlens.capture.keeping import Keeper
from torchlens.capture.newborn import Newborn
from torchlens.capture.outside import Outside
from torchlens.capture.overwritten import counted_writes, overwritten
from torchlens.capture.plan import NEVER, Plan
from torchlens.capture.template import PLAIN, encode, leaves, path_of
from torchlens.capture.wrap import CALLING_CODE
from torchlens.errors import TorchLensError, message_of
from torchlens.generators import state_of
from torchlens.tensors import DTYPE_WORD

OP: Final = OpExecuted.type_id
ENTERED: Final = ModuleEntered.type_id
LEFT: Final = ModuleLeft.type_id
BRANCH: Final = BranchTaken.type_id
FUNCTION_SEEN: Final = FunctionSeen.type_id
BUFFER_SEEN: Final = BufferSeen.type_id
CONSTANT_SEEN: Final = ConstantSeen.type_id

# Names of this module are found faster than attributes of another.
_get_ident = threading.get_ident
_getframe = sys._getframe
_grad_enabled = compat.grad_enabled
_inference_enabled = compat.inference_enabled
_any_autocast_enabled = compat.any_autocast_enabled
_storage_address = compat.storage_address
_is_view = compat.is_view
_function_mode_on = compat.function_mode_on

Parameter = nn.Parameter

How = Literal["inplace", "fused", "reassign"]

MOVES_STORAGE: Final = frozenset(("set_", "resize_", "resize_as_"))
"""In-place calls after which a tensor may stand on other memory."""

SHARES_OUTSIDE: Final = frozenset(("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack"))
"""Calls whose result may share memory with something that is no tensor and can be written unseen."""

MAX_UNSEEN_NODES: Final = 256
"""How many unseen autograd nodes are followed back from one unseen tensor."""

MAX_NUMBERED_ASKED: Final = 1024
"""Of how many tensors, the newest first, it is asked whether an unseen one is on their memory."""

UNSEEN: Final = "unseen"
"""What a tensor is called that was made during the forward by what no wrapper and no autograd node tells of."""

MAX_FUNCTIONS_TOLD: Final = 64
"""Most functions named of one thread."""

ONE_TENSOR: Final = (HOLE,)
"""The template of a call with one tensor and nothing else, which is most module calls."""


class Halt(BaseException):
    """Leaves the forward on purpose; the model's own ``except Exception`` does not catch it."""

    def __init__(self, at: int, reason: str, results: Sequence[tuple[int, Tensor]]) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason
        self.results = results  # the values that the forward was left with

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(value for value, _ in self.results)


class GivenUp(BaseException):
    """Leaves the forward because what was asked for cannot be done; ``why`` says what."""

    def __init__(self, why: Any) -> None:
        super().__init__(why)
        self.why = why


class Recorder:
    """Listener of one capture.

    Args:
        number: Number of this capture in the process; written beside each value number.
        writer: The stream, already open.
        keeper: Where payloads go.
        plan: Which payloads are wanted and where to stop.
        first_node: Sequence number the next autograd node would get when the forward starts.
    """

    __slots__ = (
        "_autocast_devices",
        "_buffer_by_id",
        "_buffer_storages",
        "_buffer_versions",
        "_chunk",
        "_elsewhere",
        "_flight",
        "_follows",
        "_functions",
        "_held_residents",
        "_indexed",
        "_lasting",
        "_made",
        "_newborn",
        "_node_values",
        "_numbered",
        "_param_storages",
        "_parameter_sources",
        "_params",
        "_pending",
        "_resident_storages",
        "_residents",
        "_storages",
        "_strays",
        "_value_storage",
        "_writers",
        "call",
        "calls",
        "first_node",
        "halt",
        "held",
        "keeper",
        "leaves",
        "leaving",
        "left",
        "most_nodes",
        "nodes",
        "number",
        "paused",
        "plan",
        "sites",
        "stack",
        "storages",
        "thread",
        "values",
        "writer",
    )

    def __init__(
        self, number: int, writer: StreamWriter, keeper: Keeper, plan: Plan, first_node: int, *, flight: bool = False
    ) -> None:
        self.number = number
        self.writer = writer
        self.keeper = keeper
        self.plan = plan
        self.first_node = first_node
        self.thread = _get_ident()
        self.paused = 0
        self.values = 0  # the next value number
        self.storages = 0  # the next storage number
        self.calls = 0  # the next module call number
        self.call = -1  # the innermost running module call
        self.stack: list[tuple[int, int]] = []  # (module, call) from the root inwards
        self.nodes: dict[Any, int] = {}
        self.most_nodes = compat.MAX_TOUCHED_NODES
        self.leaves: list[tuple[ref[Tensor], int]] = []  # described, with their values, and no parameters
        self.held: set[int] = set()  # values pinned until it is known whether they are wanted
        self.halt: Halt | None = None  # an input is where to leave the forward
        self._pending = writer.pending
        self._chunk = writer.chunk_size
        self._functions: dict[Function, int] = {}
        self._storages: dict[int, int] = {}  # address -> number; an address may be used again, see _storage_at
        self._resident_storages: dict[int, int] = {}  # address -> number, of storages that outlive the forward
        self._lasting: set[int] = set()  # the numbers of those
        self._value_storage: list[int | None] = []
        self._params: list[Tensor] = []
        # Parameters, buffers and constants outlive the capture: their numbers stand here by id and not in
        # an attribute, and the tensors are held so that the ids stay theirs.
        self._residents: dict[int, int] = {}
        self._held_residents: list[Tensor] = []
        self._parameter_sources: dict[int, tuple[Tensor, int]] = {}  # by id, made of a value during the forward
        self._param_storages: dict[int, int | None] = {}
        self._writers: dict[int, int] = {}  # storage number -> value that wrote it last
        self._buffer_by_id: dict[int, tuple[int, Tensor]] = {}
        self._buffer_versions: dict[int, int] = {}
        self._buffer_storages: dict[int, Tensor] = {}  # storage number -> the buffer that has it
        self._newborn = Newborn()
        self._numbered: list[ref[Tensor]] = []  # what got a number on it, to be cleared if it lives on
        self._flight = flight
        self.leaving: Any = None  # why the forward is left at the next row
        self.left: Halt | GivenUp | None = None  # what it was left with
        keeper.leave = plan.leave = self._leave_for
        plan.working = self.working
        self._made: list[Event] = keeper.made if isinstance(keeper, ChangingKeeper) else []
        self._follows = plan.follows_calls or isinstance(keeper, ChangingKeeper)  # something is done after each op
        self._elsewhere: dict[int, Elsewhere] = {}  # by thread, what threads other than ours have called
        self._strays: dict[int, Stray] = {}  # by id, what those calls returned
        self._node_values: dict[tuple[Any, int], int] = {}  # autograd node and slot -> value, made when it is needed
        self._indexed = 0  # how many of the numbered tensors are in it
        self._autocast_devices = tuple(d for d in ("cpu", "cuda") if d == "cpu" or torch.cuda.is_available())
        self.sites = CallSites(self._append, self._keep_source, Recorder.module_called.__code__)

    # -- appending -------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Append an event of a rare kind."""
        self.writer.append(event, monotonic_ns())

    def is_listening(self) -> bool:
        """Whether this thread's calls are being recorded just now."""
        return not self.paused and _get_ident() == self.thread

    def _append(self, row: tuple[Any, ...]) -> None:
        pending = self._pending
        pending.append(row)
        if len(pending) >= self._chunk:
            self.writer.flush()

    def _full(self) -> None:
        """A call or the end of a module call was appended: the pending rows are a chunk, or the forward is left."""
        self.writer.flush()
        if self._chunk == 0:
            self._chunk = self.writer.chunk_size  # what is appended on the way out leaves nothing again
            raise self._left_with(GivenUp(self.leaving))

    def _left_with(self, way: Halt | GivenUp) -> Halt | GivenUp:
        """What to raise to leave the forward. A model that catches everything runs on: nothing of that is recorded."""
        self.left = way
        self.paused += 1
        return way

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """What torch is asked inside is nobody's call but ours."""
        self.paused += 1
        try:
            with compat.NoTorchFunction():
                yield
        finally:
            self.paused -= 1

    def _leave_for(self, why: Any) -> None:
        """Leave the forward once the call that is being recorded is: any number of rows are too many from now on."""
        if self.leaving is None:
            self.leaving, self._chunk = why, 0

    def _keep_source(self, text: bytes) -> int:
        return self.writer.keep(text)

    # -- numbering -------------------------------------------------------------------------------

    def adopt_parameters(self, parameters: list[Tensor]) -> None:
        """Number the model's parameters before the forward."""
        self._params = list(parameters)
        self._residents = {id(parameter): -1 - number for number, parameter in enumerate(parameters)}

    def adopt_parameter(self, parameter: Tensor, number: int) -> None:
        """Give a parameter its number."""
        self._residents[id(parameter)] = -1 - number
        self._params.append(parameter)

    def adopt_buffer(self, buffer: Tensor, number: int) -> None:
        """Remember a buffer; its first reading makes it a value."""
        self._buffer_by_id[id(buffer)] = (number, buffer)

    def value_of(self, tensor: Tensor) -> int | None:
        """The number this capture knows the tensor by; None where it has not met it."""
        tag = getattr(tensor, "_torchlens_value", None)
        if tag is not None and tag[0] == self.number:
            return tag[1]
        return self._residents.get(id(tensor))

    def _label(self, tensor: Tensor, storage: int | None) -> int:
        value = self.values
        self.values = value + 1
        self._value_storage.append(storage)
        self._numbered.append(ref(tensor))
        tensor._torchlens_value = (self.number, value)  # type: ignore[attr-defined]  # tensors take any
        return value

    def _reside(self, tensor: Tensor, storage: int | None) -> int:
        """Number a tensor that outlives the capture."""
        value = self.values
        self.values = value + 1
        self._value_storage.append(storage)
        self._residents[id(tensor)] = value
        self._held_residents.append(tensor)
        return value

    def _storage_number(self, value: int) -> int | None:
        return self._value_storage[value] if value >= 0 else self._param_storage(-1 - value)

    def _param_storage(self, number: int) -> int | None:
        """Storage number of a parameter, found when it is first asked for."""
        if number not in self._param_storages:
            self._param_storages[number] = self._resident_storage(self._params[number])
        return self._param_storages[number]

    def _storage_at(
        self, address: int, tensor: Tensor, inputs: list[int], first_storage: int
    ) -> tuple[int, int | None]:
        """Storage number of a result at this address, and the input whose storage it shares.

        A known address counts only if a living input, or an earlier result of the same call (whose number is
        ``first_storage`` or more), has it: a freed storage's address is used again.
        """
        known = self._storages.get(address)
        if known is None:
            for value in inputs:  # perhaps another name for a parameter whose memory was not asked for yet
                self._storage_number(value)
            known = self._storages.get(address)
        if known is not None:
            for value in inputs:
                if self._storage_number(value) == known:
                    return known, value
            if known >= first_storage:
                return known, None
        number = self._storages[address] = self.storages
        self.storages = number + 1
        return number, None

    def _meet(self, tensor: Tensor) -> int:
        """Number of a tensor that carries none: a parameter, a buffer's first reading, or a constant."""
        value = self._residents.get(id(tensor))
        if value is not None:
            return value
        known = self._buffer_by_id.get(id(tensor))
        if known is not None and known[1] is tensor:
            return self._read_buffer(tensor, known[0])
        if isinstance(tensor, nn.Parameter):
            return self.meet_parameter(tensor, None, None)
        made_by, inside, inputs, thread = self._origin(tensor)
        storage = self._resident_storage(tensor)
        value = self._reside(tensor, storage)
        is_row = made_by is not None and inside
        if is_row:
            wanted = self.plan.unwatched(self, str(made_by), value, tensor)
        else:
            wanted = self.plan.everything if self.keeper.takes_constants else False
            self.plan.rowless.add(value)
        payload = self._payload(value, tensor, storage, wanted, private=True)
        description = self._describe(tensor, storage, None, None, (), payload)
        self._append((CONSTANT_SEEN, monotonic_ns(), value, made_by, inside, inputs, thread, description))
        self.tell_made()
        if is_row:
            self._leave_if_asked(value, tensor)
        return value

    def _leave_if_asked(self, value: int, tensor: Tensor) -> None:
        """Leave the forward after the event just appended, if its value is where it was asked to."""
        plan = self.plan
        if plan.stopping is not None and plan.stopping == value:
            raise self._left_with(Halt(self.writer.next_at() - 1, plan.stop, ((value, tensor),)))

    def _origin(self, tensor: Tensor) -> tuple[str | None, bool, tuple[int, ...], str | None]:
        """What made a tensor that no call of ours returned: its name, whether just now, from what, in which thread."""
        stray = self._strays.get(id(tensor))
        if stray is not None and stray.tensor() is tensor:
            return stray.func_name, True, stray.inputs, stray.thread
        node = None if compat.loses_node(tensor) else compat.node_of(tensor)
        if node is None or node in self.nodes:
            if self._newborn.has(tensor):
                return UNSEEN, True, self._on_same_memory(tensor), None
            return None, False, (), None
        inside = compat.made_since(node, self.first_node)
        return type(node).__name__, inside, self._sources(node) if inside else (), None

    def _on_same_memory(self, tensor: Tensor) -> tuple[int, ...]:
        """The newest value on the memory of a tensor that no call of ours returned; () where that is its own."""
        address = compat.memory_address(tensor)
        if address is None:
            return ()
        for held in itertools.islice(reversed(self._numbered), MAX_NUMBERED_ASKED):
            other = held()
            if other is not None and compat.memory_address(other) == address:
                value = self.value_of(other)
                return () if value is None else (value,)
        return ()

    def _sources(self, node: Any) -> tuple[int, ...]:
        """The values that an unseen autograd node leads back to, as far as they are held."""
        known = self._node_values
        numbered = self._numbered
        for held in numbered[self._indexed :]:
            tensor = held()
            made = None if tensor is None else compat.node_of(tensor)
            if tensor is not None and made is not None:
                value = self.value_of(tensor)
                if value is not None:
                    known[made, tensor.output_nr] = value
        self._indexed = len(numbered)
        for value, (pinned, _) in self.keeper.pins.items():
            made = compat.node_of(pinned)
            if made is not None:
                known.setdefault((made, pinned.output_nr), value)
        found: dict[int, None] = {}
        seen, waiting = {node}, [node]
        while waiting and len(seen) < MAX_UNSEEN_NODES:
            for before, slot in waiting.pop().next_functions:
                value = known.get((before, slot))
                leaf = getattr(before, "variable", None)
                if value is None and leaf is not None:
                    value = self.value_of(leaf)
                if value is not None:
                    found[value] = None
                elif before is not None and before not in seen:
                    seen.add(before)
                    waiting.append(before)
        return tuple(found)

    def _resident_storage(self, tensor: Tensor) -> int | None:
        """Storage number of a tensor that outlives the forward, so that its address stays its own."""
        address = None if tensor.is_nested else compat.storage_or_none(tensor)
        if address is None:
            return None
        number = self._resident_storages.get(address)
        if number is None:
            number = self._resident_storages[address] = self._storages[address] = self.storages
            self._lasting.add(number)
            self.storages = number + 1
        return number

    def meet_parameter(self, parameter: Tensor, module: int | None, attribute: str | None) -> int:
        """Give a parameter that the model does not register its number."""
        number = len(self._params)
        self.adopt_parameter(parameter, number)
        row = parameter_row("", parameter, ())
        source = self._parameter_sources.get(id(parameter))
        self.note(
            ParameterSeen(
                number=number,
                module=module,
                attribute=attribute,
                source=None if source is None else Value(source[1]),
                description=row,
            )
        )
        if source is not None:  # its readers hang on what it was made of
            storage = self._param_storages[number] = self._storage_number(source[1])
            if storage is not None:
                self._writers.setdefault(storage, source[1])
        return -1 - number

    def _read_buffer(self, buffer: Tensor, number: int) -> int:
        version = self._buffer_versions.get(number, 0) + 1
        self._buffer_versions[number] = version
        storage = self._resident_storage(buffer)
        value = self._reside(buffer, storage)
        if storage is not None:
            self._buffer_storages[storage] = buffer
        wanted = self.plan.source("buffer", self, value, buffer, buffer=number)
        payload = self._payload(value, buffer, storage, wanted, private=True)
        description = self._describe(buffer, storage, None, None, (), payload)
        self._append((BUFFER_SEEN, monotonic_ns(), value, number, version, description))
        self.tell_made()
        self._leave_if_asked(value, buffer)
        return value

    # -- describing ------------------------------------------------------------------------------

    def _describe(
        self,
        tensor: Tensor,
        storage: int | None,
        view_of: int | None,
        same_as: int | None,
        path: tuple[Any, ...],
        payload: Any,
    ) -> tuple[Any, ...]:
        grad_fn = grad_slot = grad_node = None
        requires_grad = tensor.requires_grad
        if requires_grad and not (_inference_enabled() and _is_view(tensor)):  # see ``compat.loses_node``
            nodes = self.nodes
            node = compat.node_of(tensor) if len(nodes) < self.most_nodes else None
            if node is not None:
                grad_fn = type(node).__name__
                grad_slot = tensor.output_nr
                grad_node = nodes.setdefault(node, len(nodes))
            elif compat.is_leaf(tensor):
                self._describe_leaf(tensor)
        kind = type(tensor)
        try:
            shape = tensor.shape
        except RuntimeError:  # nested: its sizes are no one shape
            storage = None
        if storage is None:
            return self._describe_odd(tensor, requires_grad, grad_fn, grad_slot, grad_node, path, payload, same_as)
        return (
            shape,
            DTYPE_WORD[tensor.dtype],
            "cpu" if tensor.is_cpu else str(tensor.device),
            None,
            None if tensor.is_contiguous() else tensor.stride(),
            tensor.storage_offset(),
            storage,
            view_of,
            same_as,
            requires_grad,
            grad_fn,
            grad_slot,
            grad_node,
            path,
            payload,
            None if kind is Tensor else path_of(kind),
        )

    def _describe_leaf(self, tensor: Tensor) -> None:
        """Remember a leaf that is no parameter, by which an autograd node will be known that gathers its gradient."""
        value = self.value_of(tensor)
        if value is not None and value >= 0:
            self.leaves.append((ref(tensor), value))

    def _describe_odd(
        self,
        tensor: Tensor,
        requires_grad: bool,
        grad_fn: str | None,
        grad_slot: int | None,
        grad_node: int | None,
        path: tuple[Any, ...],
        payload: Any,
        same_as: int | None,
    ) -> tuple[Any, ...]:
        """A tensor without strided memory of its own: sparse, nested, compiled away."""
        shape = shape_of(tensor)
        layout = None if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")
        if layout is None and tensor.is_nested:
            layout = "nested"
        kind = type(tensor)
        return (
            shape,
            DTYPE_WORD[tensor.dtype],
            str(tensor.device),
            layout,
            None,
            0,
            None,
            None,
            same_as,
            requires_grad,
            grad_fn,
            grad_slot,
            grad_node,
            path,
            payload,
            None if kind is Tensor else path_of(kind),
        )

    def _payload(
        self, value: int, tensor: Tensor, storage: int | None, verdict: Verdict, *, private: bool = False
    ) -> tuple[int, int, tuple[int, ...] | None] | None:
        if verdict is False:
            return None
        self.paused += 1  # a dispatch mode of the user's would call through a wrapper for our copies
        try:
            if verdict is True:
                return self.keeper.keep(value, tensor, storage, private=private)
            self.keeper.pin(value, tensor, storage, private=private)
            self.held.add(value)
            return None
        finally:
            self.paused -= 1

    def _payload_of_held(self, value: int, tensor: Tensor) -> tuple[int, int, tuple[int, ...] | None] | None:
        """The payload of a value that a module has returned: of the one that was held when it was made, if it was."""
        storage = self._storage_number(value)
        if value not in self.keeper.pins:
            return self._payload(value, tensor, storage, True, private=storage in self._lasting)
        with self.working():
            return self.keeper.keep_held(value, storage)

    # -- inputs ----------------------------------------------------------------------------------

    def take_input(self, tensor: Tensor, path: tuple[Any, ...], *, was_parameter: bool) -> None:
        """A tensor of the root's arguments, already copied."""
        if self.value_of(tensor) is not None:
            return
        storage = self._resident_storage(tensor)
        if storage is not None:
            self._lasting.discard(storage)  # a copy of ours
        value = self._label(tensor, storage)
        payload = self._payload(value, tensor, storage, self.plan.source("input", self, value, tensor))
        description = self._describe(tensor, storage, None, None, (), payload)
        self.note(InputSeen(value=Value(value), path=path, was_parameter=was_parameter, description=description))
        self.tell_made()
        if self.plan.stopping is not None and self.halt is None:  # left as soon as the forward has started
            self.halt = Halt(self.writer.next_at() - 1, self.plan.stop, ((value, tensor),))

    # -- arguments -------------------------------------------------------------------------------

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[int], tensors: list[Tensor]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Templates of positional and keyword arguments; their tensors go to ``inputs`` and ``tensors``."""
        number = self.number
        template: list[Any] = []
        for item in args:
            kind = type(item)
            if kind is Tensor:
                tag = getattr(item, "_torchlens_value", None)
                inputs.append(tag[1] if tag is not None and tag[0] == number else self._meet(item))
                tensors.append(item)
                template.append(HOLE)
            elif kind is Parameter:
                value = self._residents.get(id(item))
                inputs.append(self._meet(item) if value is None else value)
                tensors.append(item)
                template.append(HOLE)
            elif kind in PLAIN:
                template.append(item)
            elif kind is tuple and PLAIN.issuperset(map(type, item)):
                template.append((TUPLE, *item))
            elif kind is torch.Size:
                template.append((SIZE, *item))
            else:
                template.append(self._encode(item, inputs, tensors))
        if not kwargs:
            return tuple(template), ()
        named: list[Any] = []
        for key, item in kwargs.items():
            named.append(key)
            named.append(item if type(item) in PLAIN else self._encode(item, inputs, tensors))
        return tuple(template), tuple(named)

    def _encode(self, item: Any, inputs: list[int], tensors: list[Tensor]) -> Any:
        def take(tensor: Tensor) -> None:
            value = self.value_of(tensor)
            inputs.append(self._meet(tensor) if value is None else value)
            tensors.append(tensor)

        return encode(item, take)

    def _last_writers(self, inputs: list[int]) -> tuple[int | None, ...] | None:
        writers = self._writers
        found: list[int | None] | None = None
        for position, value in enumerate(inputs):
            storage = self._storage_number(value)
            writer = None if storage is None else writers.get(storage)
            if writer is not None and writer > value:
                if found is None:
                    found = [None] * len(inputs)
                found[position] = writer
        return None if found is None else tuple(found)

    # -- calls -----------------------------------------------------------------------------------

    def called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        original = function.original
        if self.paused or _get_ident() != self.thread:
            if _get_ident() != self.thread:
                return self._called_elsewhere(function, args, kwargs)
            if function.writes is not None or "out" in kwargs:
                written = () if function.writes is None else function.writes(args, kwargs)
                for _, tensor in leaves((written, kwargs.get("out"))):
                    self.protect(tensor)
            return original(*args, **kwargs)
        targets: tuple[Any, ...] = ()
        if function.writes is not None:
            targets = function.writes(args, kwargs)
        if kwargs and "out" in kwargs:
            targets = (*targets, kwargs["out"])
        if targets or self._flight:
            return self._called_with_care(function, args, kwargs, targets)
        rng = None
        if function.draws is not None and function.draws(args, kwargs):
            rng = self._keep_random_state(args, kwargs)
        before = self.values
        start = monotonic_ns()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._call_raised(function, args, kwargs, error, start)
            raise
        duration = monotonic_ns() - start
        kind = type(result)
        if kind is Tensor:
            if self.values != before and self._is_labelled(result):
                return result  # a call inside was the op
        elif kind in PLAIN or (self.values != before and self._all_labelled(result)):
            return result
        inputs: list[int] = []
        tensors: list[Tensor] = []
        if kind is Tensor and not _function_mode_on():
            template, named = self.take(args, kwargs, inputs, tensors)
            self._executed(function, template, named, inputs, tensors, result, start, duration, rng, None, _getframe(2))
        else:  # a subclass perhaps, or a mode of the user's: their code must not run for what is asked here
            with compat.NoTorchFunction():
                template, named = self.take(args, kwargs, inputs, tensors)
                self._executed(
                    function, template, named, inputs, tensors, result, start, duration, rng, None, _getframe(2)
                )
        return result

    def _keep_random_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Number of the payload with the state of the generator that the call is about to draw from."""
        with self.working():
            return self.writer.keep(state_of(generator_of(args, kwargs)))

    def _is_labelled(self, tensor: Tensor) -> bool:
        tag = getattr(tensor, "_torchlens_value", None)
        return tag is not None and tag[0] == self.number

    def _all_labelled(self, result: Any) -> bool:
        return all(self._is_labelled(tensor) for _, tensor in leaves(result))

    def _called_with_care(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> Any:
        """A call that may write to ``targets``: arguments are taken, and what shares their memory copied, before it."""
        inputs: list[int] = []
        tensors: list[Tensor] = []
        frame = _getframe(2)
        # A write to one tensor shows in the version of every tensor on its memory: ask the targets only.
        writable: dict[int, int | None] = {}
        started: At | None = None
        with compat.NoTorchFunction():
            template, named = self.take(args, kwargs, inputs, tensors)
            if self._flight:
                started = self._announce(function, template, named, inputs, tensors, frame)
            for _, tensor in leaves(targets):
                self.protect(tensor)
                # A norm's kernel updates its statistics without counting a version.
                writable[id(tensor)] = None if function.writes is running_statistics else compat.version_of(tensor)
        rng = None
        if function.draws is not None and function.draws(args, kwargs):
            rng = self._keep_random_state(args, kwargs)
        before = self.values
        start = monotonic_ns()
        try:
            result = function.original(*args, **kwargs)
        except BaseException as error:
            self._call_raised(function, args, kwargs, error, start, started)
            raise
        duration = monotonic_ns() - start
        if self.values != before and self._all_labelled(result):
            self._left(started)
            return result
        before = self.values
        with compat.NoTorchFunction():
            written = [
                position
                for position, tensor in enumerate(tensors)
                if id(tensor) in writable and _has_changed(tensor, writable[id(tensor)])
            ]
            shown = result
            if written and not any(True for _ in leaves(result)):
                shown = _written_of(tensors, written)
            self._executed(function, template, named, inputs, tensors, shown, start, duration, rng, written, frame)
        if self.values == before:
            self._left(started)
        return result

    def protect(self, tensor: Tensor) -> None:
        value = self.value_of(tensor)
        if value is not None:
            storage = self._storage_number(value)
            if storage is not None:
                with self.working():
                    self.keeper.before_write(storage)

    def _announce(
        self,
        function: Function,
        template: tuple[Any, ...],
        named: tuple[Any, ...],
        inputs: list[int],
        tensors: list[Tensor],
        frame: Any,
    ) -> At:
        """Say that a call is about to be made; the number of that event."""
        event = OpStarted(
            function=self._function(function),
            site=self.sites.at(frame),
            call=self.call,
            args=template,
            kwargs=named,
            inputs=tuple(inputs),
            shapes=tuple((shape_of(tensor), DTYPE_WORD[tensor.dtype]) for tensor in tensors),
        )
        return self.writer.append(event, monotonic_ns())

    def _left(self, started: At | None) -> None:
        """An announced call has ended, and no event of its own says so."""
        if started is not None:
            self.note(OpLeft(started=started))

    def _call_raised(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        start: int,
        started: At | None = None,
    ) -> None:
        if isinstance(error, (Halt, GivenUp)) or getattr(error, "_torchlens_capture", None) == self.number:
            self._left(started)  # an inner call has told
            return
        with contextlib.suppress(AttributeError, TypeError):
            error._torchlens_capture = self.number  # type: ignore[attr-defined]  # a mark of ours
        self._tell_raised(function, args, kwargs, error, start, _getframe(2), self.call)

    def _tell_raised(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        start: int,
        frame: Any,
        call: int,
    ) -> None:
        inputs: list[int] = []
        template, named = self.take(args, kwargs, inputs, [])
        self.writer.append(
            OpRaised(
                function=self._function(function),
                site=self.sites.at(frame),
                call=call,
                args=template,
                kwargs=named,
                inputs=tuple(inputs),
                exception=path_of(type(error)),
                message=message_of(error),
            ),
            start,
        )

    def _function(self, function: Function) -> int:
        found = self._functions.get(function)
        if found is None:
            found = self._functions[function] = len(self._functions)
            row = (FUNCTION_SEEN, monotonic_ns(), found, function.func_name, function.qualname, function.opaque)
            self._append(row)
        return found

    def _executed(
        self,
        function: Function,
        template: tuple[Any, ...],
        named: tuple[Any, ...],
        inputs: list[int],
        tensors: list[Tensor],
        result: Any,
        start: int,
        duration: int,
        rng: int | None,
        written: list[int] | None,
        frame: Any,
    ) -> None:
        """Number the results and append the call."""
        plain = type(result) is Tensor
        if plain:
            results: tuple[tuple[tuple[Any, ...], Tensor], ...] = (((), result),)
            container = None
        else:
            if isinstance(result, nn.Parameter) and not written:
                return
            results = tuple(leaves(result))
            if not results:
                return
            container = None if isinstance(result, Tensor) else encode(result, _ignore)
        number = self._functions.get(function)
        if number is None:
            number = self._function(function)
        site = self.sites.at(frame)
        mode = int(_grad_enabled())
        autocast = None
        if _inference_enabled():
            mode = mode | MODE_INFERENCE
        if _any_autocast_enabled():
            mode = mode | MODE_AUTOCAST
            autocast = self._autocast()
        writers = self._last_writers(inputs) if self._writers else None
        first, first_storage = self.values, self.storages
        plan = self.plan
        outputs: list[tuple[Any, ...]] = []
        many = len(results) > 1
        for slot, (path, tensor) in enumerate(results):
            same_as = None
            for position, other in enumerate(tensors):
                if other is tensor:
                    same_as = position
                    break
            view_of = None
            if same_as is None:
                try:
                    address = None if not plain and tensor.is_nested else _storage_address(tensor)
                except RuntimeError:
                    address = None
                if address is None:
                    storage = None
                else:  # a new address is the usual case, and is no other value's
                    of_parameter = inputs and min(inputs) < 0 and (len(inputs) == 1 or _is_view(tensor))
                    if of_parameter or address in self._storages:
                        storage, view_of = self._storage_at(address, tensor, inputs, first_storage)
                    else:
                        storage = self._storages[address] = self.storages
                        self.storages = storage + 1
            else:
                view_of = inputs[same_as]
                storage = self._storage_number(view_of)
                if written and function.func_name in MOVES_STORAGE:
                    storage, _ = self._storage_at(_storage_address(tensor), tensor, inputs, first_storage)
            value = self.values
            self.values = value + 1
            self._value_storage.append(storage)
            if type(tensor) is not Parameter:
                try:
                    self._numbered.append(ref(tensor))
                    tensor._torchlens_value = (self.number, value)  # type: ignore[attr-defined]  # tensors take any
                except AttributeError:  # a subclass without a dictionary
                    pass
            if storage is not None and function.func_name in SHARES_OUTSIDE:
                self._expose(storage)
            if plan.simple:
                keep = plan.everything
            else:
                place = slot if many else None
                keep = plan.answers.get((function, place))
                if keep is None:
                    keep = plan.verdict(self, function, place, value, tensor, (container, path), wrote=bool(written))
                elif keep:
                    plan.kept.add(value)
            payload = None
            if keep is not NEVER:  # memory of the model's own may be written when the capture is over
                payload = self._payload(value, tensor, storage, keep, private=storage in self._lasting)
            outputs.append(self._describe(tensor, storage, view_of, same_as, path, payload))
        pending = self._pending
        pending.append(
            (
                OP,
                start,
                number,
                site,
                self.call,
                0,
                duration,
                mode,
                template,
                named,
                tuple(inputs),
                writers,
                tuple(written) if written else None,
                first,
                tuple(outputs),
                container,
                autocast,
                rng,
            )
        )
        left_at = None if plan.stopping is None else self.writer.next_at() - 1
        if len(pending) >= self._chunk:
            self._full()
        if written:
            self._was_written(inputs, tensors, written, first)
        if self._follows:
            self._followed(results, first, left_at)

    def _followed(self, results: tuple[tuple[tuple[Any, ...], Tensor], ...], first: int, left_at: int | None) -> None:
        """What is done when a call has been recorded: keep what waited for it, tell what was made of it, and stop."""
        plan = self.plan
        if plan.follows_calls:
            self._follow(plan.due())
        if self._made:
            self.tell_made()
        if left_at is not None:
            made = [(first + position, tensor) for position, (_, tensor) in enumerate(results)]
            raise self._left_with(Halt(left_at, plan.stop, made))

    def tell_made(self) -> None:
        """Tell what was made of values that events tell of by now."""
        while self._made:
            self._append(self._made.pop(0).row(monotonic_ns()))

    def _autocast(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (device, DTYPE_WORD[torch.get_autocast_dtype(device)])
            for device in self._autocast_devices
            if torch.is_autocast_enabled(device)
        )

    def _was_written(self, inputs: list[int], tensors: list[Tensor], written: list[int], first: int) -> None:
        """From now on every name for the written memory reads from the call that wrote it."""
        for position in written:
            tensor = tensors[position]
            storage = self._storage_number(inputs[position])
            if storage is not None:
                self._writers[storage] = first
            known = self._buffer_by_id.get(id(tensor))
            if known is None and storage is not None and storage in self._buffer_storages:
                tensor = self._buffer_storages[storage]  # written through a view of it
                known = self._buffer_by_id.get(id(tensor))
            if known is not None and known[1] is tensor:
                made = self.value_of(tensor)
                how: How = "inplace" if made is not None and made >= first else "fused"
                self._wrote_buffer(tensor, known[0], how, first)

    def _wrote_buffer(self, buffer: Tensor, number: int, how: How, source: int | None) -> None:
        version = self._buffer_versions.get(number, 0) + 1
        self._buffer_versions[number] = version
        before = self.value_of(buffer)
        storage = self._resident_storage(buffer) if before is None else self._storage_number(before)
        clear_number(buffer)
        value = self._reside(buffer, storage)
        if storage is not None:
            self._writers[storage] = value
        func_name = "none" if how == "fused" else "identity"
        wanted = self.plan.source("buffer", self, value, buffer, func_name, buffer=number)
        payload = self._payload(value, buffer, storage, wanted, private=True)
        description = self._describe(buffer, storage, before, None, (), payload)
        self.note(
            BufferWritten(
                value=Value(value),
                buffer=number,
                version=version,
                how=how,
                source=None if source is None else Value(source),
                changed=None,
                description=description,
            )
        )
        self.tell_made()
        self._leave_if_asked(value, buffer)

    # -- calls of other threads ------------------------------------------------------------------

    def _called_elsewhere(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of another thread, which is not recorded, and remember that it was made and what it gave."""
        heard = self._elsewhere.setdefault(_get_ident(), Elsewhere(threading.current_thread().name))
        heard.depth += 1
        try:
            result = function.original(*args, **kwargs)
        except BaseException as error:
            if heard.failed is None or heard.failed.error is not error:  # else an inner call of it has told
                heard.failed = Failed(error, function, args, kwargs, monotonic_ns(), _getframe(1), self.call)
            raise
        finally:
            heard.depth -= 1
        if heard.depth:
            return result
        with compat.NoTorchFunction():
            heard.count(function.qualname)
            inputs: dict[int, None] = {}
            for _, tensor in leaves((args, kwargs)):
                value, stray = self.value_of(tensor), self._strays.get(id(tensor))
                if value is not None:
                    inputs[value] = None
                elif stray is not None and stray.tensor() is tensor:
                    inputs.update(dict.fromkeys(stray.inputs))
            for _, tensor in leaves(result):
                if self.value_of(tensor) is None:
                    self._strays[id(tensor)] = Stray(ref(tensor), function.func_name, heard.name, tuple(inputs))
        return result

    def tell_failed_elsewhere(self, error: BaseException) -> None:
        """Tell of the call of another thread that raised what the forward ends with, or what that was made of."""
        failed = {id(heard.failed.error): heard.failed for heard in self._elsewhere.values() if heard.failed}
        for one in causes(error):
            if id(one) in failed:
                # An operand that is met only now may be where to leave the forward, which has ended.
                with compat.NoTorchFunction(), contextlib.suppress(Halt):
                    found = failed[id(one)]
                    self._tell_raised(
                        found.function, found.args, found.kwargs, one, found.start, found.frame, found.call
                    )
                return

    def tell_of_others(self) -> None:
        """Tell of the calls of other threads, now that the forward has ended."""
        for heard in list(self._elsewhere.values()):
            named = tuple(itertools.islice(heard.functions.items(), MAX_FUNCTIONS_TOLD))
            self.note(ThreadCalled(thread=heard.name, num_calls=heard.num_calls, functions=named))

    def watching(self) -> AbstractContextManager[Any]:
        """The context in which the forward runs."""
        return contextlib.nullcontext()

    # -- odd calls -------------------------------------------------------------------------------

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any:
        if _get_ident() != self.thread:
            return self._called_elsewhere(function, args, kwargs)
        if self.paused:
            return function.original(*args, **kwargs)
        inputs: list[int] = []
        tensors: list[Tensor] = []
        if watched:
            start = monotonic_ns()
            result = function.original(*args, **kwargs)
            if not self._all_labelled(result):  # none of the calls inside made this
                duration = monotonic_ns() - start
                with compat.NoTorchFunction():
                    template, named = self.take(args, kwargs, inputs, tensors)
                    self._executed(
                        function, template, named, inputs, tensors, result, start, duration, None, None, _getframe(2)
                    )
            return result
        with compat.NoTorchFunction():
            template, named = self.take(args, kwargs, inputs, tensors)
            if function.writes is not None:
                for _, tensor in leaves(function.writes(args, kwargs)):
                    self.protect(tensor)
            versions = [compat.version_of(tensor) for tensor in tensors]
            started: At | None = None
            if self._flight:
                started = self._announce(function, template, named, inputs, tensors, _getframe(2))
        rng = None
        if function.draws is not None and function.draws(args, kwargs):
            rng = self._keep_random_state(args, kwargs)
        self.paused += 1
        start = monotonic_ns()
        try:
            result = function.original(*args, **kwargs)
        except BaseException as error:
            self.paused -= 1
            self._call_raised(function, args, kwargs, error, start, started)
            raise
        self.paused -= 1
        duration = monotonic_ns() - start
        before = self.values
        with compat.NoTorchFunction():
            written = [
                position
                for position, (tensor, version) in enumerate(zip(tensors, versions, strict=True))
                if compat.version_of(tensor) != version
            ]
            shown = result if not written or any(True for _ in leaves(result)) else _written_of(tensors, written)
            self._executed(
                function, template, named, inputs, tensors, shown, start, duration, rng, written, _getframe(2)
            )
        if self.values == before:
            self._left(started)
        return result

    def transparent(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or _get_ident() != self.thread:
            return original(*args, **kwargs)
        self.paused += 1
        try:
            result = original(*args, **kwargs)
        finally:
            self.paused -= 1
        given = [tensor for _, tensor in leaves(args)]
        with compat.NoTorchFunction():
            for source, made in zip(given, [tensor for _, tensor in leaves(result)], strict=False):
                self._is_also(made, self.known_or_met(source))
        return result

    def _is_also(self, made: Tensor, value: int) -> None:
        """Another object for a value; a parameter hangs on it, and stays one."""
        if type(made) is Parameter:
            if value >= 0 and id(made) not in self._residents:
                self._parameter_sources[id(made)] = (made, value)
        elif self.value_of(made) is None:
            with contextlib.suppress(AttributeError):  # a subclass without a dictionary
                made._torchlens_value = (self.number, value)  # type: ignore[attr-defined]  # tensors take any
                self._numbered.append(ref(made))

    def unwatched(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _get_ident() != self.thread:
            return original(*args, **kwargs)
        self.paused += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.paused -= 1

    def handling(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _get_ident() != self.thread:
            return original(*args, **kwargs)
        self.paused += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.paused -= 1

    def asked_truth(self, tensor: Any, result: bool) -> None:
        if self.paused or _get_ident() != self.thread:
            return
        value = self.value_of(tensor)
        if value is None:
            value = self._meet(tensor)
        site = self.sites.at(_getframe(2))
        self._append((BRANCH, monotonic_ns(), value, result, site, self.call))

    def escaping(self, tensor: Any, name: str) -> None:
        """Whoever gets the memory may write it at any time: from now on what shares it is copied when it is kept."""
        if not self.paused and _get_ident() == self.thread and isinstance(tensor, Tensor):
            with compat.NoTorchFunction():
                self.protect(tensor)
                value = self.value_of(tensor)
                storage = None if value is None else self._storage_number(value)
                if storage is not None:
                    self._expose(storage)

    def taking(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function.original(*args, **kwargs)

    def _expose(self, storage: int) -> None:
        self._lasting.add(storage)
        self.keeper.exposed.add(storage)

    def data_replaced(self, tensor: Any, source: Any) -> None:
        """``x.data = y`` makes x another name for y's memory."""
        if self.paused or _get_ident() != self.thread:
            return
        value = self.known_or_met(source)
        known = self._buffer_by_id.get(id(tensor))
        if known is not None and known[1] is tensor:
            self._wrote_buffer(tensor, known[0], "reassign", value if value >= 0 else None)
        elif self._residents.get(id(tensor), 0) < 0:  # a parameter: its next reader hangs on what made the data
            storage = self._storage_number(value)
            self._param_storages[-1 - self._residents[id(tensor)]] = storage
            if storage is not None and value >= 0:
                self._writers.setdefault(storage, value)
        else:
            tensor._torchlens_value = (self.number, value)

    # -- modules ---------------------------------------------------------------------------------

    def module_called(
        self, number: int, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A module's forward was called; its frame is where call sites inside end."""
        if self.paused or _get_ident() != self.thread:
            return original(*args, **kwargs)
        outer = self.call
        inputs: list[int] = []
        if len(args) == 1 and not kwargs and type(args[0]) is Tensor:
            template, named = ONE_TENSOR, ()
            tag = getattr(args[0], "_torchlens_value", None)
            inputs.append(tag[1] if tag is not None and tag[0] == self.number else self._meet(args[0]))
        else:
            template, named = self.take(args, kwargs, inputs, [])
        site = self.sites.at(_getframe(2)) if self.stack else None
        writers = self._last_writers(inputs) if self._writers else None
        call = self.calls
        self.calls = call + 1
        pending = self._pending
        pending.append((ENTERED, monotonic_ns(), number, site, template, named, tuple(inputs), writers))
        if len(pending) >= self._chunk:
            self.writer.flush()
        self.call = call
        self.stack.append((number, call))
        if self.plan.tracks_calls:
            self.plan.entered(number, call)
        try:
            result = original(*args, **kwargs)
            if self.left is not None:  # caught by the model, which ran on
                raise self.left
        except BaseException as error:
            self.stack.pop()
            self.call = outer
            if not isinstance(error, Halt):
                kind = TorchLensError if isinstance(error, GivenUp) else type(error)
                self.note(ModuleRaised(call=call, exception=path_of(kind)))
            raise
        self.stack.pop()
        self.call = outer
        outputs: tuple[int, ...]
        if type(result) is Tensor:
            known = None if self._writers else self.value_of(result)
            outputs = (self.returned(result) if known is None else known,)
            pending.append((LEFT, monotonic_ns(), call, HOLE, outputs))
        else:
            several: list[int] = []
            shown = encode(result, lambda tensor: several.append(self.returned(tensor)))
            outputs = tuple(several)
            pending.append((LEFT, monotonic_ns(), call, shown, outputs))
        if len(pending) >= self._chunk:
            self._full()
        if self.plan.tracks_calls:
            self._module_exit(number, call, result, inputs, writers, outputs)
        return result

    def pre_hooks_started(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[At, list[Tensor]]:
        """A module with forward pre-hooks was called with this; the number of that event, and the tensors in it."""
        inputs: list[int] = []
        tensors: list[Tensor] = []
        with compat.NoTorchFunction():
            template, named = self.take(args, kwargs, inputs, tensors)
        writers = self._last_writers(inputs) if self._writers else None
        event = PreHooksStarted(module=number, args=template, kwargs=named, inputs=tuple(inputs), writers=writers)
        return self.writer.append(event, monotonic_ns()), tensors

    def _module_exit(
        self,
        number: int,
        call: int,
        result: Any,
        inputs: list[int],
        writers: tuple[int | None, ...] | None,
        outputs: tuple[int, ...],
    ) -> None:
        """Keeps what a module returned, or leaves the forward, where the request names the module."""
        plan = self.plan
        if plan.passes_over(call):
            return
        if number == 0:  # its results are outputs of the model, or, of a root that calls itself, no new rows
            inputs, writers = [], None
        tensors: list[Tensor] = []
        encode(result, tensors.append)
        results = list(zip(outputs, tensors, strict=True))
        if plan.simple:
            plan.stop_with(inputs, outputs)
        else:
            given = plan.given(inputs, writers)
            self._follow_returned(plan.left(self, call, given, results if call else ()))
        if self._chunk == 0:
            self._full()
        if plan.stopping is not None:
            shown = [(value, one) for value, one in results if value >= 0]
            raise self._left_with(Halt(self.writer.next_at() - 1, plan.stop, shown))

    def _follow(self, told: Iterator[tuple[int, Verdict]]) -> None:
        """Keep those held values that turned out to be wanted, and let go of those that did not."""
        for value, wanted in told:
            if value in self.held and value not in self.plan.kept_at_exit:
                tensor, _ = self.keeper.pins[value]
                self._keep_late(value, tensor) if wanted else self._let_go(value)

    def _follow_returned(self, told: Iterator[tuple[int, Tensor | None, Verdict]]) -> None:
        """The same of values that were just returned, which may not be held: those that may be wanted later are."""
        plan = self.plan
        for value, tensor, wanted in told:
            if value in plan.kept or value in plan.kept_at_exit:
                continue
            if wanted is False:
                self._let_go(value)
            elif tensor is not None and wanted is True:
                self._keep_late(value, tensor)
            elif tensor is not None and value not in self.held:
                storage = self._storage_number(value)
                self._payload(value, tensor, storage, None, private=storage in self._lasting)

    def _keep_late(self, value: int, tensor: Tensor) -> None:
        """Keep a value after its event; what is kept is told when the forward has ended."""
        self.plan.kept_at_exit[value] = self._payload_of_held(value, tensor)
        self.held.discard(value)
        self.tell_made()

    def _let_go(self, value: int) -> None:
        if value in self.held:
            self.held.discard(value)
            self.keeper.release(value)

    def ended(self, results: Sequence[tuple[int, Tensor]]) -> None:
        """The forward has ended with these values."""
        if not self.plan.simple:
            self._follow_returned(self.plan.ended(results))
        shown = [(value, tensor, self._storage_number(value)) for value, tensor in results if value >= 0]
        with self.working():
            found = set(overwritten(self.keeper, shown))
            if self._elsewhere:
                found.update(counted_writes(self.keeper))
        self._tell_overwritten(found)

    def _tell_overwritten(self, values: Iterable[int]) -> None:
        for value in sorted(values):
            self.note(ValueOverwritten(value=Value(value)))

    def buffer_assigned(self, tensor: Tensor, number: int) -> None:
        """``module.name = tensor`` replaced a registered buffer."""
        known = self._buffer_by_id.get(id(tensor))
        if known is not None and known[1] is tensor:
            return
        source = self.known_or_met(tensor)
        self.adopt_buffer(tensor, number)
        self._wrote_buffer(tensor, number, "reassign", source if source >= 0 else None)

    # -- the end ---------------------------------------------------------------------------------

    def known_or_met(self, tensor: Tensor) -> int:
        value = self.value_of(tensor)
        return self._meet(tensor) if value is None else value

    def returned(self, tensor: Tensor) -> int:
        """Number of a returned tensor; a new one where its memory was written through another name."""
        value = self.known_or_met(tensor)
        storage = self._storage_number(value) if value >= 0 else None
        writer = None if storage is None else self._writers.get(storage)
        if writer is None or writer <= value:
            return value
        reread = self._label(tensor, storage)
        if not self.plan.simple:
            self.plan.reread(reread, value, writer)
        payload = self._payload(reread, tensor, storage, self.plan.everything)
        description = self._describe(tensor, storage, value, None, (), payload)
        self.note(ValueReread(value=Value(reread), of=Value(value), writer=Value(writer), description=description))
        self.tell_made()
        return reread

    def settle(self, wanted: Iterable[int]) -> None:
        """Keep those held values that turned out to be wanted, and let go of the others."""
        chosen = set(wanted)
        for value in sorted(self.held - self.plan.kept_at_exit.keys()):
            if value not in chosen:
                self.keeper.release(value)
                continue
            payload = self.keeper.keep_held(value, self._value_storage[value])
            if payload is not None:
                self.note(PayloadKept(value=Value(value), payload=payload))
            self.tell_made()

    @property
    def functions(self) -> dict[Function, int]:
        """Number of each function that was called, in order."""
        return self._functions

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that were met, by number."""
        return self._params

    @property
    def outside(self) -> Outside | None:
        """What the forward took from outside; None where that was not asked for."""
        return None

    @property
    def state_digests(self) -> tuple[Sequence[tuple[int, str | None]], Sequence[tuple[int, str | None]]]:
        """Digests of parameters and of buffers as the forward began with them, by number, as far as they were taken."""
        return (), ()

    def clear_numbers(self) -> None:
        """Take the numbers off tensors that outlive the capture, and undo the cycle that keeps this alive."""
        self.sites.close()
        for held in self._numbered:
            tensor = held()
            if tensor is not None:
                tensor.__dict__.pop("_torchlens_value", None)
        self._numbered.clear()
        self._buffer_by_id.clear()
        self._residents.clear()
        self._held_residents.clear()
        self._parameter_sources.clear()
        self._params.clear()
        self._strays.clear()
        self._elsewhere.clear()
        self._node_values.clear()


class Elsewhere:
    """What one thread other than the forward's has called."""

    __slots__ = ("depth", "failed", "functions", "name", "num_calls")

    def __init__(self, name: str) -> None:
        self.name = name
        self.depth = 0  # of calls inside each other; the outermost one counts
        self.num_calls = 0
        self.failed: Failed | None = None  # the last call that raised
        self.functions: dict[str, int] = {}

    def count(self, qualname: str) -> None:
        self.num_calls += 1
        self.functions[qualname] = self.functions.get(qualname, 0) + 1


class Failed(NamedTuple):
    """A call of another thread that raised."""

    error: BaseException
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    start: int
    frame: Any  # where it was made
    call: int  # the module call that ran in the forward's thread


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, what it was raised from or while handling, and so on, each once."""
    met: dict[int, BaseException] = {}
    while error is not None and id(error) not in met:
        met[id(error)] = error
        yield error
        error = error.__cause__ or error.__context__


class Stray(NamedTuple):
    """A tensor that another thread's call returned."""

    tensor: ref[Tensor]
    func_name: str
    thread: str
    inputs: tuple[int, ...]  # the values of ours that it was made from


def _written_of(tensors: list[Tensor], written: list[int]) -> Any:
    """What a call that returns nothing is shown to have made: the tensors that it wrote."""
    return tensors[written[0]] if len(written) == 1 else [tensors[position] for position in written]


def _has_changed(tensor: Tensor, version: int | None) -> bool:
    return version is None or compat.version_of(tensor) != version


def _ignore(tensor: Tensor) -> None:
    return None


def clear_number(tensor: Tensor) -> None:
    if "_torchlens_value" in getattr(tensor, "__dict__", ()):
        del tensor._torchlens_value  # type: ignore[attr-defined]  # tensors take any


def parameter_row(address: str, tensor: Tensor, aliases: tuple[str, ...]) -> tuple[Any, ...]:
    """A parameter or buffer as a row of ``ModelDescribed``."""
    shape: tuple[int, ...] = ()
    size = 0
    kind = type(tensor)
    if kind is Parameter or kind is Tensor or not compat.is_uninitialized(tensor):
        is_plain = tensor.layout is torch.strided and not tensor.is_nested
        shape, size = (tensor.shape, tensor.nbytes) if is_plain else (shape_of(tensor), compat.held_bytes(tensor))
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    return (address, shape, DTYPE_WORD[tensor.dtype], device, tensor.requires_grad, size, aliases)


OWN_CODE.update(
    method.__code__
    for method in (
        Recorder._called_elsewhere,
        Recorder.called,
        Recorder._called_with_care,
        Recorder.applied,
        Recorder.transparent,
        Recorder.module_called,
        Recorder.handling,
    )
)
CALLING_CODE.update((Recorder.called.__code__, Recorder._called_with_care.__code__))
