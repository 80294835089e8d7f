"""A random program that was captured runs again as the model does, bit for bit, wherever it says that it would."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings

import torchlens as tl
from tests.running.comparing import REPLAYABLE, assert_same, bare, others, ran, seed_all
from torchlens.bits import same_bits
from torchlens.errors import PathDivergenceError
from torchlens.running import CAUSES
from torchlens.testing import Program, check_trace, programs
from torchlens.validation.kernels import UNINITIALIZED


def check(program: Program) -> str:
    """Hold a program to the law; what came of it, in a word."""
    model, args, kwargs = program.build()
    seed_all(1)
    try:
        trace = tl.trace(model, args, kwargs, capture=REPLAYABLE)
    except tl.TraceCaptureError:
        return "raised"
    try:
        if not trace.readiness:
            assert {one.code for one in trace.readiness.diagnostics} <= CAUSES.keys()
            return "refused"
        _, args, kwargs = program.build()
        first = ran(trace, lambda: program.build()[0], args, kwargs, 1)
        assert first.report.path_faithfulness != "diverged", first.report
        assert_same(first.output, bare(program.build()[0], args, kwargs, 1))
        check_told(trace, first.trace)
        return with_others(trace, program, others(args), others(kwargs))
    finally:
        trace.cleanup()


def check_told(trace: tl.Trace, told: tl.Trace) -> None:
    """The run as a trace has the records of the capture, and of the same inputs the same values."""
    check_trace(told)
    assert told.ops.labels == trace.ops.labels
    assert told.graph_shape_hash == trace.graph_shape_hash
    for op, again in zip(trace.ops, told.ops, strict=True):
        if again.has_saved_activation and op.func_name not in UNINITIALIZED:
            assert same_bits(op.out.detach(), again.out.detach()), op.label
    told.cleanup()


def with_others(trace: tl.Trace, program: Program, args: Any, kwargs: Any) -> str:
    """The same with other inputs: verified is the model's result, and what is not says so."""
    model = program.build()[0]
    wanted = bare(model, args, kwargs, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tl.errors.TorchLensWarning)
            result = ran(trace, lambda: program.build()[0], args, kwargs, 2)
    except PathDivergenceError:
        return "raised here"
    faithfulness = result.report.path_faithfulness
    if faithfulness == "verified":
        assert not isinstance(wanted, Exception), wanted
        assert_same(result.output, wanted)
        buffers = dict(model.named_buffers())
        assert_same(dict(result.buffers) or result.output, {n: buffers[n] for n in result.buffers} or wanted)
    return faithfulness


@given(programs())
@settings(max_examples=25)
def test_a_run_is_the_model_bit_for_bit_unless_it_says_otherwise(program: Program) -> None:
    check(program)


@pytest.mark.slow
@given(programs())
@settings(max_examples=100)
def test_many_runs_are_the_model_bit_for_bit_unless_they_say_otherwise(program: Program) -> None:
    check(program)


TWO = "model(train=True, seed=3, returns='nested')\na = given('float32')\nb = given('float32')\ndef main():\n"


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("    a = linear(a, b)\n    b = write_view(a, b)\n    a = batch_norm(b, a)", "verified"),
        ("    a = write_buffer(a, b)\n    b = assign_buffer(a, b)\n    a = counter(b, a)", "verified"),
        ("    a = dropout(a, b)\n    a = noise_in_place(a, b)\n    b = global_constant(a, a)", "verified"),
        ("    a = lstm(a, b)\n    b = encoder_layer(a, b)\n    a = write_parameter(b, a)", "verified"),
        (
            "    with autocast():\n        a = linear(a, b)\n    with inference_mode():\n        b = relu(b, a)",
            "verified",
        ),
        ("    a = made_here(a, b)\n    b = unregistered(a, b)\n    a = checkpointed(a, b)", "verified"),
        ("    a = listed(a, b)", "diverged"),
        ("    a = python_random(a, b)", "unverifiable"),
        ("    a = own_function(a, b)", "refused"),
        ("    a = write_numpy(a, b)", "refused"),
        ("    a = vmapped(a, b)", "refused"),
    ],
)
def test_a_program_of_each_kind_comes_out_as_it_should(lines: str, word: str) -> None:
    assert check(Program.parse(TWO + lines)) == word
