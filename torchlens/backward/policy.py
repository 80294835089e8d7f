"""Which gradients a backward pass keeps.

Gives  a ``Policy``: its text, and for nodes that were found, which outputs' gradients to keep, and whether to keep
       those that the node sends on.
Not    how a gradient is kept (diary.py); that one passed a leaf is told whatever the policy says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from journal.events import GraphNode

__all__ = ["EVERYTHING", "NOTHING", "WHOLE", "Kept", "Measuring", "Policy"]


class Kept(NamedTuple):
    """What is kept at a node."""

    outputs: frozenset[int] | None  # the outputs whose arriving gradient is kept; None for all of them
    inputs: bool  # whether the gradients that it sends on are kept


WHOLE: Final = Kept(None, False)
"""The gradient of every output."""


class Policy(ABC):
    """Says which gradients to keep."""

    text: str | None
    """As `PassOpened.policy` has it."""

    only_statistics: bool = False
    """Whether statistics of the gradients are kept in their place."""

    @abstractmethod
    def kept_at(self, nodes: Sequence[GraphNode], num_op_nodes: int, pass_number: int) -> Mapping[int, Kept]:
        """What is kept, by node number, at some nodes of a pass; a node that is not in it keeps nothing.

        Args:
            nodes: Nodes that the pass may run and has not asked about yet.
            num_op_nodes: Nodes with lower numbers are those of the forward's values.
            pass_number: From 0.
        """


class Nothing(Policy):
    """Only what ran is told."""

    text = None

    def kept_at(self, nodes: Sequence[GraphNode], num_op_nodes: int, pass_number: int) -> Mapping[int, Kept]:
        return MappingProxyType({})


class Everything(Policy):
    """The gradient of every value of the forward, and what each leaf gets."""

    text = "True"

    def kept_at(self, nodes: Sequence[GraphNode], num_op_nodes: int, pass_number: int) -> Mapping[int, Kept]:
        return {node[0]: WHOLE for node in nodes if node[0] < num_op_nodes or node[6] is None}


class Measuring(Policy):
    """Statistics of the gradients that another policy keeps."""

    only_statistics = True

    def __init__(self, text: str, policy: Policy) -> None:
        self.text = text
        self.policy = policy

    def kept_at(self, nodes: Sequence[GraphNode], num_op_nodes: int, pass_number: int) -> Mapping[int, Kept]:
        return self.policy.kept_at(nodes, num_op_nodes, pass_number)


NOTHING: Final = Nothing()
EVERYTHING: Final = Everything()
