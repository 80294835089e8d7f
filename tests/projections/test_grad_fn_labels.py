"""Labels of autograd nodes: the worked examples that a reader learns them from."""

from __future__ import annotations

import pytest

from projections.autograd.nodes import type_of
from tests.projections.making import Made
from tests.projections.making_backward import Node, Passes, grad_fn_labels, of_grad_fn


def perceptron() -> tuple[Passes, Node]:
    """``Sequential(Linear(4, 6), ReLU(), Linear(6, 3))`` and the node of the sum over its output."""
    made = Made({"0": "Linear", "1": "ReLU", "2": "Linear"}, dict.fromkeys(("0.w", "0.b", "2.w", "2.b"), (2,)))
    x = made.input("x")
    with made.call("0", x) as lower:
        lower.returns(made.op("linear", x, "0.w", "0.b", grad_fn="AddmmBackward0", grad_node=0, grad_slot=0))
    with made.call("1", lower.output) as act:
        act.returns(made.op("relu", lower.output, grad_fn="ReluBackward0", grad_node=1, grad_slot=0))
    with made.call("2", act.output) as upper:
        upper.returns(made.op("linear", act.output, "2.w", "2.b", grad_fn="AddmmBackward0", grad_node=2, grad_slot=0))
    passes = Passes(made.returns(upper.output))
    first_w, first_b, second_w, second_b = (passes.node("AccumulateGrad", leaf=-1 - number) for number in range(4))
    first = passes.node("AddmmBackward0", first_b, None, passes.node("TBackward0", first_w), number=0)
    relu = passes.node("ReluBackward0", first, number=1)
    second = passes.node("AddmmBackward0", second_b, relu, passes.node("TBackward0", second_w), number=2)
    return passes, passes.node("SumBackward0", second)


def looped(*, of_input: bool = False) -> tuple[Passes, Node]:
    """``for _ in range(2): x = torch.tanh(self.fc(x))`` and the node of its result."""
    made = Made({"fc": "Linear"}, {"fc.w": (2,), "fc.b": (2,)})
    x = made.input("x", **({"grad_fn": "CloneBackward0", "grad_node": 0, "grad_slot": 0} if of_input else {}))
    value = x
    for step in range(2):
        with made.call("fc", value, site="fc") as call:
            known = {"grad_fn": "AddmmBackward0", "grad_node": 1 + 2 * step, "grad_slot": 0}
            call.returns(made.op("linear", value, "fc.w", "fc.b", site="linear", **known))
        known = {"grad_fn": "TanhBackward0", "grad_node": 2 + 2 * step, "grad_slot": 0}
        value = made.op("tanh", call.output, site="tanh", **known)
    passes = Passes(made.returns(value))
    weight, bias = (passes.node("AccumulateGrad", leaf=-1 - number) for number in range(2))
    here = passes.node("CloneBackward0", passes.node("AccumulateGrad"), number=0) if of_input else None
    for step in range(2):
        weights = passes.node("TBackward0", weight, sequence=2 * step + 1)
        addmm = passes.node("AddmmBackward0", bias, here, weights, number=1 + 2 * step)
        here = passes.node("TanhBackward0", addmm, number=2 + 2 * step)
    assert here is not None
    return passes, here


def test_nodes_are_numbered_breadth_first_from_the_loss() -> None:
    passes, loss = perceptron()
    passes.run(loss)
    tables = passes.tables()
    assert grad_fn_labels(tables) == [
        "sum_back_1_1",
        "addmm_back_1_2",
        "accumulategrad_back_1_3",
        "relu_back_1_4",
        "t_back_1_5",
        "addmm_back_2_6",
        "accumulategrad_back_2_7",
        "accumulategrad_back_3_8",
        "t_back_2_9",
        "accumulategrad_back_4_10",
    ]
    assert list(tables.grad_fns.column("op_label")) == [
        None,
        "linear_2_3",
        None,
        "relu_1_2",
        None,
        "linear_1_1",
        *[None] * 4,
    ]
    addresses = {3: "2.b", 7: "2.w", 8: "0.b", 10: "0.w"}
    assert list(tables.grad_fns.column("param_address")) == [addresses.get(number) for number in range(1, 11)]
    children = ("accumulategrad_back_1_3", "relu_back_1_4", "t_back_1_5")
    assert of_grad_fn(tables, "addmm_back_1_2", "children") == children


def test_a_later_pass_numbers_only_what_is_new_and_firings_are_counted_by_node() -> None:
    passes, here = looped()
    passes.run(passes.node("SumBackward0", here), retain_graph=True)
    passes.run(passes.node("MeanBackward0", passes.node("PowBackward0", here)))
    tables = passes.tables()
    assert grad_fn_labels(tables) == [
        "sum_back_1_1",
        "tanh_back_1_2",
        "addmm_back_1_3",
        "accumulategrad_back_1_4",
        "tanh_back_2_5",
        "t_back_1_6",
        "addmm_back_2_7",
        "accumulategrad_back_2_8",
        "t_back_2_9",
        "mean_back_1_10",
        "pow_back_1_11",
    ]
    assert of_grad_fn(tables, "tanh_back_1_2", "op_label") == "tanh_1_2:2"
    assert of_grad_fn(tables, "tanh_back_2_5", "op_label") == "tanh_1_2:1"
    assert of_grad_fn(tables, "accumulategrad_back_1_4", "parents") == ("addmm_back_1_3", "addmm_back_2_7")
    assert of_grad_fn(tables, "addmm_back_1_3", "call_labels") == ("addmm_back_1_3:1", "addmm_back_1_3:2")
    assert of_grad_fn(tables, "sum_back_1_1", "call_labels") == ("sum_back_1_1:1",)
    assert of_grad_fn(tables, "mean_back_1_10", "call_labels") == ("mean_back_1_10:1",)


def second_order() -> tuple[Passes, Node]:
    """``torch.autograd.grad((out ** 2).sum(), x, create_graph=True)``, and the node of the gradient."""
    passes, here = looped(of_input=True)
    power = passes.node("PowBackward0", here)
    loss = passes.node("SumBackward0", power)
    last, step = here, here
    passes.open(loss, trigger="autograd_grad", create_graph=True, accumulates=False)
    passes.walk(loss)
    passes.fire(loss, made=(20, 20))
    inner = passes.node("MulBackward0", passes.node("PowBackward0", here, sequence=20), sequence=21)
    mul = passes.node("MulBackward0", None, inner, sequence=22)
    passes.fire(power, made=(20, 23))
    made, before, number = [mul, inner, inner.behind[0]], mul, 23
    for _ in range(2):
        tanh = passes.node("TanhBackwardBackward0", before, last, sequence=number)
        passes.fire(last, made=(number, number + 1))
        addmm = last.behind[0]
        assert isinstance(addmm, Node)
        weights = passes.node("TBackward0", addmm.behind[2], sequence=number + 1)
        before = passes.node("MmBackward0", tanh, weights, sequence=number + 2)
        passes.fire(addmm, made=(number + 1, number + 3))
        number += 3
        step = addmm.behind[1]  # type: ignore[assignment]  # a node
        made = [before, tanh, weights, *made]
        last = step
    passes.fire(last, made=(number, number))
    passes.make(*made)  # type: ignore[arg-type]  # nodes all
    passes.close()
    return passes, before


def test_nodes_that_a_pass_made_are_numbered_firing_by_firing_and_are_one_order_higher() -> None:
    passes, _ = second_order()
    tables = passes.tables()
    found = grad_fn_labels(tables).index("mul_back_1_13")
    assert grad_fn_labels(tables)[found:] == [
        "mul_back_1_13",
        "mul_back_2_14",
        "pow_back_2_15",
        "tanhbackward_back_1_16",
        "mm_back_1_17",
        "t_back_3_18",
        "tanhbackward_back_2_19",
        "mm_back_2_20",
        "t_back_4_21",
    ]
    orders = list(tables.grad_fns.column("order"))
    assert orders == [1] * found + [2] * 9
    assert of_grad_fn(tables, "mm_back_1_17", "differentiates") == "addmm_back_1_4"
    assert of_grad_fn(tables, "mm_back_1_17", "origin_backward_pass") == 1
    assert of_grad_fn(tables, "sum_back_1_1", "differentiates") is None
    assert list(tables.backward_passes.column("order")) == [1]


def test_what_a_firing_made_is_numbered_gradient_by_gradient_in_the_order_of_its_inputs() -> None:
    passes, _ = looped()
    passes = Passes(passes.made)
    left, right = passes.node("ExpBackward0"), passes.node("LogBackward0")
    product = passes.node("MmBackward0", left, right)
    passes.open(product, create_graph=True)
    passes.walk(product)
    passes.fire(product, made=(10, 14))
    passes.fire(right, made=(14, 15))
    passes.fire(left, made=(15, 16))
    to_left = passes.node("SinBackward0", passes.node("TBackward0", sequence=12), sequence=13)
    to_right = passes.node("CosBackward0", passes.node("TanBackward0", sequence=10), sequence=11)
    behind_left = passes.node("NegBackward0", to_left, sequence=15)
    behind_right = passes.node("DivBackward0", to_right, sequence=14)
    passes.make(behind_right, behind_left, to_right, to_left, *to_right.behind, *to_left.behind)  # type: ignore[arg-type]  # nodes
    passes.close()
    assert [label.partition("_")[0] for label in grad_fn_labels(passes.tables())] == [
        *("mm", "exp", "log"),
        *("sin", "t", "cos", "tan"),
        *("div", "neg"),
    ]


def test_what_user_code_builds_from_gradients_is_of_order_one() -> None:
    passes, gradient = second_order()
    passes.run(passes.node("SumBackward0", passes.node("PowBackward0", gradient)))
    tables = passes.tables()
    assert grad_fn_labels(tables)[-2:] == ["sum_back_2_22", "pow_back_3_23"]
    assert list(tables.grad_fns.column("order"))[-2:] == [1, 1]
    assert list(tables.backward_passes.column("order")) == [1, 2]
    assert list(tables.backward_passes.column("origin_backward_pass")) == [None, 1]
    assert list(tables.backward_passes.column("order_attribution_coverage")) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("AddmmBackward0", "addmm"),
        ("TBackward0", "t"),
        ("AccumulateGrad", "accumulategrad"),
        ("NativeBatchNormBackward0", "nativebatchnorm"),
        ("CopySlices", "copyslices"),
        ("TanhBackwardBackward0", "tanhbackward"),
        ("FnBackward", "fn"),
        ("Conv2DBackward11", "conv2d"),
        ("Backward", "backward"),
        ("torch::autograd::CppNode<Mul>", "torch_autograd_cppnode_mul"),
        ("::", "node"),
    ],
)
def test_a_node_is_called_by_its_class_without_what_all_of_them_end_in(class_name: str, name: str) -> None:
    assert type_of(class_name) == name
