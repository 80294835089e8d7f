"""Which gradients a pass keeps: what a selector keeps is what it matches of everything, bit for bit."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from journal.events import GradientKept, GradientObserved, NodesFound, PassOpened
from tests.torchlens.models import Double
from torchlens.errors import SelectionError, TorchLensError


def named(given: Any) -> str | None:
    """What stands for a parameter in the name of a test: nothing that differs from one process to another."""
    return None if callable(given) or isinstance(given, set) else repr(given)


# -- models, and what a capture of one kept


class Branched(nn.Module):
    """A part that is used twice, a call with several results, values that share a node, a node of one's own, a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x))
        x = self.drop(torch.relu(self.fc(x)))
        left, right = x.split(2, dim=1)
        most = left.max(dim=1, keepdim=True).values
        scale = torch.ones(1, requires_grad=True)
        made: Tensor = Double.apply(self.frozen(x)) + most * right.sum() * scale
        return made


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {"chain": chain, "branched": Branched}


def two_passes(model: str, standing: Any, **per_pass: Any) -> tl.Trace:
    """A capture with two backward passes over one graph, from different losses."""
    torch.manual_seed(0)
    made = MODELS[model]().eval()
    x = torch.randn(5, 4, requires_grad=True)
    trace = tl.trace(made, x, capture=tl.CaptureOptions(save_grads=standing))
    trace.backward(trace.output.sum(), retain_graph=True, **per_pass)
    trace.backward((trace.output**2).mean(), **per_pass)
    return trace


class Place(NamedTuple):
    """Where a gradient passed."""

    pass_index: int
    node: int
    side: str
    slot: int


def kept(trace: tl.Trace) -> dict[Place, Tensor]:
    """Everything that was kept, as the events tell it."""
    events = [stamped.event for stamped in trace.events()]
    later = {event.of: event.payload for event in events if isinstance(event, GradientKept)}
    found: dict[Place, Tensor] = {}
    for at, event in enumerate(events):
        if isinstance(event, GradientObserved):
            payload = event.payload or later.get(at)
            if payload is not None:
                shape, dtype, _ = event.like
                place = Place(event.pass_number + 1, event.node, event.side, event.slot)
                assert place not in found
                found[place] = trace.kept((payload, shape, dtype))
    return found


def same(one: dict[Place, Tensor], other: dict[Place, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[place].dtype == other[place].dtype and torch.equal(one[place], other[place]) for place in one
    )


class Element(NamedTuple):
    """One side of a node in a pass, and an op that stands there, as an independent reading of a selector asks of it."""

    op: Any
    class_name: str
    is_custom: bool
    has_op: bool
    side: str
    pass_index: int


class Whole(NamedTuple):
    """Everything that two passes over a model can keep, and what stands where."""

    gradients: dict[Place, Tensor]  # what True keeps
    everything: dict[Place, Tensor]  # and what passes at nodes
    classes: dict[int, tuple[str, bool]]
    ops: dict[int, dict[int, list[Any]]]  # by node and its output
    gatherers: set[int]  # nodes that gather for leaves


@functools.cache
def whole(model: str) -> Whole:
    true = two_passes(model, True)
    nodes = two_passes(model, tl.grad_fn())
    gradients, at_nodes = kept(true), kept(nodes)
    assert same(gradients, {place: at_nodes[place] for place in gradients})
    found = [
        node for stamped in nodes.events() if isinstance(stamped.event, NodesFound) for node in stamped.event.nodes
    ]
    classes = {node[0]: (node[1], node[3]) for node in found}
    leaves = {node[5]: node[0] for node in found if node[5] is not None}
    ops: dict[int, dict[int, list[Any]]] = {}
    for op in nodes.ops:
        number, slot = op.autograd.grad_fn_object_id, op.read("grad_slot")
        if number is None:
            number, slot = leaves.get(op.read("value")), 0
        if number is not None and not op.is_output:
            ops.setdefault(number, {}).setdefault(slot, []).append(op)
    true.cleanup()
    nodes.autograd.disarm()  # it stays for its ops, and must not keep torch's function replaced
    return Whole(gradients, at_nodes, classes, ops, set(leaves.values()))


Asks = tuple[tl.Selector, Callable[[Element], bool], bool]
"""A selector, the same question by itself, and whether it is about nodes."""


def of_op(test: Callable[[Any], bool]) -> Callable[[Element], bool]:
    return lambda at: at.op is not None and test(at.op)


def is_relu(op: Any) -> bool:
    return bool(op.func_name == "relu")


TERMS: list[Asks] = [
    (tl.func("relu"), of_op(is_relu), False),
    (tl.func("linear"), of_op(lambda op: op.func_name == "linear"), False),
    (tl.func("split"), of_op(lambda op: op.func_name == "split"), False),
    (tl.func("dropout"), of_op(lambda op: op.func_name == "dropout"), False),
    (tl.func("ones"), of_op(lambda op: op.func_name == "ones"), False),
    (tl.output(1), of_op(lambda op: op.multi_output_index == 1), False),
    (tl.in_module("0") | tl.in_module("fc"), of_op(lambda op: op.module in ("0:1", "fc:1", "fc:2")), False),
    (tl.where(lambda op: len(op.shape) == 2 and op.shape[1] == 4), of_op(lambda op: op.shape == (5, 4)), False),
    (
        tl.grad(tl.func("relu")),
        lambda at: at.op is not None and at.op.func_name == "relu" and at.side == "output",
        False,
    ),
    (tl.grad_fn("addmm"), lambda at: at.class_name == "AddmmBackward0", True),
    (tl.grad_fn(label="accumulategrad"), lambda at: at.class_name == "AccumulateGrad", True),
    (tl.grad_fn(is_custom=True), lambda at: at.is_custom, True),
    (tl.without_op(), lambda at: not at.has_op, True),
    (tl.grad_input(), lambda at: at.side == "input", True),
    (tl.grad_output(), lambda at: at.side == "output", True),
    (tl.in_backward_pass(1), lambda at: at.pass_index == 1, False),
    (tl.in_backward_pass(2), lambda at: at.pass_index == 2, False),
    (tl.in_backward_pass(3), lambda at: False, False),
]


def both(one: Asks, other: Asks) -> Asks:
    return one[0] & other[0], lambda at: one[1](at) and other[1](at), one[2] or other[2]


def either(one: Asks, other: Asks) -> Asks:
    return one[0] | other[0], lambda at: one[1](at) or other[1](at), one[2] or other[2]


asked = st.recursive(
    st.sampled_from(TERMS),
    lambda inner: st.one_of(
        st.builds(both, inner, inner),
        st.builds(either, inner, inner),
        inner.map(lambda one: (~one[0], lambda at: not one[1](at), one[2])),
    ),
    max_leaves=4,
)


def expected(asks: Asks, of: Whole) -> dict[Place, Tensor]:
    """What a selector keeps, asked of each gradient by itself."""
    _, holds, is_of_nodes = asks
    found: dict[Place, Tensor] = {}
    for place, gradient in (of.everything if is_of_nodes else of.gradients).items():
        class_name, is_custom = of.classes[place.node]
        at_node = of.ops.get(place.node, {})
        has_op = bool(at_node) and place.node not in of.gatherers
        slots = [place.slot] if place.side == "output" else list(at_node)
        ops = [op for slot in slots for op in at_node.get(slot, ())] or ([] if at_node else [None])

        def matches(op: Any, side: str) -> bool:
            if side == "input" and place.node in of.gatherers:  # noqa: B023
                return False
            return holds(Element(op, class_name, is_custom, has_op, side, place.pass_index))  # noqa: B023

        if any(matches(op, place.side) or (is_of_nodes and op is not None and matches(op, "input")) for op in ops):
            found[place] = gradient
    return found


@pytest.mark.filterwarnings("ignore:save_grads")  # not every model has every op
@pytest.mark.parametrize("model", MODELS)
@given(asks=asked)
@settings(max_examples=40)
def test_what_a_selector_keeps_is_what_it_matches_of_everything(model: str, asks: Asks) -> None:
    assert same(kept(two_passes(model, asks[0])), expected(asks, whole(model)))


@pytest.mark.filterwarnings("ignore:save_grads")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("asks", TERMS, ids=lambda asks: repr(asks[0]))
def test_each_selector_by_itself_keeps_what_it_matches(model: str, asks: Asks) -> None:
    trace = two_passes(model, asks[0])
    assert same(kept(trace), expected(asks, whole(model)))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("standing", [None, True, tl.func("relu")], ids=named)
def test_what_one_pass_is_asked_stands_in_place_of_what_stands(model: str, standing: Any) -> None:
    widened = two_passes(model, standing, save_grads=True)
    assert same(kept(widened), whole(model).gradients)
    narrowed = two_passes(model, standing, save_grads=False)
    assert not kept(narrowed)
    other = two_passes(model, standing, save_grads=tl.grad_fn("addmm"))
    assert same(kept(other), expected(TERMS[9], whole(model)))


# -- forms


def labels_of(trace: tl.Trace) -> set[str]:
    """The ops that hold a gradient."""
    places = kept(trace)
    return {
        op.label
        for op in trace.ops
        if not op.is_output
        and any(
            (at.node, at.side, at.slot) == (op.autograd.grad_fn_object_id, "output", op.read("grad_slot"))
            for at in places
        )
    }


def chained(save_grads: Any) -> tl.Trace:
    trace = tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=save_grads))
    return trace.backward(trace.output.sum(), retain_graph=True)


ALL = {"linear_1_1", "relu_1_2", "linear_2_3"}


@pytest.mark.parametrize(
    ("save_grads", "labels"),
    [
        (True, ALL),
        ("all", ALL),
        (False, set()),
        (None, set()),
        ("none", set()),
        ([], set()),
        ("relu_1_2", {"relu_1_2"}),
        ("relu_1", {"relu_1_2"}),
        ("relu", {"relu_1_2"}),
        ("0", {"linear_1_1"}),
        ("output_1", {"linear_2_3"}),
        (2, {"relu_1_2"}),
        (-1, {"linear_2_3"}),
        (np.int64(2), {"relu_1_2"}),
        (["0", tl.func("relu")], {"linear_1_1", "relu_1_2"}),
        (tl.func("linear") - tl.module("0"), {"linear_2_3"}),
        (~tl.func("relu"), {"linear_1_1", "linear_2_3"}),
        (~tl.label("output_1"), {"linear_1_1", "relu_1_2"}),
        (lambda op: op.func_name == "linear" and op.num_children == 1, {"linear_1_1", "linear_2_3"}),
        (tl.followed_by(tl.func("linear")), {"relu_1_2"}),
        (tl.grad("relu_1_2") | "linear_2_3", {"relu_1_2", "linear_2_3"}),
        (tl.grad("relu_1_2") | "relu_1_2", {"relu_1_2"}),
        (tl.in_backward_pass(2), set()),
    ],
    ids=named,
)
def test_every_form_names_its_ops(save_grads: Any, labels: set[str]) -> None:
    assert labels_of(chained(save_grads)) == labels


def policies_of(trace: tl.Trace) -> list[str | None]:
    return [stamped.event.policy for stamped in trace.events() if isinstance(stamped.event, PassOpened)]


def test_each_pass_tells_what_it_was_asked_to_keep() -> None:
    trace = tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=["0", tl.func("relu")]))
    requests: list[Any] = [None, False, True, tl.func("relu") & tl.in_backward_pass(4), "relu_1_2"]
    for save_grads in requests:
        trace.backward(trace.output.sum(), retain_graph=True, save_grads=save_grads)
    wanted = ["['0', func('relu')]", None, "True", "(func('relu') & in_backward_pass(4))", "'relu_1_2'"]
    assert policies_of(trace) == wanted
    assert [one.save_grads_policy for one in trace.autograd.backward_passes] == wanted
    assert trace.options["save_grads"] == wanted[0]


def test_whether_all_gradients_were_asked_for_is_told_of_each_op() -> None:
    for save_grads, stored, asked in (
        (True, True, ALL),
        ("all", True, ALL),
        ("relu", "'relu'", {"relu_1_2"}),
        ([], None, set()),
    ):
        trace = chained(save_grads)
        assert trace.options.get("save_grads") == stored
        assert {op.label for op in trace.compute_ops if op.save_grads} == asked


def test_an_output_means_the_gradient_of_the_op_whose_value_it_is() -> None:
    trace = chained(True)
    assert trace[tl.grad("output_1")].labels() == ("linear_2_3",)
    assert trace[tl.grad(tl.module("self"))].labels() == ("linear_2_3",)


def test_a_policy_holds_on_to_no_trace() -> None:
    gc.collect()
    gc.disable()
    try:
        trace = chained(tl.grad_fn(label="addmm") | (tl.func("relu") & tl.in_backward_pass(1)))
        trace.backward(trace.output.sum(), save_grads=tl.where(lambda op: op.func_name == "relu"))
        held = weakref.ref(trace)
        del trace
        assert held() is None
    finally:
        gc.enable()


def test_a_predicate_is_asked_once_about_each_finished_op() -> None:
    met: list[str] = []

    def ask(op: Any) -> bool:
        met.append(op.label)
        return bool(op.func_name == "relu")

    trace = tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=ask))
    for _ in range(2):
        trace.backward(trace.output.sum(), retain_graph=True)
    assert met == list(trace.ops.labels)
    assert labels_of(trace) == {"relu_1_2"}


def test_a_label_of_a_node_chooses_among_those_of_its_class() -> None:
    trace = chained(tl.grad_fn(label="addmm_back_2"))
    assert labels_of(trace) == {"linear_1_1"}
    assert {at.side for at in kept(trace)} == {"output", "input"}


def test_a_node_selector_keeps_what_its_calls_got_and_gave_and_nothing_else() -> None:
    trace = chained(tl.grad_fn("ReluBackward0"))
    calls = trace.autograd.grad_fn_calls
    assert [call.label for call in calls if call.is_saved] == ["relu_back_1_4"]
    (got,), (gave,) = calls["relu_back_1_4:1"].grad_outputs, calls["relu_back_1_4:1"].grad_inputs
    assert torch.equal(got, trace["relu_1_2"].grad)
    assert [op.label for op in trace.saved_grad_ops] == ["relu_1_2"]
    with pytest.raises(TorchLensError) as caught:
        _ = trace["linear_1_1"].grad
    assert caught.value.code == "gradient_not_saved"
    trace.backward(trace.output.sum(), save_grads="linear_1_1")
    assert torch.equal(gave, trace["linear_1_1"].grad)  # the same values, from the same loss


# -- passes of every kind


class Parts(nn.Module):
    """Two heads over a trunk, behind a middle that is cut from the graph in one of them, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 2)
        self.cut = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.frozen(self.trunk(x))
        return torch.relu(self.head(x)), torch.tanh(self.cut(x.detach()))


def parts(save_grads: Any) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Parts(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=save_grads))


UPPER = ["linear_1_1", "linear_2_2", "linear_3_3", "relu_1_4"]
LOWER = ["linear_4_6", "tanh_1_7"]


@pytest.mark.parametrize(
    ("save_grads", "first", "second"),
    [
        (True, UPPER, LOWER),
        (tl.in_module("head") | tl.in_module("cut"), ["linear_3_3"], ["linear_4_6"]),
        (tl.in_backward_pass(2), [], LOWER),
        (tl.grad_fn("addmm") & tl.grad_output(), UPPER[:3], LOWER[:1]),
        (None, [], []),
    ],
    ids=named,
)
def test_of_two_losses_each_pass_keeps_what_lies_behind_its_own(
    save_grads: Any, first: list[str], second: list[str]
) -> None:
    trace = parts(save_grads)
    one, other = trace.output
    one.sum().backward()
    assert list(trace.saved_grad_ops.labels) == first
    trace.backward(other.sum())
    assert list(trace.saved_grad_ops.labels) == [*first, *second]
    assert [op.autograd.grads[0].backward_pass_index for op in trace.saved_grad_ops] == [1] * len(first) + [2] * len(
        second
    )


def test_several_losses_in_one_run_are_one_pass() -> None:
    trace = parts(None)
    with trace.capture_backward(save_grads=tl.func("relu") | tl.func("tanh")):
        torch.autograd.backward([out.sum() for out in trace.output])
    assert trace.saved_grad_ops.labels == ("relu_1_4", "tanh_1_7")
    assert len(trace.autograd.backward_passes) == 1


def test_a_loss_from_the_middle_reaches_what_lies_before_it() -> None:
    trace = parts(True)
    trace.backward(trace["linear_2_2"].out.sum())
    assert list(trace.saved_grad_ops.labels) == UPPER[:2]


def test_what_a_frozen_layer_got_is_kept_and_what_its_parameters_got_is_not() -> None:
    trace = parts(True)
    trace.backward(trace.output[0].sum())
    assert trace["linear_2_2"].has_grad
    got = {param.address: len(param.grads) for param in trace.params}
    assert got == {
        **{f"trunk.{name}": 1 for name in ("weight", "bias")},
        **{f"frozen.{name}": 0 for name in ("weight", "bias")},
        **{f"head.{name}": 1 for name in ("weight", "bias")},
        **{f"cut.{name}": 0 for name in ("weight", "bias")},
    }


def test_over_a_retained_graph_every_pass_keeps_by_its_own_policy() -> None:
    trace = parts(tl.func("linear") - tl.in_backward_pass(3))
    for save_grads in (None, False, None, True, None):
        trace.backward(trace.output[0].sum(), retain_graph=True, save_grads=save_grads)
    found = {op.label: [record.backward_pass_index for record in op.autograd.grads] for op in trace.saved_grad_ops}
    assert found == {**{label: [1, 4, 5] for label in UPPER[:3]}, "relu_1_4": [4]}
    first, fourth, fifth = (record.grad for record in trace["linear_1_1"].autograd.grads)
    assert torch.equal(first, fourth)
    assert torch.equal(first, fifth)
    with pytest.raises(TorchLensError) as caught:
        trace["linear_1_1"].autograd.grad_for(bwd=2)
    assert caught.value.code == "gradient_not_saved"


def test_what_parameters_got_adds_up_to_what_torch_accumulates() -> None:
    trace = parts(True)
    for weight in (1.0, 3.0):
        trace.backward((trace.output[0] * weight).sum(), retain_graph=True)
    for param in trace.params:
        if param.grads:
            one, other = (record.grad for record in param.grads)
            assert torch.equal(one + other, param.grad)
            assert not torch.equal(one, other)


@pytest.mark.parametrize("save_grads", [True, tl.func("linear")], ids=named)
def test_gradients_that_are_returned_are_kept_as_those_that_pass(save_grads: Any) -> None:
    trace = parts(save_grads)
    middle = trace["linear_2_2"].out
    (got,) = torch.autograd.grad((middle**2).sum(), [middle])
    assert list(trace.saved_grad_ops.labels) == ["linear_2_2"]
    assert torch.equal(trace["linear_2_2"].grad, got)
    x = torch.randn(5, 4, requires_grad=True)
    trace = tl.trace(Parts(), x, capture=tl.CaptureOptions(save_grads=save_grads))
    (got,) = torch.autograd.grad(trace.output[0].sum(), [x])
    assert list(trace.saved_grad_ops.labels) == ([["input_1", *UPPER], UPPER[:3]][save_grads is not True])
    if save_grads is True:
        assert torch.equal(trace["input_1"].grad, got)
    assert not any(param.grads for param in trace.params)


def around(loss: Tensor) -> None:
    """Run the engine past torch's Python functions."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward((loss,), (torch.ones(()),), True, False, (), allow_unreachable=True, accumulate_grad=True)


@pytest.mark.parametrize(
    "save_grads", [True, tl.func("linear"), tl.grad_fn("relu"), tl.grad_fn(label="addmm_back_2")], ids=named
)
def test_a_run_that_nothing_announced_keeps_by_the_same_policy(save_grads: Any) -> None:
    unannounced, announced = parts(save_grads), parts(save_grads)
    around(unannounced.output[0].sum())
    announced.output[0].sum().backward()
    assert [one.trigger for one in unannounced.autograd.backward_passes] == ["implicit"]
    assert unannounced.saved_grad_ops.labels == announced.saved_grad_ops.labels
    for op in announced.saved_grad_ops:
        assert torch.equal(unannounced[op.label].grad, op.grad)
    assert policies_of(unannounced) == policies_of(announced)


class Checkpointed(nn.Module):
    """Runs the engine within the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.inner, x, use_reentrant=True)
        return torch.relu(made)


@pytest.mark.parametrize("save_grads", [True, tl.without_op()], ids=named)
def test_a_run_within_a_pass_keeps_what_the_pass_was_asked_to(save_grads: Any) -> None:
    trace = tl.trace(Checkpointed(), torch.randn(5, 4, requires_grad=True))
    trace.backward(trace.output.sum(), save_grads=save_grads, retain_graph=True)
    assert [one.outer_context for one in trace.autograd.backward_passes] == [None, 1]
    assert policies_of(trace) == [str(save_grads)] * 2
    (increment,) = trace.params["inner.weight"].grads
    assert increment.backward_pass_index == 2
    assert torch.equal(increment.grad, trace.params["inner.weight"].grad)
    trace.output.sum().backward()
    assert policies_of(trace)[2:] == [None, None]


# -- refusals


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(TorchLensError) as caught:
        act()
    return caught.value.code


@pytest.mark.parametrize(
    ("save_grads", "code"),
    [
        (3.5, "save_grads_type_invalid"),
        (torch.ones(1), "save_grads_type_invalid"),
        (nn.ReLU(), "save_grads_type_invalid"),
        ([True], "save_grads_type_invalid"),
        (["relu", "all"], "save_grads_type_invalid"),
        ("", "save_grads_type_invalid"),
        ({"relu": True}, "save_grads_type_invalid"),
        (tl.top_k(k=3), "selector_reads_values"),
        (tl.func("relu") & tl.threshold(above=0), "selector_reads_values"),
        (tl.preceded_by(tl.grad_fn("relu")), "selector_names_gradients"),
        (lambda op: 1, "predicate_return_invalid"),
        (lambda op: op.nothing, "predicate_evaluation_failed"),
        (tl.where(lambda op: op.nothing), "predicate_evaluation_failed"),
    ],
    ids=named,
)
def test_what_names_no_gradients_is_refused_for_a_capture_and_for_a_pass(save_grads: Any, code: str) -> None:
    assert (
        refused(lambda: tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=save_grads))) == code
    )
    trace = tl.trace(chain(), torch.randn(5, 4))
    assert refused(lambda: trace.backward(trace.output.sum(), save_grads=save_grads)) == code
    assert refused(lambda: trace.capture_backward(save_grads=save_grads).__enter__()) == code
    assert not trace.autograd.backward_passes
    assert trace.backward(trace.output.sum()).has_backward_pass


def test_a_label_of_several_passes_is_refused_as_the_capture_ends() -> None:
    class Looped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = torch.tanh(x)
            return x

    with pytest.raises(SelectionError) as caught:
        tl.trace(
            Looped(), torch.ones(2, requires_grad=True), capture=tl.CaptureOptions(save_grads=tl.label("tanh_1_1"))
        )
    assert caught.value.code == "multipass_bare_label_ambiguous"
    assert caught.value.partial_trace.ops.labels[-1] == "output_1"
    trace = tl.trace(Looped(), torch.ones(2, requires_grad=True), capture=tl.CaptureOptions(save_grads="tanh_1_1"))
    assert labels_of(trace.backward(trace.output.sum())) == {"tanh_1_1:1", "tanh_1_1:2"}


@pytest.mark.parametrize(
    ("save_grads", "missed"),
    [
        (tl.grad("nosuch_1_1"), "'nosuch_1_1'"),
        (tl.grad(tl.func("rleu")), "func('rleu')"),
        (tl.func("relu") | tl.module("nosuch"), "module('nosuch')"),
        (tl.in_module("nosuch") & tl.in_backward_pass(2), "in_module('nosuch')"),
        (["relu_1_2", tl.grad("0")], "'0'"),
    ],
    ids=named,
)
def test_a_name_within_a_request_that_names_nothing_is_told(save_grads: Any, missed: str) -> None:
    with pytest.warns(tl.errors.TorchLensWarning, match="save_grads_matched_nothing") as told:
        tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=save_grads))
    assert len(told) == 1
    assert f"save_grads={missed} matched no op" in str(told[0].message)


@pytest.mark.parametrize("save_grads", [~tl.func("rleu"), tl.func("relu") - tl.module("nosuch"), tl.grad("relu_1_2")])
def test_what_a_request_leaves_out_need_not_be_there(save_grads: Any) -> None:
    tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=save_grads))


@pytest.mark.parametrize("save_grads", ["nosuch_1_1", tl.func("rleu"), 99, ["relu_1_2", "nosuch"]], ids=named)
def test_a_request_that_names_nothing_is_told(save_grads: Any) -> None:
    with pytest.warns(tl.errors.TorchLensWarning, match="save_grads_matched_nothing") as told:
        tl.trace(chain(), torch.randn(5, 4), capture=tl.CaptureOptions(save_grads=save_grads))
    assert told[0].filename == __file__
    trace = tl.trace(chain(), torch.randn(5, 4))
    with pytest.warns(tl.errors.TorchLensWarning, match="save_grads_matched_nothing") as told:
        trace.backward(trace.output.sum(), save_grads=save_grads)
    assert told[0].filename == __file__
