"""Recorded gradients of the zoo are those that torch computes itself, bit for bit, and each one that is not there is
explained; the FLOPs that its backward executes are those that torch's own counter counts around the bare one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch

import torchlens as tl
from tests.counting import flops_of, require_counted_as_torch_counts
from tests.differentiating import gradients, places
from tests.programs import ROOT
from torchlens.errors import PayloadUnavailableError
from torchlens.generators import seed_all
from torchlens.validation.default_loss import weighted

ZOO = ROOT / "tests" / "data" / "zoo"
NAMES = sorted(path.stem for path in (ZOO / "peer").glob("[a-z]*.json"))

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what the models' own packages warn of

NOT_OF_AN_OP: Final = {("inplace_chain", "output_1"): "it is a value that was written through a view of it"}
"""Outputs (model, label) that are the result of no call, so that no op has their gradient, and why."""

Build = Callable[[], tuple[Any, Any, Any]]


@pytest.fixture(scope="module")
def zoo() -> Iterator[dict[str, Build]]:
    spec = importlib.util.spec_from_file_location("differentiated_zoo", ZOO / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    models: dict[str, Build] = module.MODELS
    yield models
    torch.set_num_threads(threads)


def bare(build: Build) -> tuple[dict[str, torch.Tensor | None], dict[str, int]]:
    """Gradients of the parameters without tracing, and FLOPs by family."""
    model, args, kwargs = build()
    seed_all(0)
    loss = weighted(model(*args, **kwargs))
    assert loss is not None
    loss.backward(retain_graph=True)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found, flops_of(loss)  # of another run: under the counter the last bits may differ


def grad_of(op: Any) -> torch.Tensor | None:
    try:
        grad: torch.Tensor = op.grad
    except PayloadUnavailableError:
        return None
    return grad


@pytest.mark.parametrize("name", NAMES)
def test_every_gradient_and_what_it_took_are_those_that_torch_computes(zoo: dict[str, Build], name: str) -> None:
    expected, flops = bare(zoo[name])
    model, args, kwargs = zoo[name]()
    seed_all(0)
    trace = tl.trace(model, args, kwargs, capture=tl.CaptureOptions(save_grads=True, backward_ready=True))
    loss = weighted(trace.output)
    assert loss is not None
    trace.backward(loss, retain_graph=True)
    assert [backward.status for backward in trace.autograd.backward_passes] == ["ok"]
    require_counted_as_torch_counts(trace, flops)

    for parameter_name, parameter in model.named_parameters():
        wanted = expected[parameter_name]
        assert (parameter.grad is None) == (wanted is None), parameter_name
        assert wanted is None or torch.equal(parameter.grad, wanted), parameter_name
    told = {}
    for param in trace.params:
        if param.handle.grad is None:
            assert not param.grads, param.address
        else:
            (told[param.address],) = [record.grad for record in param.grads]
            assert torch.equal(told[param.address], param.handle.grad), param.address
    assert told

    at = places(trace, (args, kwargs))
    recorded = [(op, grad_of(op), trace.autograd.explain(op)) for op in trace.ops]
    own = dict(zip(at, gradients(loss, list(at.values())), strict=True))
    for op, found, explanation in recorded:
        wanted = own.get(op.label)
        assert (explanation is None) == (found is not None), op.label
        if (name, op.label) in NOT_OF_AN_OP:
            assert found is None
            assert wanted is not None
            continue
        assert (found is None) == (wanted is None), op.label
        if found is not None and wanted is not None:
            assert torch.equal(found.nan_to_num(), wanted.nan_to_num()), op.label
            assert torch.equal(found.isnan(), wanted.isnan()), op.label
    trace.check_metadata_invariants()
    trace.cleanup()
