"""Weights of an artifact are those that the forward began with, whatever happened to the model since, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.running.comparing import REPLAYABLE
from torchlens.errors import PayloadUnavailableError, ReplayRefused


class Net(nn.Module):
    """Has a parameter and a buffer that the forward reads, and one of each that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.idle = nn.Parameter(torch.full((3, 3), 0.1)), nn.Parameter(torch.full((3,), 0.1))
        self.register_buffer("scale", torch.full((3,), 0.3))
        self.register_buffer("unread", torch.full((3,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * self.scale


class Writing(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.add_(1)
            self.unread.add_(1)
        return super().forward(x)


def assign(model: nn.Module) -> None:
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)


def exchange(model: nn.Module) -> None:
    for tensor in model.state_dict(keep_vars=True).values():
        tensor.data = torch.zeros_like(tensor)


SEEN: list[Callable[[Any], Any]] = [
    lambda model: None,
    lambda model: model.float(),
    lambda model: model.double(),
    lambda model: model.half(),
    lambda model: model.bfloat16().float(),  # other memory at what may be the same address, and rounded
    lambda model: model.load_state_dict({name: one + 1 for name, one in model.state_dict().items()}),
    lambda model: [one.add_(1) for one in model.state_dict().values()],
    assign,
    exchange,
]
"""Nothing, twice; then what torch counts, or puts on other memory."""

UNCOUNTED: list[Callable[[Any], Any]] = [
    lambda model: [one.data.add_(1) for one in model.state_dict(keep_vars=True).values()],
    lambda model: [one.detach().numpy().fill(0) for one in model.state_dict().values()],
]


def saved(trace: tl.Trace, path: Path) -> str:
    """Save with weights; the code of the refusal, "" without one."""
    try:
        trace.save(path, include_weights=True)
    except PayloadUnavailableError as refused:
        return refused.code
    return ""


@pytest.mark.parametrize("build", [Net, Writing])
@pytest.mark.parametrize("save", ["all", "none"])
@pytest.mark.parametrize("replayable", [True, False])
def test_weights_are_saved_as_the_forward_began_with_them_or_not_at_all(
    replayable: bool, save: str, build: type[Net], tmp_path: Path
) -> None:
    for number, change in enumerate([*SEEN, *(UNCOUNTED if replayable and save == "none" else ())]):
        model = build()
        wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trace = tl.trace(model, torch.ones(2, 3), save=save, capture=tl.CaptureOptions(replayable=replayable))
        change(model)
        code = saved(trace, tmp_path / f"{number}.tlspec")
        assert code in ("", "parameter_changed", "parameter_not_live", "buffer_changed")
        assert not code or number > 1 or build is Writing
        if not code:
            found = tl.load(tmp_path / f"{number}.tlspec").weights()
            assert found is not None
            assert wanted.keys() == found.keys()
            assert all(torch.equal(wanted[name], found[name]) for name in wanted)
        trace.cleanup()


def test_one_call_is_made_again_with_the_weights_that_it_had_or_not_at_all() -> None:
    for change in (*SEEN[2:], *UNCOUNTED):
        model = nn.Linear(3, 3)
        trace = tl.trace(model, torch.ones(2, 3), capture=REPLAYABLE)
        wanted, known = trace["linear_1_1"].out, trace.param_hash_quick
        change(model)
        if change is assign:  # the graph holds those that it had
            assert torch.equal(trace.make_again("linear_1_1")[0], wanted)
            assert trace.param_hash_quick == known
            continue
        with pytest.raises(ReplayRefused) as refused:
            trace.make_again("linear_1_1")
        assert refused.value.code == "replay_value_not_kept"
        with pytest.raises(PayloadUnavailableError):
            _ = trace.param_hash_quick
