"""Activations that go to disk alone: read back as they were, and held by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import torchlens as tl
from tests.torchlens.conftest import Worked, capture


def test_what_is_on_disk_reads_as_what_is_in_memory(tmp_path: Path) -> None:
    plain = capture()
    for retain in (False, True):
        path = tmp_path / str(retain)
        trace = capture(storage=tl.to_disk(path, retain_in_memory=retain))
        assert trace.ops.labels == plain.ops.labels
        for op in trace.ops:
            assert torch.equal(op.out, plain.ops[op.label].out)
            assert op.out.requires_grad is (retain and plain.ops[op.label].out.requires_grad)
        assert trace.output.requires_grad
        trace.output.sum().backward()
        trace.cleanup()
        again = tl.load(path)
        assert again.fingerprint == tl.load(path).fingerprint
        assert torch.equal(again["relu_1_4:2"].out, plain["relu_1_4:2"].out)
        again.cleanup()


@pytest.mark.parametrize("save", [None, tl.func("relu"), "tanh_1_2:2", "blk", tl.SaveOptions("fc", dtype=torch.half)])
@pytest.mark.parametrize("grad", [False, True])
def test_no_tensor_stays_in_memory(save: Any, grad: bool, tmp_path: Path) -> None:
    with torch.set_grad_enabled(grad):
        trace = capture(save=save, storage=tl.to_disk(tmp_path / "j"))
        kept = capture(storage=tl.to_disk(tmp_path / "k", retain_in_memory=True))
    assert trace.handles._pins == {}  # type: ignore[union-attr]
    assert len(kept.handles._pins) > 10  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("storage", ["journal", "storage"])
def test_what_has_no_bytes_to_store_is_named_in_health_and_refused_in_another_process(
    storage: str, tmp_path: Path
) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + x.to_sparse().to_dense()

    options = {"journal": tmp_path / "j"} if storage == "journal" else {"storage": tl.to_disk(tmp_path / "j")}
    trace = tl.trace(forward, torch.ones(2, 2), **options)
    labels = ("quantizepertensor_1_1", "tosparse_1_3")
    for one in (trace, tl.load(tmp_path / "j")):
        assert one.health.unstored == labels
        assert "2 activations were kept in the capturing process alone: sparse" in str(one.health)
        assert not one.health.is_clean
    assert trace[labels[1]].out.layout is torch.sparse_coo
    with pytest.raises(tl.TorchLensError) as refused:
        _ = one[labels[1]].out
    assert refused.value.code == "activation_not_stored"
    plain = tl.trace(forward, torch.ones(2, 2))
    assert plain.health.unstored == ()
    assert tl.trace(torch.relu, torch.ones(2), journal=tmp_path / "k").health.is_clean


PEAK = """
    import sys
    import torch
    import torchlens as tl

    def forward(x):
        for _ in range(40):
            x = x + 1
        return x.sum()

    def peak():  # getrusage would tell the parent's
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    with torch.no_grad():
        x = torch.ones(2 << 20)  # 8 MiB
        tl.trace(forward, x[:2], storage=tl.to_disk(sys.argv[1] + "/warm")).cleanup()
        before = peak()
        trace = tl.trace(forward, x, storage=tl.to_disk(sys.argv[1] + "/run"))
        print(peak() - before)
        assert trace.ops[30].out[0] == 31
        kept = tl.trace(forward, x)
        print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is told by Linux")
def test_memory_stays_bounded_over_activations_that_are_many_times_as_large(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PEAK), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    on_disk, in_memory = map(int, done.stdout.split())
    assert in_memory > 300 << 20  # forty of 8 MiB
    assert on_disk < in_memory / 2


def test_a_path_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    capture(journal=tmp_path / "old").cleanup()
    for name in ("file", "old"):
        with pytest.raises(tl.TorchLensError) as refused:
            capture(storage=tl.to_disk(tmp_path / name))
        assert refused.value.code == "target_taken"
    assert (tmp_path / "file").read_text() == "mine"
    assert len(tl.load(tmp_path / "old").ops) > 10


def test_two_places_for_activations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        capture(storage=tl.to_disk(tmp_path / "a"), journal=tmp_path / "b")
    assert refused.value.code == "storage_argument_conflict"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("storage", "code"), [("a.journal", "storage_type_invalid"), (3, "storage_type_invalid")])
def test_what_is_no_storage_is_refused(storage: Any, code: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.trace(Worked(), torch.ones(2, 4), storage=storage)
    assert refused.value.code == code


def test_an_option_of_to_disk_is_a_switch() -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.to_disk("a", retain_in_memory=1)  # type: ignore[arg-type]  # this is what is tested
    assert refused.value.code == "option_value_invalid"
