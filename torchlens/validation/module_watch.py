"""The gradients of what modules return, seen by hooks on tensors alone.

Gives  ``ModuleWatch``: on while a forward runs; ``arrivals`` fills as the backward runs. What the engine does within
       the forward is part of that, and left out.
Note   A hook on a tensor is called where a gradient is only asked for there, too, as by ``torch.autograd.grad``; one
       before its node is called behind every hook on the tensor.
Rule   a hook of ours reads and gives nothing back, so it changes no gradient; the hook on a module stands before those
       of the user's, for what a module returned is what its forward did. A call of ``module.forward`` shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from torch import Tensor, nn

from projections.columnar.arguments import Path, holes
from torchlens import compat
from torchlens.capture.template import encode
from torchlens.copying import copy_of

__all__ = ["Arrivals", "ModuleWatch"]

Arrivals: TypeAlias = "dict[str, list[dict[Path, list[Tensor]]]]"
"""By address of a module and by its calls: the gradients that came at each tensor it returned, in order, by where the
tensor sits in what was returned."""


class ModuleWatch:
    """Hooks on what some modules return.

    Args:
        modules: The modules by address. Scripted ones are left out, which run no Python.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.arrivals: Final[Arrivals] = {}
        self._modules: Final = modules
        self._handles: Final[list[Any]] = []
        self._is_forward = True

    def __enter__(self) -> None:
        for address, module in self._modules.items():
            if not compat.is_scripted(module):
                self._handles.append(module.register_forward_hook(self._returned(address), prepend=True))

    def __exit__(self, *raised: object) -> None:
        self._is_forward = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _returned(self, address: str) -> Callable[..., None]:
        def returned(module: nn.Module, args: Any, result: Any) -> None:
            with compat.NoTorchFunction():
                came: dict[Path, list[Tensor]] = {}
                self.arrivals.setdefault(address, []).append(came)
                tensors: list[Tensor] = []
                shown = encode(result, tensors.append)
                known: set[int] = set()
                for tensor, path in zip(tensors, holes(shown), strict=False):
                    if isinstance(tensor, nn.Parameter) or id(tensor) in known:  # as records have it
                        continue
                    known.add(id(tensor))
                    came[path] = []
                    node = compat.node_of(tensor) if tensor.requires_grad else None
                    if node is not None or (tensor.requires_grad and compat.is_leaf(tensor)):
                        tensor.register_hook(self._keeping(came[path]))
                    if node is not None:
                        node.register_prehook(self._correcting(came[path], tensor.output_nr))

        return returned

    def _keeping(self, found: list[Tensor]) -> Callable[[Tensor | None], None]:
        def keep(gradient: Tensor | None) -> None:
            if gradient is None or self._is_forward:  # none came; or the engine runs within the forward
                return
            with compat.NoTorchFunction():
                found.append(copy_of(compat.detach(gradient)))

        return keep

    def _correcting(self, found: list[Tensor], slot: int) -> Callable[[tuple[Tensor | None, ...]], None]:
        """What the node gets, in place of what our hook on the tensor saw: one of the user's may stand behind that."""

        def correct(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[slot]
            if found and gradient is not None and not self._is_forward:
                with compat.NoTorchFunction():
                    found[-1] = copy_of(compat.detach(gradient))

        return correct
