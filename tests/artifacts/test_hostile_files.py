"""Artifacts that somebody made to harm their reader are refused, in bounded memory."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import xxhash

from tests.artifacts.making import fill, several
from tests.nursery import Job, Nursery
from torchlens.tlspec import json_text
from torchlens.tlspec.manifest import digest_of

READERS = "tests.artifacts.readers"

LARGE = 384 << 20
"""More than the reader of a payload has room for."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(READERS) as one:
        yield one


def manifest_of(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    found = json.loads((path / "manifest.json").read_bytes())
    found.pop("digest")
    change(found)
    found["digest"] = digest_of(found)
    (path / "manifest.json").write_text(json.dumps(found))


def text(path: Path, data: bytes) -> None:
    (path / "manifest.json").write_bytes(data)


def many_values(path: Path) -> None:
    text(path, b"[" + b",".join([b"{}"] * json_text.MOST_VALUES) + b"]")


def values_at_the_limit(path: Path) -> None:
    text(path, b"[" + b",".join([b'{"a":1}'] * (json_text.MOST_VALUES // 2 - 1)) + b"]")


def long_file(path: Path) -> None:
    os.truncate(path / "manifest.json", LARGE)


def deep(path: Path) -> None:
    text(path, b"[" * (1 << 20))


def large_payload(path: Path, digest: str) -> None:
    """A tensor without bytes on the disk: all of it is one hole."""
    header = json.dumps({"relu_0": {"dtype": "U8", "shape": [LARGE], "data_offsets": [0, LARGE]}}).encode()
    file = path / "payloads" / "00000.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(file, 8 + len(header) + LARGE)

    def change(found: dict[str, Any]) -> None:
        front = xxhash.xxh3_128_hexdigest(struct.pack("<Q", len(header)) + header)
        found["files"][1].update(nbytes=8 + len(header) + LARGE, digest=front)
        found["body_index"] = [{**found["body_index"][0], "shape": [LARGE], "nbytes": LARGE, "digest": digest}]

    manifest_of(path, change)


def digest_of_zeros() -> str:
    digest, piece = xxhash.xxh3_128(), bytes(64 << 20)
    for _ in range(LARGE // len(piece)):
        digest.update(piece)
    return digest.hexdigest()


def large_header(path: Path) -> None:
    file = path / "payloads" / "00000.safetensors"
    file.write_bytes(struct.pack("<Q", LARGE))
    os.truncate(file, LARGE + 8)
    manifest_of(path, lambda found: found["files"][1].update(nbytes=LARGE + 8))


def large_shape(path: Path) -> None:
    manifest_of(path, lambda found: found["body_index"][0].update(shape=[(1 << 63) - 1] * 64))


Hostile: TypeAlias = "tuple[Callable[[Path], None], str]"

JSON: Mapping[str, Hostile] = {
    "many_values": (many_values, "manifest_unreadable"),
    "values_at_the_limit": (values_at_the_limit, "manifest_not_json_object"),
    "long_file": (long_file, "bundle_metadata_integrity_refused"),
    "deep": (deep, "manifest_unreadable"),
}

PAYLOADS: Mapping[str, Hostile] = {
    "large_payload": (lambda path: large_payload(path, "0" * 32), "payload_damaged"),
    "large_payload_that_fits": (lambda path: large_payload(path, digest_of_zeros()), "payload_lost"),
    "large_header": (large_header, "bundle_metadata_integrity_refused"),
    "large_shape": (large_shape, "bundle_metadata_integrity_refused"),
}


@pytest.mark.parametrize(("some", "room"), [(JSON, 1024), (PAYLOADS, 256)])
def test_hostile_artifacts_are_refused_in_bounded_memory(
    nursery: Nursery, tmp_path: Path, some: Mapping[str, Hostile], room: int
) -> None:
    home = tmp_path / "hostile"
    for name, (make, _) in some.items():
        path = home / name
        path.mkdir(parents=True)
        fill(path, several([b"one", b"two"]))
        make(path)
    child = nursery.start(Job(str(home), str(tmp_path / "said"), f"{READERS}:read_in_little_memory", "", "", room))
    assert child.wait() == 0
    found = dict(line.split() for line in (tmp_path / "said").read_text().splitlines())
    assert found == {name: code for name, (_, code) in some.items()}
