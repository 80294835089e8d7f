"""Nodes of a deep graph that are needed no more, while the tensor that the engine started from still stands on it.

Rule   where more than ``compat.MAX_TOUCHED_NODES`` nodes were looked at, freeing them from a tensor's side overflows
       the stack: torch frees one within the other. So they are held until the tensors that were the roots are gone,
       and let go of one by one, the newest first, at the next thing that a capture or the engine is asked for.
       Not as the tensor goes, when its node still hangs on it.
Not    other tensors of the user's that stand on such a graph: they are not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias
from weakref import ref

from torch import Tensor

from torchlens import compat
from torchlens.handles import release

__all__ = ["Roots", "let_go", "roots_of", "sweep"]

Roots: TypeAlias = "list[ref[Tensor]]"

_lock: Final = threading.Lock()
_held: Final[list[tuple[Roots, dict[Any, int]]]] = []


def roots_of(tensors: Iterable[Any], num_nodes: int) -> Roots:
    """The tensors among some roots, where so many nodes that were reached from them make that matter."""
    if num_nodes <= compat.MAX_TOUCHED_NODES:
        return []
    return [ref(each) for each in tensors if isinstance(each, Tensor)]


def let_go(nodes: dict[Any, int], roots: Roots) -> None:
    """Let go of nodes, which are taken out of ``nodes``, now or when the roots are gone."""
    if len(nodes) > compat.MAX_TOUCHED_NODES and any(root() is not None for root in roots):
        with _lock:
            _held.append((roots, dict(nodes)))
        nodes.clear()
    else:
        release(nodes)


def sweep() -> None:
    """Let go of what was held for roots that are gone by now."""
    if _held:
        for nodes in _due():
            release(nodes)


def _due() -> Iterator[dict[Any, int]]:
    with _lock:
        due = [entry for entry in _held if all(root() is None for root in entry[0])]
        _held[:] = [entry for entry in _held if not any(entry is each for each in due)]
    for _, nodes in due:
        yield nodes
