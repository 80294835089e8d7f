"""The manifest: it round-trips, and whatever is wrong with it is refused by code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.stored.stripped import PAYLOAD_KINDS
from tests.artifacts.making import VERSIONS, load, refused, save, several
from torchlens.tlspec.folder import Folder
from torchlens.tlspec.levels import LEVELS
from torchlens.tlspec.manifest import (
    FORMAT_VERSION,
    KINDS,
    STORED_AS,
    STORED_KINDS,
    Manifest,
    StoredFile,
    StoredPayload,
    StoredTable,
    digest_of,
)

counts = st.integers(0, (1 << 63) - 1)
texts = st.text(max_size=20)
words = st.text(st.characters(categories=("L", "N", "P")), max_size=20)
digests = st.binary(min_size=16, max_size=16).map(bytes.hex)
paths = st.from_regex(r"[a-z0-9_-][a-z0-9_.-]{0,8}(/[a-z0-9_-][a-z0-9_.-]{0,8})?", fullmatch=True).filter(
    lambda path: path != "manifest.json"
)
plain: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
maps = st.dictionaries(texts, plain, max_size=3)
manifests = st.builds(
    Manifest,
    kind=st.sampled_from(sorted(KINDS)),
    level=st.sampled_from(sorted(LEVELS)),
    options=maps,
    versions=st.dictionaries(words, words, max_size=3),
    tables=st.lists(
        st.builds(StoredTable, name=words, rows=counts, version=counts, digest=words),
        max_size=3,
        unique_by=lambda table: table.name,
    ).map(tuple),
    files=st.lists(
        st.builds(StoredFile, path=paths, nbytes=counts, digest=digests), max_size=3, unique_by=lambda file: file.path
    ).map(tuple),
    body_index=st.lists(
        st.builds(
            StoredPayload,
            number=counts,
            kind=st.sampled_from(sorted(STORED_KINDS)),
            file=paths,
            tensor=texts,
            dtype=words,
            shape=st.lists(counts, max_size=3).map(tuple),
            nbytes=counts,
            digest=digests,
            address=st.none() | texts,
        ),
        max_size=3,
    ).map(tuple),
    fingerprint=st.none() | words,
    backward_summary=st.none() | maps,
)


@settings(max_examples=40)
@given(manifests)
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    with tempfile.TemporaryDirectory() as home:
        manifest.write(home)
        with Folder(home) as folder:
            assert Manifest.read(folder) == manifest


# What is refused ---------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "a.tlspec", several([b"one", b"two"]))
    return tmp_path / "a.tlspec"


def edit(path: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Change the manifest, and let its digest fit again."""
    found = json.loads((path / "manifest.json").read_bytes())
    digest = found.pop("digest")
    change(found)
    found["digest"] = digest_of(found) if sign else digest
    (path / "manifest.json").write_text(json.dumps(found))


def test_an_edited_manifest_that_says_so_is_read(path: Path) -> None:
    edit(path, lambda found: found.update(fingerprint="another"))
    assert load(path)[0].fingerprint == "another"


def test_an_edited_manifest_with_its_old_digest_is_refused(path: Path) -> None:
    edit(path, lambda found: found.update(fingerprint="another"), sign=False)
    refused(lambda: load(path), "bundle_metadata_integrity_refused")


@pytest.mark.parametrize("place", ["nothing", "empty", "file"])
def test_where_no_artifact_is_the_manifest_is_missing(tmp_path: Path, place: str) -> None:
    path = tmp_path / "a.tlspec"
    if place == "empty":
        path.mkdir()
    elif place == "file":
        path.write_text("{}")
    refused(lambda: load(path), "manifest_missing")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 123456789012345678901234567890}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 40 + b"]" * 40,
        b"{} {}",
    ],
)
def test_what_is_no_json_is_unreadable(path: Path, data: bytes) -> None:
    (path / "manifest.json").write_bytes(data)
    refused(lambda: load(path), "manifest_unreadable")


@pytest.mark.parametrize("data", [b"[]", b"null", b'"text"', b"7"])
def test_a_manifest_is_an_object(path: Path, data: bytes) -> None:
    (path / "manifest.json").write_bytes(data)
    refused(lambda: load(path), "manifest_not_json_object")


def put(*way: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for step in way[:-1]:
            found = found[step]
        found[way[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("tables"),
        lambda found: found.update(extra=1),
        put("format", to="zip"),
        put("format_version", to="1"),
        put("format_version", to=True),
        put("kind", to="model"),
        put("level", to="everything"),
        put("level", to=[]),
        put("options", to=[]),
        put("versions", to={"torch": 2}),
        put("versions", to={"torch": "\x1b[31m"}),
        put("tables", to={}),
        put("tables", 0, "rows", to=-1),
        put("tables", 0, "rows", to=1 << 63),
        put("tables", 0, "name", to=None),
        put("tables", 0, to=[]),
        put("files", 0, "digest", to="00"),
        put("files", 0, "extra", to=1),
        put("body_index", 0, "shape", to=[1.0]),
        put("body_index", 0, "shape", to=[-1]),
        put("body_index", 0, "shape", to=[1] * 65),
        put("body_index", 0, "kind", to="weights"),
        put("body_index", 0, "tensor", to="x" * 5000),
        lambda found: found["tables"].append(found["tables"][0]),
        lambda found: found["files"].append({**found["files"][0], "path": "RECORDS.msgpack"}),
    ],
)
def test_a_field_that_is_not_what_it_must_be_is_refused(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    edit(path, change)
    refused(lambda: load(path), "manifest_schema_invalid")


@pytest.mark.parametrize(
    "name",
    [
        *("../a", "/etc/passwd", "..", ".", "", "a//b", "a/../b", "a/b/c", ".hidden", "a/.hidden", "a\\b", "a\nb"),
        *("a\0b", "ü", "payloads/", "manifest.json", "MANIFEST.JSON", "a" * 200, "C:x"),
    ],
)
def test_a_path_does_not_lead_out_of_the_folder(path: Path, name: str) -> None:
    edit(path, put("files", 0, "path", to=name))
    refused(lambda: load(path), "manifest_schema_invalid")


@pytest.mark.parametrize("place", [".", "manifest.json", "payloads", "payloads/00000.safetensors"])
def test_nothing_is_followed(path: Path, place: str) -> None:
    real = path.with_name("real")
    (path / place).rename(real)
    (path / place).symlink_to(real)
    refused(lambda: load(path), "load_path_symlink_rejected")


# Versions ----------------------------------------------------------------------------------------------


def test_a_format_before_the_floor_is_refused(path: Path) -> None:
    edit(path, put("format_version", to=0))
    assert "0.1.0" in refused(lambda: load(path), "artifact_version_below_floor").remedy


@pytest.mark.parametrize("version", [FORMAT_VERSION, FORMAT_VERSION + 1])
def test_a_later_format_is_refused_where_it_says_so(path: Path, version: int) -> None:
    edit(path, lambda found: found.update(format_version=version, min_reader_version=FORMAT_VERSION + 1))
    assert "0.1.0" in refused(lambda: load(path), "artifact_version_above_runtime").remedy


def test_a_later_format_that_may_be_read_is_read_without_what_is_new(path: Path) -> None:
    edit(path, lambda found: found.update(format_version=FORMAT_VERSION + 1, more={"a": [1]}))
    manifest, found = load(path)
    assert manifest.format_version == FORMAT_VERSION + 1
    assert bytes(found.bytes(1)) == b"two"


@pytest.mark.parametrize(("written", "here", "fits"), [("3.0.1", "2.13.0+cpu", False), ("2.99", "2.13", True)])
def test_a_later_major_version_of_torch_is_refused(written: str, here: str, fits: bool) -> None:
    manifest = Manifest(level="audit", versions={**VERSIONS, "torch": written})
    if fits:
        manifest.require_torch(here, "a.tlspec")
    else:
        refused(lambda: manifest.require_torch(here, "a.tlspec"), "bundle_torch_incompatible")


def test_every_kind_of_payload_is_stored_as_a_kind_that_a_manifest_may_tell() -> None:
    assert STORED_AS.keys() == set(PAYLOAD_KINDS)
    assert set(STORED_AS.values()) | {"parameter", "buffer", "node_gradient"} == STORED_KINDS
