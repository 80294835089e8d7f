"""Forward, loss and backward of a model, again and again from the same beginning.

Gives  ``Runs``: a run without recording, one that is looked at by hooks alone, and a place to make any other in.
Rule   each run begins with the model, the generators and the leaves as they were found, and no leaf has a gradient;
       afterwards all of them are put back, their gradients too.
Rule   an argument that is a leaf stays one, so that a loss may be made from it; one that stands on a graph of the
       caller's is cut off it, for a backward would run through that graph and free it.
Not    what is compared (gradient_checks.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from torchlens import compat
from torchlens.capture.inputs import copied, cut_off
from torchlens.capture.template import leaves
from torchlens.copying import copy_of
from torchlens.errors import ConfigurationError
from torchlens.generators import RandomState, seeded
from torchlens.validation.default_loss import weighted
from torchlens.validation.model_state import Held, ModelState
from torchlens.validation.module_watch import Arrivals, ModuleWatch

__all__ = ["Ran", "Runs"]

LossOf = Callable[[Any], Any]


class Ran(NamedTuple):
    """What one run came to."""

    loss: Tensor | None  # None where nothing that the model returned can be differentiated
    gradients: Mapping[str, Tensor | None]  # of each leaf, by its name
    arrivals: Arrivals  # gradients of what modules returned; nothing where nobody looked
    is_early: frozenset[str] = frozenset()  # the leaves that had a gradient when the forward was over


class Runs:
    """Runs of one model on one input.

    Args:
        model: As the caller gave it.
        forward: What is called of it.
        root: The module that it is, or stands in.
        args: Positional arguments.
        kwargs: Keyword arguments.
        loss_of: Makes the loss of what the model returns; None for ``weighted``.
        seed: Of every generator as a run begins; None to begin with them as they stand.
        state: The model as it was found.
        generators: Those as they were found.
    """

    def __init__(
        self,
        model: Any,
        forward: Callable[..., Any],
        root: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        loss_of: LossOf | None,
        seed: int | None,
        state: ModelState,
        generators: RandomState,
    ) -> None:
        self.model: Final = model
        self.forward: Final = forward
        self.root: Final = root
        with compat.NoTorchFunction():
            self.args, self.kwargs = cut_off(args, kwargs)
        self.loss_of: Final = loss_of
        self.seed: Final = seed
        self.state: Final = state
        self.generators: Final = generators
        self.leaves: Final = dict(self._parameters())
        inputs = dict(self._inputs())
        self.leaves.update(inputs)
        self.given: Final = [Held(leaf) for leaf in inputs.values()]

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters, and other leaves that modules hold, those that the model does not register too."""
        known: set[int] = set()
        for name, parameter in self.root.named_parameters():
            known.add(id(parameter))
            yield name, parameter
        for number, held in enumerate(self.state.held.values()):
            tensor = held.tensor
            if id(tensor) not in known and tensor.requires_grad and compat.is_leaf(tensor):
                known.add(id(tensor))
                yield f"unregistered {number}", tensor

    def _inputs(self) -> Iterator[tuple[str, Tensor]]:
        """The arguments that get gradients."""
        known = set(map(id, self.leaves.values()))
        for path, tensor in leaves((self.args, self.kwargs)):
            if id(tensor) not in known and tensor.requires_grad:
                known.add(id(tensor))
                yield f"argument {'.'.join(map(str, path[1:]))}", tensor

    def bare(self) -> Ran:
        """A run that nobody looks at."""
        with self.fresh():
            return self._run(None)

    def watched(self, modules: Mapping[str, nn.Module]) -> Ran:
        """A run with hooks on what these modules return, by address, and nothing else.

        Hooks on tensors read a gradient and change none.
        """
        with self.fresh():
            return self._run(ModuleWatch(modules))

    def _run(self, watch: ModuleWatch | None) -> Ran:
        with compat.NoTorchFunction():
            args, kwargs, _ = copied(self.args, self.kwargs)
        with contextlib.nullcontext() if watch is None else watch:
            output = self.forward(*args, **kwargs)
        early = frozenset(name for name, leaf in self.leaves.items() if compat.is_leaf(leaf) and leaf.grad is not None)
        loss = self.loss(output)
        if loss is not None:
            loss.backward()
        return self.ran(loss, {} if watch is None else watch.arrivals)._replace(is_early=early)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[None]:
        """A place for one run, from the beginning that all have; everything is put back behind it."""
        try:
            with compat.NoTorchFunction():
                for leaf in self.leaves.values():
                    if compat.is_leaf(leaf):
                        leaf.grad = None
            with torch.inference_mode(False), torch.enable_grad(), seeded(self.seed):
                yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Put back model, inputs and generators."""
        self.state.restore()
        with compat.NoTorchFunction():
            for held in self.given:
                held.restore()
        self.generators.restore()

    def loss(self, output: Any) -> Tensor | None:
        """The loss of what a model returned; None where it can not be differentiated.

        Raises:
            ConfigurationError: ``loss_fn_result_invalid``, for something else than one real number.
        """
        made = weighted(output) if self.loss_of is None else self.loss_of(output)
        if made is None and self.loss_of is None:
            return None
        if not isinstance(made, Tensor) or made.numel() != 1 or made.is_complex():
            what = f"a tensor of shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            kind = f" and dtype {made.dtype}" if isinstance(made, Tensor) else ""
            raise ConfigurationError(
                code="loss_fn_result_invalid",
                problem=f"loss_fn= gave {what}{kind}, and a backward begins at one real number",
                remedy="return the loss as a tensor with one element, as loss.sum() is",
                received_type=type(made).__name__,
            )
        return made if made.requires_grad else None

    def ran(self, loss: Tensor | None, arrivals: Arrivals) -> Ran:
        """What there is to see after a run, before anything is put back."""
        with compat.NoTorchFunction():
            grads = {name: leaf.grad if compat.is_leaf(leaf) else None for name, leaf in self.leaves.items()}
            found = {name: None if grad is None else copy_of(compat.detach(grad)) for name, grad in grads.items()}
            return Ran(None if loss is None else copy_of(compat.detach(loss)), found, arrivals)
