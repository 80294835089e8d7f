"""The ways in which Python takes out of tensors what is no tensor, and what stands in for them during a capture.

Each stand-in calls what it stands for and has the listener tell of it. Put in place for captures that are to be run
again alone, on the classes and in the namespaces of torch, and by a sweep wherever they were bound by name before.

Rule   what C code has under names of its own (``torch._C.TensorBase.item``) cannot be exchanged, and is not told.
Not    truths and handed-out memory, which every capture hears of (``wrap``); of those only the names bound before.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from torchlens import compat
from torchlens.capture import wrap
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import ESCAPES, Function
from torchlens.capture.wrap import MISSING
from torchlens.undoing import undo

__all__ = [
    "ADDRESSES",
    "COPYING",
    "FACTS",
    "HELD",
    "LENDING",
    "READING",
    "TAKING_FUNCTIONS",
    "TAKING_METHODS",
    "Takers",
    "fact_of",
    "is_own",
    "takers",
]

TAKING_METHODS: Final = (
    *("item", "tolist", "__int__", "__float__", "__index__", "__complex__"),
    *("equal", "allclose", "is_nonzero", "is_conj", "is_neg", "is_inference", "_is_zerotensor", "is_set_to"),
    *("_nnz", "is_coalesced", "sparse_dim", "dense_dim", "_dimI", "_dimV"),
    *("q_scale", "q_zero_point", "q_per_channel_axis", "__repr__", "__format__"),
)
"""Methods of tensors that give something that is no tensor: it depends on elements, or on what no record has.

A truth is told in any case.
"""

TAKING_FUNCTIONS: Final = (
    *("equal", "allclose", "is_nonzero", "is_conj", "is_neg", "is_inference", "_is_zerotensor"),
    *("q_scale", "q_zero_point", "q_per_channel_axis", "_choose_qparams_per_tensor", "_use_cudnn_ctc_loss"),
    *("_assert_async", "_linalg_check_errors"),
)
"""The same among the functions of ``torch``; the last ones give nothing, or raise."""

READING: Final = frozenset(("numpy", "__array__", "__dlpack__", "to_dlpack"))
"""Ways of handing out memory that are there to be read."""

HELD: Final = Function("held_memory", "torchlens.held_memory", compat.untyped_storage)
"""A call wrote memory that Python has in hand: it may look at it from then on, which nobody sees."""

LENDING: Final = frozenset(("untyped_storage", "storage", "__reduce_ex__", HELD.func_name))
"""Those that hand out all of a tensor's memory, not its elements alone; one of them is how a tensor is pickled."""

ADDRESSES: Final = frozenset(("data_ptr", "const_data_ptr", "_cdata", "__cuda_array_interface__", "_use_count"))
"""Those that say where it is, or who has it. Whether anything was read there cannot be seen."""

COPYING: Final = frozenset((copy.copy.__code__, copy.deepcopy.__code__))
"""Code that pickles a tensor to make another of it at once."""


def _as_it_is(found: Any) -> Any:
    return found


def _is_there(found: Any) -> bool:
    return found is not None


def _class_name(found: Any) -> str | None:
    return None if found is None else type(found).__name__


FACTS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        ("_version", "_is_view", "storage_offset", "is_shared", "is_pinned", "is_leaf", "output_nr", "retains_grad"),
        _as_it_is,
    ),
    **dict.fromkeys(("grad", "_grad", "_base"), _is_there),
    **dict.fromkeys(("grad_fn", "_grad_fn"), _class_name),
    "_backward_hooks": bool,
    "qscheme": str,
}
"""What a tensor says of itself as an object, or of where it lies, and what is told of each answer.

A capture gives the model copies of its inputs, so that these answers are true of a copy: whoever relies on them asks
the tensors themselves.
"""

_PLACED: Final = frozenset(("__repr__", "__format__", "__reduce_ex__"))
"""Methods for which every capture has stand-ins, which are called in their place."""


def fact_of(name: str, tensor: Tensor) -> Any:
    """What is told of a fact of ``FACTS``, asked past any stand-in; None where torch refuses to say."""
    if name == "is_shared":
        found: Any = compat.untyped_storage(tensor).is_shared() if compat.storage_or_none(tensor) is not None else None
    else:
        asked = getattr(compat.TENSOR_BASE, "_grad" if name == "grad" else name)  # ``grad`` may warn
        try:
            found = asked.__get__(tensor) if isinstance(asked, types.GetSetDescriptorType) else asked(tensor)
        except RuntimeError:
            return None
    return FACTS[name](found)


ASKS_FOR_MODELS: Final = ("torchlens.testing", "torchlens.turns")
"""Where code of ours calls what is a model's: models of tests, and what a model gave to a pool."""


def is_own(frame: types.FrameType) -> bool:
    """Whether code of ours asks, which takes nothing for the model."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith("torchlens.") and not name.startswith(ASKS_FOR_MODELS)


class Takers:
    """The stand-ins of this process and the names they go to.

    Attributes:
        by_original: What stands in, by the id of what it stands for, which ``wrap`` has its own for in part.
        by_wrapper: The other way round.
    """

    def __init__(self) -> None:
        self.by_original: Final[dict[int, Callable[..., Any]]] = {}
        self.by_wrapper: Final[dict[int, Any]] = {}
        self._places: Final[list[tuple[Any, str, Any]]] = []
        for name in (*TAKING_METHODS, "__reduce_ex__"):
            self._method(name)
        for name in (*FACTS, *ADDRESSES):
            if name not in ESCAPES and hasattr(compat.TENSOR_BASE, name) | (name in vars(Tensor)):
                self._method(name)
        for name in TAKING_FUNCTIONS:
            original = getattr(compat.VARIABLE_FUNCTIONS, name, None)
            if original is not None:
                self._function(torch, name, f"torch.{name}", original)
        for owner in (torch, torch.utils.dlpack):
            self._function(owner, "to_dlpack", "torch.to_dlpack", compat.to_dlpack)
        for name in ("__bool__", *ESCAPES):
            self._known(compat.plain_method(name), wrap.wrappers().placed(Tensor, name))

    def _method(self, name: str) -> None:
        original = compat.plain_method(name)
        called = wrap.wrappers().placed(Tensor, name) if name in _PLACED else original
        path = f"torch.Tensor.{name}"
        if isinstance(original, types.GetSetDescriptorType):
            self._places.append((Tensor, name, _property(Function(name, path, original.__get__), original)))
        elif isinstance(original, property):
            assert original.fget is not None
            self._places.append((Tensor, name, _property(Function(name, path, original.fget), original)))
        else:
            self._places.append((Tensor, name, self._known(original, _taker(Function(name, path, called)))))

    def _function(self, owner: Any, name: str, path: str, original: Callable[..., Any]) -> None:
        made = self.by_original.get(id(original)) or self._known(original, _taker(Function(name, path, original)))
        self._places.append((owner, name, made))

    def _known(self, original: Any, made: Callable[..., Any]) -> Callable[..., Any]:
        self.by_original[id(original)] = made
        self.by_wrapper[id(made)] = original
        return made

    def install(self) -> Callable[[], None]:
        """Put all in their places; what takes them away again."""
        before = [(owner, name, vars(owner).get(name, MISSING)) for owner, name, _ in self._places]
        restore = functools.partial(undo, [functools.partial(put_back, *place) for place in before])
        try:
            for owner, name, made in self._places:
                setattr(owner, name, made)
        except BaseException:
            restore()
            raise
        return restore


def put_back(owner: Any, name: str, original: Any) -> None:
    """Give a name what it had."""
    if original is not MISSING:
        setattr(owner, name, original)
    elif name in vars(owner):  # it has it from a base
        delattr(owner, name)


def _taker(function: Function) -> Callable[..., Any]:
    original = function.original

    def call(*args: Any, **kwargs: Any) -> Any:
        listener = wrap.listening()
        return original(*args, **kwargs) if listener is None else listener.taking(function, args, kwargs)

    OWN_CODE.add(call.__code__)
    call.__wrapped__ = original  # type: ignore[attr-defined]  # as functools.wraps does
    return call


def _property(function: Function, described: Any) -> property:
    original = function.original

    def read(self: Any) -> Any:
        listener = wrap.listening()
        return original(self) if listener is None else listener.taking(function, (self,), {})

    OWN_CODE.add(read.__code__)
    return property(read, described.__set__, described.__delete__, described.__doc__)


@functools.cache
def takers() -> Takers:
    """The stand-ins of this process, made when they are first needed."""
    return Takers()
