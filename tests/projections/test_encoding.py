"""Canonical bytes: one form for each value, and refusals for what has none."""

from __future__ import annotations

import math
import tracemalloc
from collections import OrderedDict
from itertools import accumulate
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.columnar.canonical import VERSION, pack, plain
from projections.columnar.decoding import read_column, unpack, unpack_table
from projections.columnar.sequences import Classes, Named, Picked, Ragged
from projections.errors import EncodingError
from projections.stored.encoding import Encoder, fingerprint
from tests.projections.encoded import decode, encode
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


CELLS_FOR_TWO_ROWS = ("label", False, pack((0, ("a",))))
NO_FORM = ("label", False, pack((9, ())))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        pack([VERSION, "ops"]),
        pack([VERSION, "ops", -1, b"", ()]),
        pack([VERSION, "ops", 2, b"", (CELLS_FOR_TWO_ROWS,)]),
        pack([VERSION, "ops", 2, b"", (NO_FORM,)]),
        pack([VERSION, "ops", 1 << 40, b"", (("label", False, pack((1, ("a",), b""))),)]),
        pack([VERSION, "ops", 2, b"", (("label", False, pack((3, (0, (1 << 40, 0)), (1, ("a",), b"")))),)]),
        pack([VERSION, "ops", 2, b"", (("label", False, pack((1, ("a", "b"), b"\0\2"))),)]),
    ],
)
def test_bytes_that_are_no_tables_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError) as refused:
        decode([data])
    assert refused.value.code == "encoding_malformed"


ROOM = 1 << 16
"""Cells that are believed of the columns below; each would have a hundred times as many, or more."""

MANY = 1 << 23
LONG = tuple(range(1 << 12))
FEW_MANY = (1, ("a",), b"")


@pytest.mark.parametrize(
    ("count", "column"),
    [
        pytest.param(1 << 60, FEW_MANY, id="rows"),
        pytest.param(MANY, FEW_MANY, id="few"),
        pytest.param(ROOM - 1, (4, (FEW_MANY,) * 500), id="tuples of many columns"),
        pytest.param(2, (3, (0, (MANY, 0)), FEW_MANY), id="a long tuple"),
        pytest.param(2, (3, (0, (1 << 63, 0)), FEW_MANY), id="a longer tuple"),
        pytest.param(1 << 12, (5, (1, (LONG,), b""), (1, (LONG,), b"")), id="maps of one tuple of keys"),
        pytest.param(1 << 12, (4, ((1, (LONG,), b""),) * 2), id="a tuple in every tuple"),
        pytest.param(1 << 12, (4, ((1, (LONG, 5), bytes(1 << 12)),) * 2), id="a tuple in most tuples"),
        pytest.param(1 << 12, (4, ((1, ("x" * ROOM,), b""),) * 2), id="a text in every tuple"),
        pytest.param(1 << 12, (4, ((6, (1, (True,), b""), (1, (LONG,), b"")),) * 2), id="optional tuples in tuples"),
        pytest.param(1, (3, (0, (1 << 12,)), (2, (0, (0,) * (1 << 12)))), id="a label in every place"),
    ],
)
def test_a_column_that_claims_more_cells_than_are_believed_takes_no_memory(count: int, column: Any) -> None:
    labels = pack((0, ("x" * (1 << 12),)))
    data = pack((VERSION, "ops", count, labels, (("label", True, pack(column)),)))
    tracemalloc.start()
    try:
        with pytest.raises(EncodingError) as refused:
            unpack_table(data, ROOM).column("label")
        assert tracemalloc.get_traced_memory()[1] < 200 * ROOM
    finally:
        tracemalloc.stop()
    assert refused.value.code == "encoding_malformed"
    assert "to be believed" in refused.value.problem


def test_equal_cells_of_a_column_may_be_as_large_as_they_are() -> None:
    """They stand once, and each is looked at by itself."""
    table = unpack_table(pack((VERSION, "ops", 1 << 12, b"", (("label", False, pack((1, (LONG,), b""))),))), ROOM)
    assert table.column("label") == [LONG] * (1 << 12)


@pytest.mark.parametrize("labels", [((1,),), (LONG,), (5,), (b"a",), (None,)])
def test_op_labels_that_are_no_texts_are_refused(labels: Any) -> None:
    with pytest.raises(EncodingError) as refused:
        unpack_table(pack((VERSION, "ops", 1, pack((0, labels)), ())))
    assert refused.value.code == "encoding_malformed"


def nested_columns(depth: int) -> Any:
    column: Any = (0, ("a",))
    for _ in range(depth):
        column = (6, (1, (True,), b""), column)
    return column


def nested_maps(depth: int) -> Any:
    data = b"\x80"
    for _ in range(depth):
        data = msgpack.packb(msgpack.ExtType(1, b"\x01" + data))
    return msgpack.unpackb(data, ext_hook=msgpack.ExtType)


@pytest.mark.parametrize(
    "column",
    [nested_columns(450), (0, (nested_maps(2000),)), (4, ((0, (nested_maps(400),)),))],
    ids=["forms", "maps", "a"],
)
def test_what_is_nested_deeper_than_python_calls_is_read_or_refused(column: Any) -> None:
    data = msgpack.packb(column)
    table = unpack_table(pack((VERSION, "ops", 1, b"", (("label", False, data),))), ROOM)
    try:
        assert len(table.column("label")) == 1
    except EncodingError as exc:
        assert exc.code == "encoding_malformed"  # noqa: PT017 - both ends are right


def test_a_later_form_is_refused() -> None:
    with pytest.raises(EncodingError) as refused:
        decode([pack([VERSION + 1, "ops", 0, b"", []])])
    assert refused.value.code == "encoding_version_unknown"


def test_an_unknown_extension_is_refused() -> None:
    with pytest.raises(EncodingError) as refused:
        decode([bytes(msgpack.packb(msgpack.ExtType(9, b"")))])
    assert refused.value.code == "encoding_malformed"


def test_a_fingerprint_is_the_digest_of_the_bytes_and_follows_them() -> None:
    one, other = small(), small()
    assert fingerprint(one.tables()) == fingerprint(other.tables())
    other.keep(1, 0)
    assert fingerprint(one.tables()) != fingerprint(other.tables())
    assert decode(encode(one.tables()))["ops"]["label"] == ["input_1", "linear_1_1", "output_1"]


def test_what_each_pass_repeats_of_its_layer_is_written_once_and_shared() -> None:
    """Written for every pass, the labels of a layer's passes would grow with their square."""
    made = Made()
    x = made.input("x")
    for _ in range(300):
        x = made.op("tanh", x, site="t")
    tables = made.returns(x).tables()
    assert len(b"".join(encode(tables))) < 200_000
    assert decode(encode(tables))["ops"]["recurrent_ops"] == list(tables.ops.column("recurrent_ops"))
    passes = tables.ops.column("recurrent_ops")
    assert passes[1] == tables.layers.value("op_labels", 1)
    assert passes[1] is passes[300]


# The form of a column ------------------------------------------------------------------------------

LABELS = ("input_1", "linear_1_1", "output_1")
"""The op labels of the small capture."""


def encoder() -> Encoder:
    return Encoder(small().tables())


def columns() -> st.SearchStrategy[list[Any]]:
    """Columns of plain values: of one kind or mixed, some with many equal cells, some with op labels."""
    label = st.sampled_from(LABELS)
    numbers = st.integers(-(1 << 63), (1 << 64) - 1)
    maps = st.dictionaries(st.one_of(st.integers(0, 2), label), label, max_size=2)
    kinds = [
        st.booleans(),
        numbers,
        st.floats(),
        st.sampled_from([0, 1, True, 1.0, 0.0, -0.0, None, (1,), (True,), (1.0,)]),
        label,
        st.tuples(label, numbers, st.tuples(label)),
        st.lists(label, max_size=3).map(tuple),
        st.lists(plain_values(), max_size=2).map(tuple),
        maps,
        st.one_of(st.none(), maps),
        st.one_of(st.none(), st.tuples(numbers, numbers)),
        st.tuples(maps),
        plain_values(),
    ]
    return st.one_of([st.lists(kind, max_size=9) for kind in kinds]).flatmap(
        lambda cells: st.sampled_from([cells, cells * 3, cells * 2 + cells[:1]])
    )


def exact(value: Any) -> Any:
    """A value with its types, so that 1, 1.0 and True differ, and NaN equals itself; minus zero is zero."""
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    if isinstance(value, dict):
        return {exact(key): exact(item) for key, item in value.items()}
    return (type(value), repr(value + 0.0) if isinstance(value, float) else value)


@given(columns())
def test_a_column_comes_back_as_it_was(cells: list[Any]) -> None:
    made = encoder().cells(cells)
    assert list(map(exact, read_column(made.data, len(cells), LABELS))) == list(map(exact, cells))


@given(columns())
def test_equal_cells_that_are_other_objects_give_the_same_bytes(cells: list[Any]) -> None:
    assert encoder().cells([copied(cell) for cell in cells]) == encoder().cells(cells)


def copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple([copied(item) for item in value])
    if isinstance(value, dict):
        return {copied(key): copied(item) for key, item in reversed(value.items())}
    return float(repr(value)) if isinstance(value, float) else value


@given(columns(), st.data())
def test_what_a_row_has_from_its_class_is_encoded_as_its_cells_are(values: list[Any], data: st.DataObject) -> None:
    of: list[int] = list(range(len(values)))
    if values:
        for place in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=30)):
            of.insert(data.draw(st.integers(of.index(place) + 1, len(of))), place)
    column = Picked(values, Classes(of, [of.index(place) for place in range(len(values))]))
    assert list(map(exact, column)) == [exact(values[place]) for place in of]
    assert encoder().column(column) == encoder().cells(list(column))


@given(st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=9))
def test_tuples_of_rows_and_of_labels_are_encoded_as_their_cells_are(rows: list[list[int]]) -> None:
    items = [row for several in rows for row in several]
    ragged = Ragged(items, [0, *accumulate(map(len, rows))])
    made = encoder()
    named = Named(made.labels.column, ragged)
    assert list(named) == [tuple([LABELS[row] for row in several]) for several in rows]
    assert made.column(ragged) == encoder().cells(list(ragged))
    assert made.column(named) == encoder().cells(list(named))


def test_another_label_is_another_column_wherever_it_is_named() -> None:
    """A column of labels is written as rows, so its digest is taken over the labels too."""
    one, other = Made(), Made()
    for made, func in ((one, "relu"), (other, "tanh")):
        x = made.input("x")
        for _ in range(6):
            x = made.op(func, x)
        made.returns(x)
    before, after = (Encoder(made.tables()).table(made.tables().ops).summary.columns for made in (one, other))
    differing = {name for name in before if before[name] != after[name]}
    assert {"label", "parents", "children", "edge_uses"} <= differing
    assert not {"parent_rows", "shape", "step_index"} & differing
