"""What a capture promises beyond its records: values as they were, a run like a bare run, nothing left behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle  # noqa: TID251  # what users do with their models
import random
import sys
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import gelu  # bound by name, before any wrapping

import torchlens as tl
from tests.programs import run
from torchlens.capture import wrap


class Body(nn.Module):
    def __init__(self, forward: Any, **children: Any) -> None:
        super().__init__()
        self.__dict__["body"] = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["body"](self, *args, **kwargs)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


# A run like a bare run -----------------------------------------------------------------------------------


def test_outputs_are_bit_identical_with_dropout_under_one_seed() -> None:
    model, x = mlp().train(), torch.randn(3, 4)
    torch.manual_seed(5)
    bare = model(x)
    after_bare = torch.get_rng_state()
    torch.manual_seed(5)
    trace = tl.trace(model, x)
    assert torch.equal(trace.output, bare)
    assert torch.equal(torch.get_rng_state(), after_bare)


def test_a_seed_is_used_and_the_generators_are_put_back() -> None:
    model, x = mlp().train(), torch.randn(3, 4)
    states = torch.get_rng_state(), random.getstate()
    first = tl.trace(model, x, capture=tl.CaptureOptions(random_seed=7)).output
    second = tl.trace(model, x, capture=tl.CaptureOptions(random_seed=7)).output
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_gradients_through_a_captured_run_are_those_of_a_bare_run() -> None:
    model, x = mlp().eval(), torch.randn(3, 4)
    model(x).square().sum().backward()
    bare = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    tl.trace(model, x).output.square().sum().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(bare, model.parameters(), strict=True))


def test_saved_activations_are_on_the_models_graph() -> None:
    model, x = mlp().eval(), torch.randn(3, 4)
    trace = tl.trace(model, x)
    trace["linear_2_4"].out.sum().backward()
    assert model[0].weight.grad is not None


def test_detached_activations_are_off_the_models_graph() -> None:
    trace = tl.trace(mlp(), torch.randn(3, 4), capture=tl.CaptureOptions(detach_saved_activations=True))
    assert not trace["linear_1_1"].out.requires_grad


def test_the_callers_tensors_are_not_written() -> None:
    x = torch.zeros(2, 3)
    trace = tl.trace(Body(lambda self, x: x.add_(1)), x)
    assert torch.equal(x, torch.zeros(2, 3))
    assert torch.equal(trace["input_1"].out, torch.zeros(2, 3))
    assert torch.equal(trace.output, torch.ones(2, 3))


def test_aliased_inputs_stay_aliased() -> None:
    base = torch.zeros(4)

    def forward(self: Any, whole: Tensor, part: Tensor) -> Tensor:
        part.add_(1)
        return whole * 2

    trace = tl.trace(Body(forward), [base, base[1:3]])
    assert trace.output.tolist() == [0, 2, 2, 0]
    assert trace.ops["mul_1_2"].parents == ("add_1_1",)
    assert base.tolist() == [0, 0, 0, 0]


def test_the_gradient_reaches_what_made_the_input() -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 2)
    tl.trace(head, encoder(torch.randn(3, 4))).output.sum().backward()
    assert encoder.weight.grad is not None


# Values as they were ------------------------------------------------------------------------------------


def test_an_in_place_call_leaves_earlier_values_as_they_were() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x * 2
        view = y[0]
        y.relu_()
        view.mul_(10)
        y[1] = 7
        return y + 0

    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    trace = tl.trace(Body(forward), x)
    expected = {
        "mul_1_1": [[-2, 4], [6, -8]],
        "getitem_1_2": [-2, 4],
        "relu_1_3": [[0, 4], [6, 0]],
        "mul_2_4": [0, 40],
        "setitem_1_5": [[0, 40], [7, 7]],
        "add_1_6": [[0, 40], [7, 7]],
    }
    assert {label: trace[label].out.tolist() for label in expected} == expected


@given(
    st.lists(st.sampled_from(["add_", "mul_", "view", "slice", "out", "setitem", "relu", "foreach", "op"]), max_size=8)
)
@settings(max_examples=40, deadline=None)
def test_every_saved_value_equals_what_a_careful_copy_would_have_held(steps: list[str]) -> None:
    copies: list[Tensor] = []

    def forward(self: Any, x: Tensor) -> Tensor:
        names = [x * 1.5]
        copies.append(names[0].detach().clone())
        for step in steps:
            t = names[-1]
            if step == "add_":
                made = t.add_(1.25)
            elif step == "mul_":
                made = t.mul_(-0.5)
            elif step == "view":
                made = t.view(-1)
            elif step == "slice":
                made = names[0][0:1]
            elif step == "out":
                made = torch.add(names[0], 1, out=torch.empty(0))
            elif step == "setitem":
                names[0][0, 0] = 3.0
                made = names[0]
            elif step == "relu":
                made = F.relu(t)
            elif step == "op":
                made = torch.ops.aten.add_(t, 2.0)
            else:
                torch._foreach_add_([t], 1.0)
                made = t
            copies.append(made.detach().clone())
            names.append(made)
        return names[-1] + 0

    with torch.no_grad():
        trace = tl.trace(Body(forward), torch.randn(2, 3))
    held = [op.out for op in trace.ops if op.is_compute_op and op.func_name not in ("clone", "detach", "empty")]
    mine = iter(held)
    for made in copies:  # each copy is the value of some op, in order
        assert any(made.shape == value.shape and torch.equal(made, value) for value in mine), steps


def test_a_write_through_numpy_does_not_reach_a_saved_value() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x * 2
        y.numpy()[...] = 7
        return y + 1

    trace = tl.trace(Body(forward), torch.ones(2))
    assert trace["mul_1_1"].out.tolist() == [2, 2]
    assert trace["add_1_2"].out.tolist() == [8, 8]


def test_changing_what_is_read_changes_nothing_else() -> None:
    trace = tl.trace(mlp().eval(), torch.randn(3, 4))
    first = trace["linear_1_1"].out
    with torch.no_grad():
        first.zero_()
    assert not torch.equal(trace["linear_1_1"].out, first)


def test_a_training_step_does_not_reach_the_saved_views_of_a_weight() -> None:
    model = Body(lambda self, x: x @ self.fc.weight.t(), fc=nn.Linear(2, 2))
    trace = tl.trace(model, torch.ones(1, 2))
    before = model.fc.weight.detach().clone()
    trace.output.sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert torch.equal(trace["t_1_1"].out, before.t())
    assert not torch.equal(model.fc.weight, before)


def test_a_write_after_the_capture_is_refused_not_shown() -> None:
    with torch.no_grad():
        trace = tl.trace(mlp().eval(), torch.randn(3, 4))
        trace.output.zero_()
    with pytest.raises(tl.TorchLensError) as refused:
        _ = trace["output_1"].out
    assert refused.value.code == "activation_overwritten"


# Nothing left behind --------------------------------------------------------------------------------------


def test_every_torch_function_is_the_original_again() -> None:
    def everything() -> dict[str, Any]:
        found = {f"torch.{name}": value for name, value in vars(torch).items()}
        found |= {f"F.{name}": value for name, value in vars(F).items()}
        found |= {f"Tensor.{name}": value for name, value in vars(Tensor).items()}
        found |= {f"VF.{name}": value for name, value in vars(torch._VF).items()}
        found |= {f"Module.{name}": value for name, value in vars(nn.Module).items()}
        return found

    tl.trace(mlp(), torch.randn(3, 4))
    before = everything()
    tl.trace(mlp(), torch.randn(3, 4))
    after = everything()
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] is not after[name]] == []
    assert gelu is F.gelu
    assert wrap.listening() is None


def test_the_model_copies_pickles_and_loads_as_before() -> None:
    model, x = mlp().eval(), torch.randn(3, 4)
    keys = {name: set(vars(module)) for name, module in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    tl.trace(model, x)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == keys
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(not vars(parameter) for parameter in model.parameters())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301  # the model's own promise
        assert torch.equal(twin(x), model(x))
    torch.save(model.state_dict(), io.BytesIO())


def test_a_returned_or_stored_tensor_carries_nothing_of_the_capture() -> None:
    class Stateful(nn.Module):
        last: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return self.last + 1

    model = Stateful()
    trace = tl.trace(model, torch.ones(2))
    assert not vars(trace.output)
    assert not vars(model.last)


def test_repeated_captures_do_not_grow_memory() -> None:
    model, x = mlp().eval(), torch.randn(3, 4)
    counts = []
    for _ in range(4):
        for _ in range(50):
            tl.trace(model, x).cleanup()
        gc.collect()
        counts.append((len(gc.get_objects()), sum(type(o) is Tensor for o in gc.get_objects())))
    assert counts[-1][1] <= counts[1][1]
    assert counts[-1][0] <= counts[1][0] + 50


def test_a_dropped_trace_frees_its_tensors_without_the_collector() -> None:
    import weakref

    model = nn.Sequential(*mlp(), nn.BatchNorm1d(2)).eval()
    tl.trace(model, torch.randn(3, 4))
    gc.collect()
    gc.disable()
    try:
        trace = tl.trace(model, torch.randn(3, 4))
        output = weakref.ref(trace.output)
        del trace
        assert output() is None
    finally:
        gc.enable()


# Exits ------------------------------------------------------------------------------------------------------


def test_a_model_that_raises_gives_a_partial_trace_and_the_cause() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y @ torch.ones(5, 5)

    model = Body(forward, fc=nn.Linear(2, 3))
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(model, torch.ones(1, 2))
    assert raised.value.code == "model_raised"
    assert isinstance(raised.value.__cause__, RuntimeError)
    partial = raised.value.partial_trace
    assert partial.outcome.status == "failed"
    assert partial.ops.labels[:2] == ("input_1", "linear_1_1")
    assert not partial.output_layers
    assert "forward" not in vars(model.fc)
    assert torch.relu is not None
    assert wrap.listening() is None
    assert tl.trace(model.fc, torch.ones(1, 2)).outcome.status == "complete"


def test_an_interrupt_passes_through_and_everything_is_restored() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        torch.relu(x)
        raise KeyboardInterrupt

    original = torch.relu
    with pytest.raises(KeyboardInterrupt):
        tl.trace(Body(forward), torch.ones(1))
    assert torch.relu is original
    assert gc.isenabled()
    assert tl.trace(nn.ReLU(), torch.ones(1)).outcome.status == "complete"


@pytest.mark.parametrize(
    ("stop", "last"),
    [
        ("0", "linear_1_1"),
        ("0:1", "linear_1_1"),
        ("relu", "relu_1_2"),
        (tl.func("relu"), "relu_1_2"),
        (tl.module("1"), "relu_1_2"),
        (tl.func("dropout") | tl.module("1"), "relu_1_2"),
        (tl.func("relu") & tl.module("1"), "relu_1_2"),
        (tl.in_module("1"), "relu_1_2"),
        (lambda facts: facts.func_name == "relu", "relu_1_2"),
        (lambda facts: facts.shape == (3, 2), "linear_2_4"),
    ],
)
def test_a_halted_capture_ends_at_its_site(stop: Any, last: str) -> None:
    trace = tl.trace(mlp().eval(), torch.randn(3, 4), stop_after=stop)
    assert trace.outcome.status == "halted"
    assert trace.halted
    assert trace.ops.labels[-2:] == (last, "output_1")


@pytest.mark.parametrize("argument", ["save", "stop_after"])
@pytest.mark.parametrize("ask", [lambda facts: facts.nothing, tl.where(lambda facts: 1 / 0), torch.relu])
def test_a_predicate_that_raises_is_blamed_itself(argument: str, ask: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(mlp(), torch.randn(3, 4), **{argument: ask})
    assert refused.value.code == "predicate_evaluation_failed"
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize("save", ["nosuch_1_1", tl.func("rleu"), tl.in_module("nowhere")])
def test_a_request_that_keeps_nothing_is_told(save: Any) -> None:
    with pytest.warns(tl.errors.TorchLensWarning, match="save_matched_nothing"):
        tl.trace(mlp(), torch.randn(3, 4), save=save)


@pytest.mark.parametrize(
    ("options", "values"),
    [(tl.CaptureOptions, {"inference_only": "yes"}), (tl.JournalOptions, {"path": "x", "durability": "often"})],
)
def test_an_option_outside_its_list_is_refused(options: Any, values: dict[str, Any]) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        options(**values)
    assert refused.value.code == "option_value_invalid"


@pytest.mark.parametrize(
    ("stop", "code"),
    [("relu_1_2", "stop_after_site_not_live"), ("nowhere", "stop_after_never_fired"), (3, "stop_after_type_invalid")],
)
def test_a_stop_that_cannot_be_is_refused(stop: Any, code: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(mlp(), torch.randn(3, 4), stop_after=stop)
    assert refused.value.code == code


def test_a_predicate_that_never_stops_is_told_and_no_failure() -> None:
    with pytest.warns(tl.errors.TorchLensWarning, match="stop_after_never_fired_callable"):
        trace = tl.trace(mlp(), torch.randn(3, 4), stop_after=lambda facts: facts.func_name == "nothing")
    assert trace.outcome.status == "complete"


def test_an_exception_the_model_catches_is_no_failure() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        try:
            self.fc(torch.ones(1, 7))
        except RuntimeError:
            pass
        return self.fc(x)

    trace = tl.trace(Body(forward, fc=nn.Linear(2, 2)), torch.ones(1, 2))
    assert trace.outcome.status == "complete"
    assert trace.modules["fc"].num_calls == 2
    assert [op.module for op in trace.ops if op.func_name == "linear"] == ["fc:2"]


# Nesting and threads -----------------------------------------------------------------------------------------


def test_a_capture_inside_a_capture_is_refused() -> None:
    inner = mlp()
    model = Body(lambda self, x: tl.trace(inner, x).output)
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(model, torch.randn(3, 4))
    assert getattr(raised.value.__cause__, "code", None) == "reentrant_trace"


def test_another_threads_calls_are_not_recorded_and_not_disturbed() -> None:
    results: list[Tensor] = []

    def forward(self: Any, x: Tensor) -> Tensor:
        worker = threading.Thread(target=lambda: results.append(torch.full((2,), 3.0).square().relu()))
        worker.start()
        worker.join()
        return torch.tanh(x)

    trace = tl.trace(Body(forward), torch.ones(2))
    assert trace.ops.labels == ("input_1", "tanh_1_1", "output_1")
    assert results[0].tolist() == [9, 9]


def test_captures_in_two_threads_wait_for_each_other() -> None:
    found: list[tuple[str, ...]] = []

    def work() -> None:
        found.extend(tl.trace(mlp().eval(), torch.randn(3, 4)).ops.labels for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert len(set(found)) == 1


# Seen and unseen --------------------------------------------------------------------------------------------


class Holder(nn.Module):
    act = staticmethod(F.gelu)

    def __init__(self) -> None:
        super().__init__()
        self.fn = torch.tanh

    def forward(self, x: Tensor, other: Any = torch.sigmoid) -> Tensor:
        return self.act(self.fn(other(gelu(x))))


def test_functions_bound_by_name_before_are_seen() -> None:
    trace = tl.trace(Holder(), torch.ones(2))
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["gelu", "sigmoid", "tanh", "gelu"]
    assert trace.health.is_clean


def test_a_call_that_escapes_shows_as_an_opaque_op() -> None:
    model = Body(lambda self, x: torch._C._nn.gelu(self.fc(x)) * 2, fc=nn.Linear(2, 2))
    trace = tl.trace(model, torch.ones(1, 2))
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["linear", "gelu", "__mul__"]
    assert not trace.health.is_clean


def test_a_custom_function_is_one_op() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    x = torch.ones(2, requires_grad=True)
    trace = tl.trace(Body(lambda self, x: Double.apply(x) + 1), x)
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["Double", "__add__"]
    trace["double_1_1"].out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_unregistered_modules_are_found_when_called() -> None:
    hidden = nn.Linear(2, 2)
    model = Body(lambda self, x: self.parts[0](x))
    model.__dict__["parts"] = [hidden]
    trace = tl.trace(model, torch.ones(1, 2))
    call = trace.module_calls[1]
    assert call.class_name == "Linear"
    assert call.address.startswith("~")
    assert "forward" not in vars(hidden)


def test_a_plain_function_is_captured_like_a_model() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    trace = tl.trace(lambda x: second(first(x).relu()).squeeze(-1), torch.randn(3, 4))
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["linear", "relu", "linear", "squeeze"]


def test_wrappers_of_models_are_taken_off() -> None:
    model = mlp().eval()
    assert tl.trace(nn.DataParallel(model), torch.randn(3, 4)).modules["0"].class_name == "Linear"
    compiled = torch.compile(model, backend="eager")
    assert tl.trace(compiled, torch.randn(3, 4)).modules["0"].class_name == "Linear"


def test_a_scripted_submodule_is_one_op_and_a_scripted_root_is_refused() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match="script"):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    trace = tl.trace(nn.Sequential(scripted, nn.Tanh()), torch.ones(1, 2))
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["sequential", "tanh"]
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(scripted, torch.ones(1, 2))
    assert refused.value.code == "model_type_unsupported"


def test_a_compiled_function_is_refused_and_the_one_it_is_made_of_is_captured() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(torch.compile(double, backend="eager"), torch.ones(1, 2))
    assert refused.value.code == "compiled_callable_unsupported"
    assert tl.trace(double, torch.ones(1, 2)).num_ops == 1


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "1", True])
def test_a_seed_is_a_number_that_every_generator_takes(seed: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.CaptureOptions(random_seed=seed)
    assert refused.value.code == "random_seed_invalid"
    assert tl.CaptureOptions(random_seed=2**32 - 1).random_seed == 2**32 - 1


def test_deep_models_are_no_problem() -> None:
    class Nest(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model: nn.Module = nn.ReLU()
    for _ in range(1000):
        model = Nest(model)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(8000)  # the bare model needs as much
    try:
        model(torch.ones(2))
        trace = tl.trace(model, torch.ones(2))
        assert sys.getrecursionlimit() == 8000
    finally:
        sys.setrecursionlimit(limit)
    assert len(trace.module_calls) == 1001
    assert trace.modules["inner." * 999 + "inner"].class_name == "ReLU"
    trace.check_metadata_invariants()


def test_a_long_loop_is_two_layers() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(5000):
            x = torch.tanh(x) * 0.5
        return x

    trace = tl.trace(Body(forward), torch.ones(2), save=[])
    assert [layer.num_passes for layer in trace.layers if layer.func_name in ("tanh", "__mul__")] == [5000, 5000]
    trace.check_metadata_invariants()


def test_wrapped_keeps_the_wrappers_and_takes_them_off_at_the_end() -> None:
    original = torch.relu
    with tl.wrapped():
        assert torch.relu is not original
        assert torch.relu(torch.tensor(-1.0)) == 0
        tl.trace(mlp(), torch.randn(3, 4))
        assert torch.relu is not original
    assert torch.relu is original


# Saving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("save", "kept"),
    [
        (None, "input_1 linear_1_1 relu_1_2 dropout_1_3 linear_2_4 output_1"),
        ("all", "input_1 linear_1_1 relu_1_2 dropout_1_3 linear_2_4 output_1"),
        ([], ""),
        ("none", ""),
        (tl.func("linear"), "linear_1_1 linear_2_4 output_1"),
        (tl.module("1"), "relu_1_2"),
        ("1", "relu_1_2"),
        (tl.in_module("0"), "linear_1_1"),
        ("relu_1_2", "relu_1_2"),
        (["relu_1_2", tl.module("0")], "linear_1_1 relu_1_2"),
        (tl.func("linear") & tl.in_module("0"), "linear_1_1"),
        (lambda facts: facts.func_name == "relu", "relu_1_2"),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_asked_for_is_kept(save: Any, kept: str, on_disk: bool, tmp_path: Any) -> None:
    model, x = mlp().eval(), torch.randn(3, 4)
    trace = tl.trace(model, x, save=save, journal=tmp_path / "run.journal" if on_disk else None)
    assert " ".join(op.label for op in trace.ops if op.has_saved_activation) == kept
    everything = tl.trace(model, x)
    for label in kept.split():
        assert torch.equal(trace.ops[label].out, everything.ops[label].out)
    for op in trace.ops:
        if not op.has_saved_activation:
            with pytest.raises(tl.TorchLensError) as refused:
                _ = op.out
            assert refused.value.code == "activation_not_saved"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"save": 3.5}, "save_predicate_type_invalid"),
        ({"save": torch.ones(1)}, "layers_to_save_type_invalid"),
        ({"save_grads": True}, "trace_forward_kwargs_unrouted"),
        ({"capture": {"random_seed": 1}}, "option_group_type_invalid"),
        ({"backend": "jax"}, "unknown_backend"),
        ({"intervene": object()}, "option_not_available"),
        ({"storage": "run.journal"}, "storage_type_invalid"),
        ({"journal": 3}, "journal_type_invalid"),
        ({"name": 3}, "name_type_invalid"),
        ({"tags": "train"}, "tags_type_invalid"),
        ({"input_kwargs": torch.ones(1)}, "input_kwargs_type_invalid"),
        ({"save": lambda facts: 1}, "predicate_return_invalid"),
    ],
)
def test_bad_options_are_refused_by_code(options: dict[str, Any], code: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(mlp(), torch.randn(3, 4), **options)
    error: Any = refused.value
    while getattr(error, "code", None) != code and error.__cause__ is not None:
        error = error.__cause__
    assert error.code == code
    assert error.remedy


@pytest.mark.parametrize("model", [3, torch.ones(2), nn.Linear])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(model, torch.ones(2))
    assert refused.value.code == "model_type_unsupported"


def test_a_meta_input_is_refused() -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(nn.ReLU(), torch.ones(2, device="meta"))
    assert refused.value.code == "unsupported_tensor_variant"


# Odd models ---------------------------------------------------------------------------------------------------


def same_as_bare(model: nn.Module, *args: Any, **kwargs: Any) -> tl.Trace:
    """The trace of a model whose traced and bare runs agree, from the same state."""
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    bare = twin(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    torch.manual_seed(3)
    trace = tl.trace(model, list(args), kwargs)
    assert torch.equal(trace.output, bare)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    trace.check_metadata_invariants()
    return trace


def test_a_row_of_a_weight_may_be_written_without_gradients() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight[0].zero_()
        return self.fc(x)

    trace = same_as_bare(Body(forward, fc=nn.Linear(2, 2)), torch.ones(1, 2))
    assert "zero_1_2" in trace.ops["linear_1_3"].parents


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_inside_a_padded_encoder_are_recorded() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        same_as_bare(model, torch.randn(2, 3, 8), src_key_padding_mask=mask)


def test_a_class_that_changes_in_the_forward_is_followed() -> None:
    model = Body(lambda self, x: self.fc(self.fc(x)), fc=nn.LazyLinear(3))
    assert tl.trace(model, torch.ones(1, 3)).modules["fc"].num_calls == 2


def test_a_forward_set_in_the_forward_is_what_runs_and_stays() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        self.fc.forward = lambda given: given * 100
        return self.fc(y)

    model = Body(forward, fc=nn.Linear(2, 2))
    same_as_bare(model, torch.ones(1, 2))
    assert "forward" in vars(model.fc)


def test_a_static_forward_is_no_method() -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(x: Tensor) -> Tensor:  # type: ignore[override]  # what some write
            return x * 2

    same_as_bare(nn.Sequential(Static()), torch.ones(2))


def test_copies_and_pickles_made_in_the_forward_are_the_models_own() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        pickle.dumps(self.bn)
        return copy.deepcopy(self.bn)(x) + self.bn(x)

    same_as_bare(Body(forward, bn=nn.BatchNorm1d(2)).eval(), torch.ones(3, 2))

    class Copied(nn.Module):
        depth = 0

        def forward(self, x: Tensor) -> Tensor:
            if self.depth:
                return x * 2
            twin = copy.deepcopy(self)
            twin.depth = 1
            return twin(x)

    same_as_bare(Copied(), torch.ones(2))


@pytest.mark.parametrize("view", [lambda z: z[::2].conj(), lambda z: z.conj(), lambda z: z.conj().imag])
def test_conjugate_and_negative_inputs_keep_their_values(view: Any) -> None:
    z = torch.randn(4, dtype=torch.complex64)
    trace = tl.trace(lambda a, b: a * 1 + b.sum() * 0, [view(z), z])
    assert torch.equal(trace.output, view(z) * 1)


def test_a_device_context_works_as_ever_after_a_capture() -> None:
    def forward(x: Tensor) -> Tensor:
        with torch.device("meta"):
            return x + torch.zeros(2, device="cpu")

    tl.trace(forward, torch.ones(2))
    with torch.device("meta"):
        assert torch.zeros(1).device.type == "meta"


def test_what_the_forward_binds_is_the_original_afterwards() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.act = F.gelu
        self.other = torch.tanh
        return self.act(x)

    model = Body(forward, other=torch.relu)
    tl.trace(model, torch.ones(2))
    assert model.act is F.gelu
    assert model.other is torch.tanh


def test_compiling_inside_a_capture_stays_eager() -> None:
    trace = tl.trace(lambda x: torch.compile(lambda y: torch.relu(y) + 1)(x), torch.ones(2))
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["relu", "__add__"]


def test_nothing_stays_on_tensors_kept_deep_inside() -> None:
    store: dict[str, Any] = {}

    def forward(self: Any, x: Tensor) -> Tensor:
        y = x * 2
        store["deep"] = [{"y": y}, (y + 1,)]
        return y

    tl.trace(Body(forward), torch.ones(2))
    assert not vars(store["deep"][0]["y"])
    assert not vars(store["deep"][1][0])


def test_containers_of_any_kind_are_copied_for_the_model() -> None:
    import collections

    t = torch.ones(2)
    tl.trace(lambda d: d[0].add_(1) * 1, [collections.deque([t])])
    assert t.tolist() == [1, 1]


def test_a_list_that_holds_itself_is_handed_on() -> None:
    x = torch.ones(2)
    held: list[Any] = [x]
    held.append(held)
    assert tl.trace(lambda given: given[0] * 2, [held]).output.tolist() == [2, 2]
    tl.trace(lambda given: [given * 2, *[held] * 8], x)


def test_wrapped_may_end_inside_a_capture() -> None:
    original = torch.relu
    context = tl.wrapped()
    context.__enter__()
    tl.trace(lambda x: (context.__exit__(None, None, None), x * 2)[1], torch.ones(2))
    assert torch.relu is original


def test_a_mode_of_the_users_around_the_capture_sees_the_model_only() -> None:
    from torch.overrides import TorchFunctionMode

    class Count(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.seen += 1
            return func(*args, **(kwargs or {}))

    model, x = nn.ReLU(), torch.ones(2)
    with Count():
        model(x)
        bare, Count.seen = Count.seen, 0
        tl.trace(model, x, save=[])
    assert Count.seen == bare


def test_a_dispatch_mode_of_the_users_does_not_record_our_copies() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Hand(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def forward(self: Any, x: Tensor) -> Tensor:
        with Hand():
            return self.bn(x)

    trace = tl.trace(Body(forward, bn=nn.BatchNorm1d(2)).eval(), torch.ones(3, 2))
    trace.check_metadata_invariants()
    assert "clone" not in {op.func_name for op in trace.ops}


def test_memory_exchanged_by_set_is_followed() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = torch.zeros(2)
        y.set_(x)
        x.add_(1)
        return y * 1

    trace = tl.trace(Body(forward), torch.ones(2))
    assert trace.ops["set_1_2"].out.tolist() == [1, 1]
    assert trace.ops["mul_1_4"].parents == ("add_1_3",)


def test_memory_shared_with_numpy_is_copied_when_it_is_kept() -> None:
    import numpy

    def forward(self: Any, x: Tensor) -> Tensor:
        outside = numpy.ones(2, dtype=numpy.float32)
        made = torch.from_numpy(outside)
        y = x * 2
        window = y.numpy()
        z = y.view(-1)
        outside[:] = 9
        window[:] = 7
        return z + made

    trace = tl.trace(Body(forward), torch.ones(2))
    assert trace["fromnumpy_1_1"].out.tolist() == [1, 1]
    assert trace["mul_1_2"].out.tolist() == [2, 2]
    assert trace["view_1_3"].out.tolist() == [2, 2]


def test_data_put_into_a_weight_is_where_its_readers_come_from() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.fc.weight.data = torch.sign(self.fc.weight.data)
        return self.fc(x)

    trace = same_as_bare(Body(forward, fc=nn.Linear(2, 2)), torch.ones(1, 2))
    assert "sign_1_2" in trace.ops["linear_1_3"].parents


def test_a_buffer_written_through_a_view_has_a_new_version() -> None:
    class Counts(nn.Module):
        b: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.b[:1].add_(5)
            return self.b + x

    trace = same_as_bare(Counts(), torch.ones(2))
    assert trace["b:2"].out.tolist() == [5, 0]


def test_the_real_part_written_is_a_call() -> None:
    def forward(self: Any, z: Tensor, x: Tensor) -> Tensor:
        y = z * 1
        y.real = x
        return y.abs()

    trace = same_as_bare(Body(forward), torch.ones(2, dtype=torch.complex64), torch.zeros(2))
    assert trace.ops["abs_1_3"].parents == ("setreal_1_2",)


def test_every_caught_failure_is_told() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(5):
            with contextlib.suppress(RuntimeError):
                x @ torch.ones(7, 7)
        return x * 1

    trace = tl.trace(Body(forward), torch.ones(2, 2))
    assert sum(type(one.event).__name__ == "OpRaised" for one in trace.events()) == 5


def test_printing_a_tensor_is_no_part_of_the_model() -> None:
    trace = tl.trace(lambda x: (str(x), repr(x), f"{x.sum()}", x * 2)[-1], torch.ones(2))
    assert [op.func_name for op in trace.ops if op.is_compute_op] == ["sum", "__mul__"] or trace.ops.labels == (
        "input_1",
        "sum_1_1",
        "mul_1_2",
        "output_1",
    )


def test_a_method_that_calls_the_model_has_the_calls_as_its_own() -> None:
    class Steps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

        def run(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self(x)
            return x

    trace = tl.trace(Steps().run, torch.ones(2))
    assert trace.module_calls.labels == ("self:1", "self:2", "self:3", "self:4")


def test_an_exception_that_cannot_say_itself_still_gives_a_partial_trace() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def forward(self: Any, x: Tensor) -> Tensor:
        torch.relu(x)
        raise Silent

    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(Body(forward), torch.ones(2))
    assert raised.value.partial_trace is not None
    assert raised.value.partial_trace.ops.labels == ("input_1", "relu_1_1")


def test_a_forked_child_in_the_forward_is_not_recorded(tmp_path: Any) -> None:
    import os

    def forward(self: Any, x: Tensor) -> Tensor:
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.relu(torch.ones(2)).sum() == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        return x * 2

    trace = tl.trace(Body(forward), torch.ones(2), journal=tmp_path / "run.journal")
    assert trace.ops.labels == ("input_1", "mul_1_1", "output_1")
    trace.cleanup()


def test_a_child_forked_beside_a_capture_can_capture(tmp_path: Any) -> None:
    script = """
        import os, threading, torch, torchlens as tl
        started, leave = threading.Event(), threading.Event()
        class Slow(torch.nn.Module):
            def forward(self, x):
                started.set()
                leave.wait()
                return torch.relu(x)
        worker = threading.Thread(target=lambda: tl.trace(Slow(), torch.ones(2)))
        worker.start()
        started.wait()
        child = os.fork()
        if child == 0:
            labels = tl.trace(torch.nn.Tanh(), torch.ones(2)).ops.labels
            os._exit(0 if labels == ("input_1", "tanh_1_1", "output_1") else 1)
        status = os.waitpid(child, 0)[1]
        leave.set()
        worker.join()
        raise SystemExit(status)
    """
    run(script)


def test_a_misspelt_keyword_is_told_what_it_looks_like() -> None:
    with pytest.raises(tl.TorchLensError, match="did you mean save=") as caught:
        tl.trace(nn.ReLU(), torch.ones(2), sav="all")
    assert caught.value.code == "trace_forward_kwargs_unrouted"


def test_an_option_given_as_a_keyword_is_told_where_it_stands() -> None:
    with pytest.raises(tl.TorchLensError) as caught:
        tl.trace(nn.ReLU(), torch.ones(2), raise_on_nan=True, dtype=torch.float16)
    assert caught.value.code == "trace_forward_kwargs_unrouted"
    assert "capture=tl.CaptureOptions(raise_on_nan=True)" in caught.value.remedy
    assert "save=tl.SaveOptions(dtype=torch.float16)" in caught.value.remedy


def test_a_model_that_raises_of_one_mapping_is_told_of_input_kwargs() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(nn.ReLU(), {"x": torch.ones(2)})
    assert "input_kwargs=mapping" in caught.value.remedy
