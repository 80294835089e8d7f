"""Which ops are passes of one layer: the worked examples of the grouping rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.projections.making import Made, op_labels

Body = Callable[[Made, int], int]


def loop(made: Made, x: int) -> int:
    for _ in range(3):
        x = made.op("mul", made.op("tanh", x, site="t"), site="m")
    return x


def written_three_times(made: Made, x: int) -> int:
    for _ in range(3):
        x = made.op("mul", made.op("tanh", x))
    return x


def nested_call(made: Made, x: int) -> int:
    return made.op("tanh", made.op("tanh", made.op("tanh", x)))


def nested_loop(made: Made, x: int) -> int:
    for _ in range(2):
        x = made.op("sin", x, site="s")
        for _ in range(3):
            x = made.op("cos", x, site="c")
    return x


def comprehension(made: Made, x: int) -> int:
    parts = [made.op("exp", made.op("add", x, site="a"), site="e") for _ in range(3)]
    return made.op("sum", made.op("stack", parts))


def constants_that_come_twice(made: Made, x: int) -> int:
    zeros, ones = made.op("zeros"), made.op("ones")
    return made.op("add", x, made.op("sum", made.op("stack", [zeros, ones, zeros])))


def call(made: Made, address: str, x: int, func: str, *, site: object = None, inner: object = "inside") -> int:
    with made.call(address, x, site=site) as entered:
        entered.returns(made.op(func, x, site=(func, inner)))
    return entered.output


def shared_at_two_sites(made: Made, x: int) -> int:
    for _ in range(2):
        x = made.op("relu", call(made, "fc", x, "linear"))
    return x


def shared_in_a_loop(made: Made, x: int) -> int:
    for _ in range(3):
        x = made.op("relu", call(made, "fc", x, "linear", site="fc"), site="r")
    return x


def instances_in_a_loop(made: Made, x: int) -> int:
    for number in range(3):
        x = made.op("relu", call(made, f"l{number}", x, "linear", site="l"), site="r")
    return x


def block(made: Made, x: int, number: int) -> int:
    with made.call(f"b{number}", x, site="b") as entered:
        inner = made.op("relu", call(made, f"b{number}.fc", x, "linear", site="fc"), site="r")
        entered.returns(made.op("add", inner, x, site="a"))
    return entered.output


def blocks_in_a_loop(made: Made, x: int) -> int:
    for _ in range(2):
        for number in range(2):
            x = block(made, x, number)
    return x


def helper(made: Made, x: int, site: object) -> int:
    return made.op("mul", made.op("tanh", x, site=(site, "t")), site=(site, "m"))


def helper_function(made: Made, x: int) -> int:
    x = helper(made, helper(made, x, "first"), "second")
    for _ in range(2):
        x = helper(made, x, "loop")
    return x


def helper_with_a_loop(made: Made, x: int) -> int:
    for site in ("first", "second"):
        for _ in range(3):
            x = made.op("tanh", x, site=site)
    return x


def recursion(made: Made, x: int) -> int:
    for depth in range(3):
        x = made.op("tanh", x, site=("deep",) * (depth + 1))
    return x


def module_recursion(made: Made, x: int) -> int:
    def body(x: int, left: int) -> int:
        x = made.op("relu", call(made, "fc", x, "linear", site="fc"), site="r")
        if not left:
            return x
        with made.call("self", x, site="self") as entered:
            entered.returns(body(x, left - 1))
        return entered.output

    return body(x, 2)


def alternating_branches(made: Made, x: int) -> int:
    for func in ("sin", "cos", "sin", "cos"):
        x = made.op(func, x, site=func)
    return x


def varying_argument(made: Made, x: int) -> int:
    for limit in range(2):
        x = made.op("clamp", x, site="c", plain=(-1, limit + 1))
    return x


def varying_shape(made: Made, x: int) -> int:
    for size in (8, 16):
        x = made.op("cat", [x, x], site="c", shape=(2, size), plain=(1,))
    return x


def while_test(made: Made, x: int) -> int:
    for _ in range(2):
        made.branch(made.op("gt", made.op("max", x, site="m"), site="g"), True)
        x = made.op("__truediv__", x, site="d")
    made.branch(made.op("gt", made.op("max", x, site="m"), site="g"), False)
    return x


def one_linear_twice(made: Made, x: int) -> int:
    with made.call("seq", x) as entered:
        for _ in range(2):
            x = call(made, "seq.0", x, "linear", site="inside")
        entered.returns(x)
    return entered.output


def one_relu_at_two_sites(made: Made, x: int) -> int:
    for func in ("sin", "cos"):
        x = call(made, "r", made.op(func, x), "relu")
    return x


def module_and_function(made: Made, x: int) -> int:
    return made.op("relu", call(made, "r", x, "relu"))


def slots(made: Made, x: int) -> int:
    for _ in range(2):
        pair = made.op("chunk", x, site="c", results=2)
        x = made.op("cat", [pair, pair + 1], site="k")
    return x


MODULES = {
    **dict.fromkeys(("fc", "l0", "l1", "l2", "r"), "Linear"),
    **dict.fromkeys(("b0", "b1", "b0.fc", "b1.fc", "seq", "seq.0"), "Block"),
}


TWO_BLOCKS = ("linear_1_1", "relu_1_2", "add_1_3", "linear_2_4", "relu_2_5", "add_2_6")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (loop, "tanh_1_1:1 mul_1_2:1 tanh_1_1:2 mul_1_2:2 tanh_1_1:3 mul_1_2:3"),
        (written_three_times, "tanh_1_1 mul_1_2 tanh_2_3 mul_2_4 tanh_3_5 mul_3_6"),
        (nested_call, "tanh_1_1 tanh_2_2 tanh_3_3"),
        (nested_loop, "sin_1_1:1 cos_1_2:1 cos_1_2:2 cos_1_2:3 sin_1_1:2 cos_1_2:4 cos_1_2:5 cos_1_2:6"),
        (comprehension, "add_1_1:1 exp_1_2:1 add_1_1:2 exp_1_2:2 add_1_1:3 exp_1_2:3 stack_1_3 sum_1_4"),
        (shared_at_two_sites, "linear_1_1:1 relu_1_2 linear_1_1:2 relu_2_3"),
        (shared_in_a_loop, "linear_1_1:1 relu_1_2:1 linear_1_1:2 relu_1_2:2 linear_1_1:3 relu_1_2:3"),
        (instances_in_a_loop, "linear_1_1 relu_1_2:1 linear_2_3 relu_1_2:2 linear_3_4 relu_1_2:3"),
        (blocks_in_a_loop, " ".join(f"{op}:{k}" for k in (1, 2) for op in TWO_BLOCKS)),
        (helper_function, "tanh_1_1 mul_1_2 tanh_2_3 mul_2_4 tanh_3_5:1 mul_3_6:1 tanh_3_5:2 mul_3_6:2"),
        (helper_with_a_loop, "tanh_1_1:1 tanh_1_1:2 tanh_1_1:3 tanh_2_2:1 tanh_2_2:2 tanh_2_2:3"),
        (recursion, "tanh_1_1 tanh_2_2 tanh_3_3"),
        (module_recursion, "linear_1_1:1 relu_1_2:1 linear_1_1:2 relu_1_2:2 linear_1_1:3 relu_1_2:3"),
        (slots, "chunk_1_1:1 chunk_2_2:1 cat_1_3:1 chunk_1_1:2 chunk_2_2:2 cat_1_3:2"),
        (alternating_branches, "sin_1_1:1 cos_1_2:1 sin_1_1:2 cos_1_2:2"),
        (varying_argument, "clamp_1_1:1 clamp_1_1:2"),
        (varying_shape, "cat_1_1:1 cat_1_1:2"),
        (while_test, "max_1_1:1 gt_1_2:1 truediv_1_3:1 max_1_1:2 gt_1_2:2 truediv_1_3:2 max_1_1:3 gt_1_2:3"),
        (one_linear_twice, "linear_1_1:1 linear_1_1:2"),
        (one_relu_at_two_sites, "sin_1_1 relu_1_2:1 cos_1_3 relu_1_2:2"),
        (module_and_function, "relu_1_1 relu_2_2"),
        (constants_that_come_twice, "zeros_1_1 ones_1_2 stack_1_3 sum_1_4 add_1_5"),
    ],
)
def test_ops_are_passes_of_one_layer_by_module_site_name_and_slot(body: Body, expected: str) -> None:
    made = Made(MODULES)
    tables = made.returns(body(made, made.input("x"))).tables()
    assert " ".join(op_labels(tables)) == expected
