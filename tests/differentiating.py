"""Gradients as torch itself computes them, for tests that hold recorded ones against them.

Rule   what torch is asked is a place in the graph (the node that an op's result stands at, and which of its outputs),
       so neither our copies of activations nor our hooks have a part in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

import torchlens as tl
from torchlens import compat
from torchlens.capture.template import leaves
from torchlens.testing import Program
from torchlens.validation.default_loss import weighted


def loss_of(trace: tl.Trace) -> Tensor | None:
    """A loss of what a model returned; None where no backward from it reaches an op, as from leaves made on the way."""
    made = [tensor for _, tensor in leaves(trace.output, deep=True) if tensor.requires_grad]
    return None if all(map(compat.is_leaf, made)) else weighted(trace.output)


def traced(program: Program, **options: Any) -> tl.Trace | None:
    """A random program captured, partial where it raises, and gone back through where it has a loss; None where the
    capture is refused.
    """
    model, args, kwargs = program.build()
    try:
        trace = tl.trace(model, args, kwargs, **options)
    except tl.TraceCaptureError as raised:
        return raised.partial_trace
    except tl.TorchLensError:
        return None
    loss = loss_of(trace)
    if loss is not None:
        try:
            trace.backward(loss)
        except RuntimeError:
            pass
    return trace


def places(trace: tl.Trace, given: Any = ()) -> dict[str, Any]:
    """Where the value of each op stands in the graph, by its label; what stands nowhere is left out.

    Args:
        trace: The trace.
        given: The arguments of the model: an input that is a leaf stands at that tensor itself.
    """
    tensors = list({id(tensor): tensor for _, tensor in leaves(given, deep=True)}.values())
    leaf_of = dict(zip([op.read("value") for op in trace.input_ops], tensors, strict=False))
    found: dict[str, Any] = {}
    for op in trace.ops:
        node, leaf = op.autograd.grad_fn_handle, leaf_of.get(op.read("value"))
        if node is not None:
            found[op.label] = GradientEdge(node, op.read("grad_slot"))
        elif leaf is not None and leaf.requires_grad:  # also where the input is handed on as it is
            found[op.label] = leaf
    return found


def gradients(loss: Tensor, wanted: Sequence[Any]) -> list[Tensor | None]:
    """Torch's own, None where the loss was not made from it; the graph is kept."""
    if not wanted:
        return []
    return list(torch.autograd.grad(loss, list(wanted), retain_graph=True, allow_unused=True))
