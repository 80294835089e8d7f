"""Parameters and buffers of a model beside the records of a capture: as they are saved, and as they are read.

Rule   They are as the capture began with them. What was written since is taken from what the capture kept, or refused.
Rule   A tensor stands under the address that the records have for it; aliases are in the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from projections.errors import over_events
from projections.folds.vocabulary import Tensor as Row
from torchlens.errors import PayloadUnavailableError
from torchlens.reading.view import View
from torchlens.tlspec.blobs import Blob, Blobs, Counted

__all__ = ["Weights", "weights_of"]


def rows_of(view: View) -> Iterator[tuple[Counted, int, Row]]:
    """What a state dict would hold, by number: the registered parameters, then the buffers."""
    words = view.tables.forward.words
    for number, row in enumerate(words.parameters[: words.registered]):
        yield "parameter", number, row
    for number, row in enumerate(words.buffers):
        yield "buffer", number, row


def weights_of(view: View) -> Iterator[Blob]:
    """The parameters and buffers of a trace, to be saved.

    Raises:
        PayloadUnavailableError: ``weights_unavailable``, where the model is not here; ``parameter_changed``,
            ``buffer_changed``, where one was written since and was not kept; ``payload_without_bytes``.
    """
    from torchlens.tensors import DTYPE_WORD, contiguous_bytes  # for cost: records are read without torch

    for kind, number, row in rows_of(view):
        tensor = parameter(view, number) if kind == "parameter" else buffer(view, number, row)
        data = contiguous_bytes(tensor)
        if data is None:
            raise PayloadUnavailableError(
                code="payload_without_bytes",
                problem=f"{kind} {row.address!r} has no bytes to save: it is sparse, quantised, or on meta",
                remedy="save without include_weights=True",
                address=row.address,
            )
        yield Blob(
            number=number,
            kind="parameter" if kind == "parameter" else "buffer",
            name=row.address,
            dtype=DTYPE_WORD[tensor.dtype],
            shape=tuple(tensor.shape),
            data=data,
            address=row.address,
        )


def parameter(view: View, number: int) -> Any:
    return view.record("params", number).as_captured("include_weights")


def buffer(view: View, number: int, row: Row) -> Any:
    """A buffer as the forward first read it, or found it."""
    held = None if view.artifact is None else view.artifact.weights()
    if held is not None and row.address in held:
        return held[row.address]
    buffers, ops = view.table("buffers"), view.table("ops")
    by_forward = buffers.value("is_overwritten", number)  # kernels write past torch's count
    live = None if view.handles is None or by_forward else view.handles.buffer_as_captured(number)
    if live is not None:
        return live
    versions = buffers.value("version_rows", number)
    if versions and ops.value("has_saved_activation", versions[0]) and is_first(view, versions[0]):
        kept = view.activation(versions[0])
        if view.handles is None or view.handles.is_buffer(number, kept):
            return kept
    elif view.handles is None or view.handles.buffer(number) is None:
        raise unavailable(f"buffer {row.address!r}")
    raise PayloadUnavailableError(
        code="buffer_changed",
        problem=f"buffer {row.address!r} was written {'by the forward' if by_forward else 'since the capture'}, and "
        "what it held before was not kept",
        remedy="capture with save= that keeps buffers, or put the model in eval mode; save before the model changes",
        address=row.address,
    )


def is_first(view: View, row: int) -> bool:
    """Whether an op row is a buffer as the forward first read it."""
    ops = view.table("ops")
    return ops.value("buffer_pass", row) == 1 and ops.value("buffer_write_kind", row) is None


def unavailable(what: str) -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="weights_unavailable",
        problem=f"{what} is not here: the model lives in the process that captured, if it still does",
        remedy="save with include_weights=True in that process",
    )


class Weights(Mapping[str, Any]):
    """The parameters and buffers that an artifact holds, by address; each is read when it is asked for."""

    def __init__(self, view: View, blobs: Blobs) -> None:
        self.view: Final = view
        self.blobs: Final = blobs
        self.rows: Final = {row.address: (kind, number, row) for kind, number, row in rows_of(view)}
        self.there: Final = [
            address for address, (kind, number, _) in self.rows.items() if blobs.size(number, kind) is not None
        ]

    def __getitem__(self, address: str) -> Any:
        from torchlens.tensors import from_payload  # for cost: records are read without torch

        kind, number, row = self.rows[address]
        data = self.blobs.bytes(number, kind)
        with over_events():
            made = from_payload(data, row.dtype, row.shape, 0, None)
        return made if self.view.artifact is None else self.view.artifact.placed(made)

    def __iter__(self) -> Iterator[str]:
        return iter(self.there)

    def __len__(self) -> int:
        return len(self.there)
