"""FLOPs of dispatched operators: those of torch's own counter, for whatever shapes and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from projections.formulas.operator_flops import FORMULAS, family_of, has_no_work, operator_flops

F32 = "float32"
FAR = 1 << 62

Sizes = st.integers(0, 40)


class Shaped:
    """What a formula of torch looks at, where it wants more than the shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def by_torch(family: str, *args: Any, out: Any = None) -> int:
    """What torch's registry counts, from shapes in the place of tensors."""
    packet = getattr(torch.ops.aten, family.removeprefix("aten."))
    return int(flop_registry[packet](*args, out_val=out))


def ours(family: str, inputs: Sequence[Sequence[int]], outputs: Sequence[Any] = (), settings: Any = None) -> int | None:
    told = [(tuple(shape), F32) for shape in inputs]
    return operator_flops(f"{family}.default", told, [(tuple(shape), F32) for shape in outputs], settings)


def test_every_family_that_torch_counts_has_a_formula() -> None:
    operators = {
        f"aten.{packet.__name__}" for packet in flop_registry if isinstance(packet, torch._ops.OpOverloadPacket)
    }
    assert operators == set(FORMULAS) - {"aten.matmul", "aten.linear"}, "and these two, which torch takes apart first"
    others = {packet.name() for packet in flop_registry if not isinstance(packet, torch._ops.OpOverloadPacket)}
    assert others == {"flex_attention", "flex_attention_backward"}, "these run no operator that is dispatched"


@given(Sizes, Sizes, Sizes, Sizes)
def test_matrix_products_are_counted_as_torch_counts_them(batch: int, rows: int, inner: int, columns: int) -> None:
    first, second, out = (rows, inner), (inner, columns), (rows, columns)
    assert ours("aten.mm", (first, second), (out,)) == by_torch("aten.mm", first, second)
    assert ours("aten.addmm", (out, first, second), (out,)) == by_torch("aten.addmm", out, first, second)
    assert ours("aten._scaled_mm", (first, second, (), ()), (out,)) == by_torch(
        "aten._scaled_mm", first, second, (), ()
    )
    batched = [(batch, *shape) for shape in (first, second, out)]
    assert ours("aten.bmm", batched[:2], batched[2:]) == by_torch("aten.bmm", *batched[:2])
    assert ours("aten.baddbmm", (batched[2], *batched[:2])) == by_torch("aten.baddbmm", batched[2], *batched[:2])


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """A convolution's shapes and settings, as torch would have them."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    is_transposed = draw(st.booleans())
    ins, outs = groups * draw(st.integers(1, 4)), groups * draw(st.integers(1, 4))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * rank))
    stride, dilation = (draw(st.tuples(*[st.integers(1, 3)] * rank)) for _ in range(2))
    padding = draw(st.tuples(*[st.integers(0, 2)] * rank))
    size = draw(st.tuples(*[st.integers(7, 12)] * rank))
    weight = (ins, outs // groups, *kernel) if is_transposed else (outs, ins // groups, *kernel)
    x = (draw(st.integers(1, 3)), ins, *size)
    args = (stride, padding, dilation, is_transposed, (0,) * rank, groups)
    with torch.no_grad():
        meta = torch.ops.aten.convolution(
            torch.empty(x, device="meta"), torch.empty(weight, device="meta"), None, *map(as_list, args)
        )
    return {"x": x, "weight": weight, "out": tuple(meta.shape), "args": args, "channels": outs}


def as_list(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value  # the schema wants lists


@given(convolutions(), st.booleans())
def test_convolutions_are_counted_as_torch_counts_them(made: dict[str, Any], has_bias: bool) -> None:
    x, weight, out, args = made["x"], made["weight"], made["out"], made["args"]
    right = by_torch("aten.convolution", x, weight, None, *args, out=out)
    bias = ((made["channels"],),) if has_bias else ()
    for family in ("aten.convolution", "aten._convolution", "aten.convolution_overrideable"):
        for settings in (args, (None, *args), (*args, False, False, True, True)):
            assert ours(family, (x, weight, *bias), (out,), settings) == right
    if not args[3]:
        assert ours("aten.cudnn_convolution", (x, weight), (out,), (args[1], args[0], args[2], args[5])) == right
        assert ours("aten._slow_conv2d_forward", (x, weight, *bias), (out,), (weight[2:], args[0], args[1])) == right


@given(convolutions(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_the_backward_of_a_convolution_is_counted_as_torch_counts_it(
    made: dict[str, Any], wanted: tuple[bool, bool, bool]
) -> None:
    x, weight, grad, args = made["x"], made["weight"], made["out"], made["args"]
    shapes = (x, weight, (made["channels"],))
    results = [shape if is_wanted else None for shape, is_wanted in zip(shapes, wanted, strict=True)]
    right = by_torch("aten.convolution_backward", grad, x, weight, None, *args, wanted, out=results)
    given_out = [shape for shape in results if shape is not None]
    for bias in (None, (made["channels"],)):
        assert ours("aten.convolution_backward", (grad, x, weight), given_out, (bias, *args, wanted)) == right


@given(*[st.integers(1, 12)] * 7)
def test_fused_attention_is_counted_as_torch_counts_it(
    batch: int, heads: int, shared: int, length: int, keys: int, width: int, depth: int
) -> None:
    query, key = (batch, heads * shared, length, width), (batch, heads, keys, width)
    value, grad = (batch, heads, keys, depth), (batch, heads * shared, length, depth)
    there, back = by_torch(FLASH, query, key, value), by_torch(f"{FLASH}_backward", grad, query, key, value)
    for kind in ("efficient", "flash", "cudnn"):
        family = f"aten._scaled_dot_product_{kind}_attention"
        assert ours(family, (query, key, value), (grad, (batch,))) == there
        assert ours(f"{family}_backward", (grad, query, key, value, grad)) == back
    for kind, more in (("efficient", 1), ("flash", 0)):
        family = f"aten._{kind}_attention"
        raw = [Shaped(*shape) for shape in (query, key, value)]
        bias, none = [None] * more, [None] * 2
        assert by_torch(f"{family}_forward", *raw, *bias, *none, 9, 9) == there
        assert ours(f"{family}_forward", (query, key, value)) == there
        assert (
            by_torch(f"{family}_backward", Shaped(*grad), *raw, *bias, None, *[None] * (1 - more), *none, 9, 9) == back
        )
        assert ours(f"{family}_backward", (grad, query, key, value, grad)) == back


FLASH = "aten._scaled_dot_product_flash_attention"


def test_a_ragged_batch_is_unknown_since_its_lengths_are_values() -> None:
    dense = [((1, 2, 3, 4), F32)] * 3
    offsets = [((3,), "int32")] * 2
    assert operator_flops("aten._efficient_attention_forward.default", dense, dense[:1], None) == 2 * 2 * 3 * 3 * 8
    assert operator_flops("aten._efficient_attention_forward.default", dense + offsets, dense[:1], None) is None
    jagged = [((7, 2, 4), F32)] * 3
    assert operator_flops("aten._flash_attention_forward.default", jagged + offsets, jagged[:1], None) is None


@pytest.mark.parametrize(
    ("run", "family"),
    [
        (lambda: torch.ones(2, 3) @ torch.ones(3, 4), "aten.mm"),
        (lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 4), out=torch.empty(2, 4)), "aten.mm"),
        (lambda: torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)), "aten.baddbmm"),
    ],
)
def test_an_overload_is_counted_as_its_family(run: Callable[[], Any], family: str) -> None:
    with FlopCounterMode(display=False) as counted:
        run()
    assert [f"aten.{packet.__name__}" for packet in counted.get_flop_counts()["Global"]] == [family]
    assert family_of(f"{family}.out") == family_of(f"{family}.default") == family


@pytest.mark.parametrize(
    "operator", ["aten.mul.Tensor", "aten.mv.default", "aten.mm2.default", "mine.mm.default", "mm", ""]
)
def test_what_has_no_formula_is_unknown_and_never_zero(operator: str) -> None:
    assert operator_flops(operator, [((2, 3), F32), ((3, 4), F32)], [((2, 4), F32)], None) is None


TWO = [((2, 3), F32), ((3, 4), F32)]


def in_one_piece(family: str, *shapes: Sequence[int]) -> tuple[int | None, int]:
    """Ours, and what torch counts where the operator is dispatched as it is, as in inference mode."""
    packet = getattr(torch.ops.aten, family.removeprefix("aten."))
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        packet(*(torch.ones(*shape) for shape in shapes))
    return ours(family, shapes), counter.get_total_flops()


Batches = st.lists(st.integers(1, 3), max_size=2)


@given(Batches, Batches, Sizes, Sizes, Sizes, st.lists(st.booleans(), min_size=2, max_size=2))
@trying(max_examples=60)
def test_products_in_one_piece_are_counted_as_what_they_are_made_of(
    one: list[int], other: list[int], rows: int, inner: int, columns: int, ones: list[bool]
) -> None:
    both = min(len(one), len(other))
    other[len(other) - both :] = [1 if ones[0] else size for size in one[len(one) - both :]]
    found, wanted = in_one_piece("aten.matmul", (*one, rows, inner), (*other, inner, columns))
    assert found == wanted
    found, wanted = in_one_piece("aten.matmul", (inner,), (inner, columns))
    assert found == wanted
    for bias in ((), ((columns,),)):
        found, wanted = in_one_piece("aten.linear", (*one, rows, inner), (columns, inner), *bias)
        assert found == wanted
        found, wanted = in_one_piece("aten.linear", (inner,), (columns, inner), *bias)
        assert found == wanted


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (3,)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4))])
def test_a_product_with_a_vector_that_torch_does_not_count_is_not_counted_in_one_piece(shapes: Any) -> None:
    assert in_one_piece("aten.matmul", *shapes) == (None, 0)
    assert not has_no_work("aten.matmul"), "so it is named as not counted"


HOSTILE: dict[str, tuple[str, Any, Any, Any]] = {
    "inner sizes differ": ("aten.mm", [((2, 3), F32), ((4, 5), F32)], [], None),
    "a negative size": ("aten.mm", [((2, -3), F32), ((-3, 4), F32)], [], None),
    "a size that is a truth": ("aten.mm", [((True, 3), F32), ((3, 4), F32)], [], None),
    "a size that is no number": ("aten.mm", [(("2", 3), F32), ((3, 4), F32)], [], None),
    "one operand": ("aten.mm", TWO[:1], [], None),
    "no operands": ("aten.addmm", [], [], None),
    "three axes": ("aten.mm", [((1, 2, 3), F32), ((3, 4), F32)], [], None),
    "far sizes": ("aten.mm", [((FAR, FAR), F32), ((FAR, FAR), F32)], [], None),
    "shapes that are none": ("aten.mm", [(None, F32), (7, F32)], [], None),
    "operands that are none": ("aten.mm", [1, 2], [], None),
    "a batch that differs": ("aten.bmm", [((2, 3, 4), F32), ((1, 4, 5), F32)], [], None),
    "a vector alone": ("aten.matmul", [((3,), F32)], [], None),
    "no axes": ("aten.matmul", [((), F32), ((3, 4), F32)], [], None),
    "batches that differ": ("aten.matmul", [((2, 3, 4), F32), ((5, 4, 3), F32)], [], None),
    "a weight that is a vector": ("aten.linear", [((2, 3), F32), ((3,), F32)], [], None),
    "nothing to weigh": ("aten.linear", [((), F32), ((3, 4), F32)], [], None),
    "many axes": ("aten.convolution", [((2,) * 5000, F32)] * 2, [((2,) * 5000, F32)], (False,)),
    "many far axes": ("aten.convolution", [((FAR,) * 64, F32)] * 2, [((FAR,) * 64, F32)], (False,)),
    "no settings": ("aten.convolution", [((1, 2, 3), F32), ((2, 2, 3), F32)], [((1, 2, 1), F32)], None),
    "settings without a truth": ("aten.convolution", [((1, 2, 3), F32)] * 2, [((1, 2, 1), F32)], (1, 2)),
    "settings that are a text": ("aten.convolution", [((1, 2, 3), F32)] * 2, [((1, 2, 1), F32)], "True"),
    "no result": ("aten.convolution", [((1, 2, 3), F32)] * 2, [], (False,)),
    "ranks that differ": ("aten.convolution", [((1, 2, 3), F32), ((2, 2, 3, 3), F32)], [((1, 2, 1), F32)], (False,)),
    "a mask of two": ("aten.convolution_backward", [((1, 2, 3), F32)] * 3, [], (False, (True, True))),
    "a mask of numbers": ("aten.convolution_backward", [((1, 2, 3), F32)] * 3, [], (False, (1, 1, 1))),
    "no mask": ("aten.convolution_backward", [((1, 2, 3), F32)] * 3, [], (False,)),
    "heads that do not divide": (FLASH, [((1, 3, 2, 2), F32), ((1, 2, 2, 2), F32), ((1, 2, 2, 2), F32)], [], None),
    "no heads": (FLASH, [((1, 0, 2, 2), F32)] * 3, [], None),
    "another batch": (f"{FLASH}_backward", [((2, 1, 2, 2), F32), *[((1, 1, 2, 2), F32)] * 3], [], None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_run_can_have_told_is_unknown(what: str) -> None:
    family, inputs, outputs, settings = HOSTILE[what]
    assert operator_flops(f"{family}.default", inputs, outputs, settings) is None


def test_what_only_moves_or_fills_leaves_no_work_out() -> None:
    moved = ("aten.t", "aten.detach", "aten.view", "aten._unsafe_view", "aten.expand", "aten.ones_like", "aten.copy_")
    assert all(map(has_no_work, moved))
    worked = ("aten.mul", "aten.threshold_backward", "aten.sum", "aten.mv", "aten.new_zeros_of_mine", "mine.view", "mm")
    assert not any(map(has_no_work, worked))
