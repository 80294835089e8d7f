"""Honesty: what a capture cannot see is said, and what ran is accounted for operator by operator."""

from __future__ import annotations

import json
import math
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from tests.programs import PATIENCE, surroundings
from torchlens.capture.wrap import wrappers
from torchlens.errors import ConfigurationError
from torchlens.measuring import nonfinite_in
from torchlens.options import CaptureOptions

VERIFY = CaptureOptions(verify_capture=True)
BARE_GELU = torch._C._nn.gelu  # a private way to a public function; found by its identity all the same


class Kept:
    """Keeps a function where nobody looks for one."""

    def __init__(self, function: Any) -> None:
        self.function = function


QUIET = pytest.mark.filterwarnings(  # what torch says of its own ways
    "ignore:The PyTorch API of nested tensors", "ignore:.torch.jit", "ignore:Attempted to insert a get_attr"
)


class Calls(nn.Module):
    """A model that runs a function of itself and its input, and holds what that needs."""

    def __init__(self, fn: Callable[..., Any], **held: Any) -> None:
        super().__init__()
        self.fn = [fn]  # not an attribute of function type, which would be exchanged for its wrapper
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, *args: Any) -> Any:
        return self.fn[0](self, *args)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x)) * 2


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@torch.library.custom_op("torchlens_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


scaled.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("torchlens_tests::doubled_", mutates_args=("x",))
def doubled_(x: Tensor) -> None:
    x.mul_(2)


def relu_twice(x: Tensor) -> Tensor:
    return torch.relu(x) * 2


def to_script(what: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript, as deprecated
        return torch.jit.script(what)


def to_traced(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript, as deprecated
        return torch.jit.trace(module, torch.ones(3, 4))


scripted = to_script(relu_twice)


def pulled_back(x: Tensor) -> Tensor:
    output, pull = torch.func.vjp(torch.tanh, x)
    (pulled,) = pull(output)
    return pulled


def linearized(x: Tensor) -> Tensor:
    output, push = torch.func.linearize(torch.tanh, x.detach())
    pushed: Tensor = push(output)
    return pushed


def padded(x: Tensor, layout: torch.layout) -> Tensor:
    nested = torch.nested.as_nested_tensor([x[:1], x], layout=layout)
    return torch.nested.to_padded_tensor(torch.relu(nested) * 2, 0.0)


OPAQUE: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    # what: a model of it, the name of the opaque op's function, the reason
    "scripted module": (
        lambda: Calls(lambda m, x: m.inner(x) + 1, inner=to_script(Twice())),
        "twice",
        "scripted code",
    ),
    "traced module": (
        lambda: Calls(lambda m, x: m.inner(x) + 1, inner=to_traced(Twice())),
        "twice",
        "scripted code",
    ),
    "scripted function": (lambda: Calls(lambda m, x: scripted(x) + 1), "relu_twice", "scripted code"),
    "vmap": (lambda: Calls(lambda m, x: torch.vmap(torch.tanh)(x) + 1), "vmap", "function transform"),
    "grad": (
        lambda: Calls(lambda m, x: torch.func.grad(lambda a: a.sin().sum())(x) + 1),
        "grad",
        "function transform",
    ),
    "jvp": (lambda: Calls(lambda m, x: torch.func.jvp(torch.tanh, (x,), (x,))[1] + 1), "jvp", "function transform"),
    "vjp": (lambda: Calls(lambda m, x: pulled_back(x) + 1), "vjp", "function transform"),
    "linearize": (lambda: Calls(lambda m, x: linearized(x) + 1), "linearize", "function transform"),
    "functionalize": (
        lambda: Calls(lambda m, x: torch.func.functionalize(torch.tanh)(x) + 1),
        "functionalize",
        "function transform",
    ),
    "autograd grad": (
        lambda: Calls(lambda m, x: torch.autograd.grad((x * x).sum(), x, create_graph=True)[0] + 1),
        "grad",
        "autograd engine",
    ),
    "autograd function": (lambda: Calls(lambda m, x: Straight.apply(x) + 1), "Straight", "autograd function"),
    "custom operator": (lambda: Calls(lambda m, x: scaled(x) + 1), "scaled", "custom operator"),
    "called by torch.ops": (
        lambda: Calls(lambda m, x: torch.ops.torchlens_tests.scaled(x) + 1),
        "scaled",
        "custom operator",
    ),
    "nested, strided": (lambda: Calls(lambda m, x: padded(x, torch.strided) + 1), "to_padded_tensor", "nested tensors"),
    "nested, jagged": (lambda: Calls(lambda m, x: padded(x, torch.jagged) + 1), "to_padded_tensor", "nested tensors"),
}


@QUIET
@pytest.mark.parametrize("what", OPAQUE)
def test_a_region_that_cannot_be_seen_is_one_opaque_op_with_its_reason(what: str) -> None:
    make, func_name, reason = OPAQUE[what]
    torch.manual_seed(0)
    model, x = make(), torch.randn(3, 4, requires_grad=True)
    expected = model(x)
    trace = tl.trace(model, x)
    assert torch.equal(trace.output, expected)
    found = [op for op in trace.ops if op.is_opaque and op.func_name.lower() == func_name.lower()]
    assert found
    assert {op.opaque_reason for op in found} == {reason}
    assert all(op.parents for op in found)
    assert trace.ops["output_1"].has_input_ancestor
    assert {op.label for op in found} <= set(trace.health.opaque_ops)
    assert trace.health.opaque_reasons[found[0].label] == reason
    assert reason in str(trace.health)
    trace.check_metadata_invariants()


@QUIET
@pytest.mark.parametrize("what", OPAQUE)
def test_an_opaque_op_is_accounted_for_and_keeps_its_gradient(what: str) -> None:
    make, _, _ = OPAQUE[what]
    torch.manual_seed(0)
    model, x = make(), torch.randn(3, 4, requires_grad=True)
    expected = model(x)
    (wanted,) = torch.autograd.grad(expected.sum(), x, allow_unused=True) if expected.requires_grad else (None,)
    trace = tl.trace(model, x, capture=VERIFY)
    assert torch.equal(trace.output, expected)
    assert trace.health.capture_verified is True, str(trace.health)
    assert trace.health.completeness.expected_opaque_count or what == "functionalize"
    assert trace.output.requires_grad == expected.requires_grad
    if wanted is not None:
        (found,) = torch.autograd.grad(trace.output.sum(), x, allow_unused=True)
        assert torch.equal(found, wanted)


def test_the_fast_path_of_an_encoder_is_one_opaque_op() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 3, 8)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask)
        trace = tl.trace(model, x, {"src_key_padding_mask": mask}, capture=VERIFY)
    assert torch.equal(trace.output, expected)
    assert list(trace.health.opaque_reasons.values()).count("fused kernel") == 2
    assert list(trace.health.opaque_reasons.values()).count("nested tensors") == 1
    assert trace.ops["output_1"].has_input_ancestor
    assert trace.health.capture_verified is True


def test_the_fast_path_of_attention_is_one_opaque_op() -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        trace = tl.trace(model, [x, x, x], {"need_weights": False})
        assert torch.equal(trace.output[0], model(x, x, x, need_weights=False)[0])
    assert list(trace.health.opaque_reasons.values()) == ["fused kernel"]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.*quant")
def test_a_quantized_module_is_seen_operator_by_operator() -> None:
    torch.manual_seed(0)
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {nn.Linear})
    x = torch.randn(3, 4)
    trace = tl.trace(model, x, capture=VERIFY)
    assert torch.equal(trace.output, model(x))
    assert [op.func_name for op in trace.ops.compute] == ["linear_dynamic", "to", "relu"]
    assert trace.health.capture_verified is True


def test_an_exported_program_is_seen_operator_by_operator() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    exported = Calls(lambda m, x: m.inner[0](x) + 1, inner=[torch.export.export(Twice(), (x,)).module()])
    trace = tl.trace(exported, x, capture=VERIFY)
    assert torch.equal(trace.output, exported(x))
    assert [op.func_name for op in trace.ops.compute] == ["linear", "relu", "mul", "__add__"]
    assert trace.health.capture_verified is True
    assert not trace.health.opaque_ops


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_submodule_and_function_are_seen_uncompiled(backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    model = Calls(lambda m, x: m.inner(x) + 1, inner=torch.compile(Twice(), backend=backend))
    with torch.no_grad():
        model(x)
        trace = tl.trace(model, x, capture=VERIFY)
    assert [op.func_name for op in trace.ops.compute] == ["linear", "relu", "__mul__", "__add__"]
    assert trace.health.capture_verified is True


def test_a_custom_operator_that_writes_its_argument_leaves_what_was_kept_before() -> None:
    def forward(model: Calls, x: Tensor) -> Tensor:
        y = x + 1
        doubled_(y)
        return y * 1

    trace = tl.trace(Calls(forward), torch.ones(2))
    assert trace.ops["add_1_1"].out.tolist() == [2.0, 2.0]
    assert trace.output.tolist() == [4.0, 4.0]
    assert trace.ops["output_1"].parents == ("mul_1_3",)
    assert trace.ops["mul_1_3"].parents == ("doubled_1_2",)


def test_an_unseen_tensor_hangs_on_what_its_autograd_node_comes_from() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 4))

    def forward(model: Calls, x: Tensor) -> Tensor:
        made = model.bare.function(torch.tanh(x) @ model.weight)
        return made + 1

    trace = tl.trace(Calls(forward, bare=Kept(BARE_GELU), weight=weight), torch.randn(3, 4))
    (unseen,) = trace.health.unseen_tensors
    assert trace.ops[unseen].opaque_reason == "made where no wrapper looks"
    assert trace.ops[unseen].parents == ("matmul_1_2",)
    assert trace.ops["output_1"].has_input_ancestor


# -- the escape detector and the completeness witness --------------------------------------------------


def test_nothing_is_verified_unless_it_is_asked_for() -> None:
    health = tl.trace(Twice(), torch.ones(3, 4)).health
    assert health.capture_verified is None
    assert "verify_capture=True" in health.capture_verification_reason
    assert health.escape.mode == health.completeness.mode == "off"
    assert health.escape.verified is health.escape.event_count is health.completeness.event_count is None
    assert health.is_clean


def test_a_capture_in_which_everything_was_seen_is_verified() -> None:
    with torch.no_grad():
        health = tl.trace(Twice(), torch.ones(3, 4), capture=VERIFY).health
    assert health.capture_verified is True
    assert health.escape.verified is health.completeness.verified is True
    counts = health.completeness
    assert counts.event_count == counts.accounted_count == 4
    assert counts.decompositions["linear_1_1"] == ("aten.t.default", "aten.addmm.default")
    assert counts.decompositions["mul_1_3"] == ("aten.mul.Tensor",)
    assert str(health).startswith("capture verified: every operator")


def test_an_escape_is_told_with_operator_place_and_what_is_bound_there() -> None:
    def forward(model: Calls, x: Tensor) -> Tensor:
        act = model.bare.function
        return act(x) + 1

    with torch.no_grad():
        health = tl.trace(Calls(forward, bare=Kept(BARE_GELU)), torch.ones(3, 4), capture=VERIFY).health
    assert health.capture_verified is False
    assert "1 operator ran past the wrappers" in health.capture_verification_reason
    (escape,) = health.escape.diagnostics
    assert escape.operator == "aten.gelu.default"
    assert "torch.nn.functional.gelu" in escape.candidates
    assert escape.export_sites == (f"act in {__file__}",)
    assert escape.file == __file__
    assert escape.line == forward.__code__.co_firstlineno + 2
    assert escape.function is not None
    assert escape.function.endswith("forward")
    assert [function for _, _, function in escape.stack][-2].endswith("Calls.forward")
    assert escape.module == "self:1"
    assert health.completeness.unaccounted_count == 1
    assert f"{__file__}:{escape.line}" in str(health)


def test_an_escape_inside_a_submodule_and_a_module_path_are_named() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch._C._nn.gelu(x)

    with torch.no_grad():
        health = tl.trace(nn.Sequential(nn.Linear(4, 4), Inner()), torch.ones(3, 4), capture=VERIFY).health
    (escape,) = health.escape.diagnostics
    assert escape.module == "1:1"
    assert escape.export_sites == (f"torch._C._nn.gelu in {__file__}",)


class Duck:
    """Stands for a tensor by torch's protocol and is none; its sums are made past the wrappers."""

    add = Kept(torch._C._VariableFunctions.add)  # type: ignore[attr-defined]  # torch's stub lacks it

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Duck:
        left, right = (arg.tensor if isinstance(arg, Duck) else arg for arg in args)
        return Duck(cls.add.function(left, right) if func.__name__ == "add" else left * right)


def test_a_result_that_stands_for_a_tensor_and_is_none_accounts_for_nothing() -> None:
    def seen(x: Tensor) -> Tensor:
        return torch.mul(Duck(x), 3).tensor + 1  # type: ignore[arg-type]  # as torch allows

    def hidden(x: Tensor) -> Tensor:
        torch.add(Duck(x), 1)  # type: ignore[arg-type]  # as torch allows
        return x * 2

    assert tl.trace(seen, torch.ones(2), capture=VERIFY).health.capture_verified is True
    health = tl.trace(hidden, torch.ones(2), capture=VERIFY).health
    assert health.capture_verified is False
    assert [one.operators for one in health.completeness.diagnostics] == [("aten.add.Tensor",)]


def test_the_counts_add_up() -> None:
    def forward(model: Calls, x: Tensor) -> Tensor:
        y = Straight.apply(BARE_GELU(x)) + torch.func.grad(lambda a: a.sum())(x)
        if bool(y.sum() > 0):
            y = y + y.max().item()
        return y

    counts = tl.trace(Calls(forward), torch.ones(3, 4), capture=VERIFY).health.completeness
    assert counts.accounted_count is not None
    assert counts.expected_opaque_count is not None
    assert counts.unaccounted_count is not None
    assert counts.event_count == counts.accounted_count + counts.expected_opaque_count + counts.unaccounted_count
    assert counts.expected_opaque_count > 0


def untouched(model: nn.Module, x: Tensor) -> tuple[Any, ...]:
    """Result, gradients, buffers and the next random number of one step."""
    torch.manual_seed(1)
    output = model(x)
    output.sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return output, grads, list(model.buffers()), torch.rand(2)


class Everything(nn.Module):
    """In place, views, buffers, dropout, branches, checkpointing, autocast, a nested dispatch mode of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.fc(x))
        x = x.clone()
        x[0].mul_(2)
        x += 1
        x = self.drop(F.relu(x, inplace=True))
        for reentrant in (False, True):
            x = checkpoint(self.fc, x, use_reentrant=reentrant)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.fc(x)
        x = x.float()
        y, _ = self.rnn(x[None])
        z, _ = self.attend(y, y, y)
        x = x + z[0]
        if x.sum() > 0:
            x = x.view(-1).reshape(x.shape).transpose(0, 1).contiguous().t()
        if x.max().item() > -1e9:
            x = torch.where(x.isnan(), torch.zeros_like(x), x)
        a, b = torch.split(x, 2, dim=1)
        return torch.cat([a, F.softmax(b, -1)], 1) + torch.einsum("ij,kj->ik", x, self.fc.weight)


def test_witnessing_changes_no_value_no_gradient_no_buffer_and_no_random_number() -> None:
    torch.manual_seed(0)
    bare, traced = Everything(), Everything()
    traced.load_state_dict(bare.state_dict())
    x = torch.randn(3, 4)
    output, grads, buffers, after = untouched(bare, x)
    torch.manual_seed(1)
    trace = tl.trace(traced, x, capture=VERIFY)
    trace.output.sum().backward()
    assert torch.equal(trace.output, output)
    assert all(map(torch.equal, (p.grad for p in traced.parameters()), grads))
    assert all(map(torch.equal, traced.buffers(), buffers))
    assert torch.equal(torch.rand(2), after)
    assert trace.health.capture_verified is True, str(trace.health)


def test_witnessing_adds_nothing_else_to_the_records() -> None:
    torch.manual_seed(0)
    model, x = Everything().eval(), torch.randn(3, 4)
    plain, witnessed = tl.trace(model, x), tl.trace(model, x, capture=VERIFY)
    assert plain.ops.labels == witnessed.ops.labels
    for column in ("parents", "shape", "modules", "func_qualname", "is_opaque", "arg_names", "code_context"):
        assert list(plain.tables.ops.column(column)) == list(witnessed.tables.ops.column(column)), column
    assert plain.graph_shape_hash == witnessed.graph_shape_hash
    names = [stamped.event.event_name for stamped in plain.events()]
    assert not {"operator_seen", "operators_dispatched"} & set(names)


def test_a_tensor_subclass_and_a_dispatch_mode_of_the_users_are_left_as_they_are() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    class Tagged(Tensor):
        pass

    model, x = Twice(), torch.randn(3, 4).as_subclass(Tagged)
    with FlopCounterMode(display=False) as bare:
        expected = model(x)
    with FlopCounterMode(display=False) as traced:
        trace = tl.trace(model, x, capture=VERIFY)
    assert type(trace.output) is type(expected)
    assert torch.equal(trace.output, expected)
    assert traced.get_total_flops() == bare.get_total_flops()
    assert trace.health.escape.event_count == 0


def test_what_the_health_says_survives_the_journal(tmp_path: Path) -> None:
    model = Calls(lambda m, x: BARE_GELU(Straight.apply(x)) + scripted(x))
    with torch.no_grad():
        trace = tl.trace(model, torch.ones(3, 4), capture=VERIFY, journal=tmp_path / "run.journal")
    said, finding = str(trace.health), trace.health.nonfinite
    decompositions = trace.health.completeness.decompositions
    trace.cleanup()
    again = tl.load(tmp_path / "run.journal")
    assert str(again.health) == said
    assert again.health.nonfinite == finding
    assert again.health.completeness.decompositions == decompositions
    again.check_metadata_invariants()
    again.cleanup()


def test_a_failing_forward_is_not_called_verified() -> None:
    def forward(model: Calls, x: Tensor) -> Tensor:
        return torch.relu(x) @ torch.ones(7, 7)

    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(Calls(forward), torch.ones(3, 4), capture=VERIFY)
    assert raised.value.partial_trace is not None
    health = raised.value.partial_trace.health
    assert health.capture_verified is None
    assert "failed" in health.capture_verification_reason
    assert health.escape.verified is True


def test_a_witnessed_forward_can_be_halted_and_leaves_torch_as_it_was() -> None:
    before = {name: getattr(torch, name) for name in ("relu", "tanh", "compile")}
    trace = tl.trace(Twice(), torch.ones(3, 4), capture=VERIFY, stop_after="relu")
    assert trace.halted
    assert trace.health.capture_verified is True
    assert not wrappers().installed
    assert {name: getattr(torch, name) for name in before} == before
    assert torch._C._len_torch_dispatch_stack() == 0


PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, torchlens as tl
from torchlens.options import CaptureOptions

def forward(x):
    output, push = torch.func.linearize(torch.tanh, x)
    return push(output)

assert "torch._dynamo" not in sys.modules
tl.trace(forward, torch.ones(2, 3), capture=CaptureOptions(verify_capture={verify}))
assert "torch._dynamo" in sys.modules
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
x = torch.ones(2, 3)
compiled = torch.compile(lambda x: torch.relu(model[0](x)) * 2, backend="eager", fullgraph=True)
assert torch.equal(compiled(x), model(x) * 2)
"""


@pytest.mark.parametrize("verify", [False, True])
def test_compiling_works_after_a_capture_in_which_torch_loaded_its_compiler(verify: bool) -> None:
    run([sys.executable, "-c", PROGRAM.format(verify=verify)], env=surroundings(), check=True, timeout=PATIENCE)


# -- threads --------------------------------------------------------------------------------------------


def in_threads(model: Calls, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(2, thread_name_prefix="worker") as pool:
        first, second = pool.map(lambda part: torch.tanh(F.relu(part)), [x, x * 2])
    return first + second


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("capture", [CaptureOptions(), VERIFY])
def test_threads_of_a_forward_are_named_as_not_recorded(capture: CaptureOptions, grad: bool) -> None:
    x = torch.randn(3, 4, requires_grad=grad)
    expected = in_threads(Calls(in_threads), x)
    trace = tl.trace(Calls(in_threads), x, capture=capture)
    assert torch.equal(trace.output, expected)
    health = trace.health
    assert sum(thread.num_calls for thread in health.threads) == 4
    assert {name for thread in health.threads for name in thread.functions} == {
        "torch.tanh",
        "torch.nn.functional.relu",
    }
    assert all(thread.name.startswith("worker") for thread in health.threads)
    assert [trace.ops[label].opaque_reason for label in health.unseen_tensors] == ["made by another thread"] * 2
    assert [trace.ops[label].parents for label in health.unseen_tensors] == [("input_1",), ("mul_1_1",)]
    assert not health.is_clean
    assert "worker" in str(health)
    assert health.capture_verified in (None, False)


def write_memory(y: Tensor) -> None:
    y.numpy()[...] = 7


def write_in_a_thread(y: Tensor) -> None:
    thread = threading.Thread(target=y.fill_, args=(7,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("write", [write_memory, write_in_a_thread])
@pytest.mark.parametrize("verify", [False, True])
def test_an_output_written_where_nobody_looks_is_told_as_a_record_of_before(
    write: Callable[[Tensor], None], verify: bool
) -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        write(y)
        return y

    trace = tl.trace(forward, torch.ones(2), capture=CaptureOptions(verify_capture=verify))
    assert torch.equal(trace.output, torch.full((2,), 7.0))
    health = trace.health
    assert health.overwritten == ("mul_1_1", "output_1")
    assert not health.is_clean
    assert health.capture_verified is (False if verify else None)
    assert "record of before: mul_1_1" in str(health)


@pytest.mark.parametrize("write", [write_memory, write_in_a_thread])
def test_an_argument_written_where_nobody_looks_is_told_under_verification(write: Callable[[Tensor], None]) -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        write(y)
        return y + 1

    health = tl.trace(forward, torch.ones(2), capture=VERIFY).health
    assert health.overwritten == ("mul_1_1",)
    assert health.capture_verified is False


@pytest.mark.parametrize("verify", [False, True])
def test_memory_that_is_handed_out_and_left_alone_or_written_by_recorded_calls_is_no_finding(verify: bool) -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        total = float(y.numpy().sum())
        y.add_(1)
        z = y.view(-1)
        return z.mul_(total) + y

    health = tl.trace(forward, torch.ones(2), capture=CaptureOptions(verify_capture=verify)).health
    assert health.overwritten == ()
    assert health.is_clean
    assert health.capture_verified is (True if verify else None)


def test_calls_of_a_thread_that_works_beside_the_forward_are_told_and_change_no_record() -> None:
    asked, called, stop = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            asked_for = asked.is_set()
            torch.ones(2).exp()
            if asked_for:
                called.set()  # this whole call was made while the forward waited

    def forward(model: Calls, x: Tensor) -> Tensor:
        asked.set()
        assert called.wait(PATIENCE)
        return torch.relu(x)

    beside = threading.Thread(target=work, name="loader")
    beside.start()
    try:
        trace = tl.trace(Calls(forward), torch.ones(3, 4))
    finally:
        stop.set()
        beside.join()
    assert trace.ops.labels == ("input_1", "relu_1_1", "output_1")
    (thread,) = trace.health.threads
    assert thread.name == "loader"
    assert thread.num_calls >= 1
    assert not trace.health.unseen_tensors


# -- values that are not finite ---------------------------------------------------------------------------


def bad(model: Calls, x: Tensor) -> Tensor:
    masked = x.masked_fill(x > 1, -math.inf)
    y = torch.log(model.fc(x) - 1000)
    return (y + masked).softmax(-1)


def bad_model() -> Calls:
    torch.manual_seed(0)
    return Calls(bad, fc=nn.Linear(4, 4))


def test_the_first_nan_and_the_first_infinity_are_found_among_kept_activations() -> None:
    finding = tl.trace(bad_model(), torch.full((2, 4), 2.0)).health.nonfinite
    assert finding.verdict == "found"
    assert finding.first == "maskedfill_1_2"
    assert finding.first_nan == "log_1_5"
    assert finding.labels == ("maskedfill_1_2", "log_1_5", "add_1_6", "softmax_1_7", "output_1")
    assert finding.unchecked == 0


def test_kept_activations_without_either_are_clean_and_those_not_kept_are_not_called_so() -> None:
    clean = tl.trace(Twice(), torch.ones(3, 4)).health.nonfinite
    assert (clean.verdict, clean.checked, clean.unchecked, clean.first) == ("checked_and_clean", 5, 0, None)
    nothing = tl.trace(bad_model(), torch.full((2, 4), 2.0), save="none").health.nonfinite
    assert (nothing.verdict, nothing.checked, nothing.labels) == ("not_checked", 0, ())
    some = tl.trace(bad_model(), torch.full((2, 4), 2.0), save=tl.func("linear")).health.nonfinite
    assert (some.verdict, some.checked) == ("checked_and_clean", 1)
    assert some.unchecked == 8


def ragged(layout: torch.layout) -> Callable[[Tensor], Any]:
    return lambda x: torch.nested.as_nested_tensor([x, x[:1]], layout=layout)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "float8_e4m3fn": lambda x: x.to(torch.float8_e4m3fn),
    "float8_e5m2": lambda x: x.to(torch.float8_e5m2),
    "float8_e4m3fnuz": lambda x: x.to(torch.float8_e4m3fnuz),
    "float8_e8m0fnu": lambda x: x.to(torch.float8_e8m0fnu),
    "complex32": lambda x: x.to(torch.complex32),
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": ragged(torch.strided),
    "jagged": ragged(torch.jagged),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Sparse", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("form", FORMS)
def test_a_nan_is_seen_in_a_tensor_of_any_form(form: str) -> None:
    make, x = FORMS[form], torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    assert nonfinite_in(make(torch.ones(2, 2))) == (0, 0)
    found = nonfinite_in(make(x))
    assert found is not None
    assert found[0] > 0
    with pytest.raises(tl.TraceCaptureError, match="nonfinite_value"):
        tl.trace(lambda x: make(x), x, capture=CaptureOptions(raise_on_nan=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@pytest.mark.parametrize(
    "make", [lambda x: x.to("meta"), lambda x: torch.masked.masked_tensor(x, x > 0)], ids=["meta", "masked"]
)
def test_what_cannot_be_looked_at_counts_as_not_checked_and_stops_nothing(make: Callable[[Tensor], Any]) -> None:
    assert nonfinite_in(make(torch.ones(2))) is None
    trace = tl.trace(lambda x: (x + 1, make(x))[0], torch.ones(2), capture=CaptureOptions(raise_on_nan=True))
    assert trace.status == "complete"
    assert trace.health.nonfinite.verdict == "checked_and_clean"


def test_meta_is_not_called_clean() -> None:
    finding = tl.trace(lambda x: x.to("meta") * 2, torch.ones(2)).health.nonfinite
    assert (finding.verdict, finding.checked, finding.unchecked) == ("checked_and_clean", 1, 3)


def test_a_buffer_that_a_fused_layer_writes_is_looked_at() -> None:
    x = torch.tensor([[0.0], [3e38], [1e38]])
    trace = tl.trace(nn.BatchNorm1d(1), x)
    assert trace.output.isfinite().all()
    assert trace.health.nonfinite.first == "buffer_6"
    with pytest.raises(tl.TraceCaptureError, match="nonfinite_value") as raised:
        tl.trace(nn.BatchNorm1d(1), x, capture=CaptureOptions(raise_on_nan=True))
    assert raised.value.fields["op"] == "batchnorm_1_2"


@pytest.mark.parametrize(("wanted", "label", "counts"), [(True, "maskedfill_1_2", (0, 8)), ("nan", "log_1_5", (8, 0))])
def test_a_forward_stops_at_the_first_value_that_is_not_finite(
    wanted: Any, label: str, counts: tuple[int, int]
) -> None:
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(bad_model(), torch.full((2, 4), 2.0), capture=CaptureOptions(raise_on_nan=wanted), save="none")
    error = raised.value
    assert error.code == "nonfinite_value"
    assert error.fields["op"] == label
    assert (error.fields["num_nan"], error.fields["num_inf"]) == counts
    assert all(shape == (2, 4) for _, shape, _ in error.fields["operands"])
    assert error.fields["file"] == __file__
    assert error.fields["line"] == bad.__code__.co_firstlineno + (1 if wanted is True else 2)
    assert f"{__file__}:{error.fields['line']}" in str(error)
    trace = error.partial_trace
    assert trace is not None
    assert trace.status == trace.outcome.status == "aborted_nonfinite"
    assert trace.is_partial
    assert trace.outcome.reason == ("8 infinite elements" if wanted is True else "8 NaN elements")
    assert trace.ops.labels[-1] == label
    assert trace.health.nonfinite.first == label
    assert trace.health.capture_verified is None
    trace.check_metadata_invariants()


def test_a_model_that_catches_every_exception_is_stopped_too() -> None:
    def forward(model: Calls, x: Tensor) -> Tensor:
        try:
            return torch.log(x - 10)
        except Exception:  # noqa: BLE001  # a model's own
            return x

    with pytest.raises(tl.TraceCaptureError, match="nonfinite_value"):
        tl.trace(Calls(forward), torch.ones(2), capture=CaptureOptions(raise_on_nan=True))


def test_a_stopped_forward_is_told_from_its_journal_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(bad_model(), torch.full((2, 4), 2.0), capture=CaptureOptions(raise_on_nan=True), journal=path)
    assert raised.value.partial_trace is not None
    raised.value.partial_trace.cleanup()
    found = tl.postmortem(path)
    assert found.status == "aborted_nonfinite"
    assert "masked_fill" in found.verdict
    assert not found.is_well


def test_finite_models_run_as_ever_under_raise_on_nan() -> None:
    torch.manual_seed(0)
    model, x = Everything().eval(), torch.randn(3, 4)
    expected = model(x)
    trace = tl.trace(model, x, capture=CaptureOptions(raise_on_nan=True))
    assert torch.equal(trace.output, expected)
    assert trace.status == "complete"


def test_options_outside_what_is_accepted_are_refused() -> None:
    for options in ({"raise_on_nan": "inf"}, {"raise_on_nan": 1}, {"verify_capture": "yes"}):
        with pytest.raises(ConfigurationError) as refused:
            CaptureOptions(**options)  # type: ignore[arg-type]  # on purpose
        assert refused.value.code == "option_value_invalid"


def test_the_text_of_a_health_is_short_however_much_there_is() -> None:
    model = Calls(lambda m, x: sum(Straight.apply(x * n) for n in range(40)))
    said = str(tl.trace(model, torch.ones(2)).health)
    assert "32 more" in said
    assert len(said.splitlines()) < 20
    assert json.dumps(said)


def test_printed_health_tells_where_a_nan_is_and_how_many_values_were_not_looked_at() -> None:
    trace = tl.trace(bad_model(), torch.full((2, 4), 2.0))
    line = bad.__code__.co_firstlineno + 2
    assert f"NaN first in log_1_5 (test_health.py:{line}), 4 of 9 activations" in str(trace.health)
    assert "infinities and no NaN first in maskedfill_1_2, 1 of 9 activations" in str(trace.health)
    assert "nothing" not in str(trace.health)
    assert not trace.health.is_clean
    assert repr(trace.health.nonfinite).startswith("<NonfiniteFinding found: NaN first in log_1_5")
    some = tl.trace(bad_model(), torch.full((2, 4), 2.0), save=tl.func("linear")).health
    assert "all values of 1 activation are finite; 8 ops not looked at, whose values were not kept" in str(some)


def test_values_of_many_gigabytes_are_looked_at_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchlens.reading.health.MOST_LOOKED_AT", 0)
    trace = tl.trace(bad_model(), torch.full((2, 4), 2.0))
    assert "not looked at; read .nonfinite" in str(trace.health)
    assert trace.looked_at is None
    assert trace.health.nonfinite.verdict == "found"
    assert "NaN first in log_1_5" in str(trace.health)
    assert not trace.health.is_clean


def test_a_forward_left_at_a_nan_tells_the_call_its_operands_and_line_as_a_failed_one_does() -> None:
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(bad_model(), torch.full((2, 4), 2.0), capture=CaptureOptions(raise_on_nan="nan"))
    trace = raised.value.partial_trace
    assert trace is not None
    failure = trace.failure
    assert failure is not None
    assert failure.error == "nonfinite_value: log_1_5 returned 8 NaN elements"
    assert failure.call is not None
    assert failure.call.function == "torch.log"
    assert [tensor.shape for tensor in failure.call.tensors] == [(2, 4)]
    assert failure.user_place is not None
    assert failure.user_place.line == bad.__code__.co_firstlineno + 2
    assert "not finite  8 NaN elements in what a call returned" in trace.summary()
    assert f"test_health.py:{failure.user_place.line}" in "".join(trace.summary().split())


def test_elements_that_are_one_in_memory_are_looked_at_once_and_counted_each() -> None:
    trace = tl.trace(lambda x: x.log().expand(10**6, 10**6), torch.zeros(1))
    assert trace.health.nonfinite.labels == ("log_1_1", "expand_1_2", "output_1")
    stopping = tl.CaptureOptions(raise_on_nan=True)
    with pytest.raises(tl.TraceCaptureError) as stopped:
        tl.trace(lambda x: x.expand(10**6, 10**6), torch.full((1,), math.inf), capture=stopping)
    assert stopped.value.code == "nonfinite_value"
    assert stopped.value.partial_trace.outcome.reason == f"{10**12} infinite elements"
