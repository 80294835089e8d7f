"""What the source says of a capture: conditionals, variables, arguments, places; worked examples and a law."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from projections.columns import OCCASION
from torchlens.capture import callsite, source_text
from torchlens.errors import AmbiguousReadError, ConfigurationError
from torchlens.reading.conditionals import Conditional


def arms_of(trace: tl.Trace) -> list[tuple[str | None, ...]]:
    """The arms taken by each conditional, pass by pass."""
    return [conditional.fired_arm_kinds for conditional in trace.conditionals]


def names(trace: tl.Trace) -> dict[str, list[str]]:
    return {op.label: op.var_names for op in trace.ops.compute}


# -- conditionals: worked examples -----------------------------------------------------------------------


def chained(x: Tensor) -> Tensor:
    if x.sum() > 10:
        y = x * 2
    elif x.sum() > 1:
        y = x + 1
    else:
        y = x - 1
    return y.relu()


def test_an_elif_chain_is_one_conditional_with_an_arm_for_each_way() -> None:
    trace = tl.trace(chained, torch.ones(3))
    conditional = trace.conditionals[0]
    assert isinstance(conditional, Conditional)
    assert trace.conditionals.labels == (conditional.id,) == ("cond_gt_1_2",)
    assert (conditional.num_arms, conditional.num_elifs, conditional.has_elif, conditional.has_else) == (
        3,
        1,
        True,
        True,
    )
    assert conditional.test_texts == ("x.sum() > 10", "x.sum() > 1")
    assert (conditional.fired_arm_index, conditional.fired_arm_kind) == (1, "elif")
    then, elif_, else_ = conditional.arms
    assert (then.terminal_bool_op_label, then.bool_value_at_run, then.fired) == ("gt_1_2", False, False)
    assert (elif_.terminal_bool_op_label, elif_.bool_value_at_run, elif_.fired) == ("gt_2_4", True, True)
    assert (else_.condition_evaluated, else_.bool_value_at_run, else_.fired) == (False, None, False)
    assert (elif_.evaluation_entry_edge, elif_.execution_entry_edge) == (("input_1", "sum_2_3"), ("input_1", "add_1_5"))
    assert else_.execution_entry_edge is None
    assert (conditional.source_file, conditional.source_line) == (__file__, chained.__code__.co_firstlineno + 1)
    test = trace.ops["gt_2_4"]
    assert (test.conditional_context_kind, test.terminal_bool_for) == ("elif_test", ("cond_gt_1_2", 1))
    assert trace.ops["sum_2_3"].in_conditionals == (("cond_gt_1_2", 1, "elif", "evaluation"),)
    body = trace.ops["add_1_5"]
    assert body.in_conditionals == (("cond_gt_1_2", 1, "elif", "body"),)
    assert (body.conditional_branch_stack, body.conditional_branch_depth) == (((0, "elif_1"),), 1)
    assert trace["input_1"].ops[0].conditional_arm_children == {0: {"elif_1": ["add_1_5"]}}
    assert trace.ops["relu_1_6"].conditional_branch_stack == ()
    assert (trace.num_conditionals, trace.has_conditional_branching, trace.is_dynamic_graph) == (1, True, True)


def looped(x: Tensor) -> Tensor:
    for _ in range(3):
        if x.sum() > 4:
            x = x - 1
        else:
            x = x * 2
    return x


def test_an_if_in_a_loop_is_one_conditional_with_a_pass_each_time() -> None:
    trace = tl.trace(looped, torch.full((2,), 1.5))
    (conditional,) = trace.conditionals
    assert conditional.fired_arm_kinds == ("else", "then", "else")
    assert [one.arms[0].bool_value_at_run for one in conditional.passes] == [False, True, False]
    assert [one.arms[0].terminal_bool_op_label for one in conditional.passes] == ["gt_1_2:1", "gt_1_2:2", "gt_1_2:3"]
    for field in ("arms", "fired_arm", "fired_arm_index", "fired_arm_kind"):
        with pytest.raises(AmbiguousReadError) as refused:
            getattr(conditional, field)
        assert refused.value.code == "conditional_pass_ambiguous"
    assert trace.layers["mul_1_3"].conditional_branch_stack_ops == {((0, "else"),): [1, 2]}
    assert trace.layers["gt_1_2"].in_conditionals == ((conditional.id, 0, "then", "evaluation"),)


def helper(x: Tensor) -> Tensor:
    return x + 1 if x.mean() > 0 else x - 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
        nn.init.ones_(self.inner[0].weight)  # type: ignore[arg-type]  # it is a tensor

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = self.inner(x)
            x = helper(x.abs())
        return helper(x) if x.max() < 0 else x


def test_what_a_module_or_a_helper_does_that_is_called_in_an_arm_runs_in_the_arm() -> None:
    trace = tl.trace(Outer(), torch.ones(1, 2))
    stacks = {op.func_name: op.conditional_branch_stack for op in trace.ops.compute if op.conditional_branch_stack}
    assert stacks["linear"] == stacks["relu"] == stacks["__abs__"] == stacks["mean"] == ((0, "then"),)
    assert stacks["__add__"] == ((0, "then"), (1, "then"))
    assert [conditional.kind for conditional in trace.conditionals] == ["if", "ifexp", "ifexp"]
    assert arms_of(trace) == [("then",), ("then",), ("else",)]


def twice(x: Tensor) -> Tensor:
    a = helper(x)
    b = helper(-x)
    return a + b


def test_a_helper_called_from_two_places_has_a_conditional_for_each() -> None:
    trace = tl.trace(twice, torch.ones(2))
    assert [conditional.source_line for conditional in trace.conditionals] == [helper.__code__.co_firstlineno + 1] * 2
    assert arms_of(trace) == [("then",), ("else",)]
    assert len(set(trace.conditionals.labels)) == 2


@pytest.fixture
def _older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of these tests are from before this process, however soon after they were written it began: they do not
    compile to what runs, since pytest rewrites assertions."""
    monkeypatch.setattr(source_text, "began", lambda: time.time() + 60)


@pytest.mark.usefixtures("_older")
def test_each_context_is_told_and_only_three_make_conditionals() -> None:
    def model(x: Tensor) -> Tensor:
        s = x.sum()
        while s > 10:
            s = s / 2
        assert s < 10
        kept = [t for t in x.unbind() if t > 0]
        flag = bool(s > 1)
        if bool(s > 2) and len(kept) > 1 and flag:
            s = s + 1
        return s if not s > 100 else -s

    trace = tl.trace(model, torch.full((4,), 4.0))
    told = [op.conditional_context_kind for op in trace.ops.compute if op.is_terminal_bool]
    assert told == ["while", "while", "assert", *["unknown"] * 5, "if_test", "ifexp"]
    casts = [op.conditional_wrapper_kind for op in trace.ops.compute if op.is_terminal_bool]
    assert casts == [*[None] * 7, "bool_cast", "bool_cast", None]
    assert arms_of(trace) == [("then",), ("then",)]
    assert sum(op.is_terminal_conditional_bool for op in trace.ops) == 2


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_where_something_else_had_a_part_an_op_in_the_arm_tells_and_else_nothing_does(flag: bool, sign: int) -> None:
    def working(x: Tensor) -> Tensor:
        if x.sum() > 0 and flag:
            x = x + 1
        else:
            x = x * 2
        return x

    def idle(x: Tensor) -> Tensor:
        y = x
        if x.sum() > 0 and flag:
            pass
        else:
            y = 3
        return x * y

    x = torch.full((2,), float(sign))
    assert arms_of(tl.trace(working, x)) == [("then" if flag and sign > 0 else "else",)]
    (conditional,) = tl.trace(idle, x).conditionals
    assert [arm.fired for arm in conditional.arms] == ([None, None] if sign > 0 else [False, True])
    assert conditional.fired_arm_kind == (None if sign > 0 else "else")


@pytest.mark.parametrize("a", [True, False])
@pytest.mark.parametrize("b", [True, False])
@pytest.mark.parametrize("c", [True, False])
def test_parts_of_a_test_that_are_plain_names_are_told_apart_by_their_order(a: bool, b: bool, c: bool) -> None:
    def model(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        for _ in range(2):
            if (a and b) or not c:
                x = x + 1
            else:
                x = x * 2
        return x

    trace = tl.trace(model, [torch.ones(1), torch.tensor(a), torch.tensor(b), torch.tensor(c)])
    assert arms_of(trace) == [("then" if (a and b) or not c else "else",) * 2]


@pytest.mark.parametrize("first", [1.0, -1.0])
@pytest.mark.parametrize("second", [True, False])
def test_a_name_behind_a_comparison_is_not_taken_for_it(first: float, second: bool) -> None:
    """Python 3.11 tells the truth of the name at the span of the comparison before it."""
    constant = torch.tensor(second)

    def model(x: Tensor, t: Tensor) -> Tensor:
        for _ in range(2):
            x = x + 1 if x.sum() > 0 or t else x - 1
            if x.sum() > 0 and constant:
                x = x * 2
            else:
                x = x * 3
        return x

    trace = tl.trace(model, [torch.tensor([first]), torch.tensor(second)])
    sums = [op.func_name for op in trace.ops.compute if op.func_name in ("__add__", "__sub__")]
    assert trace.conditionals[0].fired_arm_kinds == tuple("then" if name == "__add__" else "else" for name in sums)
    muls = [int(op.non_tensor_pos_args[0]) for op in trace.ops.compute if op.func_name == "__mul__"]
    assert trace.conditionals[1].fired_arm_kinds == tuple("then" if by == 2 else "else" for by in muls)


def test_comparisons_in_a_chain_and_any_and_all_are_each_one_test() -> None:
    def model(x: Tensor) -> Tensor:
        for _ in range(2):
            if 0 < x.sum() < 100:
                x = x + 1
            if any(t > 5 for t in x.unbind()):
                x = x * 2
            if all(t > 1 for t in x.unbind()):
                x = x - 1
        return x

    trace = tl.trace(model, torch.tensor([1.0, 4.5]))
    assert arms_of(trace) == [("then", "then"), ("then", "then"), ("then", "then")]
    assert [len(conditional.passes) for conditional in trace.conditionals] == [2, 2, 2]


@pytest.mark.parametrize("values", [(3.0, 1.0, 2.0), (1.0, 1.0, 2.0), (0.0, 2.0, 2.0)])
def test_a_comparison_of_items_is_one_test_and_says_no_more_than_its_items_tell(values: tuple[float, ...]) -> None:
    def model(x: Tensor) -> Tensor:
        a, b, c = x.unbind()
        if a not in (b, x[0]):
            x = x + 1
        else:
            x = x - 1
        if a in [b, c]:
            x = x + 1
        else:
            x = x - 1
        if (a, b) < (x.max(), c):
            x = x + 1
        else:
            x = x - 1
        if [a, b] == [c, b]:
            x = x + 1
        else:
            x = x - 1
        if (b, c) != (a, c):
            x = x + 1
        else:
            x = x - 1
        return x

    trace = tl.trace(model, torch.tensor(values))
    adds = [op.func_name for op in trace.ops.compute if op.func_name in ("__add__", "__sub__")]
    assert arms_of(trace) == [("then" if add == "__add__" else "else",) for add in adds]
    assert [op.conditional_branch_stack for op in trace.ops.compute if op.func_name in ("__add__", "__sub__")] == [
        ((number, "then" if add == "__add__" else "else"),) for number, add in enumerate(adds)
    ]


def test_a_search_in_a_loop_is_evaluated_each_time() -> None:
    def model(x: Tensor) -> Tensor:
        parts = x.unbind()
        for part in parts:
            if part in (x[0], x[2]):
                x = x + 1
        for part in parts[1:]:
            if part not in parts[:1]:
                x = x * 2
        for part in parts:
            if part in (x[0], x[1]):
                pass
        return x

    trace = tl.trace(model, torch.tensor([3.0, 1.0, 2.0]))
    assert arms_of(trace) == [("then", None, None), ("then", "then"), (None, None, None)]


def test_an_arm_is_found_whatever_else_has_code_of_its_own_on_the_line() -> None:
    def model(x: Tensor) -> Tensor:
        # fmt: off
        h = sorted([1, 2], key=lambda q: q); y = (x + 1 if x.sum() > 100 else x - 1); g = lambda: h  # noqa: E702, E731
        pick = lambda t, by=(x * 2 if x.sum() > 0 else x): (t * by if t > 1 else t + by)  # noqa: B008, E731
        z = [q + 1 for q in [1]] and (x * 3 if x.sum() > 0 else x / 3)
        # fmt: on
        return y + z + torch.stack([pick(t, 2) for t in x.unbind()]).sum() + len(g())

    trace = tl.trace(model, torch.tensor([3.0, 1.0]))
    assert arms_of(trace) == [("else",), ("then",), ("then",), ("then", "else")]
    in_arms = {op.func_name: [] for op in trace.ops.compute if op.conditional_branch_stack}
    for op in trace.ops.compute:
        if op.conditional_branch_stack:
            in_arms[op.func_name].append(op.conditional_branch_stack)
    assert in_arms == {
        "__sub__": [((0, "else"),)],
        "__mul__": [((1, "then"),), ((2, "then"),), ((3, "then"),)],
        "__add__": [((3, "else"),)],
    }


def test_code_without_a_name_of_its_own_is_read_where_it_stands() -> None:
    def model(x: Tensor) -> Tensor:
        pick = lambda t: t + 1 if t > 0 else t - 1  # noqa: E731
        parts = [t * 2 if t > 1 else t * 3 for t in x.unbind()]
        return torch.stack([pick(t) for t in parts])

    trace = tl.trace(model, torch.tensor([2.0, -1.0]))
    assert arms_of(trace) == [("then", "else"), ("then", "else")]


def test_a_module_that_calls_itself_has_passes_that_do_not_mix() -> None:
    class Again(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            if x.sum() > 3:
                x = self(x - 1, depth + 1)
                x = x * 2
            else:
                x = x + 1
            return x

    trace = tl.trace(Again(), [torch.tensor([2.0, 3.0]), 0])
    assert arms_of(trace) == [("then", "else")]
    muls = [op.conditional_branch_stack for op in trace.ops if op.func_name == "__mul__"]
    assert muls == [((0, "then"),)]
    adds = [op.conditional_branch_stack for op in trace.ops if op.func_name == "__add__"]
    assert adds == [((0, "then"), (0, "else"))]  # in the else arm of the call inside the then arm


def test_an_early_return_and_an_arm_without_ops_are_told_by_the_truth() -> None:
    def model(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x

    trace = tl.trace(model, torch.ones(2))
    (conditional,) = trace.conditionals
    assert conditional.fired_arm_kind == "then"
    assert conditional.arms[0].execution_entry_edge is None


def test_two_tests_of_one_op_have_ids_of_their_own_and_an_island_is_told_as_unseen() -> None:
    def model(x: Tensor) -> Tensor:
        test = x.sum() > 0
        if test:
            x = x + 1
        if test:
            x = x + 2
        if torch.ones(1) > 0:
            x = x + 3
        return x

    trace = tl.trace(model, torch.ones(2))
    assert trace.conditionals.labels == ("cond_gt_1_2", "cond_gt_1_2_2", "cond_unseen_1")
    assert trace.conditionals["cond_unseen_1"].arms[0].terminal_bool_op_label is None
    assert trace.ops["gt_1_2"].terminal_bool_for == ("cond_gt_1_2", 0)
    assert arms_of(trace) == [("then",)] * 3


def test_a_capture_without_a_test_has_no_conditionals_and_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    monkeypatch.setattr("projections.source.texts.parse", None)
    assert len(trace.conditionals) == 0
    assert [op.in_conditionals for op in trace.ops] == [()] * 3
    assert (trace.num_conditionals, trace.is_dynamic_graph) == (0, False)


def test_a_frame_of_conditionals_has_a_row_for_each() -> None:
    pytest.importorskip("pandas")
    frame = tl.trace(looped, torch.ones(2)).conditionals.to_pandas()
    assert list(frame["id"]) == ["cond_gt_1_2"]
    assert list(frame["num_passes"]) == [3]


def test_a_journal_read_again_tells_the_same_and_needs_no_source_file(tmp_path: Path) -> None:
    module = imported(tmp_path / "gone.py", "def model(x):\n    y = x * 2 if x.sum() > 0 else x\n    return y\n")
    live = tl.trace(module.model, torch.ones(2), journal=tmp_path / "j")
    told = (arms_of(live), names(live), live.fingerprint)
    live.cleanup()
    (tmp_path / "gone.py").write_text("nothing = 1\n")
    again = tl.load(tmp_path / "j")
    assert (arms_of(again), names(again), again.fingerprint) == told
    assert arms_of(again) == [("then",)]
    again.cleanup()


# -- where there is less to go by ------------------------------------------------------------------------


@pytest.fixture
def _without_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Python 3.10, which tells no columns."""
    monkeypatch.setattr(callsite, "_KNOWN", {})
    known = callsite.known

    def blind(code: Any) -> Any:
        entry = known(code)
        entry.spans = None
        return entry

    monkeypatch.setattr(callsite, "known", blind)


@pytest.mark.usefixtures("_without_columns")
def test_without_columns_a_line_counts_where_one_arm_alone_stands_on_it() -> None:
    trace = tl.trace(chained, torch.ones(3))
    assert arms_of(trace) == [("elif",)]
    assert trace.ops["add_1_5"].conditional_branch_stack == ((0, "elif_1"),)
    assert trace.ops["add_1_5"].var_names == trace.ops["add_1_5"].arg_expressions == []
    assert arms_of(tl.trace(looped, torch.full((2,), 1.5))) == [("else", "then", "else")]
    on_one_line = tl.trace(helper, torch.ones(2))
    assert arms_of(on_one_line) == [("then",)]
    assert [op.conditional_branch_stack for op in on_one_line.ops.compute] == [()] * 3


def test_code_without_source_claims_nothing() -> None:
    namespace: dict[str, Any] = {}
    source = compile("def model(x):\n    y = x * 2 if x.sum() > 0 else x\n    return y\n", "<made up>", "exec")
    function = next(constant for constant in source.co_consts if hasattr(constant, "co_code"))
    model = type(test_code_without_source_claims_nothing)(function, namespace)
    trace = tl.trace(model, torch.ones(2))
    assert len(trace.conditionals) == 0
    assert trace.ops["gt_1_2"].conditional_context_kind == "unknown"
    assert set(map(tuple, names(trace).values())) == {()}
    assert trace.ops["gt_1_2"].code_context[0].source_context is None
    assert trace.ops["gt_1_2"].code_context[0].func_signature is None


def test_a_file_that_was_changed_since_it_was_imported_claims_nothing(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    module = imported(path, "def model(x):\n    y = x * 2 if x.sum() > 0 else x\n    return y\n")
    path.write_text("def other(x):\n    z = x * 2 if x.sum() > 0 else x\n    return z\n")
    trace = tl.trace(module.model, torch.ones(2))
    assert len(trace.conditionals) == 0
    assert set(map(tuple, names(trace).values())) == {()}


FIRST = "def model(x):\n    y = x * 2\n    return y\n"
SECOND = "def model(x):\n    z = x * 3\n    return z\n"


def said_of(function: Any) -> tuple[list[list[str]], list[str | None]]:
    """Variables, and the lines of the calls, of a function's capture."""
    trace = tl.trace(function, torch.ones(2))
    return [op.var_names for op in trace.ops.compute], [op.code_context[0].call_line for op in trace.ops.compute]


def test_a_module_that_is_imported_again_has_its_new_text_and_old_code_has_none_that_is_not_its_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "again.py"
    module = imported(path, FIRST)
    first = module.model
    assert said_of(first) == ([["y"]], ["y = x * 2"])
    path.write_text("# moved\n" + SECOND)
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)
    assert said_of(module.model) == ([["z"]], ["z = x * 3"])
    assert said_of(first) == ([["y"]], ["y = x * 2"])


@pytest.mark.parametrize(
    "text",
    [SECOND, FIRST.replace("2", "3"), FIRST.replace("y", "w"), "\n" + FIRST, FIRST.replace("x", "x "), "def model("],
)
def test_text_that_does_not_give_the_code_that_ran_is_not_taken_for_its_source(tmp_path: Path, text: str) -> None:
    path = tmp_path / "changed.py"
    module = imported(path, FIRST)
    path.write_text(text)
    said = said_of(module.model)
    assert said == ([[]], [None]) or (text == FIRST.replace("x", "x ") and said == ([["y"]], ["y = x  * 2"]))


def test_a_file_that_was_only_touched_or_changed_elsewhere_is_source_as_before(tmp_path: Path) -> None:
    path = tmp_path / "touched.py"
    module = imported(path, FIRST)
    path.touch()
    assert said_of(module.model) == ([["y"]], ["y = x * 2"])
    other = imported(path, FIRST)
    path.write_text(FIRST + "def more(x):\n    return x\n")
    assert said_of(other.model) == ([["y"]], ["y = x * 2"])


def test_a_cell_of_a_notebook_has_the_text_it_was_made_of() -> None:
    cell = FIRST + "await nothing\n"
    whole = compile(cell, "<cell 1>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    code = next(constant for constant in whole.co_consts if hasattr(constant, "co_code"))
    function = type(said_of)(code, {})
    linecache.cache["<cell 1>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 1>")
    assert said_of(function) == ([["y"]], ["y = x * 2"])


@pytest.mark.usefixtures("_older")
def test_a_file_from_before_this_process_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_text, "is_compiled_from", None)
    assert source_text.source_of(looped.__code__) is not None


def test_a_process_began_after_its_machine() -> None:
    assert 0 <= time.time() - source_text.began() < time.monotonic() + 10


def test_the_texts_that_are_checked_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = source_text._CHECKED
    monkeypatch.setattr(source_text, "MOST_FILES", 3)
    for number in range(5):
        assert source_text.source_of(imported(tmp_path / f"one_{number}.py", FIRST).model.__code__) == FIRST.encode()
        assert len(checked) <= 3
    monkeypatch.setattr(source_text, "MOST_CHECKED", 10)
    assert source_text.source_of(imported(tmp_path / "long.py", FIRST).model.__code__) is None


# -- variables and arguments -----------------------------------------------------------------------------


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4)
        self.kept: Any = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        low, high = x.chunk(2, dim=1)
        first, *rest = x.unsafe_split(1, 1)
        out, (h, c) = self.lstm(x.unsqueeze(0))
        values, places = out.max(1)
        a = b = low.relu()
        self.kept = torch.cat([a, high], dim=1)
        spare = {}
        spare["k"] = b.exp()
        hidden += 1
        hidden[0] = 5.0
        tail = len(rest) + places.sum() + values.sum() + (h + c).sum() + first.sum()
        one, two = x + 1, x - 1
        total = torch.add(one, two, alpha=2) if (m := x.max()) > 0 else two
        # fmt: off
        chained = (x.abs()
                   .neg())
        # fmt: on
        return total + chained + hidden.sum() + tail + m


def test_variables_are_what_the_result_was_assigned_to() -> None:
    trace = tl.trace(Named(), torch.ones(2, 4))
    found: dict[str, list[list[str]]] = {}
    for op in trace.ops.compute:
        found.setdefault(op.func_name, []).append(op.var_names)
    assert found["linear"] == [["hidden"]]
    assert found["chunk"] == [["low"], ["high"]]
    assert found["unsafe_split"] == [["first"], ["rest"], ["rest"], ["rest"]]
    assert found["lstm"] == [["out"], ["h"], ["c"]]
    assert found["max"] == [["values"], ["places"], ["m"]]
    assert found["relu"] == [["a", "b"]]
    assert found["cat"] == [["self.kept"]]
    assert found["exp"] == [['spare["k"]']]
    assert found["__iadd__"] == [["hidden"]]
    assert found["__setitem__"] == [["hidden[0]"]]
    assert ["one"] in found["__add__"]
    assert found["__sub__"] == [["two"]]
    assert found["add"] == [["total"]]
    assert found["__abs__"] == [[]]
    assert found["__neg__"] == [["chained"]]


def test_arguments_are_the_text_of_the_call() -> None:
    trace = tl.trace(Named(), torch.ones(2, 4))
    found = {op.func_name: op.arg_expressions for op in trace.ops.compute}
    assert found["chunk"] == ["2", "dim=1"]
    assert found["cat"] == ["[a, high]", "dim=1"]
    assert found["add"] == ["one", "two", "alpha=2"]
    assert found["linear"] == ["input", "self.weight", "self.bias"]
    assert found["__sub__"] == found["__setitem__"] == found["relu"] == []
    assert trace["input_1"].ops[0].var_names == []


class Keyed:
    """Whose comparison is of Python."""

    def __init__(self, of: Tensor) -> None:
        self.of = of

    def __eq__(self, other: object) -> Any:
        return self.of == other

    __hash__ = None  # type: ignore[assignment]  # as lists have none


def test_what_c_code_calls_back_has_no_name_of_the_whole() -> None:
    def model(x: Tensor) -> list[Any]:
        parts = [x[0], x[1]]
        again = [x[0], x[1]]
        act = nn.ReLU()
        least = min(x[0], x[1])
        found = x[0] in [x[1], x[0]]
        missed = x[0] not in parts
        order = sorted(parts, key=lambda t: -t)
        most = max(parts, key=lambda t: t.exp())
        total = functools.reduce(torch.add, parts)
        place = parts.index(x[1])
        count = parts.count(x[0])
        twice = list(map(lambda t: t * 2, parts))  # noqa: C417  # a function of Python that C calls
        acts = list(map(act, parts))
        sines = tuple(map(torch.sin, parts))
        added = sum(parts)
        same = parts == again
        less = (x[0],) < (x[1],)
        between = 0 < x[0] < 5
        smallest = min
        aliased = smallest(x[0], x[1])
        keyed = [Keyed(x[0])].index(x[0])
        calls = [least, order, most, total, place, count, twice, acts, sines, added, aliased, keyed]
        return [*calls, found, missed, same, less, between]

    trace = tl.trace(model, torch.tensor([3.0, 1.0]))
    named = {op.func_name: op.var_names for op in trace.ops.compute if op.var_names}
    given = {op.func_name for op in trace.ops.compute if op.arg_expressions}
    assert named == {}
    assert given == {"relu"}  # in the text of the module


def test_an_expressions_own_call_has_its_name_however_it_is_spelt() -> None:
    def helper(t: Tensor) -> Tensor:
        return t.tan()

    def model(x: Tensor) -> Any:
        call, act, module = helper, torch.sigmoid, nn.ReLU()
        a = 2 / x
        b = x // 2
        c = 2**x
        d = abs(x)
        e = x.mT
        f = x.data
        g = x[0]
        h = call(x)
        i = act(x)
        j = 3 < x  # noqa: SIM300  # done by the other operand's method
        k = module(x)
        l = (lambda t: t + 1)(x)  # noqa: E741
        m = pow(x, 2)
        n = -x
        o = x.neg()
        p = torch.linalg.norm(x)
        if q := x[0, 0] != 1:
            n = n + 1
        r = ~x.long()
        return a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r

    trace = tl.trace(model, torch.ones(2, 2) + 1)
    named = {name for op in trace.ops.compute for name in op.var_names}
    assert named == set("abcdefghijklmnopqr")
    assert all(len(op.var_names) <= 1 for op in trace.ops.compute)


# -- places ----------------------------------------------------------------------------------------------


def documented(x: Tensor, *, by: float = 2) -> Tensor:
    """Multiplies."""
    a = 1
    b = 2
    return x * by + a + b


def test_a_place_has_text_around_it_as_many_lines_as_were_asked_for() -> None:
    trace = tl.trace(documented, torch.ones(1), capture=tl.CaptureOptions(source_context_lines=1))
    place, caller = trace.ops["mul_1_1"].code_context
    assert (place.call_line, place.num_context_lines) == ("return x * by + a + b", 2)
    assert place.source_context == "    b = 2\n    return x * by + a + b"
    assert place.code_context_labeled == "         b = 2\n--->     return x * by + a + b"
    assert (place.func_signature, place.func_docstring) == ("(x: Tensor, *, by: float=2) -> Tensor", "Multiplies.")
    assert place.source_text is not None
    assert place.source_text.startswith("def documented")
    assert place.source_loading_enabled
    assert caller == trace.called_from
    assert caller.func_name == "test_a_place_has_text_around_it_as_many_lines_as_were_asked_for"
    assert (caller.source_loading_enabled, caller.call_line, caller.num_context_lines) == (False, None, None)
    whole = tl.trace(documented, torch.ones(1)).ops["mul_1_1"].code_context[0]
    assert whole.num_context_lines == 5


@pytest.mark.usefixtures("_older")
def test_code_context_that_was_asked_for_holds_facts_of_classes_and_the_calling_function() -> None:
    trace = tl.trace(Outer(), torch.ones(1, 2), capture=tl.CaptureOptions(save_code_context=True))
    called = trace.called_from
    assert called is not None
    assert called.call_line is not None
    assert called.call_line.startswith("trace = tl.trace(Outer()")
    root, linear = trace.root_module, trace.modules["inner.0"]
    assert (root.forward_signature, root.init_signature) == ("(self, x: 'Tensor') -> 'Tensor'", "(self) -> 'None'")
    assert root.class_docstring is None
    assert root.forward_source_location == f"{__file__}:{Outer.forward.__code__.co_firstlineno}"
    assert root.class_source_location is not None
    assert root.class_source_location.startswith(f"{__file__}:")
    assert linear.class_docstring is not None
    assert linear.class_docstring.startswith("Applies")
    assert linear.init_source_location is not None
    plain = tl.trace(Outer(), torch.ones(1, 2))
    facts = ("class_docstring", "forward_signature", "init_signature", "class_source_location", "init_source_location")
    assert [getattr(plain.root_module, fact) for fact in facts] == [None] * 5
    assert plain.modules["inner.0"].class_docstring is None


def test_the_class_of_a_module_that_the_model_does_not_register_is_told_too() -> None:
    hidden = [nn.Linear(2, 2)]

    class Hides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return hidden[0](x)

    trace = tl.trace(Hides(), torch.ones(1, 2), capture=tl.CaptureOptions(save_code_context=True))
    assert trace.modules["~Linear_1"].forward_signature is not None


@pytest.mark.parametrize("value", [-1, 1.5, True, "7"])
def test_a_number_of_lines_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tl.CaptureOptions(source_context_lines=value)
    assert refused.value.code == "option_value_invalid"


def test_who_asked_for_a_capture_is_of_the_occasion() -> None:
    one = tl.trace(documented, torch.ones(1))
    other = tl.trace(documented, torch.ones(1))
    assert one.called_from != other.called_from
    for name, table in one.tables.all.items():
        for column in set(table.names) - OCCASION[name]:
            assert list(table.column(column)) == list(other.tables.table(name).column(column))


# -- the law: arms as an instrumented run tells them ---------------------------------------------------------


def imported(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"made_{abs(hash(str(path)))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TESTS = (
    "x.sum() > {n}",
    "not x.sum() > {n}",
    "x.max() < {n}",
    "x.sum() > {n} and x.min() < {n}",
    "x.sum() > {n} or x.min() > -{n}",
    "-{n} < x.sum() < {n}",
    "bool(x.mean() > {n})",
    "x.any()",
    "t",
    "not t",
    "t and x.sum() > {n}",
    "(x.sum() > {n} or t) and not x.max() > {n}",
    "any(p > {n} for p in x.unbind())",
    "all(p > -{n} for p in x.unbind())",
)


class Writing:
    """A function in the making: each arm notes that it was taken, and does an op whose constant is its own."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.arms = 0

    def test(self) -> str:
        return self.draw(st.sampled_from(TESTS)).format(n=self.draw(st.integers(0, 6)))

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def arm(self, depth: int, left: int) -> None:
        number = self.arms
        self.arms += 1
        self.add(depth, f"took({number})")
        self.add(depth, f"x = x + {0.001 * (number + 1):.3f}")
        self.block(depth, left - 1)

    def block(self, depth: int, left: int) -> None:
        for _ in range(self.draw(st.integers(0, 2)) if left else 0):
            kind = self.draw(st.sampled_from(("if", "if", "loop", "ifexp", "op")))
            if kind == "loop":
                self.add(depth, f"for _ in range({self.draw(st.integers(1, 3))}):")
                self.add(depth + 1, "x = x * 1.5")
                self.add(depth + 1, "t = x.sum() > 2")
                self.block(depth + 1, left - 1)
            elif kind == "op":
                self.add(depth, "x = x - 0.75")
            elif kind == "ifexp":
                one, other = self.arms, self.arms + 1
                self.arms += 2
                first, second = (f"(took({n}), x + {0.001 * (n + 1):.3f})[1]" for n in (one, other))
                self.add(depth, f"x = {first} if {self.test()} else {second}")
            else:
                self.add(depth, f"if {self.test()}:")
                self.arm(depth + 1, left)
                for _ in range(self.draw(st.integers(0, 2))):
                    self.add(depth, f"elif {self.test()}:")
                    self.arm(depth + 1, left)
                if self.draw(st.booleans()):
                    self.add(depth, "else:")
                    self.arm(depth + 1, left)

    def text(self) -> str:
        self.add(0, "TOOK = []")
        self.add(0, "took = TOOK.append")
        self.add(0, "def model(x):")
        self.add(1, "t = x.sum() > 1")
        self.block(1, 3)
        self.add(1, "return x")
        return "\n".join(self.lines) + "\n"


@given(st.data(), st.lists(st.integers(-3, 4), min_size=2, max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_arms_are_those_that_an_instrumented_run_took(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, values: list[int]
) -> None:
    text = Writing(data.draw).text()
    module = imported(tmp_path_factory.mktemp("made") / "made.py", text)
    trace = tl.trace(module.model, torch.tensor(values, dtype=torch.float32))
    taken = list(module.TOOK)
    # An op of an arm adds a constant of the arm's own: in the order of the ops, these are the arms as they were taken.
    ops = [op for op in trace.ops.compute if op.func_name == "__add__"]
    assert [round(float(op.non_tensor_pos_args[0]) * 1000) - 1 for op in ops] == taken
    conditionals = list(trace.conditionals)
    # Every arm that was taken is told, once for each time.
    told = [kind for conditional in conditionals for kind in conditional.fired_arm_kinds if kind is not None]
    assert len(told) == len(taken)
    # An op stands in an arm of its own line's conditional, in a pass that took that arm.
    for op in ops:
        number, arm = op.conditional_branch_stack[-1]
        conditional = conditionals[number]
        assert arm.partition("_")[0] in conditional.fired_arm_kinds
        assert conditional.source_line <= op.code_context[-2].line_number
    for conditional in conditionals:
        for one in conditional.passes:
            fired = [arm.fired for arm in one.arms]
            assert fired.count(True) <= 1
            assert None not in fired
            assert (True in fired) or not conditional.has_else
            for arm in one.arms:
                assert arm.fired or arm.execution_entry_edge is None
                if arm.kind != "else" and arm.fired:
                    assert arm.bool_value_at_run
    entered = [arm.execution_entry_edge[1] for c in conditionals for one in c.passes for arm in one.arms if arm.fired]
    assert sorted(entered) == sorted(op.label for op in ops)
    trace.check_metadata_invariants()
    trace.cleanup()
