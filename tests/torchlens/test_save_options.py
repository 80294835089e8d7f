"""How kept activations are kept: modes, dtypes, devices, transforms, and how many bytes they may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from tests.torchlens.conftest import capture
from torchlens.capture import budget, keeping
from torchlens.errors import SaveBudgetExceededError, SaveTransformError
from torchlens.tensors import copied_bytes

# Values of the moment the op returned --------------------------------------------------------------------------

STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda x: x * 1.5,
    "relu": lambda x: torch.relu(x),  # a wrapper is met in the code of a function only
    "add_": lambda x: x.add_(1.25),
    "relu_": lambda x: torch.relu_(x),  # likewise
    "view": lambda x: x.view(3, 2).view(2, 3),
    "row": lambda x: torch.cat([x[:1].mul_(2), x[1:]]),
    "item": lambda x: x.index_fill_(1, torch.tensor([0]), 3.0),
    "loop": lambda x: sum((torch.tanh(x) * k for k in range(3)), x),
    "split": lambda x: torch.cat([part.clamp(-1) for part in x.chunk(2)]),
    "untold": lambda x: (x.detach().numpy().fill(7.0), x)[1] if x.is_contiguous() else x,
}


class Steps(nn.Module):
    """A model of named steps, of which some write in place, some behind torch's back."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.fc = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x) if torch.is_grad_enabled() else x * 1
        for name in self.names:
            x = STEPS[name](x)
            self.seen.add_(1.0)
        return x + 0


models = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6)

requests = st.one_of(
    st.sampled_from([None, "all", "mul", "relu", "fc", "seen", "self", 0, 2, -1, -2]),
    st.sampled_from([tl.func("add"), tl.func("relu"), tl.module("fc"), tl.in_module("fc"), tl.contains("index")]),
    st.lists(st.sampled_from(["relu", "add", 1, -3, tl.func("chunk"), "fc"]), min_size=1, max_size=3),
    st.just(lambda facts: facts.func_name.endswith("_")),
)


def read(trace: tl.Trace) -> list[Tensor | None]:
    """Every activation that was kept; None for one that is refused because it was not."""
    found: list[Tensor | None] = []
    for op in trace.ops:
        if op.has_saved_activation:
            found.append(op.out)
            continue
        with pytest.raises(tl.TorchLensError) as refused:
            _ = op.out
        assert refused.value.code == "activation_not_saved"
        found.append(None)
    return found


@pytest.mark.filterwarnings("ignore:.*save_matched_nothing")
@given(models, requests, st.sampled_from(["reference", "copy"]), *[st.booleans()] * 3)
@settings(max_examples=60)
def test_what_is_kept_is_what_keeping_everything_keeps_and_the_rest_refuses(
    tmp_path: Path, names: list[str], save: Any, mode: Any, detach: bool, grad: bool, on_disk: bool
) -> None:
    model, x = Steps(names), torch.randn(2, 3)
    journal = tmp_path / f"{len(list(tmp_path.iterdir()))}.journal" if on_disk else None
    options = tl.CaptureOptions(detach_saved_activations=detach)
    with torch.set_grad_enabled(grad):
        whole = tl.trace(model, x, save=tl.SaveOptions(mode="copy"))
        model.seen.zero_()
        part = tl.trace(model, x, save=tl.SaveOptions(save, mode=mode), capture=options, journal=journal)
    assert part.ops.labels == whole.ops.labels
    for op, mine, theirs in zip(part.ops, read(part), read(whole), strict=True):
        if mine is not None:
            assert torch.equal(mine, theirs), op
            assert not (detach and mine.requires_grad)
    part.cleanup()


def test_values_held_for_their_labels_are_stored_as_they_were_made(tmp_path: Path) -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        z = y.add_(1)
        return z.view(-1) + 0

    save = ["mul_1_1", "add_1_2", "view_1_3"]
    trace = tl.trace(forward, torch.ones(1, 2), save=save, journal=tmp_path / "run.journal")
    assert [trace[label].out.flatten().tolist() for label in save] == [[2, 2], [3, 3], [3, 3]]


@pytest.mark.parametrize(("mode", "is_read"), [("copy", True), ("reference", False)])
def test_a_copy_is_not_reached_by_what_is_written_after_the_capture(mode: Any, is_read: bool) -> None:
    with torch.no_grad():
        trace = capture(save=tl.SaveOptions(mode=mode))
        before = trace.output.clone()
        trace.output.zero_()
    if is_read:
        assert torch.equal(trace["output_1"].out, before)
    else:
        with pytest.raises(tl.TorchLensError, match="activation_overwritten"):
            _ = trace["output_1"].out


@pytest.mark.parametrize("mode", ["copy", "reference"])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_kept_activations_reach_the_model_unless_they_are_cut(
    mode: Any, detach: bool, on_disk: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    options = tl.CaptureOptions(detach_saved_activations=detach)
    journal = tmp_path / "run.journal" if on_disk else None
    trace = tl.trace(model, torch.ones(1, 2), save=tl.SaveOptions("0", mode=mode), capture=options, journal=journal)
    out = trace["linear_1_1"].out
    assert out.requires_grad is not detach
    if not detach:
        out.sum().backward()
        assert model[0].bias.grad is not None


# What is made of an activation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_transform_is_kept_in_the_place_of_the_activation_or_beside_it(on_disk: bool, tmp_path: Path) -> None:
    whole = capture()
    for raw in (False, True):
        save = tl.SaveOptions(["fc", "head"], transform=lambda t: t[:, 0], dtype=torch.float16, raw=raw)
        path = tmp_path / f"{raw}.journal"
        trace = capture(save=save, journal=path if on_disk else None)
        for op in trace.ops:
            if op.layer_type not in ("linear", "output") or op.label.startswith("linear_2"):
                assert (op.transformed_out, op.transformed_out_shape, op.transformed_out_dtype) == (None, None, None)
                continue
            made, out = op.transformed_out, whole[op.label].out
            assert torch.equal(made, out[:, 0].half())
            assert (op.transformed_out_shape, op.transformed_out_dtype) == ((2,), torch.float16)
            assert (op.shape, op.dtype) == (tuple(out.shape), torch.float32)  # of what the op returned
            assert made.requires_grad
            assert op.has_saved_activation is raw
            if raw:
                assert torch.equal(op.out, out)
            else:
                with pytest.raises(tl.TorchLensError, match=r"activation_not_saved") as refused:
                    _ = op.out
                assert "transformed_out" in refused.value.remedy
        trace.check_metadata_invariants()
        trace.cleanup()
        if on_disk:
            again = tl.load(path)
            assert torch.equal(again["linear_1_1:2"].transformed_out, whole["linear_1_1:2"].out[:, 0].half())
            assert again["linear_1_1:2"].transformed_out_dtype is torch.float16
            again.cleanup()


def test_an_op_of_which_only_something_made_was_kept_is_among_the_saved() -> None:
    only = capture(save=tl.SaveOptions(["fc", "head"], transform=lambda t: t[:, 0], dtype=torch.float16))
    beside = capture(save=tl.SaveOptions(["fc", "head"], transform=lambda t: t[:, 0], dtype=torch.float16, raw=True))
    plain = capture(save=["fc", "head"])
    labels = plain.ops.saved.labels
    for trace in (only, beside, plain):
        assert trace.ops.saved.labels == trace.saved_ops.labels == labels
        assert trace.layers.saved.labels == trace.saved_layers.labels == plain.layers.saved.labels
        frame = trace.to_pandas()
        assert tuple(frame.label[frame.has_saved_payload]) == labels
        assert tuple(frame.label[frame.has_saved_activation]) == (() if trace is only else labels)
    halves = sum(2 * op.transformed_out_shape[0] for op in only.saved_ops)
    assert only.saved_activation_memory == halves
    assert plain.saved_activation_memory == sum(op.activation_memory for op in plain.saved_ops)
    assert beside.saved_activation_memory == halves + plain.saved_activation_memory
    assert [op.label for op in only.ops if op.has_saved_payload] == list(labels)
    assert not any(op.has_saved_activation for op in only.ops)


def test_what_a_recording_lists_is_what_its_trace_calls_saved() -> None:
    recording = tl.record(nn.Linear(2, 3), torch.ones(1, 2), save=tl.SaveOptions("linear", transform=torch.sum))
    assert [record.label for record in recording] == [op.raw_label for op in recording.to_trace().ops.compute.saved]


def test_a_dtype_leaves_whole_numbers_and_bools_as_they_are() -> None:
    def forward(x: Tensor) -> Tensor:
        return torch.where(x > 0, x.argsort(), 1)

    trace = tl.trace(forward, torch.randn(4), save=tl.SaveOptions(dtype=torch.bfloat16))
    dtypes = [op.transformed_out_dtype for op in trace.ops]
    assert dtypes == [torch.bfloat16, torch.bool, torch.int64, torch.int64, torch.int64]


def test_what_is_made_of_a_value_that_waits_for_its_label_is_made_of_it_as_it_was() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        return y.add_(1) + 0

    trace = tl.trace(forward, torch.ones(2), save=tl.SaveOptions(["mul_1_1", 2], transform=lambda t: t * 10))
    assert [trace.ops[k].transformed_out.tolist() for k in (1, 2)] == [[20, 20], [30, 30]]
    assert trace.ops[3].transformed_out is None


def test_what_a_transform_computes_is_no_part_of_the_model() -> None:
    plain = capture()
    trace = capture(save=tl.SaveOptions(transform=lambda t: torch.tanh(t.float()).mean().reshape(1)))
    assert trace.ops.labels == plain.ops.labels
    assert trace["tanh_1_2:1"].transformed_out_shape == (1,)


def test_a_part_of_an_activation_does_not_keep_all_of_it() -> None:
    with torch.no_grad():
        trace = tl.trace(nn.ReLU(), torch.ones(1000, 100), save=tl.SaveOptions("relu", transform=lambda t: t[0, :2]))
    assert trace.ops[1].transformed_out.tolist() == [1, 1]
    (held,) = [tensor for tensor, _ in trace.handles._pins.values()]  # type: ignore[union-attr]
    assert held.untyped_storage().nbytes() == 8


def raises(t: Tensor) -> Tensor:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("transform", "problem"),
    [
        (raises, "raised ValueError: no"),
        (lambda t: [t], "returned list"),
        (lambda t: None, "returned NoneType"),
        (lambda t: t.detach().mul_(0), "wrote to the activation"),
    ],
)
@pytest.mark.parametrize("select", ["fc", "tanh_1_2:2"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_transform_that_fails_is_refused_with_all_that_ran_before(
    transform: Any, problem: str, select: str, on_disk: bool, tmp_path: Path
) -> None:
    original = torch.relu
    with pytest.raises(SaveTransformError, match=problem) as refused:
        capture(save=tl.SaveOptions(select, transform=transform), journal=tmp_path / "run.journal" if on_disk else None)
    assert refused.value.code == "save_transform_failed"
    assert isinstance(refused.value.__cause__, ValueError) == (transform is raises)
    assert torch.relu is original
    trace = refused.value.partial_trace
    trace.check_metadata_invariants()
    if select == "fc":
        assert trace.outcome.status == "failed"
        assert trace.ops.labels == ("input_1", "linear_1_1")
    else:  # the forward had ended
        assert trace.outcome.status == "complete"
        assert refused.value.fields["label"] == select
    assert [op.label for op in trace.saved_ops] == ([trace.ops[-1].label] if select == "fc" else [select])[
        : "wrote" not in problem
    ]


def test_a_model_that_catches_everything_does_not_catch_that_the_forward_is_left() -> None:
    def forward(x: Tensor) -> Tensor:
        try:
            return x.relu().exp()
        except Exception:  # noqa: BLE001  # this is what is tested
            return x

    with pytest.raises(SaveTransformError):
        tl.trace(forward, torch.ones(2), save=tl.SaveOptions("relu", transform=raises, dtype=None))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mode": "view"}, "save_mode_invalid"),
        ({"mode": None}, "save_mode_invalid"),
        ({"dtype": "float16"}, "option_value_invalid"),
        ({"dtype": torch.int8}, "option_value_invalid"),
        ({"device": "meta"}, "output_device_invalid"),
        ({"device": "moon"}, "output_device_invalid"),
        ({"device": 2.5}, "output_device_invalid"),
        ({"transform": 3}, "option_value_invalid"),
        ({"raw": 1}, "option_value_invalid"),
    ],
)
def test_an_option_outside_what_it_takes_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.SaveOptions(**options)
    assert refused.value.code == code


def test_the_trace_says_how_activations_were_kept() -> None:
    trace = capture(save=tl.SaveOptions("fc", dtype=torch.float16, mode="copy"))
    assert trace.save_request == "SaveOptions(select='fc', dtype=torch.float16, mode='copy')"


# How many bytes ------------------------------------------------------------------------------------------------

KIB = 1 << 10


def chain(x: Tensor) -> Tensor:
    for _ in range(8):
        x = x + 1
    return x


def refusal(save_budget: Any, save: Any = None, model: Any = chain, **more: Any) -> SaveBudgetExceededError:
    with pytest.raises(SaveBudgetExceededError) as refused:
        tl.trace(model, torch.ones(KIB), save=save, capture=tl.CaptureOptions(save_budget=save_budget), **more)
    assert refused.value.code == "save_budget_exceeded"
    return refused.value


@pytest.mark.parametrize("save", [None, tl.SaveOptions(mode="copy"), "add_1_1:2"])
def test_the_forward_is_left_when_more_is_held_than_the_budget_allows(save: Any) -> None:
    error = refusal(20 * KIB, save)  # five of 4 KiB each
    assert error.fields["allowed"] == 20 * KIB
    assert error.fields["held"] == 24 * KIB
    assert len(error.fields["largest"]) == 5
    assert "add_1_1:2 (4.0 KB)" in str(error)
    trace = error.partial_trace
    assert trace.ops.labels[-1] == "add_1_1:5"
    assert trace.outcome.status == "failed"
    assert trace["add_1_1:2"].out.tolist() == [3.0] * KIB
    trace.check_metadata_invariants()


def test_what_fits_the_budget_is_kept() -> None:
    options = tl.CaptureOptions(save_budget=4 * KIB * 9)  # the input and eight ops; the output is the last of them
    assert len(tl.trace(chain, torch.ones(KIB), capture=options).saved_ops) == 10
    assert len(tl.trace(chain, torch.ones(KIB), save="none", capture=tl.CaptureOptions(save_budget=1)).ops) == 10


def test_memory_that_views_share_counts_once_and_a_part_counts_whole() -> None:
    def views(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x.view(2, -1).view(-1)
        return x[:1]

    tl.trace(views, torch.ones(KIB), capture=tl.CaptureOptions(save_budget=4 * KIB))
    assert refusal(4 * KIB - 1, tl.func("getitem") | "getitem", model=views).fields["held"] == 4 * KIB


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_budget_is_looked_at_before_a_copy_is_made(
    on_disk: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a write would change is copied first; there is no room for the copy, so the old value is refused."""
    copied: list[int] = []
    real = keeping.copy_of
    monkeypatch.setattr(keeping, "copy_of", lambda tensor: copied.append(tensor.nbytes) or real(tensor))

    def writes(x: Tensor) -> Tensor:
        made = x.sin()
        made.unfold(0, 16, 1)
        made.add_(1)
        return made.cos()

    disk = {"storage": tl.to_disk(tmp_path / "journal", retain_in_memory=True)} if on_disk else {}
    error = refusal(11 * KIB, model=writes, **disk)
    assert error.fields["held"] == 12 * KIB
    assert copied == []
    trace = error.partial_trace
    assert trace.ops.labels[-1] == "add_1_3"
    if on_disk:
        assert torch.equal(trace["sin_1_1"].out, torch.ones(KIB).sin())
    else:
        with pytest.raises(tl.TorchLensError) as refused:
            _ = trace["sin_1_1"].out
        assert refused.value.code == "activation_overwritten"
    trace.check_metadata_invariants()


def test_a_copy_is_counted_by_the_memory_it_takes() -> None:
    assert copied_bytes(torch.ones(1).expand(10**6, 10**6)) == 4
    assert copied_bytes(torch.ones(100).unfold(0, 10, 1)) == 400
    assert copied_bytes(torch.ones(100)[::2]) == 200
    assert copied_bytes(torch.ones(3).to_sparse()) == 0


def test_a_share_of_the_free_memory_is_worked_out_when_something_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def free(device: str) -> int:
        asked.append(device)
        return 16 * KIB

    monkeypatch.setattr(budget, "free_bytes", free)
    tl.trace(chain, torch.ones(KIB))
    assert asked == []  # so little is held that it does not matter
    monkeypatch.setattr(budget, "UNASKED", 4 * KIB)
    assert refusal("auto").fields["allowed"] == int(24 * KIB * 0.8)
    assert refusal(0.5).fields["allowed"] == 10 * KIB, "of all that was free before the input was held"
    assert asked == ["cpu", "cpu"]
    tl.trace(chain, torch.ones(KIB), capture=tl.CaptureOptions(save_budget=None))
    assert asked == ["cpu", "cpu"]


def test_the_free_memory_of_this_machine_can_be_asked() -> None:
    free = budget.free_bytes("cpu")
    assert free is not None
    assert 1 << 20 < free < 1 << 50
    assert budget.free_bytes("mps") is None


def test_what_is_on_disk_alone_counts_nothing(tmp_path: Path) -> None:
    with torch.no_grad():
        trace = tl.trace(chain, torch.ones(KIB), journal=tmp_path / "j", capture=tl.CaptureOptions(save_budget=1))
    assert len(trace.ops.saved) > 0


@pytest.mark.parametrize("value", [0, -1, True, 0.0, 1.5, "most", float("nan"), [1]])
def test_what_is_no_budget_is_refused(value: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.CaptureOptions(save_budget=value)
    assert refused.value.code == "save_budget_invalid"
