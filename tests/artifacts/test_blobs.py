"""Payload files: whatever is written comes back bit for bit, or is refused; safetensors itself reads the same."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tests.artifacts.making import blobs, bytes_of, fill, load, refused, save, several
from torchlens.tlspec import blobs as payload_files
from torchlens.tlspec.blobs import WORDS, Blob, counted, write


@settings(max_examples=60)
@given(st.lists(blobs(), max_size=8), st.integers(1, 60), st.booleans())
def test_any_set_of_payloads_comes_back_bit_for_bit(made: list[Blob], limit: int, lazy: bool) -> None:
    made = [attrs.evolve(blob, number=number) for number, blob in enumerate(made)]
    with tempfile.TemporaryDirectory() as home, patch.object(payload_files, "FILE_BYTES", limit):
        fill(Path(home), made)
        manifest, found = load(Path(home), lazy=lazy)
        for blob, row in zip(made, manifest.body_index, strict=True):
            assert found.bytes(blob.number, counted(blob.kind)) == bytes_of(blob)
            assert found.size(blob.number, counted(blob.kind)) == len(bytes_of(blob))
            assert (row.number, row.kind, row.address) == (blob.number, blob.kind, blob.address)
        found.close()


def test_safetensors_reads_every_dtype_as_torch_had_it(tmp_path: Path) -> None:
    tensors = {word: torch.arange(6).reshape(2, 3).to(getattr(torch, word)) for word in WORDS}
    made = [
        Blob(
            number=n,
            kind="activation",
            name=word,
            dtype=word,
            shape=(2, 3),
            data=bytes(tensor.view(torch.uint8).numpy()),
        )
        for n, (word, tensor) in enumerate(tensors.items())
    ]
    (file,) = write(tmp_path, made).files
    with safe_open(tmp_path / file.path, "pt") as found:
        for word, tensor in tensors.items():
            again = found.get_tensor(word)
            assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


def test_what_safetensors_has_no_word_for_is_stored_as_its_bytes(tmp_path: Path) -> None:
    made = Blob(number=0, kind="activation", name="odd", dtype="quint8", shape=(2, 3), data=bytes(range(6)))
    (row,) = write(tmp_path, [made]).body_index
    assert (row.dtype, row.shape, row.nbytes) == ("U8", (6,), 6)


def test_each_tensor_begins_at_a_multiple_of_its_elements_size(tmp_path: Path) -> None:
    """Also where one turns out to have other bytes than its dtype and shape make up."""
    made = [
        Blob(number=0, kind="activation", name="odd", dtype="float64", shape=(1,), data=b"123"),
        Blob(number=1, kind="activation", name="bool", dtype="bool", shape=(3,), data=bytes(3)),
        Blob(number=2, kind="activation", name="half", dtype="float16", shape=(3,), data=bytes(6)),
        Blob(number=3, kind="activation", name="double", dtype="float64", shape=(1,), data=bytes(8)),
    ]
    (file,) = write(tmp_path, made).files
    data = (tmp_path / file.path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert [(name, one["dtype"], one["data_offsets"]) for name, one in header.items()] == [
        ("double", "F64", [0, 8]),
        ("half", "F16", [8, 14]),
        ("bool", "BOOL", [14, 17]),
        ("odd", "U8", [17, 20]),
    ]
    with safe_open(tmp_path / file.path, "pt") as found:
        assert bytes(found.get_tensor("odd").numpy()) == b"123"
        assert found.get_tensor("double").shape == (1,)


def test_bytes_are_asked_for_one_payload_at_a_time(tmp_path: Path) -> None:
    held: list[weakref.ref[Held]] = []

    class Held(bytearray):
        pass

    def give() -> Held:
        assert sum(one() is not None for one in held) <= 1  # the one that is being replaced
        made = Held(1000)
        held.append(weakref.ref(made))
        return made

    write(
        tmp_path,
        [Blob(number=n, kind="activation", name="x", dtype="uint8", shape=(1000,), data=give) for n in range(9)],
    )
    assert len(held) == 9


def test_files_are_bounded_and_a_larger_tensor_has_its_own(tmp_path: Path) -> None:
    with patch.object(payload_files, "FILE_BYTES", 100):
        written = write(tmp_path, several([bytes(60), bytes(60), bytes(500), bytes(10)]))
    assert [row.file for row in written.body_index] == [f"payloads/{n:05d}.safetensors" for n in (0, 0, 1, 2)]
    assert [file.path for file in written.files] == sorted({row.file for row in written.body_index})


def test_a_payload_that_is_not_there_is_refused_by_number(tmp_path: Path) -> None:
    save(tmp_path / "a.tlspec", several([b"x"]))
    _, found = load(tmp_path / "a.tlspec")
    refused(lambda: found.bytes(1), "payload_not_stored")
    refused(lambda: found.bytes(0, "parameter"), "payload_not_stored")
    assert found.size(1) is None
    found.close()
    refused(lambda: found.bytes(0), "payload_lost")


def test_a_payload_file_that_is_missing_is_told_when_the_artifact_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "a.tlspec", several([b"x"]))
    (tmp_path / "a.tlspec" / "payloads" / "00000.safetensors").unlink()
    assert "00000" in str(refused(lambda: load(tmp_path / "a.tlspec"), "bundle_load_failed"))


@pytest.mark.parametrize("lazy", [True, False])
def test_what_was_opened_stays_readable_when_the_artifact_is_replaced(tmp_path: Path, lazy: bool) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"old"]))
    _, found = load(path, lazy=lazy)
    save(path, several([b"new"]), overwrite=True)
    assert bytes(found.bytes(0)) == b"old"
    assert bytes(load(path)[1].bytes(0)) == b"new"


@pytest.fixture
def given_away(tmp_path: Path) -> Iterator[Path]:
    """An artifact whose one file is as large as those of which what was read is given to who asks first."""
    save(tmp_path / "a.tlspec", several([b"one", b"two"]))
    with patch.object(payload_files, "GIVEN_BYTES", 1):
        yield tmp_path / "a.tlspec"


def test_what_was_read_is_given_once_and_copied_for_whoever_asks_next(given_away: Path) -> None:
    found = load(given_away, lazy=False)[1]
    first, second, third = (found.bytes(0) for _ in range(3))
    assert not first.readonly
    second[:] = b"!!!"
    assert first == third == b"one"
    (given_away / "payloads" / "00000.safetensors").unlink()
    assert found.bytes(0) == found.bytes(0) == b"one"
    found.close()
    assert found.bytes(0) == b"one"
    assert found.bytes(1) == b"two"


def test_what_was_given_and_written_to_is_read_from_the_file_again(given_away: Path) -> None:
    found = load(given_away, lazy=False)[1]
    found.bytes(0)[:] = b"!!!"
    (given_away / "payloads" / "00000.safetensors").unlink()  # and is open
    assert found.bytes(0) == found.bytes(0) == b"one"
    found.bytes(1)[:] = b"!!!"
    found.close()
    assert refused(lambda: found.bytes(1), "payload_lost")


def test_a_file_that_is_damaged_under_a_reader_is_told_of_what_was_written_to_alone(given_away: Path) -> None:
    found = load(given_away, lazy=False)[1]
    path = given_away / "payloads" / "00000.safetensors"
    with path.open("r+b") as file:
        file.truncate(0)
    found.bytes(0)[:] = b"!!!"
    assert refused(lambda: found.bytes(0), "payload_lost")
    assert found.bytes(1) == found.bytes(1) == b"two"


def test_a_small_file_that_was_read_whole_is_not_kept_open(tmp_path: Path) -> None:
    save(tmp_path / "a.tlspec", several([b"one"]))
    found = load(tmp_path / "a.tlspec", lazy=False)[1]
    assert not found.opened
    assert found.bytes(0).readonly
    assert found.bytes(0) == b"one"
