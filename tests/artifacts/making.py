"""Artifacts of made-up payloads, for the laws of their files: what a file holds is bytes to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from journal.errors import TorchLensError
from torchlens.tlspec.blobs import ITEM_BYTES, WORDS, Blob, Blobs, write
from torchlens.tlspec.folder import Folder, reading
from torchlens.tlspec.manifest import Manifest, StoredFile, StoredTable
from torchlens.tlspec.staging import Staging

VERSIONS = {"package": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}

RECORDS = "records.msgpack"


def names() -> st.SearchStrategy[str]:
    """Labels, addresses, and what nobody would call a tensor."""
    usual = st.sampled_from(["relu_1_2.out", "relu_1_2.grad", "encoder.weight", "a/b", "", "__metadata__", "ü\n\ud800"])
    return usual | st.text(max_size=8)


@st.composite
def blobs(draw: st.DrawFn) -> Blob:
    """A payload of any dtype and shape, with bytes that fit them or do not."""
    kind: Any = draw(st.sampled_from(("activation", "gradient", "parameter", "buffer", "constant", "source")))
    dtype = draw(st.sampled_from((*WORDS, "bits8", "quint8", "float4_e2m1fn_x2")))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    fits = math.prod(shape) * ITEM_BYTES[WORDS.get(dtype, "U8")]
    nbytes = draw(st.just(fits) | st.integers(0, 40))
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    held = draw(st.sampled_from((bytes, bytearray, memoryview)))(data)
    return Blob(
        number=0,
        kind=kind,
        name=draw(names()),
        dtype=dtype,
        shape=shape,
        data=(lambda: held) if draw(st.booleans()) else held,
        address=draw(st.none() | names()) if kind in ("parameter", "buffer") else None,
    )


def bytes_of(blob: Blob) -> bytes:
    data = blob.data() if callable(blob.data) else blob.data
    return bytes(data)


def several(some: Sequence[bytes]) -> list[Blob]:
    """Payloads of these bytes, numbered from 0."""
    return [
        Blob(number=number, kind="activation", name=f"relu_{number}", dtype="uint8", shape=(len(data),), data=data)
        for number, data in enumerate(some)
    ]


def fill(folder: Path, some: Sequence[Blob], records: bytes = b"records", **fields: Any) -> Manifest:
    """Write everything that an artifact has."""
    written = write(folder, some)
    (folder / RECORDS).write_bytes(records)
    files = (StoredFile.of(RECORDS, records), *written.files)
    manifest = Manifest(
        level="portable",
        versions=VERSIONS,
        tables=(StoredTable(name="ops", rows=3, version=1, digest="00" * 32),),
        files=files,
        body_index=written.body_index,
        **fields,
    )
    manifest.write(folder)
    return manifest


def save(path: Path, some: Sequence[Blob], *, overwrite: bool = False, **fields: Any) -> Manifest:
    with Staging(path, overwrite=overwrite) as staging:
        manifest = fill(staging.folder, some, **fields)
        staging.publish()
    return manifest


def load(path: Path, *, lazy: bool = True) -> tuple[Manifest, Blobs]:
    def read(folder: Folder) -> tuple[Manifest, Blobs]:
        manifest = Manifest.read(folder)
        return manifest, Blobs(folder, manifest.body_index, manifest.files, lazy=lazy)

    return reading(path, read)


def refused(of: Callable[[], object], *codes: str) -> TorchLensError:
    """The refusal with which something ends, with one of these codes."""
    with pytest.raises(TorchLensError) as told:
        of()
    assert told.value.code in codes, told.value
    assert told.value.remedy
    return told.value
