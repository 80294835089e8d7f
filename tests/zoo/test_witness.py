"""Every operator that the dispatcher runs for the zoo and the cases is accounted for, and witnessing changes nothing.

The diagnostics that users may switch on are on here, for every model there is: what escapes the wrappers in one of
them is a fault of ours.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch

import torchlens as tl
from tests.programs import ROOT
from torchlens.options import CaptureOptions

DATA = ROOT / "tests" / "data"
ZOO_NAMES = sorted(path.stem for path in (DATA / "zoo" / "peer").glob("[a-z]*.json"))
CASE_NAMES = sorted(path.stem for path in (DATA / "cases" / "cases").glob("[0-9]*.py"))

OPAQUE: Final = {
    "custom_autograd_function": {"autograd function"},
    "070_custom_function_mark_dirty": {"autograd function"},
    "097_func_grad_inside_forward": {"function transform"},
    "100_backward_in_forward": {"made where no wrapper looks"},
}
"""Models with ops that are not watched inside, and why they are not."""

UNSEEN: Final = {"100_backward_in_forward"}
"""Cases with a tensor that no call returned, such as the gradient that an inner backward leaves: not verified."""

RAISING: Final = {"007_inplace_on_split_raises", "106_error_then_retry"}
"""Cases whose forward raises."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what the models' own packages warn of


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"witnessed_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def zoo() -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    models: dict[str, Callable[[], tuple[Any, Any, Any]]] = loaded(DATA / "zoo" / "models.py").MODELS
    return models


UNKNOWN: Final = {"custom_autograd_function": {"RoundSTE"}}
"""Models with functions of which nobody knows what work they are."""


def witnessed(build: Callable[[], tuple[Any, Any, Any]], name: str) -> tl.Trace:
    """The trace of a model that was witnessed."""
    traced(build, CaptureOptions(random_seed=0), name).cleanup()  # what some models make once per process is made now
    plain = traced(build, CaptureOptions(random_seed=0), name)
    trace = traced(build, CaptureOptions(random_seed=0, verify_capture=True), name)
    health = trace.health
    assert health.escape.verified is True, str(health)
    assert health.completeness.verified is True, str(health)
    assert health.capture_verified is (None if name in RAISING else name not in UNSEEN), str(health)
    assert set(health.opaque_reasons.values()) == OPAQUE.get(name, set())
    assert trace.ops.labels == plain.ops.labels
    assert trace.graph_shape_hash == plain.graph_shape_hash
    for ours, theirs in zip(trace.output_ops, plain.output_ops, strict=True):
        assert torch.equal(ours.out.nan_to_num(), theirs.out.nan_to_num()), ours.label
    trace.check_metadata_invariants()
    return trace


def traced(build: Callable[[], tuple[Any, Any, Any]], options: CaptureOptions, name: str) -> tl.Trace:
    model, args, kwargs = build()
    if name not in RAISING:
        return tl.trace(model, list(args), kwargs, capture=options)
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(model, list(args), kwargs, capture=options)
    assert raised.value.partial_trace is not None
    return raised.value.partial_trace


@pytest.mark.parametrize("name", ZOO_NAMES)
def test_nothing_of_a_model_of_the_zoo_is_missed(zoo: dict[str, Callable[[], tuple[Any, Any, Any]]], name: str) -> None:
    trace = witnessed(zoo[name], name)
    assert {trace.ops[label].func_name for label in trace.unknown_flop_ops} == UNKNOWN.get(name, set())


@pytest.mark.parametrize("name", CASE_NAMES)
def test_nothing_of_a_case_is_missed(name: str) -> None:
    build = getattr(loaded(DATA / "cases" / "cases" / f"{name}.py"), "build", None)
    assert build is not None
    witnessed(build, name)
