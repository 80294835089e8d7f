"""How much work a dispatched operator is, in the convention of ``torch.utils.flop_counter.FlopCounterMode``.

Unit    a multiply-accumulate is two FLOPs (``fma2``); a bias, a scale or a softmax beside a product is not counted.
Gives   ``operator_flops``: an exact count for matrix products, convolutions and fused attention, forward and backward;
        None for every other operator, and where its shapes are none that it takes. Never zero for unknown.
Rule    the convention is followed where it is generous: the gradient of a grouped convolution's weight is counted as
        that of one group, a causal or masked place like any other, and a padded one too.
Not     what calls of the forward do beside products (flops.py), or sums (autograd/executed.py).

Source: the formulas' definitions in the documentation of torch 2.13; a law holds them against ``flop_registry``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from projections.columnar.arguments import is_tuple
from projections.formulas.flops import LARGEST, MOST_AXES, rule_of
from projections.formulas.flops import nothing as no_work

Shape: TypeAlias = "tuple[int, ...]"

Formula: TypeAlias = "Callable[[Operator], int]"


class NotCountedError(Exception):
    """The shapes are none that the operator takes, or do not tell its work."""


class Operator:
    """An operator as a formula sees it.

    Args:
        inputs: Shape and dtype of each tensor among its arguments, in order.
        outputs: The same of what it returned.
        settings: Its other arguments, in order; None where they are not told.
    """

    __slots__ = ("inputs", "outputs", "settings")

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any], settings: Any) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.settings = settings

    def input(self, place: int, rank: int | None = None) -> Shape:
        return self.shape(self.inputs, place, rank)

    def output(self, place: int, rank: int | None = None) -> Shape:
        return self.shape(self.outputs, place, rank)

    def shape(self, told: Sequence[Any], place: int, rank: int | None) -> Shape:
        if place >= len(told):
            raise NotCountedError
        shape = told[place][0]
        if len(shape) > MOST_AXES or any(type(size) is not int or size < 0 for size in shape):
            raise NotCountedError
        if rank is not None and len(shape) != rank:
            raise NotCountedError
        return tuple(shape)

    @property
    def told(self) -> tuple[Any, ...]:
        if not is_tuple(self.settings):
            raise NotCountedError
        return self.settings

    @property
    def is_transposed(self) -> bool:
        """Of a convolution: the first truth among its settings, behind bias, stride, padding and dilation."""
        found = next((one for one in self.told if isinstance(one, bool)), None)
        if found is None:
            raise NotCountedError
        return found


def require(holds: bool) -> None:
    if not holds:
        raise NotCountedError


# Matrix products ------------------------------------------------------------------------------------------


def product(first: int) -> Formula:
    """Two matrices, the first of them at this place among the inputs."""

    def formula(call: Operator) -> int:
        (rows, inner), (others, columns) = call.input(first, 2), call.input(first + 1, 2)
        require(inner == others)
        return 2 * rows * inner * columns

    return formula


def batched(first: int) -> Formula:
    """A batch of products."""

    def formula(call: Operator) -> int:
        (batch, rows, inner), (count, others, columns) = call.input(first, 3), call.input(first + 1, 3)
        require(batch == count and inner == others)
        return 2 * batch * rows * inner * columns

    return formula


def composite_product(call: Operator) -> int:
    """``matmul``, which comes in one piece where autograd takes no part at all, as in inference mode.

    In front of the last two axes stand those of a batch, which broadcast. With a vector on the right torch makes
    another operator of it, which has no count.
    """
    left, right = list(call.input(0)), list(call.input(1))
    require(len(right) == 2 or (len(left) >= 2 and len(right) > 2))
    require(len(left) > 0)
    left = left if len(left) > 1 else [1, *left]
    require(left[-1] == right[-2])
    return 2 * math.prod(broadcast(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]


def broadcast(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The axes of both, the last of them one above the other."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    filled = [*[1] * (len(longer) - len(shorter)), *shorter]
    require(all(a == b or 1 in (a, b) for a, b in zip(longer, filled, strict=True)))
    return [b if a == 1 else a for a, b in zip(longer, filled, strict=True)]


def composite_linear(call: Operator) -> int:
    """``linear``, likewise: of every row of what it is given with a weight that has a row for each result."""
    (*rows, inner), (columns, same) = call.input(0), call.input(1, 2)
    require(inner == same)
    return 2 * math.prod(rows) * inner * columns


# Convolutions ---------------------------------------------------------------------------------------------


def applied(samples: int, places: Shape, weight: Shape) -> int:
    """A weight applied to samples at each of some places: every element of it is one multiply-accumulate there."""
    return 2 * samples * math.prod(places) * math.prod(weight)


def spatial(x: Shape, weight: Shape, out: Shape) -> None:
    require(2 <= len(x) == len(weight) == len(out))


def convolution(call: Operator) -> int:
    return convolved(call, call.is_transposed)


def plain_convolution(call: Operator) -> int:
    """An operator that has no transposed form."""
    return convolved(call, is_transposed=False)


def convolved(call: Operator, is_transposed: bool) -> int:
    """At each place of the result, or, of a transposed one, of what it is given."""
    x, weight, out = call.input(0), call.input(1), call.output(0)
    spatial(x, weight, out)
    return applied(x[0], (x if is_transposed else out)[2:], weight)


def convolution_backward(call: Operator) -> int:
    """The gradients of what was given and of the weight, each where it is asked for; that of a bias is a sum.

    That of the weight is a convolution, of channels by samples, with the gradient, or, of a transposed one, with what
    was given, in the place of the weight.
    """
    grad, x, weight = call.input(0), call.input(1), call.input(2)
    spatial(x, weight, grad)
    is_transposed, wanted = call.is_transposed, call.told[-1]
    if not is_tuple(wanted) or [type(one) for one in wanted] != [bool] * 3:
        raise NotCountedError
    flops = 0
    if wanted[0]:
        flops += applied(grad[0], (x if is_transposed else grad)[2:], weight)
    if wanted[1]:
        flops += applied(grad[1], weight[2:], x) if is_transposed else applied(x[1], weight[2:], grad)
    return flops


# Fused attention ------------------------------------------------------------------------------------------


def scores(call: Operator, first: int) -> tuple[int, int, int]:
    """Entries of the scores, width of a key and of a value; query, key and value stand at these places."""
    batch, heads, length, width = call.input(first, 4)
    key_batch, key_heads, keys, key_width = call.input(first + 1, 4)
    value_batch, value_heads, values, depth = call.input(first + 2, 4)
    require(batch == key_batch == value_batch and width == key_width and keys == values)
    require(key_heads == value_heads and 0 < key_heads <= heads and not heads % key_heads)
    return batch * heads * length * keys, width, depth


def attention(call: Operator) -> int:
    """Queries with keys, scores with values."""
    entries, width, depth = scores(call, 0)
    return 2 * entries * (width + depth)


def attention_backward(call: Operator) -> int:
    """The scores again, then the gradients of them, of values, queries and keys."""
    grad_batch, grad_heads, grad_length, grad_depth = call.input(0, 4)
    batch, heads, length, _ = call.input(1, 4)
    entries, width, depth = scores(call, 1)
    require((grad_batch, grad_heads, grad_length, grad_depth) == (batch, heads, length, depth))
    return 2 * entries * (3 * width + 2 * depth)


def of_dense(formula: Formula) -> Formula:
    """Of an operator that takes ragged batches too: then offsets, which are values, decide."""

    def dense(call: Operator) -> int:
        require(not any(len(shape) == 1 and dtype == "int32" for shape, dtype in call.inputs))
        return formula(call)

    return dense


FORMULAS: Final = MappingProxyType(
    {
        "aten.mm": product(0),
        "aten.addmm": product(1),
        "aten.bmm": batched(0),
        "aten.baddbmm": batched(1),
        "aten._scaled_mm": product(0),
        "aten.matmul": composite_product,
        "aten.linear": composite_linear,
        "aten.convolution": convolution,
        "aten._convolution": convolution,
        "aten.convolution_overrideable": convolution,
        "aten.cudnn_convolution": plain_convolution,
        "aten._slow_conv2d_forward": plain_convolution,
        "aten.convolution_backward": convolution_backward,
        "aten._scaled_dot_product_efficient_attention": attention,
        "aten._scaled_dot_product_flash_attention": attention,
        "aten._scaled_dot_product_cudnn_attention": attention,
        "aten._scaled_dot_product_efficient_attention_backward": attention_backward,
        "aten._scaled_dot_product_flash_attention_backward": attention_backward,
        "aten._scaled_dot_product_cudnn_attention_backward": attention_backward,
        "aten._flash_attention_forward": of_dense(attention),
        "aten._efficient_attention_forward": of_dense(attention),
        "aten._flash_attention_backward": of_dense(attention_backward),
        "aten._efficient_attention_backward": of_dense(attention_backward),
    }
)
"""How each family of operators is counted."""

FAULTS: Final = (NotCountedError, ArithmeticError, LookupError, TypeError, ValueError)


def family_of(operator: str) -> str:
    """The name of an operator without its overload: ``aten.mm`` for ``aten.mm.default``."""
    parts = operator.split(".", 3)
    return ".".join(parts[:2]) if len(parts) == 3 else operator


def operator_flops(operator: str, inputs: Sequence[Any], outputs: Sequence[Any], settings: Any) -> int | None:
    """FLOPs of one dispatched operator; None where there is no formula for it, or its event does not tell enough.

    Args:
        operator: Its name with overload: ``aten.mm.default``.
        inputs: Shape and dtype of each tensor among its arguments, in order, also those within a list.
        outputs: The same of what it returned.
        settings: Its other arguments in order; only those of convolutions are read.
    """
    formula = FORMULAS.get(family_of(operator))
    if formula is None:
        return None
    try:
        found = formula(Operator(inputs, outputs, settings))
    except FAULTS:
        return None
    return found if found <= LARGEST else None


def has_no_work(family: str) -> bool:
    """Whether a family only moves, fills or views: then nothing is left out where it is not counted."""
    namespace, _, name = family.partition(".")
    rule = rule_of(name) if namespace in ("aten", "prim", "prims") else None
    return rule is not None and rule.formula is no_work
