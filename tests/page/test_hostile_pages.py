"""Pages of hostile journals: whole or refused by code, soon and in little room, and nothing said is markup."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchlens as tl
from tests.hostile import ODD, is_printable, mutated, sound_streams, write
from tests.page.examples import recurrent
from tests.torchlens.test_hostile_reading import ABSURD, begun, op, parameter, rows_of
from torchlens.journals.journal_view import open_journal
from torchlens.json_in_html import json_in_html
from torchlens.page.data import page_data
from torchlens.page.texts import too_large
from torchlens.page.writing import front, page_of

SOUND = sound_streams()


@given(st.sampled_from(range(len(SOUND))), st.integers(0, 2**32))
@settings(max_examples=80)
def test_any_change_to_a_capture_gives_a_page_or_a_coded_error(
    tmp_path_factory: pytest.TempPathFactory, capture: int, seed: int
) -> None:
    rows, payloads = SOUND[capture]
    folder = tmp_path_factory.mktemp("changed")
    path = write(folder / "j", mutated(rows, random.Random(seed)), payloads)
    try:
        with open_journal(path) as view:
            for trace in view.captures:
                check(trace)
    except tl.TorchLensError:
        pass
    shutil.rmtree(folder)


def check(trace: tl.Trace) -> None:
    """A page is whole: every number in it leads somewhere."""
    data = page_data(trace)
    trace._repr_html_()
    json_in_html(data, too_large)
    rows = {name: len(next(iter(data[name].values()))) for name in ("calls", "ops", "gradients", "passes", "firings")}
    for table, columns in (("calls", ("label", "class")), ("ops", ("label", "kind", "type")), ("firings", ("node",))):
        for column in columns:
            assert all(number is None or 0 <= number < len(data["texts"]) for number in data[table][column])
    assert all(0 <= row < rows["ops"] for column in data["edges"].values() for row in column)
    assert all(0 <= row < rows["calls"] for row in data["ops"]["call"])
    assert all(parent < row for row, parent in enumerate(data["calls"]["parent"]))
    assert all(-1 <= row < rows["ops"] for table in ("gradients", "firings") for row in data[table]["op"])
    assert all(-1 <= row < rows["passes"] for table in ("gradients", "firings") for row in data[table]["pass"])
    assert all(len(column) == rows[name] for name in rows for column in data[name].values())


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "saved.tlspec"
    recurrent().save(path)
    return path


READ = (
    "module_calls",
    "ops",
    "gradients",
    "backward_passes",
    "grad_fn_calls",
    "grad_fns",
    "modules",
    "params",
    "capture",
)


@given(st.data())
@settings(max_examples=40)
def test_whatever_a_column_of_an_artifact_holds_its_page_is_whole_or_refused_by_code(
    artifact: Path, data: st.DataObject
) -> None:
    trace = tl.load(artifact, lazy=True)
    table = trace.tables.table(data.draw(st.sampled_from(READ)))
    name = data.draw(st.sampled_from([*table.names]))
    cells = list(table.column(name))
    for row in data.draw(st.lists(st.sampled_from(range(len(cells))), min_size=1, max_size=3)):
        cells[row] = data.draw(st.sampled_from(ODD))
    table.made[name] = cells
    try:
        check(trace)
    except tl.TorchLensError:
        pass
    trace.cleanup()


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_events_give_a_page_or_a_coded_error(tmp_path: Path, what: str) -> None:
    try:
        with open_journal(write(tmp_path / "j", rows_of(ABSURD[what]), [bytes(8)])) as view:
            for trace in view.captures:
                check(trace)
                said = page_of(trace).replace(front("page.js"), "").replace(front("page.css"), "")
                assert is_printable(said)
    except tl.TorchLensError:
        pass


def test_a_long_text_that_every_op_repeats_is_refused_before_it_is_made(tmp_path: Path) -> None:
    events = [*begun(parameters=[parameter("w" * 100_000)]), *(op(value + 1, (value, -1)) for value in range(5000))]
    with open_journal(write(tmp_path / "j", rows_of(events))) as view, pytest.raises(tl.TorchLensError) as caught:
        page_data(view.captures[0])
    assert caught.value.code == "page_too_large"


@pytest.mark.parametrize("capture", range(len(SOUND)))
def test_every_kind_of_capture_has_a_page(tmp_path: Path, capture: int) -> None:
    rows, payloads = SOUND[capture]
    with open_journal(write(tmp_path / "j", rows, payloads)) as view:
        for trace in view.captures:
            check(trace)
            assert page_of(trace).startswith("<!doctype html>")
