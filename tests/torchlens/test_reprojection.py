"""Folding a journal anew: equal records are said to be equal, and each one that is not is named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import torchlens as tl
from journal import open_for_writing
from journal.events import Event, StreamOpened
from projections import CaptureTables, build
from projections.columnar.canonical import VERSION, Summary, pack
from projections.columnar.decoding import unpack
from projections.columnar.tables import Column, Maker
from projections.forward import Forward
from projections.records import ops
from projections.records.layers import LAYERS
from tests.projections.making import Made
from tests.strategies import write_stream
from torchlens.cli import main
from torchlens.journals import reprojection
from torchlens.journals.cache import CacheKey, FileCache, cache_of
from torchlens.journals.reprojection import Difference, Reprojection, reproject


def chain(*functions: str) -> list[Event]:
    made = Made()
    x = made.input("x")
    for function in functions:
        x = made.op(function, x)
    return made.returns(x).events


def write(path: Path, *captures: list[Event]) -> Path:
    journal = open_for_writing(path)
    for events in captures:
        write_stream(journal, events).close()
    journal.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two captures of made-up events."""
    return write(tmp_path / "run.journal", chain("relu", "tanh"), chain("cos"))


def statuses(found: Reprojection) -> list[str]:
    return [capture.status for capture in found.captures]


def files(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def cache_beside(path: Path) -> FileCache:
    with tl.open_journal(path) as view:
        cache = cache_of(view.journal)
    assert cache is not None
    return cache


OWN: Final = ops.OPS["num_args_total"]


def one_more_at(row: int) -> Maker[Forward]:
    """What another version of the project might say of the number of arguments of an op."""

    def make(forward: Forward) -> Column:
        return [cell + 1 if place == row and cell else cell for place, cell in enumerate(OWN(forward))]

    return make


# What is told --------------------------------------------------------------------------------------


def test_what_is_stored_once_is_equal_ever_after(path: Path) -> None:
    first = reproject(path)
    assert statuses(first) == ["new", "new"]
    assert first.ok
    assert {capture.stored_fingerprint for capture in first.captures} == {None}
    again = reproject(path)
    assert statuses(again) == ["equal", "equal"]
    assert again.ok
    assert again.differences == ()
    for capture in again.captures:
        assert capture.fingerprint == capture.stored_fingerprint
        assert capture.stored_head == capture.num_events
        assert capture.stored_by == tl.__version__
    with tl.open_journal(path) as view:
        assert [capture.fingerprint for capture in again.captures] == [trace.fingerprint for trace in view.captures]


def test_just_the_record_and_field_that_changed_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(2))
    found = reproject(path)
    assert statuses(found) == ["different", "equal"]  # the second capture's row 2 is its output, and has no arguments
    assert found.differences == (
        Difference(0, None, "ops", "tanh_1_2", "num_args_total", "changed", 1, 2),
        Difference(0, None, "layers", "tanh_1_2", "num_args_total", "changed", 1, 2),
    )


def test_a_difference_is_told_until_it_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    for _ in range(2):
        checked = reproject(path, check=True)
        assert statuses(checked) == ["different", "different"]
        assert not checked.ok
        assert checked.num_differences == 4
    assert statuses(reproject(path)) == ["different", "different"]
    assert statuses(reproject(path)) == ["equal", "equal"]


def test_another_version_of_a_table_is_compared_with_the_one_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproject(path)
    monkeypatch.setattr(build, "VERSIONS", {**build.VERSIONS, "ops": 2})
    assert statuses(reproject(path, check=True)) == ["equal", "equal"]
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    assert {one.table for one in reproject(path).differences} == {"ops", "layers"}
    assert statuses(reproject(path, check=True)) == ["equal", "equal"]


def test_fields_that_come_and_go_are_told_once_each(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    columns = {**ops.OPS, "colour": lambda forward: ["red"] * len(forward)}
    monkeypatch.setattr(build, "OPS", {name: maker for name, maker in columns.items() if name != "bool_value"})
    monkeypatch.setattr(build, "LAYERS", {name: maker for name, maker in LAYERS.items() if name != "bool_value"})
    told = [(one.table, one.record, one.field, one.change) for one in reproject(path).differences if one.stream == 1]
    assert told == [
        ("ops", None, "bool_value", "removed"),
        ("ops", None, "colour", "added"),
        ("layers", None, "bool_value", "removed"),
        ("orphans", None, "bool_value", "removed"),
        ("orphans", None, "colour", "added"),
    ]


def test_a_table_that_comes_or_goes_is_told_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    full = CaptureTables.all.func
    fewer = property(lambda tables: {name: table for name, table in full(tables).items() if name != "params"})
    with monkeypatch.context() as patch:
        patch.setattr(CaptureTables, "all", fewer)
        assert reproject(path).differences == tuple(
            Difference(stream, None, "params", None, None, "removed", None, None) for stream in (0, 1)
        )
    assert [one.change for one in reproject(path).differences] == ["added", "added"]


def test_many_differences_are_counted_and_the_first_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    monkeypatch.setattr(reprojection, "MOST_DIFFERENCES", 3)
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    monkeypatch.setitem(ops.OPS, "is_inplace", lambda forward: [1] * len(forward))
    found = reproject(path)
    assert len(found.differences) == 3
    assert found.num_differences == sum(capture.num_differences for capture in found.captures) > 3


def test_a_long_cell_is_told_by_its_beginning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    monkeypatch.setitem(ops.OPS, "args_summary", lambda forward: ["x" * 10_000] * len(forward))
    told = [one.after for one in reproject(path).differences if one.table == "ops"]
    assert set(told) == {"x" * 200 + "..."}


def test_differences_are_a_data_frame(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    assert len(reproject(path, check=True).to_pandas()) == 0
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    frame = reproject(path, check=True).to_pandas()
    assert list(frame["field"]) == ["num_args_total"] * 4
    assert list(frame["after"]) == [2] * 4


def test_real_captures_are_reprojected(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    for k in range(2):
        tl.trace(model, torch.ones(2, 4) * k, journal=tmp_path / "real.journal", name=f"step {k}").cleanup()
    reproject(tmp_path / "real.journal")
    found = reproject(tmp_path / "real.journal")
    assert [(capture.name, capture.status) for capture in found.captures] == [("step 0", "equal"), ("step 1", "equal")]


# Which results are believed ------------------------------------------------------------------------


def test_events_that_came_later_leave_the_older_result_to_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.journal"
    events = chain("relu", "tanh")
    journal = open_for_writing(path)
    writer = write_stream(journal, events[:-3])
    writer.flush()
    assert statuses(reproject(path)) == ["new"]
    for at, event in enumerate(events[-3:], len(events) - 3):
        writer.append(event, 1000 * at)
    journal.close()
    (checked,) = reproject(path, check=True).captures
    assert (checked.status, checked.stored_head, checked.num_events) == ("equal", len(events) - 3, len(events))
    assert checked.fingerprint != checked.stored_fingerprint
    with monkeypatch.context() as patch:
        patch.setitem(ops.OPS, "num_args_total", one_more_at(1))
        assert {one.record for one in reproject(path, check=True).differences} == {"relu_1_1"}
    reproject(path)
    (stored,) = reproject(path).captures
    assert (stored.status, stored.stored_head) == ("equal", len(events))
    assert sorted(os.listdir(path / "cache" / "0")) == [f"receipt.1.{len(events)}", f"tables.1.{len(events)}"]


def test_the_result_of_other_events_of_the_same_stream_is_stale(tmp_path: Path) -> None:
    """A journal that was put back from a copy may have given a stream's number to another capture since."""
    first = write(tmp_path / "one.journal", chain("relu"))
    second = tmp_path / "two.journal"
    shutil.copytree(first, second)
    for path, function, opened in ((first, "tanh", 1), (second, "cos", 2)):
        events = chain(function)
        header = events[0]
        assert isinstance(header, StreamOpened)
        fields = {name: getattr(header, name) for name in header.fields}
        write(path, [StreamOpened(**{**fields, "wall_time_ns": opened}), *events[1:]])
    reproject(first)
    shutil.copytree(first / "cache", second / "cache")
    found = reproject(second, check=True)
    assert statuses(found) == ["equal", "stale"]
    assert found.ok
    assert found.captures[1].stored_fingerprint is None
    reproject(second)
    assert statuses(reproject(second)) == ["equal", "equal"]


def test_a_result_in_another_form_is_stale(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    monkeypatch.setattr("torchlens.journals.results.VERSION", 2)
    assert statuses(reproject(path)) == ["stale", "stale"]
    assert statuses(reproject(path)) == ["equal", "equal"]


def test_the_cache_of_another_journal_is_not_believed(path: Path, tmp_path: Path) -> None:
    reproject(path)
    other = write(tmp_path / "other.journal", chain("relu", "tanh"), chain("cos"))
    shutil.copytree(path / "cache", other / "cache")
    assert statuses(reproject(other)) == ["new", "new"]


def test_damaged_results_are_as_if_they_were_not_there(path: Path) -> None:
    reproject(path)
    for file in (path / "cache").rglob("receipt.*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert statuses(reproject(path)) == ["new", "new"]
    assert statuses(reproject(path)) == ["equal", "equal"]


def test_a_table_whose_cells_are_not_there_is_told_as_a_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    (path / "cache" / "0" / "tables.1.16").write_bytes(b"damaged")
    assert statuses(reproject(path, check=True)) == ["equal", "equal"]
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    told = [one for one in reproject(path).differences if one.stream == 0]
    assert [(one.table, one.record, one.field) for one in told] == [
        ("ops", None, None),
        ("layers", None, None),
    ]


@pytest.mark.parametrize("table", [zlib.compress(b"none"), zlib.compress(b"cut" * 99)[:-9], b"none"])
def test_a_table_that_is_none_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch, table: bytes) -> None:
    reproject(path)
    cache = cache_beside(path)
    key = CacheKey("tables", 1, 0, 16)
    held = cache.get(key)
    assert held is not None
    others = [entry for entry in unpack(held) if entry[0] != "ops"]
    cache.put(key, pack([("ops", 1, table), *others, ("strange", 1, b""), 5]))
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    told = [one for one in reproject(path).differences if one.stream == 0]
    assert [(one.table, one.record, one.field) for one in told] == [
        ("ops", None, None),
        ("layers", "relu_1_1", "num_args_total"),
    ]


def forged(path: Path, count: int, columns: dict[str, bytes], labels: bytes = b"") -> None:
    """Puts a table of ops into the cache, and a receipt that vouches for it, as anyone could who made the journal."""
    cache = cache_beside(path)
    table = pack((VERSION, "ops", count, labels, tuple((name, False, data) for name, data in columns.items())))
    digest = Summary("ops", count, {name: hashlib.sha256(data).digest() for name, data in columns.items()}).digest()
    held = cache.get(CacheKey("receipt", VERSION, 0, 16))
    assert held is not None
    witness, version, _, entries = unpack(held)
    others = [(name, 1, digest if name == "ops" else own) for name, _, own in entries]
    cache.put(CacheKey("tables", VERSION, 0, 16), pack([("ops", 1, zlib.compress(table))]))
    cache.put(CacheKey("receipt", VERSION, 0, 16), pack((witness, version, "0" * 64, others)))


def few(value: Any) -> bytes:
    """A column of one value, as often as there are rows."""
    return pack((1, (value,), b""))


def deep(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("count", "columns"),
    [
        pytest.param(1 << 60, {}, id="rows"),
        pytest.param(1 << 26, {}, id="fewer rows"),
        pytest.param(1 << 60, {"label": few("a")}, id="labels"),
        pytest.param(4, {"shape": bytes(1 << 26)}, id="bytes"),
        pytest.param(4, {"shape": pack((0, ((),) * (1 << 24)))}, id="cells"),
        pytest.param(4, {"shape": pack((4, (few("a"),) * (1 << 18)))}, id="columns in a column"),
        pytest.param(4, {"shape": few(deep(400))}, id="a deep cell"),
        pytest.param(4, {"label": few(tuple(range(1 << 12)))}, id="labels that are none"),
    ],
)
def test_a_forged_result_takes_no_memory_and_is_told_as_different(
    path: Path, count: int, columns: dict[str, bytes]
) -> None:
    reproject(path)
    forged(path, count, columns)
    tracemalloc.start()
    try:
        found = reproject(path, check=True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
    assert statuses(found) == ["different", "equal"]
    assert {one.table for one in found.differences} == {"ops"}


def test_records_of_a_forged_result_are_told_by_the_beginning_of_their_labels(path: Path) -> None:
    reproject(path)
    forged(path, 9, {"label": few("x" * 100_000)})
    removed = [one for one in reproject(path).differences if one.change == "removed" and one.record]
    assert [one.record for one in removed] == ["x" * 200 + "..."] * 9


def test_a_receipt_of_too_many_bytes_is_not_believed(path: Path) -> None:
    reproject(path)
    cache_beside(path).put(CacheKey("receipt", 1, 0, 16), b"\x91" * (1 << 17))
    assert statuses(reproject(path)) == ["new", "equal"]


@pytest.mark.parametrize("text", [b"", b"\x93\x01\x02\x03", b"\x94\x92\x00\x00\xa1x\xa1y\x91\x01", b"\xc1"])
def test_a_receipt_that_is_none_is_not_believed(path: Path, text: bytes) -> None:
    reproject(path)
    cache_beside(path).put(CacheKey("receipt", 1, 0, 16), text)
    assert statuses(reproject(path)) == ["new", "equal"]


def test_the_cache_may_be_deleted_at_any_time(path: Path) -> None:
    before = reproject(path)
    shutil.rmtree(path / "cache")
    after = reproject(path)
    assert after == before


# What is written -----------------------------------------------------------------------------------


def test_checking_writes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path, check=True)
    assert not (path / "cache").exists()
    reproject(path)
    before = files(path)
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    reproject(path, check=True)
    assert files(path) == before


def test_a_journal_that_cannot_be_written_is_folded_all_the_same(path: Path) -> None:
    (path / "cache").mkdir()
    for stream in ("0", "1"):
        (path / "cache" / stream).write_text("a file is in the way")
    assert statuses(reproject(path)) == ["new", "new"]
    assert statuses(reproject(path)) == ["new", "new"]


def test_a_result_that_cannot_be_kept_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.journal"
    journal = open_for_writing(path)
    writer = write_stream(journal, chain("relu")[:-1])
    writer.flush()
    reproject(path)
    before = files(path / "cache")
    writer.append(chain("relu")[-1], 1000)
    journal.close()

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert statuses(reproject(path)) == ["equal"]
    assert files(path / "cache") == before


def test_results_of_the_present_replace_older_ones(path: Path) -> None:
    reproject(path)
    cache = cache_beside(path)
    old = [CacheKey("tables", 1, 0, 4), CacheKey("receipt", 1, 0, 4), CacheKey("tables", 0, 0, 16)]
    for key in old:
        cache.put(key, b"kept")
    (path / "cache" / "0" / "receipt.1.16").unlink()
    reproject(path)
    assert [cache.get(key) for key in old] == [None] * 3


# Captures that cannot be folded, and many ---------------------------------------------------------


def test_a_capture_that_cannot_be_folded_does_not_stop_the_others(tmp_path: Path) -> None:
    made = Made()
    x = made.input("x")
    made.op("relu", x)
    events = [type(event)(**changed(event)) for event in made.returns(x).events]
    path = write(tmp_path / "run.journal", chain("cos"), events, chain("sin"))
    found = reproject(path)
    assert statuses(found) == ["new", "failed", "new"]
    assert not found.ok
    assert found.captures[1].code == "events_contradictory"
    assert found.captures[1].fingerprint is None
    assert statuses(reproject(path)) == ["equal", "failed", "equal"]


def changed(event: Event) -> dict[str, Any]:
    """The fields of an event; a call's are those of one that was given a tensor nobody made."""
    fields = {name: getattr(event, name) for name in event.fields}
    return {**fields, "inputs": (99,)} if event.event_name == "op_executed" else fields


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("many") / "run.journal", *[chain("relu")] * 1000)


def test_a_thousand_captures_are_reprojected(thousand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "reproject", str(thousand)]) == 0
    assert capsys.readouterr().out == "1000 captures, 13000 events: 1000 new\n"
    found = reproject(thousand)
    assert set(statuses(found)) == {"equal"}
    assert [capture.stream for capture in found.captures] == list(range(1000))


# The command ---------------------------------------------------------------------------------------


@pytest.fixture
def differing(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A journal whose stored results another version has made."""
    reproject(path)
    with monkeypatch.context() as patch:
        patch.setitem(ops.OPS, "num_args_total", one_more_at(2))
        yield path


def test_the_command_shows_captures_and_differences(differing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "reproject", str(differing), "--check"]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[1][:5] == ["0", "-", "16", "different", "2"]
    assert lines[2][:5] == ["1", "-", "13", "equal", "0"]
    assert " ".join(lines[3]) == "2 differences, most of them in ops.num_args_total 1, layers.num_args_total 1"
    assert lines[5:] == [
        ["0", "-", table, "tanh_1_2", "num_args_total", "changed", "1", "2"] for table in ("ops", "layers")
    ]


def test_the_command_stores_and_then_finds_nothing(differing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "reproject", str(differing)]) == 0
    assert "num_args_total" in capsys.readouterr().out
    assert main(["journal", "reproject", str(differing), "--check"]) == 0
    assert "num_args_total" not in capsys.readouterr().out


def test_the_command_answers_programs(differing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "reproject", str(differing), "--check", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is False
    assert [capture["status"] for capture in facts["captures"]] == ["different", "equal"]
    assert facts["num_differences"] == len(facts["differences"]) == 2
    assert facts["differences"][0]["record"] == "tanh_1_2"


def test_the_command_says_how_many_more_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [type(event)(**changed(event)) for event in chain("relu")]
    path = write(tmp_path / "run.journal", chain("relu"), broken)
    assert main(["journal", "reproject", str(path)]) == 1
    assert "capture of stream 1: " in capsys.readouterr().out
    monkeypatch.setattr(reprojection, "MOST_DIFFERENCES", 1)
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    assert main(["journal", "reproject", str(path), "--check"]) == 1
    out = capsys.readouterr().out
    assert "[events_contradictory]" in out
    assert out.endswith("and 1 more\n")


def test_a_path_where_no_journal_is_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        reproject(tmp_path / "none")
    assert refused.value.code == "journal_not_found"
    assert main(["journal", "reproject", str(tmp_path / "none")]) == 1
    assert "[journal_not_found]" in capsys.readouterr().err


def test_a_check_passes_only_where_there_was_something_to_compare(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["journal", "reproject", str(path), "--check"]) == 1
    assert "nothing stored to be compared with" in capsys.readouterr().err
    assert reproject(path).num_uncompared == 2
    assert main(["journal", "reproject", str(path), "--check"]) == 0
    assert capsys.readouterr().err == ""


def test_lost_tables_are_kept_again(path: Path) -> None:
    reproject(path)
    kept = sorted((path / "cache").rglob("tables.*"))
    before = kept[0].read_bytes()
    kept[0].unlink()
    assert [capture.status for capture in reproject(path).captures] == ["equal", "equal"]
    assert kept[0].read_bytes() == before


def test_differences_are_counted_by_field_beyond_those_that_are_listed(
    differing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reprojection, "MOST_DIFFERENCES", 1)
    found = reproject(differing, check=True)
    assert [(one.table, one.field, one.num_differences, one.num_captures) for one in found.fields] == [
        ("ops", "num_args_total", 1, 1),
        ("layers", "num_args_total", 1, 1),
    ]
    assert found.fields[0].example == found.differences[0]
    assert found.fields[1].example.record == "tanh_1_2"
    assert main(["journal", "reproject", str(differing), "--check", "--fields"]) == 1
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert told[3] == ["2", "differences"]
    assert told[5:] == [
        [table, "num_args_total", "changed", "1", "1", "tanh_1_2", "1", "2"] for table in ("ops", "layers")
    ]


def test_fields_beyond_the_most_are_counted_in_the_whole_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproject(path)
    monkeypatch.setattr(reprojection, "MOST_FIELDS", 1)
    monkeypatch.setitem(ops.OPS, "num_args_total", one_more_at(1))
    found = reproject(path, check=True)
    assert found.num_differences == 4
    assert [(one.table, one.num_differences, one.num_captures) for one in found.fields] == [("ops", 2, 2)]
