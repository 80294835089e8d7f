"""Models that end their process, each in another kind of call. Run in a process made for it, by a ``Nursery``."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from tests.nursery import Job


def crash(*_: object) -> Any:
    """SIGSEGV: reads the memory at address 0."""
    ctypes.string_at(0)


def prepare() -> None:
    """The first capture of a process looks at all of torch."""
    torch.set_num_threads(1)
    tl.trace(nn.Tanh(), torch.ones(2)).cleanup()


OPS = torch.library.Library("dying", "DEF")
for schema in (
    "scale(Tensor x, float factor) -> Tensor",
    "fill_(Tensor(a!) x, float value) -> Tensor(a!)",
    "distance(Tensor x, Tensor y) -> Tensor",
):
    OPS.define(schema)
    OPS.impl(schema.partition("(")[0], crash, "CPU")


class Model(nn.Module):
    """Runs a function inside a submodule, after an op of its own."""

    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.block = Block(body)

    def forward(self, x: Tensor) -> Any:
        return self.block(torch.tanh(x))


class Block(nn.Module):
    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


def traced(job: Job, body: Callable[[Tensor], Any], x: Tensor | None = None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    options = tl.JournalOptions(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
    tl.trace(Model(body), torch.ones(2, 3) if x is None else x, journal=options, save="none")


def long_kernel(job: Job) -> None:
    """Takes minutes: whoever started it kills it."""
    traced(job, lambda x: torch.linalg.svd(x.repeat(2500, 2000), full_matrices=False))


def long_method(job: Job) -> None:
    def body(x: Tensor) -> Tensor:
        big = torch.ones(7000, 7000)
        return big.addmm_(big, big.clone(), beta=0.5)

    traced(job, body)


def custom_op(job: Job) -> None:
    traced(job, lambda x: torch.ops.dying.scale(x, 2.5))


def custom_op_in_place(job: Job) -> None:
    traced(job, lambda x: torch.ops.dying.fill_(x, value=7.0))


def autograd_function(job: Job) -> None:
    traced(job, lambda x: Crashing.apply(x, 3))


class Crashing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, power: int) -> Tensor:
        crash()
        return x**power


def dying_in_backward(job: Job, x: Tensor) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    options = tl.JournalOptions(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
    trace = tl.trace(lambda x: torch.relu(CrashingBack.apply(torch.tanh(x))), x, journal=options)
    trace.backward(trace.output.sum(), retain_graph=True, save_grads=True)
    torch.autograd.grad(trace.output.prod(), x)


class CrashingBack(torch.autograd.Function):
    """Ends the process when the engine runs it a second time."""

    ran = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        CrashingBack.ran += 1
        if CrashingBack.ran > 1:
            crash()
        return gradient * 2


def in_second_backward(job: Job) -> None:
    dying_in_backward(job, torch.ones(2, 3, requires_grad=True))


def in_nested_backward(job: Job) -> None:
    """A run of the engine inside a hook, with a node behind it that crashes."""
    x = torch.ones(2, 3, requires_grad=True)

    def once_more(gradient: Tensor) -> None:
        if not CrashingBack.ran:
            CrashingBack.ran = 1
            torch.autograd.grad(y, x, torch.ones_like(y))

    y = x
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options = tl.JournalOptions(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]

    def model(x: Tensor) -> Tensor:
        nonlocal y
        y = CrashingBack.apply(torch.tanh(x))
        return torch.relu(y)

    trace = tl.trace(model, x, journal=options)
    y.register_hook(once_more)
    trace.backward(trace.output.sum())


def exit_in_module(job: Job) -> None:
    def body(x: Tensor) -> None:
        torch.relu(x)
        os._exit(3)

    traced(job, body)


def exit_before_any_call(job: Job) -> None:
    options = tl.JournalOptions(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
    tl.trace(Block(lambda x: os._exit(3)), torch.ones(2, 3), journal=options)


def call_inside_a_call(job: Job) -> None:
    def distance(x: Tensor, y: Tensor) -> Any:
        return torch.ops.dying.distance(x, y)

    traced(job, lambda x: F.triplet_margin_with_distance_loss(x, x + 1, x + 2, distance_function=distance))


def between_calls_inside_a_call(job: Job) -> None:
    def distance(x: Tensor, y: Tensor) -> Tensor:
        found = F.relu(x - y)
        os._exit(3)
        return found

    traced(job, lambda x: F.triplet_margin_with_distance_loss(x, x + 1, x + 2, distance_function=distance))


def after_a_call_that_is_no_op(job: Job) -> None:
    """``F.relu`` is told by the ``torch.relu`` inside it."""

    def body(x: Tensor) -> None:
        F.relu(x)
        os._exit(3)

    traced(job, body)


def after_a_caught_exception(job: Job) -> None:
    def distance(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    def body(x: Tensor) -> None:
        try:
            F.triplet_margin_with_distance_loss(x, x, x, distance_function=distance)
        except RuntimeError:
            os._exit(3)

    traced(job, body)


def inside_checkpoint(job: Job, *, reentrant: bool = False) -> None:
    def step(x: Tensor) -> Any:
        return torch.ops.dying.scale(torch.sigmoid(x), 1.0)

    def body(x: Tensor) -> Any:
        return checkpoint(step, x, use_reentrant=reentrant)

    traced(job, body, torch.ones(2, 3, requires_grad=True))


def inside_reentrant_checkpoint(job: Job) -> None:
    inside_checkpoint(job, reentrant=True)


def function_transform(job: Job) -> None:
    def one(x: Tensor) -> Tensor:
        crash()
        return x

    traced(job, lambda x: torch.vmap(one)(x))
