"""What recording a backward costs, against the bare forward and backward; a part of ``bench.py``.

    python tools/bench.py --backward [--models mlp100,resnet18,gpt2] [--rounds 12] [--peer OTHER/bin/python]

One sample is a forward, a backward from the sum of the first output, and, of a traced one, the reading of all records:
ops, layers, passes, autograd nodes, their firings with times, and which op has which gradients. ``WAYS`` says
what is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from bench_models import build
from torch import Tensor

import torchlens as tl

WAYS: Final[dict[str, dict[str, Any]]] = {
    "gradients": {"save": []},
    "gradients and activations": {"save": None},
    "structure alone": {"save": [], "save_grads": None},
    "census": {"save": [], "save_grads": None, "backward_ready": True},
}
"""What is kept: every op's gradient and no activation; both; or none, and only the records are made, without and with
every operator that the backward ran."""

TARGETS: Final = {
    "mlp100": {"gradients": 6.0, "census": 12.0},
    "resnet18": {"gradients": 1.8, "census": 2.2},
    "gpt2": {"gradients": 1.5, "census": 1.7},
}
"""What a way may cost at most, as a multiple of the bare forward and backward."""


class Differentiated:
    """One model, run forward and back, bare or traced."""

    def __init__(self, name: str) -> None:
        self.model, self.x = build(name)

    def bare(self) -> int:
        self.model.zero_grad(set_to_none=True)
        start = time.perf_counter_ns()
        loss = first_tensor(self.model(self.x)).sum()
        loss.backward()
        spent = time.perf_counter_ns() - start
        del loss
        return spent

    def traced(self, *, save: Any, save_grads: Any = True, backward_ready: bool | None = None) -> int:
        self.model.zero_grad(set_to_none=True)
        start = time.perf_counter_ns()
        options = tl.CaptureOptions(save_grads=save_grads, backward_ready=backward_ready)
        trace = tl.trace(self.model, self.x, save=save, capture=options)
        trace.backward(first_tensor(trace.output).sum())
        read_records(trace)
        spent = time.perf_counter_ns() - start
        trace.cleanup()
        return spent

    def num_nodes(self) -> int:
        trace = tl.trace(self.model, self.x, save=[], capture=tl.CaptureOptions(save_grads=True))
        trace.backward(first_tensor(trace.output).sum())
        number = len(trace.autograd.grad_fns)
        trace.cleanup()
        return number


def read_records(trace: Any) -> None:
    """Every label, firing time and saved gradient's place."""
    autograd = trace.autograd
    for table in (trace.ops, trace.layers, autograd.grad_fns, autograd.grad_fn_calls, autograd.backward_passes):
        _ = table.labels
    _ = trace.saved_grad_ops.labels
    _ = autograd.grad_fn_fire_timings


def first_tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    values: Sequence[Any] = tuple(output.values()) if isinstance(output, Mapping) else tuple(output)
    return next(value for value in values if isinstance(value, torch.Tensor))
