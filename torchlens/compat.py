"""Every private or version-bound name of torch this project uses, each as a named capability.

Nothing else in the project may name a private attribute of torch. Functions of torch that the recorder
itself needs are bound here at import, before any wrapper is installed, so that recording never
records itself.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Final, Literal, TypeAlias
from weakref import ref

import torch
import torch.utils.checkpoint
import torch.utils.dlpack
from torch import Tensor, nn

MODULE_CALL_FILE: Final = nn.Module.__call__.__code__.co_filename
"""Frames of this file stand between a module's caller and its forward; they are no call sites."""

# Bound before any wrapping; see the module docstring.
clone: Final = Tensor.clone
expand: Final = Tensor.expand
narrow: Final = Tensor.narrow
as_strided: Final = Tensor.as_strided
empty: Final = torch.empty
from_buffer: Final = torch.frombuffer
detach: Final = Tensor.detach
contiguous: Final = Tensor.contiguous
to: Final = Tensor.to
data_ptr: Final = Tensor.data_ptr
is_neg: Final = Tensor.is_neg
is_conj: Final = Tensor.is_conj
neg_view: Final[Callable[[Tensor], Tensor]] = torch._neg_view
resolve_conj: Final = Tensor.resolve_conj
resolve_neg: Final = Tensor.resolve_neg
untyped_storage: Final = Tensor.untyped_storage
generator_state: Final = torch.Generator.get_state
truth: Final = Tensor.__bool__
to_dlpack: Final[Callable[[Tensor], Any]] = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]  # documented
_in_python: Final[dict[str, Any]] = {name: held for name, held in vars(Tensor).items() if name != "__hash__"}

grad_enabled: Final = torch.is_grad_enabled
inference_enabled: Final = torch.is_inference_mode_enabled
any_autocast_enabled: Final[Callable[[], bool]] = getattr(
    torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled
)
sequence_number: Final[Callable[[], int]] = torch._C._autograd._get_sequence_nr
"""The number the next autograd node made on this thread will get."""

VARIABLE_FUNCTIONS: Final = torch._C._VariableFunctions
VARIABLE_FUNCTION_MODULE: Final = torch._VF
"""``torch._VF`` is an instance and takes attributes; recurrent layers call through it."""

CALLED_THROUGH_MODULE: Final = tuple(
    """
    _pack_padded_sequence _pad_packed_sequence alpha_dropout alpha_dropout_ atleast_1d atleast_2d atleast_3d
    broadcast_tensors cartesian_prod cdist chain_matmul dropout dropout_ einsum feature_alpha_dropout
    feature_alpha_dropout_ feature_dropout feature_dropout_ frobenius_norm gru gru_cell lstm lstm_cell meshgrid norm
    nuclear_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell split split_with_sizes stft istft tensordot threshold
    threshold_ unique_consecutive unique_dim block_diag unravel_index rrelu rrelu_ celu_ multinomial
    """.split()
)
"""The functions that torch's own Python code reaches through ``torch._VF``."""

is_finite: Final = torch.isfinite
is_nan: Final = torch.isnan
count_nonzero: Final = torch.count_nonzero
bins_of: Final = torch.histc
weighted_bins_of: Final = torch.histogram
total: Final = torch.sum
number_of: Final = Tensor.item
numbers_of: Final = Tensor.tolist
added: Final = torch.add
add_to: Final = Tensor.add_
subtracted: Final = torch.sub
times: Final = torch.mul
square_root: Final = torch.sqrt
smallest_and_largest: Final = torch.aminmax
chosen: Final = torch.masked_select
truths: Final = Tensor.bool
ones: Final = torch.ones
zeros: Final = torch.zeros
running_sum: Final = torch.cumsum
viewed: Final = Tensor.view
real_parts: Final = torch.view_as_real
dequantized: Final = Tensor.dequantize

TENSOR_BASE: Final = torch._C.TensorBase


def plain_method(name: str) -> Any:
    """A method or property of tensors as torch has it, past any wrapper."""
    return _in_python[name] if name in _in_python else getattr(TENSOR_BASE, name)


OP_PACKET: Final = torch._ops.OpOverloadPacket
OP_OVERLOAD: Final = torch._ops.OpOverload

run_overload: Final = OP_OVERLOAD.__call__
"""Calls an operator with one overload past any wrapper."""

DispatchMode: Final = torch.utils._python_dispatch.TorchDispatchMode
"""A context whose ``__torch_dispatch__`` is asked for every operator that the dispatcher runs on this thread."""


class QuickMode(DispatchMode):  # type: ignore[misc, valid-type]  # a class that is bound above
    """A dispatch mode at whose first operator torch does not import its compiler, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def dispatch_modes() -> Iterator[Any]:
    """The dispatch modes of the user's that are on in this thread, outermost first."""
    for position in range(torch._C._len_torch_dispatch_stack()):
        yield torch._C._get_dispatch_stack_at(position)


pop_mode: Final[Any] = getattr(torch.utils._python_dispatch, "_pop_mode", None)
push_mode: Final[Any] = getattr(torch.utils._python_dispatch, "_push_mode", None)


num_modes: Final[Callable[[], int]] = torch._C._len_torch_dispatch_stack
put_mode: Final[Callable[[Any], None]] = torch._C._push_on_torch_dispatch_stack
"""Puts a dispatch mode on, without what its ``__enter__`` notes for torch's compiler."""

_take_mode: Final[Callable[[Any], Any]] = torch._C._pop_torch_dispatch_stack


def take_mode(mode: Any) -> None:
    """Take a dispatch mode off, if it is on, from below those that were put on above it."""
    while any(on is mode for on in dispatch_modes()):
        above: list[Any] = []
        while (taken := _take_mode(None)) is not mode:
            above.append(taken)
        for each in reversed(above):
            put_mode(each)


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Take every dispatch mode off."""
    taken: list[Any] = []
    try:
        while num_modes():
            taken.append(_take_mode(None))
        yield
    finally:
        while taken:
            put_mode(taken.pop())


NoDispatch: Final[Callable[[], contextlib.AbstractContextManager[None]]] = torch._C._DisableTorchDispatch
"""Context in which neither a dispatch mode nor a tensor subclass is asked what an operator does."""


def past_modes(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    """No dispatch mode is on; a subclass that says itself what operators do is still asked."""
    return NoDispatch() if type(tensor) is Tensor else without_modes()


@contextlib.contextmanager
def without_mode(mode: Any) -> Iterator[None]:
    """Take a dispatch mode off, where it is the innermost one and this version of torch lets it be."""
    if pop_mode is None or push_mode is None or not any(on is mode for on in list(dispatch_modes())[-1:]):
        yield
        return
    pop_mode()
    try:
        yield
    finally:
        push_mode(mode)


HAS_RUNNING_NODE: Final = hasattr(torch._C, "_current_autograd_node")
"""Whether this version of torch tells which autograd node runs."""

running_node: Final[Callable[[], Any]] = getattr(torch._C, "_current_autograd_node", lambda: None)
"""The autograd node that the engine is executing on this thread; None outside it, and where torch does not tell."""

ENGINE_CALL: Final = "_engine_run_backward"
"""The function through which torch's Python code runs the autograd engine."""

ENGINE_CALLERS: Final[tuple[Any, ...]] = tuple(
    module for module in (torch.autograd, torch.autograd.graph) if hasattr(module, ENGINE_CALL)
)
"""The modules that call it by a name of theirs."""

running_task: Final[Callable[[], int]] = torch._C._current_graph_task_id
"""Number of the engine's graph task on this thread, one for each run in the process; -1 outside the engine."""

call_when_drained: Final[Callable[[Callable[[], None]], None] | None] = getattr(
    torch.autograd.Variable._execution_engine, "queue_callback", None
)
"""Has the running engine call a function when it has drained; it does not where the run fails."""

_is_batched: Final[Callable[[Tensor], bool]] = torch._C._functorch.is_legacy_batchedtensor
_is_wrapped: Final[Callable[[Tensor], bool]] = torch._C._functorch.is_functorch_wrapped_tensor


def is_transient(tensor: Tensor) -> bool:
    """Whether the tensor lives only as long as a transform that runs: ``torch.func``, or batched gradients."""
    return _is_batched(tensor) or _is_wrapped(tensor)


def given_node(gradient: Tensor) -> Any:
    """The autograd node of a gradient that the engine gave; of batched ones, that of what they are a batch in."""
    if not _is_batched(gradient):
        return node_of(gradient)
    level, first = torch._C._vmapmode_increment_nesting() - 1, sequence_number()
    torch._C._vmapmode_decrement_nesting()
    with torch.enable_grad():
        node = node_of(torch._remove_batch_dim(gradient, level, 1, 0))
    if node is not None and sequence_of(node) >= first:  # the batch lay along another axis, which was moved just now
        node = node.next_functions[0][0]
    return node


def has_hooks_on_sum(leaf: Tensor) -> bool:
    """Whether a leaf has hooks that run right after something was added to its gradient."""
    return bool(getattr(leaf, "_post_accumulate_grad_hooks", None))


def sequence_of(node: Any) -> int:
    """Number of an autograd node on the thread that made it: a node is made after those that its inputs come from."""
    return int(node._sequence_nr())


def accelerator_memory() -> tuple[int, int] | None:
    """Bytes that are allocated on the CUDA device in use, and the most that ever were; None while there is none."""
    if not torch.cuda.is_initialized():
        return None
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


GATHERER: Final[Any] = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]  # torch's stub lacks it
"""The class of the autograd nodes that gather the gradient of a leaf."""


def leaf_of(node: Any) -> Tensor | None:
    """The leaf whose gradient an autograd node gathers; None for any other node."""
    return node.variable if type(node) is GATHERER else None


def likes_of(node: Any) -> list[tuple[tuple[int, ...], str, str]]:
    """Shape, dtype and device of each output of an autograd node."""
    return [
        (tuple(told.shape), str(told.dtype).removeprefix("torch."), str(told.device)) for told in node._input_metadata
    ]


def is_python_node(kind: type) -> bool:
    """Whether a class of autograd nodes is that of an ``autograd.Function``."""
    return issubclass(kind, torch._C._FunctionBase)


def given_seeds(caller: FrameType) -> tuple[Any, ...] | None:
    """What the caller of ``torch.autograd.backward`` or ``grad`` gave as gradients of the roots, read from its frame.

    None for an entry where torch makes ones; None for all where the frame is another function's.
    """
    name = _SEEDS.get(caller.f_code)
    given = None if name is None else caller.f_locals.get(name)
    if name is None or given is None:
        return None if name is None else ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


_SEEDS: Final = {torch.autograd.backward.__code__: "grad_tensors", torch.autograd.grad.__code__: "grad_outputs"}

_APPLY: Final = vars(torch.autograd.Function)["apply"]  # a class method: of Python's, since torch 2.14 of C's


def function_apply(function: type | None, /, *args: Any, **kwargs: Any) -> Any:
    """``autograd.Function.apply`` of a class, past any wrapper."""
    return _APPLY.__get__(None, function)(*args, **kwargs)


SAVED_TENSORS_HOOKS: Final[Any] = torch.autograd.graph.saved_tensors_hooks
"""The class of contexts that have hooks take what is saved for the backward, and give it back."""

CHECKPOINT_HOOK: Final[type | None] = getattr(torch.utils.checkpoint, "_checkpoint_hook", None)
"""The class of the context in which a non-reentrant checkpoint runs; None where torch has none."""

CHECKPOINT_INTERNAL_HOOK: Final[type | None] = getattr(torch.utils.checkpoint, "_checkpoint_internal_hook", None)
"""The class between these two, which keeps some of its state in attributes of the hook; None where torch has none."""

CHECKPOINT_HOOK_MARKS: Final = ("_user_hooks", "_checkpoint_internal")
"""Those attributes."""


def is_entered_by(kind: type, base: type) -> bool:
    """Whether a context of this class is known to be entered and left through the methods of ``base``."""
    between = [cls for cls in kind.__mro__ if issubclass(cls, base) and cls not in (base, CHECKPOINT_INTERNAL_HOOK)]
    return issubclass(kind, base) and not any({"__enter__", "__exit__"} & vars(cls).keys() for cls in between)


MAX_TOUCHED_NODES: Final = 30_000
"""Freeing a chain of more than about 40,000 autograd nodes whose Python wrappers exist overflows the C
stack (torch 2.13, 8 MiB); beyond this many, nodes are not looked at."""


NoTorchFunction: Final[Callable[[], Any]] = getattr(
    torch._C, "DisableTorchFunction", torch._C.DisableTorchFunctionSubclass
)
"""Context in which neither a tensor subclass's nor a mode's ``__torch_function__`` is asked."""


def function_modes() -> Iterator[Any]:
    """The function modes that are on in this thread, outermost first; none where torch does not tell."""
    for position in range(_num_function_modes()):
        yield torch._C._get_function_stack_at(position)


_num_function_modes: Final[Callable[[], int]] = getattr(torch._C, "_len_torch_function_stack", lambda: 0)


WATCHING_MODES: Final = ("torch.utils._device", "torch.utils.checkpoint", "torch.utils.flop_counter")
"""Modules whose modes change no result of a call, but for the device that it is made on, which is recorded."""

function_mode_on: Final[Callable[[], bool]] = getattr(torch._C, "_is_torch_function_mode_enabled", lambda: False)
"""Whether a function mode of the user's is on."""


def node_of(tensor: Tensor) -> Any:
    """The tensor's autograd node; None without one, and where torch refuses to say (a view made in no_grad mode)."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def loses_node(tensor: Tensor) -> bool:
    """Whether a tensor may lose its autograd node by being asked for it, or whether it is a leaf.

    That is a view, in inference mode: where its memory was written, torch works out the node anew as it is asked, comes
    to none in this mode, and leaves it at that.
    """
    return inference_enabled() and is_view(tensor)


def is_leaf(tensor: Tensor) -> bool:
    """Whether the tensor stands at the beginning of its graph; not where torch refuses to say."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


TELLS_SAVED: Final = hasattr(getattr(torch._C._autograd, "SavedTensor", None), "data")
"""Whether a saved tensor can be looked at without being unpacked."""

SECRETIVE: Final = frozenset(("CopySlices", "CppFunction"))
"""Classes of nodes that hold tensors which cannot be looked at."""

_saved_names: dict[type, tuple[str, ...]] = {}


def saved_by(node: Any) -> list[Any] | None:
    """What a node holds for its backward: tensors, or what hooks made of them. None where it is secretive.

    The node of a Python ``Function`` is the ``ctx`` that its forward was given; what that put into attributes counts.
    Numbers that torch made tensors of do not, as for its own hooks.
    """
    kind = type(node)
    if kind.__name__ in SECRETIVE:
        return None
    names = _saved_names.get(kind)
    if names is None:
        names = _saved_names[kind] = tuple([name for name in dir(kind) if name.startswith("_raw_saved_")])
    held: list[Any] = []
    for name in names:
        try:
            found = getattr(node, name)
        except RuntimeError:  # the graph was freed by a backward within the forward
            continue
        for handle in found if isinstance(found, tuple) else (found,):
            kept = handle.data
            if not isinstance(kept, Tensor):
                held += checkpointed(getattr(handle, "unpack_hook", None))
            if not is_number(kept):
                held.append(kept)
    if getattr(kind, "_forward_cls", None) not in checkpoint_functions():  # these keep states of generators
        held += getattr(node, "__dict__", {}).values()
    return held


def checkpointed(hook: Any) -> list[Any]:
    """The arguments of a checkpoint whose hook this is, which it needs to run again; nothing for another hook."""
    hook = getattr(hook, "_torchlens_hook", hook)  # what bears it while a capture listens
    if getattr(hook, "__module__", None) != "torch.utils.checkpoint":
        return []
    held: list[Any] = []
    for cell in getattr(hook, "__closure__", None) or ():
        frame = cell.cell_contents
        held += [getattr(one, "data", one) for one in getattr(frame, "saved_args", ())]
        saver = getattr(frame, "input_saver", None)  # the same in older versions: a node
        held += (saver and saved_by(saver)) or ()
    return held


NUMBERS: Final = {
    torch.int64: torch.zeros((), dtype=torch.int8, device="cpu"),
    torch.float64: torch.zeros((), dtype=torch.float16, device="cpu"),
    torch.complex128: torch.zeros((), dtype=torch.complex64, device="cpu"),
}
"""By the dtype of a number that torch made a tensor of, one beside which that gives way, while a tensor would not."""


def is_number(kept: Any) -> bool:
    """Whether this is a tensor that torch made of a number, as of the 2 of ``x * 2``; of a bool it is not told."""
    if not isinstance(kept, Tensor) or kept.ndim or kept.device.type != "cpu" or kept.dtype not in NUMBERS:
        return False
    beside = NUMBERS[kept.dtype]
    return torch.result_type(kept, beside) == beside.dtype


def stored_elements(tensor: Tensor) -> list[Tensor]:
    """The elements that a tensor of any layout has in memory, as dense tensors cut from the graph.

    Raises:
        RuntimeError: Where torch does not tell them; ``TypeError`` where a subclass does not.
    """
    plain = detach(tensor)
    if plain.is_nested:
        return [part for inner in plain.unbind() for part in stored_elements(inner)]
    if plain.layout is torch.strided:
        if type(plain) is not Tensor and is_wrapper(plain):
            raise TypeError(f"a {type(plain).__name__} holds its elements in tensors of its own")
        return [plain]
    if plain.layout is torch.sparse_coo:
        return [plain._values()]  # also of one that is not coalesced
    if plain.layout in COMPRESSED:
        return [plain.values()]
    return [plain.to_dense()]


def indexes(tensor: Tensor) -> list[Tensor]:
    """The tensors that tell where the elements of a sparse tensor stand; none for one of another layout."""
    plain = detach(tensor)
    if plain.layout is torch.sparse_coo:
        return [plain._indices()]
    if plain.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [plain.crow_indices(), plain.col_indices()]
    if plain.layout in COMPRESSED:
        return [plain.ccol_indices(), plain.row_indices()]
    return []


def held_bytes(tensor: Tensor) -> int:
    """Bytes that a tensor of any layout has in memory, those of its indexes among them; 0 where torch does not tell."""
    try:
        return sum(part.nbytes for part in (*indexes(tensor), *stored_elements(tensor)))
    except (RuntimeError, TypeError):
        return 0


def held_parts(tensor: Tensor) -> list[Tensor]:
    """All that a tensor of any kind holds, as dense tensors: elements, where they stand, and what they mean.

    Raises:
        RuntimeError, TypeError: As ``stored_elements``.
    """
    plain = detach(tensor)
    return [plain.int_repr(), plain.dequantize()] if plain.is_quantized else [*indexes(plain), *stored_elements(plain)]


COMPRESSED: Final = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
"""Layouts that hold their elements beside compressed indexes."""


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor of a subclass has no memory of its own: it stands for tensors that it holds, or is fake."""
    try:
        return is_fake(tensor) or (data_ptr(tensor) == 0 and tensor.numel() > 0)
    except RuntimeError:
        return True


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is fake: it says that it is on a device, and its storage is on ``meta``.

    Nothing else tells; asked for its address, it warns.
    """
    with contextlib.suppress(RuntimeError):  # a subclass without a storage
        return type(tensor) is not Tensor and untyped_storage(tensor).device.type == "meta"
    return False


def is_view(tensor: Tensor) -> bool:
    return tensor._is_view()


def made_since(node: Any, first: int) -> bool:
    """Whether an autograd node was made on this thread at or after sequence number ``first``."""
    return bool(first <= node._sequence_nr() < ACCUMULATION)


ACCUMULATION: Final = (1 << 64) - 1
"""Sequence number of the nodes that gather a leaf's gradient; they are made when first asked for."""


def memory_address(tensor: Tensor) -> int | None:
    """Address of the tensor's memory, whatever object of torch owns it; None where it has none that is told."""
    try:
        return untyped_storage(tensor).data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


MAKE_SUBCLASS: Final = "_make_subclass"
"""The static method of tensors that ``make_subclass`` is."""

make_subclass: Final[Callable[..., Any]] = torch.Tensor._make_subclass
"""Gives a tensor's memory another class; a parameter is made by it."""


def version_of(tensor: Tensor) -> int | None:
    """How often the tensor's memory was written in place; None where torch keeps no count (inference mode)."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return None


def versions_of(tensors: Sequence[Tensor]) -> list[int | None]:
    """The same of several, in a tenth of the time, and no code of a subclass runs."""
    with NoTorchFunction():
        try:
            return [tensor._version for tensor in tensors]
        except RuntimeError:  # one of them keeps no count
            return list(map(version_of, tensors))


def memories_of(tensors: Sequence[Tensor]) -> list[ref[Any] | None]:
    """Weak references to the storages of tensors; None for one that has none, such as a sparse one.

    One object for as long as the storage lives: an address would be used again.
    """
    with NoTorchFunction():
        try:
            return [ref(untyped_storage(tensor)) for tensor in tensors]
        except RuntimeError:  # one of them has none
            return [None if storage_or_none(tensor) is None else ref(untyped_storage(tensor)) for tensor in tensors]


def num_stored_bytes(tensor: Tensor) -> int:
    """Bytes that the tensor's storage has; 0 for a tensor that has none."""
    try:
        return untyped_storage(tensor).nbytes()
    except RuntimeError:  # NotImplementedError is one
        return 0


def storage_address(tensor: Tensor) -> int:
    """Identity of the tensor's storage while it lives; addresses are used again after it is freed."""
    return untyped_storage(tensor)._cdata


def uncounted(tensor: Tensor) -> Tensor:
    """The tensor's memory under a count of writes of its own: torch does not tell a graph over it what is written."""
    return tensor.data


def storage_or_none(tensor: Tensor) -> int | None:
    """As ``storage_address``; None for a tensor that has no storage, such as a sparse one."""
    try:
        return storage_address(tensor)
    except RuntimeError:  # NotImplementedError is one
        return None


def op_writes(op: Any) -> bool:
    """Whether an operator (or, of a packet, any overload) says in its schema that it writes an argument."""
    overloads = [op] if isinstance(op, OP_OVERLOAD) else [getattr(op, name) for name in op.overloads()]
    return any(overload._schema.is_mutable for overload in overloads)


def arguments_of(op: Any) -> list[tuple[str, bool]] | None:
    """Name of each argument that an operator takes by place, and whether it takes tensors; None without a schema."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return None
    return [(each.name, "Tensor" in str(each.type)) for each in schema.arguments if not each.kwarg_only]


def caller_of(op: Any) -> Callable[..., Any]:
    """What calls an operator with one overload at the least cost."""
    return op._op if type(op) is OP_OVERLOAD else op


def operator_name(op: Any) -> str:
    """An operator with its overload, as torch prints it: ``aten.addmm.default``."""
    return str(op)


def op_name(op: Any) -> tuple[str, str]:
    """Name and import path of an ``OpOverload`` or ``OpOverloadPacket``."""
    path = str(getattr(op, "_qualified_op_name", op)).replace("::", ".")
    parts = path.split(".")
    return (parts[1] if len(parts) > 1 else path), f"torch.ops.{path}"


def op_at(path: str) -> Any | None:
    """The operator of this import path, ``torch.ops.aten.add.Tensor`` say, if this process knows it already."""
    names = path.split(".")
    if names[:2] != ["torch", "ops"] or len(names) not in (4, 5) or names[3] in REACHES_OUT:
        return None
    found: Any = vars(torch.ops).get(names[2])  # not getattr, which would make a namespace of any name
    if not isinstance(found, torch._ops._OpNamespace):
        return None
    for name in names[3:]:
        found = getattr(found, name, None)
    return found if isinstance(found, (OP_PACKET, OP_OVERLOAD)) else None


REACHES_OUT: Final = frozenset(("from_file", "save", "_print"))
"""Operators that read or write more than tensors, which a stored event must not be able to call."""


def op_draws(op: Any) -> bool:
    """Whether torch marks the operator as drawing from a generator."""
    overload = op if isinstance(op, OP_OVERLOAD) else getattr(op, "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ())


REBUILD_WITH_STATE: Final[Any] = torch._tensor._rebuild_from_type_v2
"""Makes a pickled tensor again that carries attributes."""

LAZY: Final[Any] = nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]  # torch's stub lacks it
"""What a lazy module's parameters and buffers are before they have a shape."""


def is_uninitialized(tensor: Tensor) -> bool:
    """Whether this is a lazy module's parameter or buffer that has no shape yet."""
    return isinstance(tensor, LAZY)


def is_transient_buffer(module: nn.Module, name: str) -> bool:
    """Whether a module leaves one of its buffers out of its state dict."""
    return name in getattr(module, "_non_persistent_buffers_set", ())


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    return module._buffers


def set_buffers(module: nn.Module, buffers: dict[str, Any]) -> None:
    """Exchange the dictionary of a module's buffers, past ``__setattr__``."""
    module.__dict__["_buffers"] = buffers


HOOKS: Final = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
"""Attributes of a module that hold the user's hooks, by number."""


def num_tensor_hooks(tensor: Tensor) -> int:
    """How many hooks wait for the tensor's gradient."""
    return len(tensor._backward_hooks or ())


def put_first(handle: Any) -> None:
    """Have a prehook of an autograd node run before those that were put on earlier: torch knows no other way."""
    hooks = handle.hooks_dict_ref()
    if hooks is None or len(hooks) < 2:
        return
    mine, others = hooks[handle.id], [item for item in hooks.items() if item[0] != handle.id]
    try:
        hooks.clear()  # the engine reads them in the order in which they were put in, whatever an OrderedDict says
        hooks[handle.id] = mine
    finally:  # whatever comes between, no hook of the user's is lost
        hooks.update(others)


def has_prehooks(node: Any) -> bool:
    """Whether something on an autograd node may change what arrives there."""
    handle = node.register_prehook(lambda gradients: None)  # they are told to nobody but who puts on another
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


CALL: Final = "_call_impl"
"""The method of ``nn.Module`` that calls hooks and forward; ``__call__`` hands on to it."""


def is_torchs_own(kind: type) -> bool:
    """Whether a module class is one of ``torch.nn``."""
    return kind.__module__.startswith("torch.nn.")


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    return module._parameters


def own_children(module: nn.Module) -> dict[str, nn.Module | None]:
    return module._modules


def only_calls_forward(module: nn.Module) -> bool:
    """Whether calling the module means calling its forward and nothing else: no hook, no tracing."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _modules._global_forward_hooks
        or _modules._global_forward_pre_hooks
        or _modules._global_backward_hooks
        or _modules._global_backward_pre_hooks
        or torch._C._get_tracing_state()
    )


_modules: Final = torch.nn.modules.module

Names = tuple[str, ...]


def hook_names(module: nn.Module) -> tuple[Names, Names, Names]:
    """Names of the user's forward hooks, forward pre-hooks and backward hooks."""
    forward, before = module._forward_hooks, module._forward_pre_hooks
    backward, before_backward = module._backward_hooks, module._backward_pre_hooks
    if not (forward or before or backward or before_backward):
        return (), (), ()
    return _names(forward.values()), _names(before.values()), _names((*backward.values(), *before_backward.values()))


def has_pre_hooks(module: nn.Module) -> bool:
    """Whether something of the user's runs between calling the module and its forward, and may change the arguments."""
    return bool(module._forward_pre_hooks or _modules._global_forward_pre_hooks)


def _names(hooks: Iterable[Any]) -> Names:
    return tuple(getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks)


COMPILED_CALL: Final = "_compiled_call_impl"
"""Instance attribute that ``module.compile()`` sets; while it is None the module runs eagerly."""


def may_hide_model(kind: type) -> bool:
    """Whether a module of this class may stand for another one, or for code that is no Python."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.jit.ScriptModule)
    return kind.__name__ == "OptimizedModule" or issubclass(kind, wrappers)


def inner_model(model: nn.Module) -> nn.Module | None:
    """The module that a compiled or data-parallel wrapper stands for; None where ``model`` is no wrapper."""
    if type(model).__name__ == "OptimizedModule":
        return own_children(model).get("_orig_mod")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return model.module
    return None


def is_scripted(model: object) -> bool:
    return isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


SCRIPTED_MODULE: Final = torch.jit._script.RecursiveScriptModule
"""The class of modules that TorchScript has compiled."""


def script_names(module: nn.Module) -> list[str]:
    """Names of what a scripted module holds outside Python: its parameters, buffers and attributes; of others none."""
    if not isinstance(module, SCRIPTED_MODULE):
        return []
    names = [*own_parameters(module).keys(), *own_buffers(module).keys(), *module._concrete_type.get_attributes()]
    return [name for name in dict.fromkeys(names) if module._c.hasattr(name)]


def script_value(module: Any, name: str) -> Any:
    """What a scripted module holds under a name: a tensor itself, and a copy of a list or dict."""
    return module._c.getattr(name)


def set_script_value(module: Any, name: str, value: Any) -> None:
    """Have a scripted module hold something else of the same type."""
    module._c.setattr(name, value)


def known_to_script(original: object, stand_in: object) -> None:
    """Let scripting resolve ``stand_in`` as the builtin that ``original`` is."""
    table = torch.jit._builtins._get_builtin_table()
    name = table.get(id(original))
    if name is not None:
        table[id(stand_in)] = name


def is_compiled_function(fn: object) -> bool:
    return hasattr(fn, "_torchdynamo_orig_callable")


def is_functional_wrapper(tensor: Tensor) -> bool:
    """Whether the tensor belongs to a running ``torch.func`` transform, so that its memory cannot be read."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def fill_identity_caches() -> None:
    """Let torch remember its own functions before any is wrapped; what it caches of them it keeps for good."""
    from torch.utils import _device

    _device._device_constructors()
    torch.overrides.get_default_nowrap_functions()
    torch.overrides.get_ignored_functions()
    torch.overrides.get_testing_overrides()


def takes_default_device() -> Container[Any]:
    """The functions that make a tensor on the default device where they are told none."""
    from torch.utils import _device

    functions: Container[Any] = _device._device_constructors()
    return functions


COMPILER_RULES: Final = "torch._dynamo.trace_rules"
"""The module in which torch's compiler keeps, by id, which functions are torch's own."""


def load_compiler() -> None:
    """Import torch's compiler, which a dispatch mode does at its first operator: never while functions are wrapped."""
    importlib.import_module("torch._dynamo")


def compiler_notes() -> dict[str, Any]:
    """What torch's compiler has noted of torch's functions, by id and for good; nothing where it is not imported."""
    rules = sys.modules.get(COMPILER_RULES)
    if rules is None:
        return {}
    names = vars(rules)
    if COMPILER_RULES not in _tables:
        kind = names.get("FunctionIdSet", ())
        sets = [name for name, held in names.items() if isinstance(held, kind)]
        _tables[COMPILER_RULES] = [
            name for name in ("get_torch_obj_rule_map", "get_tensor_method") if name in names
        ] + sets
    return {name: names[name] for name in _tables[COMPILER_RULES] if _is_noted(names[name])}


_tables: Final[dict[str, list[str]]] = {}


def _is_noted(table: Any) -> bool:
    cached = getattr(table, "cache_info", None)
    return table.function_ids is not None if cached is None else bool(cached().currsize)


def note_anew(tables: Iterable[Any]) -> None:
    """Let torch's compiler look again, after tables were made while functions were wrapped."""
    for table in tables:
        if hasattr(table, "cache_clear"):
            table.cache_clear()
            continue
        found = table.lazy_initializer()
        table.function_ids.update(found)
        if isinstance(found, dict) and table.function_names is not None:
            table.function_names.update(found)


Gives: TypeAlias = Literal["result", "function", "both"]
"""What a transform returns: its result, a function to be called later, or the one and the other."""


def transforms() -> Iterator[tuple[Any, str, Gives]]:
    """``torch.func`` transforms as (namespace, name, what it returns)."""
    given: dict[str, Gives] = {
        **dict.fromkeys(("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "functionalize"), "function"),
        **dict.fromkeys(("vjp", "linearize"), "both"),
        "jvp": "result",
    }
    for name, gives in given.items():
        if hasattr(torch.func, name):
            yield torch.func, name, gives
    yield torch, "vmap", "function"


def transform_codes() -> dict[CodeType, str]:
    """Code of the functions that the transforms give, with the name of the first transform that gives such a one."""
    found: dict[CodeType, str] = {}
    for _, name, gives in transforms():
        if gives == "function":
            found.setdefault(getattr(torch.func, name)(_identity).__code__, name)
    return found


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def nested_functions() -> tuple[str, ...]:
    """The public functions that make and unmake nested tensors."""
    return tuple(name for name in torch.nested.__all__ if hasattr(torch.nested, name))


JAGGED: Final[type | None] = getattr(
    getattr(getattr(torch.nested, "_internal", None), "nested_tensor", None), "NestedTensor", None
)
"""The class of nested tensors that torch implements in Python."""

SCRIPTED: Final[tuple[type, ...]] = (torch.jit.ScriptFunction, torch._C.ScriptMethod)


def scripted_name(scripted: Any) -> str:
    """Name of a scripted function or method."""
    return str(scripted.name)


TORCHS_NAMESPACES: Final = frozenset(
    """
    aten prim prims quantized _quantized mkldnn mkldnn_prepacked mkl onednn sparse inductor _c10d_functional
    c10d_functional c10d rngprims debugprims higher_order profiler _test prepacked xnnpack fsdp _dtensor
    """.split()
)
"""Namespaces of the operators that come with torch."""


COMPUTING_NAMESPACES: Final = frozenset(
    "aten prims quantized _quantized mkldnn mkldnn_prepacked mkl onednn sparse rngprims prepacked xnnpack".split()
)
"""Those whose operators compute, and reach no other process, file or profiler."""


def is_computing_operator(op: Any) -> bool:
    """Whether an operator is of those namespaces, and the dispatcher knows it: TorchScript has others in them."""
    if op_name(op)[1].split(".")[2] not in COMPUTING_NAMESPACES:
        return False
    overloads = [op] if isinstance(op, OP_OVERLOAD) else [getattr(op, name) for name in op.overloads()]
    return any(torch._C._dispatch_has_kernel(overload.name()) for overload in overloads)


def is_torchs_operator(op: Any) -> bool:
    return op_name(op)[1].split(".")[2] in TORCHS_NAMESPACES


def checkpoint_functions() -> frozenset[type]:
    """Autograd Functions that only re-run user code; what happens inside them is the model's own."""
    import torch.utils.checkpoint as checkpoint

    found = getattr(checkpoint, "CheckpointFunction", None)
    return frozenset((found,) if found else ())


def backward_hook_function() -> type | None:
    """The Function torch puts around a module with full backward hooks; it is no call of the model."""
    from torch.nn.modules import _functions

    return getattr(_functions, "BackwardHookFunction", None)
