"""What a journal tells of a capture that died, failed, or went well."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchlens as tl
from journal.events import FunctionSeen, OpExecuted, OpLeft, OpRaised, OpStarted
from tests.nursery import Job, Nursery
from tests.programs import PATIENCE, ROOT, run
from tests.torchlens.models import Double
from torchlens.capture import wrap
from torchlens.cli import main
from torchlens.journals.ending import Postmortem
from torchlens.tracing import driver

DYING = "tests.torchlens.dying"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(DYING) as one:
        yield one


def job_of(path: Path, case: str, durability: str) -> Job:
    return Job(str(path), f"{path}.said", f"{DYING}:{case}", durability, "none", seed=0)


def after_death(nursery: Nursery, path: Path, case: str, durability: str = "event") -> tuple[int, Postmortem]:
    """How the process of a case ended, and what its journal tells."""
    status = nursery.start(job_of(path, case, durability)).wait()
    return status, tl.postmortem(path)


# Deaths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "function", "tensors", "settings", "line"),
    [
        (
            "custom_op",
            "torch.ops.dying.scale",
            [("0", (2, 3), "float32")],
            [("1", "2.5")],
            "traced(job, lambda x: torch.ops.dying.scale(x, 2.5))",
        ),
        (
            "custom_op_in_place",
            "torch.ops.dying.fill_",
            [("0", (2, 3), "float32")],
            [("value", "7.0")],
            "traced(job, lambda x: torch.ops.dying.fill_(x, value=7.0))",
        ),
        (
            "autograd_function",
            f"{DYING}.Crashing",
            [("0", (2, 3), "float32")],
            [("1", "3")],
            "traced(job, lambda x: Crashing.apply(x, 3))",
        ),
        (
            "function_transform",
            "torch.func.vmap",
            [("0", (2, 3), "float32")],
            [],
            "traced(job, lambda x: torch.vmap(one)(x))",
        ),
    ],
)
def test_a_crash_inside_a_call_names_the_call_its_arguments_and_its_line(
    nursery: Nursery, tmp_path: Path, case: str, function: str, tensors: list[Any], settings: list[Any], line: str
) -> None:
    status, found = after_death(nursery, tmp_path / "run.journal", case)
    assert status == -signal.SIGSEGV
    assert (found.status, found.died, found.is_well) == ("unfinished", True, False)
    assert found.verdict == f"the process died in {function}"
    assert found.call is not None
    assert found.call.function == function
    assert [(one.argument, one.shape, one.dtype) for one in found.call.tensors] == tensors
    assert list(found.call.settings) == settings
    assert found.call.modules == ("self:1", "block:1")
    assert found.call.place == found.call.places[-1]
    assert found.call.place.text == line
    assert found.call.place.file == str(ROOT / "tests" / "torchlens" / "dying.py")
    source = Path(found.call.place.file).read_text().splitlines()
    assert source[found.call.place.line - 1].strip() == line
    assert [place.function for place in found.call.places[:2]] == ["Model.forward", "Block.forward"]
    assert found.call.label is None
    assert found.around == ()
    assert found.last_op is not None
    assert found.last_op.label == "tanh_1_1"
    assert found.opened_ns < found.last_op.begun_ns < found.call.begun_ns <= found.last_ns
    trace = tl.load(tmp_path / "run.journal")
    picture = trace.draw().picture
    (broken,) = [node for node in picture.nodes if node.kind == "failed"]
    assert (broken.title, broken.lines) == (function.rpartition(".")[2], ("(2, 3)", "@ block", "has not returned"))
    assert picture.caption[0] == f"unfinished: {function} has not returned"
    assert f"unfinished  {function} has not returned" in trace.summary()
    trace.cleanup()


@pytest.mark.parametrize(
    ("case", "function", "shapes"),
    [
        ("long_kernel", "torch.linalg.svd", [(5000, 6000)]),
        ("long_method", "torch.Tensor.addmm_", [(7000, 7000)] * 3),
    ],
)
def test_a_process_killed_in_a_long_kernel_names_it(
    nursery: Nursery, tmp_path: Path, case: str, function: str, shapes: list[Any]
) -> None:
    path = tmp_path / "run.journal"
    child = nursery.start(job_of(path, case, "event"))
    running = seen_in(path, function)
    assert (running.writer, running.died, running.is_well) == (child.pid, False, True)
    assert str(child.pid) in running.verdict
    assert function in running.verdict
    child.kill()
    found = tl.postmortem(path)
    assert (found.writer, found.died) == (None, True)
    assert found.verdict == f"the process died in {function}"
    assert found.call is not None
    assert [one.shape for one in found.call.tensors] == shapes


def seen_in(path: Path, function: str) -> Postmortem:
    """What is told as soon as the writer is in a call of this function."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            found = tl.postmortem(path)
        except tl.TorchLensError:  # not made yet
            continue
        if found.call is not None and found.call.function == function:
            return found
        time.sleep(0.01)
    raise AssertionError(f"the writer did not come to {function}")


def test_a_call_inside_a_call_is_told_with_the_outer_one(nursery: Nursery, tmp_path: Path) -> None:
    status, found = after_death(nursery, tmp_path / "run.journal", "call_inside_a_call")
    assert status == -signal.SIGSEGV
    assert found.call is not None
    assert found.call.function == "torch.ops.dying.distance"
    assert [outer.function for outer in found.around] == ["torch.nn.functional.triplet_margin_with_distance_loss"]
    assert found.around[0].place is not None
    assert "triplet_margin_with_distance_loss(x" in str(found.around[0].place.text)


def test_a_death_between_the_calls_inside_a_call_names_the_outer_one(nursery: Nursery, tmp_path: Path) -> None:
    status, found = after_death(nursery, tmp_path / "run.journal", "between_calls_inside_a_call")
    assert status == 3
    assert found.call is not None
    assert found.call.function == "torch.nn.functional.triplet_margin_with_distance_loss"
    assert found.around == ()
    assert found.last_op is not None
    assert found.last_op.function == "torch.relu"


@pytest.mark.parametrize(
    ("case", "last"),
    [
        ("exit_in_module", "torch.relu"),
        ("after_a_call_that_is_no_op", "torch.relu"),
        ("after_a_caught_exception", "torch.tanh"),
    ],
)
def test_a_death_between_calls_names_none(nursery: Nursery, tmp_path: Path, case: str, last: str) -> None:
    status, found = after_death(nursery, tmp_path / "run.journal", case)
    assert status == 3
    assert (found.call, found.around) == (None, ())
    assert found.verdict == "the process died between two calls, in code that is not recorded"
    assert found.last_op is not None
    assert found.last_op.function == last
    assert found.last_op.modules[-1] == ("block:1" if last == "torch.relu" else "self:1")


@pytest.mark.parametrize("case", ["inside_checkpoint", "inside_reentrant_checkpoint"])
def test_a_call_inside_checkpoint_is_named(nursery: Nursery, tmp_path: Path, case: str) -> None:
    status, found = after_death(nursery, tmp_path / "run.journal", case)
    assert status == -signal.SIGSEGV
    assert found.call is not None
    assert found.call.function == "torch.ops.dying.scale"
    assert found.call.place is not None
    assert "torch.ops.dying.scale(torch.sigmoid(x), 1.0)" in str(found.call.place.text)
    assert found.last_op is not None
    assert found.last_op.function == "torch.sigmoid"


def test_without_announcements_the_last_op_is_told_and_that_the_next_is_not_known(
    nursery: Nursery, tmp_path: Path
) -> None:
    path = tmp_path / "run.journal"
    child = nursery.start(job_of(path, "long_kernel", "batch"))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:  # until a batch was committed
        try:
            if tl.postmortem(path).last_op is not None:
                break
        except tl.TorchLensError:
            pass
        time.sleep(0.01)
    child.kill()
    found = tl.postmortem(path)
    assert (found.status, found.is_announced, found.call) == ("unfinished", False, None)
    assert found.last_op is not None
    assert found.last_op.function in ("torch.tanh", "torch.Tensor.repeat")
    assert f"died after {found.last_op.function}" in found.verdict
    assert 'durability="event"' in found.verdict


@pytest.mark.parametrize("durability", ["event", "close"])
def test_a_death_before_any_call_is_told_as_far_as_it_is_known(
    nursery: Nursery, tmp_path: Path, durability: str
) -> None:
    path = tmp_path / "run.journal"
    status = nursery.start(job_of(path, "exit_before_any_call", durability)).wait()
    assert status == 3
    if durability == "close":
        with pytest.raises(tl.errors.JournalError) as refused:
            tl.postmortem(path)
        assert refused.value.code == "journal_holds_none"
        return
    found = tl.postmortem(path)
    assert found.died
    assert found.last_op is None
    assert "before a call was committed" in found.verdict


# In a backward pass -----------------------------------------------------------------------------------------


def test_a_crash_in_a_backward_names_the_pass_and_the_last_node_that_fired(nursery: Nursery, tmp_path: Path) -> None:
    status, found = after_death(nursery, tmp_path / "run.journal", "in_second_backward")
    assert status == -signal.SIGSEGV
    assert (found.status, found.is_settled, found.died, found.is_well) == ("complete", True, True, False)
    assert found.backward is not None
    assert (found.backward.pass_index, found.backward.trigger) == (2, "autograd_grad")
    assert (found.backward.around, found.backward.place) == ((), None)
    assert (found.backward.num_fired, found.backward.last_fired) == (2, "relu_back_1_2:2")
    assert found.verdict == (
        "the process died in backward pass 2, begun by autograd_grad, after relu_back_1_2:2 had fired, the last node"
        " that was committed"
    )
    trace = tl.load(tmp_path / "run.journal")
    assert [one.status for one in trace.autograd.backward_passes] == ["ok", "unfinished"]
    trace.cleanup()


def test_a_crash_in_a_nested_backward_names_the_pass_and_those_around_it(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.journal"
    status, found = after_death(nursery, path, "in_nested_backward")
    assert status == -signal.SIGSEGV
    assert found.backward is not None
    assert (found.backward.pass_index, found.backward.around) == (2, (1,))
    assert found.backward.last_fired is not None
    assert main(["journal", "postmortem", str(path)]) == 1
    said = capsys.readouterr().out
    assert "2, begun by autograd_grad, within 1" in said
    assert f"last {found.backward.last_fired}" in said


def test_a_backward_that_goes_on_is_not_called_dead(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    x = torch.ones(2, requires_grad=True)
    trace = tl.trace(lambda x: torch.relu(torch.tanh(x)), x, journal=flight(path))
    tl.trace(nn.ReLU(), torch.ones(2), journal=flight(path)).cleanup()  # it is not the last capture either
    seen: list[Postmortem] = []
    x.register_hook(lambda gradient: seen.append(tl.postmortem(path, 0)))
    trace.backward(trace.output.sum())
    (found,) = seen
    assert (found.writer, found.died, found.is_well) == (os.getpid(), False, True)
    assert found.backward is not None
    assert found.backward.place is not None
    assert found.backward.place.function.endswith("test_a_backward_that_goes_on_is_not_called_dead")
    assert f"process {os.getpid()} writes this journal: backward pass 1, begun by backward may be" in found.verdict
    after = tl.postmortem(path, 0)
    assert (after.backward, after.is_well, after.writer) == (None, True, None)
    trace.cleanup()


# Failures and good ends ------------------------------------------------------------------------------------


def flight(path: Path, durability: str = "event") -> tl.JournalOptions:
    return tl.JournalOptions(path, durability=durability, sync="none")  # type: ignore[arg-type]


def failed(path: Path, model: Callable[[Tensor], Any], durability: str = "event") -> Postmortem:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(model, torch.ones(2, 3), journal=flight(path, durability))
    assert caught.value.partial_trace is not None
    caught.value.partial_trace.cleanup()
    return tl.postmortem(path)


@pytest.mark.parametrize("durability", ["event", "batch"])
def test_a_call_that_raised_is_told_with_what_it_raised(tmp_path: Path, durability: str) -> None:
    found = failed(tmp_path / "run.journal", lambda x: torch.relu(x) @ x, durability)
    assert (found.status, found.is_well, found.died) == ("failed", False, False)
    assert found.call is not None
    assert found.call.function == "torch.Tensor.__matmul__"
    assert [one.shape for one in found.call.tensors] == [(2, 3), (2, 3)]
    assert found.call.raised == "builtins.RuntimeError"
    assert found.verdict.startswith("torch.Tensor.__matmul__ raised builtins.RuntimeError: mat1 and mat2")
    assert "was ended by" not in found.verdict
    assert found.last_op is not None
    assert found.last_op.label == "relu_1_1"


@pytest.mark.parametrize(
    ("raised", "status"), [(AttributeError("no such name"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
@pytest.mark.parametrize("step", [(driver, "describe"), (wrap.Wrappers, "install"), (driver, "_backwards")])
def test_what_raises_outside_the_forward_ends_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], raised: BaseException, status: str
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise raised

    path = tmp_path / "run.journal"
    with monkeypatch.context() as patched:
        patched.setattr(*step, broken)
        with pytest.raises(type(raised)):
            tl.trace(lambda x: torch.relu(x), torch.ones(2), journal=flight(path))
    found = tl.postmortem(path)
    is_before = step[1] != "_backwards"
    assert found.is_settled
    assert (found.status, found.died, found.is_started) == (status if is_before else "complete", False, not is_before)
    if is_before:
        assert found.verdict.startswith("the capture was ended before its forward began, by builtins.")
        assert found.error_message in (None, "no such name")


def test_an_exception_of_the_models_own_is_told_as_that(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        try:
            x = x @ x
        except RuntimeError:
            x = torch.relu(x)  # it goes on, so the call before is not to blame
        raise ValueError("no good")

    found = failed(tmp_path / "run.journal", model)
    assert found.call is None
    assert found.verdict.startswith(
        "the forward was ended by builtins.ValueError: no good, which no torch call had raised, raised at "
    )
    assert found.raised_at[-1].text == 'raise ValueError("no good")'


def test_an_exception_raised_from_that_of_a_call_names_both(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        try:
            return x @ x
        except RuntimeError as exc:
            raise KeyError("shape") from exc

    found = failed(tmp_path / "run.journal", model)
    assert found.call is not None
    assert found.call.function == "torch.Tensor.__matmul__"
    assert found.verdict.endswith("; the forward was ended by builtins.KeyError: 'shape'")


def test_an_interrupt_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"

    def model(x: Tensor) -> Tensor:
        torch.relu(x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tl.trace(model, torch.ones(2), journal=flight(path))
    found = tl.postmortem(path)
    assert (found.status, found.call) == ("interrupted", None)
    assert found.error_type == "builtins.KeyboardInterrupt"


def test_a_good_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    tl.trace(nn.ReLU(), torch.ones(2), journal=path, name="whole").cleanup()
    tl.trace(nn.ReLU(), torch.ones(2), journal=flight(path), stop_after="relu", name="left").cleanup()
    whole, left = tl.postmortem(path, "whole"), tl.postmortem(path)
    assert (whole.capture, whole.name, whole.model, whole.status) == (0, "whole", "ReLU", "complete")
    assert whole.verdict == "the capture is complete: the forward returned"
    assert (left.capture, left.name, left.status, left.call) == (1, "left", "halted", None)
    assert left.verdict == "the forward was left on purpose: relu"
    assert whole.is_well
    assert left.is_well


def test_a_capture_that_goes_on_is_not_called_dead(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    seen: list[Postmortem] = []

    def model(x: Tensor) -> Tensor:
        y = torch.relu(x)
        seen.append(tl.postmortem(path))
        return y

    tl.trace(model, torch.ones(2), journal=flight(path)).cleanup()
    (found,) = seen
    assert (found.writer, found.died, found.is_well, found.call) == (os.getpid(), False, True, None)
    assert tl.postmortem(path).writer is None


def test_a_capture_is_chosen_by_number_or_name(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    for name in ("a", "b", "b"):
        tl.trace(nn.ReLU(), torch.ones(2), journal=path, name=name).cleanup()
    assert [tl.postmortem(path, asked).capture for asked in (None, 1, "0", "a", -2)] == [2, 1, 0, 0, 1]
    for asked, code in ((3, "capture_unknown"), ("no such", "capture_unknown"), ("b", "capture_ambiguous")):
        with pytest.raises(tl.errors.JournalError) as refused:
            tl.postmortem(path, asked)
        assert refused.value.code == code


def test_shapes_are_told_also_of_tensors_that_nothing_led_to_yet(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        tl.trace(lambda x: x @ (torch.ones(7, 7) * 2), torch.ones(2, 4), journal=tmp_path / "run.journal")
    found = tl.postmortem(tmp_path / "run.journal")
    assert found.call is not None
    assert [tensor.shape for tensor in found.call.tensors] == [(2, 4), (7, 7)]
    assert found.last_op is not None
    assert found.last_op.label is None  # on an island, so no lookup would find it


# Announcements -----------------------------------------------------------------------------------------------


class Every(nn.Module):
    """A call of every kind that is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.relu(x))
        x = Double.apply(x) + torch.ops.aten.sigmoid(x)
        x = torch.vmap(torch.sin)(x).T.data.mT
        x.add_(1).unsqueeze_(0)
        x[0, 0] = 3
        x = torch.utils.checkpoint.checkpoint(torch.cos, x, use_reentrant=False)
        torch.add(x, x, out=torch.empty_like(x))
        torch._assert(bool((x < 1e9).all()), "large")
        y = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        torch.abs(y)
        try:
            F.linear(x, torch.ones(7, 7))
        except RuntimeError:
            x = x + 1
        query = torch.ones(2, 1, 4)
        out: Tensor = self.attention(query, query, query)[0].sum() + F.dropout(x, 0.5).sum()
        return out


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_every_call_is_announced_and_ends_before_the_one_around_it(tmp_path: Path) -> None:
    trace = tl.trace(Every(), torch.randn(4, 3), journal=flight(tmp_path / "run.journal"))
    open_calls: list[tuple[int, OpStarted]] = []
    names: list[str] = []
    ended: set[type] = set()
    for stamped in trace.events():
        match stamped.event:
            case FunctionSeen() as seen:
                names.append(seen.qualname)
            case OpStarted() as started:
                open_calls.append((stamped.at, started))
                assert len(started.shapes) == len(started.inputs)
            case OpExecuted() | OpRaised() as end:
                _, started = open_calls.pop()
                assert (end.function, end.site, end.call) == (started.function, started.site, started.call)
                assert (end.args, end.kwargs, end.inputs) == (started.args, started.kwargs, started.inputs)
                ended.add(type(end))
            case OpLeft() as end:
                at, _ = open_calls.pop()
                assert end.started == at
                ended.add(OpLeft)
    assert open_calls == []
    assert ended == {OpExecuted, OpRaised, OpLeft}
    assert {f"{Double.__module__}.Double", "torch.func.vmap", "torch.Tensor.T", "torch.Tensor.__setitem__"} <= set(
        names
    )
    trace.cleanup()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_announcing_changes_no_record(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Every().eval(), torch.randn(4, 3)
    told = tl.trace(model, x, journal=flight(tmp_path / "told.journal"))
    plain = tl.trace(model, x, journal=flight(tmp_path / "plain.journal", "batch"))
    assert told.ops.labels == plain.ops.labels
    assert told.graph_shape_hash == plain.graph_shape_hash
    told.cleanup()
    plain.cleanup()


def test_shapes_are_those_before_a_change_in_place(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        y = x.clone()
        y.unsqueeze_(0)
        y.resize_(6, 1)
        return y

    trace = tl.trace(model, torch.ones(2, 3), journal=flight(tmp_path / "run.journal"))
    shapes = [one.event.shapes[0][0] for one in trace.events() if isinstance(one.event, OpStarted)]
    assert shapes == [(2, 3), (2, 3), (1, 2, 3)]
    trace.cleanup()


# The command ---------------------------------------------------------------------------------------------------


def test_the_command_tells_people_and_programs(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.journal"
    _, found = after_death(nursery, path, "custom_op")
    assert main(["journal", "postmortem", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["verdict", *found.verdict.split()]
    for text in ("torch.ops.dying.scale(Tensor(shape=(2, 3), dtype=float32), 2.5)", "self:1 > block:1"):
        assert text in shown.out
    assert "traced(job, lambda x: torch.ops.dying.scale(x, 2.5))" in shown.out
    assert main(["journal", "postmortem", str(path), "--capture", "0", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["verdict"] == found.verdict
    assert facts["call"]["tensors"] == [{"argument": "0", "shape": [2, 3], "dtype": "float32"}]
    assert facts["call"]["places"][-1]["text"] == "traced(job, lambda x: torch.ops.dying.scale(x, 2.5))"
    assert facts["died"] is True


def test_the_command_ends_well_after_a_good_end_and_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    tl.trace(nn.ReLU(), torch.ones(2), journal=flight(path)).cleanup()
    code = (
        "import sys; sys.modules['torch'] = None; from torchlens.cli import main; import torchlens as tl; "
        "print(tl.postmortem(sys.argv[1]).verdict); sys.exit(main(['journal', 'postmortem', sys.argv[1]]))"
    )
    done = run(code, path)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "the capture is complete: the forward returned"
    assert "complete" in done.stdout.splitlines()[1]


def test_the_command_refuses_what_it_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "postmortem", str(tmp_path / "missing")]) == 1
    assert "[journal_not_found]" in capsys.readouterr().err
