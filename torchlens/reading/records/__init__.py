"""The records of a forward: ops, layers, modules, their calls, parameters and buffers.

Each kind has a file with what it tells of itself; ``links`` makes them ``Op``, ``Layer`` and the others, which lead to
one another. Where a field has an answer for each pass or call and there are several, it refuses and says where to ask.

None means that the question does not apply. Memory and time come as ``Bytes`` and ``Duration``.
"""

from __future__ import annotations

from torchlens.reading.records.links import Buffer, Layer, Module, ModuleCall, Op, Orphan, Param

__all__ = ["Buffer", "Layer", "Module", "ModuleCall", "Op", "Orphan", "Param"]
