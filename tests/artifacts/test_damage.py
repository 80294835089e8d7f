"""Whatever is done to the files of an artifact, what is read is what was saved, or is refused by code."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.errors import TorchLensError
from tests.artifacts.making import RECORDS, fill, load, refused, several
from torchlens.codes import CODES
from torchlens.tlspec.blobs import Blob
from torchlens.tlspec.manifest import digest_of

T = TypeVar("T")

PAYLOADS = "payloads/00000.safetensors"
FILES = ("manifest.json", PAYLOADS)
CONTENT = [b"", b"one", b"two and more", bytes(range(64))]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "a.tlspec"
    path.mkdir()
    fill(path, several(CONTENT))
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "a.tlspec")
    return tmp_path / "a.tlspec"


def answer(of: Callable[[], T]) -> T | str:
    """What something gives, or the code with which it is refused."""
    try:
        return of()
    except TorchLensError as exc:
        return exc.code


def outcome(path: Path, lazy: bool = True) -> list[bytes | str]:
    """What reading gives, payload by payload: bytes, or the code of a refusal."""
    loaded = answer(lambda: load(path, lazy=lazy))
    if isinstance(loaded, str):
        return [loaded]
    manifest, found = loaded
    answers = [answer(lambda number=number: bytes(found.bytes(number))) for number in range(len(CONTENT))]
    found.close()
    return [str(manifest), *answers]


@pytest.fixture(scope="module")
def whole(sound: Path) -> list[bytes | str]:
    answers = outcome(sound)
    assert answers[1:] == CONTENT
    return answers


def is_honest(found: list[bytes | str], whole: list[bytes | str]) -> bool:
    """Whether everything that was answered is what was saved."""
    return (len(found) == 1 and found[0] in CODES) or all(
        one == other or one in CODES for one, other in zip(found, whole, strict=True)
    )


# Accidents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_any_byte_that_is_changed_is_found_or_says_nothing(path: Path, whole: list[bytes | str], name: str) -> None:
    data = (path / name).read_bytes()
    with open(path / name, "r+b", buffering=0) as file:
        for place in range(len(data)):
            changed = bytes([data[place] ^ (1 << place % 8)])
            os.pwrite(file.fileno(), changed, place)
            found = outcome(path)
            assert is_honest(found, whole), (place, found)
            assert found != whole or data[place : place + 1].isspace(), place
            os.pwrite(file.fileno(), data[place : place + 1], place)
    assert outcome(path) == whole


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_length_is_refused(path: Path, name: str) -> None:
    data = (path / name).read_bytes()
    for length in (*range(0, len(data), 7), len(data) - 2):  # the last byte of a manifest ends its line
        (path / name).write_bytes(data[:length])
        assert len(outcome(path)) == 1
    (path / name).write_bytes(data + b"{")
    assert len(outcome(path)) == 1


@settings(max_examples=60)
@given(st.data())
def test_any_few_changes_are_found_or_say_nothing(sound: Path, whole: list[bytes | str], data: st.DataObject) -> None:
    path = sound.with_name("changed")
    shutil.copytree(sound, path, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(FILES))
    held = bytearray((sound / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(held)))
        held[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    (path / name).write_bytes(held)
    assert is_honest(outcome(path, lazy=data.draw(st.booleans())), whole)


def test_files_of_another_artifact_are_refused(path: Path, tmp_path: Path) -> None:
    """One with the same names, sizes and shapes."""
    other = tmp_path / "b.tlspec"
    other.mkdir()
    fill(other, several([bytes(reversed(data)) for data in CONTENT]))
    mine, theirs = (path / PAYLOADS).read_bytes(), (other / PAYLOADS).read_bytes()
    assert len(mine) == len(theirs)
    (path / PAYLOADS).write_bytes(theirs)
    assert outcome(path)[2:] == ["payload_damaged"] * 3
    refused(lambda: load(path, lazy=False), "payload_damaged")


def test_a_file_that_becomes_shorter_behind_the_reader_is_told(path: Path) -> None:
    _, found = load(path)
    os.truncate(path / PAYLOADS, 40)
    refused(lambda: found.bytes(3), "payload_lost")


def test_a_folder_that_is_exchanged_behind_the_reader_is_not_looked_at(path: Path) -> None:
    _, found = load(path)
    path.rename(path.with_name("moved"))
    path.mkdir()
    fill(path, several([b"other"] * 4))
    assert [bytes(found.bytes(number)) for number in range(4)] == CONTENT


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda at: os.symlink("/dev/zero", at)])
@pytest.mark.parametrize("name", ["manifest.json", PAYLOADS, "payloads"])
def test_what_is_no_file_is_refused_and_not_waited_for(path: Path, name: str, make: Callable[[Path], None]) -> None:
    (path / name).rename(path.with_name("gone"))
    make(path / name)
    codes = ("load_path_symlink_rejected", "bundle_metadata_integrity_refused", "bundle_load_failed")
    refused(lambda: load(path), *codes)


def test_the_path_itself_may_be_anything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), Path("/proc/self/mem")):
        refused(lambda place=place: load(place), "manifest_missing")
    refused(lambda: load(tmp_path / ("x" * 300)), "bundle_load_failed")


# Headers that lie --------------------------------------------------------------------------------------


def sealed(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def resign(path: Path, **fields: Any) -> None:
    """Let the manifest say of the payload file what it is now, and more."""
    found = json.loads((path / "manifest.json").read_bytes())
    found.pop("digest")
    for file in found["files"]:
        if file["path"] == PAYLOADS:
            data = (path / PAYLOADS).read_bytes()
            front = data[: 8 + struct.unpack("<Q", data[:8])[0]]
            file.update(nbytes=len(data), digest=xxhash.xxh3_128_hexdigest(front))
    for row in found["body_index"]:
        row.update(fields)
    found["digest"] = digest_of(found)
    (path / "manifest.json").write_text(json.dumps(found))


def two() -> dict[str, Any]:
    """The header of two payloads of two bytes."""
    return {
        "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]},
    }


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    path = tmp_path / "pair.tlspec"
    path.mkdir()
    made = [
        Blob(number=number, kind="activation", name=name, dtype="uint8", shape=(2,), data=name.encode() * 2)
        for number, name in enumerate("ab")
    ]
    fill(path, made)
    (path / PAYLOADS).write_bytes(sealed(two()) + b"aabb")
    resign(path)
    assert bytes(load(path)[1].bytes(1)) == b"bb"
    return path


def put(**fields: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**two(), "b": {**two()["b"], **fields}}


@pytest.mark.parametrize(
    "header",
    [
        put(data_offsets=[1, 3]),  # overlaps
        put(data_offsets=[0, 2]),
        put(data_offsets=[3, 5]),  # a gap
        put(data_offsets=[2, 5]),
        put(data_offsets=[4, 2]),
        put(data_offsets=[-2, 0]),
        put(data_offsets=[2, 1 << 62]),
        put(data_offsets=[2]),
        put(data_offsets=[2.0, 4.0]),
        put(data_offsets=[True, 4]),
        put(data_offsets="24"),
        put(dtype="F32"),
        put(dtype="X9"),
        put(dtype=None),
        put(shape=[1]),
        put(shape=[2, 1]),
        put(shape=[-2, -1]),
        put(shape=[1 << 40, 1 << 40]),
        put(shape="2"),
        put(extra=1),
        lambda: {"a": two()["a"]},
        lambda: {**two(), "c": {"dtype": "U8", "shape": [0], "data_offsets": [4, 4]}},
        list,
        lambda: None,
        lambda: b"{",
        lambda: json.dumps(two()).encode()[:-1] + b"," + json.dumps(two()).encode()[1:],  # each twice
        lambda: b"[" * 5000 + b"]" * 5000,
    ],
)
def test_a_header_that_does_not_say_what_the_manifest_says_is_refused(pair: Path, header: Callable[[], object]) -> None:
    (pair / PAYLOADS).write_bytes(sealed(header()) + b"aabb")
    resign(pair)
    refused(lambda: load(pair), "bundle_metadata_integrity_refused")


def test_a_header_with_another_digest_is_refused(pair: Path) -> None:
    data = (pair / PAYLOADS).read_bytes()
    (pair / PAYLOADS).write_bytes(data.replace(b"[0, 2]", b"[0,2 ]"))
    refused(lambda: load(pair), "bundle_metadata_integrity_refused")


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_header_is_as_long_as_it_says(pair: Path, length: int) -> None:
    data = (pair / PAYLOADS).read_bytes()
    (pair / PAYLOADS).write_bytes(struct.pack("<Q", length) + data[8:])
    refused(lambda: load(pair), "bundle_metadata_integrity_refused")


def test_bytes_behind_the_last_tensor_are_refused(pair: Path) -> None:
    with open(pair / PAYLOADS, "ab") as file:
        file.write(b"hidden")
    resign(pair)
    refused(lambda: load(pair), "bundle_metadata_integrity_refused")


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [3]},
        {"nbytes": 1},
        {"nbytes": 1 << 62, "shape": [1 << 62]},
        {"shape": [1 << 62] * 60},
        {"dtype": "F4"},
        {"file": "payloads/00001.safetensors"},
        {"file": RECORDS},
        {"tensor": "a"},
        {"number": 0},
    ],
)
def test_an_index_that_does_not_fit_the_file_is_refused(pair: Path, fields: dict[str, Any]) -> None:
    resign(pair, **fields)
    refused(lambda: load(pair), "bundle_metadata_integrity_refused")
