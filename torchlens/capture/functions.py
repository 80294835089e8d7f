"""The torch functions a capture watches: each with its public name and what it may do to its arguments.

Public names only: a function that torch's own Python code reaches under a private name stays unseen,
so that the recorded name is the one in the documentation.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import torch

from torchlens import compat

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


@attrs.define(slots=True, eq=False)
class Function:
    """One watched function."""

    func_name: str
    qualname: str
    original: Callable[..., Any]
    writes: Callable[[Arguments, Keywords], Arguments] | None = None  # the arguments a call may write; None: none ever
    draws: Callable[[Arguments, Keywords], bool] | None = None  # whether a call will use a random generator
    opaque: str | None = None  # why what happens inside is not watched, in a few words; None where it is


SCRIPTED: Final = "scripted code"
TRANSFORM: Final = "function transform"
AUTOGRAD_FUNCTION: Final = "autograd function"
FUSED: Final = "fused kernel"
CUSTOM: Final = "custom operator"
NESTED: Final = "nested tensors"
ENGINE: Final = "autograd engine"
RUN: Final = "run of a capture"
"""Why an op is opaque. Each is one op because what runs inside is no Python, or works on stand-ins, or has no gradient
of its own."""

OPAQUE_BUILTINS: Final = {
    "_transformer_encoder_layer_fwd": FUSED,
    "_native_multi_head_attention": FUSED,
    "_nested_tensor_from_mask": NESTED,
}
"""Builtins that do the work of a whole module, or hand over to nested tensors."""

BUILTINS: Final = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)

# Questions about a tensor, and Python protocol methods: never the source of a tensor worth a record.
SKIPPED_METHODS: Final = frozenset(
    """
    __bool__ __class__ __contains__ __deepcopy__ __delitem__ __dir__ __dlpack__ __dlpack_device__ __float__
    __complex__ __format__ __hash__ __index__ __int__ __iter__ __len__ __long__ __new__ __init__ __nonzero__
    __reduce__ __reduce_ex__ __repr__ __reversed__ __setattr__ __setstate__ __str__ __torch_dispatch__
    __torch_function__ __array__ __array_wrap__ __getattribute__ __subclasshook__ __init_subclass__ __delattr__
    __sizeof__ __getstate__ __cuda_array_interface__ _clear_non_serializable_cached_data _dimI _dimV _fix_weakref
    _is_all_true _is_any_true _is_view _is_zerotensor _make_subclass _make_wrapper_subclass _nested_tensor_size
    _nested_tensor_storage_offsets _nested_tensor_strides _nnz _reduce_ex_internal _rev_view_func_unsafe
    _typed_storage _update_names _use_count _view_func _view_func_unsafe _make_dtensor allclose as_subclass
    backward const_data_ptr data_ptr dense_dim dim dim_order element_size equal get_device has_names is_coalesced
    is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_neg is_nonzero is_pinned
    is_same_size is_set_to is_shared is_signed item module_load ndimension nelement numel numpy
    q_per_channel_axis q_scale q_zero_point qscheme record_stream register_hook register_post_accumulate_grad_hook
    reinforce requires_grad_ retain_grad share_memory_ size sparse_dim storage storage_offset storage_type stride
    tolist untyped_storage eig lstsq solve symeig resize resize_as index
    """.split()
)

SKIPPED_FUNCTIONS: Final = frozenset(
    """
    allclose can_cast cudnn_is_acceptable equal get_device is_complex is_conj is_distributed is_floating_point
    is_inference is_neg is_nonzero is_same_size is_signed is_vulkan_available numel promote_types result_type
    sym_constrain_range sym_constrain_range_for_size sym_not sym_float sym_int sym_max sym_min sym_sum sym_sqrt
    sym_ite has_torch_function has_torch_function_unary has_torch_function_variadic handle_torch_function
    boolean_dispatch q_per_channel_axis q_scale q_zero_point from_file
    """.split()
)

# Private builtins that a model's own code does call.
KEPT_PRIVATE: Final = frozenset(
    """
    _grouped_mm _weight_norm _scaled_mm _int_mm _pack_padded_sequence _pad_packed_sequence
    _transformer_encoder_layer_fwd _native_multi_head_attention _softmax _log_softmax _convolution _addmm_activation
    _conj _neg_view _stack _embedding_bag _trilinear _standard_gamma _sample_dirichlet _unique _unique2
    _fused_rms_norm _shape_as_tensor _coalesce _nested_tensor_from_mask
    """.split()
)

ALWAYS_DRAWS: Final = frozenset(
    """
    rand rand_like randn randn_like randint randint_like randperm normal bernoulli bernoulli_ multinomial poisson
    binomial normal_ uniform_ exponential_ cauchy_ geometric_ log_normal_ random_ rrelu_with_noise _standard_gamma
    _sample_dirichlet
    """.split()
)


def _dropout_draws(args: Arguments, kwargs: Keywords) -> bool:
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.0)
    train = args[2] if len(args) > 2 else kwargs.get("train", False)
    return bool(train) and p > 0


def _attention_draws(args: Arguments, kwargs: Keywords) -> bool:
    return bool((args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0)


def _recurrent_draws(args: Arguments, kwargs: Keywords) -> bool:
    # The dropout rate is the only float among the arguments, and the training flag follows it.
    for position, value in enumerate(args[:-1]):
        if type(value) is float:
            return value > 0 and bool(args[position + 1])
    return False


def _rrelu_draws(args: Arguments, kwargs: Keywords) -> bool:
    return bool(args[3] if len(args) > 3 else kwargs.get("training", False))


CONDITIONAL_DRAWS: Final[dict[str, Callable[[Arguments, Keywords], bool]]] = {
    **dict.fromkeys(
        "dropout dropout_ alpha_dropout alpha_dropout_ feature_dropout feature_dropout_ feature_alpha_dropout "
        "feature_alpha_dropout_ native_dropout".split(),
        _dropout_draws,
    ),
    **dict.fromkeys("lstm gru rnn_tanh rnn_relu".split(), _recurrent_draws),
    **dict.fromkeys("rrelu rrelu_".split(), _rrelu_draws),
    "scaled_dot_product_attention": _attention_draws,
}


CPU: Final = torch.device("cpu")


def generator_of(args: Arguments, kwargs: Keywords) -> torch.Generator:
    """The generator that a call with these arguments draws from: the one it is given, else that of its device."""
    given = (*args, *kwargs.values())
    for value in given:
        if type(value) is torch.Generator:
            return value
    asked = kwargs.get("device")
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    device = torch.device(asked) if asked is not None else tensors[0].device if tensors else CPU
    if device.type == "cuda":
        index: int | None = device.index
        return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
    return torch.default_generator


def always(args: Arguments, kwargs: Keywords) -> bool:
    return True


def first_argument(args: Arguments, kwargs: Keywords) -> Arguments:
    return args[:1]


def every_argument(args: Arguments, kwargs: Keywords) -> Arguments:
    return (*args, *kwargs.values())


def running_statistics(args: Arguments, kwargs: Keywords) -> Arguments:
    """Of ``torch.batch_norm`` and ``torch.instance_norm``: the statistics, where the call updates them."""
    return args[3:5] if len(args) > 5 and args[5] else ()


def noise(args: Arguments, kwargs: Keywords) -> Arguments:
    return args[1:2]


WRITES: Final[dict[str, Callable[[Arguments, Keywords], Arguments]]] = {
    **dict.fromkeys("batch_norm instance_norm native_batch_norm _native_batch_norm_legit".split(), running_statistics),
    "rrelu_with_noise": noise,
    "fused_moving_avg_obs_fake_quant": every_argument,
    "_fused_moving_avg_obs_fq_helper": every_argument,
}
"""Builtins that write to an argument without their name saying so."""


def writes_by_name(name: str, *, builtin: bool) -> Callable[[Arguments, Keywords], Arguments] | None:
    """In-place by torch's naming rule: a trailing underscore, an in-place operator, or item assignment."""
    if builtin and name in WRITES:
        return WRITES[name]
    if name.startswith("__"):
        in_place = name.startswith("__i") and name not in ("__invert__", "__index__", "__int__", "__iter__")
        return first_argument if in_place or name == "__setitem__" else None
    return first_argument if name.endswith("_") else None


def function(name: str, qualname: str, original: Callable[..., Any]) -> Function:
    builtin = isinstance(original, BUILTINS)
    draws = None
    if builtin:
        draws = always if name in ALWAYS_DRAWS else CONDITIONAL_DRAWS.get(name)
    opaque = OPAQUE_BUILTINS.get(name) if builtin else None
    return Function(name, qualname, original, writes_by_name(name, builtin=builtin), draws, opaque)


def namespaces() -> Iterator[tuple[Any, str]]:
    """Where public functions stand, in the order in which a function's name is chosen."""
    yield torch, "torch"
    yield torch.nn.functional, "torch.nn.functional"
    yield torch.functional, "torch.functional"
    yield torch.linalg, "torch.linalg"
    yield torch.fft, "torch.fft"
    yield torch.special, "torch.special"
    yield torch.sparse, "torch.sparse"


def namespace_functions(namespace: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions of a namespace that may return tensors, by name."""
    overridable = _overridable()
    for name, value in sorted(vars(namespace).items()):
        if name in SKIPPED_FUNCTIONS or isinstance(value, type) or not callable(value):
            continue
        if isinstance(value, types.BuiltinFunctionType):
            known = hasattr(compat.VARIABLE_FUNCTIONS, name) or namespace is not torch
            if known and (not name.startswith("_") or name in KEPT_PRIVATE or name.startswith("_foreach_")):
                yield name, value
        elif isinstance(value, types.FunctionType) and not name.startswith("_"):
            here = value.__module__ == namespace.__name__ and namespace is torch.nn.functional
            if value in overridable or (here and name in EXTRA_FUNCTIONAL):
                yield name, value


EXTRA_FUNCTIONAL: Final = frozenset(
    "tanh sigmoid hardsigmoid hardswish upsample upsample_nearest upsample_bilinear grouped_mm scaled_mm".split()
)


def tensor_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Methods and operators of ``torch.Tensor`` that may return tensors, by name."""
    for name in sorted({*vars(torch.Tensor), *vars(compat.TENSOR_BASE)}):
        if name in SKIPPED_METHODS:
            continue
        value = vars(torch.Tensor).get(name, vars(compat.TENSOR_BASE).get(name))
        if isinstance(value, (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            yield name, value


TENSOR_PROPERTIES: Final = ("T", "mT", "H", "mH", "real", "imag", "data")
"""Properties whose reading makes a tensor."""

ESCAPES: Final = ("numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage")
"""Methods that hand out the memory itself: after them a write can no longer be seen."""


def _overridable() -> frozenset[Any]:
    found: set[Any] = set()
    for functions in torch.overrides.get_overridable_functions().values():
        for item in functions:
            if isinstance(item, types.FunctionType):
                found.add(item)
    return frozenset(found)
