"""What a trace tells of the forward as a whole: its weights by a digest, what it was given, what it returned."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from torchlens.reading.digests import digest_of

X = torch.linspace(-1, 1, 12).reshape(3, 4)

KEPT = tl.CaptureOptions(save_arg_values=True)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


# -- the digest of the weights -------------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int8, torch.bool)


@given(st.sampled_from(DTYPES), st.integers(0, 2000), st.data())
def test_any_element_that_changes_changes_the_digest(dtype: torch.dtype, count: int, data: st.DataObject) -> None:
    numbers = (torch.arange(count) % 7 - 3.0).to(dtype)
    before = digest_of([("weight", numbers)])
    assert before == digest_of([("weight", numbers.clone())])
    if count:
        place = data.draw(st.integers(0, count - 1))
        numbers[place] = torch.tensor(0.0 if complex(numbers[place]) else 1.0).to(dtype)
        assert before != digest_of([("weight", numbers)])


def test_names_shapes_dtypes_and_order_are_in_the_digest_and_strides_are_not() -> None:
    square = torch.arange(6.0).reshape(2, 3)
    same = digest_of([("a", square)])
    assert same == digest_of([("a", square.t().contiguous().t())])
    assert same == digest_of([("a", -(-square).clone())])
    assert same == digest_of([("a", torch._neg_view(-square))])
    others: list[list[tuple[str, Tensor]]] = [
        [("b", square)],
        [("a", square.reshape(3, 2))],
        [("a", square.double())],
        [("a", square.flip(0))],
        [("a", square), ("b", torch.empty(0))],
        [("b", torch.empty(0)), ("a", square)],
        [],
    ]
    assert len({same, *map(digest_of, others)}) == 1 + len(others)
    assert digest_of([("a", square.to("meta"))]) == digest_of([("a", square.add(1).to("meta"))])
    assert digest_of([("a", square.to_sparse())]) != digest_of([("a", square.add(1).to_sparse())])


def test_equal_weights_have_one_digest_and_a_training_step_gives_another() -> None:
    one, other = model(), model()
    first = tl.trace(one, X)
    assert first.param_hash_quick == tl.trace(other, X).param_hash_quick == first.param_hash_quick
    assert len(first.param_hash_quick) == 64
    with torch.no_grad():
        other[0].weight[1, 2] += 1e-6
    assert tl.trace(other, X).param_hash_quick != first.param_hash_quick
    assert tl.trace(torch.relu, X).param_hash_quick == digest_of([])


def test_the_digest_is_of_the_weights_that_the_capture_had_or_refused() -> None:
    trained = model()
    live, kept = tl.trace(trained, X), tl.trace(trained, X, capture=KEPT)
    before = live.param_hash_quick
    assert kept.param_hash_quick == before
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    trained(X).square().sum().backward()
    optimizer.step()
    with pytest.raises(tl.TorchLensError) as refused:
        _ = live.param_hash_quick
    assert refused.value.code == "parameter_changed"
    assert refused.value.fields["address"] == "0.weight"
    assert kept.param_hash_quick == before, "of what was kept"
    assert tl.trace(trained, X).param_hash_quick != before


def test_a_parameter_of_which_torch_counts_no_writes_is_read_as_it_is() -> None:
    class Told(nn.Parameter):
        """Its class hears of whatever torch is asked of it."""

        asked: ClassVar[list[Any]] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    with torch.inference_mode():
        layer = nn.Linear(4, 2)
    layer.bias = Told(torch.ones(2))
    with torch.no_grad():
        trace = tl.trace(layer, X)
    heard = len(Told.asked)
    assert trace.param_hash_quick == trace.param_hash_quick
    assert len(Told.asked) == heard


def test_the_digest_is_there_in_another_process_if_arguments_were_kept(tmp_path: Path) -> None:
    for name, capture in (("live", None), ("kept", KEPT)):
        trace = tl.trace(model(), X, journal=tmp_path / name, capture=capture)
        wanted = trace.param_hash_quick if name == "kept" else ""
        trace.cleanup()
    ask = "import sys, torchlens as tl; sys.stdout.write(tl.load(sys.argv[1]).param_hash_quick)"
    told = subprocess.run([sys.executable, "-c", ask, tmp_path / "kept"], capture_output=True, text=True, check=True)
    assert told.stdout == wanted
    with pytest.raises(tl.TorchLensError) as refused:
        _ = tl.load(tmp_path / "live").param_hash_quick
    assert refused.value.code == "parameter_not_live"


# -- what it was given, and what it returned -----------------------------------------------------------------


class Pair(NamedTuple):
    left: Tensor
    right: int


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


RETURNED: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "a tensor": (lambda x: x * 2, X * 2),
    "containers": (
        lambda x: {"a": [x + 1, (x, 3)], 5: None, "s": "text"},
        {"a": [X + 1, (X, 3)], 5: None, "s": "text"},
    ),
    "one tensor twice": (lambda x: (x, x), (X, X)),
    "a named tuple": (lambda x: Pair(x.neg(), 7), {"left": -X, "right": 7}),
    "nothing": (lambda x: None, None),
    "what it was given": (lambda x: x, X),
}


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_was_returned_is_made_from_what_was_kept(name: str, on_disk: bool, tmp_path: Path) -> None:
    forward, wanted = RETURNED[name]
    trace = tl.trace(forward, X, journal=tmp_path / "j" if on_disk else None)
    if on_disk:
        trace.cleanup()
        trace = tl.load(tmp_path / "j")
    assert same(trace.raw_output, wanted)
    assert same(list(trace.raw_input.args), [X])
    assert trace.raw_input.kwargs == {}


def test_arguments_are_as_they_were_before_the_forward_wrote_to_them() -> None:
    def forward(a: Any, *rest: Any, scale: Any = None, **more: Any) -> Tensor:
        made: Tensor = a["x"].mul_(2) + rest[0][1]
        return made

    trace = tl.trace(forward, [{"x": X}, [1, X.t().contiguous().t()]], {"scale": 2.5, "mask": X > 0, "what": [None]})
    given = trace.raw_input
    assert same(given.args, [{"x": X}, [1, X]])
    assert same(given.kwargs, {"scale": 2.5, "mask": X > 0, "what": [None]})
    given.args[0]["x"].zero_()
    assert same(trace.raw_input.args[0], {"x": X})


def test_a_parameter_that_is_returned_is_told_as_the_capture_had_it() -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.weight, x + self.weight

    held = Weights()
    trace = tl.trace(held, torch.ones(2))
    assert same(trace.raw_output, (torch.ones(2), torch.full((2,), 2.0)))
    with torch.no_grad():
        held.weight.zero_()
    assert trace.raw_output is None
    assert same(tl.trace(held, torch.ones(2)).raw_output, (torch.zeros(2), torch.ones(2)))


@pytest.mark.parametrize("save", ["none", tl.func("relu"), tl.SaveOptions(dtype=torch.float16)])
def test_there_is_none_where_a_tensor_of_it_was_not_kept(save: Any) -> None:
    trace = tl.trace(lambda x, y: (x.relu() + y, y), [X, X], save=save)
    assert (trace.raw_input, trace.raw_output) == (None, None)
    assert trace.output is not None


def test_a_forward_that_did_not_return_has_its_input_alone() -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError(x.sum())

    with pytest.raises(tl.TraceCaptureError) as failed:
        tl.trace(raises, X)
    halted = tl.trace(nn.Sequential(nn.ReLU(), nn.ReLU()), X, stop_after="0")
    for trace in (failed.value.partial_trace, halted):
        assert same(trace.raw_input.args, [X])
        assert trace.raw_output is None


def test_everything_of_the_whole_is_refused_after_cleanup() -> None:
    trace = tl.trace(model(), X)
    trace.cleanup()
    for name in ("raw_input", "raw_output", "param_hash_quick", "capture_mode"):
        with pytest.raises(tl.errors.TraceCleanedUpError):
            getattr(trace, name)


def test_the_mode_of_a_capture_says_how_it_was_watched() -> None:
    assert tl.trace(model(), X).capture_mode == "wrapped"
    assert tl.trace(model(), X, capture=tl.CaptureOptions(verify_capture=True)).capture_mode == "witnessed"


def test_a_model_is_copied_with_nothing_of_a_digest_on_it() -> None:
    watched = model()
    trace = tl.trace(watched, X)
    _ = trace.param_hash_quick
    assert copy.deepcopy(watched).state_dict().keys() == model().state_dict().keys()
    assert all(not vars(parameter) for parameter in watched.parameters())
