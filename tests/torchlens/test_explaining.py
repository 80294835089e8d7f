"""Why there is no gradient: each reason, where the path was cut, and that what is claimed is true."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import AmbiguousReadError, LookupRefused
from torchlens.reading.explaining import Explanation


class Cutting(nn.Module):
    """One path for each way in which a forward cuts off a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.quiet = nn.Linear(4, 4)
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.idle = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        with torch.no_grad():
            quiet = torch.relu(self.quiet(hidden))
        target = hidden.detach() * self.scale
        chosen = hidden.argmax(1)
        drawn = nn.functional.one_hot(chosen, 4).float()
        return hidden + quiet + target + self.fixed(x).tanh(), drawn


def reason(trace: tl.Trace, key: str) -> str | None:
    found = trace.autograd.explain(key)
    return None if found is None else found.reason


@pytest.fixture
def cutting() -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Cutting(), torch.randn(3, 4))


def test_an_op_that_ran_without_gradients_says_so_and_where(cutting: tl.Trace) -> None:
    found = cutting.autograd.explain("relu")
    assert found is not None
    assert (found.subject, found.kind, found.reason, found.at) == ("relu_1_3", "op", "no_grad section", "linear_2_2")
    assert found.location is not None
    assert found.location.call_line == "quiet = torch.relu(self.quiet(hidden))"
    assert found.text == "relu_1_3 has no gradient: linear_2_2 ran while gradients were off"
    assert str(found).startswith(found.text + " (")
    assert __file__ in str(found)
    assert repr(found) == "<Explanation relu_1_3: no_grad section>"
    assert found.op == cutting.ops["relu_1_3"]
    assert found.param is None
    assert found.pass_index is None
    assert reason(cutting, "quiet.weight") == "no_grad section"


def test_what_comes_after_a_detach_names_it(cutting: tl.Trace) -> None:
    assert reason(cutting, "detach_1_4") == "detached at detach_1_4"
    found = cutting.autograd.explain("mul_1_5")
    assert found is not None
    assert (found.reason, found.at) == ("detached at detach_1_4", "detach_1_4")
    assert found.location is not None
    assert found.location.call_line == "target = hidden.detach() * self.scale"


def test_what_has_no_derivative_is_told_where_it_comes_to_be(cutting: tl.Trace) -> None:
    (argmax,) = cutting.ops.find("argmax")
    assert cutting.autograd.explain(argmax).text == (  # type: ignore[union-attr]
        f"{argmax.label} has no gradient: it is int64, which has no derivative"
    )
    drawn = cutting.autograd.explain(cutting.output_ops[1])
    assert drawn is not None
    assert (drawn.reason, drawn.at) == ("not differentiable", argmax.label)


def test_what_requires_no_gradient_is_frozen_and_so_is_what_is_made_of_it_alone(cutting: tl.Trace) -> None:
    for key in ("input_1", "scale", "fixed.weight", "fixed.bias"):
        found = cutting.autograd.explain(key)
        assert found is not None
        assert found.reason == "frozen"
        assert found.at == found.subject
    for op in (*cutting.modules["fixed"].calls[0].ops, *cutting.ops.find("tanh").labels):
        found = cutting.autograd.explain(op)
        assert found is not None
        assert (found.reason, found.at) == ("frozen", "input_1")


def test_a_parameter_that_no_op_took_was_never_called(cutting: tl.Trace) -> None:
    found = cutting.autograd.explain("idle.weight")
    assert found is not None
    assert (found.reason, found.at, found.location) == ("never called", None, None)
    assert found.param == cutting.params["idle.weight"]
    assert found.op is None


def test_before_any_backward_that_is_the_reason(cutting: tl.Trace) -> None:
    for key in ("first.weight", "linear_1_1", "output_1"):
        assert reason(cutting, key) == "no backward yet"


def test_what_only_leads_to_where_the_path_is_cut_is_cut_off_by_that() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.head(torch.relu(self.body(x)).data)
            return made

    trace = tl.trace(Frozen(), torch.randn(3, 4))
    for key in ("body.weight", "linear_1_1", "relu_1_2"):
        assert reason(trace, key) == "detached at detach_1_3"
    assert reason(trace, "head.weight") == "no backward yet"


def test_a_parameter_that_is_used_twice_is_cut_off_only_where_both_ways_are() -> None:
    class Shared(nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.layer, self.both = nn.Linear(4, 4), both

        def forward(self, x: Tensor) -> Tensor:
            cut = self.layer(x).detach()
            again: Tensor = self.layer(cut)
            return again.detach() if self.both else again

    x = torch.randn(3, 4)
    assert reason(tl.trace(Shared(both=False), x), "layer.weight") == "no backward yet"
    both = tl.trace(Shared(both=True), x)
    assert reason(both, "layer.weight") == "detached at detach_1_2"
    with pytest.raises(AmbiguousReadError) as refused:
        both.autograd.explain("linear_1_1")
    assert refused.value.code == "explanation_subject_ambiguous"
    assert [reason(both, f"linear_1_1:{number}") for number in (1, 2)] == [
        "detached at detach_1_2",
        "detached at detach_2_3",
    ]


def test_what_is_asked_about_may_be_given_in_many_ways(cutting: tl.Trace) -> None:
    explain = cutting.autograd.explain
    relu = explain("relu_1_3")
    assert relu is not None
    assert relu == explain(cutting["relu_1_3"]) == explain(cutting.layers["relu_1_3"]) == explain(relu.op.ordinal_index)
    assert relu == explain(cutting[tl.func("relu")].first())
    assert explain("quiet") == explain(cutting.modules["quiet"]) == explain(cutting.module_calls["quiet:1"])
    assert explain(cutting.buffers["scale"]) == explain("scale")
    assert explain(cutting.params["idle.weight"]) == explain("idle.weight")
    model = Cutting()
    trace = tl.trace(model, torch.randn(3, 4))
    assert trace.autograd.explain(model.idle.weight) == trace.autograd.explain("idle.weight")
    for odd in (None, 1.5, nn.Parameter(torch.ones(2)), cutting.modules["idle"], cutting):
        with pytest.raises(LookupRefused) as refused:
            explain(odd)
        assert refused.value.code == "explanation_subject_invalid"
    with pytest.raises(LookupRefused) as refused:
        explain("no such op")
    assert refused.value.code == "op_lookup_not_found"


def test_the_table_holds_all_of_them(cutting: tl.Trace) -> None:
    table = cutting.autograd.explanations
    assert all(isinstance(found, Explanation) for found in table)
    assert table.labels == (*cutting.ops.labels, *cutting.params.labels)
    assert table["relu_1_3"] == cutting.autograd.explain("relu_1_3")
    frame = table.to_pandas()
    assert list(frame.columns) == ["subject", "kind", "reason", "at", "pass_index", "location", "text"]
    assert list(frame["reason"]) == [found.reason for found in table]


def test_a_reopened_journal_explains_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trace = tl.trace(Cutting(), torch.randn(3, 4), journal=tmp_path / "run.journal")
    told = [str(found) for found in trace.autograd.explanations]
    trace.cleanup()
    assert [str(found) for found in tl.load(tmp_path / "run.journal").autograd.explanations] == told
