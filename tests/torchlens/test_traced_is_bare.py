"""A traced run is a bare run, on every model: in what it gives, in what it leaves behind, and in what it draws.

The models are those of ``torchlens.testing``; so is the comparison, whose own mistakes the last tests look for.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from torchlens.testing import Program, assert_tracing_changes_nothing, programs
from torchlens.testing.language import VARIABLES, Block, Given, Run
from torchlens.testing.snippets import SNIPPETS

SAVES: dict[str, Any] = {
    "all": None,
    "none": [],
    "live": tl.func("linear") | tl.in_module("block_1") | tl.where(lambda facts: facts.layer_type == "input"),
    "settled": tl.label("input_1") | tl.output("block_1"),
}


# The law ------------------------------------------------------------------------------------------------------------


@given(program=programs(), save=st.sampled_from(sorted(SAVES)))
@settings(max_examples=150)
def test_tracing_changes_nothing(program: Program, save: str) -> None:
    assert_tracing_changes_nothing(program.build, save=SAVES[save])


@given(program=programs())
@settings(max_examples=60)
def test_tracing_into_a_journal_changes_nothing(program: Program, tmp_path: Path) -> None:
    assert_tracing_changes_nothing(program.build, journal=tmp_path / "run.journal").cleanup()


@given(program=programs())
@settings(max_examples=40)
def test_tracing_within_wrapped_changes_nothing(program: Program) -> None:
    with tl.wrapped():
        assert_tracing_changes_nothing(program.build)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@given(program=programs())
@settings(max_examples=40)
def test_tracing_without_gradients_changes_nothing(mode: Callable[[], Any], program: Program) -> None:
    def build() -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            return program.build()

    with mode():
        assert_tracing_changes_nothing(build)


@given(program=programs())
@settings(max_examples=40)
def test_detached_activations_change_nothing(program: Program) -> None:
    assert_tracing_changes_nothing(program.build, capture=tl.CaptureOptions(detach_saved_activations=True))


@given(program=programs(without=["raises", "wrong_shape"]), data=st.data())
@settings(max_examples=40)
def test_a_forward_that_is_left_early_leaves_the_model_as_one_that_was_not_traced(
    program: Program, data: st.DataObject
) -> None:
    model, args, kwargs = program.build()
    keys = {address: list(vars(module)) for address, module in model.named_modules()}
    with contextlib.suppress(tl.TraceCaptureError):
        names = sorted({op.func_name for op in tl.trace(model, args, kwargs).ops if op.is_compute_op})
        if names:
            name = data.draw(st.sampled_from(names))
            halted = tl.trace(*program.build(), stop_after=lambda facts: facts.func_name == name)
            assert halted.halted
            halted.check_metadata_invariants()
    assert {address: list(vars(module)) for address, module in model.named_modules()} == keys


VIEW_OF_A_FUNCTION = Program.parse("""
a = given('float32')
def block_1():
    a = relu_(a, a)
def main():
    a = user_hooks(a, a)
    with no_grad():
        a = block_1(a, a)
""")
"""Torch does not tell the node of what the hooked module returned, since it was written through a view."""


@given(program=programs())
@example(program=VIEW_OF_A_FUNCTION)
@settings(max_examples=60)
def test_a_value_in_memory_is_the_value_on_disk(program: Program, tmp_path: Path) -> None:
    """One is kept by reference and copied before a write, the other is written as the call returns."""
    with torch.random.fork_rng(devices=[]):
        held, stored = (traced(program, journal) for journal in (None, tmp_path / "run.journal"))
        assert held.ops.labels == stored.ops.labels
        for op, other in zip(held.ops, stored.ops, strict=True):
            if op.has_saved_activation and not op.func_name.startswith("empty"):
                assert op.out.equal(other.out) or torch.equal(op.out.isnan(), other.out.isnan()), op.label
        stored.cleanup()


def traced(program: Program, journal: Path | None) -> tl.Trace:
    torch.manual_seed(program.seed)
    random.seed(program.seed)
    np.random.seed(program.seed)
    try:
        return tl.trace(*program.build(), journal=journal)
    except tl.TraceCaptureError as raised:
        return raised.partial_trace


# What the law found, or nearly --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_input_that_requires_a_gradient_does_so_without_gradients_too(mode: Callable[[], Any]) -> None:
    x = torch.ones(2, requires_grad=True)

    def forward(x: Tensor) -> Tensor:
        assert x.requires_grad
        assert not x.is_inference()
        with torch.inference_mode(False), torch.enable_grad():
            (grad,) = torch.autograd.grad((x * 3).sum(), x)
            return grad

    with mode():
        assert tl.trace(forward, x).output.tolist() == [3, 3]


@pytest.mark.parametrize("write", [torch.ops.aten.add_, Tensor.add_, torch.Tensor.__iadd__])
@pytest.mark.parametrize(
    "view", [lambda y: torch.view_as_real(torch.view_as_complex(y.view(4, 2, 2))), lambda y: y[1:3], lambda y: y.t()]
)
def test_a_view_that_is_written_in_inference_mode_keeps_its_node_and_its_gradient(view: Any, write: Any) -> None:
    def forward(x: Tensor) -> Tensor:
        made: Tensor = view(x * 2)
        with torch.inference_mode():
            write(made, 2.0)
        return made

    for save in ("all", "none"):
        build = lambda: (forward, [torch.ones(4, 4, requires_grad=True)], {})  # noqa: E731  # called twice
        assert_tracing_changes_nothing(build, save=save, capture=tl.CaptureOptions(save_grads=True)).cleanup()


def test_an_inference_tensor_stays_one() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    assert tl.trace(lambda x: torch.tensor(x.is_inference()), x).output


class Activation(nn.Module):
    """Holds a function of torch that was bound before any wrapping."""

    def __init__(self) -> None:
        super().__init__()
        self.act = torch.nn.functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


ACTIVATION = Activation()


def test_a_function_that_an_unregistered_module_holds_is_watched() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ACTIVATION(x)

    held = ACTIVATION.act
    trace = tl.trace(Model(), torch.ones(2))
    assert trace.ops.labels == ("input_1", "gelu_1_1", "output_1")
    assert trace.health.is_clean
    assert ACTIVATION.act is held


def test_a_function_that_is_handed_modules_is_watched_inside() -> None:
    program = Program.parse("""
        a = given('float32', grad=True)
        def main():
            a = own_function_of_a_module(a, a)
    """)
    trace = assert_tracing_changes_nothing(program.build)
    assert trace.ops.labels == ("input_1", "detach_1_1", "linear_1_2", "output_1")
    assert trace.modules["linear"].num_calls == 1


# What a program is --------------------------------------------------------------------------------------------------


@given(program=programs())
def test_a_program_is_its_text(program: Program) -> None:
    assert Program.parse(str(program)) == program
    assert repr(program) == f"Program.parse('''\n{program}\n''')"


@given(program=programs())
@settings(max_examples=25)
def test_a_program_builds_the_same_model_every_time_and_draws_nothing(program: Program) -> None:
    before = torch.get_rng_state()
    one, other = program.build(), program.build()
    assert torch.equal(torch.get_rng_state(), before)
    assert one[0].state_dict().keys() == other[0].state_dict().keys()
    for mine, theirs in zip(one[0].state_dict().values(), other[0].state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", SNIPPETS)
@pytest.mark.parametrize("training", [False, True])
def test_every_snippet_runs_twice_in_a_row_and_tracing_it_changes_nothing(name: str, training: bool) -> None:
    for grad in (False, True):
        lines = tuple(Run("b", name, source, "c") for source in ("a", "b", "b"))
        program = Program((Block("main", lines),), tuple(Given(v, grad=grad) for v in VARIABLES), "several", training)
        trace = assert_tracing_changes_nothing(program.build)
        trace.check_metadata_invariants()
        assert trace.health.unseen_tensors == ()
        raises = name in ("raises", "wrong_shape") or (name == "write_chunk" and grad)
        assert trace.outcome.status == ("failed" if raises else "complete")


def test_each_line_of_a_program_is_a_call_site_of_its_own() -> None:
    program = Program.parse("""
        model(train=False, seed=0, returns='one')
        a = given('float32')
        def main():
            a = tanh(a, a)
            for _ in range(2):
                a = tanh(a, a)
            a = tanh(a, a)
    """)
    assert tl.trace(*program.build()).ops.labels[1:-1] == ("tanh_1_1", "tanh_2_2:1", "tanh_2_2:2", "tanh_3_3")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def main(:", "line 1"),
        ("import os", "line 1"),
        ("a = given('float32')\ndef main():\n    a = nowhere(a, a)", "nowhere"),
        ("a = given('float32')\ndef main():\n    with nothing():\n        pass", "nothing"),
        ("a = given('float16')\ndef main():\n    pass", "float16"),
        ("a = given('float32')\ndef other():\n    pass", "other"),
        ("a = given('float32')\ndef main():\n    a = block_1(a, a)", "block_1"),
        ("def main():\n    return a", "line 2"),
        ("a = given(float32)", "line 1"),
    ],
)
def test_a_text_that_is_no_program_is_refused(text: str, word: str) -> None:
    with pytest.raises(tl.TorchLensError, match=word) as refused:
        Program.parse(text)
    assert refused.value.code == "program_malformed"


def test_a_snippet_that_is_not_there_cannot_be_asked_for() -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        programs(without=["nowhere"])
    assert refused.value.code == "program_malformed"


def test_programs_need_hypothesis_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hypothesis", None)
    with pytest.raises(tl.TorchLensError) as refused:
        programs()
    assert refused.value.code == "hypothesis_not_installed"


# The comparison sees a difference -----------------------------------------------------------------------------------


class Odd(nn.Module):
    """Behaves otherwise the second time it is built."""

    def __init__(self, kind: str, second: bool) -> None:
        super().__init__()
        self.kind = kind if second else ""
        self.fc = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(1))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.5)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        match self.kind:
            case "value":
                return y + 1e-6
            case "strides":
                return y.t().contiguous().t()
            case "container":
                return (y,)
            case "raises":
                raise ValueError("odd")
            case "buffer":
                self.steps.add_(1)
            case "parameter":
                self.fc.bias.data.add_(1)
            case "flag":
                self.fc.weight.requires_grad_(False)
            case "training":
                self.fc.eval()
            case "attribute":
                self.fc.extra = 1  # type: ignore[assignment]  # the point
            case "hook":
                self.fc.register_forward_hook(print)
            case "torch":
                torch.rand(1)
            case "python":
                random.random()
            case "numpy":
                np.random.rand()
            case "gradient":
                return y + (x - x.detach())
            case "grad":
                self.fc.bias.grad = torch.ones(2)
            case "mode":
                torch.set_grad_enabled(False)
        return y


ODD = """
value strides container raises buffer parameter flag training attribute hook torch python numpy gradient
grad mode
"""


@pytest.mark.parametrize("kind", ODD.split())
def test_every_kind_of_change_is_seen(kind: str) -> None:
    built: Iterator[bool] = iter([False, True])
    with torch.enable_grad(), pytest.raises(tl.TorchLensError) as refused:  # which puts the mode back
        assert_tracing_changes_nothing(lambda: (Odd(kind, next(built)), [torch.ones(1, 2, requires_grad=True)], {}))
    assert refused.value.code == "tracing_changed_run"
    assert refused.value.fields["changes"]


def test_a_model_that_behaves_passes_and_gives_its_trace() -> None:
    trace = assert_tracing_changes_nothing(lambda: (Odd("value", False), [torch.ones(1, 2)], {}))
    assert trace.ops.labels == ("input_1", "linear_1_1", "output_1")


class Turned(torch.autograd.Function):
    """A number on the imaginary axis, whose gradient a factor spoils."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return torch.complex(torch.zeros_like(x), x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]  # as torch has it
        return grad.imag * ctx.factor, None


def test_a_gradient_that_differs_by_the_imaginary_part_alone_is_seen() -> None:
    def ran(*factors: float) -> tl.Trace:
        given = iter(factors)

        def build() -> Any:
            factor = next(given)
            return (lambda x: Turned.apply(x, factor)), [torch.ones(3, requires_grad=True)], {}

        return assert_tracing_changes_nothing(build)

    assert ran(1.0, 1.0).status == "complete"
    with pytest.raises(tl.errors.ValidationError) as refused:
        ran(1.0, 2.0)
    assert any(change.startswith("gradient of input 0") for change in refused.value.fields["changes"])


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantised with another scale": lambda x: torch.quantize_per_tensor(
        torch.full((2,), 60.0), float(x.sum()), 0, torch.qint8
    ),
    "nested": lambda x: torch.nested.as_nested_tensor([x, x[:1]]),
    "nested at other places": lambda x: torch.nested.as_nested_tensor(
        list(torch.ones(5).split([int(x.sum()), 5 - int(x.sum())]))
    ),
    "jagged": lambda x: torch.nested.as_nested_tensor([x, x[:1]], layout=torch.jagged),
    "sparse": lambda x: x.to_sparse(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("kind", KINDS)
def test_two_outputs_of_any_kind_are_told_apart(kind: str) -> None:
    class Makes(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = [by]  # no attribute that differs, but what is returned

        def forward(self) -> Tensor:
            return KINDS[kind](torch.ones(2) * self.by[0])

    assert_tracing_changes_nothing(lambda: (Makes(1.0), [], {}))
    by = iter([1.0, 1.5])
    with pytest.raises(tl.errors.ValidationError) as refused:
        assert_tracing_changes_nothing(lambda: (Makes(next(by)), [], {}))
    assert any(change.startswith("output") for change in refused.value.fields["changes"])
