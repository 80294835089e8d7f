"""Running a capture: the worked example, what a run is held to, what it takes and leaves alone, and each refusal."""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from projections.columnar.arguments import is_whole
from tests.running.comparing import REPLAYABLE, assert_same, in_thread
from tests.torchlens.models import Double, refusal
from torchlens.capture.template import encode
from torchlens.errors import (
    CaptureOutcomeError,
    ConfigurationError,
    PathDivergenceError,
    RunCapabilityUnavailableError,
    StateBindingError,
    TorchLensWarning,
)
from torchlens.replay.arguments import argument
from torchlens.running import Structure, preflight


def captured(model: Any, *args: Any, **options: Any) -> tl.Trace:
    return tl.trace(model, list(args), capture=REPLAYABLE, **options)


class Net(nn.Module):
    """Has parameters, a buffer that it writes, one that no state dict holds, a constant, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("offsets", torch.arange(4.0), persistent=False)
        self.table = torch.linspace(0.0, 1.0, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        y = self.norm(self.first(x)) + self.offsets * self.table
        y[0].mul_(scale)
        return {"y": y * 2 if y.sum() > -1e9 else y, "parts": (y.max(0), [y.mean()])}


def test_a_run_within_another_capture_is_one_op_of_it(tmp_path: Path) -> None:
    inner = nn.Linear(4, 4)
    captured(inner, torch.ones(3, 4)).save(tmp_path / "inner.tlspec", level="runnable", include_weights=True)

    def model(x: Tensor) -> Any:
        return tl.load(tmp_path / "inner.tlspec").run(inputs=x * 2).output + 1

    trace = captured(model, torch.ones(3, 4))
    assert [op.label for op in trace.ops] == ["input_1", "mul_1_1", "run_1_2", "add_1_3", "output_1"]
    assert torch.equal(trace.output, inner(torch.full((3, 4), 2.0)) + 1)
    (found,) = trace.readiness.diagnostics
    assert (found.code, (found.place or "").endswith("model")) == ("missing_callable_ref", True)


@pytest.fixture(scope="module")
def net() -> tuple[Net, tl.Trace]:
    torch.manual_seed(0)
    model = Net()
    return model, captured(model, torch.randn(3, 4))


def test_a_run_gives_what_the_model_gives_and_leaves_the_model_alone(net: tuple[Net, tl.Trace]) -> None:
    model, trace = net
    x = torch.randn(3, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = trace.run(inputs=x)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert result.report.path_faithfulness == "verified"
    assert result.report.state_source == "live_model_state"
    assert set(result.buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert_same(result.output, model(x))
    assert all(torch.equal(held, model.state_dict()[name]) for name, held in result.buffers.items())


def test_gradients_of_a_run_reach_the_model_and_the_caller(net: tuple[Net, tl.Trace]) -> None:
    model, trace = net
    x = torch.randn(3, 4, requires_grad=True)
    weights = torch.randn(3, 4)
    wanted = torch.autograd.grad((model(x)["y"] * weights).sum(), [x, model.first.weight])
    found = torch.autograd.grad((trace.run(inputs=x).output["y"] * weights).sum(), [x, model.first.weight])
    assert all(map(torch.equal, found, wanted))


def test_a_run_under_no_grad_makes_no_graph(net: tuple[Net, tl.Trace]) -> None:
    with torch.no_grad():
        assert not net[1].run(inputs=torch.randn(3, 4)).output["y"].requires_grad


def test_a_run_of_what_the_capture_was_given_is_attested() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    trace = captured(model, torch.randn(3, 4))
    assert trace.run(draws="recorded").report.numeric_attestation == "attested"
    assert trace.run().report.numeric_attestation == "not_applicable"
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert trace.run(draws="recorded").report.numeric_attestation == "not_applicable"


def test_draws_are_fresh_seeded_or_recorded() -> None:
    model = nn.Dropout(0.5)
    x = torch.ones(64)
    trace = captured(model, x)
    one, other = trace.run(inputs=x), trace.run(inputs=x)
    assert not torch.equal(one.output, other.output)
    assert one.report.draws == "fresh"
    state = torch.get_rng_state()
    assert torch.equal(trace.run(inputs=x, seed=3).output, trace.run(inputs=x, seed=3).output)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(trace.run(inputs=x, draws="recorded").output, trace.output)
    assert captured(nn.ReLU(), x).run(inputs=x).report.draws is None


def test_seeded_runs_in_several_threads_draw_as_each_does_alone() -> None:
    trace = captured(nn.Sequential(*(nn.Dropout(0.5) for _ in range(20))), torch.ones(64))
    wanted = [trace.run(inputs=torch.ones(64), seed=seed, fast=True).output for seed in range(4)]
    state = torch.get_rng_state()

    def runs(seed: int) -> bool:
        found = [trace.run(inputs=torch.ones(64), seed=seed, fast=True).output for _ in range(10)]
        return all(torch.equal(one, wanted[seed]) for one in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(runs, range(4)))
    assert torch.equal(torch.get_rng_state(), state)


# -- witnesses


def by_truth(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def by_item(x: Tensor) -> Tensor:
    return x * round(x[0].item())


def by_answer(x: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, torch.ones(3)) else x


def by_array(x: Tensor) -> Tensor:
    return x * float(np.median(x.numpy()))


def by_exception(x: Tensor) -> Tensor:
    try:
        return x.new_ones(2, 2)[x.long()[0]]
    except IndexError:
        return x


def by_exception_of_python_code(x: Tensor) -> Tensor:
    try:
        return nn.functional.cross_entropy(torch.zeros(3, 5), x.long()) + x
    except IndexError:
        return x - 1


def by_exception_of_a_number(x: Tensor) -> Tensor:
    try:
        return x * int((7 / (x - 7))[0])
    except OverflowError:
        return x


def by_assertion(x: Tensor) -> Tensor:
    try:
        torch._assert_async(x[0] < 7)
    except RuntimeError:
        return x
    return x * 2


@pytest.mark.parametrize(
    ("function", "x", "code"),
    [
        (by_exception_of_python_code, torch.full((3,), 7.0), "call_outcome_divergence"),
        (by_exception_of_a_number, torch.full((3,), 7.0), "call_outcome_divergence"),
        (by_assertion, torch.full((3,), 7.0), "call_outcome_divergence"),
        (by_truth, torch.ones(3), "scalar_bool_divergence"),
        (by_item, torch.ones(3), "taken_value_divergence"),
        (by_answer, torch.ones(3), "taken_value_divergence"),
        (by_array, torch.ones(3), "taken_value_divergence"),
        (by_exception, torch.full((3,), 7.0), "call_outcome_divergence"),
    ],
)
def test_what_python_took_is_taken_again_and_a_difference_is_told_with_its_place(
    function: Callable[[Tensor], Tensor], x: Tensor, code: str
) -> None:
    trace = captured(function, x)
    same = trace.run(inputs=x.clone(), strict=True)
    assert same.report.path_faithfulness == "verified"
    assert torch.equal(same.output, function(x))
    other = -x if code != "call_outcome_divergence" else torch.ones(3)
    with pytest.warns(TorchLensWarning, match="run_path_diverged"):
        found = trace.run(inputs=other).report
    assert found.path_faithfulness == "diverged"
    assert found.divergence is not None
    assert (found.divergence.code, (found.divergence.place or "").split()[-1]) == (code, function.__name__)
    assert refusal(lambda: trace.run(inputs=other, strict=True), PathDivergenceError) == code


def installed(x: Tensor, depth: int) -> Tensor:
    if depth:
        return installed(x, depth - 1)
    return x * 2 if x.sum() > 0 else x - 1


def test_a_difference_far_inside_installed_code_is_told_at_the_line_that_called_that_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def model(x: Tensor) -> Tensor:
        return installed(x, 80)

    code = installed.__code__.replace(co_filename="/env/site-packages/deep.py")
    monkeypatch.setattr(installed, "__code__", code)
    trace = captured(model, torch.ones(3))
    with pytest.warns(TorchLensWarning, match="run_path_diverged"):
        found = trace.run(inputs=-torch.ones(3)).report.divergence
    assert found is not None
    line = model.__code__.co_firstlineno + 1
    assert found.place == f"test_running.py:{line} in {model.__qualname__}"


class Drawing(nn.Module):
    """Draws from a generator of NumPy's of its own."""

    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.generator, self.draws = generator, True

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.generator.uniform()) if self.draws else x * 2


def test_a_size_that_depends_on_values_and_numbers_of_python_s_own_cannot_be_verified() -> None:
    trace = captured(lambda x: x[x > 0].sum(), torch.tensor([1.0, -1.0]))
    report = trace.run(inputs=torch.tensor([1.0, 2.0])).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert trace.run(inputs=torch.tensor([3.0, -2.0])).report.path_faithfulness == "verified"
    of_its_own = random.Random(3)
    for draw in (np.random.rand, random.random, lambda: of_its_own.random(), lambda: of_its_own.randint(1, 9)):
        drawn = captured(lambda x, draw=draw: x * float(draw()), torch.ones(2))  # as models do
        report = drawn.run(inputs=torch.ones(2)).report
        assert (report.path_faithfulness, report.divergence.code) == ("unverifiable", "numbers_were_drawn")
    for made in (np.random.default_rng(3), np.random.RandomState(3)):  # models have both
        model = Drawing(made)
        trace = captured(nn.Sequential(model), torch.ones(2))
        report = trace.run(inputs=torch.ones(2)).report
        assert (report.path_faithfulness, report.divergence.code) == ("unverifiable", "numbers_were_drawn")
        model.draws = False
        trace = captured(model, torch.ones(2))
        assert trace.run(inputs=torch.ones(2)).report.path_faithfulness == "verified"


def test_torch_has_its_own_methods_back_after_the_capture(net: tuple[Net, tl.Trace]) -> None:
    assert not {"item", "tolist", "__int__", "__float__", "equal", "_version", "grad", "is_leaf"} & vars(Tensor).keys()
    assert torch.equal is torch._C._VariableFunctions.equal
    assert not {"random", "getrandbits"} & vars(random.Random).keys()


# -- containers


Pair = namedtuple("Pair", "left right")  # as untyped code has them


@dataclasses.dataclass
class Answer:
    logits: Tensor
    note: str
    hidden: list[Tensor]


class Cache:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


def in_containers(x: Tensor) -> Any:
    y = x + 1
    return OrderedDict(
        answer=Answer(y, "seven", [x * 2]), pair=Pair(x * 3, {"n": 4}), best=x.max(0), cache=Cache(y * 5)
    )


def test_results_come_back_in_their_containers_and_foreign_classes_as_structures() -> None:
    x = torch.randn(3, 2)
    trace = captured(in_containers, x)
    other = torch.randn(3, 2)
    found, wanted = trace.run(inputs=other).output, in_containers(other)
    assert type(found) is OrderedDict
    answer = found["answer"]
    assert isinstance(answer, Structure)
    assert answer._class_path.endswith("Answer")
    assert (answer.note, answer["note"], answer[1], len(answer)) == ("seven",) * 3 + (3,)
    assert torch.equal(answer.hidden[0], wanted["answer"].hidden[0])
    assert type(found["best"]) is torch.return_types.max
    left, right = found["pair"]
    assert torch.equal(left, wanted["pair"].left)
    assert right == {"n": 4}
    assert torch.equal(found["cache"].keys, wanted["cache"].keys)
    with pytest.raises(AttributeError, match="Answer"):
        _ = answer.absent


# -- inputs


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        (torch.randn(2, 4), "input_shape_mismatch"),
        (torch.randn(3, 4).double(), "input_dtype_mismatch"),
        (torch.randn(3, 4, device="meta"), "input_device_mismatch"),
        ([torch.randn(3, 4), 2.0], "input_tree_mismatch"),
        ({"x": torch.randn(3, 4)}, "input_tree_mismatch"),
        (torch.randn(3, 4).to_sparse(), "input_tree_mismatch"),
        (3, "input_tree_mismatch"),
    ],
)
def test_inputs_of_another_form_are_refused(net: tuple[Net, tl.Trace], inputs: Any, code: str) -> None:
    assert refusal(lambda: net[1].run(inputs=inputs), PathDivergenceError) == code


def test_plain_arguments_and_keywords_belong_to_the_contract() -> None:
    model, x = Net(), torch.randn(3, 4)
    trace = tl.trace(model, torch.randn(3, 4), {"scale": 2.0}, capture=REPLAYABLE)
    assert trace.run(inputs=x, input_kwargs={"scale": 2.0}).report.path_faithfulness == "verified"
    for given in ({"scale": 3.0}, {}, {"scale": 2.0, "other": 1}):
        with pytest.raises(PathDivergenceError) as refused:
            trace.run(inputs=x, input_kwargs=given)
        assert refused.value.code == "input_tree_mismatch"


def test_inputs_that_share_memory_are_not_written() -> None:
    x = torch.zeros(4)
    trace = captured(lambda a, b: a.add_(1) + b, x, x[:])
    given = torch.zeros(4)
    assert torch.equal(trace.run(inputs=[given, given[:]]).output, torch.full((4,), 2.0))
    assert torch.equal(given, torch.zeros(4))


def test_without_inputs_the_capture_s_own_are_taken_if_they_were_kept() -> None:
    x = torch.randn(3)
    assert torch.equal(captured(nn.ReLU(), x).run().output, x.relu())
    unkept = captured(nn.ReLU(), x, save="none")
    assert refusal(unkept.run, ConfigurationError) == "run_input_missing"


def test_a_call_that_raises_for_these_inputs_is_told_with_its_cause() -> None:
    trace = captured(nn.Embedding(4, 2), torch.tensor([1, 3]))
    with pytest.raises(PathDivergenceError) as refused:
        trace.run(inputs=torch.tensor([1, 9]))
    assert refused.value.code == "run_call_raised"
    assert isinstance(refused.value.__cause__, IndexError)


def test_another_number_of_results_ends_a_run() -> None:
    unbound = captured(lambda x: torch.stack(x[x > 0].unbind()), torch.tensor([1.0, -1.0, 2.0]))
    with pytest.raises(PathDivergenceError) as refused:
        unbound.run(inputs=torch.tensor([1.0, 1.0, 2.0]))
    assert refused.value.code == "call_structure_mismatch"


def test_options_are_checked(net: tuple[Net, tl.Trace]) -> None:
    x = torch.randn(3, 4)
    for option in ({"draws": "none"}, {"strict": "no"}, {"fast": 1}):
        assert refusal(lambda given=option: net[1].run(inputs=x, **given), ConfigurationError) == "option_value_invalid"
    assert refusal(lambda: net[1].run(Net(), x), ConfigurationError) == "option_not_available"


# -- state


def test_a_state_dict_is_taken_strictly(net: tuple[Net, tl.Trace]) -> None:
    model, trace = net
    state = model.state_dict()

    def code(**changes: Any) -> str:
        given = {name: tensor for name, tensor in {**state, **changes}.items() if tensor is not None}
        return refusal(lambda: trace.load_state_dict(given), StateBindingError)

    assert code(**{"first.weight": None}) == "state_missing_key"
    assert code(**{"first.other": torch.ones(1)}) == "state_unexpected_key"
    assert code(**{"first.bias": torch.ones(5)}) == "state_shape_mismatch"
    assert code(**{"first.bias": torch.ones(4).double()}) == "state_dtype_mismatch"
    assert refusal(lambda: trace.load_state_dict([1]), StateBindingError) == "state_dict_type_invalid"  # type: ignore[arg-type]  # the point
    assert code(**{"first.bias": np.ones(4, np.float32)}) == "state_dict_type_invalid"
    other = Net()
    x = torch.randn(3, 4)
    given = other.state_dict()
    trace.load_state_dict(given)
    result = trace.run(inputs=x)
    assert result.report.state_source == "user_state_dict"
    wanted = other(x)
    assert_same(result.output, wanted)
    for tensor in given.values():
        tensor.zero_()
    assert_same(trace.run(inputs=x).output, wanted)
    trace.load_state_dict(other.state_dict(keep_vars=True))
    assert torch.autograd.grad(trace.run(inputs=x).output["y"].sum(), [other.first.weight])[0].shape == (4, 4)
    trace.load_state_dict(None)
    assert trace.run(inputs=x).report.state_source == "live_model_state"


def test_a_reopened_capture_runs_with_a_state_dict_and_at_random_without(tmp_path: Path) -> None:
    model = Net()
    x = torch.randn(3, 4)
    tl.trace(model, x, save="none", journal=tmp_path / "j", capture=REPLAYABLE).cleanup()
    trace = tl.load(tmp_path / "j")
    assert trace.readiness.state_sources == ("random_initialization",)
    with pytest.warns(TorchLensWarning, match="runnable_random_init_run"):
        assert trace.run(inputs=x, seed=1).report.state_source == "random_initialization"
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace.load_state_dict(state)
    assert_same(trace.run(inputs=x).output, model(x))
    trace.cleanup()


def test_without_its_model_a_live_capture_is_not_run() -> None:
    trace = tl.trace(nn.Linear(2, 2), torch.ones(1, 2), capture=tl.CaptureOptions(replayable=True, inference_only=True))
    assert refusal(lambda: trace.run(inputs=torch.ones(1, 2)), RunCapabilityUnavailableError) == (
        "run_source_model_collected"
    )


# -- what cannot be run


def behind_torch(x: Tensor) -> Tensor:
    y = x * 2
    y.numpy()[0] = 7
    return y + 1


def by_another_thread(x: Tensor) -> Tensor:
    y = x * 2
    in_thread(lambda: y.add_(1))
    return y + 1


class Exchanging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = x * 2
        return self.weight + x


class Odd(Tensor):
    pass


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (lambda x: Double.apply(x), "missing_callable_ref"),
        (lambda x: torch.vmap(torch.sin)(x), "missing_callable_ref"),
        (behind_torch, "hidden_write"),
        (by_another_thread, "hidden_write"),
        (Exchanging(), "memory_exchanged"),
        (lambda x: x[[0] * 2000], "argument_not_kept"),
        (lambda x: x.as_subclass(Odd) + 1, "tensor_subclass"),
        (lambda x: (x + 1, b"some"), "result_not_kept"),
    ],
)
def test_what_cannot_be_run_is_found_before_it_is(model: Any, cause: str) -> None:
    trace = captured(model, torch.ones(3))
    found = preflight(trace)
    assert cause in {one.code for one in found}
    assert not trace.readiness
    with pytest.raises(RunCapabilityUnavailableError) as refused:
        trace.run(inputs=torch.ones(3))
    assert refused.value.code == "sparse_preflight_failed"
    assert refused.value.fields["diagnostics"] == tuple(found)


def test_a_capture_that_was_not_made_for_it_is_not_run() -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    assert [one.code for one in trace.readiness.diagnostics] == ["not_replayable"]
    assert refusal(lambda: trace.run(inputs=torch.ones(2)), RunCapabilityUnavailableError) == (
        "run_capability_unavailable"
    )
    halted = captured(nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(2), stop_after="0")
    assert [one.code for one in halted.readiness.diagnostics] == ["forward_not_returned"]


def test_arrays_and_long_lists_that_become_tensors_are_kept() -> None:
    numbers = list(range(2000))
    array = np.arange(3.0, dtype=np.float32)

    def model(x: Tensor) -> Tensor:
        return x + torch.tensor(numbers)[:3] + torch.from_numpy(array) + torch.as_tensor(array * 2)

    trace = captured(model, torch.ones(3))
    assert torch.equal(trace.run(inputs=torch.zeros(3)).output, model(torch.zeros(3)))


def test_a_default_capture_tells_nothing_of_this() -> None:
    trace = tl.trace(lambda x: x * x[0].item(), torch.ones(3))
    names = {type(stamped.event).__name__ for stamped in trace.journal.events(trace.stream)}
    assert not names & {"ValueTaken", "ConstantKept", "WrittenUnseen", "ForwardWitnessed"}


# -- artifacts


def test_only_a_whole_capture_is_saved_as_runnable(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3)
    halted = captured(model, x, stop_after="0")

    def code(trace: tl.Trace, of: type[tl.TorchLensError]) -> str:
        return refusal(lambda: trace.save(tmp_path / "a.tlspec", level="runnable"), of)

    assert code(halted, RunCapabilityUnavailableError) == "halted_capture_not_runnable"
    with pytest.raises(tl.TraceCaptureError) as failed:
        captured(lambda x: x @ torch.ones(5, 5), x)
    partial = failed.value.partial_trace
    assert partial is not None
    assert code(partial, CaptureOutcomeError) == "capture_incomplete"
    assert code(tl.trace(model, x), RunCapabilityUnavailableError) == "sparse_preflight_failed"
    assert not (tmp_path / "a.tlspec").exists()


def test_a_runnable_artifact_has_no_payloads_but_what_a_run_needs(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(3, 4)
    trace = captured(model, x)
    trace.save(tmp_path / "a.tlspec", level="runnable")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert not any(op.has_saved_activation for op in loaded.ops)
    assert loaded.readiness.provider == "artifact"
    loaded.load_state_dict(model.state_dict())
    assert_same(loaded.run(inputs=x).output, trace.run(inputs=x).output)
    assert refusal(loaded.run, ConfigurationError) == "run_input_missing"


def test_an_artifact_with_weights_runs_as_the_capture_did(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(3, 4)
    trace = captured(model, x)
    trace.save(tmp_path / "a.tlspec", level="runnable", include_weights=True)
    loaded = tl.load(tmp_path / "a.tlspec")
    assert loaded.readiness.state_sources == ("embedded_capture_state", "random_initialization")
    found = loaded.run(inputs=x)
    assert (found.report.state_source, found.report.numeric_attestation) == ("embedded_capture_state", "attested")
    assert_same(found.output, trace.output)


def test_parameters_lie_as_the_captured_ones_did(tmp_path: Path) -> None:
    model, x = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), torch.randn(1, 3, 8, 8)
    trace = captured(model, x)
    trace.save(tmp_path / "a.tlspec", level="runnable", include_weights=True)
    assert tl.load(tmp_path / "a.tlspec").run(inputs=x).report.numeric_attestation == "attested"
    assert torch.equal(tl.load(tmp_path / "a.tlspec").run(inputs=x).output, trace.output)


def test_an_artifact_of_another_level_is_not_run(tmp_path: Path) -> None:
    trace = captured(nn.ReLU(), torch.ones(3))
    trace.save(tmp_path / "a.tlspec")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert [one.code for one in loaded.readiness.diagnostics] == ["artifact_not_runnable"]
    assert refusal(lambda: loaded.run(inputs=torch.ones(3)), RunCapabilityUnavailableError) == (
        "run_capability_unavailable"
    )


# -- a run as a trace


def test_a_run_is_a_trace_with_its_own_values(net: tuple[Net, tl.Trace]) -> None:
    model, trace = net
    x = torch.randn(3, 4)
    told = trace.run(inputs=x).trace
    assert told.ops.labels == trace.ops.labels
    assert told.module_calls.labels == trace.module_calls.labels
    wanted = tl.trace(model, x)
    assert all(torch.equal(op.out, wanted.ops[op.label].out) for op in told.ops if op.has_saved_activation)
    assert told.check_metadata_invariants()
    assert [one.code for one in told.readiness.diagnostics] == ["trace_of_run"]
    for asked in (
        lambda: told.run(inputs=x),
        lambda: told.save("never.tlspec", level="runnable"),
        lambda: told.backward(trace.output["y"].sum()),
    ):
        assert refusal(asked, RunCapabilityUnavailableError) == "run_capability_unavailable"
    assert trace.run(inputs=x, fast=True).trace is None


def test_a_run_that_diverged_has_no_trace() -> None:
    trace = captured(by_truth, torch.ones(3))
    with pytest.warns(TorchLensWarning):
        assert trace.run(inputs=-torch.ones(3)).trace is None


@pytest.mark.parametrize("take", [bool, float, lambda of: of.item()])
def test_an_answer_that_a_tensor_gives_no_more_is_another_way(take: Callable[[Tensor], Any]) -> None:
    trace = captured(lambda x: x * 2 if take(x[x > 0]) else x - 1, torch.tensor([1.0, -1.0]))
    with pytest.warns(TorchLensWarning):
        report = trace.run(inputs=torch.ones(2)).report
    assert report.path_faithfulness == "diverged"
    assert report.divergence is not None
    assert report.divergence.code == "call_outcome_divergence"
    with pytest.raises(PathDivergenceError, match="call_outcome_divergence"):
        trace.run(inputs=torch.ones(2), strict=True)


def test_what_was_put_where_there_are_no_elements_is_not_run(tmp_path: Path) -> None:
    captured(nn.Linear(2, 2), torch.ones(2)).save(tmp_path / "a.tlspec", level="runnable", include_weights=True)
    trace = tl.load(tmp_path / "a.tlspec", map_location="meta")
    assert [one.code for one in trace.readiness.diagnostics] == ["constant_not_kept"]
    assert refusal(lambda: trace.run(inputs=torch.ones(2)), RunCapabilityUnavailableError) == "sparse_preflight_failed"


CUT_SHORT = (np.longdouble, np.clongdouble, np.timedelta64, np.datetime64)


def test_a_number_of_numpys_is_given_back_or_is_not_whole() -> None:
    kinds = {*np.sctypeDict.values()} - {np.object_, np.datetime64}
    odd = (np.float32(0.1), np.float16("nan"), np.complex64(0.1 - 0.3j), np.complex128(complex("-inf")))
    arrays = (np.array(1), np.array(1.5), np.array([1.0]), np.array(True))
    for value in (*(kind(1) for kind in kinds), *odd, *arrays, np.uint64(2**64 - 1)):
        template = encode(value, lambda _: None)
        if is_whole(template):
            again = argument(template, iter(()))
            assert again == value or (again != again and value != value)
            assert isinstance(value, type(again))
        else:
            assert isinstance(value, CUT_SHORT) or not isinstance(value, (np.bool_, np.number))


@pytest.mark.parametrize("number", [np.complex128(0.1 - 0.3j), np.longlong(3), np.bool_(True)])
def test_a_number_of_numpys_is_an_argument_like_others(number: Any) -> None:
    x = torch.ones(3, dtype=torch.complex128)
    trace = captured(lambda x: torch.mul(x, number), x)
    assert_same(trace.run(inputs=x).output, torch.mul(x, number))


@pytest.mark.parametrize(
    "model", [lambda x: x[np.array(1)], lambda x: (x, np.array(1.5)), lambda x: (x, np.longdouble(1))]
)
def test_what_numpy_has_no_whole_text_of_is_told_before_a_run(model: Any, tmp_path: Path) -> None:
    trace = captured(model, torch.ones(3))
    (told,) = trace.readiness.diagnostics
    assert told.code in ("argument_not_kept", "result_not_kept")
    asked = lambda: trace.save(tmp_path / "a.tlspec", level="runnable")  # noqa: E731  # short
    assert refusal(asked, RunCapabilityUnavailableError) == "sparse_preflight_failed"


def test_a_key_with_half_a_surrogate_pair_is_the_same_in_an_artifact(tmp_path: Path) -> None:
    trace = captured(lambda given: given["\udc80"] * 2, {"\udc80": torch.ones(2)})
    trace.save(tmp_path / "a.tlspec", level="runnable")
    for one in (trace, tl.load(tmp_path / "a.tlspec")):
        assert torch.equal(one.run(inputs=({"\udc80": torch.ones(2)},)).output, torch.full((2,), 2.0))
        assert refusal(lambda one=one: one.run(inputs=({"\udc81": torch.ones(2)},)), PathDivergenceError) == (  # type: ignore[misc]
            "input_tree_mismatch"
        )
    returned = captured(lambda x: {"\udc80": x}, torch.ones(2))
    assert [one.code for one in returned.readiness.diagnostics] == ["result_not_kept"]


def test_the_trace_of_a_run_is_one_wherever_it_is_read(net: tuple[Net, tl.Trace], tmp_path: Path) -> None:
    told = net[1].run(inputs=torch.randn(3, 4)).trace
    told.save(tmp_path / "a.tlspec")
    told.journal.copy_to(tmp_path / "j")
    for again in (tl.load(tmp_path / "a.tlspec"), tl.load(tmp_path / "j")):
        assert [one.code for one in again.readiness.diagnostics] == ["trace_of_run"]
        again.cleanup()


def test_what_an_artifact_was_saved_without_cannot_be_saved_from_it(tmp_path: Path) -> None:
    captured(nn.Dropout(), torch.ones(3)).save(tmp_path / "a.tlspec")
    loaded = tl.load(tmp_path / "a.tlspec")
    for strict in (True, False):
        with pytest.raises(tl.TorchLensError, match=r"level 'portable'.*\[payload_unavailable\]"):
            loaded.save(tmp_path / "b.tlspec", level="executable_with_callables", strict=strict)


def test_what_a_module_draws_while_it_is_imported_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "drawing_while_imported"
    (tmp_path / f"{name}.py").write_text("import random\nnumber = random.Random(1).random()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def model(x: Tensor) -> Tensor:
        importlib.import_module(name)
        return x * 2

    trace = tl.trace(model, torch.ones(2), capture=REPLAYABLE)
    assert sys.modules.pop(name).number > 0
    assert trace.run(inputs=torch.zeros(2)).report.path_faithfulness == "verified"
