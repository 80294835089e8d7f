"""One call made again, live or from an artifact, is what it was; the user's code only where its module is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.torchlens.models import Double, refusal
from torchlens.bits import same_bits
from torchlens.errors import ConfigurationError, LookupRefused, ReplayRefused

HERE = Double.__module__


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.first(x)).t()
        y[0].mul_(2)
        return Double.apply(y.max(0).values) + y.topk(2, 0)[0][0]


def capture(**options: bool) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Model(), torch.randn(3, 4), capture=tl.CaptureOptions(**options))


@pytest.mark.parametrize("options", [{"save_arg_values": True, "save_rng_states": True}, {}])
def test_every_call_of_a_loaded_artifact_comes_out_as_it_did(tmp_path: Path, options: dict[str, bool]) -> None:
    trace = capture(**options)
    trace.save(tmp_path / "a.tlspec", level="executable_with_callables")
    loaded = tl.load(tmp_path / "a.tlspec")
    made = 0
    for op in loaded.ops.compute:
        if not options and op.func_name == "linear":
            with pytest.raises(ReplayRefused) as caught:
                loaded.make_again(op)
            assert caught.value.code == "replay_value_not_kept"
            assert caught.value.problem.startswith("parameter 'first.weight' is not here")
            assert "include_weights=True" in caught.value.remedy
            assert "save_arg_values=True" in caught.value.remedy
            trace.save(tmp_path / "w.tlspec", level="executable_with_callables", include_weights=True)
            (found,) = tl.load(tmp_path / "w.tlspec").make_again(op.label)
            assert same_bits(found.detach(), trace.ops[op.label].out.detach())
            continue
        found = loaded.make_again(op, allowed_custom_callable_modules=[HERE])
        slot = op.multi_output_index or 0
        assert same_bits(found[slot].detach(), trace.ops[op.label].out.detach()), op.label
        made += 1
    assert made >= 7


def test_a_live_call_is_made_again_without_saved_arguments() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4))
    (found,) = trace.make_again("linear_1_1")
    assert torch.equal(found.detach(), trace["linear_1_1"].out.detach())


def test_code_of_the_user_s_is_called_only_where_its_module_is_allowed() -> None:
    trace = capture(save_arg_values=True)
    (label,) = [op.label for op in trace.ops if op.func_name == "Double"]

    def code(*allowed: str) -> str:
        return refusal(lambda: trace.make_again(label, allowed_custom_callable_modules=list(allowed)), ReplayRefused)

    assert code() == code("os", "tests.torchlens.model") == "custom_callable_untrusted"
    assert code("tests.torchlens.models.Double") == "custom_callable_untrusted"
    assert code("tests") == "custom_callable_not_found"
    refused = refusal(lambda: trace.make_again(label, allowed_custom_callable_modules="tests"), ConfigurationError)
    assert refused == "option_value_invalid"


def test_what_no_function_returned_is_not_made_again() -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    assert refusal(lambda: trace.make_again("input_1"), LookupRefused) == "made_by_no_call"


def test_a_name_that_means_something_else_now_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = capture(save_arg_values=True)
    monkeypatch.setattr(f"{HERE}.Double", print)
    (label,) = [op.label for op in trace.ops if op.func_name == "Double"]
    refused = refusal(lambda: trace.make_again(label, allowed_custom_callable_modules=[HERE]), ReplayRefused)
    assert refused == "custom_callable_unsupported"
