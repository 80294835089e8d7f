"""However a capture came to be and ended, and however it is loaded: journaled, partial, with weights, lazily."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from journal import JournalError
from tests.artifacts.test_round_trip import Model, code_of, contents, digests
from tests.programs import ROOT


def run(model: nn.Module, **options: Any) -> tl.Trace:
    torch.manual_seed(0)
    try:
        return tl.trace(model, torch.randn(3, 4), **options)
    except tl.TraceCaptureError as exc:
        return exc.partial_trace


def seeded(make: Callable[[], nn.Module] = Model) -> nn.Module:
    torch.manual_seed(1)
    return make()


def test_live_journaled_and_reopened_captures_are_saved_alike(tmp_path: Path) -> None:
    live = run(seeded())
    live.journal.copy_to(tmp_path / "copied")
    journaled = run(seeded(), journal=tmp_path / "j")
    journaled.save(tmp_path / "journaled.tlspec")
    journaled.cleanup()
    tl.load(tmp_path / "copied").save(tmp_path / "copied.tlspec")
    tl.load(tmp_path / "j").save(tmp_path / "reopened.tlspec")
    live.save(tmp_path / "live.tlspec")
    assert contents(tmp_path / "copied.tlspec") == contents(tmp_path / "live.tlspec")
    assert contents(tmp_path / "reopened.tlspec") == contents(tmp_path / "journaled.tlspec")
    one, other = (tl.load(tmp_path / f"{name}.tlspec") for name in ("live", "reopened"))
    assert all(torch.equal(op.out, other.ops[op.label].out) for op in one.ops)


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) + 1
        return x @ x


PARTIAL: dict[str, Callable[[], tl.Trace]] = {
    "failed": lambda: run(Failing()),
    "halted": lambda: run(seeded(), stop_after="norm"),
    "aborted_nonfinite": lambda: run(Logarithm(), capture=tl.CaptureOptions(raise_on_nan=True)),
}


class Logarithm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(-x.abs()).exp()


@pytest.mark.parametrize("status", PARTIAL)
@pytest.mark.parametrize("level", ["portable", "audit"])
def test_a_forward_that_did_not_return_is_saved_as_what_it_was(tmp_path: Path, status: str, level: str) -> None:
    trace = PARTIAL[status]()
    trace.save(tmp_path / "a.tlspec", level=level)
    loaded = tl.load(tmp_path / "a.tlspec")
    assert loaded.status == trace.status == status
    assert loaded.outcome == trace.outcome
    assert str(loaded.failure) == str(trace.failure)
    assert loaded.ops.labels == trace.ops.labels
    assert code_of(lambda: loaded.output) == "output_not_stored"
    assert loaded.check_metadata_invariants()
    if level == "portable":
        assert loaded.fingerprint == trace.fingerprint


def test_weights_are_those_that_the_capture_began_with(tmp_path: Path) -> None:
    model = seeded()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace = run(model)  # in train mode: the forward writes buffers
    trace.save(tmp_path / "a.tlspec", include_weights=True)
    weights = tl.load(tmp_path / "a.tlspec").weights()
    assert weights is not None
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())
    live = trace.weights()
    assert live is not None
    assert live["first.weight"] is model.get_parameter("first.weight")
    loaded = tl.load(tmp_path / "a.tlspec")
    assert torch.equal(loaded.params["first.weight"].value, before["first.weight"])
    assert loaded.param_hash_quick == trace.param_hash_quick
    loaded.save(tmp_path / "b.tlspec", include_weights=True)
    assert contents(tmp_path / "b.tlspec") == contents(tmp_path / "a.tlspec")
    assert [op.out.shape for op in loaded.ops] == [op.shape for op in trace.ops]


def test_weights_that_are_not_as_they_were_are_refused(tmp_path: Path) -> None:
    model = seeded()
    trace = run(model, save="none")
    assert code_of(lambda: trace.save(tmp_path / "a", include_weights=True)) == "buffer_changed"
    with torch.no_grad():
        model.get_parameter("first.weight").mul_(2)
    assert code_of(lambda: trace.save(tmp_path / "a", include_weights=True)) == "parameter_changed"
    trace.save(tmp_path / "a")
    loaded = tl.load(tmp_path / "a")
    assert loaded.weights() is None
    assert code_of(lambda: loaded.save(tmp_path / "b", include_weights=True)) == "parameter_not_live"
    buffers = tl.trace(nn.BatchNorm1d(4, affine=False).eval(), torch.randn(3, 4), save="none", journal=tmp_path / "j")
    buffers.cleanup()
    assert code_of(lambda: tl.load(tmp_path / "j").save(tmp_path / "b", include_weights=True)) == "weights_unavailable"


def test_a_lazy_artifact_reads_a_tensor_when_it_is_asked_for(tmp_path: Path) -> None:
    trace = run(seeded())
    trace.save(tmp_path / "a.tlspec")
    lazy, eager = tl.load(tmp_path / "a.tlspec", lazy=True), tl.load(tmp_path / "a.tlspec")
    payloads = tmp_path / "a.tlspec" / "payloads" / "00000.safetensors"
    data = bytearray(payloads.read_bytes())
    for place in range(8 + int.from_bytes(data[:8], "little"), len(data), 8):  # behind the header
        data[place] ^= 1
    with payloads.open("r+b") as file:
        file.write(data)
    damaged = [op.label for op in lazy.ops if code_of(lambda op=op: op.out) == "payload_damaged"]
    assert len(damaged) >= 1
    assert all(torch.equal(op.out, trace.ops[op.label].out) for op in eager.ops)
    assert code_of(lambda: tl.load(tmp_path / "a.tlspec")) == "payload_damaged"
    lazy.cleanup()
    eager.cleanup()


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", 3.5, "meta"])
def test_a_device_that_is_not_here_is_refused(tmp_path: Path, device: Any) -> None:
    tl.trace(nn.ReLU(), torch.ones(2)).save(tmp_path / "a")
    if device == "meta":  # a device like any other, which shows where tensors are put
        assert tl.load(tmp_path / "a", map_location=torch.device("meta")).ops[0].out.is_meta
    else:
        assert code_of(lambda: tl.load(tmp_path / "a", map_location=device)) == "map_location_invalid"


READER = """
import sys
import torchlens as tl
from journal import JournalError
trace = tl.load(sys.argv[1])
assert "torch" not in sys.modules
print(trace.ops.labels, trace.fingerprint, trace.modules["first"].class_name)
print(len(str(trace.summary())), trace.check_metadata_invariants())
assert "torch" not in sys.modules and "tests" not in sys.modules
assert trace.ops[0].out.shape == (3, 4)
assert not any(name.startswith("tests") for name in sys.modules)
"""


def test_a_process_without_the_model_and_without_torch_reads_the_records(tmp_path: Path) -> None:
    trace = run(seeded().eval())
    trace.save(tmp_path / "a.tlspec")
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "a.tlspec")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{trace.ops.labels} {trace.fingerprint} Linear" in done.stdout


def test_what_is_saved_in_between_changes_nothing(tmp_path: Path) -> None:
    trace = run(seeded())
    trace.save(tmp_path / "a.tlspec")
    before = digests(trace.tables)
    trace.save(tmp_path / "b.tlspec")
    assert digests(trace.tables) == before
    assert contents(tmp_path / "a.tlspec") == contents(tmp_path / "b.tlspec")


def test_an_artifact_where_a_journal_is_asked_for_is_told_as_one(tmp_path: Path) -> None:
    path = tl.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "a.tlspec")
    with pytest.raises(JournalError, match=r"tl\.load\(path\) reads an artifact") as caught:
        tl.time_travel(path)
    assert caught.value.code == "journal_not_a_journal"
