"""Records of backward passes that somebody made up: reading ends with an answer or a coded error, and soon."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from journal import Row
from journal.events import EVENTS_BY_NAME
from tests.golden import payloads as payloads_of
from tests.hostile import changed, mutated, read_records, write
from tests.work import at_most

BACKWARD = frozenset(cls.type_id for cls in EVENTS_BY_NAME.values() if cls.__module__ == "journal.events.backward")


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            x = torch.relu(self.fc(x))
        left, right = x.chunk(2, 1)
        return left, right


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], list[bytes | None]]:
    """Rows and payloads of a capture with two backward passes, one of them of higher order."""
    path = tmp_path_factory.mktemp("sound") / "j"
    x = torch.ones(2, 3, requires_grad=True)
    trace = tl.trace(Looped(), x, capture=tl.CaptureOptions(save_grads=True, backward_ready=True), journal=path)
    left, right = trace.output
    trace.backward((left**2).sum() + right[:, 0].sum(), retain_graph=True)
    (made,) = torch.autograd.grad((left**3).sum(), x, create_graph=True)
    made.pow(2).sum().backward()
    rows = [row for run in trace.journal.rows(trace.stream) for row in run]
    payloads = list(payloads_of(trace.journal, trace.stream))
    trace.cleanup()
    return rows, payloads


def test_a_sound_capture_is_read_without_a_refusal(sound: tuple[list[Row], list[bytes | None]], tmp_path: Path) -> None:
    """Else the law below would hold for want of anything to read."""
    found = read_records(write(tmp_path / "j", *sound))
    told = {what: code for what, code in found.items() if code and "trace[" not in what}
    ordinary = {"gradient_not_saved", "gradient_pass_ambiguous", "output_not_stored", "parameter_not_live"}
    assert {code for code in told.values() if code not in ordinary} <= {
        *("layer_pass_ambiguous", "module_call_ambiguous", "module_output_ambiguous", "activation_not_stored"),
        *("module_not_called", "arguments_not_saved"),
    }
    assert sum(what.startswith(("backward_passes", "grad_fns", "grad_fn_calls", "gradients")) for what in found) > 500
    assert sum(what.startswith("dispatched_ops") for what in found) > 500


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_any_change_to_the_diary_gives_records_or_a_coded_error(
    sound: tuple[list[Row], list[bytes | None]], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rows, payloads = sound
    draw = random.Random(seed)
    made = list(rows)
    places = [place for place, row in enumerate(rows) if row[0] in BACKWARD]
    for place in draw.sample(places, draw.choice((1, 1, 2, 3))):
        field = draw.randrange(2, len(made[place]))
        made[place] = (*made[place][:field], changed(made[place][field], draw), *made[place][field + 1 :])
    if draw.random() < 0.2:
        made = mutated(made, draw)
    folder = tmp_path_factory.mktemp("changed")
    with at_most(60):
        read_records(write(folder / "j", made, payloads), fields=seed % 2 == 0)
    shutil.rmtree(folder)
