"""Parameter names of common functions, and the readable settings of a call.

torch's builtins have no signature that could be read, and this package does not know torch, so the names
are written down here, as torch's documentation gives them. A function that is not listed has no known names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from journal.events.template import TUPLE
from projections.columnar.arguments import has_hole

NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        name: tuple(parameters.split())
        for name, parameters in {
            "adaptive_avg_pool1d": "input output_size",
            "adaptive_avg_pool2d": "input output_size",
            "adaptive_avg_pool3d": "input output_size",
            "adaptive_max_pool1d": "input output_size return_indices",
            "adaptive_max_pool2d": "input output_size return_indices",
            "avg_pool1d": "input kernel_size stride padding ceil_mode count_include_pad",
            "avg_pool2d": "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
            "batch_norm": "input weight bias running_mean running_var training momentum eps cudnn_enabled",
            "bmm": "input mat2",
            "cat": "tensors dim",
            "chunk": "input chunks dim",
            "clamp": "input min max",
            "clamp_": "input min max",
            "conv1d": "input weight bias stride padding dilation groups",
            "conv2d": "input weight bias stride padding dilation groups",
            "conv3d": "input weight bias stride padding dilation groups",
            "conv_transpose1d": "input weight bias stride padding output_padding groups dilation",
            "conv_transpose2d": "input weight bias stride padding output_padding groups dilation",
            "cross_entropy_loss": "input target weight reduction ignore_index label_smoothing",
            "cumsum": "input dim dtype",
            "dropout": "input p train",
            "elu": "input alpha inplace",
            "embedding": "weight input padding_idx scale_grad_by_freq sparse",
            "expand": "input size",
            "flatten": "input start_dim end_dim",
            "gather": "input dim index",
            "gelu": "input approximate",
            "group_norm": "input num_groups weight bias eps",
            "index_select": "input dim index",
            "instance_norm": "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled",
            "layer_norm": "input normalized_shape weight bias eps cudnn_enable",
            "leaky_relu": "input negative_slope inplace",
            "linear": "input weight bias",
            "log_softmax": "input dim dtype",
            "masked_fill": "input mask value",
            "matmul": "input other",
            "max": "input dim keepdim",
            "max_pool1d": "input kernel_size stride padding dilation ceil_mode",
            "max_pool2d": "input kernel_size stride padding dilation ceil_mode",
            "mean": "input dim keepdim dtype",
            "min": "input dim keepdim",
            "mm": "input mat2",
            "narrow": "input dim start length",
            "nll_loss": "input target weight reduction ignore_index",
            "norm": "input p dim keepdim",
            "pad": "input pad mode value",
            "permute": "input dims",
            "pow": "input exponent",
            "relu": "input",
            "repeat_interleave": "input repeats dim",
            "reshape": "input shape",
            "rms_norm": "input normalized_shape weight eps",
            "roll": "input shifts dims",
            "scaled_dot_product_attention": "query key value attn_mask dropout_p is_causal scale enable_gqa",
            "select": "input dim index",
            "sigmoid": "input",
            "silu": "input inplace",
            "softmax": "input dim dtype",
            "softplus": "input beta threshold",
            "split": "input split_size_or_sections dim",
            "split_with_sizes": "input split_sizes dim",
            "squeeze": "input dim",
            "stack": "tensors dim",
            "std": "input dim correction keepdim",
            "sum": "input dim keepdim dtype",
            "tanh": "input",
            "topk": "input k dim largest sorted",
            "transpose": "input dim0 dim1",
            "tril": "input diagonal",
            "triu": "input diagonal",
            "unbind": "input dim",
            "unfold": "input dimension size step",
            "unsqueeze": "input dim",
            "var": "input dim correction keepdim",
            "view": "input shape",
            "where": "condition input other",
        }.items()
    }
)

UNINTERESTING: Final = frozenset(("cudnn_enable", "cudnn_enabled", "inplace", "out", "train", "training"))
"""Parameters that say how a call ran, not what it computes."""

TAKES_REST: Final = frozenset(("expand", "permute", "reshape", "view"))
"""Functions whose last parameter may be given as several arguments."""

FEATURES: Final = MappingProxyType({"linear": ("out_features", "in_features")})
CHANNELS: Final = frozenset(("conv1d", "conv2d", "conv3d"))


def arg_names(func_name: str) -> tuple[str, ...]:
    """Names of a function's parameters, () where they are not known."""
    return NAMES.get(func_name, ())


def config_of(
    func_name: str,
    args: Sequence[Any],
    kwargs: Sequence[tuple[str, Any]],
    shapes: Sequence[tuple[int, ...]],
) -> tuple[tuple[str, Any], ...]:
    """The readable settings of a call, as pairs of name and template.

    Args:
        func_name: The called function.
        args: Templates of its positional arguments.
        kwargs: Names and templates of its keyword arguments.
        shapes: Shapes of the parameters it used, in order.
    """
    found: list[tuple[str, Any]] = []
    if shapes and func_name in FEATURES:
        found += zip(FEATURES[func_name], shapes[0], strict=False)
    elif shapes and func_name in CHANNELS and len(shapes[0]) > 2:
        found += [("out_channels", shapes[0][0]), ("kernel_size", (TUPLE, *shapes[0][2:]))]
    names = NAMES.get(func_name, ())
    given = list(zip(names, args, strict=False))
    if func_name in TAKES_REST and len(args) > len(names):
        given[-1] = (names[-1], (TUPLE, *args[len(names) - 1 :]))
    for name, template in (*given, *kwargs):
        if name not in UNINTERESTING and template is not None and not has_hole(template):
            found.append((name, template))
    return tuple(found)
