"""How much work a torch call is: FLOPs and multiply-accumulates, from the shapes and arguments that its event holds.

Unit      one operation on one element is one FLOP, whatever the dtype: an addition, multiplication, division,
          comparison, logical operation or selection, and one elementary function (exp, log, sqrt, tanh, sin, erf,
          pow, ...). A fused function counts as the operations of its definition in torch's documentation. Moving,
          filling, converting and indexing count nothing.
Products  the multiply-accumulates of matrix products and convolutions are counted apart and are two FLOPs each
          (``fma2``), as ``torch.utils.flop_counter`` counts them; a padded or masked place counts like any other.
Gives     ``count(call)``: a ``Count``, with its evidence. ``formula_exact``: the definition, counted from shapes.
          ``estimated``: what an algorithm usually needs, with the reason why that may be off. ``unknown``: no count
          that would be honest, with the reason.
Rule      events may say anything: arguments that do not fit are unknown, never an error, and never zero.
Not       which calls there were, or sums over them (records/cost.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from journal.events.template import LIST, SIZE, TUPLE
from projections.columnar.arguments import argument_paths, flat_kwargs, is_tuple

Evidence: TypeAlias = Literal["formula_exact", "estimated", "unknown"]

LARGEST: Final = (1 << 63) - 1
"""More than this of anything is no count of a run that took place."""

MOST_AXES: Final = 64
MOST_OPERANDS: Final = 64
"""More axes or operands of a contraction than torch allows, and than a formula should look at."""


class Operand(NamedTuple):
    """A tensor that a call was given or returned, as far as a formula needs to know it."""

    shape: tuple[int, ...]
    requires_grad: bool = False
    is_dense: bool = True


class Count(NamedTuple):
    """The work of a call.

    Attributes:
        products: Per product its multiply-accumulates, and how many of its operands need a gradient.
        other: FLOPs beside them.
        evidence: How sure that is.
        reason: Why it is no more than an estimate, or unknown; None for what is exact.
    """

    products: tuple[tuple[int, int], ...] = ()
    other: int = 0
    evidence: Evidence = "formula_exact"
    reason: str | None = None

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates; None where unknown."""
        return None if self.evidence == "unknown" else sum([macs for macs, _ in self.products])

    @property
    def forward(self) -> int | None:
        """FLOPs of the forward; None where unknown."""
        macs = self.macs
        return None if macs is None else 2 * macs + self.other

    @property
    def backward(self) -> int | None:
        """FLOPs that its backward would take, as a rule; None where unknown.

        The gradient of a product with respect to one operand is a product of the same size; everything else is taken
        to cost as much again as its forward.
        """
        if self.evidence == "unknown":
            return None
        return sum([2 * macs * operands for macs, operands in self.products]) + self.other


NOTHING: Final = Count()


def unknown(reason: str) -> Count:
    return Count(evidence="unknown", reason=reason)


class NoCountError(Exception):
    """There is no honest count; the text says why."""


class Call:
    """A call as a formula sees it: arguments by position or name, and what was returned.

    Args:
        name: The function's name, as it is recorded.
        args: Templates of the positional arguments.
        kwargs: Names and templates of the keyword arguments, flat.
        tensors: The tensors among them, in order; None for one of which nothing is known.
        outputs: What was returned, in order.
    """

    __slots__ = ("args", "kwargs", "name", "outputs", "places", "tensors")

    def __init__(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Sequence[Any],
        tensors: Sequence[Operand | None],
        outputs: Sequence[Operand],
    ) -> None:
        self.name = name
        self.args = args
        self.kwargs = dict(flat_kwargs(kwargs))
        self.tensors = tensors
        self.outputs = outputs
        self.places = list(zip(argument_paths(args, kwargs), tensors, strict=False))

    def template(self, position: int, *names: str) -> Any:
        """What was given for a parameter; None where nothing was."""
        if 0 <= position < len(self.args):
            return self.args[position]
        return next((self.kwargs[name] for name in names if name in self.kwargs), None)

    def value(self, position: int, *names: str, default: Any = None) -> Any:
        """A plain value or a tuple of such; the default where None or nothing was given."""
        given = self.template(position, *names)
        if given is None:
            return default
        if not is_tuple(given):
            return given
        if given and given[0] in (TUPLE, LIST, SIZE):
            return given[1:]
        raise NoCountError(f"the argument {names[0] if names else position} is no plain value")

    def flag(self, position: int, *names: str, default: bool = False) -> bool:
        return bool(self.value(position, *names, default=default))

    def maybe(self, position: int, *names: str) -> Operand | None:
        """The tensor that was given for a parameter; None where none was."""
        for (argument, path), tensor in self.places:
            if not path and (argument == position or argument in names):
                return known(tensor)
        return None

    def tensor(self, position: int, *names: str) -> Operand:
        """The tensor that was given for a parameter, of which there is no doing without."""
        found = self.maybe(position, *names)
        if found is None:
            raise NoCountError(f"no tensor was given for {names[0] if names else f'argument {position}'}")
        return found

    def several(self, position: int, *names: str) -> list[Operand]:
        """The tensors in the sequence that was given for a parameter."""
        return [
            known(tensor)
            for (argument, path), tensor in self.places
            if path and (argument == position or argument in names)
        ]

    @property
    def every_tensor(self) -> list[Operand]:
        return [known(tensor) for tensor in self.tensors]

    @property
    def input(self) -> Operand:
        """What a function of one tensor was given: its first argument."""
        return self.tensor(0, "input", "self", "A", "x")

    @property
    def out(self) -> Operand:
        return self.outputs[0]


def known(tensor: Operand | None) -> Operand:
    if tensor is None:
        raise NoCountError("the shape of an argument is not known")
    return tensor


Formula: TypeAlias = Callable[[Call], Count]


class Reads(Enum):
    """What a call reads of what it is given, where nothing is read twice."""

    EVERYTHING = "all of it"
    SELECTED = "as many elements as it returns, and what is no larger: indices"
    NOTHING = "nothing but shapes"
    A_PART = "a part that its arguments do not tell; it writes no more than that"


# Sizes ---------------------------------------------------------------------------------------------


def numel(shape: Sequence[int]) -> int:
    """Elements of a shape."""
    if len(shape) > MOST_AXES:
        raise NoCountError("a tensor has more axes than torch allows")
    size = math.prod(shape)
    if size < 0 or size > LARGEST:
        raise NoCountError("a tensor is larger than any memory")
    return size


def size_of(tensor: Operand) -> int:
    return numel(tensor.shape)


def returned(call: Call) -> int:
    """Elements of everything that was returned."""
    return sum([size_of(output) for output in call.outputs])


def whole(value: Any) -> int:
    """A size or an axis. A truth is none, though Python counts it as a number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise NoCountError("an argument is no whole number")
    return value


def axes_of(value: Any, ndim: int) -> list[int]:
    """Axes from one number, several, or None for all; each once, counted from the front."""
    if value is None:
        return list(range(ndim))
    given = [value] if isinstance(value, int) else list(value)
    if not given:
        return list(range(ndim))
    if len(given) > MOST_AXES:
        raise NoCountError("more axes are named than torch allows")
    return list(dict.fromkeys([whole(axis) % ndim if ndim else 0 for axis in given]))


def along(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Elements along some axes; 1 for a scalar."""
    return numel([shape[axis] for axis in axes]) if shape else 1


def window(value: Any, rank: int) -> int:
    """Elements of a pooling window given as one number or one for each axis."""
    sizes = [value] * rank if isinstance(value, int) else list(value)
    if len(sizes) == 1:
        sizes *= rank
    return numel([whole(size) for size in sizes])


def rank_in(name: str) -> int:
    """The number of axes that a function's name ends with: 2 of ``avg_pool2d``."""
    digits = [character for character in name if character.isdigit()]
    if not digits:
        raise NoCountError("the function's name does not say its number of axes")
    return int(digits[-1])


def doublings(count: int) -> int:
    """Steps of a binary search among ``count``."""
    return max(1, (count - 1).bit_length())


def log_times(factor: float, count: int, length: int) -> int:
    """``factor * count * log2(length)``, without leaving whole numbers where these are large."""
    return round(factor * math.log2(length) * 1024) * count // 1024 if length > 1 else 0


# Elementwise ---------------------------------------------------------------------------------------


def each(flops: int) -> Formula:
    """So many FLOPs for each element that is returned."""
    return lambda call: Count(other=flops * returned(call))


def about(flops: int, reason: str) -> Formula:
    """An estimate of so many FLOPs for each element that is returned."""
    return lambda call: Count(other=flops * returned(call), evidence="estimated", reason=reason)


def of_input(flops: int, reason: str) -> Formula:
    """An estimate of so many FLOPs for each element that is given."""
    return lambda call: Count(other=flops * size_of(call.input), evidence="estimated", reason=reason)


def nothing(call: Call) -> Count:
    return NOTHING


def none_honest(reason: str) -> Formula:
    return lambda call: unknown(reason)


def scaled(flops: int, position: int, name: str) -> Formula:
    """One FLOP more for each element where a factor other than 1 is given."""

    def formula(call: Call) -> Count:
        factor = call.value(position, name, default=1)
        return Count(other=(flops + (factor != 1)) * returned(call))

    return formula


def clamp(call: Call) -> Count:
    """One comparison for each bound that is given."""
    bounds = sum(call.template(position, name) is not None for position, name in ((1, "min"), (2, "max")))
    return Count(other=bounds * returned(call))


def gelu(call: Call) -> Count:
    """``x/2 * (1 + erf(x / sqrt(2)))``, or the form with tanh."""
    return Count(other=(9 if call.value(1, "approximate", default="none") == "tanh" else 5) * returned(call))


def dropout(call: Call) -> Count:
    """A draw, a product with the mask and one with the scale; nothing in evaluation."""
    rate = call.value(1, "p", default=0.5)
    training = call.value(2, "train", "training", default=True)
    if not training or rate == 0:
        return NOTHING
    return Count(other=3 * returned(call), evidence="estimated", reason=DRAWN)


DRAWN: Final = "a random draw counts as one operation"


def extreme(call: Call) -> Count:
    """``max`` and ``min``: of two tensors, or of the elements of one."""
    if call.maybe(1, "other") is not None:
        return Count(other=returned(call))
    return reduced(1)(call)


# Reductions, sums along an axis, softmax -----------------------------------------------------------------


def reduced(per_element: int, per_result: int = -1) -> Formula:
    """So many FLOPs for each element that is reduced and for each result: n - m for sums of n elements to m."""

    def formula(call: Call) -> Count:
        return Count(other=max(0, per_element * size_of(call.input) + per_result * size_of(call.out)))

    return formula


def norm(call: Call) -> Count:
    """Powers of the absolute values, their sums, roots of those; squares need no absolute value."""
    order = call.value(1, "p", "ord", "pow", default=2)
    entries, results = size_of(call.input), size_of(call.out)
    if order in (2, "fro"):
        return Count(other=2 * entries)
    if order in (0, 1, math.inf, -math.inf):
        return Count(other=max(0, 2 * entries - results))
    if isinstance(order, int | float):
        return Count(other=3 * entries)
    raise NoCountError("the norm is that of singular values")


def frobenius(call: Call) -> Count:
    """Squares, their sums, roots of those."""
    if call.name == "matrix_norm" and call.value(1, "ord", default="fro") != "fro":
        raise NoCountError("the norm is that of singular values, or of sums of rows")
    return Count(other=2 * size_of(call.input))


def running(flops: int) -> Formula:
    """So many FLOPs for each element but the first along an axis: cumsum."""

    def formula(call: Call) -> Count:
        shape = call.input.shape
        length = along(shape, axes_of(call.value(1, "dim"), len(shape)))
        total = numel(shape)
        return Count(other=flops * (total - total // length if length else 0))

    return formula


def softmax(per_row: int) -> Formula:
    """Maximum, difference, exponential, sum and quotient along an axis; with log, a logarithm for each row."""

    def formula(call: Call) -> Count:
        shape = call.input.shape
        axis = call.value(1, "dim")
        if axis is None:
            return Count(other=5 * numel(shape), evidence="estimated", reason="the axis is not known")
        length = along(shape, axes_of(axis, len(shape)))
        return Count(other=max(0, 5 * numel(shape) + per_row * (numel(shape) // length if length else 0)))

    return formula


def logsumexp(call: Call) -> Count:
    """Maximum, difference, exponential and sum, and for each result a logarithm and an addition."""
    return Count(other=4 * size_of(call.input))


SORTED: Final = "n log2 n comparisons, as a comparison sort needs them; torch may sort otherwise"


def sort(call: Call) -> Count:
    shape = call.input.shape
    axis = call.value(1, "dim", default=-1)
    length = along(shape, axes_of(whole(axis) if not isinstance(axis, bool) else -1, len(shape)))
    return Count(other=log_times(1, numel(shape), length), evidence="estimated", reason=SORTED)


def sort_all(call: Call) -> Count:
    entries = size_of(call.input)
    return Count(other=log_times(1, entries, entries), evidence="estimated", reason=SORTED)


def topk(call: Call) -> Count:
    """A heap of k elements is asked for each element."""
    wanted = whole(call.value(1, "k", default=1))
    return Count(
        other=size_of(call.input) * doublings(max(1, wanted)),
        evidence="estimated",
        reason="a heap of k elements is assumed; torch may select otherwise",
    )


SELECTED: Final = "about three comparisons for each element, as selecting by pivots needs them; the values decide"


def select(call: Call) -> Count:
    """The k-th value of some: median, quantile."""
    return Count(other=3 * size_of(call.input), evidence="estimated", reason=SELECTED)


def searched(sorted_at: int, sorted_name: str) -> Formula:
    """A binary search for each element."""

    def formula(call: Call) -> Count:
        boundaries = call.tensor(sorted_at, sorted_name).shape
        length = boundaries[-1] if boundaries else 1
        return Count(
            other=returned(call) * doublings(length + 1),
            evidence="estimated",
            reason="a binary search for each element",
        )

    return formula


def diff(call: Call) -> Count:
    order = whole(call.value(1, "n", default=1))
    if order == 1:
        return Count(other=returned(call))
    return Count(other=max(0, order) * returned(call), evidence="estimated", reason="earlier differences are longer")


def cross_product(call: Call) -> Count:
    """Two products and a difference for each component."""
    return Count(other=3 * returned(call))


# Products ------------------------------------------------------------------------------------------


def product(macs: int, *operands: Operand, other: int = 0) -> Count:
    return Count(((macs, needing(*operands)),), other)


def needing(*operands: Operand) -> int:
    """How many operands need a gradient."""
    return sum([operand.requires_grad for operand in operands])


def matrix_product(left: Operand, right: Operand) -> int:
    """Multiply-accumulates of ``left @ right`` by the rules of matmul: batches are broadcast."""
    a, b = left.shape, right.shape
    if not a or not b or len(a) > MOST_AXES or len(b) > MOST_AXES:
        raise NoCountError("a scalar has no matrix product")
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if a[-1] != b[-2]:
        raise NoCountError("the shapes of the operands do not fit")
    return numel((*broadcast(a[:-2], b[:-2]), a[-2], a[-1], b[-1]))


def broadcast(a: Sequence[int], b: Sequence[int]) -> list[int]:
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise NoCountError("the shapes of the operands do not fit")
    return [y if x == 1 else x for x, y in pairs]


def matmul(call: Call) -> Count:
    left, right = call.input, call.tensor(1, "other", "mat2", "vec", "vec2", "tensor", "y")
    if call.name == "__rmatmul__":
        left, right = right, left
    return product(matrix_product(left, right), left, right)


def added(call: Call) -> Count:
    """A product that is added to a tensor: addmm, baddbmm; a factor other than 1 is one FLOP more an element.

    With ``beta=0`` the tensor is not looked at, and nothing is added.
    """
    left = call.tensor(1, "mat1", "batch1", "mat", "vec1")
    right = call.tensor(2, "mat2", "batch2", "vec", "vec2")
    beta, alpha = call.value(3, "beta", default=1), call.value(4, "alpha", default=1)
    each = (0 if beta == 0 else 1 + (beta != 1)) + (alpha != 1)
    return product(matrix_product(left, right), left, right, other=each * size_of(call.out))


def outer(call: Call) -> Count:
    """Products without a sum are no multiply-accumulates."""
    return Count(other=returned(call))


def addr(call: Call) -> Count:
    left, right = call.tensor(1, "vec1"), call.tensor(2, "vec2")
    return product(returned(call), left, right)


def inner(call: Call) -> Count:
    """A sum over the last axis of both; with a scalar, plain products."""
    left, right = call.input, call.tensor(1, "other")
    if not left.shape or not right.shape:
        return Count(other=returned(call))
    return product(numel((size_of(call.out), left.shape[-1])), left, right)


def vecdot(call: Call) -> Count:
    left, right = call.input, call.tensor(1, "y", "other")
    shape = broadcast(left.shape, right.shape)
    return product(numel(shape), left, right)


def tensordot(call: Call) -> Count:
    """The sizes that are summed over stand in both operands and not in the result."""
    left, right = call.tensor(0, "a", "self", "input"), call.tensor(1, "b", "other")
    results = size_of(call.out)
    if not results:
        return product(0, left, right)
    summed, rest = divmod(size_of(left) * size_of(right), results)
    length = math.isqrt(summed)
    if rest or length * length != summed:
        raise NoCountError("the shapes of the operands do not fit")
    return product(numel((results, length)), left, right)


def linear(call: Call) -> Count:
    entries, weight = call.input, call.tensor(1, "weight")
    results = numel((*entries.shape[:-1], *weight.shape[:-1]))
    bias = call.maybe(2, "bias")
    macs = numel((results, entries.shape[-1]))
    return product(macs, entries, weight, other=0 if bias is None else results)


def bilinear(call: Call) -> Count:
    """``x1 W x2`` for each output feature: first with ``x2``, then with ``x1``."""
    first, second, weight = call.tensor(0, "input1"), call.tensor(1, "input2"), call.tensor(2, "weight")
    features, rows, columns = weight.shape
    samples = numel(first.shape[:-1])
    macs = numel((samples, features, rows, columns + 1))
    bias = call.maybe(3, "bias")
    count = product(macs, first, second, other=0 if bias is None else samples * features)
    return count._replace(evidence="estimated", reason="torch may multiply in another order")


def chain(call: Call) -> Count:
    """Several matrices in the cheapest order, as ``multi_dot`` chooses it."""
    operands = call.every_tensor
    if not 2 <= len(operands) <= MOST_OPERANDS:
        raise NoCountError("so many operands are not looked at")
    shapes = [operand.shape for operand in operands]
    sizes = [shapes[0][0] if len(shapes[0]) > 1 else 1, *(shape[-1] for shape in shapes[:-1])]
    sizes.append(shapes[-1][1] if len(shapes[-1]) > 1 else 1)
    cheapest: dict[tuple[int, int], int] = {(at, at): 0 for at in range(len(operands))}
    for span in range(1, len(operands)):
        for start in range(len(operands) - span):
            stop = start + span
            cheapest[start, stop] = min(
                cheapest[start, cut] + cheapest[cut + 1, stop] + sizes[start] * sizes[cut + 1] * sizes[stop + 1]
                for cut in range(start, stop)
            )
    return Count(((cheapest[0, len(operands) - 1], 2 if needing(*operands) else 0),))


def grouped(call: Call) -> Count:
    """``grouped_mm``: rows, columns or summed places of 2-d operands are dealt out to the groups."""
    left, right = call.input, call.tensor(1, "mat2", "mat_b", "other")
    a, b = left.shape, right.shape
    if len(a) == 3 and len(b) == 3:
        return product(matrix_product(left, right), left, right)
    columns = b[-1]
    count = product(numel((a[-2], a[-1], columns)), left, right)
    return count._replace(evidence="estimated", reason="what the offsets leave out is counted too")


def scaled_product(call: Call) -> Count:
    left, right = call.input, call.tensor(1, "mat2", "mat_b", "other")
    return product(matrix_product(left, right), left, right, other=size_of(call.out))


def einsum(call: Call) -> Count:
    """Two operands at a time from the left; what only one operand has and nobody asks for is summed before."""
    equation = call.value(0, "equation")
    if not isinstance(equation, str):
        raise NoCountError("the equation is no text")
    operands = call.every_tensor
    if not 1 <= len(operands) <= MOST_OPERANDS or len(equation) > MOST_OPERANDS * MOST_AXES:
        raise NoCountError("so many operands are not looked at")
    terms, wanted = einsum_terms(equation.replace(" ", ""), [operand.shape for operand in operands])
    products: list[tuple[int, int]] = []
    other = 0
    held, needs = terms[0], operands[0].requires_grad
    for place in range(1, len(terms)):
        later = wanted.union(*terms[place + 1 :])
        joined = terms[place]
        held, summed = summed_out(held, later | joined.keys())
        joined, more = summed_out(joined, later | held.keys())
        other += summed + more
        sizes = {label: max(held.get(label, 1), joined.get(label, 1)) for label in (*held, *joined)}
        work = numel(list(sizes.values()))
        if sizes.keys() <= later:
            other += work
        else:
            products.append((work, needs + operands[place].requires_grad))
        held = {label: size for label, size in sizes.items() if label in later}
        needs = needs or operands[place].requires_grad
    _, summed = summed_out(held, wanted)
    in_order = len(operands) <= 2
    return Count(
        tuple(products),
        other + summed,
        "formula_exact" if in_order else "estimated",
        None if in_order else "torch may contract the operands in another order",
    )


Sizes: TypeAlias = "dict[str, int]"


def einsum_terms(equation: str, shapes: Sequence[Sequence[int]]) -> tuple[list[Sizes], set[str]]:
    """Sizes by label of each operand, and the labels of the result; axes under an ellipsis are ``.0``, ``.1``, ... from
    the right."""
    before, arrow, after = equation.partition("->")
    texts = before.split(",")
    if len(texts) != len(shapes):
        raise NoCountError("the equation has other operands")
    terms = [dict(labelled(text, shape)) for text, shape in zip(texts, shapes, strict=True)]
    hidden = {label for term in terms for label in term if label[0] == "."}
    letters = [character for text in texts for character in text.replace("...", "")]
    if arrow:
        wanted = set(after.replace("...", "")) | (hidden if "..." in after else set[str]())
    else:
        wanted = {letter for letter in letters if letters.count(letter) == 1} | hidden
    return terms, wanted


def labelled(text: str, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    before, ellipsis, after = text.partition("...")
    under = len(shape) - len(before) - len(after)
    if under < 0 or (under and not ellipsis):
        raise NoCountError("an operand has other axes than the equation")
    yield from zip(before, shape, strict=False)
    for place in range(under):
        yield f".{under - 1 - place}", shape[len(before) + place]
    yield from zip(after, shape[len(before) + under :], strict=False)


def summed_out(sizes: Sizes, kept: set[str]) -> tuple[Sizes, int]:
    """The axes that are kept, and the additions that sum over the others."""
    left = {label: size for label, size in sizes.items() if label in kept}
    return left, max(0, numel(list(sizes.values())) - numel(list(left.values())))


# Convolutions -----------------------------------------------------------------------------------------


def convolution(transposed: bool) -> Formula:
    """One multiply-accumulate for each weight of a filter at each place; transposed, places are those of the input."""

    def formula(call: Call) -> Count:
        entries, weight = call.input, call.tensor(1, "weight")
        bias = call.maybe(2, "bias")
        return convolved(call, entries, weight, bias, transposed)

    return formula


def convolved(call: Call, entries: Operand, weight: Operand, bias: Operand | None, transposed: bool) -> Count:
    if len(weight.shape) < 3:
        raise NoCountError("the weight is that of no convolution")
    places = size_of(entries) if transposed else size_of(call.out)
    macs = numel((places, *weight.shape[1:]))
    return product(macs, entries, weight, other=0 if bias is None else size_of(call.out))


def any_convolution(call: Call) -> Count:
    """``torch.convolution`` says by an argument whether it is transposed."""
    return convolution(call.flag(6, "transposed"))(call)


def conv_tbc(call: Call) -> Count:
    entries, weight = call.input, call.tensor(1, "weight")
    kernel, channels, _ = weight.shape
    return product(numel((size_of(call.out), kernel, channels)), entries, weight, other=size_of(call.out))


# Attention ----------------------------------------------------------------------------------------------

MASKED: Final = "counted in full; a fused kernel may skip what the causal mask hides"


def attention(call: Call) -> Count:
    """Scores, scale, mask, softmax and the weighted sum of the values: two products, for each head of the query."""
    query, key, value = call.tensor(0, "query"), call.tensor(1, "key"), call.tensor(2, "value")
    *batch, length, width = query.shape
    keys, depth = key.shape[-2], value.shape[-1]
    rows = numel((*batch, length))
    scores = numel((rows, keys))
    other = 6 * scores - 2 * rows
    mask = call.maybe(3, "attn_mask")
    causal = call.flag(5, "is_causal")
    if mask is not None or causal:
        other += scores
    drawn = call.value(4, "dropout_p", default=0.0)
    reason = MASKED if causal else None
    if drawn:
        other, reason = other + 3 * scores, DRAWN
    scoring = (numel((scores, width)), needing(query, key))
    summing = (numel((scores, depth)), min(1, needing(query, key)) + needing(value))
    return Count((scoring, summing), max(0, other), "formula_exact" if reason is None else "estimated", reason)


def heads(call: Call) -> Count:
    """Multi-head attention as one call: three projections, attention, and the projection of what comes out."""
    query, key = call.tensor(0, "query"), call.tensor(1, "key")
    batch_first = call.name == "_native_multi_head_attention"
    width = whole(call.value(3, "embed_dim", "embed_dim_to_check"))
    count = whole(call.value(4, "num_head", "num_heads"))
    if len(query.shape) == 3:
        batch, length = (query.shape[:2]) if batch_first else query.shape[1::-1]
        keys = key.shape[1 if batch_first else 0]
    else:
        batch, length, keys = 1, query.shape[0], key.shape[0]
    return encoded(call, batch, length, keys, width, count, 0)


FUSED: Final = "the kernel's own arrangement may save some of it"


def encoder_layer(call: Call) -> Count:
    """A whole encoder layer as one call: attention, two norms, and the two linear layers."""
    entries = call.input
    width, count = whole(call.value(1, "embed_dim")), whole(call.value(2, "num_heads"))
    batch, length, _ = entries.shape
    inner_width = call.tensor(14, "ffn_weight_1").shape[0]
    return encoded(call, batch, length, length, width, count, inner_width)


def encoded(call: Call, batch: int, length: int, keys: int, width: int, count: int, inner_width: int) -> Count:
    tokens, others = batch * length, batch * keys
    scores = numel((batch, count, length, keys))
    projected = numel((width, width)) * (2 * tokens + 2 * others)
    attended = 2 * numel((batch, length, keys, width))
    inside = 2 * numel((tokens, width, inner_width))
    other = 6 * scores + 2 * width * (tokens + others)
    if inner_width:
        other += tokens * (6 * inner_width + width) + 2 * tokens * (8 * width + 2)
    operands = 2 if call.out.requires_grad else 0
    return Count(tuple([(macs, operands) for macs in (projected, attended, inside)]), other, "estimated", FUSED)


# Recurrent kernels --------------------------------------------------------------------------------------

GATES: Final = MappingProxyType({"lstm": (4, 22), "gru": (3, 17), "rnn_tanh": (1, 2), "rnn_relu": (1, 2)})
"""Rows of a weight for each hidden unit, and FLOPs for each hidden unit and step beside products and biases: the sums
of both halves of a gate, its sigmoid (4) or tanh (1), and what makes the new state."""


def recurrent(call: Call) -> Count:
    """Each weight is used once for each step of each sequence, whatever layer and direction it is of."""
    gates, work = GATES[call.name]
    entries = call.input
    sequences = [call.several(position) for position in range(1, len(call.args))]
    none: list[Operand] = []
    weights = next((found for found in sequences if found and len(found[0].shape) == 2), none)
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    if not matrices:
        raise NoCountError("no weights are among the arguments")
    rows = matrices[0].shape[0]
    has_projection = len(matrices) % 3 == 0 and matrices[2].shape[0] != rows
    cells = len(matrices) // (3 if has_projection else 2)
    steps = numel(entries.shape[:-1])
    macs = steps * sum(map(size_of, matrices))
    biases = sum([size_of(weight) for weight in weights if len(weight.shape) == 1])
    trained = min(1, needing(*matrices))
    needs = trained + int(bool(trained) or entries.requires_grad)
    return Count(((macs, needs),), steps * (biases + cells * rows // gates * work))


def recurrent_cell(call: Call) -> Count:
    """One step."""
    gates, work = GATES[call.name.removesuffix("_cell")]
    entries, into, across = call.input, call.tensor(2, "w_ih"), call.tensor(3, "w_hh")
    steps = numel(entries.shape[:-1])
    biases = [bias for bias in (call.maybe(4, "b_ih"), call.maybe(5, "b_hh")) if bias is not None]
    other = steps * (sum(map(size_of, biases)) + into.shape[0] // gates * work)
    macs = steps * (size_of(into) + size_of(across))
    return product(macs, entries, into, other=other)


# Normalisations -----------------------------------------------------------------------------------------


def normalised(entries: int, groups: int, *affine: Operand | None) -> int:
    """Mean (n), difference (n), squares (n), their mean (n), eps and root (a group each), product with that (n)."""
    return 5 * entries + 2 * groups + entries * sum(part is not None for part in affine)


def layer_norm(call: Call) -> Count:
    shape = call.input.shape
    groups = numel(shape[: len(shape) - normalised_axes(call)])
    return Count(other=normalised(numel(shape), groups, call.maybe(2, "weight"), call.maybe(3, "bias")))


def normalised_axes(call: Call) -> int:
    axes = call.value(1, "normalized_shape")
    return 1 if isinstance(axes, int) else len(axes)


def rms_norm(call: Call) -> Count:
    """Squares (n), their mean (n), eps and root (a row each), product with that (n)."""
    shape = call.input.shape
    rows = numel(shape[: len(shape) - normalised_axes(call)])
    weight = call.maybe(2, "weight")
    return Count(other=(3 + (weight is not None)) * numel(shape) + 2 * rows)


def group_norm(call: Call) -> Count:
    shape = call.input.shape
    groups = shape[0] * whole(call.value(1, "num_groups"))
    return Count(other=normalised(numel(shape), groups, call.maybe(2, "weight"), call.maybe(3, "bias")))


def native_group_norm(call: Call) -> Count:
    shape = call.input.shape
    groups = shape[0] * whole(call.value(6, "group"))
    return Count(other=normalised(numel(shape), groups, call.maybe(1, "weight"), call.maybe(2, "bias")))


def batch_norm(per_sample: bool) -> Formula:
    """With statistics of the batch, or, in evaluation, those that are kept: eps and root a channel, two an element."""

    def formula(call: Call) -> Count:
        shape = call.input.shape
        samples, channels = shape[:2]
        affine = (call.maybe(1, "weight"), call.maybe(2, "bias"))
        kept = call.maybe(3, "running_mean")
        entries = numel(shape)
        if not call.flag(5, "training", "use_input_stats", default=kept is None):
            return Count(other=2 * entries + 2 * channels + entries * sum(part is not None for part in affine))
        groups = channels * samples if per_sample else channels
        updated = 0 if kept is None else 7 * channels  # both running averages, the variance once corrected
        return Count(other=normalised(entries, groups, *affine) + updated)

    return formula


def weight_norm(call: Call) -> Count:
    """Squares and their sums, roots, ``g`` over those, product with that."""
    scale = call.tensor(1, "g")
    return Count(other=3 * size_of(call.input) + size_of(scale))


# Losses ---------------------------------------------------------------------------------------------------


def loss(per_element: int) -> Formula:
    """So many FLOPs for each element, and its mean or sum where that is asked for."""

    def formula(call: Call) -> Count:
        entries = numel(broadcast(call.input.shape, call.tensor(1, "target", "other").shape))
        return Count(other=(per_element + is_gathered(call)) * entries)

    return formula


def is_gathered(call: Call) -> bool:
    """Whether a loss is one number: with no reduction it has its input's shape."""
    return not call.out.shape


def about_loss(per_element: int) -> Formula:
    def formula(call: Call) -> Count:
        entries = size_of(call.input)
        return Count(
            other=(per_element + 1) * entries,
            evidence="estimated",
            reason="options and the kind of mean may add or save an operation an element",
        )

    return formula


def cross_entropy(call: Call) -> Count:
    """Log-softmax over the classes, the target's entry with its sign changed, and the mean."""
    entries, target = call.input, call.tensor(1, "target")
    total = size_of(entries)
    axis = 1 if len(entries.shape) > 1 else 0
    classes = entries.shape[axis]
    rows = total // classes if classes else 0
    other = max(0, 5 * total - rows) + (1 + is_gathered(call)) * rows
    place = 5 if call.name == "cross_entropy_loss" else 7
    special = call.maybe(2, "weight") is not None or bool(call.value(place, "label_smoothing", default=0.0))
    if target.shape == entries.shape and len(target.shape) > 0:
        other += 2 * total
        special = True
    if not special:
        return Count(other=other)
    return Count(other=other + rows, evidence="estimated", reason="weights and smoothing add to each row")


def nll_loss(call: Call) -> Count:
    """The target's entry with its sign changed, and the mean."""
    return Count(other=(1 + is_gathered(call)) * size_of(call.tensor(1, "target")))


# Pooling and resampling --------------------------------------------------------------------------------


def average_pool(call: Call) -> Count:
    """The mean of each window, padding included."""
    return Count(other=returned(call) * window(call.value(1, "kernel_size"), rank_in(call.name)))


def max_pool(call: Call) -> Count:
    """The largest of each window, padding included."""
    places = window(call.value(1, "kernel_size"), rank_in(call.name.removesuffix("_with_indices")))
    return Count(other=size_of(call.out) * max(0, places - 1))


def adaptive_pool(per_result: int) -> Formula:
    """Windows that cover the input once, where sizes divide."""

    def formula(call: Call) -> Count:
        entries, results = call.input.shape, call.out.shape
        total = max(0, numel(entries) + per_result * numel(results))
        if all(size and not length % size for length, size in zip(entries, results, strict=True)):
            return Count(other=total)
        return Count(other=total, evidence="estimated", reason="the windows overlap")

    return formula


CORNERS: Final = MappingProxyType({"linear": 3, "bilinear": 7, "trilinear": 15, "bicubic": 31})
"""A product with each neighbour's weight, and their sum."""


def interpolate(call: Call) -> Count:
    mode = call.value(3, "mode", default="bilinear" if call.name == "upsample_bilinear" else "nearest")
    if mode in ("nearest", "nearest-exact"):
        return NOTHING
    if mode == "area":
        return Count(other=size_of(call.input), evidence="estimated", reason="the windows may overlap")
    work = CORNERS.get(mode)
    if work is None:
        raise NoCountError("the mode is none that is known")
    return Count(other=work * returned(call), evidence="estimated", reason="the neighbours' weights are not counted")


def grid_sample(call: Call) -> Count:
    """Corners of a cell, and the weights from the place in it."""
    corners = 1 << (len(call.input.shape) - 2)
    if call.value(2, "mode", "interpolation_mode", default="bilinear") in ("nearest", 1):
        return NOTHING
    return Count(
        other=3 * min(corners, 8) * returned(call), evidence="estimated", reason="places outside count like others"
    )


def affine_grid(call: Call) -> Count:
    theta = call.tensor(0, "theta")
    return product(numel((size_of(call.out), theta.shape[-1])), theta)


# Fourier transforms --------------------------------------------------------------------------------------

FOURIER: Final = "5 n log2 n for a complex transform of length n, and half of that for a real one"


def fourier(factor: float, of_input: bool, rank: int | None = 1) -> Formula:
    """Transforms along one axis, two, or those that are named; the real side's length counts."""

    def formula(call: Call) -> Count:
        shape = (call.input if of_input else call.out).shape
        default = {1: -1, 2: (-2, -1)}.get(rank or 0)
        length = along(shape, axes_of(call.value(2, "dim", default=default), len(shape)))
        return Count(other=log_times(factor, numel(shape), length), evidence="estimated", reason=FOURIER)

    return formula


def short_time_fourier(call: Call) -> Count:
    """A window's product and a real transform for each frame."""
    length = whole(call.value(1, "n_fft"))
    bins = length // 2 + 1
    spectrum = call.out if call.name == "stft" else call.input
    frames = size_of(spectrum) // bins if bins else 0
    work = log_times(2.5, length, length) + length
    return Count(other=frames * work, evidence="estimated", reason=FOURIER)


# Decompositions ------------------------------------------------------------------------------------------

DECOMPOSED: Final = "the leading terms of the textbook algorithm"


def decomposed(thirds: int, right_hand: int = 0) -> Formula:
    """So many thirds of n cubed for each square matrix, and so often n squared for each column of a right-hand side."""

    def formula(call: Call) -> Count:
        *batch, rows, columns = call.input.shape
        small, large = min(rows, columns), max(rows, columns)
        cubes = numel((*batch, small, small, large))
        solved = 0
        if right_hand:
            second = call.tensor(1, "B", "input2", "other").shape
            solved = right_hand * numel((*batch, rows, second[-1] if len(second) > 1 else 1)) * rows
        return Count(other=thirds * cubes // 3 + solved, evidence="estimated", reason=DECOMPOSED)

    return formula


# Counting where things go --------------------------------------------------------------------------------


def accumulated(position: int, *names: str) -> Formula:
    """One addition, or whatever else gathers, for each element of the source."""

    def formula(call: Call) -> Count:
        source = call.maybe(position, *names)
        return Count(other=returned(call) if source is None else size_of(source))

    return formula


def index_put(call: Call) -> Count:
    if not call.flag(3, "accumulate"):
        return NOTHING
    return Count(other=size_of(call.tensor(2, "values")))


def scatter(call: Call) -> Count:
    if call.value(4, "reduce") is None:
        return NOTHING
    return accumulated(3, "src")(call)


def embedding_bag(call: Call) -> Count:
    """Sums of rows: one addition for each element that is gathered, save the first of each bag."""
    weight, indices = call.tensor(0, "weight", "input"), call.tensor(1, "indices", "input")
    if len(weight.shape) != 2:
        weight, indices = indices, weight
    gathered_entries = size_of(indices) * weight.shape[-1]
    other = max(0, gathered_entries - size_of(call.out))
    return Count(other=other, evidence="estimated", reason="empty bags and padding are not told apart")


def histogram(call: Call) -> Count:
    return Count(other=4 * size_of(call.input), evidence="estimated", reason="a bin is found in about four operations")


def pairs_of_rows(call: Call) -> Count:
    """A difference, a power and a sum for each coordinate of each pair, and a root."""
    return Count(
        other=numel((size_of(call.out), 3 * call.input.shape[-1])),
        evidence="estimated",
        reason="torch may form distances from a matrix product",
    )


def cosine(call: Call) -> Count:
    """Three products of vectors, roots, bounds and a quotient."""
    entries = numel(broadcast(call.tensor(0, "x1").shape, call.tensor(1, "x2").shape))
    return Count(other=6 * entries + 5 * size_of(call.out), evidence="estimated", reason="bounds against zero vary")


# The table -------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """How the functions of a group are counted."""

    formula: Formula
    reads: Reads = Reads.EVERYTHING


def rules(names: str, formula: Formula, reads: Reads = Reads.EVERYTHING) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule(formula, reads))


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        # Moving, filling, converting and indexing: no arithmetic. Views do not even read.
        **rules(
            """
            adjoint alias_copy as_strided as_strided_copy as_strided_scatter atleast_1d atleast_2d atleast_3d bfloat16
            block_diag bool broadcast_tensors broadcast_to byte cartesian_prod cat cdouble cfloat chalf channel_shuffle
            char chunk clone coalesce column_stack combinations complex concat concatenate conj conj_physical
            constant_pad_nd contiguous copy cpu cuda detach detach_copy diag diag_embed diagflat diagonal diagonal_copy
            diagonal_scatter double dsplit dstack expand expand_as expand_copy fftshift fill fill_diagonal flatten flip
            fliplr flipud float half hsplit hstack identity ifftshift imag indices indices_copy int int_repr ipu
            isreal lazy_clone long max_unpool1d max_unpool2d max_unpool3d meshgrid moveaxis movedim mtia narrow
            native_channel_shuffle neg_view pad permute permute_copy pin_memory pixel_shuffle pixel_unshuffle positive
            ravel real repeat repeat_interleave reshape reshape_as resize resize_as resize_as_sparse resolve_conj
            resolve_neg roll rot90 row_stack select_copy select_scatter set set_H set_T set_data set_imag set_mH set_mT
            set_real short slice_copy slice_inverse slice_scatter split split_copy split_with_sizes
            split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t t_copy tensor_split tile to to_dense
            to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr
            transpose transpose_copy tril triu type type_as unbind unbind_copy unflatten unfold unfold_copy
            unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy values values_copy view
            view_as view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack xpu
            T mT H mH data _autocast_to_full_precision _autocast_to_reduced_precision _coalesce _coalesced _conj
            _conj_physical _foreach_clone _foreach_copy _indices _lazy_clone _neg_view _pack_padded_sequence
            _pad_packed_sequence _shape_as_tensor _stack _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr
            _to_sparse_csc _to_sparse_csr _values ccol_indices ccol_indices_copy col_indices col_indices_copy
            crow_indices crow_indices_copy row_indices row_indices_copy q_per_channel_scales
            q_per_channel_zero_points masked_scatter lift lift_fresh lift_fresh_copy alias slice
            _reshape_alias _to_copy _unsafe_view __deepcopy__
            """,
            nothing,
        ),
        **rules(
            """
            __getitem__ embedding gather index_select masked_select narrow_copy nonzero nonzero_static argwhere
            select take take_along_dim one_hot sparse_mask _sparse_mask_projection
            """,
            nothing,
            Reads.SELECTED,
        ),
        **rules("__setitem__ index_copy index_fill put", nothing, Reads.A_PART),
        **rules(
            """
            arange as_tensor asarray empty empty_like empty_permuted empty_quantized empty_strided eye fftfreq
            from_numpy frombuffer full full_like linspace logspace new new_empty new_empty_strided new_full new_ones
            new_tensor new_zeros ones ones_like range rfftfreq scalar_tensor sparse_bsc_tensor sparse_bsr_tensor
            sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor spdiags tensor tril_indices
            triu_indices zero zeros zeros_like _foreach_zero
            """,
            nothing,
            Reads.NOTHING,
        ),
        # One operation for each element: arithmetic, comparisons, logic, selections, elementary functions.
        **rules(
            """
            abs absolute acos acosh airy_ai and angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
            atan atan2 atanh bessel_j0 bessel_j1 bessel_y0 bessel_y1 bitwise_and bitwise_left_shift bitwise_not
            bitwise_or bitwise_right_shift bitwise_xor ceil clamp_max clamp_min copysign cos cosh deg2rad digamma div
            divide eq erf erfc erfcx erfinv exp exp2 expm1 fix float_power floor floor_divide floordiv fmax fmin fmod
            frac gammaln ge greater greater_equal gt heaviside i0 i0e i1 i1e invert isfinite isinf isnan isneginf
            isposinf le less less_equal lgamma log log10 log1p log2 log_ndtr logical_and logical_not logical_or
            logical_xor lshift lt masked_fill maximum minimum mod modified_bessel_i0 modified_bessel_i1
            modified_bessel_k0 modified_bessel_k1 mul multiply ndtr ndtri ne neg negative nextafter not_equal or
            polygamma pow psi rad2deg reciprocal relu remainder round rshift rsqrt
            scaled_modified_bessel_k0 scaled_modified_bessel_k1 sgn sign signbit sin sinh spherical_bessel_j0 sqrt
            square tan tanh threshold true_divide truediv trunc where xor zeta entr
            kron igamma igammac gammainc gammaincc
            """,
            each(1),
        ),
        **rules("hardshrink hardtanh leaky_relu prelu relu6 rrelu tanhshrink xlogy xlog1py ldexp frexp", each(2)),
        **rules("softshrink softsign lerp sinc logit nan_to_num", each(3)),
        **rules("elu expit hardsigmoid hypot logaddexp logaddexp2 polar sigmoid", each(4)),
        **rules("celu glu hardswish logsigmoid log_sigmoid mish selu silu softplus", each(5)),
        **rules("isclose", each(6)),
        **rules("add sub subtract rsub", scaled(1, 2, "alpha")),
        **rules("addcmul addcdiv", scaled(2, 3, "value")),
        **rules("clamp clip", clamp),
        **rules("gelu", gelu),
        **rules("gcd lcm", about(1, "the steps depend on the values")),
        **rules("multigammaln mvlgamma", about(4, "the terms depend on p")),
        **rules("bartlett_window blackman_window hamming_window hann_window kaiser_window", about(3, "terms vary")),
        **rules("dequantize", each(2)),
        **rules("quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic", about(5, "rounding varies")),
        **rules("fake_quantize_per_tensor_affine fake_quantize_per_channel_affine", about(7, "rounding varies")),
        # Random numbers.
        **rules(
            """
            bernoulli binomial cauchy exponential geometric log_normal multinomial normal poisson rand rand_like randint
            randint_like randn randn_like random randperm rrelu_with_noise uniform _philox_normal _philox_uniform
            _sample_dirichlet _standard_gamma
            """,
            about(1, DRAWN),
            Reads.NOTHING,
        ),
        **rules(
            """
            alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout dropout1d dropout2d dropout3d
            """,
            dropout,
        ),
        # Reductions, along axes or of everything; n elements to m results.
        **rules("all amax amin any argmax argmin count_nonzero nansum prod sum sum_to_size", reduced(1)),
        **rules("trace", lambda call: Count(other=max(0, min(call.input.shape) - 1))),
        **rules("max min", extreme),
        **rules("mean nanmean", reduced(1, 0)),
        **rules("aminmax", reduced(2, -2)),
        **rules("var var_mean", reduced(4, 0)),
        **rules("std std_mean", reduced(4, 1)),
        **rules("norm vector_norm norm_except_dim", norm),
        **rules("frobenius_norm matrix_norm", frobenius),
        **rules("dist", of_input(3, "the order of the norm varies")),
        **rules("renorm", of_input(4, "the order of the norm varies")),
        **rules("logsumexp", logsumexp),
        **rules("softmax _softmax", softmax(-2)),
        **rules("log_softmax _log_softmax", softmax(-1)),
        **rules("cummax cummin cumprod cumsum", running(1)),
        **rules("logcumsumexp", running(4)),
        **rules("diff", diff),
        **rules("gradient trapezoid trapz cumulative_trapezoid", of_input(3, "spacings vary")),
        **rules("cov corrcoef", none_honest("the products inside are not told")),
        # Order: the values decide how much there is to compare.
        **rules("argsort msort sort", sort),
        **rules("unique unique_consecutive unique_dim _unique _unique2 mode isin", sort_all),
        **rules("topk", topk),
        **rules("kthvalue median nanmedian nanquantile quantile", select),
        **rules("bucketize", searched(1, "boundaries")),
        **rules("searchsorted", searched(0, "sorted_sequence")),
        **rules("histc histogram histogramdd bincount", histogram),
        # Products. Source: torch.utils.flop_counter, whose counts these are.
        **rules("mm bmm mv dot vdot matmul rmatmul _int_mm smm dsmm hspmm spmm", matmul),
        **rules("addmm addbmm addmv baddbmm saddmm sspaddmm", added),
        **rules("addr", addr),
        **rules("ger outer", outer),
        **rules("inner", inner),
        **rules("vecdot", vecdot),
        **rules("tensordot", tensordot),
        **rules("linear", linear),
        **rules("bilinear", bilinear),
        **rules("chain_matmul multi_dot", chain),
        **rules("_grouped_mm grouped_mm", grouped),
        **rules("_scaled_mm scaled_mm", scaled_product),
        **rules("einsum", einsum),
        **rules("cross", cross_product),
        **rules("conv1d conv2d conv3d cudnn_convolution mkldnn_convolution miopen_convolution", convolution(False)),
        **rules("conv_transpose1d conv_transpose2d conv_transpose3d", convolution(True)),
        **rules("convolution _convolution", any_convolution),
        **rules("conv_tbc", conv_tbc),
        # Attention. Source: torch.utils.flop_counter for the two products; the rest by the definition.
        **rules("scaled_dot_product_attention", attention),
        **rules("multi_head_attention_forward _native_multi_head_attention", heads),
        **rules("_transformer_encoder_layer_fwd", encoder_layer),
        # Recurrent kernels: by the definitions of nn.LSTM, nn.GRU and nn.RNN.
        **rules("lstm gru rnn_tanh rnn_relu", recurrent),
        **rules("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", recurrent_cell),
        # Normalisations: by the definitions, the variance from differences to the mean.
        **rules("layer_norm native_layer_norm", layer_norm),
        **rules("rms_norm _fused_rms_norm", rms_norm),
        **rules("group_norm", group_norm),
        **rules("native_group_norm", native_group_norm),
        **rules("batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm", batch_norm(False)),
        **rules("instance_norm", batch_norm(True)),
        **rules("_weight_norm", weight_norm),
        # Losses.
        **rules("mse_loss l1_loss", loss(2)),
        **rules("cross_entropy cross_entropy_loss", cross_entropy),
        **rules("nll_loss", nll_loss),
        **rules("smooth_l1_loss huber_loss", loss(5)),
        **rules("kl_div", loss(3)),
        **rules("binary_cross_entropy", loss(8)),
        **rules("binary_cross_entropy_with_logits", loss(9)),
        **rules("soft_margin_loss hinge_embedding_loss margin_ranking_loss poisson_nll_loss", about_loss(4)),
        **rules("triplet_margin_loss cosine_embedding_loss gaussian_nll_loss", about_loss(6)),
        **rules("multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss", about_loss(8)),
        **rules("ctc_loss", none_honest("the targets' lengths decide, and they are values")),
        # Pooling, resampling, distances.
        **rules("avg_pool1d avg_pool2d avg_pool3d", average_pool),
        **rules(
            """
            max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
            fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d
            fractional_max_pool3d_with_indices quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d
            """,
            max_pool,
        ),
        **rules("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", adaptive_pool(0)),
        **rules(
            """
            adaptive_max_pool1d adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices
            adaptive_max_pool3d adaptive_max_pool3d_with_indices
            """,
            adaptive_pool(-1),
        ),
        **rules("interpolate upsample upsample_nearest upsample_bilinear", interpolate),
        **rules("grid_sample grid_sampler grid_sampler_2d grid_sampler_3d", grid_sample),
        **rules("affine_grid affine_grid_generator", affine_grid),
        **rules("fold", accumulated(0, "input")),
        **rules("cdist pdist pairwise_distance", pairs_of_rows),
        **rules("cosine_similarity", cosine),
        # Sums where things go.
        **rules("index_add scatter_add", accumulated(3, "source", "src"), Reads.EVERYTHING),
        **rules("scatter_reduce index_reduce", accumulated(3, "source", "src")),
        **rules("segment_reduce", accumulated(0, "data")),
        **rules("index_put", index_put, Reads.A_PART),
        **rules("scatter", scatter, Reads.A_PART),
        **rules("embedding_bag _embedding_bag", embedding_bag, Reads.SELECTED),
        # Fourier transforms. Source: Frigo and Johnson, FFTW, Proc. IEEE 93 (2005), section on benchmarks.
        **rules("fft ifft", fourier(5, False)),
        **rules("rfft ihfft", fourier(2.5, True)),
        **rules("irfft hfft", fourier(2.5, False)),
        **rules("fft2 ifft2", fourier(5, False, 2)),
        **rules("rfft2 ihfft2", fourier(2.5, True, 2)),
        **rules("irfft2 hfft2", fourier(2.5, False, 2)),
        **rules("fftn ifftn", fourier(5, False, None)),
        **rules("rfftn ihfftn", fourier(2.5, True, None)),
        **rules("irfftn hfftn", fourier(2.5, False, None)),
        **rules("stft istft", short_time_fourier),
        # Decompositions. Source: Golub and Van Loan, Matrix Computations, 4th edition, chapters 3 to 5, 7 and 8.
        **rules("cholesky cholesky_ex", decomposed(1)),
        **rules("det logdet lu lu_factor lu_factor_ex slogdet ldl_factor ldl_factor_ex", decomposed(2)),
        **rules("inv inv_ex inverse cholesky_inverse", decomposed(6)),
        **rules("solve solve_ex", decomposed(2, 2)),
        **rules("solve_triangular", decomposed(0, 1)),
        **rules("qr", decomposed(8)),
        **rules("svdvals", decomposed(8)),
        **rules("svd", decomposed(63)),
        **rules("eigvalsh", decomposed(4)),
        **rules("eigh", decomposed(27)),
        **rules("eigvals", decomposed(30)),
        **rules("eig", decomposed(75)),
    }
)
"""How each function is counted, by its name without what marks it as in place or reflected."""


OPERATORS: Final = frozenset(
    """
    add and div eq floordiv ge gt invert le lshift lt matmul mod mul ne neg or pow pos rshift sub truediv xor abs
    """.split()
)
"""Operators of Python, which have a reflected and an in-place form."""

SPELLED: Final = MappingProxyType({"pos": "positive"})


def plain_name(name: str) -> str:
    """The name of a function without what marks it as in place, reflected or over a list: ``add`` for ``__iadd__``."""
    if name in RULES:
        return name
    if name.startswith("__") and name.endswith("__"):
        inner_name = name[2:-2]
        if inner_name not in OPERATORS and inner_name[:1] in ("r", "i") and inner_name[1:] in OPERATORS:
            inner_name = inner_name[1:]
        return SPELLED.get(inner_name, inner_name)
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name


def rule_of(name: str) -> Rule | None:
    """How a function is counted; None where there is no rule for it."""
    name = plain_name(name)
    found = RULES.get(name)
    if found is None and name.startswith("_foreach_"):
        found = RULES.get(name.removeprefix("_foreach_"))
        return found if found is not None and found.formula in OVER_LISTS else None
    return found


OVER_LISTS: Final = frozenset(
    rule.formula for name, rule in RULES.items() if name in ("abs", "add", "addcmul", "hardtanh", "lerp", "sigmoid")
)
"""Formulas that look at what was returned alone, and so hold for a list of tensors too."""

FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NoCountError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)


def count(call: Call) -> Count:
    """The work of a call; unknown, with the reason, where nothing honest can be said."""
    rule = rule_of(call.name)
    if rule is None:
        return unknown(f"no formula is known for {call.name}")
    if rule.formula is not nothing and not all(
        tensor is None or tensor.is_dense for tensor in (*call.tensors, *call.outputs)
    ):
        return unknown("a sparse tensor's work depends on its values")
    try:
        found = rule.formula(call)
        return within_bounds(found)
    except NoCountError as exc:
        return unknown(str(exc))
    except FAULTS:
        return unknown("the arguments are none that the function takes")


def within_bounds(found: Count) -> Count:
    """A count that a run can have had."""
    numbers = (found.other, *[macs for macs, _ in found.products])
    if any(number < 0 for number in numbers):
        raise NoCountError("the sizes of an argument are no sizes")
    if 2 * sum(numbers) * 2 > LARGEST:
        raise NoCountError("it is more work than any run can do")
    return found
