"""What is kept beside the calls when it is asked for: arguments, generator states, an optimizer, what pre-hooks did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import torchlens as tl
from projections import COLUMNS
from projections.columns import OCCASION
from torchlens.errors import AmbiguousReadError, ConfigurationError, PayloadUnavailableError
from torchlens.testing import Program, programs

MORE = frozenset(
    (
        *("has_saved_args", "arguments_event", "rng_states", "rng_payload", "has_saved_forward_args"),
        *("hooks_event", "hooks_arguments_event", "options", "payload_ref", "event", "func_call_id", "left_event"),
        *("started_event", "ended_event", "halted_at", "raised_event", "last_executed_event", "last_started_event"),
    )
)
"""Columns of what was kept, and those that number events or payloads."""

KEEP = tl.CaptureOptions(save_arg_values=True, save_rng_states=True, random_seed=3)


class Asked(nn.Module):
    """Writes in place and through a view, draws, writes statistics, and has pre-hooks of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.same = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Identity()
        self.fc.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.norm.register_forward_pre_hook(lambda module, args: None)
        self.same.register_forward_pre_hook(lambda module, args: args[0].mul_(2) and None)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        row = h[0]
        h.add_(1)
        shown = row * 2
        self.same(shown[:1])
        return torch.dropout(self.norm(self.fc(x)), 0.5, True) + shown + h


def run(**options: Any) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Asked(), torch.randn(3, 4), **options)


@pytest.fixture(scope="module")
def asked() -> tl.Trace:
    return run(capture=KEEP)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tl.Trace]:
    run(capture=KEEP, journal=tmp_path / "run.journal").cleanup()
    trace = tl.load(tmp_path / "run.journal")
    yield trace
    trace.cleanup()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


# -- laws


def traced(program: Program, options: tl.CaptureOptions) -> tl.Trace:
    model, args, kwargs = program.build()
    try:
        return tl.trace(model, list(args), kwargs, capture=options)
    except tl.TraceCaptureError as exc:  # some programs raise
        partial = exc.partial_trace
    assert partial is not None
    return partial


def made_again(op: tl.records.Op) -> Any:
    """What the function of an op gives on its kept arguments, under the modes and the generator state of the call."""
    modes = dict(op.func_autocast_state)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(torch.inference_mode(modes.pop("inference_mode")))
        stack.enter_context(torch.set_grad_enabled(modes.pop("grad_enabled")))
        for device, dtype in modes.items():
            stack.enter_context(torch.autocast(device, getattr(torch, dtype)))
        torch.set_rng_state(op.func_rng_states["cpu"])
        made = op.func(*op.saved_args, **op.saved_kwargs)
    return made[op.multi_output_index] if op.in_multi_output else made


@given(programs())
@settings(max_examples=25, deadline=None)
def test_every_call_on_its_kept_arguments_gives_its_activation(program: Program) -> None:
    """Not bit for bit: a copy of an argument with gaps in memory has none, and a sum may be taken in another order."""
    for op in traced(program, KEEP).ops.compute.saved:
        states = op.func_rng_states
        if op.func is None or op.is_opaque or op.func_name.startswith("empty") or "generator" in states:
            continue
        assert op.has_saved_args, op
        made = made_again(op)
        if isinstance(made, Tensor):
            torch.testing.assert_close(made, op.out, equal_nan=True)


@given(programs())
@settings(max_examples=15, deadline=None)
def test_keeping_changes_nothing_that_is_recorded_otherwise(program: Program) -> None:
    plain, kept = traced(program, tl.CaptureOptions(random_seed=3)), traced(program, KEEP)
    for table, columns in COLUMNS.items():
        for name in columns.keys() - OCCASION[table] - MORE:
            mine, theirs = plain.table(table).column(name), kept.table(table).column(name)
            assert list(map(repr, mine)) == list(map(repr, theirs)), f"{table}.{name}"


# -- what is kept


def test_arguments_are_as_they_were_before_the_call(asked: tl.Trace) -> None:
    (before, one) = asked.ops["add_1_3"].saved_args
    assert one == 1
    assert torch.equal(before, asked.ops["mul_1_1"].out), "it was written in place"
    norm = asked.ops["batchnorm_1_9"] if "batchnorm_1_9" in asked.ops else asked["batchnorm"]
    assert torch.equal(norm.saved_args[3], torch.zeros(4)), "the kernel wrote the running mean"
    assert norm.saved_args[5:] == [True, 0.1, 1e-05, True]
    assert asked["linear"].saved_kwargs == {}


def test_what_is_given_is_a_copy(asked: tl.Trace) -> None:
    op = asked["linear"]
    op.saved_args[0].zero_()
    assert op.saved_args[0].any()
    assert not op.saved_args[0].requires_grad


def test_arguments_in_containers_and_by_name_come_back_in_place() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], dim=1).clamp(min=x.mean(), max=torch.tensor(2.0))

    trace = tl.trace(model, [torch.ones(1, 2), torch.zeros(1, 2)], capture=KEEP)
    (pair,), named = trace["cat"].saved_args, trace["cat"].saved_kwargs
    assert same(pair, [torch.ones(1, 2), torch.zeros(1, 2)])
    assert named == {"dim": 1}
    assert same(trace["clamp"].saved_kwargs, {"min": torch.tensor(1.0), "max": torch.tensor(2.0)})


def test_without_asking_nothing_is_kept() -> None:
    trace = run()
    for op in trace.ops:
        assert (op.has_saved_args, op.saved_args, op.saved_kwargs) == (False, None, None)
        assert bool(op.func_rng_states) == (op.func_name == "dropout")
    for call in trace.module_calls:
        assert (call.has_saved_forward_args, call.forward_args, call.forward_kwargs) == (False, None, None)
        assert call.inputs_before_pre_hooks is call.inputs_after_pre_hooks is None
    assert all(param.has_optimizer is None for param in trace.params)
    named = {stamped.event.event_name for stamped in trace.events()}
    assert not named & {"arguments_kept", "generators_kept", "optimizer_given"}


def test_a_generator_state_is_that_before_the_call(asked: tl.Trace) -> None:
    drop = asked["dropout"]
    with torch.random.fork_rng():
        torch.set_rng_state(drop.func_rng_states["cpu"])
        assert torch.equal(torch.dropout(drop.saved_args[0], 0.5, True), drop.out)
    later = asked.ops[drop.ordinal_index + 1]
    assert not torch.equal(later.func_rng_states["cpu"], drop.func_rng_states["cpu"])
    assert torch.equal(asked["linear"].func_rng_states["cpu"], drop.func_rng_states["cpu"])
    assert asked["input_1"].func_rng_states == {}


def test_the_state_of_a_generator_that_a_call_is_given_stands_apart() -> None:
    def model(x: Tensor) -> Tensor:
        return x + torch.rand(2, generator=torch.Generator().manual_seed(5))

    states = tl.trace(model, torch.ones(2))["rand"].func_rng_states
    assert list(states) == ["generator"]
    again = torch.Generator()
    again.set_state(states["generator"])
    assert again.initial_seed() == 5
    assert set(tl.trace(model, torch.ones(2), capture=KEEP)["rand"].func_rng_states) == {"cpu", "generator"}


def test_a_child_that_read_the_memory_under_another_name_saw_another_tensor(asked: tl.Trace) -> None:
    written = asked.ops["add_1_3"]
    assert written.has_out_variations
    (label,) = written.out_versions_by_child
    assert torch.equal(written.out_versions_by_child[label], written.out[0])
    assert label in written.children
    assert not asked.ops["mul_1_1"].has_out_variations
    assert asked.ops["mul_1_1"].out_versions_by_child == {}


def test_another_name_for_the_whole_of_the_memory_shows_no_variation() -> None:
    def model(x: Tensor) -> Tensor:
        h = x * 1
        whole, turned = h.detach(), h.T
        h.add_(1)
        return whole * 2 + turned * 3

    add = tl.trace(model, torch.ones(2, 2), capture=KEEP).ops["add_1_4"]
    assert add.children == ("mul_2_5", "mul_3_6")
    assert list(add.out_versions_by_child) == ["mul_3_6"]


def test_a_variation_that_was_not_kept_is_refused() -> None:
    op = run().ops["add_1_3"]
    assert op.has_out_variations
    with pytest.raises(PayloadUnavailableError) as caught:
        _ = op.out_versions_by_child
    assert caught.value.code == "arguments_not_saved"


# -- module calls and hooks


def test_a_module_call_has_its_arguments(asked: tl.Trace) -> None:
    (given_,) = asked.module_calls["fc:1"].forward_args
    assert torch.equal(given_, asked["linear"].saved_args[0])
    assert asked.module_calls["fc:1"].forward_kwargs == {}
    (x,) = asked.module_calls["self:1"].forward_args
    assert torch.equal(x, asked["input_1"].out)


def test_pre_hooks_are_told_by_what_they_changed(asked: tl.Trace) -> None:
    calls = asked.module_calls
    assert calls["fc:1"].had_pre_hook_input_change
    before, after = calls["fc:1"].inputs_before_pre_hooks, calls["fc:1"].inputs_after_pre_hooks
    assert torch.equal(before.args[0] * 2, after.args[0])
    assert not calls["norm:1"].had_pre_hook_input_change
    assert same(calls["norm:1"].inputs_before_pre_hooks.args, calls["norm:1"].inputs_after_pre_hooks.args)
    assert calls["same:1"].had_pre_hook_input_change, "it wrote the argument in place"
    assert torch.equal(calls["same:1"].inputs_before_pre_hooks.args[0] * 2, calls["same:1"].forward_args[0])
    assert calls["self:1"].had_pre_hook_input_change is False
    assert calls["self:1"].inputs_before_pre_hooks is None


def test_a_pre_hook_that_calls_modules_and_one_that_raises_leave_others_alone() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale, self.fails = nn.ReLU(), nn.Linear(2, 2), nn.ReLU()
            self.inner.register_forward_pre_hook(lambda module, args: (self.scale(args[0]),))

            def refuse(module: nn.Module, args: Any) -> None:
                raise ValueError("no")

            self.fails.register_forward_pre_hook(refuse)

        def forward(self, x: Tensor) -> Tensor:
            try:
                self.fails(x)
            except ValueError:
                pass
            return self.inner(x) + self.inner(x)

    calls = tl.trace(Outer(), torch.ones(1, 2)).module_calls
    assert calls.labels == ("self:1", "scale:1", "inner:1", "scale:2", "inner:2")
    assert [call.had_pre_hook_input_change for call in calls] == [False, False, True, False, True]


def test_what_a_hook_of_the_root_did_is_not_known() -> None:
    model = nn.Sequential(nn.ReLU())
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert tl.trace(model, torch.ones(2)).module_calls["self:1"].had_pre_hook_input_change is None


# -- an optimizer


def test_a_parameter_tells_whether_the_optimizer_steps_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(optimizer=optimizer))
    assert {param.address: param.has_optimizer for param in trace.params} == {
        "0.weight": False,
        "0.bias": False,
        "1.weight": True,
        "1.bias": True,
    }
    assert trace.options == {"optimizer": "<torch.optim.sgd.SGD>"}


def test_an_optimizer_is_one_that_has_groups_of_parameters() -> None:
    for odd in (nn.Linear(2, 2), 3, [], {"param_groups": []}):
        with pytest.raises(ConfigurationError) as caught:
            tl.CaptureOptions(optimizer=odd)
        assert caught.value.code == "option_value_invalid"


# -- where it is kept


def test_a_journal_gives_back_all_that_was_kept(asked: tl.Trace, stored: tl.Trace) -> None:
    for mine, theirs in zip(asked.ops, stored.ops, strict=True):
        assert same(mine.saved_args, theirs.saved_args)
        assert same(mine.saved_kwargs, theirs.saved_kwargs)
        assert same(mine.func_rng_states, theirs.func_rng_states)
        assert same(mine.out_versions_by_child, theirs.out_versions_by_child)
    for call, other in zip(asked.module_calls, stored.module_calls, strict=True):
        assert same(call.forward_args, other.forward_args)
        assert same(call.inputs_before_pre_hooks, other.inputs_before_pre_hooks)
    assert stored.fingerprint
    for param in stored.params:
        assert param.value_basis == "stored"
        assert torch.equal(param.value, asked.params[param.address].value)


def test_a_copied_capture_has_the_arguments_of_memory(tmp_path: Path) -> None:
    trace = run(capture=KEEP)
    trace.journal.copy_to(tmp_path / "copied.journal")
    copy = tl.load(tmp_path / "copied.journal")
    assert copy.fingerprint == trace.fingerprint
    for mine, theirs in zip(trace.ops, copy.ops, strict=True):
        assert same(mine.saved_args, theirs.saved_args)
    copy.cleanup()


def test_an_argument_that_its_process_alone_held_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    trace = tl.trace(model, torch.ones(1, 2), capture=KEEP)
    held = trace.journal
    trace.cleanup()
    with pytest.raises(PayloadUnavailableError) as caught:
        _ = tl.Trace(held, trace.stream)["linear_1_1"].saved_args
    assert caught.value.code == "argument_not_stored"


def test_several_passes_have_no_one_set_of_arguments() -> None:
    def model(x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(x)
        return x

    layer = tl.trace(model, torch.ones(2), capture=KEEP)["tanh_1_1"]
    for field in ("saved_args", "saved_kwargs", "func_rng_states"):
        with pytest.raises(AmbiguousReadError) as caught:
            getattr(layer, field)
        assert caught.value.code == "layer_pass_ambiguous"
    assert torch.equal(layer.ops[1].saved_args[0], layer.ops[0].out)


def test_a_forward_left_right_after_a_call_has_its_arguments() -> None:
    trace = tl.trace(nn.Sequential(nn.ReLU(), nn.Tanh()), -torch.ones(2), capture=KEEP, stop_after="relu")
    assert torch.equal(trace["relu_1_1"].saved_args[0], -torch.ones(2))
    assert trace.halted


@given(programs())
@settings(max_examples=8, deadline=None)
def test_keeping_is_not_put_down_to_the_model(program: Program) -> None:
    plain = traced(program, tl.CaptureOptions(random_seed=3, verify_capture=True)).health
    kept = traced(program, attrs.evolve(KEEP, verify_capture=True)).health
    for part in ("escape", "completeness"):
        mine, theirs = getattr(plain, part), getattr(kept, part)
        assert (mine.verified, mine.event_count) == (theirs.verified, theirs.event_count)
