"""Pictures of real captures: what a reader sees of loops, branches, state, checkpoints, failures and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from projections.picture import Picture, PictureOptions, picture_of
from projections.picture.captions import SEVERAL
from tests.projections.making import Made
from tests.torchlens.models import refusal
from torchlens.testing import Program, programs


class Model(nn.Module):
    """A loop, a test, a buffer that carries a value, and a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.again = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.step(x))
        x = x * 2 if x.sum() > -100 else x - 1
        self.state = x.mean(0)
        x = x + self.state
        return checkpoint(self.again, x, use_reentrant=False)


@pytest.fixture(scope="module")
def trace() -> Iterator[tl.Trace]:
    torch.manual_seed(0)
    made = tl.trace(Model(), torch.ones(2, 4), save=[])
    made.backward(made.output.sum())
    yield made
    made.cleanup()


def node(picture: Picture, title: str) -> Any:
    (found,) = [one for one in picture.nodes if one.title == title]
    return found


def edges(picture: Picture) -> set[tuple[str, str, str, str | None]]:
    nodes = picture.nodes
    return {(nodes[edge.source].title, nodes[edge.target].title, edge.kind, edge.label) for edge in picture.edges}


def test_a_loop_is_drawn_pass_by_pass_or_rolled(trace: tl.Trace) -> None:
    picture = picture_of(trace.tables)
    assert ("tanh_1:1", "linear_1:2", "forward", None) in edges(picture)
    assert node(picture, "linear_1:2").lines == ("(2, 4) float32", "@ step:2")
    rolled = picture_of(trace.tables, PictureOptions(rolled=True))
    assert node(rolled, "linear_1").passes == 3
    assert {
        ("input_1", "linear_1", "forward", "to pass 1"),
        ("linear_1", "tanh_1", "forward", None),
        ("tanh_1", "linear_1", "recurrent", "1-2 → 2-3"),
        ("tanh_1", "sum_1", "forward", "from pass 3"),
    } <= edges(rolled)


def test_a_test_tells_its_answer_and_edges_the_arm(trace: tl.Trace) -> None:
    picture = picture_of(trace.tables)
    assert node(picture, "gt_1").lines == ("() bool", "if: True")
    assert "bool" in node(picture, "gt_1").marks
    assert ("tanh_1:3", "mul_1", "forward", "then") in edges(picture)


def test_a_buffer_that_carries_a_value_is_drawn(trace: tl.Trace) -> None:
    (buffer,) = [one for one in picture_of(trace.tables).nodes if one.kind == "buffer"]
    assert buffer.lines == ("state", "(4,) float32")
    assert {("mean_1", buffer.title, "buffer_write", None), (buffer.title, "add_1", "forward", None)} <= edges(
        picture_of(trace.tables)
    )
    assert not [one for one in picture_of(trace.tables, PictureOptions(buffers="never")).nodes if one.kind == "buffer"]


def test_what_ran_in_a_checkpoint_is_marked(trace: tl.Trace) -> None:
    marked = {one.title for one in picture_of(trace.tables).nodes if "checkpointed" in one.marks}
    assert marked == {"linear_2", "relu_1"}


def test_running_statistics_are_no_state(trace: tl.Trace) -> None:
    made = tl.trace(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), torch.ones(3, 4))
    picture = picture_of(made.tables)
    assert not [one for one in picture.nodes if one.kind == "buffer"]
    assert picture.caption == ("not drawn: 6 buffers and 1 op",)  # which counts the batches
    assert (
        len([one for one in picture_of(made.tables, PictureOptions(buffers="always")).nodes if one.kind == "buffer"])
        == 6
    )
    made.cleanup()


class Earlier(nn.Module):
    """A loop that uses what a layer gave one time round before, besides what it gives now."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros_like(x)
        for _ in range(4):
            now = self.linear(x)
            x, before = torch.tanh(now.relu() + before), now
        return x


def test_what_leads_from_a_pass_to_a_later_one_is_recurrent_and_nothing_else() -> None:
    made = tl.trace(Earlier(), torch.ones(2, 4))
    made.backward(made.output.sum())
    drawn = edges(picture_of(made.tables, PictureOptions(rolled=True)))
    assert {edge for edge in drawn if edge[2] == "recurrent"} == {
        ("linear_1", "add_1", "recurrent", "1-3 → 2-4"),
        ("tanh_1", "linear_1", "recurrent", "1-3 → 2-4"),
    }
    drawn = edges(picture_of(made.tables, PictureOptions(rolled=True, graph="backward")))
    assert {edge[:2] for edge in drawn if edge[2] == "recurrent"} == {
        ("add_back_1", "addmm_back_1"),
        ("addmm_back_1", "tanh_back_1"),
    }
    made.cleanup()


def test_a_second_loss_is_no_loop() -> None:
    made = tl.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4))
    made.backward(made.output.sum(), retain_graph=True)
    made.backward(made.output.square().sum())
    for graph in ("backward", "combined"):
        drawn = edges(picture_of(made.tables, PictureOptions(graph=graph, rolled=True)))  # type: ignore[arg-type]
        assert ("pow_back_1", "relu_back_1", "backward", None) in drawn
        assert "recurrent" not in {edge[2] for edge in drawn}
    made.cleanup()


class Counting(nn.Module):
    """Counts its calls, and uses the count."""

    def __init__(self) -> None:
        super().__init__()
        self.step: Tensor
        self.register_buffer("step", torch.zeros(()))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.step.add_(1)
        self.step.mul_(2)
        return self.linear(x) * (1 / self.step)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_buffer_that_is_written_with_itself_and_read_is_drawn_from_where_it_comes(rolled: bool) -> None:
    made = tl.trace(Counting(), torch.ones(2, 4))
    titles = ["buffer_1", "add_1", "buffer_2", "mul_1", "buffer_3", "reciprocal_1"]
    drawn = {ends[:2] for ends in edges(picture_of(made.tables, PictureOptions(rolled=rolled)))}
    assert set(itertools.pairwise(titles)) <= drawn
    picture = picture_of(made.tables, PictureOptions(rolled=rolled, buffers="never"))
    assert picture.caption == ("not drawn: 3 buffers and 2 ops",)
    assert not {"add_1", "mul_1"} & {one.title for one in picture.nodes}
    made.cleanup()


def test_a_backward_is_drawn_with_what_gathers_gradients(trace: tl.Trace) -> None:
    picture = picture_of(trace.tables, PictureOptions(graph="backward"))
    titles = {one.title: one for one in picture.nodes}
    assert titles["step.weight"].kind == "param"
    assert titles["tanh_back_1"].lines == ("of tanh_1:3", "(2, 4) float32")
    assert {edge.kind for edge in picture.edges} == {"backward"}
    assert not [
        one
        for one in picture_of(trace.tables, PictureOptions(graph="backward", params="never")).nodes
        if one.kind == "param"
    ]
    rolled = picture_of(trace.tables, PictureOptions(graph="backward", rolled=True))
    assert node(rolled, "tanh_back_1").passes == 3


def test_both_are_drawn_with_ops_and_their_grad_fns_joined(trace: tl.Trace) -> None:
    picture = picture_of(trace.tables, PictureOptions(graph="combined"))
    pairs = {(source, target) for source, target, kind, _ in edges(picture) if kind == "pair"}
    assert ("tanh_1:3", "tanh_back_1") in pairs
    ops = {op for op, _ in pairs}
    grads = trace.tables.grad_fns
    assert len(ops) == len({row for rows in grads.column("op_rows") for row in rows})


def test_neighbours_drawn_as_one_are_a_node_for_each_table(trace: tl.Trace) -> None:
    picture = picture_of(trace.tables, PictureOptions(graph="combined", most_nodes=1, params="always"))
    several = {(one.kind, one.table) for one in picture.nodes if one.kind in SEVERAL}
    assert several == {("ops", "ops"), ("params", "params"), ("params", "grad_fns"), ("grad_fns", "grad_fns")}
    kinds = {(picture.nodes[edge.source].kind, picture.nodes[edge.target].kind, edge.kind) for edge in picture.edges}
    assert {("ops", "grad_fns", "pair"), ("params", "ops", "forward"), ("grad_fns", "params", "backward")} <= kinds
    assert "grad_fns" not in dict(picture.hidden)
    rolled = picture_of(trace.tables, PictureOptions(rolled=True, most_nodes=3, params="always"))
    assert {one.table for one in rolled.nodes if one.kind == "params"} == {"params"}
    assert {one.table for one in rolled.nodes if one.kind == "ops"} == {"layers"}


def test_a_caption_counts_ops_and_grad_fns_apart(trace: tl.Trace) -> None:
    picture = picture_of(trace.tables, PictureOptions(graph="combined", collapse="max"))
    closed = [one for one in picture.nodes if one.kind == "module"]
    ops, grad_fns = sum(one.ops for one in closed), sum(one.grad_fns for one in closed)
    assert f"{ops} ops and {grad_fns} grad_fns in {len(closed)} closed modules" in picture.caption[0]
    again = node(picture, "again")
    assert again.lines[-1] == f"2 ops, {again.grad_fns} grad_fns"


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_what_a_backward_pass_made_stands_in_the_module_of_what_made_it() -> None:
    made = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), torch.ones(1, 2))
    made.backward(made.output.sum(), retain_graph=True, create_graph=True)
    made.backward((made.output**2).sum())
    picture = picture_of(made.tables, PictureOptions(graph="combined", collapse="none"))
    creators: list[int] = made.tables.grad_fns.column("creator_row")
    at = {row: one.cluster for one in picture.nodes if one.table == "grad_fns" for row in one.rows}
    found = [(at[row], at[creator]) for row, creator in enumerate(creators) if 0 <= creator < row]
    assert len(found) > 5
    assert all(one == other for one, other in found)
    made.cleanup()


@pytest.fixture(scope="module")
def losses() -> Iterator[tl.Trace]:
    """Two losses, the second of which reaches less."""
    x = torch.ones(2, 4, requires_grad=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    made = tl.trace(model, x, capture=tl.CaptureOptions(save_grads=True))
    made.backward(made.output.sum(), retain_graph=True)
    made.backward(made.output.square().sum(), inputs=[model[2].weight])
    yield made
    made.cleanup()


def fired(node: Any) -> list[str]:
    return [line for line in node.lines if "fired" in line]


def test_each_node_tells_the_backward_passes_that_it_fired_in(losses: tl.Trace) -> None:
    for rolled in (False, True):
        picture = picture_of(losses.tables, PictureOptions(graph="backward", rolled=rolled))
        assert picture.caption == ("2 backward passes, drawn together; bwd= draws one",)
        assert fired(node(picture, "sum_back_1")) == ["fired in backward pass 1"]
        assert fired(node(picture, "pow_back_1")) == ["fired in backward pass 2"]
        assert fired(node(picture, "addmm_back_1")) == ["fired in backward passes 1-2"]
        assert fired(node(picture, "addmm_back_2")) == ["fired in backward pass 1"]


@pytest.mark.parametrize("graph", ["backward", "combined"])
def test_chosen_backward_passes_are_drawn_alone(losses: tl.Trace, graph: Any) -> None:
    first, second = (picture_of(losses.tables, PictureOptions(graph=graph, bwd=number)) for number in (1, 2))
    assert first.caption[:2] == ("backward pass 1 of 2", "not drawn: 2 grad_fns")
    nodes = losses.tables.grad_fns
    calls = losses.tables.grad_fn_calls
    for number, picture in enumerate((first, second), 1):
        drawn = {row for one in picture.nodes if one.table == "grad_fns" for row in one.rows}
        firing = {
            row
            for row, rows in enumerate(nodes.column("call_rows"))
            if any(calls.value("backward_pass_index", call) == number for call in rows)
        }
        met = {row for row, told in enumerate(nodes.column("pass_row")) if told + 1 == number}
        assert drawn == firing | met
        assert not any(fired(one) for one in picture.nodes if one.rows and one.rows[0] in firing)
    assert "sum_back_1" not in {one.title for one in second.nodes}
    both, every = (picture_of(losses.tables, PictureOptions(graph=graph, bwd=bwd)) for bwd in ([1, 2], None))
    assert (both.nodes, both.edges) == (every.nodes, every.edges)


def test_what_never_fired_says_so_and_what_gathers_for_an_input_names_it(losses: tl.Trace) -> None:
    nodes = picture_of(losses.tables, PictureOptions(graph="backward")).nodes
    (gatherer,) = [one for one in nodes if "of input.input" in one.lines]
    assert gatherer.title.startswith("accumulategrad_back_")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    made = tl.trace(model, torch.ones(2, 4))
    made.backward(made.output.sum(), inputs=[model[2].weight])
    picture = picture_of(made.tables, PictureOptions(graph="backward"))
    assert fired(node(picture, "relu_back_1")) == ["never fired"]
    assert fired(node(picture, "addmm_back_1")) == []
    made.cleanup()


def test_backward_passes_that_there_are_not_are_refused(losses: tl.Trace) -> None:
    for bwd in (3, 0, [1, 9], True):
        assert refusal(lambda bwd=bwd: losses.draw(graph="backward", bwd=bwd), tl.TorchLensError) == (  # type: ignore[misc]
            "backward_pass_unknown"
        )
    for options in (
        {"graph": "forward", "bwd": 1},
        {"graph": "backward", "bwd": ()},
        {"graph": "combined", "bwd": "1"},
    ):
        assert refusal(lambda options=options: losses.draw(**options), tl.TorchLensError) == (  # type: ignore[misc]
            "option_value_invalid"
        )


class Refusing(torch.autograd.Function):
    """Goes forward and not back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ValueError("no way back")


def test_the_node_that_raised_in_a_backward_is_marked_and_told() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return cast("Tensor", Refusing.apply(x))  # type: ignore[no-untyped-call]

    made = tl.trace(nn.Sequential(nn.Linear(2, 2), Inner(), nn.Tanh()), torch.ones(1, 2))
    with pytest.raises(ValueError, match="no way back"):
        made.backward(made.output.sum())
    for graph in ("combined", "backward"):
        for view in ({}, {"collapse": "max"}, {"most_nodes": 1}):
            picture = picture_of(made.tables, PictureOptions(graph=graph, **view))  # type: ignore[arg-type]
            (failed,) = [one for one in picture.nodes if "failed" in one.marks]
            assert failed.title == ("1" if failed.kind == "module" else "refusing_back_1")
            assert picture.caption[0] == "backward pass 1 failed in refusing_back_1_3: ValueError: no way back"
    assert not [one for one in picture_of(made.tables).nodes if "failed" in one.marks]
    made.cleanup()


def test_lines_are_what_was_asked_for(trace: tl.Trace) -> None:
    lines = node(picture_of(trace.tables, PictureOptions(node_lines=["params", "flops", "memory"])), "linear_1:1").lines
    assert lines == ("weight (4, 4), bias (4,)", "72 FLOPs", "32 B")
    assert picture_of(trace.tables, PictureOptions(node_lines=[])).nodes[1].lines == ()


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


def test_a_call_that_raised_is_drawn_with_its_operands() -> None:
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(Failing(), torch.ones(2, 4))
    tables = raised.value.partial_trace.tables
    picture = picture_of(tables)
    failed = node(picture, "linear")
    assert (failed.kind, failed.table, failed.rows, failed.marks) == ("failed", "", (), {"failed"})
    assert failed.lines[:3] == ("(2, 4), (2, 5), (2,)", "@ 1", "RuntimeError")
    assert picture.clusters[failed.cluster].title == "inner"
    assert ("relu_1", "linear", "forward", None) in edges(picture)
    assert picture.caption[0].startswith("failed: RuntimeError: mat1 and mat2")
    (closed,) = [one for one in picture_of(tables, PictureOptions(collapse="max")).nodes if one.kind == "module"]
    assert "failed" in closed.marks


def test_a_model_that_raised_by_itself_is_drawn_too() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError(f"{x.relu().shape} is no good")

    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(Raises(), torch.ones(2))
    picture = picture_of(raised.value.partial_trace.tables)
    assert node(picture, "ValueError").kind == "failed"


def test_a_forward_that_was_stopped_is_marked_where() -> None:
    made = tl.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh()), torch.ones(2, 4), stop_after="1")
    picture = picture_of(made.tables)
    assert {one.title for one in picture.nodes if "halted" in one.marks} == {"relu_1"}
    assert picture.caption[0].startswith("halted")
    made.cleanup()


def test_an_orphan_whose_truth_was_taken_tells_which() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.zeros(1).cos() > 0:
                return x + 1
            return x

    made = tl.trace(Asks(), torch.ones(2), capture=tl.CaptureOptions(keep_orphans=True))
    asked = [one for one in picture_of(made.tables, PictureOptions(orphans=True)).nodes if "bool" in one.marks]
    assert [line for one in asked for line in one.lines if line.startswith("if")] == ["if: True"]
    made.cleanup()


def test_a_stopped_block_is_not_folded_with_those_before_it() -> None:
    made = tl.trace(nn.Sequential(*[Twice(nn.Linear(4, 4)) for _ in range(12)]), torch.ones(2, 4), stop_after="7")
    picture = picture_of(made.tables)
    assert [(one.title, one.times) for one in picture.clusters] == [("0 … 6", 7), ("7", 1)]
    assert [one.title for one in picture.nodes if "halted" in one.marks] == ["relu_16"]
    assert {
        frozenset(one.marks)
        for one in picture_of(made.tables, PictureOptions(collapse="max")).nodes
        if one.kind == "module"
    } == {
        frozenset(),
        frozenset({"halted"}),
    }
    made.cleanup()


class Twice(nn.Module):
    """A module and two ops behind it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.tanh(self.inner(x)).relu())


def test_a_module_that_copies_share_is_told_with_its_address() -> None:
    shared = nn.Linear(4, 4)
    made = tl.trace(nn.Sequential(*[Twice(shared) for _ in range(12)]), torch.ones(2, 4))
    picture = picture_of(made.tables)
    assert [(one.title, one.times) for one in picture.clusters] == [("0 … 11", 12)]
    assert node(picture, "linear_1:1").lines[1:] == ("@ inner:1", "shared: 0.inner")
    made.cleanup()

    two = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)]
    made = tl.trace(nn.Sequential(*[Twice(two[number // 6]) for number in range(12)]), torch.ones(2, 4))
    picture = picture_of(made.tables, PictureOptions(collapse="none", fold_repeats=True))
    assert ("inner:1", ("Sequential, 2 modules, shared",)) in [(one.title, one.lines) for one in picture.clusters]
    made.cleanup()

    made = tl.trace(nn.Sequential(*[Twice(nn.Linear(4, 4)) for _ in range(12)]), torch.ones(2, 4))
    assert "shared" not in str(picture_of(made.tables))
    made.cleanup()


class Asking(nn.Module):
    """Asks for a truth."""

    def __init__(self, answer: float) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) if (x * 0 + self.answer).sum() > 0 else x.relu()


@pytest.mark.parametrize("rolled", [False, True])
def test_modules_that_were_answered_differently_are_not_folded(rolled: bool) -> None:
    made = tl.trace(nn.Sequential(*[Asking(number % 3) for number in range(12)]), torch.ones(2, 4))
    picture = picture_of(made.tables, PictureOptions(collapse="none", fold_repeats=True, rolled=rolled))
    answers = {row: line for one in picture.nodes for line in one.lines if line.startswith("if: ") for row in one.rows}
    assert list(dict(sorted(answers.items())).values()) == [f"if: {number % 3 > 0}" for number in range(12)]
    made.cleanup()


def test_each_evaluation_that_enters_an_arm_is_told() -> None:
    def model(x: Tensor) -> Tensor:
        for number in range(4):
            if x.sum() * 0 + number > 0:
                x = x * 2
                x = x - 1
            else:
                x = x + 1
        return x

    made = tl.trace(model, torch.ones(2, 4))
    arms = {(source, target): label for source, target, _, label in edges(picture_of(made.tables)) if label}
    assert arms == {
        ("input_1", "add_2"): "else",
        ("add_2", "mul_2:1"): "then",
        ("sub_1:1", "mul_2:2"): "then",
        ("sub_1:2", "mul_2:3"): "then",
    }
    rolled = edges(picture_of(made.tables, PictureOptions(rolled=True)))
    assert {
        ("input_1", "add_2", "forward", "else"),
        ("add_2", "mul_2", "forward", "then, to pass 1"),
        ("sub_1", "mul_2", "recurrent", "then, 1-2 → 2-3"),
        ("mul_2", "sub_1", "forward", None),
    } <= rolled
    made.cleanup()


def left_for_a_nan(model: Any) -> Picture:
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(model, torch.ones(2, 4), capture=tl.CaptureOptions(raise_on_nan=True))
    return picture_of(raised.value.partial_trace.tables)


def test_the_op_that_a_forward_was_left_at_for_its_value_is_marked() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(-x - 1) + 1

    picture = left_for_a_nan(nn.Sequential(*[nn.Sequential(nn.ReLU(), nn.Tanh()) for _ in range(60)], Log()))
    assert [(one.title, one.kind) for one in picture.nodes if "nonfinite" in one.marks] == [("log_1", "op")]
    assert picture.caption[0] == "aborted_nonfinite: 8 NaN elements"


def test_a_call_on_an_island_that_a_forward_was_left_at_is_drawn_red() -> None:
    picture = left_for_a_nan(lambda x: torch.relu(x) + torch.zeros(2).log())
    (left,) = [one for one in picture.nodes if "nonfinite" in one.marks]
    assert (left.kind, left.title, left.lines) == ("failed", "log", ("(2,)", "2 infinite elements"))


def test_shared_parameters_are_drawn_where_they_mean_something() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    made = tl.trace(Tied(), torch.zeros(2, dtype=torch.long))
    picture = picture_of(made.tables)
    assert {("embed.weight", "embedding_1", "forward", None), ("embed.weight", "linear_1", "forward", None)} <= edges(
        picture
    )
    assert not [one for one in picture_of(made.tables, PictureOptions(params="never")).nodes if one.kind == "param"]
    made.cleanup()


@given(programs())
@settings(max_examples=12)
def test_a_picture_is_the_same_live_and_reopened(tmp_path_factory: pytest.TempPathFactory, program: Program) -> None:
    path = tmp_path_factory.mktemp("j") / "j"
    torch.manual_seed(program.seed)
    try:
        live = tl.trace(*program.build(), journal=path)
    except tl.TraceCaptureError as raised:
        live = raised.partial_trace
    views: list[dict[str, Any]] = [{}, {"rolled": True}, {"collapse": "none", "buffers": "always", "params": "always"}]
    pictures = [picture_of(live.tables, PictureOptions(**view)) for view in views]
    live.cleanup()
    stored = tl.load(path)
    assert [picture_of(stored.tables, PictureOptions(**view)) for view in views] == pictures


class Chain(nn.Module):
    """Modules and calls of torch, one after the other."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(length))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_a_chain_is_folded_with_its_backward_beside_it() -> None:
    made = tl.trace(Chain(40), torch.ones(2, 4), save=[])
    made.backward(made.output.sum())
    picture = picture_of(made.tables, PictureOptions(graph="combined"))
    (stretch,) = [cluster for cluster in picture.clusters if cluster.times == 40]
    assert stretch.title == "2 ops, 5 grad_fns"
    assert len(picture.nodes) < 14
    kinds = [edge.kind for edge in picture.edges]
    assert kinds.count("repeat") == 2  # forward and backward
    assert kinds.count("pair") == 2
    made.cleanup()


def test_edges_between_the_same_nodes_tell_a_few_passes_and_that_there_are_more() -> None:
    made = tl.trace(Chain(40), torch.ones(2, 4), save=[])
    picture = picture_of(made.tables, PictureOptions(rolled=True, most_nodes=6))
    assert len(picture.edges) < 20
    assert any(edge.label is not None and edge.label.endswith(", …") for edge in picture.edges)
    assert sum(edge.count for edge in picture.edges) + dict(picture.hidden).get("edges", 0) == 81
    made.cleanup()


def test_the_work_for_a_large_picture_does_not_grow_faster_than_the_capture() -> None:
    from projections.picture.pictures import scene_of
    from projections.picture.repeats import Repeats
    from projections.picture.request import asked
    from projections.picture.scene import Tree

    def looked_at(stages: int) -> int:
        blocks = [f"s{one}.b{two}" for one in range(stages) for two in range(20)]
        made = Made({**{f"s{one}": "Stage" for one in range(stages)}, **dict.fromkeys(blocks, "Block")})
        x = made.input("x")
        for one in range(stages):
            with made.call(f"s{one}", x) as stage:
                for two in range(20):
                    with made.call(f"s{one}.b{two}", x) as block:
                        for number in range(10):
                            x = made.op("fg"[number % 2], x)
                        block.returns(x)
                stage.returns(x)
        tables = made.returns(x).tables()
        assert len(picture_of(tables, PictureOptions(collapse="max")).nodes) == 3
        options = PictureOptions(buffers="never", params="never", node_lines=(), most_nodes=60)
        scene = scene_of(tables, asked(tables, options))
        repeats = Repeats(scene, Tree(scene))
        return repeats.looked_at

    small, large = looked_at(5), looked_at(50)  # 1,000 and 10,000 ops
    assert large < 11 * small
    assert large < 10 * 10_000
