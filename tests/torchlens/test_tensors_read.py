"""A tensor that was read is the reader's own, wherever its bytes came from: writing into it changes nothing that is
read later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from journal import MemoryJournal
from journal.copying import copy_streams
from torchlens.reading.facade import Trace
from torchlens.tensors import from_payload
from torchlens.tlspec import blobs as payload_files


class Cut(nn.Module):
    """Several values lie in one payload: most of it, all of it, and little of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        made = self.lin(x)
        return (made[:, 1:].sum() + made.t().max() + made[0, :2]).relu()


def in_memory(trace: tl.Trace, path: Path) -> tl.Trace:
    held = MemoryJournal()
    copy_streams(trace.journal, held)
    return Trace(held, trace.stream)


def reopened(trace: tl.Trace, path: Path) -> tl.Trace:
    trace.journal.copy_to(path)
    return tl.load(path)


def saved(trace: tl.Trace, path: Path, **options: Any) -> tl.Trace:
    trace.save(path, include_weights=True)
    return tl.load(path, **options)


def large(trace: tl.Trace, path: Path) -> tl.Trace:
    with patch.object(payload_files, "GIVEN_BYTES", 1):
        return saved(trace, path)


WAYS = {
    "live": lambda trace, path: trace,
    "in memory": in_memory,
    "reopened": reopened,
    "an artifact": saved,
    "an artifact, lazy": partial(saved, lazy=True),
    "a large artifact": large,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_writing_into_what_was_read_changes_nothing_that_is_read_later(
    tmp_path: Path, way: Callable[[tl.Trace, Path], tl.Trace]
) -> None:
    captured = tl.trace(Cut(), torch.randn(3, 4), capture=tl.CaptureOptions(save_grads=True))
    captured.backward(captured.output.sum())
    trace = way(captured, tmp_path / "a")
    for read, ops in (("out", list(trace.ops)), ("grad", [op for op in trace.ops if op.has_grad])):
        before = {op.label: getattr(op, read).clone() for op in ops}
        assert len(before) > 4
        for op in ops:
            with torch.no_grad():
                getattr(op, read).fill_(7)
            assert [other.label for other in ops if not getattr(other, read).equal(before[other.label])] == []
    if trace.artifact is not None:
        weights = trace.weights()
        assert weights is not None
        before = {address: tensor.clone() for address, tensor in weights.items()}
        for address in weights:
            weights[address].fill_(7)
        assert all(weights[address].equal(before[address]) for address in weights)


def test_a_tensor_lies_in_the_bytes_that_are_given_up_and_not_in_those_that_others_share() -> None:
    data = bytearray(torch.arange(8.0).numpy().tobytes())
    adopted = from_payload(memoryview(data), "float32", (7,), 1, None)
    copied = from_payload(memoryview(data).toreadonly(), "float32", (7,), 1, None)
    assert adopted.equal(copied)
    assert memoryview(data).cast("f")[1:].tolist() == adopted.tolist()
    adopted.zero_()
    assert not any(memoryview(data).cast("f")[1:])
    assert copied.equal(torch.arange(1.0, 8.0))


def test_a_small_view_does_not_hold_the_large_payload_that_it_is_read_from() -> None:
    data = bytearray(4096)
    small = from_payload(memoryview(data), "float32", (4,), 8, None)
    data += b"which a buffer that a tensor lies in refuses"
    assert small.tolist() == [0.0] * 4
    large = from_payload(memoryview(data)[:4096], "float32", (1000,), 0, None)
    with pytest.raises(BufferError):
        data += b"more"
    assert large.numel() == 1000
