"""FLOPs and multiply-accumulates of captures: torch's own counter agrees, and what is unknown is never zero.

``torch.utils.flop_counter.FlopCounterMode`` counts matrix products, convolutions and attention at the dispatcher, below
the functions that a capture records, and nothing else. So it is an independent second count of the products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import torchlens as tl
from projections.records.cost import OPS
from tests.work import at_most

SIZES = st.integers(0, 5)
REAL = st.integers(1, 5)


def counted(model: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """What torch's counter makes of a call."""
    with FlopCounterMode(display=False) as counter:
        model(*args, **kwargs)
    return counter.get_total_flops()


def traced(model: Callable[..., Any], *args: Any, **kwargs: Any) -> tl.Trace:
    return tl.trace(model, list(args), kwargs, save="none")


def products(model: Callable[..., Any], *args: Any) -> int:
    """FLOPs of the products that a capture of a call counts."""
    trace = traced(model, *args)
    assert trace.unknown_flop_ops == ()
    return 2 * int(trace.total_macs_forward)


def agree(model: Callable[..., Any], *args: Any) -> bool:
    return products(model, *args) == counted(model, *args)


# -- torch's counter agrees, function by function ---------------------------------------------------------


@given(SIZES, SIZES, SIZES)
@settings(max_examples=25)
def test_matrix_products_are_counted_as_torch_counts_them(m: int, k: int, n: int) -> None:
    left, right, bias = torch.rand(m, k), torch.rand(k, n), torch.rand(m, n)
    assert agree(torch.mm, left, right)
    assert agree(torch.addmm, bias, left, right)
    assert agree(lambda a, b: a @ b, left, right)
    assert agree(lambda a, b: b.__rmatmul__(a), left, right)
    in_place = traced(lambda c, a, b: c.addmm_(a, b, beta=2, alpha=3), bias, left, right)
    assert in_place.total_macs_forward == m * k * n, "torch's counter does not know this form and says 0"
    assert in_place.total_flops_forward == 2 * m * k * n + 3 * m * n
    ignored = traced(lambda c, a, b: torch.addmm(c, a, b, beta=0), bias, left, right)
    assert ignored.total_flops_forward == 2 * m * k * n, "with beta=0 nothing is added"


@given(SIZES, SIZES, SIZES, SIZES)
@settings(max_examples=25)
def test_batches_of_matrix_products_are_counted_as_torch_counts_them(b: int, m: int, k: int, n: int) -> None:
    left, right, bias = torch.rand(b, m, k), torch.rand(b, k, n), torch.rand(b, m, n)
    assert agree(torch.bmm, left, right)
    assert agree(torch.baddbmm, bias, left, right)
    assert agree(lambda c, x, y: torch.baddbmm(c, x, batch2=y), bias, left, right)


@given(st.lists(REAL, max_size=2), st.lists(REAL, max_size=2), REAL, REAL, REAL)
@settings(max_examples=40)
def test_matmul_broadcasts_its_batches(outer: list[int], inner: list[int], m: int, k: int, n: int) -> None:
    shared = [max(a, b) for a, b in zip(outer[-len(inner) :] if inner else [], inner[-len(outer) :], strict=False)]
    left = torch.rand(*outer[: len(outer) - len(shared)], *shared, m, k)
    right = torch.rand(*[1] * max(0, len(inner) - len(outer)), *[1 if size % 2 else size for size in shared], k, n)
    assert agree(torch.matmul, left, right)


@given(st.lists(REAL, max_size=3), REAL, REAL, st.booleans())
@settings(max_examples=25)
def test_a_linear_layer_is_a_product_and_its_bias_an_addition(
    batch: list[int], inside: int, outside: int, bias: bool
) -> None:
    layer = nn.Linear(inside, outside, bias=bias)
    x = torch.rand(*batch, inside)
    assert agree(layer, x)
    assert traced(layer, x).total_flops_forward == counted(layer, x) + bias * math.prod([*batch, outside])


@given(st.data())
@settings(max_examples=60)
def test_convolutions_are_counted_as_torch_counts_them(data: st.DataObject) -> None:
    draw = data.draw
    axes = draw(st.integers(1, 3))
    groups, batch = draw(st.integers(1, 3)), draw(REAL)
    inside, outside = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    options: dict[str, Any] = {"stride": stride, "padding": draw(st.integers(0, 1)), "dilation": dilation}
    kinds: Any = {
        False: (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        True: (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    }
    layer = kinds[draw(st.booleans())][axes - 1](
        inside, outside, kernel, groups=groups, bias=draw(st.booleans()), **options
    )
    assert agree(layer, torch.rand(batch, inside, *draw(st.lists(st.integers(5, 7), min_size=axes, max_size=axes))))


@given(REAL, REAL, REAL, REAL, REAL, REAL, st.sampled_from(("no mask", "mask", "causal")))
@settings(max_examples=30)
def test_attention_is_two_products(
    batch: int, heads: int, queries: int, keys: int, width: int, depth: int, masking: str
) -> None:
    q, k, v = (torch.rand(batch, heads, *size) for size in ((queries, width), (keys, width), (keys, depth)))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.zeros(queries, keys) if masking == "mask" else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=masking == "causal")

    with sdpa_kernel(SDPBackend.MATH):  # the kernel for CPUs is one that torch's counter does not know
        assert agree(attend, q, k, v)
    (op,) = (op for op in traced(attend, q, k, v).ops if op.func_name == "scaled_dot_product_attention")
    assert op.compute_record.evidence == ("estimated" if masking == "causal" else "formula_exact")


def test_grouped_queries_count_each_head_of_the_query() -> None:
    q, k = torch.rand(2, 6, 5, 4), torch.rand(2, 3, 7, 4)

    def attend(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    with sdpa_kernel(SDPBackend.MATH):
        assert agree(attend, q, k)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...ij,...jk->...ik", [(2, 5, 2, 3), (5, 3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ijl,jk->ik", [(2, 3, 7), (3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ij->j", [(2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ],
)
def test_an_einsum_is_its_products(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [torch.rand(shape) for shape in shapes]
    assert agree(lambda *operands: torch.einsum(equation, *operands), *operands)


def test_an_einsum_without_a_sum_multiplies_elements() -> None:
    trace = traced(lambda a, b: torch.einsum("i,j->ij", a, b), torch.rand(3), torch.rand(4))
    assert (trace.total_macs_forward, trace.total_flops_forward) == (0, 12)


# -- whole models ------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.down(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3),
        Block(8, 8, 1),
        Block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def test_a_residual_network_is_counted_as_torch_counts_it() -> None:
    model, x = resnet().eval(), torch.rand(2, 3, 32, 32)
    assert agree(model, x)
    assert agree(model.train(), x)


def test_a_small_gpt2_is_counted_as_torch_counts_it() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 40, (2, 7))
    with sdpa_kernel(SDPBackend.MATH):
        expected = counted(model, ids)
    trace = traced(model, ids)
    assert 2 * trace.total_macs_forward == expected
    assert trace.unknown_flop_ops == ()
    assert trace.modules["self"].total_macs_forward == trace.total_macs_forward


def test_a_recurrent_kernel_costs_what_its_cells_cost() -> None:
    torch.manual_seed(0)
    for kind, cell in ((nn.LSTM, nn.LSTMCell), (nn.GRU, nn.GRUCell), (nn.RNN, nn.RNNCell)):
        whole = traced(kind(3, 4), torch.rand(5, 2, 3))
        step = traced(cell(3, 4), torch.rand(2, 3))
        assert whole.unknown_flop_ops == ()
        assert (
            whole.total_macs_forward
            == 5 * step.total_macs_forward
            == 5 * 2 * (kind(3, 4).weight_ih_l0.numel() + kind(3, 4).weight_hh_l0.numel())
        )
        assert whole.total_flops_forward == 5 * step.total_flops_forward


# -- the worked example ------------------------------------------------------------------------------------


@pytest.fixture
def mlp() -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(5, 4))


def test_the_worked_example_counts_additions_of_biases(mlp: tl.Trace) -> None:
    assert [mlp.modules[name].total_flops_forward for name in "012"] == [270, 30, 195]
    assert [2 * mlp.modules[name].total_macs_forward for name in "012"] == [240, 0, 180]
    assert mlp.total_flops_forward == 495
    assert repr(mlp.modules["0"].total_flops_forward) == "Flops('270 FLOPs')"
    assert repr(mlp.total_macs_forward) == "Macs('210 MACs')"
    linear = mlp["linear_1_1"].ops[0]
    assert (linear.compute_record.fma_macs, linear.compute_record.other_flops) == (120, 30)
    assert (linear.compute_record.evidence, linear.compute_record.reason) == ("formula_exact", None)


def test_a_backward_is_estimated_by_the_operands_that_need_a_gradient(mlp: tl.Trace) -> None:
    first, second = mlp.ops["linear_1_1"], mlp.ops["linear_2_3"]
    assert first.flops_backward == 240 + 30, "the input needs none: one product, and the bias"
    assert second.flops_backward == 2 * 180 + 15
    assert second.flops_total == 195 + 375
    assert mlp.total_flops_backward == 270 + 30 + 375
    with torch.no_grad():
        quiet = tl.trace(nn.Linear(4, 6), torch.randn(5, 4))
    assert (quiet.total_flops_forward, quiet.total_flops_backward) == (270, 0)


def test_traffic_is_each_argument_once_and_each_result_once(mlp: tl.Trace) -> None:
    linear = mlp.ops["linear_1_1"]
    assert (linear.bytes_read, linear.bytes_written) == (4 * (20 + 24 + 6), 4 * 30)
    assert linear.arithmetic_intensity == 270 / 320
    doubled = traced(lambda x: x * x, torch.rand(3)).ops[1]
    assert (doubled.bytes_read, doubled.bytes_written) == (12, 12)
    both = traced(lambda x: (x + x.neg()) + (x + x), torch.rand(3))
    assert [op.bytes_read for op in both.ops if op.func_name == "__add__"] == [24, 12, 24], "of one kind but for that"
    table = traced(nn.Embedding(100, 4), torch.tensor([1, 2])).ops[1]
    assert (table.bytes_read, table.bytes_written) == (4 * 8 + 16, 4 * 8), "the rows that are asked for"


def test_a_view_moves_nothing_and_a_copy_does() -> None:
    view, copy = traced(lambda x: x.t().contiguous(), torch.rand(2, 3)).compute_ops
    assert (view.bytes_read, view.bytes_written, view.arithmetic_intensity) == (0, 0, None)
    assert (copy.bytes_read, copy.bytes_written, copy.flops_forward) == (24, 24, 0)


def test_inputs_outputs_and_buffers_cost_nothing(mlp: tl.Trace) -> None:
    for op in (mlp.ops["input_1"], mlp.ops["output_1"]):
        assert (op.flops_forward, op.macs_forward, op.flops_backward, op.compute_record) == (0, 0, 0, None)
    assert mlp.compute_coverage == {"known": 3, "not_applicable": 2, "unknown": 0}


def test_a_module_call_tells_the_work_inside_and_a_module_that_of_all_its_calls() -> None:
    layer = nn.Linear(4, 4)
    trace = traced(nn.Sequential(layer, layer), torch.rand(5, 4))
    first, second = trace.modules["0"].calls
    assert (first.flops_forward, first.macs_forward) == (2 * 80 + 20, 80)
    assert (first.flops_backward, second.flops_backward) == (160 + 20, 2 * 160 + 20)
    module = first.module
    assert module.total_flops_forward == first.flops_forward + second.flops_forward
    assert module.total_macs_forward == first.macs_forward + second.macs_forward
    root = trace.module_calls[0]
    assert (root.flops_forward, root.macs_forward) == (trace.total_flops_forward, trace.total_macs_forward)
    assert root.flops_backward == trace.total_flops_backward
    assert repr(first.flops_forward) == "Flops('180 FLOPs')"
    assert repr(first.macs_forward) == "Macs('80 MACs')"
    with pytest.raises(tl.TorchLensError, match="module_call_ambiguous"):
        _ = module.flops_forward
    frame = trace.module_calls.to_pandas()
    assert list(frame.flops_forward) == [360, 180, 180]
    assert list(frame.macs_forward) == [160, 80, 80]
    assert list(frame.flops_backward) == [180 + 340, 180, 340]


# -- sums --------------------------------------------------------------------------------------------------


def test_a_call_with_several_results_is_counted_once() -> None:
    trace = traced(lambda x: torch.add(*x.max(1)), torch.rand(3, 4, requires_grad=True))
    values, indices, _ = trace.compute_ops
    assert values.flops_forward == indices.flops_forward == 9
    assert trace.total_flops_forward == 9 + 3
    assert trace.flops_by_op_type["max"] == {"forward": 9, "backward": 9, "count": 1, "unknown": 0}


def test_a_layer_adds_its_passes() -> None:
    def loop(x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.cat([x, x]) * 2
        return x

    layer = traced(loop, torch.rand(2))["mul_1_2"]
    assert (layer.flops_forward, layer.total_flops_forward) == (4, 4 + 8 + 16)
    assert layer.total_macs_forward == 0


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def test_what_is_unknown_is_listed_and_never_zero() -> None:
    class Custom(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = Doubling.apply(x)
            return out

    trace = traced(nn.Sequential(Custom(), nn.Linear(3, 2)), torch.rand(1, 3, requires_grad=True))
    op = trace.ops["doubling_1_1"]
    assert (op.flops_forward, op.macs_forward, op.flops_backward, op.flops_total) == (None,) * 4
    assert op.compute_record.evidence == "unknown"
    assert op.compute_record.reason == "not watched inside: autograd function"
    assert trace.unknown_flop_ops == ("doubling_1_1",)
    assert trace.modules["0"].total_flops_forward is None
    assert trace.modules["self"].total_macs_forward is None
    assert trace.modules["1"].total_flops_forward == 14
    assert trace.layers["doubling_1_1"].total_flops_forward is None
    assert trace.total_flops_forward == 14, "what is known"
    assert trace.flops_by_op_type["doubling"] == {"forward": 0, "backward": 0, "count": 1, "unknown": 1}
    assert "1 op not counted" in trace.summary()


def test_a_function_of_somebody_else_s_with_a_known_name_is_unknown() -> None:
    library = torch.library.Library("torchlens_cost", "DEF")
    library.define("add(Tensor x) -> Tensor")
    library.impl("add", lambda x: torch._C._nn.gelu(x), "CompositeExplicitAutograd")  # a name that is not watched
    (op,) = traced(lambda x: torch.ops.torchlens_cost.add(x), torch.rand(3)).compute_ops
    assert op.func_name == "add"
    assert op.flops_forward is None


def test_a_sparse_operand_s_work_is_unknown() -> None:
    trace = traced(lambda a, b: torch.mm(a.to_sparse(), b), torch.eye(3), torch.rand(3, 2))
    assert [op.func_name for op in trace.compute_ops if op.flops_forward is None] == ["mm"]


@pytest.mark.parametrize(
    ("forms", "flops"),
    [
        (
            [
                lambda x: x + 2,
                lambda x: 2 + x,
                lambda x: x.add(2),
                lambda x: torch.add(x, 2),
                lambda x: x.clone().add_(2),
            ],
            6,
        ),
        ([lambda x: x**2, lambda x: 2**x, lambda x: x.clone().pow_(2)], 6),
        ([lambda x: x - 1, lambda x: 1 - x, lambda x: torch.rsub(x, 1)], 6),
        ([lambda x: torch.add(x, x, alpha=3)], 12),
        ([lambda x: x > 1, lambda x: torch.gt(x, 1), lambda x: x.clone().gt_(1)], 6),
        ([torch.relu, F.relu, nn.ReLU(inplace=True), lambda x: x.relu()], 6),
        ([torch.sigmoid, F.sigmoid, torch.special.expit], 24),
        ([lambda x: x.sum(), lambda x: torch.sum(x, (0, 1))], 5),
        ([lambda x: x.mean(0)], 6),
        ([lambda x: x.softmax(1), lambda x: F.softmax(x, -1), nn.Softmax(1)], 26),
        ([lambda x: x.cumsum(1)], 4),
        ([lambda x: torch._foreach_add([x, x], 1)[0]], 12),
        ([lambda x: x.clamp(0), lambda x: x.clamp(max=1)], 6),
        ([lambda x: x.clamp(0, 1)], 12),
        ([lambda x: x.var(1)], 24),
        ([lambda x: F.mse_loss(x, x * 1)], 6 + 18),
        (
            [
                lambda x: x.view(3, 2),
                lambda x: x[0],
                lambda x: torch.cat([x, x]),
                lambda x: x.double(),
                lambda x: x.clone(),
            ],
            0,
        ),
        ([nn.Dropout(0.5).eval()], 0),
    ],
)
def test_forms_of_one_operation_cost_the_same(forms: list[Callable[..., Any]], flops: int) -> None:
    for form in forms:
        trace = traced(form, torch.rand(2, 3))
        assert trace.total_flops_forward == flops
        assert trace.unknown_flop_ops == ()


def test_what_is_read_one_by_one_is_what_is_read_at_once() -> None:
    trace = traced(resnet(), torch.rand(2, 3, 32, 32))
    for name in OPS:
        column = trace.tables.ops.column(name)
        singly = [column.one(row) for row in range(len(trace.ops))]  # type: ignore[attr-defined]  # a deferred column
        assert singly == list(column)


def test_a_hundred_thousand_ops_are_counted_in_a_moment() -> None:
    def loop(x: Tensor) -> Tensor:
        for _ in range(10_000):
            x = torch.tanh(x) * 0.5 + 1
        return x

    trace = traced(loop, torch.rand(2))
    with at_most(5):
        assert trace.total_flops_forward == 3 * 2 * 10_000


def test_quantities_of_work_keep_their_class_and_print_their_unit() -> None:
    assert repr(tl.Flops(1460)) == "Flops('1.46 KFLOPs')"
    assert repr(tl.Macs(2_000_000)) == "Macs('2 MMACs')"
    assert type(sum([tl.Flops(1), tl.Flops(2)])) is tl.Flops
    assert type(3 * tl.Macs(2)) is tl.Macs
    assert tl.Flops(5) - tl.Flops(2) == 3
    assert f"{tl.Flops(2048)} {tl.Flops(2048):d}" == "2.05 KFLOPs 2048"


def test_data_frames_hold_plain_numbers(mlp: tl.Trace) -> None:
    frame = mlp.ops.to_pandas()
    assert list(frame.flops_forward) == [0, 270, 30, 195, 0]
    assert list(mlp.layers.to_pandas().total_flops_forward) == [0, 270, 30, 195, 0]
    assert not any(isinstance(value, tl.Flops) for value in frame.flops_forward)


# -- kernels that fuse a whole layer, and the models of the zoo ----------------------------------------------


@pytest.mark.parametrize(
    ("layer", "num_inputs"),
    [(nn.MultiheadAttention(8, 2, batch_first=True), 3), (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)],
)
def test_a_fused_layer_has_the_products_of_its_parts(layer: nn.Module, num_inputs: int) -> None:
    layer.eval()
    inputs = [torch.rand(3, 5, 8)] * num_inputs
    parts = traced(layer, *inputs)
    fused = tl.trace(layer, inputs, save="none", capture=tl.CaptureOptions(inference_only=True))
    assert len(list(fused.compute_ops)) < len(list(parts.compute_ops))
    assert fused.total_macs_forward == parts.total_macs_forward
    assert fused.unknown_flop_ops == ()
