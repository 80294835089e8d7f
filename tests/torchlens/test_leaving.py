"""A forward that is left, in whatever way: torch and the model are as they were, the trace says what happened."""

from __future__ import annotations

import copy
import gc
import queue
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.programs import PATIENCE
from torchlens import turns
from torchlens.capture import model as instrumented
from torchlens.capture.wrap import Wrappers, wrappers
from torchlens.undoing import undo

NAMES = ("relu", "tanh", "add", "compile")
METHODS = ("add", "__bool__", "numpy", "data")


def bare() -> tuple[Any, ...]:
    """What of torch and of this process a capture changes while it runs."""
    return (
        [getattr(torch, name) for name in NAMES],
        [getattr(torch.Tensor, name) for name in METHODS],
        {name: id(value) for name, value in vars(torch.nn.functional).items()},
        nn.Module._call_impl,
        nn.Linear.forward,
        sys.getrecursionlimit(),
        gc.isenabled(),
    )


# Everything is put back -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_a_scripted_submodule_with_buffers_is_captured_and_left_alone() -> None:
    before = bare()
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.BatchNorm1d(4)))
    held = type(model[1]._buffers)
    trace = tl.trace(model, torch.randn(3, 4))
    assert trace.ops.labels == ("input_1", "linear_1_1", "batchnorm1d_1_2", "output_1")
    assert type(model[1]._buffers) is held
    assert bare() == before


def test_a_lazy_module_with_buffers_is_captured_and_can_be_used_afterwards() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    trace = tl.trace(model, torch.randn(3, 4))
    assert trace.status == "complete"
    assert [type(module) for module in model] == [nn.Linear, nn.BatchNorm1d]
    assert model[1].running_mean.shape == (3,)
    assert "batch_norm" in [op.func_name for op in trace.ops]
    model(torch.randn(3, 4))


class Stubborn(type):
    """Refuses that a method of ours be taken back."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "forward" and getattr(value, "__wrapped__", None) is None:
            raise PermissionError("not that")
        super().__setattr__(name, value)


class Guarded(nn.Module, metaclass=Stubborn):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def test_what_cannot_be_put_back_stops_nothing_else_from_being_put_back(tmp_path: Path) -> None:
    before = bare()
    with pytest.raises(tl.errors.CaptureError) as refused:
        tl.trace(nn.Sequential(nn.Linear(2, 2), Guarded()), torch.ones(1, 2), journal=tmp_path / "j")
    assert refused.value.code == "restoring_failed"
    assert isinstance(refused.value.__cause__, PermissionError)
    assert bare() == before
    found = tl.postmortem(tmp_path / "j")
    assert not found.is_well
    assert not found.is_settled
    assert "did not come to its end" in found.verdict
    assert tl.trace(nn.Linear(2, 2), torch.ones(1, 2)).num_ops == 1


def test_undoing_takes_every_step_and_an_interrupted_one_again() -> None:
    taken: list[str] = []

    def interrupted() -> None:
        taken.append("interrupted")
        if len(taken) == 2:
            raise KeyboardInterrupt

    def failing() -> None:
        taken.append("failing")
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        undo([failing, interrupted, lambda: taken.append("last")])
    assert taken == ["failing", "interrupted", "interrupted", "last"]


# Interrupts -----------------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.lin(x)) + self.seen


def interrupted_in(codes: set[Any], stop: int) -> bool:
    """A capture, interrupted at the ``stop``-th line of some functions; whether they have as many."""
    lines = 0

    def trace(frame: FrameType, what: str, arg: object) -> Any:
        nonlocal lines
        if frame.f_code not in codes:
            return None
        if what == "line":
            lines += 1
            if lines > stop:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        tl.trace(Small(), torch.ones(1, 2))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("step", ["install", "remove", "sweep", "model"])
@pytest.mark.parametrize("stop", [0, 1, 3, 7, 20, 60, 200, 500, 1000, 2000])
def test_an_interrupt_while_wrappers_go_on_or_off_leaves_nothing_behind(step: str, stop: int) -> None:
    from torchlens.capture import sweep

    tl.trace(Small(), torch.ones(1, 2))
    before = bare()
    codes = {
        "install": {Wrappers.install.__code__},
        "remove": {Wrappers.remove.__code__},
        "sweep": {
            method.__code__
            for method in vars(sweep.Sweep).values()
            if hasattr(method, "__code__") and method is not sweep.Sweep.put_back
        },
        "model": {
            getattr(instrumented.Instrumented, name).__code__
            for name in ("install", "restore", "_adopt", "_wrap", "_watch", "_patch", "_let_go")
        },
    }[step]
    interrupted_in(codes, stop)
    assert bare() == before
    assert not wrappers().dirty
    assert tl.trace(Small(), torch.ones(1, 2)).ops.labels == (
        *("input_1", "linear_1_1", "relu_1_2", "buffer_1", "add_1_3", "output_1"),
    )


def test_wrappers_left_half_way_are_put_on_whole_by_the_next_capture() -> None:
    torch.relu(torch.ones(1))
    watched = wrappers()
    watched.install()
    names, _, originals, _ = watched._spaces[0]
    watched.installed = False  # as a removal that was cut short leaves it
    names.update(originals)
    assert tl.trace(Small(), torch.ones(1, 2)).num_ops == 3
    assert not watched.dirty


# A model that catches everything --------------------------------------------------------------------------------


def through_logarithm(x: Tensor) -> Tensor:
    try:
        y = torch.log(x - 2)
    except:  # noqa: E722  # catching everything is what is asked about
        y = x * 100
    return y + 1


def translated(x: Tensor) -> Tensor:
    try:
        return torch.log(x - 2)
    except BaseException as error:
        raise RuntimeError("mine") from error


@pytest.mark.parametrize("model", [through_logarithm, translated])
@pytest.mark.parametrize("verify", [False, True])
def test_a_model_that_catches_the_stop_at_a_nan_does_not_undo_it(model: Any, verify: bool, tmp_path: Path) -> None:
    before = bare()
    asked = tl.options.CaptureOptions(raise_on_nan=True, verify_capture=verify)
    with pytest.raises(tl.TraceCaptureError) as stopped:
        tl.trace(model, torch.ones(2), capture=asked, journal=tmp_path / "j")
    assert stopped.value.code == "nonfinite_value"
    trace: Any = stopped.value.partial_trace
    assert trace.status == "aborted_nonfinite"
    assert [op.func_name for op in trace.compute_ops] == ["__sub__", "log"]
    assert tl.postmortem(tmp_path / "j").status == "aborted_nonfinite"
    assert bare() == before


@pytest.mark.parametrize("asked", [{"stop_after": "relu"}, {"stop_after": "inner"}])
def test_a_model_that_catches_a_halt_is_halted_all_the_same(asked: dict[str, Any]) -> None:
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x)
            except BaseException:  # noqa: BLE001  # as above
                return x

    trace = tl.trace(Catching(), torch.ones(2), **asked)
    assert trace.status == "halted"
    assert trace.ops.labels == ("input_1", "relu_1_1", "output_1")


def test_a_model_that_catches_the_end_of_the_budget_does_not_undo_it() -> None:
    def model(x: Tensor) -> Tensor:
        try:
            return torch.relu(x)
        except BaseException:  # noqa: BLE001  # as above
            return x

    with pytest.raises(tl.errors.SaveBudgetExceededError) as refused:
        tl.trace(model, torch.ones(4000), capture=tl.options.CaptureOptions(save_budget=20_000))
    assert refused.value.partial_trace.status == "failed"
    assert refused.value.partial_trace.ops.labels == ("input_1", "relu_1_1")


# Predicates -----------------------------------------------------------------------------------------------------


class Tolerant(nn.Module):
    """Takes another path where its layer raises."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.a(x)
        except Exception:  # noqa: BLE001  # as above
            return x * 100


def nested(facts: Any) -> bool:
    return bool(tl.trace(nn.ReLU(), torch.ones(1)))


@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize("argument", ["save", "stop_after"])
@pytest.mark.parametrize(
    ("predicate", "code"),
    [
        (lambda op: op.func_name == "linear" and op.nope, "predicate_evaluation_failed"),
        (lambda op: 1 if op.func_name == "linear" else False, "predicate_return_invalid"),
        (lambda op: op.func_name == "linear" and nested(op), "predicate_evaluation_failed"),
    ],
)
def test_the_error_of_a_predicate_is_not_the_models_to_catch(
    argument: str, predicate: Any, code: str, where: bool, tmp_path: Path
) -> None:
    if where and code == "predicate_return_invalid":
        return  # a selector takes any truth
    asked: dict[str, Any] = {argument: tl.where(predicate) if where else predicate}
    with pytest.raises(tl.errors.ConfigurationError) as refused:
        tl.trace(Tolerant(), torch.ones(1, 2), journal=tmp_path / "j", **asked)
    assert refused.value.code == code
    trace: Any = refused.value.partial_trace
    assert trace.status == "failed"
    assert [op.func_name for op in trace.compute_ops] == ["linear"]
    assert tl.postmortem(tmp_path / "j").error_type.rpartition(".")[2] == "ConfigurationError"  # type: ignore[union-attr]  # it has one


def test_a_stop_that_is_not_known_yet_is_not_the_models_to_catch() -> None:
    with pytest.raises(tl.errors.ConfigurationError) as refused:
        tl.trace(Tolerant(), torch.ones(1, 2), stop_after=lambda op: op.label == "linear_1_1")
    assert refused.value.code == "stop_after_site_not_live"


def test_a_predicate_that_fails_when_all_is_over_leaves_a_trace() -> None:
    for predicate in (lambda op: op.children[7] == "", tl.where(lambda op: op.children[7] == "")):
        with pytest.raises(tl.errors.ConfigurationError) as refused:
            tl.trace(nn.ReLU(), torch.ones(2), save=predicate)
        assert refused.value.code == "predicate_evaluation_failed"
        assert refused.value.partial_trace.status == "complete"


@pytest.mark.parametrize("argument", ["save", "stop_after"])
@pytest.mark.parametrize(
    "predicate",
    [
        lambda op: op.func_name == "relu" and bool(torch.ones(2).sum() > 1),
        lambda op: torch.tensor(op.shape).prod().item() > 8,
        lambda op: op.func_name == "relu" and nn.Linear(2, 1)(torch.ones(1, 2)).shape == (1, 1),
    ],
)
@pytest.mark.parametrize("verify", [False, True])
def test_what_a_predicate_computes_is_no_part_of_the_model(argument: str, predicate: Any, verify: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
    options = tl.options.CaptureOptions(verify_capture=verify)
    asked: dict[str, Any] = {argument: predicate}
    trace = tl.trace(model, torch.ones(4, 2), capture=options, **asked)
    plain = tl.trace(model, torch.ones(4, 2))
    trace.check_metadata_invariants()
    labels = [op.raw_label for op in trace.compute_ops]
    assert labels == [op.raw_label for op in plain.compute_ops][: len(labels)]
    assert not trace.is_dynamic_graph
    assert trace.health.capture_verified is (True if verify else None)


# What the model's exception tells -------------------------------------------------------------------------------


class Refused(Exception):
    """With a constructor of its own, attributes and a slot."""

    __slots__ = ("hint",)

    def __init__(self, status: int, *, hint: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.hint = hint

    @property
    def is_final(self) -> bool:
        return self.status >= 500


def undecodable() -> None:
    b"\xff".decode()


def unimportable() -> None:
    import torchlens_has_no_such_part  # type: ignore[import-not-found]  # that is the point  # noqa: F401


def refused() -> None:
    raise Refused(503, hint="later")


@pytest.mark.parametrize(
    ("act", "names"),
    [
        (lambda: open("/nowhere/at/all"), ("errno", "strerror", "filename", "args")),  # noqa: SIM115  # fails
        (lambda: {}["key"], ("args",)),
        (lambda: next(iter(())), ("value", "args")),
        (undecodable, ("reason", "start", "end", "object", "encoding")),
        (unimportable, ("name", "path", "msg")),
        (lambda: (1).nothing, ("name", "obj")),  # type: ignore[attr-defined]  # that is the point
        (lambda: compile("1 +", "f.py", "exec"), ("lineno", "filename", "text", "msg")),
        (refused, ("status", "hint", "is_final", "args")),
    ],
)
def test_what_the_model_raised_tells_the_same_when_it_is_caught_by_its_own_class(
    act: Any, names: tuple[str, ...]
) -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.relu(x)
        act()
        return y

    with pytest.raises(Exception) as bare_error:  # noqa: PT011  # any
        model(torch.ones(1))
    with pytest.raises(type(bare_error.value)) as traced:
        tl.trace(model, torch.ones(1))
    error: Any = traced.value
    assert isinstance(error, tl.TraceCaptureError)
    assert error.code == "model_raised"
    assert error.partial_trace.ops.labels == ("input_1", "relu_1_1")
    assert "the model raised" in str(error)
    for name in names:
        assert repr(getattr(error, name)) == repr(getattr(bare_error.value, name))
    again = copy.copy(error)  # as a copy made by pickling
    assert (type(again), again.fields, again.partial_trace) == (tl.TraceCaptureError, error.fields, None)


# Threads --------------------------------------------------------------------------------------------------------


def in_thread(act: Any) -> list[Any]:
    """What ``act`` gives or raises in a thread that is waited for."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except Exception as error:  # noqa: BLE001  # handed on
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def small() -> tl.Trace:
    return tl.trace(Small(), torch.ones(1, 2))


@pytest.mark.parametrize("act", [small, lambda: in_thread(small)[0]], ids=["a thread", "a thread of it"])
def test_a_capture_in_a_thread_that_a_captured_forward_waits_for_is_refused(act: Any) -> None:
    found: list[Any] = []
    start = threading.Thread.start

    def model(x: Tensor) -> Tensor:
        found.extend(in_thread(act))
        with tl.wrapped():
            found.extend(in_thread(lambda: torch.relu(x)))
        return torch.relu(x)

    trace = tl.trace(model, torch.ones(2))
    assert trace.status == "complete"
    assert isinstance(found[0], tl.errors.CaptureError)
    assert found[0].code == "reentrant_trace"
    assert torch.equal(found[1], torch.ones(2))
    assert threading.Thread.start is start
    assert in_thread(small)[0].num_ops == 3


def test_a_capture_in_work_that_a_captured_forward_gives_to_a_pool_is_refused() -> None:
    found: list[Any] = []
    submit = ThreadPoolExecutor.submit

    def again(pool: ThreadPoolExecutor) -> Any:
        return pool.submit(small).exception()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()  # its threads were there before

        def model(x: Tensor) -> Tensor:
            found.append(pool.submit(small).exception())
            found.append(pool.submit(again, pool).result())
            return torch.relu(x)

        assert tl.trace(model, torch.ones(2)).status == "complete"
        assert [one.code for one in found] == ["reentrant_trace"] * 2
        assert ThreadPoolExecutor.submit is submit
        assert pool.submit(small).result().num_ops == 3


def test_work_that_outlives_the_capture_that_gave_it_waits_for_its_turn_as_any_other() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def late() -> tl.Trace:
        assert begun.wait(PATIENCE)
        go_on.set()
        return small()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        given: list[Any] = []
        blocked = threading.Event()
        pool.submit(blocked.wait, PATIENCE)

        def gives(x: Tensor) -> Tensor:
            given.append(pool.submit(late))
            return torch.relu(x)

        def other(x: Tensor) -> Tensor:
            blocked.set()
            begun.set()
            assert go_on.wait(PATIENCE)
            return torch.relu(x)

        tl.trace(gives, torch.ones(2))
        assert tl.trace(other, torch.ones(2)).status == "complete"
        assert given[0].result(PATIENCE).num_ops == 3


def test_a_long_wait_for_another_capture_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONG_WAIT", 0.05)
    asked: queue.Queue[Any] = queue.Queue()
    answers: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                answers.put(asked.get()())
            except tl.errors.TorchLensWarning as told:
                answers.put(told)

    thread = threading.Thread(target=work)
    thread.start()

    def model(x: Tensor) -> Tensor:
        asked.put(small)
        answer = answers.get(timeout=PATIENCE)
        assert answer.code == "capture_waits"
        assert answer.fields["owner"] == threading.current_thread().name
        return torch.relu(x)

    assert tl.trace(model, torch.ones(2)).status == "complete"
    thread.join(PATIENCE)


def test_a_capture_in_another_thread_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        begun.wait(PATIENCE)
        waits.set()
        found.append(small())

    waits = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()

    def model(x: Tensor) -> Tensor:
        begun.set()
        waits.wait(PATIENCE)
        go_on.wait(0.05)
        assert not found
        return torch.relu(x)

    assert tl.trace(model, torch.ones(2)).status == "complete"
    thread.join(PATIENCE)
    assert found[0].num_ops == 3


class Marked(torch.Tensor):
    """A class that a model makes of its tensors."""


@pytest.mark.parametrize("verify", [False, True])
def test_a_subclass_is_made_of_a_tensor_as_without_a_witness(verify: bool) -> None:
    def model(x: Tensor) -> Tensor:
        return Marked(x) + 1

    made = torch.Tensor.__new__
    trace = tl.trace(model, torch.ones(3), capture=tl.options.CaptureOptions(verify_capture=verify))
    assert type(trace.output) is Marked
    assert trace.ops.labels == tl.trace(model, torch.ones(3)).ops.labels
    assert torch.Tensor.__new__ is made or torch.Tensor.__new__ == made
    assert "__new__" not in vars(torch.Tensor)
