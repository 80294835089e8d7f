"""A copy or pickle of a tensor that the forward makes is another tensor, and carries nothing of the capture."""

from __future__ import annotations

import copy
import io
import pickle  # noqa: TID251  # what users do with their tensors
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl

VERIFY = tl.CaptureOptions(verify_capture=True)


def saved(tensor: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def saved_and_loaded(tensor: Tensor) -> Any:
    return torch.load(io.BytesIO(saved(tensor)))


def pickled(tensor: Tensor) -> Any:
    return pickle.loads(pickle.dumps(tensor))  # noqa: S301  # its own promise


COPIES: dict[str, Callable[[Tensor], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": pickled,
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize("copies", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("carries", [False, True])
def test_what_writes_to_a_copy_writes_nothing_of_the_original(copies: Callable[[Tensor], Any], carries: bool) -> None:
    def forward(x: Tensor) -> Tensor:
        y = torch.relu(x).detach()
        if carries:
            y.note = "mine"  # type: ignore[attr-defined]  # tensors take any
        z = copies(y)
        assert getattr(z, "note", None) == ("mine" if carries else None)
        z.add_(1)
        return y * z

    trace = tl.trace(forward, torch.tensor([-1.0, 2.0]), capture=VERIFY)
    assert torch.equal(trace.output, torch.tensor([0.0, 6.0]))
    product = trace.ops.find("mul")[0]
    assert [trace.ops[parent].func_name for parent in product.parents] in (["relu", "add_"], ["detach", "add_"])
    assert trace.health.capture_verified is True
    assert trace.health.unseen_tensors == ()


def test_a_deep_copy_is_one_op_of_what_was_copied_and_can_be_made_again() -> None:
    trace = tl.trace(lambda x: copy.deepcopy(x.detach()) + 1, torch.ones(3))
    copied = trace["deepcopy_1_2"]
    assert copied.parents == ("detach_1_1",)
    assert trace["add_1_3"].parents == ("deepcopy_1_2",)
    assert copied.ops[0].flops_forward == 0
    assert tl.validate(lambda x: copy.deepcopy(x.detach()) + 1, torch.ones(3))


def test_tensors_that_are_copied_together_stay_one_where_they_were_one() -> None:
    def forward(x: Tensor) -> Tensor:
        y = (x * 1).detach()
        one, same, view = copy.deepcopy([y, y, y[:1]])
        view.add_(1)
        assert one is same
        return one + same

    assert torch.equal(tl.trace(forward, torch.ones(2)).output, torch.tensor([4.0, 2.0]))


def test_a_shallow_copy_is_another_name_for_the_same_memory() -> None:
    def forward(x: Tensor) -> Tensor:
        y = (x * 1).detach()
        copy.copy(y).add_(1)
        return y * 2

    trace = tl.trace(forward, torch.ones(2))
    assert trace["mul_2_4"].parents == ("add_1_3",)


def test_a_file_that_the_forward_writes_is_the_one_that_a_bare_run_writes() -> None:
    files: list[bytes] = []

    def forward(x: Tensor) -> Tensor:
        y = (x * 2).detach()
        files.append(saved(y))
        y.note = 3  # type: ignore[attr-defined]  # tensors take any
        files.append(saved({"a": y}))
        return y

    x = torch.ones(2)
    forward(x)
    tl.trace(forward, x)
    assert files[:2] == files[2:]


def test_what_a_copy_that_torch_refuses_raises_is_the_models_own_error() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError) as bare:
        copy.deepcopy(x * 1)
    with pytest.raises(RuntimeError) as refused:
        tl.trace(lambda x: copy.deepcopy(x * 1), x)
    assert str(bare.value)[:40] in str(refused.value)


@pytest.mark.parametrize("given", [{}, {"mmap": True}, {"weights_only": False}])
def test_what_is_loaded_within_a_forward_is_accounted_for(tmp_path: Path, given: dict[str, Any]) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.full((2, 2), 3.0), "more": [torch.ones(2)]}, path)

    def forward(x: Tensor) -> Tensor:
        loaded = torch.load(path, **given)
        return x @ loaded["weight"] + loaded["more"][0]

    trace = tl.trace(forward, torch.ones(1, 2), capture=VERIFY)
    assert torch.equal(trace.output, torch.full((1, 2), 7.0))
    assert trace.health.capture_verified is True
    assert trace.health.is_clean
    assert all(parent.startswith(("input", "set")) for parent in trace.ops.find("matmul")[0].parents)


def test_a_state_that_is_loaded_within_a_forward_is_accounted_for() -> None:
    class Reloads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            self.fc.load_state_dict({name: value + 1 for name, value in self.fc.state_dict().items()})
            return self.fc(x)

    trace = tl.trace(Reloads(), torch.ones(1, 2), capture=VERIFY)
    assert trace.health.capture_verified is True
    assert [trace.ops[parent].func_name for parent in trace.ops.find("linear")[0].parents] == ["none", "copy_", "copy_"]
