"""What ``save=`` keeps, and how: every form of a request, and that what is kept is what was asked for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.torchlens.conftest import Worked, capture


def kept(trace: tl.Trace) -> list[str]:
    return [op.label for op in trace.ops if op.has_saved_activation]


# Forms of a request -------------------------------------------------------------------------------------------

EVERY = [f"linear_1_1:{k}" for k in (1, 2, 3)]


@pytest.mark.parametrize(
    ("save", "labels"),
    [
        pytest.param("fc", EVERY, id="a module, all its calls"),
        pytest.param("fc:2", EVERY[1:2], id="one call of it"),
        pytest.param("fc:last", EVERY[2:], id="its last call"),
        pytest.param("fc:all", EVERY, id="its calls, spelled out"),
        pytest.param("also", ["relu_1_4:1", "relu_1_4:2"], id="another name of a module"),
        pytest.param("self", ["linear_3_9", "output_1"], id="the root"),
        pytest.param("linear_1_1", EVERY, id="a layer, all its passes"),
        pytest.param("linear_1", EVERY, id="its short label"),
        pytest.param("linear_1_1:2", EVERY[1:2], id="one pass"),
        pytest.param("linear_1_1:last", EVERY[2:], id="the last pass"),
        pytest.param("LINEAR_1_1:2", EVERY[1:2], id="another case"),
        pytest.param("chunk", ["chunk_1_6", "chunk_2_7"], id="part of a label"),
        pytest.param("scale.factor", ["buffer_1"], id="a buffer"),
        pytest.param(1, EVERY[:1], id="a position"),
        pytest.param(-1, ["linear_3_9", "output_1"], id="a position from the end"),
        pytest.param(["head", 0, tl.func("add"), "relu_1_4:2"], None, id="a mixed list"),
        pytest.param((lambda facts: facts.func_name == "chunk", "fc:1"), None, id="a mixed tuple"),
    ],
)
def test_a_request_keeps_what_it_names(save: Any, labels: list[str] | None) -> None:
    found = kept(capture(save=save))
    if labels is None:  # a list keeps what its members keep
        alone = {label for part in save for label in kept(capture(save=part))}
        assert set(found) == alone
        assert len(alone) > 2
    else:
        assert found == labels


@pytest.mark.parametrize(
    "save", ["", ["all"], ["none", "fc"], True, 2.5, nn.ReLU(), nn.ReLU, {"fc"}, [["fc"]], object(), b"fc"]
)
def test_what_selects_nothing_is_refused(save: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        capture(save=save)
    assert refused.value.code == "save_predicate_type_invalid"


@pytest.mark.parametrize("save", ["linear_1_1:9", "nowhere", 99, -99])
def test_what_names_no_op_is_told_and_no_failure(save: Any) -> None:
    with pytest.warns(tl.errors.TorchLensWarning, match="save_matched_nothing"):
        assert kept(capture(save=save)) == []


def test_a_member_of_a_list_that_names_no_op_is_told_by_name() -> None:
    with pytest.warns(tl.errors.TorchLensWarning, match=r"save='linar_1_1', 99 matched no op\. "):
        assert kept(capture(save=["linar_1_1", "head", 99])) == ["linear_3_9", "output_1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(save=["head", 1])


def test_a_selector_that_names_several_passes_is_refused_after_the_forward_and_all_is_put_back() -> None:
    original = torch.relu
    with pytest.raises(tl.TorchLensError) as refused:
        capture(save=tl.label("linear_1_1"))
    assert refused.value.code == "multipass_bare_label_ambiguous"
    assert torch.relu is original
    assert kept(tl.trace(Worked(), torch.ones(2, 4), save=tl.label("linear_1_1:2"))) == ["linear_1_1:2"]
