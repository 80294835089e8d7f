"""More than a hundred architectures as people build them: tracing one changes nothing and misses nothing.

Each model of ``architectures.py`` runs once bare, with a hook on every module that counts its calls, and once traced;
the two runs are compared as ``torchlens.testing`` says, gradients included. The traced one records its backward, with
every gradient; those of parameters are held against torch's own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.sweep.architectures import ARCHITECTURES
from torchlens.testing import assert_tracing_changes_nothing

pytestmark = pytest.mark.slow

FAMILIES: Final = {
    "audio",
    "decision",
    "decoder",
    "depth",
    "detection",
    "encoder",
    "encoder-decoder",
    "mixture of experts",
    "multimodal",
    "segmentation",
    "state space",
    "time series",
    "vision",
}

OWN_FUNCTIONS: Final = {
    "bloom_alibi": {"gelufunction"},
    "ibert_quantised": {"fixedpointmul", "floorste", "roundste", "symmetricquantfunction"},
    "recurrent_gemma": {"sqrtboundderivative"},
    "reformer": {"reversesort"},
}
"""By architecture, the layer types of its ops that are not watched inside: autograd Functions of its own."""

MADE_UNSEEN: Final = {"vits_speech": 2}
"""By architecture, how many tensors no watched call returned: ``torch.IntTensor([n])`` is a class and stays one."""

CALLED_BY_FORWARD: Final = {"squeezebert": {"encoder.layers.0", "encoder.layers.1"}}
"""By architecture, modules of which only ``forward`` is called, so that no hook hears of it."""

ONLY_FORWARD: Final = {"reformer"}
"""Architectures whose backward refuses eval mode, while train mode seeds torch from the clock."""


RAISING_BACK: Final = {"RwkvForCausalLM"}
"""Models whose backward raises, bare or traced: they write to what the backward needs."""


class Sweep:
    """The runs of one architecture: what hooks counted in the bare one, and the trace of the other."""

    def __init__(self, name: str) -> None:
        self.calls: Counter[str] = Counter()
        self.built = 0
        self.name = name
        self.model = nn.Module()
        self.trace = assert_tracing_changes_nothing(
            self.build, backward=name not in ONLY_FORWARD, capture=tl.CaptureOptions(save_grads=True)
        )

    def build(self) -> tuple[nn.Module, tuple[()], dict[str, Any]]:
        self.model, kwargs = ARCHITECTURES[self.name].build()
        model = self.model
        self.built += 1
        for address, module in model.named_modules():
            # The bare run comes first; a hook stays in the traced one too, since the two models must be alike.
            module.register_forward_pre_hook(self.counting(address, self.built == 1))
        return model, (), kwargs

    def counting(self, address: str, counts: bool) -> Any:
        def count(*_: Any) -> None:
            if counts:
                self.calls[address or "self"] += 1

        return count


def test_the_sweep_is_wide() -> None:
    assert len(ARCHITECTURES) >= 110
    assert {architecture.family for architecture in ARCHITECTURES.values()} == FAMILIES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tracing_an_architecture_changes_nothing_and_misses_nothing(name: str) -> None:
    sweep = Sweep(name)
    trace = sweep.trace
    trace.check_metadata_invariants()
    assert trace.outcome.status == "complete"
    assert len(trace.health.unseen_tensors) == MADE_UNSEEN.get(name, 0)
    unwatched = {trace.ops[label].layer_type for label in trace.health.opaque_ops} - {"unseen"}
    assert unwatched == OWN_FUNCTIONS.get(name, set())
    registered = {module.address: module.num_calls for module in trace.modules if not module.address.startswith("~")}
    told = Counter({address: count for address, count in registered.items() if count})
    told.subtract(sweep.calls)
    assert {address for address, count in told.items() if count} == CALLED_BY_FORWARD.get(name, set())
    if name not in ONLY_FORWARD:
        backward_is_recorded(trace, sweep.model)
    trace.cleanup()


def backward_is_recorded(trace: tl.Trace, model: nn.Module) -> None:
    """One pass, and of each parameter that got a gradient the record of that; a reason for every other."""
    (backward,) = trace.autograd.backward_passes
    assert backward.status == ("error" if trace.model_class_name in RAISING_BACK else "ok")
    assert len(trace.saved_grad_ops) > 0
    if backward.status == "error":
        return
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    for param in trace.params:
        wanted = grads.get(param.address)
        assert (trace.autograd.explain(param) is None) == (wanted is not None), param.address
        if wanted is not None:
            (record,) = param.grads
            assert torch.allclose(record.grad, wanted, rtol=0, atol=0, equal_nan=True), param.address
