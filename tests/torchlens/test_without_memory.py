"""Captures of tensors that have no memory, or have it no more: nothing is read where there is nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchlens as tl
from torchlens.errors import TorchLensWarning


def refused(code: str) -> Any:
    return pytest.raises(tl.TorchLensError, match=rf"\[{code}\]")


def fake_trace(**options: Any) -> tl.Trace:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return tl.trace(nn.Linear(3, 2), torch.ones(3), **options)


def test_a_fake_capture_has_records_and_no_bytes(tmp_path: Path) -> None:
    trace = fake_trace()
    assert trace["linear_1_1"].shape == (2,)
    with refused("payload_without_bytes"):
        trace.save(tmp_path / "fake.tlspec")
    with pytest.warns(TorchLensWarning, match="payloads_left_out"):
        trace.save(tmp_path / "fake.tlspec", strict=False)
    assert tl.load(tmp_path / "fake.tlspec").ops.labels == trace.ops.labels
    assert len(trace.param_hash_quick) == 64


def test_a_fake_capture_on_disk_says_what_was_not_stored(tmp_path: Path) -> None:
    trace = fake_trace(journal=tmp_path / "j")
    assert trace.health.unstored == ("input_1", "linear_1_1", "output_1")
    trace.cleanup()


def test_a_fake_capture_is_not_run() -> None:
    ready = fake_trace(capture=tl.CaptureOptions(replayable=True)).readiness
    assert {one.code for one in ready.diagnostics} == {"tensor_subclass"}


def test_what_is_saved_within_a_mode_of_fake_tensors_is_what_is_saved_without(tmp_path: Path) -> None:
    trace = tl.trace(nn.Linear(3, 2), torch.ones(3), capture=tl.CaptureOptions(save_arg_values=True))
    known = trace.param_hash_quick
    with FakeTensorMode(allow_non_fake_inputs=True):
        trace.save(tmp_path / "a.tlspec", include_weights=True)
        assert trace.param_hash_quick == known
    loaded = tl.load(tmp_path / "a.tlspec")
    assert torch.equal(loaded["linear_1_1"].out, trace["linear_1_1"].out)
    assert torch.equal(loaded.params["weight"].value, trace.params["weight"].value)


def test_what_was_freed_since_is_refused_and_the_rest_is_there(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    trace = tl.trace(model, torch.ones(3))
    trace.output.untyped_storage().resize_(0)
    model[0].weight.untyped_storage().resize_(4)
    with refused("activation_overwritten"):
        trace["relu_1_2"].out  # noqa: B018  # read
    with refused("parameter_changed"):
        trace.params["0.weight"].value  # noqa: B018  # read
    with refused("parameter_changed"):
        trace.param_hash_quick  # noqa: B018  # read
    with refused("payload_without_bytes"):
        trace.save(tmp_path / "a.tlspec")
    with pytest.warns(TorchLensWarning, match="payloads_left_out"):
        trace.save(tmp_path / "a.tlspec", strict=False)
    assert torch.equal(tl.load(tmp_path / "a.tlspec")["linear_1_1"].out, trace["linear_1_1"].out)


def test_a_view_that_repeats_few_elements_is_stored_once_by_a_journal_and_not_written_out_by_a_save(
    tmp_path: Path,
) -> None:
    trace = tl.trace(lambda x: x.expand(1 << 50)[:3], torch.ones(1), journal=tmp_path / "j")
    trace.save(tmp_path / "once.tlspec")
    assert tl.load(tmp_path / "once.tlspec")["expand_1_1"].out.shape == (1 << 50,)
    trace.cleanup()
    live = tl.trace(lambda x: x.expand(1 << 50)[:3], torch.ones(1))
    with refused("payload_without_bytes"):
        live.save(tmp_path / "live.tlspec")


def test_what_has_no_digest_is_compared_with_nothing() -> None:
    trace = tl.trace(
        lambda x: x * 2 if x.expand(1 << 28).numpy()[0] > 0 else x,
        torch.ones(1),
        capture=tl.CaptureOptions(replayable=True),
    )
    report = trace.run(inputs=-torch.ones(1)).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "memory_looked_at"
