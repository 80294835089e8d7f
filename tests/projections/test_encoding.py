"""Canonical bytes: one form for each value, and refusals for what has none."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given

from projections.encoding import REPEATED, decode, encode, fingerprint, pack, plain, unpack
from projections.errors import EncodingError
from tests.projections.making import Made
from tests.strategies import plain_values


class Size(tuple[int, ...]):
    """Stands for a framework's own tuple of sizes."""


class Number(int):
    pass


class Pair(NamedTuple):
    left: int
    right: int


def small() -> Made:
    made = Made({"fc": "Linear"}, {"fc.weight": (4, 4)})
    x = made.input("x")
    with made.call("fc", x) as call:
        call.returns(made.op("linear", x, "fc.weight"))
    return made.returns(call.output)


@given(plain_values())
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    assert unpack(pack(plain(value))) == (0.0 if type(value) is float and value == 0 else value)


def test_a_map_is_written_in_the_order_of_its_keys() -> None:
    forward, backward = {"a": 1, (0, 1): "b", 2: {}}, {2: {}, (0, 1): "b", "a": 1}
    assert pack(plain(forward)) == pack(plain(backward))
    assert unpack(pack(plain(forward))) == forward


def test_numbers_of_different_kinds_stay_apart() -> None:
    assert len({pack(plain(value)) for value in (1, 1.0, True)}) == 3


def test_every_nan_and_both_zeros_have_one_form() -> None:
    assert pack(plain(-math.nan)) == pack(plain(math.nan))
    assert pack(plain(-0.0)) == pack(plain(0.0))


@pytest.mark.parametrize(
    "value", [Size((2, 3)), Number(3), Pair(1, 2), [1], {1}, frozenset(), OrderedDict(), 1 << 64, object(), 1j]
)
def test_what_is_no_plain_value_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError) as refused:
        plain((value,))
    assert refused.value.code == "encoding_type_refused"


def test_sizes_of_a_frameworks_own_type_are_plain_by_the_time_they_are_read() -> None:
    made = small()
    with_size = small()
    with_size.events = [
        type(event)(**{name: sized(getattr(event, name)) for name in event.fields}) for event in with_size.events
    ]
    assert fingerprint(with_size.tables()) == fingerprint(made.tables())


def sized(value: Any) -> Any:
    """The value with each tuple of numbers as the framework's own type."""
    if isinstance(value, tuple):
        if value and all(type(item) is int for item in value):
            return Size(value)
        return tuple(sized(item) for item in value)
    return value


@pytest.mark.parametrize("data", [b"", b"\x01", pack([[1, "ops", 2, [["label", ["a"]]]]]), pack([[1, "ops"]])])
def test_bytes_that_are_no_tables_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError) as refused:
        decode(data)
    assert refused.value.code == "encoding_malformed"


def test_a_later_form_is_refused() -> None:
    with pytest.raises(EncodingError) as refused:
        decode(pack([[2, "ops", 0, []]]))
    assert refused.value.code == "encoding_version_unknown"


def test_an_unknown_extension_is_refused() -> None:
    with pytest.raises(EncodingError) as refused:
        decode(bytes(msgpack.packb([msgpack.ExtType(9, b"")])))
    assert refused.value.code == "encoding_malformed"


def test_a_fingerprint_is_the_digest_of_the_bytes_and_follows_them() -> None:
    one, other = small(), small()
    assert fingerprint(one.tables()) == fingerprint(other.tables())
    other.keep(1, 0)
    assert fingerprint(one.tables()) != fingerprint(other.tables())
    assert decode(encode(one.tables()))["ops"]["label"] == ["input_1", "linear_1_1", "output_1"]


def test_what_each_pass_repeats_of_its_layer_is_left_out_and_shared() -> None:
    """Written for every pass, the labels of a layer's passes would grow with their square."""
    made = Made()
    x = made.input("x")
    for _ in range(300):
        x = made.op("tanh", x, site="t")
    tables = made.returns(x).tables()
    assert REPEATED.isdisjoint(decode(encode(tables))["ops"])
    assert len(encode(tables)) < 1_000_000
    passes = tables.ops.column("recurrent_ops")
    assert passes[1] == tables.layers.value("op_labels", 1)
    assert passes[1] is passes[300]
