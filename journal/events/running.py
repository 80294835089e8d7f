"""What a later run of the recorded calls needs beside them; told only where that was asked for (``replayable``)."""

from __future__ import annotations

from journal.events.base import Event, Plain, Value, event
from journal.events.capture import Template
from journal.events.forward import KeptTensor


@event("constant_kept", version=1)
class ConstantKept(Event):
    """What no recorded call makes was kept: a constant, a buffer that no state dict holds, a parameter that the model
    does not register, or the result of a call that was given what is no plain data."""

    value: Value | int  # as in ``OpExecuted.inputs``
    kept: KeptTensor


@event("value_taken", version=1)
class ValueTaken(Event):
    """Python took something out of tensors that is no tensor: a number, a list, an answer, an array.

    A truth is told by ``BranchTaken``. What is no single number or answer is told by its digest, XXH3-128 over the
    elements in the order of their axes; both are None for what has no elements in plain memory.
    """

    function: int  # "item", "tolist", "__int__", "equal", "numpy", ...
    site: int
    call: int  # innermost running module call
    args: Template
    kwargs: Template
    inputs: tuple[int, ...]
    result: Plain  # a template; None where there is a digest
    digest: str | None


@event("written_unseen", version=1)
class WrittenUnseen(Event):
    """Memory that was handed out, as by ``numpy()``, was written by what is no recorded call; seen at its next use."""

    value: Value | int


Told = tuple[int, "str | None"]
"""A value and the digest of its elements; None for what has no plain memory."""


@event("forward_witnessed", version=1)
class ForwardWitnessed(Event):
    """What a run of the recorded calls can be held to, and built like; told when the forward has ended."""

    inputs: tuple[Told, ...]
    outputs: tuple[Told, ...]
    containers: tuple[tuple[tuple[Plain, ...], str], ...]  # path in the result and class of what its template renames
    parameters: tuple[Told, ...]  # by number, as they stood before it
    buffers: tuple[Told, ...]  # by number, as each was first read
    generators: tuple[str, ...]  # "python", "numpy": numbers were drawn, and are told as constants; "torch": was set
    layouts: tuple[
        tuple[int, tuple[int, ...]], ...
    ]  # parameter and strides, in elements, of each that is not contiguous
    taken_elsewhere: tuple[
        str, ...
    ]  # import paths of what other threads took something by, out of the forward's tensors
    modes: tuple[str, ...]  # classes of the function and dispatch modes of others that calls were made in
    settings: tuple[tuple[str, str], ...]  # around the forward, where not torch's own: "default_dtype"
    shared: tuple[tuple[int, ...], ...]  # buffers, and -1 - n for parameter n, that lie in one memory
