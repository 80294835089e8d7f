"""Why a value or gradient is what it is: the chain holds what it came from, each event once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from tests.work import at_most
from torchlens.errors import AmbiguousReadError, ConfigurationError, LookupRefused
from torchlens.questions.chain import Chain


class Forked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.aside = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        right = self.norm(self.right(x))
        self.aside(x)
        torch.ones(2).exp()
        view = left[0]
        view.add_(1)
        return torch.relu(left + right).sum()


def differentiated(**asked: Any) -> tl.Trace:
    x = torch.randn(2, 3)
    trace = tl.trace(Forked(), x, capture=tl.CaptureOptions(save_grads=True, keep_orphans=True), **asked)
    return trace.backward(trace.output)


def ancestors(trace: tl.Trace, label: str) -> set[str]:
    found, waiting = {label}, [label]
    while waiting:
        for parent in trace.ops[waiting.pop()].parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def test_the_chain_of_a_value_leads_back_to_the_inputs_through_writes_in_place() -> None:
    trace = differentiated()
    chain = trace.why(tl.func("relu"))
    by_label = {link.label: link for link in chain}
    assert set(by_label) == ancestors(trace, chain.subject)
    assert [link.kind for link in chain if link.func_name == "add_"] == ["write"]
    assert "input_1" in chain.sources
    assert by_label["input_1"].kind == "input"
    assert by_label["linear_1_1"].parameters == ("left.weight", "left.bias")
    assert {"buffer"} == {link.kind for link in chain if link.label.startswith("buffer")}
    assert chain.modules == ("norm:1", "right:1", "left:1")
    assert not any("aside" in str(link) for link in chain)
    assert [link.at for link in chain] == sorted((link.at for link in chain), reverse=True)
    place = by_label["linear_1_1"].place
    assert place is not None
    assert place.brief.startswith(f"{Path(__file__).name}:")
    assert place.call_line == "left = self.left(x)"
    assert place.brief in str(chain)


def test_the_chain_of_a_gradient_leads_back_to_the_loss() -> None:
    trace = differentiated()
    chain = trace.why(tl.grad("linear_2_2"))
    assert (chain.kind, chain.backward_pass, chain[0].kind) == ("gradient", 1, "gradient")
    nodes = {call.call_label: call for call in trace.autograd.grad_fn_calls}
    assert {link.label for link in chain[1:]} <= set(nodes)
    assert [link.op for link in chain[1:]][-1] == trace.output_ops[0].parents[0]
    assert chain.sources == (chain[-1].label,)
    for link in chain[1:]:
        senders = {f"{parent}:1" for parent in nodes[link.label].grad_fn.parents}
        assert set(link.parents) == senders
    record = next(each for each in trace.autograd.gradients if each.read("owner") == "linear_2_2")
    assert trace.why(record).links == chain.links
    assert trace.why("right.weight")[0].label == "right.weight"
    assert {link.label for link in chain[1:]} < {link.label for link in trace.why("right.weight")}


def test_a_firing_has_the_chain_of_what_came_to_it() -> None:
    trace = differentiated()
    (call,) = [each for each in trace.autograd.grad_fn_calls if each.grad_fn.class_name == "ReluBackward0"]
    chain = trace.why(call)
    assert chain[0].label == call.call_label
    assert len(chain) == 2
    assert trace.why(call.grad_fn).links == chain.links


def test_another_process_tells_the_same(tmp_path: Path) -> None:
    trace = differentiated(journal=tmp_path / "j")
    texts = [str(trace.why(site)) for site in (-1, tl.grad("linear_1_1"), "left.bias")]
    trace.cleanup()
    again = tl.load(tmp_path / "j")
    assert [str(again.why(site)) for site in (-1, tl.grad("linear_1_1"), "left.bias")] == texts


def test_ops_on_islands_and_handed_on_values_have_chains() -> None:
    trace = differentiated()
    (island,) = [op for op in trace.orphans if op.func_name == "exp"]
    assert [link.func_name for link in trace.why(island)] == ["exp", "ones"]
    handed = tl.trace(nn.Sequential(nn.Identity(), nn.ReLU()), torch.ones(2))
    assert [link.kind for link in handed.why("relu_1_2")] == ["call", "handed on", "input"]


def test_a_data_frame_has_a_row_for_each_event() -> None:
    pytest.importorskip("pandas")
    chain = differentiated().why(-1)
    frame = chain.to_pandas()
    assert list(frame["label"]) == [link.label for link in chain]
    assert list(frame.columns)[:3] == ["at", "kind", "label"]


@pytest.mark.parametrize("what", ["diamonds", "line"])
def test_ten_thousand_ops_are_told_in_a_page_and_at_once(what: str) -> None:
    def forward(x: Tensor) -> Tensor:
        for _ in range(3400 if what == "diamonds" else 10_000):
            x = (x + 1) - (x * 2) if what == "diamonds" else x + 1
        return x

    trace = tl.trace(forward, torch.ones(1), save="none")
    trace.ops.labels  # noqa: B018  # tables are not what is timed
    with at_most(10):
        chain = trace.why(-1)
        text = str(chain)
    assert len(chain) == len(trace.ops)
    assert len(text.splitlines()) <= 42
    assert max(map(len, text.splitlines())) < 200
    shown = len({line for line in text.splitlines()[1:] if not line.endswith("(above)")}) - 1
    assert f"and {len(chain) - shown:,} more events" in text
    assert len(chain.tree(lines=5).splitlines()) == 7
    assert max(line.count("│") for line in chain.tree(lines=10_000, depth=2).splitlines()) <= 2


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_a_chain_is_the_ancestors_and_its_distances_are_the_shortest(pairs: list[tuple[int, int]]) -> None:
    def forward(x: Tensor) -> Tensor:
        values = [x]
        for one, other in pairs:
            values.append(values[-1 - one % len(values)] + values[-1 - other % len(values)])
        return values[-1]

    trace = tl.trace(forward, torch.ones(1))
    chain: Chain = trace.why(-1)
    assert {link.label for link in chain} == ancestors(trace, chain.subject)
    distances = {link.label: link.distance for link in chain}
    for link in chain:
        assert set(link.parents) == set(trace.ops[link.label].parents)
        for parent in link.parents:
            assert distances[parent] <= link.distance + 1
        if link.distance:
            assert min(distances[other.label] for other in chain if link.label in other.parents) == link.distance - 1


@pytest.mark.parametrize(
    ("site", "code"),
    [
        (tl.func("linear"), "why_subject_ambiguous"),
        (tl.func("softmax"), "why_subject_invalid"),
        (3.5, "why_subject_invalid"),
        ("aside.weight", "why_gradient_missing"),
        (tl.grad(tl.func("linear") & tl.in_module("aside")), "why_gradient_missing"),
    ],
)
def test_what_has_no_chain_or_several_is_refused(site: Any, code: str) -> None:
    with pytest.raises((LookupRefused, AmbiguousReadError)) as refused:
        differentiated().why(site)
    assert refused.value.code == code


def test_of_several_passes_one_is_named() -> None:
    trace = tl.trace(Forked(), torch.randn(2, 3), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output, retain_graph=True)
    trace.backward(trace.output)
    for site in (tl.grad(tl.func("relu")), "left.weight"):
        with pytest.raises(AmbiguousReadError) as refused:
            trace.why(site)
        assert refused.value.code == "gradient_pass_ambiguous"
        assert trace.why(site, bwd=2).backward_pass == 2
        with pytest.raises(LookupRefused) as unknown:
            trace.why(site, bwd=3)
        assert unknown.value.code == "backward_pass_unknown"


def test_a_pass_is_checked_whatever_is_asked_about() -> None:
    trace = tl.trace(Forked(), torch.randn(2, 3), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output, retain_graph=True)
    trace.backward(trace.output)
    relu = next(op for op in trace.ops if op.func_name == "relu")
    gradient = next(each for each in trace.autograd.gradients if each.backward_pass_index == 1)
    node = next(each for each in trace.autograd.grad_fns if each.class_name == "ReluBackward0")
    for site in (relu, relu.label, tl.func("relu"), gradient, "left.weight", node, node.calls[0]):
        for wrong in (7, 0, -1, "nonsense", 1.5, True):
            assert code_of(trace, site, wrong) == "backward_pass_unknown"
    for site in (relu, relu.label, tl.func("relu"), trace.ops.labels.index(relu.label), gradient, node.calls[0]):
        assert code_of(trace, site, 2) == "why_pass_contradicted"
    assert trace.why(gradient, bwd=1).links == trace.why(gradient).links
    assert [trace.why(node, bwd=number)[0].label for number in (1, 2)] == [call.call_label for call in node.calls]


def code_of(trace: tl.Trace, site: Any, bwd: Any) -> str:
    with pytest.raises(LookupRefused) as refused:
        trace.why(site, bwd=bwd)
    return refused.value.code


@pytest.mark.parametrize("asked", [{"lines": "x"}, {"lines": -1}, {"depth": 1.5}, {"depth": -2}, {"lines": True}])
def test_a_tree_of_no_size_is_refused(asked: dict[str, Any]) -> None:
    chain = differentiated().why(-1)
    with pytest.raises(ConfigurationError) as refused:
        chain.tree(**asked)
    assert refused.value.code == "chain_tree_argument_invalid"
    assert len(chain.tree(lines=0).splitlines()) == 2


def test_a_cursor_asks_about_what_there_was() -> None:
    trace = differentiated()
    cursor = tl.time_travel(trace).next(tl.func("relu"))
    assert cursor.why(tl.func("relu")).subject.startswith("relu")
    with pytest.raises(LookupRefused):
        cursor.back(30).why(tl.func("relu"))
