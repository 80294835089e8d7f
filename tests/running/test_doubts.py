"""What a run cannot compare, or must: a model that looks past its tensors' elements is never falsely verified."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, equal, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchlens as tl
from tests.running.comparing import REPLAYABLE, in_thread
from torchlens.errors import ConfigurationError

ONES, MINUS = torch.ones(2, 2), -torch.ones(2, 2)


def report_of(model: Any, captured_on: Tensor, run_on: Tensor, **options: Any) -> Any:
    """The report of a run, after the law: a run that is verified gives what the model gives."""
    trace = tl.trace(model, captured_on, capture=REPLAYABLE)
    result = trace.run(inputs=run_on, **options)
    if result.report.path_faithfulness == "verified":
        assert torch.equal(result.output, model(run_on))
    return result.report


def with_gradient() -> Tensor:
    x = MINUS.clone().requires_grad_()
    x.grad = torch.ones(2, 2)
    return x


def tagged() -> Tensor:
    x: Any = MINUS.clone()
    x.tag = 1
    return x  # type: ignore[no-any-return]  # tensors take any attribute


LOOKS_AT_ITS_INPUT: list[tuple[Callable[[Tensor], Any], Tensor, Tensor]] = [
    (lambda x: x.is_contiguous(), ONES, torch.arange(4.0).view(2, 2).t()),
    (lambda x: x.stride(0) == 1, torch.ones(1, 4), torch.ones(4, 1).t()),
    (lambda x: x.requires_grad, ONES, MINUS.clone().requires_grad_()),
    (lambda x: x.grad_fn is None, ONES, MINUS.clone().requires_grad_() * 1),
    (lambda x: isinstance(x, nn.Parameter), ONES, nn.Parameter(MINUS)),
    (lambda x: x.untyped_storage().size() == 16, ONES, torch.ones(4, 2)[1:3]),
    (lambda x: x.data_ptr() == 0, ONES, MINUS),
    (lambda x: x._is_view(), ONES, torch.arange(8.0).view(2, 2, 2)[1]),
    (lambda x: x.storage_offset() == 0, ONES, torch.arange(8.0).view(2, 2, 2)[1]),
    (lambda x: x._version == 0, ONES, MINUS.clone().add_(1)),
    (lambda x: x.is_leaf, ONES.clone().requires_grad_() * 1, MINUS.clone().requires_grad_()),
    (lambda x: x.grad is None, ONES.clone().requires_grad_(), with_gradient()),
    (lambda x: hasattr(x, "tag"), ONES, tagged()),
]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(("looks", "captured_on", "run_on"), LOOKS_AT_ITS_INPUT)
def test_an_input_of_another_form_is_run_but_not_verified(
    looks: Callable[[Tensor], Any], captured_on: Tensor, run_on: Tensor
) -> None:
    report = report_of(lambda x: x * (2 if looks(x) else 3), captured_on, run_on)
    assert (report.path_faithfulness, report.numeric_attestation) == ("unverifiable", "not_applicable")
    assert report.divergence is not None


def test_what_torch_does_only_when_asked_is_a_witness() -> None:
    plain = torch.ones(2, dtype=torch.complex64)
    with pytest.warns(tl.errors.TorchLensWarning, match="run_path_diverged"):
        assert report_of(lambda x: x * (2 if x.is_conj() else 3), plain, plain.conj()).path_faithfulness == "diverged"
    assert report_of(lambda x: x * (2 if x.is_conj() else 3), plain, plain * 2).path_faithfulness == "verified"


def printed(x: Tensor) -> str:
    to = io.StringIO()
    print(x, file=to)  # what a model does
    return to.getvalue()


def saved(x: Tensor) -> bytes:
    to = io.BytesIO()
    torch.save(x, to)
    return to.getvalue()


item, numpy, truth = torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.__bool__
BOUND = {"equal": torch._C._VariableFunctions.equal}

LOOKS_AT_ELEMENTS: list[Any] = [
    lambda x: f"{x[0, 0]:+.1f}" == "+1.0",
    lambda x: "-" in str(x),
    lambda x: "-" in repr(x),
    lambda x: "-" in printed(x),
    lambda x: x.untyped_storage()[3] == 63,
    lambda x: bytes(x[1:].untyped_storage())[3] == 63,
    lambda x: b"\x80?" in saved(x),
    lambda x: equal(x, x.abs()),
    lambda x: item(x[0, 0]) > 0,
    lambda x: numpy(x)[0, 0] > 0,
    lambda x: truth(x[0, 0] > 0),
    lambda x: BOUND["equal"](x, x.abs()),
    lambda x: np.from_dlpack(x)[0, 0] > 0,
    lambda x: x.clamp(min=0).to_sparse()._nnz() == 4,
    lambda x: torch._choose_qparams_per_tensor(x)[1] == 0,
    lambda x: torch.ops.aten._choose_qparams_per_tensor(x)[1] == 0,
    lambda x: torch.ops.aten._local_scalar_dense(x[0, 0] + 1j) == 1 + 1j,
    lambda x: torch.quantize_per_tensor_dynamic(x.clamp(min=-0.1), torch.quint8, False).q_scale() > 0.003,
    pytest.param(
        lambda x: torch.fbgemm_linear_quantize_weight(x)[3] < 0,
        marks=pytest.mark.skipif(
            "fbgemm" not in torch.backends.quantized.supported_engines, reason="only x86 gives numbers beside tensors"
        ),
    ),
]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:fbgemm_linear")
@pytest.mark.parametrize("looks", LOOKS_AT_ELEMENTS)
def test_text_and_memory_that_python_took_are_witnesses(looks: Callable[[Tensor], Any]) -> None:
    def model(x: Tensor) -> Tensor:
        return x * (2 if looks(x) else 3)

    trace = tl.trace(model, ONES, capture=REPLAYABLE)
    same = trace.run(inputs=ONES.clone())
    assert (same.report.path_faithfulness, same.report.numeric_attestation) == ("verified", "attested")
    with pytest.warns(tl.errors.TorchLensWarning, match="run_path_diverged"):
        assert trace.run(inputs=MINUS).report.path_faithfulness == "diverged"


def late_array(x: Tensor) -> bool:
    y = torch.zeros(2, 2)
    held = y.numpy()
    y.copy_(x)
    return bool(held[0, 0] > 0)


def late_bytes(x: Tensor) -> bool:
    y = torch.zeros(2, 2)
    held = y.untyped_storage()
    torch.add(x, 0, out=y)
    return held[3] < 128


def late_buffer(x: Tensor) -> bool:
    held = bytearray(16)
    torch.frombuffer(held, dtype=torch.float32).view(2, 2).data.copy_(x)
    return held[3] < 128


def late_through_another(x: Tensor) -> bool:
    y = torch.zeros(2, 2)
    torch.as_tensor(y.numpy())
    y.copy_(x)
    return bool(y.numpy()[0, 0] > 0)


@pytest.mark.parametrize("looks", [late_array, late_bytes, late_buffer, late_through_another])
def test_memory_that_was_handed_out_and_then_written_is_looked_at_again(
    looks: Callable[[Tensor], bool],
) -> None:
    trace = tl.trace(lambda x: x * (2 if looks(x) else 3), ONES, capture=REPLAYABLE)
    same = trace.run(inputs=ONES.clone())
    assert (same.report.path_faithfulness, same.report.numeric_attestation) == ("verified", "attested")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.errors.TorchLensWarning)  # that it diverged, where it is read as an array
        report = trace.run(inputs=MINUS).report
    assert report.path_faithfulness != "verified"


def test_a_tensor_made_of_a_list_is_in_nobody_s_hands() -> None:
    assert report_of(lambda x: torch.as_tensor([[0.0, 0.0]]).repeat(2, 1).add_(x), ONES, MINUS).divergence is None
    assert report_of(lambda x: torch.as_tensor([0.0, 0.0]).add_(x[0]), ONES, MINUS).divergence is None


class Looking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))  # it may have looked at anything


class Adding(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) + 1


@pytest.mark.parametrize(
    ("mode", "is_watched"), [(Looking, False), (Adding, False), (lambda: torch.device("cpu"), True)]
)
def test_a_mode_that_may_make_another_thing_of_calls_leaves_a_run_unverified(mode: Any, is_watched: bool) -> None:
    def model(x: Tensor) -> Tensor:
        with mode():
            return torch.sin(x) + torch.zeros(2)

    report = report_of(model, ONES, MINUS)
    assert report.path_faithfulness == ("verified" if is_watched else "unverifiable")
    assert is_watched or report.divergence.code == "mode_of_its_own"


IN_ANOTHER_THREAD: list[Callable[[Tensor], Any]] = [
    lambda x: in_thread(x.sum().item) > 0,
    lambda x: in_thread(lambda: bool(x.sum() > 0)),
    lambda x: in_thread(lambda: x.numpy()[0, 0] > 0),
    lambda x: in_thread(lambda: torch.ops.aten.equal(x, x.abs())),
]


@pytest.mark.parametrize("looks", IN_ANOTHER_THREAD)
def test_what_another_thread_takes_leaves_a_run_unverified(looks: Callable[[Tensor], Any]) -> None:
    report = report_of(lambda x: x * (2 if looks(x) else 3), ONES, MINUS)
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "taken_elsewhere"


def test_what_another_thread_does_with_tensors_of_its_own_is_nothing_to_a_run() -> None:
    def model(x: Tensor) -> Tensor:
        in_thread(lambda: torch.ones(3).sum().item())
        return x * 2

    assert report_of(model, ONES, MINUS).path_faithfulness == "verified"


class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.sum() > 0:
            raise ValueError("positive")
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def test_a_caught_exception_of_code_that_cannot_be_called_leaves_a_run_unverified() -> None:
    def model(x: Tensor) -> Tensor:
        try:
            return Picky.apply(x)
        except ValueError:
            return x - 1

    report = report_of(model, ONES, MINUS)
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "outcome_not_asked"


def test_an_exception_that_a_mode_brought_about_is_asked_for_in_that_mode() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                y = torch.tanh(x)
            try:
                return y @ self.w
            except RuntimeError:  # it cannot be saved for the backward
                return x - 1

    model = Model()
    trace = tl.trace(model, ONES, capture=REPLAYABLE)
    assert trace.run(inputs=MINUS).report.path_faithfulness == "verified"


def test_what_a_tensor_says_of_itself_is_asked_again() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            y = x.clone().add_(1)
            as_new = y._version == 1 and y[1:].storage_offset() == 2 and y._base is None and self.w.grad is None
            return y * (2 if as_new else 3) * self.w

    model = Model()
    trace = tl.trace(model, ONES, capture=REPLAYABLE)
    assert torch.equal(trace.run(inputs=MINUS).output, model(MINUS))
    assert trace.run(inputs=MINUS).report.path_faithfulness == "verified"
    model(ONES).sum().backward()
    report = trace.run(inputs=MINUS).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "memory_looked_at"


def test_a_copy_that_python_made_is_no_witness() -> None:
    assert report_of(lambda x: copy.deepcopy(x) * 2, ONES, MINUS).path_faithfulness == "verified"


def test_another_mode_around_a_run_leaves_it_unverified() -> None:
    trace = tl.trace(lambda x: x * 2 if torch.is_grad_enabled() else x * 3, ONES, capture=REPLAYABLE)
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            report = trace.run(inputs=ONES).report
        assert (report.path_faithfulness, report.numeric_attestation) == ("unverifiable", "not_applicable")
        assert report.divergence is not None
        assert report.divergence.code == "ambient_mode_differs"
    assert trace.run(inputs=ONES).report.numeric_attestation == "attested"


def test_another_default_or_another_dtype_of_autocast_leaves_a_run_unverified() -> None:
    trace = tl.trace(lambda x: x + torch.zeros(2), ONES, capture=REPLAYABLE)
    with torch.autocast("cpu", torch.bfloat16):
        cast = tl.trace(lambda x: x @ x, ONES, capture=REPLAYABLE)
        assert cast.run(inputs=ONES).report.numeric_attestation == "attested"
    found = []
    with torch.autocast("cpu", torch.float16):
        found.append(cast.run(inputs=ONES).report)
    with torch.device("meta"):
        found.append(trace.run(inputs=ONES).report)
    torch.set_default_dtype(torch.float64)
    try:
        found.append(trace.run(inputs=ONES).report)
    finally:
        torch.set_default_dtype(torch.float32)
    for report in found:
        assert (report.path_faithfulness, report.numeric_attestation) == ("unverifiable", "not_applicable")
        assert report.divergence is not None
        assert report.divergence.code == "ambient_mode_differs"
    assert trace.run(inputs=ONES).report.numeric_attestation == "attested"


SIX = torch.ones(6)


@pytest.mark.parametrize(
    ("captured_on", "run_on", "is_same"),
    [
        ([SIX[:3], SIX[:3]], [SIX[:3], SIX[:3]], True),
        ([SIX[:3], SIX[1:4]], [SIX[1:4], SIX[2:5]], True),
        ([SIX[:3], SIX[:3]], [torch.ones(3), torch.ones(3)], False),
        ([SIX[:3], SIX[:3]], [SIX[:3], SIX[1:4]], False),
        ([torch.ones(3), torch.ones(3)], [SIX[:3], SIX[1:4]], False),
        ([torch.ones(3), torch.ones(3)], [SIX[:3], SIX[3:]], False),  # another untyped_storage() each
    ],
)
def test_inputs_that_share_memory_otherwise_are_not_verified(
    captured_on: list[Tensor], run_on: list[Tensor], is_same: bool
) -> None:
    trace = tl.trace(lambda a, b: a.add_(1) + b, captured_on, capture=REPLAYABLE)
    report = trace.run(inputs=run_on).report
    assert report.path_faithfulness == ("verified" if is_same else "unverifiable")
    assert report.numeric_attestation == ("attested" if is_same else "not_applicable")
    assert is_same or (report.divergence is not None and report.divergence.code == "input_form_differs")


class Config:
    scale = 2.0


@pytest.mark.parametrize("extra", [Config(), lambda x: x, np.ones(3), np.longdouble(1), b"abc", [0] * 5000])
def test_an_argument_that_a_capture_keeps_in_part_alone_is_not_verified(extra: Any) -> None:
    trace = tl.trace(lambda x, extra: x * 2, [ONES, extra], capture=REPLAYABLE)
    report = trace.run(inputs=[ONES, extra]).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "input_not_compared"
    plain = tl.trace(lambda x, extra: x * 2, [ONES, torch.relu], capture=REPLAYABLE)
    assert plain.run(inputs=[ONES, torch.relu]).report.path_faithfulness == "verified"


def test_a_live_model_that_was_put_into_evaluation_leaves_a_run_unverified() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    trace = tl.trace(model, ONES, capture=REPLAYABLE)
    model[1].eval()
    report = trace.run(inputs=ONES).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert (report.divergence.code, report.divergence.problem.split()[0]) == ("training_differs", "1")
    model.train()
    assert trace.run(inputs=ONES).report.path_faithfulness == "verified"
    trace.load_state_dict(model.eval().state_dict())  # the captured code with other weights: the model is not asked
    assert trace.run(inputs=ONES).report.path_faithfulness == "verified"


def seeds_itself(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x + torch.rand(2, 2)


def forks(x: Tensor) -> Tensor:
    y = x + torch.rand(2, 2)
    with torch.random.fork_rng():
        y = y + torch.rand(2, 2)
    return y + torch.rand(2, 2)


@pytest.mark.parametrize("model", [seeds_itself, forks])
def test_a_model_that_sets_a_generator_is_verified_with_recorded_draws_alone(model: Callable[[Tensor], Tensor]) -> None:
    with torch.random.fork_rng():
        trace = tl.trace(model, ONES, capture=REPLAYABLE)
        report = trace.run(inputs=MINUS).report
        assert report.path_faithfulness == "unverifiable"
        assert report.divergence is not None
        assert report.divergence.code == "generator_was_set"
        recorded = trace.run(inputs=ONES, draws="recorded")
    assert (recorded.report.path_faithfulness, recorded.report.numeric_attestation) == ("verified", "attested")


def test_a_model_that_draws_as_it_comes_sets_no_generator() -> None:
    own = torch.Generator().manual_seed(1)

    def model(x: Tensor) -> Tensor:
        y = nn.functional.dropout(x) + torch.rand(2, 2, generator=own) + torch.empty(2, 2).uniform_()
        own.manual_seed(1)
        return y + torch.rand(2, 2, generator=own) + torch.bernoulli(torch.full((2, 2), 0.5)) + torch.randn(2, 2)

    trace = tl.trace(nn.Sequential(nn.LSTM(2, 2, 2, dropout=0.5)), ONES[None], capture=REPLAYABLE)
    assert trace.run(inputs=ONES[None]).report.path_faithfulness == "verified"
    assert tl.trace(model, ONES, capture=REPLAYABLE).run(inputs=MINUS).report.path_faithfulness == "verified"


@pytest.mark.parametrize("seed", ["a", -1, 2**70, True, 1.0])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    trace = tl.trace(nn.ReLU(), ONES, capture=REPLAYABLE)
    with pytest.raises(ConfigurationError) as refused:
        trace.run(inputs=ONES, seed=seed)
    assert (refused.value.code, refused.value.fields["argument"]) == ("option_value_invalid", "seed")


def test_random_weights_are_drawn_from_the_generator_as_it_stands(tmp_path: Any) -> None:
    trace = tl.trace(nn.Linear(2, 2), ONES, capture=REPLAYABLE)
    trace.save(tmp_path / "a.tlspec", level="runnable")
    loaded = tl.load(tmp_path / "a.tlspec")
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore", tl.errors.TorchLensWarning)  # that they are random
        torch.manual_seed(0)
        one, other = (loaded.run(inputs=ONES).output for _ in range(2))
        torch.manual_seed(0)
        again = loaded.run(inputs=ONES).output
        state = torch.get_rng_state()
        seeded = [loaded.run(inputs=ONES, seed=1).output for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(*seeded)
