"""Where the work of a model is: the tree of calls, on real models, with their backward and the memory kept for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torchlens as tl
from tests.differentiating import traced
from tests.programs import run
from tests.work import at_most
from torchlens.errors import ConfigurationError, LookupRefused, TraceCleanedUpError
from torchlens.report import CostTree, CostTreeRow, backward_status, cost_tree
from torchlens.report.tree import COLUMNS, WIDTH
from torchlens.testing import Program, programs

BOTH = tl.CaptureOptions(backward_ready=True, measure_autograd_memory=True)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def differentiated(model: Any, *args: Tensor, **options: Any) -> tl.Trace:
    trace = tl.trace(model, list(args), capture=BOTH, save="none", **options)
    trace.backward(trace.output.sum())
    return trace


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.fc(x)) + x
        return out


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        out: Tensor = self.head(torch.tanh(x) * 2)
        return out


def executed(trace: tl.Trace) -> int:
    """FLOPs that the backward passes ran, added."""
    return sum(one.executed_flops for one in trace.autograd.backward_passes)


def told(tree: CostTree, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in names) for row in tree]


# Worked examples ----------------------------------------------------------------------------------------


def test_the_worked_numbers_of_a_small_model() -> None:
    trace = differentiated(mlp(), torch.randn(5, 4))
    tree = cost_tree(trace)
    names = ("row_id", "self_flops", "self_forward_mac_flops", "self_backward_flops", "self_forward_backward_flops")
    assert told(tree, *names) == [
        ("self:1", 0, 0, 0, 0),
        ("0:1", 270, 240, 240, 480),
        ("1:1", 30, 0, 0, 0),
        ("2:1", 195, 180, 360, 540),
        ("::unattributed", 0, 0, 0, 0),
    ]
    root = tree.rows[0]
    assert (root.subtree_flops, root.subtree_pct) == (495, 100)
    assert (root.subtree_forward_mac_flops, root.subtree_backward_flops) == (420, 600)
    assert root.subtree_forward_backward_flops == 1020
    assert (tree.partition_total, tree.executed_flops, tree.hidden_flops, tree.unknown_events) == (495, 600, 0, 0)
    told_of_it = (tree.backward_state, tree.executed_evidence, tree.backward_reason)
    assert told_of_it == ("backward_observed", "measured", None)
    assert tree["2:1"].self_saved_for_backward == 0
    assert tree["1:1"].self_saved_for_backward == root.subtree_saved_for_backward == 120
    assert repr(root.subtree_backward_flops) == "Flops('600 FLOPs')"
    trace.cleanup()


def test_rows_ops_and_tree_give_one_number() -> None:
    trace = differentiated(Looped(), torch.randn(5, 4))
    tree, whole = cost_tree(trace), executed(trace)
    attribution = trace.autograd.backward_passes[0].flops_attribution
    assert attribution is not None
    assert sum(row.flops for row in attribution.rows) + attribution.unattributed_flops == whole
    assert sum(attribution.flops_by_op().values()) == whole, "no work here is without an op"
    assert sum(row.self_backward_flops for row in tree) == tree.executed_flops == whole
    by_call: dict[str | None, int] = {}
    for label, flops in attribution.flops_by_op().items():
        by_call[trace.ops[label].module] = by_call.get(trace.ops[label].module, 0) + flops
    apart = cost_tree(trace, fold_repeats=False)
    assert by_call == {row.row_id: row.self_backward_flops for row in apart if row.self_backward_flops}
    trace.cleanup()


def test_it_is_what_the_flop_counter_of_torch_counts_around_bare_runs() -> None:
    model, x = Looped(), torch.randn(5, 4)
    with FlopCounterMode(display=False) as ahead:
        loss = model(x).sum()
    with FlopCounterMode(display=False) as back:
        loss.backward()
    trace = differentiated(model, x)
    root = cost_tree(trace).rows[0]
    assert root.subtree_forward_mac_flops == ahead.get_total_flops()
    assert root.subtree_backward_flops == back.get_total_flops()
    trace.cleanup()


def test_what_runs_again_under_a_checkpoint_is_backward_work() -> None:
    inner = mlp()

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out

    trace = differentiated(Checkpointed(), torch.randn(5, 4, requires_grad=True))
    tree = cost_tree(trace)
    assert tree.executed_flops == 1080
    assert {row.row_id: row.self_backward_flops for row in tree if row.self_backward_flops} == {
        "inner.0:1": 480,
        "inner.2:1": 600,
    }
    assert sum(row.self_saved_for_backward for row in tree) == 0, "only the input is kept"
    trace.cleanup()


def test_work_without_an_op_has_rows_of_its_own() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=BOTH)
    trace.backward((trace.output @ torch.randn(3, 7, requires_grad=True)).sum())
    tree = cost_tree(trace)
    (row,) = [row for row in tree if row.kind == "grad_fn"]
    assert (row.row_id, row.self_backward_flops, row.parent_id) == ("mm_back_1_2", 2 * 2 * 5 * 3 * 7, "self:1")
    assert (row.self_flops, row.n_ops, row.role) == (0, 0, "owner")
    assert sum(row.self_backward_flops for row in tree) == executed(trace)
    trace.cleanup()


def test_several_backward_passes_add_up() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4), capture=BOTH)
    trace.backward(trace.output.sum(), retain_graph=True)
    once = cost_tree(trace)
    trace.backward(trace.output.pow(2).sum())
    twice = cost_tree(trace)
    assert twice.executed_flops == executed(trace) == 2 * 600
    assert once.executed_flops == 600, "a tree is as it was when it was asked for"
    trace.cleanup()


# Without a counted backward -----------------------------------------------------------------------------


def test_without_a_counted_backward_its_columns_are_none() -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4))
    for state, note in (("grad_enabled_unobserved", "backward not run: "), ("backward_observed", "backward unknown: ")):
        tree = cost_tree(trace)
        assert (tree.backward_state, tree.executed_evidence) == (state, "unknown")
        assert note in str(tree)
        assert tree.backward_reason
        assert tree.executed_flops is tree.hidden_backward_flops is None
        for row in tree:
            assert row.self_backward_flops is row.subtree_backward_flops is None
            assert row.self_forward_backward_flops is row.subtree_forward_backward_flops is None
            assert row.self_saved_for_backward is None, "it was not measured"
        assert tree.backward_reason in str(tree).replace("\n", " ") or "…" in str(tree)
        trace.backward(trace.output.sum(), retain_graph=True)  # no census is taken of it
    trace.cleanup()


def test_where_no_backward_could_be_its_columns_are_none_too() -> None:
    with torch.no_grad():
        trace = tl.trace(mlp(), torch.randn(5, 4))
    tree = cost_tree(trace)
    assert (tree.backward_state, tree.executed_evidence) == ("grad_disabled", "formula_exact")
    assert tree.executed_flops is tree.rows[0].subtree_backward_flops is None
    assert f"backward not run: {tree.backward_reason}" in str(tree)
    trace.cleanup()


def test_a_backward_that_raised_is_not_counted() -> None:
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            raise ValueError("no")

    trace = tl.trace(lambda x: Raising.apply(x), torch.randn(3, requires_grad=True), capture=BOTH)
    with pytest.raises(ValueError, match="no"):
        trace.backward(trace.output.sum())
    tree = cost_tree(trace)
    told_of_it = (tree.backward_state, tree.executed_evidence, tree.executed_flops)
    assert told_of_it == ("backward_observed", "unknown", None)
    assert "raised" in (tree.backward_reason or "")
    trace.cleanup()


def test_work_of_which_nothing_is_known_is_none_and_counted_as_unknown() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * 2

    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = Own.apply(x)
            return out

    trace = differentiated(nn.Sequential(nn.Linear(4, 4), Unknown()), torch.randn(2, 4))
    tree = cost_tree(trace)
    row = tree["1:1"]
    assert row.self_flops is row.self_pct is row.self_forward_mac_flops is row.self_forward_backward_flops is None
    assert (row.n_ops, row.n_unknown_ops, tree.unknown_events) == (1, 1, 1)
    assert tree.partition_total == tree["0:1"].self_flops == trace.total_flops_forward
    assert "without 1 op of unknown work" in str(tree)
    trace.cleanup()


# The shape ----------------------------------------------------------------------------------------------


def test_repeated_calls_that_did_the_same_fold() -> None:
    trace = differentiated(Looped(), torch.randn(5, 4))
    tree, apart = cost_tree(trace), cost_tree(trace, fold_repeats=False)
    names = ("row_id", "label", "class_name", "role", "depth", "parent_id", "passes", "folded", "n_ops", "self_flops")
    assert told(tree, *names) == [
        ("self:1", "Looped", "Looped", "subtotal", 0, None, 1, 1, 0, 0),
        ("block:1", "block:1 (x3)", "Block", "subtotal", 1, "self:1", 3, 3, 3, 60),
        ("block.fc:1", "block.fc:1 (x3)", "Linear", "owner", 2, "block:1", 3, 3, 3, 540),
        ("block.act:1", "block.act:1 (x3)", "ReLU", "owner", 2, "block:1", 3, 3, 3, 60),
        ("head:1", "head:1", "Linear", "owner", 1, "self:1", 1, 1, 1, 90),
        ("::outside", "(ops outside recorded calls)", None, "remainder", 1, "self:1", None, 1, 2, 40),
        ("::unattributed", "(backward under no recorded node)", None, "remainder", 1, "self:1", None, 1, 0, 0),
    ]
    assert [row.row_id for row in apart if row.kind == "call"] == [
        *(label for k in (1, 2, 3) for label in (f"block:{k}", f"block.fc:{k}", f"block.act:{k}")),
        "head:1",
    ]
    first, last = apart["block.fc:1"], apart["block.fc:3"]
    assert last.self_backward_flops == 2 * first.self_backward_flops, "the input of the first needs no gradient"
    assert tree["block.fc:1"].self_backward_flops == 5 * first.self_backward_flops
    trace.cleanup()


def test_calls_that_did_other_work_do_not_fold() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.cat([x, self.fc(x)])
            return x

    trace = tl.trace(Growing(), torch.randn(1, 4))
    assert [row.label for row in cost_tree(trace) if row.kind == "call"] == ["fc:1", "fc:2", "fc:3"]
    trace.cleanup()


def test_what_is_not_shown_is_told_and_not_lost() -> None:
    trace = differentiated(Looped(), torch.randn(5, 4))
    whole = cost_tree(trace)
    shallow = cost_tree(trace, max_depth=1)
    assert told(shallow, "row_id", "label", "self_flops")[:3] == [
        ("self:1", "Looped", 0),
        ("block:1", "block:1 (x3)", 60),
        ("block:1::depth", "(+ 6 calls below depth 1)", 600),
    ]
    assert (shallow.hidden_flops, shallow.hidden_backward_flops) == (600, whole["block:1"].subtree_backward_flops)
    assert "600 FLOPs of the forward in rows for calls not shown" in str(shallow)
    root = cost_tree(trace, max_depth=0)
    assert [row.kind for row in root] == ["root", "remainder", "remainder", "unattributed"]
    largest = cost_tree(trace, top_k=1)
    assert told(largest, "row_id", "label", "self_flops") == [
        ("self:1", "Looped", 0),
        ("block:1", "block:1 (x3)", 60),
        ("block.fc:1", "block.fc:1 (x3)", 540),
        ("block:1::rest", "(+ 3 smaller calls)", 60),
        ("self:1::rest", "(+ 1 smaller call)", 90),
        ("::outside", "(ops outside recorded calls)", 40),
        ("::unattributed", "(backward under no recorded node)", 0),
    ]
    for tree in (whole, shallow, root, largest):
        for name, adds_up in tree.column_additivity.items():
            if adds_up and name not in ("self_pct", "self_recompute_flops"):  # nothing was seen to checkpoint
                total = getattr(whole.rows[0], name.replace("self_", "subtree_"), None)
                total = sum(getattr(row, name) for row in whole) if total is None or name[:2] == "n_" else total
                assert sum(getattr(row, name) for row in tree) == total, name
        assert sum(row.self_pct for row in tree) == pytest.approx(100)
    trace.cleanup()


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, levels: int = 3) -> Tensor:
        x = self.fc(x)
        return self(x, levels - 1) if levels else x


def test_a_model_that_calls_itself_is_a_path() -> None:
    trace = differentiated(Recursive(), torch.randn(2, 4))
    tree = cost_tree(trace)
    assert [(row.row_id, row.depth) for row in tree if row.kind in ("root", "call")] == [
        *(
            ("self:1", 0),
            ("fc:1", 1),
            ("self:2", 1),
            ("fc:2", 2),
            ("self:3", 2),
            ("fc:3", 3),
            ("self:4", 3),
            ("fc:4", 4),
        )
    ]
    assert tree["self:3"].subtree_flops == 2 * tree["fc:1"].self_flops
    assert sum(row.self_backward_flops for row in tree) == executed(trace)
    trace.cleanup()


def test_a_shared_module_has_a_row_where_it_was_called() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.a, self.b = nn.Sequential(self.fc), nn.Sequential(self.fc, nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(self.a(x))
            return out

    trace = tl.trace(Shared(), torch.randn(2, 4))
    rows = [row for row in cost_tree(trace) if row.class_name == "Linear"]
    assert [(row.row_id, row.parent_id, row.passes) for row in rows] == [("fc:1", "a:1", 2), ("fc:2", "b:1", 2)]
    trace.cleanup()


def test_a_call_that_returns_no_tensor_has_a_row() -> None:
    class Silent(nn.Module):
        def forward(self, x: Tensor) -> None:
            x.sum()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.silent = Silent()

        def forward(self, x: Tensor) -> Tensor:
            self.silent(x)
            return x * 2

    trace = tl.trace(Around(), torch.randn(2, 4))
    assert cost_tree(trace)["silent:1"].self_flops == 7
    trace.cleanup()


@pytest.mark.parametrize("ending", ["failed", "halted"])
def test_a_forward_that_did_not_end_has_the_tree_of_what_ran(ending: str) -> None:
    class Breaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.rest = mlp(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            if ending == "failed":
                raise ValueError("enough")
            out: Tensor = self.rest(x)
            return out

    if ending == "failed":
        with pytest.raises(tl.TraceCaptureError) as failed:
            tl.trace(Breaking(), torch.randn(5, 4))
        trace = failed.value.partial_trace
        assert trace is not None
    else:
        trace = tl.trace(Breaking(), torch.randn(5, 4), stop_after="body.1")
    tree = cost_tree(trace)
    assert tree.partition_total == trace.total_flops_forward == (495 if ending == "failed" else 300)
    assert "rest:1" not in [row.row_id for row in tree]
    trace.cleanup()


# Reading it ---------------------------------------------------------------------------------------------


def test_it_prints_as_a_table_that_fits_a_terminal() -> None:
    trace = differentiated(Looped(), torch.randn(5, 4))
    text = str(cost_tree(trace))
    assert text.splitlines()[:9] == [
        "FLOPs by call                        self  subtree       %  backward  saved",
        "---------------------------------------------------------------------------",
        "Looped                                  0      790  100.0%       960  560 B",
        "  block:1 (x3) Block                   60      660   83.5%       800  400 B",
        "    fc:1 (x3) Linear                  540      540   68.4%       800  160 B",
        "    act:1 (x3) ReLU                    60       60    7.6%         0  240 B",
        "  head:1 Linear                        90       90   11.4%       160   80 B",
        "  (ops outside recorded calls)         40       40    5.1%         0   80 B",
        "  (backward under no recorded node)     0        0    0.0%         0    0 B",
    ]
    assert "backward 960 FLOPs in products; products of the forward are 560 FLOPs" in text
    trace.cleanup()


def test_memory_that_is_not_known_is_a_question_mark_and_disclosed() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.off = nn.Linear(4, 5), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            product = torch.sparse.mm(self.fc(x).to_sparse(), torch.ones(5, 2))
            with torch.no_grad():
                self.off(product.detach())
            return product

    trace = tl.trace(Sparse(), torch.ones(3, 4), capture=tl.CaptureOptions(measure_autograd_memory=True))
    tree = cost_tree(trace)
    saved = {row.label: row.subtree_saved_for_backward for row in tree}
    assert saved == {"Sparse": None, "fc:1": 0, "off:1": None, "(ops outside recorded calls)": None}
    assert tree["off:1"].n_untold_ops == 0, "autograd was off, so nobody asks"
    rows = [line.split()[-1] for line in str(tree).splitlines()[2:6]]
    assert sorted(rows) == ["?", "?", "?", "B"]
    assert "saved without 1 op of which torch does not tell" in str(tree).splitlines()
    assert [line.split("|")[-2].strip() for line in tree.to_markdown().splitlines()[2:]].count("?") == 3


def test_wide_names_and_many_rows_still_fit() -> None:
    inner: nn.Module = nn.Linear(1, 1)
    for _ in range(12):
        inner = nn.Sequential(inner)
    wide = nn.ModuleDict({"a_name_that_goes_on_and_on_\x1b[31m": nn.Linear(1, 1), "deep": inner})

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = wide
            self.many = nn.ModuleList([nn.Linear(1, 1) for _ in range(100)])

        def forward(self, x: Tensor) -> Tensor:
            for part in (*self.parts.values(), *self.many):
                x = part(x)
            return x

    trace = differentiated(Wide(), torch.randn(2, 1))
    tree = cost_tree(trace)
    lines = str(tree).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) < 70
    assert lines[-1] == f"{len(tree) - 60} rows below not printed; .rows has all"
    assert "\x1b" not in str(tree) + tree.to_markdown() + repr(tree)
    trace.cleanup()


def test_it_is_a_frame_and_a_table_of_markdown() -> None:
    trace = differentiated(mlp(), torch.randn(5, 4))
    tree = cost_tree(trace)
    frame = tree.to_pandas()
    assert tuple(frame.columns) == COLUMNS
    assert frame.self_backward_flops.sum() == 600
    assert frame.loc[frame.row_id == "0:1", "self_flops"].item() == 270
    table = tree.to_markdown().splitlines()
    assert table[0] == "| call | self | subtree | % | backward | saved |"
    assert table[3] == "| &nbsp;&nbsp;0:1 | 270 | 270 | 54.5% | 240 | 0 B |"
    assert len(table) == len(tree) + 2
    assert repr(tree) == "<CostTree: 5 rows, forward 495 FLOPs, backward 600 FLOPs>"
    assert isinstance(tree.rows[0], CostTreeRow)
    with pytest.raises(KeyError):
        tree["3:1"]
    trace.cleanup()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        *(({"top_k": value}, "cost_tree_top_k_invalid") for value in (0, -1, True, 1.5, "2")),
        *(({"max_depth": value}, "cost_tree_depth_invalid") for value in (-1, False, 0.5, "all")),
        *(({"fold_repeats": value}, "fold_repeats_invalid") for value in (None, 1, "yes")),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], code: str) -> None:
    trace = tl.trace(mlp(), torch.randn(5, 4))
    with pytest.raises(ConfigurationError) as refused:
        cost_tree(trace, **options)
    assert refused.value.code == code
    trace.cleanup()


def test_what_is_no_trace_and_a_cleaned_up_one_are_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        cost_tree(mlp())  # type: ignore[arg-type]
    assert refused.value.code == "cost_tree_type_invalid"
    trace = tl.trace(mlp(), torch.randn(5, 4))
    trace.cleanup()
    with pytest.raises(TraceCleanedUpError):
        cost_tree(trace)


def test_it_is_the_same_in_a_process_that_has_only_the_journal(tmp_path: Path) -> None:
    trace = differentiated(Looped(), torch.randn(5, 4), journal=tmp_path / "j")
    here = str(cost_tree(trace))
    trace.cleanup()
    script = """
        import sys
        import torchlens as tl
        trace = tl.load(sys.argv[1])
        tree = tl.report.cost_tree(trace)
        passes = trace.autograd.backward_passes
        assert sum(row.self_backward_flops for row in tree) == sum(one.executed_flops for one in passes)
        sys.stdout.write(str(tree))
        """
    assert run(script, tmp_path / "j").stdout == here


# Laws over real captures --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25)
@given(program=programs(without=("raises", "wrong_shape")))
def test_rows_ops_and_tree_agree_whatever_the_program(program: Program) -> None:
    trace = traced(program, capture=BOTH, save="none")
    if trace is None or trace.failure is not None:
        return
    tree = cost_tree(trace)
    apart = cost_tree(trace, fold_repeats=False)
    assert tree.partition_total == trace.total_flops_forward == sum(row.self_flops or 0 for row in apart)
    assert (trace.total_saved_for_backward or 0) == sum(row.self_saved_for_backward or 0 for row in tree)
    status = backward_status(trace)
    assert (tree.backward_state, tree.executed_evidence, tree.backward_reason) == (
        status.state,
        status.executed_evidence,
        status.reason,
    )
    if tree.executed_evidence == "measured":
        attributions = [one.flops_attribution for one in trace.autograd.backward_passes]
        rows = sum(row.flops for one in attributions for row in one.rows)
        loose = sum(one.unattributed_flops for one in attributions)
        assert sum(row.self_backward_flops for row in tree) == executed(trace) == rows + loose
        assert tree.executed_flops == status.executed_flops
        assert tree.uncounted_families == status.uncounted_families
        by_op: dict[str | None, int] = {}
        for one in attributions:
            for label, flops in one.flops_by_op().items():
                place = trace.ops[label].module
                by_op[place] = by_op.get(place, 0) + flops
        own = {row.row_id if row.kind == "call" else None: row.self_backward_flops for row in apart if row.n_ops}
        assert {place: flops for place, flops in by_op.items() if flops} == {
            place: flops for place, flops in own.items() if flops
        }
    trace.cleanup()


def test_ten_thousand_ops_are_read_at_once() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.many = nn.ModuleList([nn.Linear(2, 2) for _ in range(50)])

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(100):
                for part in self.many:
                    x = torch.relu(part(x))
            return x

    trace = tl.trace(Long(), torch.randn(1, 2), capture=tl.CaptureOptions(inference_only=True), save="none")
    assert trace.num_ops == 10_000
    with at_most(5):
        tree = cost_tree(trace)
    assert len(tree) == 52
    assert tree["many.7:1"].folded == 100
    assert len(cost_tree(trace, fold_repeats=False)) == 5002
    trace.cleanup()


@pytest.mark.parametrize(("key", "near"), [("0", "did you mean '0:1'"), ("blocks.0", "row_id"), ("0:2", "'0:1'")])
def test_a_row_that_there_is_not_is_refused_with_those_that_look_like_it(key: str, near: str) -> None:
    tree = cost_tree(tl.trace(mlp(), torch.randn(5, 4)))
    with pytest.raises(LookupRefused, match=re.escape(near)) as refused:
        tree[key]
    assert refused.value.code == "record_lookup_not_found"
    assert isinstance(refused.value, KeyError)


def test_a_row_by_position_is_refused_with_the_way_to_it() -> None:
    tree = cost_tree(tl.trace(mlp(), torch.randn(5, 4)))
    with pytest.raises(LookupRefused, match=r"\.rows") as refused:
        tree[0]  # type: ignore[index]
    assert refused.value.code == "lookup_key_type_invalid"


def test_what_checkpoints_ran_again_adds_up_and_is_shown_where_there_is_some() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out

    trace = differentiated(Checkpointed(), torch.randn(5, 4, requires_grad=True))
    tree = cost_tree(trace)
    assert {row.row_id: row.self_recompute_flops for row in tree if row.self_recompute_flops} == {"inner.2:1": 240}
    assert tree.rows[0].subtree_recompute_flops == backward_status(trace).recompute == 240
    assert sum(row.self_recompute_flops or 0 for row in tree) == 240
    assert "recompute" in str(tree)
    plain = cost_tree(differentiated(mlp(), torch.randn(5, 4)))
    assert {row.self_recompute_flops for row in plain} == {None}
    assert "recompute" not in str(plain)
    assert {row.self_recompute_flops for row in cost_tree(tl.trace(mlp(), torch.randn(5, 4)))} == {None}


def test_what_a_reentrant_checkpoint_keeps_is_charged_to_the_call_behind_it() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.norm = nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(checkpoint(self.inner, self.first(x), use_reentrant=True))
            return out

    trace = differentiated(Checkpointed(), torch.randn(8, 4))
    own = 8 * 8 * 4 + 2 * 8 * 4
    assert cost_tree(trace)["norm:1"].self_saved_for_backward == own + 8 * 8 * 4
