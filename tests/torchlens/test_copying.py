"""A capture in memory becomes one on disk: equal records, the same activations, and nothing made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import PayloadUnavailableError


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        return out


def views(x: Tensor) -> Tensor:
    """Transposed, strided, expanded and overlapping views, of a contiguous tensor and of one another."""
    a = x.t()
    b = a[1:, ::2]
    c = b.unsqueeze(0).expand(3, *b.shape)
    return c.transpose(0, 2).reshape(-1)[::3] + x.as_strided((2,), (1,), 1).sum()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    z = y.view(-1)
    y.add_(1)
    z[:2].mul_(3)
    y.relu_()
    return y + z.sum()


def odd_kinds(x: Tensor) -> Tensor:
    half = x.to(torch.bfloat16) * 1.5
    whole = (x * 10).to(torch.int64)
    truth = whole > 3
    empty = x[:0]
    scalar = x.sum()
    return half.float() + whole + truth + scalar + empty.sum()


def complex_kinds(x: Tensor) -> Tensor:
    z = torch.complex(x, x + 1)
    w = z.conj()
    return (w * z.mT.conj().mT).imag.neg() + torch._neg_view(x)


def channels_last(x: Tensor) -> Tensor:
    image = x.reshape(1, 2, 2, -1).to(memory_format=torch.channels_last)
    return image * 2


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (3, 4)),
    "convnet": (Convnet, (2, 3, 6, 6)),
    "views": (lambda: views, (4, 6)),
    "in place": (lambda: in_place, (3, 4)),
    "odd kinds": (lambda: odd_kinds, (3, 4)),
    "complex": (lambda: complex_kinds, (3, 4)),
    "channels last": (lambda: channels_last, (3, 4)),
}


def bits(tensor: Tensor) -> bytes:
    """The elements in the order of the axes, so that NaN equals itself and minus zero is not zero."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""


@pytest.mark.parametrize("name", MODELS)
def test_a_capture_in_memory_is_copied_to_disk_with_equal_records_and_activations(name: str, tmp_path: Path) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    live = tl.trace(make(), torch.randn(shape), name=name)
    copied = live.journal.copy_to(tmp_path / "copy.journal")
    assert copied.payloads_missing == 0
    loaded = tl.load(tmp_path / "copy.journal")
    assert loaded.fingerprint == live.fingerprint
    compared = 0
    for op in live.ops:
        there = loaded.ops[op.label].out
        assert (there.dtype, there.shape) == (op.out.dtype, op.out.shape)
        assert bits(there) == bits(op.out), op.label
        compared += 1
    assert compared == len(loaded.ops) > 3
    loaded.cleanup()
    live.cleanup()


def test_a_copy_of_a_journaled_capture_is_equal_too(tmp_path: Path) -> None:
    live = tl.trace(in_place, torch.ones(3, 4), journal=tmp_path / "a.journal")
    live.journal.copy_to(tmp_path / "b.journal")
    loaded = tl.load(tmp_path / "b.journal")
    assert loaded.fingerprint == live.fingerprint
    assert [bits(op.out) for op in loaded.ops] == [bits(op.out) for op in live.ops]
    loaded.cleanup()
    live.cleanup()


def test_what_was_overwritten_after_the_capture_is_missing_from_the_copy_and_counted(tmp_path: Path) -> None:
    live = tl.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), capture=no_grad())
    live.output.zero_()
    copied = live.journal.copy_to(tmp_path / "copy.journal")
    loaded = tl.load(tmp_path / "copy.journal")
    assert [op.label for op in loaded.ops if not is_there(op)] == ["relu_1_2", "output_1"]
    for label in ("input_1", "linear_1_1"):
        assert bits(loaded.ops[label].out) == bits(live.ops[label].out)
    assert copied.payloads_missing == 1  # both stand for one value
    loaded.cleanup()
    live.cleanup()


def is_there(op: Any) -> bool:
    try:
        return op.out is not None
    except PayloadUnavailableError as exc:
        return exc.code not in ("activation_not_saved", "activation_not_stored")


def no_grad() -> tl.CaptureOptions:
    return tl.CaptureOptions(inference_only=True)


def test_after_cleanup_there_is_nothing_to_lend(tmp_path: Path) -> None:
    live = tl.trace(nn.ReLU(), torch.ones(2))
    mark, journal = live.fingerprint, live.journal
    live.cleanup()
    copied = journal.copy_to(tmp_path / "copy.journal")
    assert copied.payloads_missing == 2  # of the input and of the op
    loaded = tl.load(tmp_path / "copy.journal")
    assert loaded.fingerprint == mark
    with pytest.raises(PayloadUnavailableError) as refused:
        _ = loaded.ops[1].out
    assert refused.value.code == "activation_not_stored"
    loaded.cleanup()


def test_an_activation_without_plain_memory_is_missing_from_the_copy(tmp_path: Path) -> None:
    live = tl.trace(lambda x: torch.sparse.mm(x.to_sparse(), x.t()), torch.eye(3))
    copied = live.journal.copy_to(tmp_path / "copy.journal")
    assert copied.payloads_missing == 1
    loaded = tl.load(tmp_path / "copy.journal")
    assert loaded.fingerprint == live.fingerprint
    loaded.cleanup()
    live.cleanup()


@pytest.mark.parametrize("save", ["none", tl.func("relu"), tl.label("relu_1_2")])
def test_only_what_was_kept_is_copied(save: Any, tmp_path: Path) -> None:
    live = tl.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), save=save)
    copied = live.journal.copy_to(tmp_path / "copy.journal")
    loaded = tl.load(tmp_path / "copy.journal")
    kept = [op.label for op in loaded.ops if op.has_saved_activation]
    assert kept == [op.label for op in live.ops if op.has_saved_activation]
    for label in kept:
        assert bits(loaded.ops[label].out) == bits(live.ops[label].out)
    assert copied.payloads_missing == 0
    loaded.cleanup()
    live.cleanup()
