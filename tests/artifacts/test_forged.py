"""Artifacts whose digests are right and whose content no capture writes: using one ends with a code or an answer."""

from __future__ import annotations

import random
from pathlib import Path

import msgpack
import pytest

import torchlens as tl
from journal.events import ForwardReturned, ModelDescribed
from projections.columnar.canonical import Form
from projections.columnar.decoding import read_column
from tests.artifacts import forging
from torchlens.errors import TorchLensError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return forging.bases(tmp_path_factory.mktemp("sound"))


def test_what_is_sound_is_read_and_used_without_contradiction(sound: list[Path]) -> None:
    for base in sound:
        assert not forging.read_artifact(base).codes & {"events_contradictory", "encoding_malformed"}


def test_a_result_that_has_a_tensor_for_a_key_is_refused(sound: list[Path], tmp_path: Path) -> None:
    odd = (3, "a", (3, (), ()), "b", ())
    rows = [
        (*row[:2], odd, *row[3:]) if row[0] == ForwardReturned.type_id else row for row in forging.rows_of(sound[0])
    ]
    trace = tl.load(forging.forged(sound[0], tmp_path / "a.tlspec", rows))
    with pytest.raises(TorchLensError):
        trace.run(inputs=forging.inputs())


def test_a_parameter_of_an_impossible_shape_is_refused(sound: list[Path], tmp_path: Path) -> None:
    place = 2 + ModelDescribed.fields.index("parameters")
    rows = forging.rows_of(sound[0])
    (at,) = (at for at, row in enumerate(rows) if row[0] == ModelDescribed.type_id)
    first, *others = rows[at][place]
    rows[at] = (*rows[at][:place], ((first[0], ((3,), 3), *first[2:]), *others), *rows[at][place + 1 :])
    trace = tl.load(forging.forged(sound[0], tmp_path / "a.tlspec", rows))
    with pytest.raises(TorchLensError):
        dict(trace.weights() or {})


def test_a_column_that_tells_more_cells_than_it_has_is_refused() -> None:
    for there in (2, 1.5, "yes", (0,)):
        column = (int(Form.OPTIONAL), (int(Form.PLAIN), (there,)), (int(Form.PLAIN), ()))
        with pytest.raises(TorchLensError, match="encoding_malformed"):
            read_column(msgpack.packb(column), 1, None)


def test_whatever_is_changed_an_artifact_is_used_or_refused(sound: list[Path], tmp_path: Path) -> None:
    rows, used = [forging.rows_of(base) for base in sound], 0
    for seed in range(4):
        draw = random.Random(seed)
        at = draw.randrange(len(sound))
        path = forging.tampered(sound[at], tmp_path / str(seed) / "a.tlspec", rows[at], draw)
        if path is not None:
            forging.read_artifact(path, lazy=seed % 2 == 0)
            used += 1
    assert used
