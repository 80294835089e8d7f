"""Real architectures, saved and loaded: what each level keeps is as it was, live, journaled and loaded alike."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import torchlens as tl
from tests.artifacts.test_laws import LEFT_OUT, check_columns, check_tensors
from tests.artifacts.test_round_trip import contents
from tests.zoo.test_gradients import NAMES, Build, zoo
from torchlens.generators import seed_all
from torchlens.validation.default_loss import weighted

__all__ = ["zoo"]

SAMPLE: Final = ("inplace_chain", "autocast_and_no_grad")
"""Small ones that hold much of what is odd; the others are slow."""

pytestmark = [pytest.mark.filterwarnings("ignore")]  # what the models' own packages warn of


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in NAMES]
)
def test_live_journaled_and_loaded_agree_at_every_level(zoo: dict[str, Build], name: str, tmp_path: Path) -> None:
    model, args, kwargs = zoo[name]()
    seed_all(0)
    capture = tl.CaptureOptions(save_grads=True, backward_ready=True)
    trace = tl.trace(model, args, kwargs, capture=capture, journal=tmp_path / "j")
    loss = weighted(trace.output)
    assert loss is not None
    trace.backward(loss)
    for level in LEFT_OUT:
        trace.save(tmp_path / f"{level}.tlspec", level=level, strict=False)
        loaded = tl.load(tmp_path / f"{level}.tlspec")
        check_columns(trace, loaded, level)
        assert loaded.fingerprint == trace.fingerprint_at(level)
        assert loaded.check_metadata_invariants()
        assert str(tl.report.backward_status(loaded)) == str(tl.report.backward_status(trace))
        assert str(tl.report.cost_tree(loaded)) == str(tl.report.cost_tree(trace))
        if level == "portable":
            check_tensors(trace, loaded)
        loaded.cleanup()
    trace.cleanup()
    reopened = tl.load(tmp_path / "j")
    reopened.save(tmp_path / "again.tlspec", strict=False)
    assert contents(tmp_path / "again.tlspec") == contents(tmp_path / "portable.tlspec")
    reopened.cleanup()
