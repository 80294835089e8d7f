"""With ``backward_ready=True`` each operator of a backward is told: those that a log of torch's own sees, no other."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torchlens as tl
from journal.events import BackwardDispatched, MakersSeen, NodeFired, PassJournaled, PassOpened
from tests.backward.observing import (
    events_of,
    names,
    parameter_gradients,
    require_closed_in_order,
    require_fired_once,
    same,
)
from tests.differentiating import loss_of
from torchlens import compat
from torchlens.capture.inputs import copied
from torchlens.capture.template import leaves
from torchlens.generators import seed_all
from torchlens.reading.failed import TraceCaptureError
from torchlens.testing import Program, programs
from torchlens.testing.checking.diary_order import check_diary
from torchlens.validation.default_loss import weighted

READY = tl.CaptureOptions(backward_ready=True)

Call: TypeAlias = "tuple[str, tuple[Any, ...], tuple[Any, ...]]"
"""Name of an operator, and shape and dtype of each tensor that it took and gave."""


class Log(TorchDispatchMode):
    """What the dispatcher runs, by a mode that has nothing in common with ours."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.nodes: list[str | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = operands([*args, *(kwargs or {}).values()])
        result = func(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node()
        self.calls.append((str(func), given, operands([result])))
        self.nodes.append(None if node is None else type(node).__name__)
        return result


def operands(values: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            shape = () if value.is_nested else tuple(value.shape)
            found.append((shape, str(value.dtype).removeprefix("torch.")))
        elif isinstance(value, (list, tuple)):
            found += operands(value)
    return tuple(found)


def told(trace: tl.Trace, of: int | None = None) -> list[Call]:
    return [(event.operator, event.inputs, event.outputs) for event in events_of(trace, BackwardDispatched, of)]


def nodes_told(trace: tl.Trace, of: int | None = None) -> list[str | None]:
    """Class name of the node that each operator ran in; "elsewhere" for another capture's."""
    known = names(trace)
    return [
        "elsewhere" if event.is_elsewhere else None if event.node is None else known[event.node]
        for event in events_of(trace, BackwardDispatched, of)
    ]


def ready(model: Any, *given: Any, **options: Any) -> tl.Trace:
    return tl.trace(model, list(given), capture=tl.CaptureOptions(backward_ready=True, **options))


def require_sound(trace: tl.Trace) -> None:
    check_diary([stamped.event for stamped in trace.events()], is_whole=False)
    require_closed_in_order(trace)
    require_fired_once(trace)
    fires = {(event.pass_number, event.node) for event in events_of(trace, NodeFired)}
    for event in events_of(trace, BackwardDispatched):
        assert event.node is None or (event.pass_number, event.node) in fires


# -- laws


LEAF_RETURNED = Program.parse("""
model(train=False, seed=0, returns='one')
a = given('float32', grad=True)
def block_1():
    pass
def main():
    a = made_here(a, a)
    with no_grad():
        if positive(a):
            a = transpose(a, a)
""")
"""What it returns is a leaf that was made on the way; no backward from it reaches an op."""


@given(program=programs())
@example(program=LEAF_RETURNED)
@settings(max_examples=40)
def test_the_operators_that_are_told_are_those_of_a_bare_backward_call_for_call(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = Log()
        try:
            seed_all(0)
            model, args, kwargs = program.build()
            args, kwargs, _ = copied(tuple(args), dict(kwargs))  # as a capture does
            loss = weighted(model(*args, **kwargs))
        except Exception:  # noqa: BLE001  # a program that raises by itself
            return
        if loss is None:
            return
        with log:
            try:
                loss.backward()
            except RuntimeError:  # a value that it needs was written
                return
        seed_all(0)
        model, args, kwargs = program.build()
        try:
            trace = tl.trace(model, list(args), kwargs, capture=READY)
        except TraceCaptureError:
            return
        try:
            loss = loss_of(trace)
            if loss is None:
                return
            trace.backward(loss)
            assert told(trace) == log.calls
            require_sound(trace)
        finally:
            trace.cleanup()


@given(program=programs())
@example(program=LEAF_RETURNED)
@settings(max_examples=30)
def test_with_and_without_a_census_a_backward_gives_the_same_bits(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (plain, left), (counted, right) = [differentiated(program, each) for each in (None, READY)]
    if counted is not None:
        assert plain == counted
        assert len(left) == len(right)
        assert all(map(bits_equal, left, right))


def differentiated(program: Program, options: tl.CaptureOptions | None) -> tuple[str | None, list[Tensor | None]]:
    """How a traced backward ended, None where there is none; and the gradients of parameters and inputs."""
    seed_all(0)
    model, args, kwargs = program.build()
    try:
        trace = tl.trace(model, list(args), kwargs, capture=options)
    except (TraceCaptureError, tl.TorchLensError):  # by itself, or because no backward could follow
        return None, []
    loss = loss_of(trace)
    ended = "ok"
    try:
        if loss is not None:
            trace.backward(loss)
    except RuntimeError as error:
        ended = str(error)
    trace.cleanup()
    given = [tensor.grad for _, tensor in leaves((args, kwargs)) if tensor.is_leaf]
    return ended, parameter_gradients(model) + given


# -- the example


def small() -> nn.Module:
    seed_all(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def test_each_operator_is_told_with_the_node_that_ran_it() -> None:
    trace = ready(small(), torch.ones(2, 4))
    trace.backward(trace.output.sum())
    (opened,) = events_of(trace, PassOpened)
    assert opened.has_census
    floats = "float32"
    assert list(zip(told(trace), nodes_told(trace), strict=True))[:4] == [
        (("aten.ones_like.default", (((), floats),), (((), floats),)), None),
        (("aten.expand.default", (((), floats),), (((2, 3), floats),)), "SumBackward0"),
        (("aten.t.default", (((6, 3), floats),), (((3, 6), floats),)), "AddmmBackward0"),
        (("aten.mm.default", (((2, 3), floats), ((3, 6), floats)), (((2, 6), floats),)), "AddmmBackward0"),
    ]
    assert {event.grad_enabled for event in events_of(trace, BackwardDispatched) if event.node is not None} == {False}
    require_sound(trace)
    trace.cleanup()


def test_what_a_convolution_was_set_to_is_told_and_of_no_other_operator() -> None:
    trace = ready(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), torch.ones(1, 2, 8, 8))
    trace.backward(trace.output.sum())
    settings_told = {event.operator: event.settings for event in events_of(trace, BackwardDispatched)}
    assert settings_told.pop("aten.convolution_backward.default") == (
        *((4,), (2, 2), (1, 1), (1, 1), False, (0, 0), 2, (False, True, True)),
    )
    assert set(settings_told.values()) == {None}
    trace.cleanup()


@pytest.mark.parametrize("options", [{}, {"save_grads": True}, {"backward_ready": False}])
def test_without_backward_ready_no_operator_is_told(options: dict[str, Any]) -> None:
    trace = tl.trace(small(), torch.ones(2, 4), capture=tl.CaptureOptions(**options))
    trace.backward(trace.output.sum())
    assert [event.has_census for event in events_of(trace, PassOpened)] == [False]
    assert told(trace) == []
    trace.cleanup()


# -- against torch, where the ways differ


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x)).tanh()  # type: ignore[no-any-return]


class Rolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 5, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]  # type: ignore[no-any-return]


def convolutional() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 3)
    return nn.Sequential(*layers)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, depth: int = 1) -> None:
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.5)
        self.reentrant, self.depth = reentrant, depth

    def within(self, x: Tensor) -> Tensor:
        return self.drop(self.inner(x)).relu()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        def nested(x: Tensor, depth: int) -> Any:
            if depth == 0:
                return self.within(x)
            return checkpoint(nested, x, depth - 1, use_reentrant=self.reentrant) * 2

        return self.outer(nested(x, self.depth))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "lstm": (Rolled, lambda: torch.randn(3, 2, 6)),
    "convolutions": (convolutional, lambda: torch.randn(2, 3, 8, 8)),
    "sparse embedding": (Embedded, lambda: torch.tensor([[1, 2, 2], [0, 9, 1]])),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), lambda: torch.randn(2, 3, 6)),
    "checkpoint": (lambda: Checkpointed(reentrant=False), lambda: torch.randn(2, 6, requires_grad=True)),
    "reentrant": (lambda: Checkpointed(reentrant=True), lambda: torch.randn(2, 6, requires_grad=True)),
    "reentrant, nested": (lambda: Checkpointed(reentrant=True, depth=3), lambda: torch.randn(2, 6, requires_grad=True)),
    "reentrant, in other threads": (
        lambda: Checkpointed(reentrant=True, depth=70),
        lambda: torch.randn(2, 6, requires_grad=True),
    ),
}


def seeded(build: Callable[[], Any]) -> Any:
    torch.manual_seed(3)
    return build()


@pytest.mark.parametrize("name", MODELS)
def test_operators_and_gradients_are_those_of_a_bare_backward(name: str) -> None:
    model, x = map(seeded, MODELS[name])
    (given,), _, _ = copied((x,), {})
    torch.manual_seed(5)
    loss = model(given).pow(2).sum()
    log, flops = Log(), FlopCounterMode(display=False)
    with flops, log:
        loss.backward()
    bare = parameter_gradients(model)
    model.zero_grad(set_to_none=True)
    x.grad = None
    torch.manual_seed(5)
    trace = ready(model, x)
    around = FlopCounterMode(display=False)
    loss = trace.output.pow(2).sum()
    with around:
        trace.backward(loss)
    assert told(trace) == log.calls
    assert all(map(bits_equal, bare, parameter_gradients(model)))
    assert around.get_total_flops() == flops.get_total_flops()
    assert [event.parent for event in events_of(trace, PassOpened)] == parents(name)
    require_sound(trace)
    trace.cleanup()


def parents(name: str) -> list[int | None]:
    """Of the passes: a reentrant checkpoint runs the engine within the engine."""
    depth = {"reentrant": 1, "reentrant, nested": 3, "reentrant, in other threads": 70}.get(name, 0)
    return [None, *range(depth)]


def bits_equal(left: Tensor | None, right: Tensor | None) -> bool:
    if left is not None and left.is_sparse and right is not None:
        left, right = left.coalesce(), right.coalesce()
        return same(left.indices(), right.indices()) and same(left.values(), right.values())
    return same(left, right)


def test_nodes_are_those_that_torch_says_run() -> None:
    model, x = small(), torch.ones(2, 4)
    log = Log()
    loss = model(x).pow(2).sum()
    with log:
        loss.backward()
    trace = ready(model, x)
    model.zero_grad(set_to_none=True)
    trace.backward(trace.output.pow(2).sum())
    assert nodes_told(trace) == log.nodes
    trace.cleanup()


@pytest.mark.parametrize("way", ["grad", "edge", "batched", "given", "inputs", "materialized"])
def test_however_the_engine_is_asked_each_operator_is_told(way: str) -> None:
    model = small()

    def run(x: Tensor, out: Tensor) -> None:
        if way == "grad":
            torch.autograd.grad(out.sum(), [x])
        elif way == "edge":
            torch.autograd.backward([torch.autograd.graph.get_gradient_edge(out.sum())])
        elif way == "batched":
            torch.autograd.grad(out, [x], torch.eye(6).view(6, 2, 3), is_grads_batched=True)
        elif way == "given":
            torch.autograd.backward([out.sum(), out], [None, torch.full((2, 3), 2.0)])
        elif way == "inputs":
            out.sum().backward(inputs=[model[0].bias])  # type: ignore[index]  # a sequence of layers
        else:
            torch.autograd.grad(out.sum(), [x], materialize_grads=True)

    class Given(Log):
        """Only what is run by the engine, and what makes its seeds."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_seed = str(func) in ("aten.ones.default", "aten.ones_like.default")
            if torch._C._current_graph_task_id() == -1 and not is_seed:
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

    x = torch.ones(2, 4, requires_grad=True)
    (copy,), _, _ = copied((x,), {})
    log = Given()
    out = model(copy)
    with log:
        run(x, out)
    model.zero_grad(set_to_none=True)
    x.grad = None
    trace = ready(model, x)
    run(x, trace.output)
    assert told(trace) == log.calls
    require_sound(trace)
    trace.cleanup()


# -- passes


def test_a_run_that_nobody_announced_has_no_census() -> None:
    trace = ready(small(), torch.ones(2, 4))
    torch.ops.aten._backward(trace.output.sum(), [], None, True, False)
    trace.output.sum().backward()
    assert [(event.trigger, event.has_census) for event in events_of(trace, PassOpened)] == [
        ("implicit", False),
        ("autograd_backward", True),
    ]
    assert told(trace, 0) == []
    assert len(told(trace, 1)) > 5
    require_sound(trace)
    trace.cleanup()


def test_what_such_a_run_does_within_another_one_is_not_told_as_done_by_that() -> None:
    trace = ready(small(), torch.ones(2, 4))
    out = trace.output
    other, loss = out.sum(), out.pow(2).sum()
    plain = ready(small(), torch.ones(2, 4))
    plain.backward(plain.output.pow(2).sum())

    def hook(gradient: Tensor) -> None:
        handle.remove()
        torch.ops.aten._backward(other, [], None, True, False)

    handle = out.register_hook(hook)
    loss.backward(retain_graph=True)
    assert [event.has_census for event in events_of(trace, PassOpened)] == [True, False]
    inside = [call for call in told(trace, 0) if call not in told(plain)]
    assert {call[0] for call in inside} == {"aten.add_.Tensor"}  # to the gradients that it left
    seed = 1  # that torch makes for that run, in the node whose hook starts it
    assert nodes_told(trace, 0).count("AddmmBackward0") == nodes_told(plain).count("AddmmBackward0") + seed
    assert told(trace, 1) == []
    trace.cleanup()
    plain.cleanup()


def test_a_graph_that_is_kept_runs_the_same_operators_again() -> None:
    model = small()
    trace = ready(model, torch.ones(2, 4))
    loss = trace.output.sum()
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        loss.backward(retain_graph=True)
    assert len(told(trace, 0)) > 10
    assert told(trace, 0) == told(trace, 1)
    assert nodes_told(trace, 0) == nodes_told(trace, 1)
    trace.cleanup()


class GradientInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            return torch.autograd.grad(x @ weight, (x, weight), gradients[0])


def test_a_run_within_a_node_tells_its_own_operators() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    trace = ready(lambda x: GradientInside.apply(x, weight).tanh(), torch.ones(2, 4, requires_grad=True))
    trace.backward(trace.output.sum())
    assert [(event.parent, event.has_census) for event in events_of(trace, PassOpened)] == [(None, True), (0, True)]
    assert [call[0] for call in told(trace, 1)].count("aten.mm.default") == 2
    assert [call[0] for call in told(trace, 0)].count("aten.mm.default") == 1  # the forward within the node
    assert set(nodes_told(trace, 1)) == {"MmBackward0"}
    require_sound(trace)
    trace.cleanup()


def test_under_create_graph_operators_run_with_grad_mode_on_and_makers_are_noted_as_without_a_census() -> None:
    seen: list[Any] = []
    for options in (tl.CaptureOptions(), READY, tl.CaptureOptions(save_grads=True)):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        trace = tl.trace(small(), x, capture=options)
        first = compat.sequence_number()
        (gradient,) = torch.autograd.grad((trace.output**2).sum(), x, create_graph=True)
        made = [event.entries for event in events_of(trace, MakersSeen)]
        seen.append([[(number - first, node) for number, node in entries] for entries in made])
        gradient.pow(2).sum().backward()
        if options is READY:
            assert {event.grad_enabled for event in events_of(trace, BackwardDispatched, 0)} == {True}
            assert {event.grad_enabled for event in events_of(trace, BackwardDispatched, 1)} == {
                True,
                False,
            }  # its seed
            require_sound(trace)
        trace.cleanup()
    assert seen[0]
    assert seen[0] == seen[1] == seen[2]


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 3)


@pytest.mark.parametrize("counts", [("left",), ("right",), ("left", "right")])
def test_of_captures_that_share_a_run_each_that_counts_is_told_everything_once(counts: tuple[str, ...]) -> None:
    x, log = torch.ones(2, 3), Log()
    loss = (linear(0)(x) * linear(1)(x)).sum()
    with log:
        loss.backward()
    traces = {
        side: tl.trace(linear(seed), x, capture=READY if side in counts else None)
        for seed, side in enumerate(("left", "right"))
    }
    (traces["left"].output * traces["right"].output).sum().backward()
    for side, trace in traces.items():
        assert told(trace) == (log.calls if side in counts else [])
        if side in counts:
            nodes = nodes_told(trace)
            assert nodes.count("elsewhere") == sum(
                node in ("AddmmBackward0", "TBackward0", "AccumulateGrad") for node in nodes
            )
            assert nodes[0] is None
            assert None not in nodes[1:]
            require_sound(trace)
    for trace in traces.values():
        trace.cleanup()


# -- what is not told, and who else listens


@pytest.mark.parametrize("journal", [True, False])
def test_our_copies_of_gradients_are_told_to_nobody(journal: bool, tmp_path: Any) -> None:
    plain = ready(small(), torch.ones(2, 4))
    plain.backward(plain.output.sum())
    options = tl.CaptureOptions(backward_ready=True, save_grads=True)
    path = tmp_path / "run.journal" if journal else None
    keeping = tl.trace(small(), torch.ones(2, 4), capture=options, journal=path)
    log, loss = Log(), keeping.output.sum()
    with log:
        keeping.backward(loss)
    assert len(keeping.saved_grad_ops) == 3
    assert told(keeping) == told(plain)
    assert log.calls == told(plain)
    plain.cleanup()
    keeping.cleanup()


class Doubled(Tensor):
    """A subclass that says itself what operators do."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Doubled:
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.held if isinstance(each, Doubled) else each for each in args]
        made = func(*plain, **(kwargs or {}))
        return Doubled(made) if isinstance(made, Tensor) else made


def test_the_gradient_of_a_subclass_is_kept_and_its_copy_told_to_nobody() -> None:
    def model(x: Tensor) -> Tensor:
        return Through.apply(x * 2)  # type: ignore[no-any-return]

    calls = []
    for keeps in (None, True):
        trace = tl.trace(
            model,
            torch.ones(2, 2, requires_grad=True),
            capture=tl.CaptureOptions(backward_ready=True, save_grads=keeps),
        )
        trace.backward(trace.output.sum())
        calls.append(told(trace))
        require_sound(trace)
        trace.cleanup()
    assert calls[0] == calls[1]


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return Doubled(gradients[0].contiguous())


def test_what_a_users_hook_calls_is_told_under_the_node_that_it_hangs_on() -> None:
    trace = ready(small(), torch.ones(2, 4))
    trace.output.register_hook(lambda gradient: gradient.exp())
    trace.backward(trace.output.sum())
    at = [call[0] for call in told(trace)].index("aten.exp.default")
    assert nodes_told(trace)[at] == "AddmmBackward0"
    trace.cleanup()


def test_a_mode_that_a_hook_puts_on_sees_what_it_would_see() -> None:
    trace = ready(small(), torch.ones(2, 4))
    inside = FlopCounterMode(display=False)

    def hook(gradient: Tensor) -> None:
        with inside:
            gradient @ gradient.T

    trace.output.register_hook(hook)
    trace.backward(trace.output.sum())
    assert inside.get_total_flops() == 2 * 2 * 3 * 2
    assert compat.num_modes() == 0
    assert ("aten.mm.default", (((2, 3), "float32"), ((3, 2), "float32")), (((2, 2), "float32"),)) in told(trace)
    trace.cleanup()


class Counting(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def test_a_function_mode_of_the_users_is_told_of_nothing_that_we_look_at() -> None:
    seen = []
    for options in (None, READY):
        trace = tl.trace(small(), torch.ones(2, 4), capture=options)
        loss, mode = trace.output.sum(), Counting()
        with mode:
            loss.backward()
        seen.append(mode.seen)
        trace.cleanup()
    assert seen[0] == seen[1]


def test_an_operator_of_higher_order_goes_through() -> None:
    from torch._higher_order_ops.out_dtype import out_dtype

    trace = ready(small(), torch.ones(2, 4))
    numbers = torch.ones(3, 3, dtype=torch.int8)
    trace.output.register_hook(
        lambda gradient: (out_dtype(torch.ops.aten.mm.default, torch.int32, numbers, numbers), None)[1]
    )
    trace.backward(trace.output.sum())
    (call,) = [call for call in told(trace) if call[0] == "out_dtype"]
    assert call[1:] == ((((3, 3), "int8"),) * 2, (((3, 3), "int32"),))
    trace.cleanup()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_hook_has_compiled_stays_compiled() -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(lambda gradient: gradient.sin() + 1, backend=counter)
    trace = ready(small(), torch.ones(2, 4))
    trace.output.register_hook(lambda gradient: (compiled(gradient), None)[1])
    trace.backward(trace.output.sum())
    assert (counter.frame_count, counter.op_count) == (1, 2)
    assert [call[0] for call in told(trace)].count("aten.sin.default") == 1
    trace.cleanup()


def test_a_mode_is_taken_off_from_below_others() -> None:
    below, mode, above = Log(), Log(), Log()
    with below:
        compat.put_mode(mode)
        with above:
            compat.take_mode(mode)
            assert list(compat.dispatch_modes()) == [below, above]
            compat.take_mode(mode)
            assert list(compat.dispatch_modes()) == [below, above]


# -- where it ends


class Broken(Exception):
    """The user's."""


def test_a_pass_that_raises_tells_what_ran_until_then_and_leaves_no_mode_on() -> None:
    trace = ready(small(), torch.ones(2, 4))

    def breaks(gradient: Tensor) -> None:
        raise Broken

    handle = trace.output.register_hook(breaks)
    loss = trace.output.sum()
    with pytest.raises(Broken):
        trace.backward(loss, retain_graph=True)
    handle.remove()
    assert compat.num_modes() == 0
    trace.backward(loss)
    assert [event.closed_by for event in events_of(trace, PassJournaled)] == ["engine_error", "trigger_return"]
    assert [call[0] for call in told(trace, 0)] == ["aten.ones_like.default", "aten.expand.default"]
    assert len(told(trace, 1)) > 10
    trace.cleanup()


def test_a_run_that_is_caught_in_a_hook_tells_its_part_and_the_run_around_it_goes_on() -> None:
    trace = ready(small(), torch.ones(2, 4))
    out = trace.output
    again = out.pow(2).sum()

    def breaks(gradient: Tensor) -> None:
        raise Broken

    def hook(gradient: Tensor) -> None:
        handle.remove()
        with torch.enable_grad():
            inner = again * 1
        inner.register_hook(breaks)
        with contextlib.suppress(Broken):
            torch.autograd.grad(inner, out, retain_graph=True)

    handle = out.register_hook(hook)
    out.sum().backward(retain_graph=True)
    assert [event.closed_by for event in events_of(trace, PassJournaled)] == ["engine_error", "trigger_return"]
    assert [call[0] for call in told(trace, 0)].count("aten.mm.default") == 3
    assert told(trace, 1) == []
    require_sound(trace)
    trace.cleanup()


def test_a_trace_that_is_disarmed_inside_tells_no_more() -> None:
    trace = ready(small(), torch.ones(2, 4))

    def hook(gradient: Tensor) -> None:
        trace.autograd.disarm()

    trace.output.register_hook(hook)
    trace.output.sum().backward()
    assert [call[0] for call in told(trace)] == ["aten.ones_like.default", "aten.expand.default"]
    assert [event.closed_by for event in events_of(trace, PassJournaled)] == ["sync_point"]
    assert compat.num_modes() == 0
    trace.cleanup()


def test_what_goes_wrong_in_telling_costs_the_user_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    trace = ready(model, torch.ones(2, 4))

    def fails(*_: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr("torchlens.backward.dispatching.Dispatches._tell", fails)
    trace.output.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    (made,) = trace.autograd.backward_passes
    assert (made.status, made.incomplete_reason) == ("incomplete", "MemoryError: none left")
    trace.cleanup()


def test_threads_that_run_backwards_at_once_tell_each_its_own() -> None:
    traces = [ready(small(), torch.ones(2, 4)) for _ in range(2)]
    alone = ready(small(), torch.ones(2, 4))
    alone.output.sum().backward()
    losses = [trace.output.sum() for trace in traces]
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told(trace) for trace in traces] == [told(alone)] * 2
    for trace in (*traces, alone):
        require_sound(trace)
        trace.cleanup()
