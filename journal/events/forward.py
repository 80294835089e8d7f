"""What the forward did: functions, call sites and values met, calls, module calls, branches, buffers, payloads."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from journal.events.base import At, Event, Plain, Value, event
from journal.events.capture import Template

MODE_GRAD: Final = 1
MODE_INFERENCE: Final = 2
MODE_AUTOCAST: Final = 4

Description: TypeAlias = tuple[Plain, ...]
"""A tensor without its values, as a flat tuple in the order of ``DESCRIPTION``."""

DESCRIPTION: Final = (
    "shape",  # tuple of int
    "dtype",  # "float32"
    "device",  # "cpu", "cuda:0"
    "layout",  # None for strided, else "sparse_coo", ...; "nested" for a nested one of strided parts
    "strides",  # in elements; None where contiguous
    "offset",  # storage offset in elements
    "storage",  # capture-local storage number; None where there is no storage
    "view_of",  # the argument, as in ``inputs``, whose storage this shares; None otherwise
    "same_as",  # position in ``inputs`` of the argument that is this very object; None otherwise
    "requires_grad",
    "grad_fn",  # class name of the autograd node; None without one
    "grad_slot",  # output number on that node
    "grad_node",  # capture-local node number
    "path",  # where in the returned container; () for a bare tensor
    "payload",  # PayloadRef or None
    "class",  # None for torch.Tensor, else the qualified class name
)

PayloadRef: TypeAlias = tuple[int, int, "tuple[int, ...] | None"]
"""Payload number, first element, strides in elements (None: contiguous) of a value within stored bytes."""


@event("function_seen", version=1)
class FunctionSeen(Event):
    """A wrapped function was called for the first time in this capture; calls name it by ``number``."""

    number: int  # 0, 1, 2, ... in order of this event
    func_name: str  # "relu", "__add__"
    qualname: str  # import path: "torch.nn.functional.relu", "torch.Tensor.add_"
    opaque: str | None  # why what happened inside was not watched, in a few words; None where it was


@event("code_seen", version=1)
class CodeSeen(Event):
    """A Python function that calls torch was met for the first time in this capture."""

    number: int  # 0, 1, 2, ... in order of this event
    file: str
    qualname: str
    name: str
    first_line: int
    source: int | None  # payload number of its source text, UTF-8; None where there is none


@event("call_site_seen", version=1)
class CallSiteSeen(Event):
    """A place in the source, reached through ``caller``, that calls torch or a module.

    The chain of callers ends at the forward of the innermost running module.
    """

    number: int  # 0, 1, 2, ... in order of this event
    code: int
    span: tuple[int, ...]  # line, end line, column, end column; line and bytecode offset where there are no columns
    caller: int | None  # call site number one frame further out; None at the module's forward


@event("module_seen", version=1)
class ModuleSeen(Event):
    """A module that the model does not register was called; numbered on from the described ones."""

    number: int
    class_name: str
    class_qualname: str
    training: bool


@event("parameter_seen", version=1)
class ParameterSeen(Event):
    """A parameter that the model does not register was used; numbered on from the described ones."""

    number: int
    module: int | None  # the unregistered module that holds it
    attribute: str | None
    source: Value | None  # the value that it was made of during the forward, whose memory it has
    description: Plain  # as a row of ModelDescribed.parameters, its address ""


@event("input_seen", version=1)
class InputSeen(Event):
    """A tensor was among the arguments of the root's forward."""

    value: Value
    path: Template  # keys and positions from the argument's name on: ("x",), ("d", "k", 0)
    was_parameter: bool
    description: Description


@event("constant_seen", version=1)
class ConstantSeen(Event):
    """A tensor came from where the wrappers do not look: made before the forward, or by an unwatched path.

    ``made_by`` is the class of its autograd node where it has one that this capture did not see made:
    then an unwatched call produced it during the forward or before. It is the function's name where another thread
    called that during the forward, and ``unseen`` where it is only known that the tensor was made during the forward.
    """

    value: Value
    made_by: str | None
    inside: bool  # it was made during this forward
    inputs: tuple[int, ...]  # values, and -1 - n for parameter n, that it is known to come from; () for most
    thread: str | None  # name of the thread that made it; None where that is not known
    description: Description


@event("value_reread", version=1)
class ValueReread(Event):
    """A returned tensor's memory had been written through another name since its value was made; this is it now."""

    value: Value
    of: Value  # what the tensor held before
    writer: Value  # a result of the call that wrote the memory last
    description: Description


@event("buffer_seen", version=1)
class BufferSeen(Event):
    """A version of a buffer was read for the first time."""

    value: Value
    buffer: int
    version: int  # 1 for the first observed
    description: Description


@event("buffer_written", version=1)
class BufferWritten(Event):
    """A buffer got a new value: by an in-place call, inside a kernel, or by assignment to its module."""

    value: Value
    buffer: int
    version: int
    how: Literal["inplace", "fused", "reassign"]
    source: Value | None  # a result of the call that wrote it; None where that call has no tensor result
    changed: bool | None  # None where values were not compared
    description: Description


@event("module_entered", version=1)
class ModuleEntered(Event):
    """A module's forward was called. Module calls are numbered by these events: 0 is the root's."""

    module: int
    site: int | None  # None for the root
    args: Template
    kwargs: Template
    inputs: tuple[int, ...]
    writers: tuple[int | None, ...] | None


@event("module_left", version=1)
class ModuleLeft(Event):
    """A module's forward returned."""

    call: int
    result: Template
    outputs: tuple[int, ...]


@event("module_raised", version=1)
class ModuleRaised(Event):
    """A module's forward was left by an exception (the model may go on)."""

    call: int
    exception: str


@event("op_started", version=1)
class OpStarted(Event):
    """A call is about to be made; written only where each event is committed before the next call.

    It ends with an `OpExecuted`, `OpRaised` or `OpLeft`; calls made inside it begin and end before that.
    """

    function: int
    site: int
    call: int
    args: Template
    kwargs: Template
    inputs: tuple[int, ...]
    shapes: tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each input


@event("op_executed", version=1)
class OpExecuted(Event):
    """A torch call returned, with all its results.

    ``inputs`` holds the tensors of ``args``, then of ``kwargs``, in order: a value number, or
    ``-1 - n`` for parameter n. The time of the event is that at which the call started.
    """

    function: int
    site: int
    call: int  # innermost running module call
    thread: int  # 0 for the thread that ran the forward
    duration_ns: int  # inside the original call only
    mode: int  # MODE_GRAD | MODE_INFERENCE | MODE_AUTOCAST
    args: Template
    kwargs: Template
    inputs: tuple[int, ...]
    writers: tuple[int | None, ...] | None  # per input the last writer of its storage, where that is another value
    written: tuple[int, ...] | None  # positions in inputs that this call wrote
    first: Value  # value number of the first result; the others follow
    outputs: tuple[Description, ...]
    container: Template  # what was returned, tensors taken out; None for a bare tensor
    autocast: tuple[tuple[str, str], ...] | None  # (device, dtype) where autocast was on
    rng: int | None  # payload number of the generator state before the call; only where it drew


@event("op_raised", version=1)
class OpRaised(Event):
    """A torch call raised."""

    function: int
    site: int
    call: int
    args: Template
    kwargs: Template
    inputs: tuple[int, ...]
    exception: str
    message: str


@event("op_left", version=1)
class OpLeft(Event):
    """An announced call ended and is told by no event of its own: a call inside it was the op, or raised, or there
    is no tensor in what it returned."""

    started: At  # number of the event that announced it


@event("branch_taken", version=1)
class BranchTaken(Event):
    """Python asked a tensor for its truth."""

    value: Value | int  # as in ``OpExecuted.inputs``
    result: bool
    site: int
    call: int


@event("payload_kept", version=1)
class PayloadKept(Event):
    """A value's payload was kept after its own event, because only then it was known to be wanted."""

    value: Value
    payload: PayloadRef


@event("transform_kept", version=1)
class TransformKept(Event):
    """What the request makes of a value's activation before it keeps it was kept, as a payload of its own."""

    value: Value
    shape: tuple[int, ...]
    dtype: str
    payload: PayloadRef


@event("saved_for_backward", version=1)
class SavedForBackward(Event):
    """What an autograd node of a result holds for the backward, told after the forward where that was asked for.

    The nodes between it and those of other results are counted to it. A tensor is the number of its storage (a count of
    its own), the bytes of that storage, the first byte within it, the bytes of the tensor, and whose the storage was
    before the forward: "parameter", "buffer" or "input"; None for what the forward made or took from elsewhere.
    """

    node: int  # as in ``DESCRIPTION``
    tensors: tuple[tuple[int, int, int, int, str | None], ...] | None  # None where torch does not tell
    untold: str | None  # what does not: the class of a node, or a tensor without plain memory; None where it tells


KeptTensor: TypeAlias = tuple[PayloadRef, tuple[int, ...], str]
"""Where a tensor was kept, its shape and its dtype."""


@event("arguments_kept", version=1)
class ArgumentsKept(Event):
    """The tensors that a call was given were kept as they were when it began; only where that was asked for."""

    of: At  # the event with the inputs: OpExecuted, ModuleEntered or PreHooksStarted
    tensors: tuple[KeptTensor | None, ...]  # one per input; None for what could not be kept


@event("generators_kept", version=1)
class GeneratorsKept(Event):
    """The states of the random generators were kept as they were when a call began; only where that was asked for."""

    of: At  # the OpExecuted
    states: tuple[tuple[str, int], ...]  # device, payload number


@event("pre_hooks_started", version=1)
class PreHooksStarted(Event):
    """A module with forward pre-hooks was called with this; its ModuleEntered tells what the hooks made of it.

    The root's hooks run when it has been entered, and have no such event.
    """

    module: int
    args: Template
    kwargs: Template
    inputs: tuple[int, ...]
    writers: tuple[int | None, ...] | None  # as in ``OpExecuted``


@event("optimizer_given", version=1)
class OptimizerGiven(Event):
    """The capture was given an optimizer; these are the parameters that it steps."""

    class_qualname: str
    parameters: tuple[int, ...]
