"""An artifact or a journal, opened as a trace: ``tl.load``.

Reads  the manifest first; then the files that it tells of, each against its digest.
Gives  a ``Trace`` whose tables are the stored columns, decoded when they are read.
Rule   Nothing that is read is run: no class of the model is looked for, and no code is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgpack
import xxhash

from journal.events import Event, LeftOut
from projections.columnar.decoding import PackedTable, unpack_table
from projections.columns import COLUMNS, VERSIONS
from projections.errors import over_events
from projections.stored.artifact_tables import StoredProjector
from projections.stored.stripped import PayloadKind
from projections.structure.details import field
from torchlens import collector
from torchlens.errors import ArtifactError, ConfigurationError
from torchlens.journals import journal_view
from torchlens.options import require_switch
from torchlens.reading.facade import Trace
from torchlens.reading.source import StreamSource
from torchlens.reading.view import View, no_torch
from torchlens.tlspec.artifact_journal import EVENTS, RECORDS, STREAM, ArtifactJournal
from torchlens.tlspec.blobs import Blobs
from torchlens.tlspec.errors import integrity_refused, load_failed
from torchlens.tlspec.folder import Folder, reading
from torchlens.tlspec.levels import kinds_of
from torchlens.tlspec.manifest import Manifest
from torchlens.tlspec.staging import MANIFEST, place_of, standing_at
from torchlens.tlspec.weights import Weights

__all__ = ["load"]

SUFFIX: Final = ".tlspec"

NAME: Final = field(LeftOut, "event")


def load(
    path: str | os.PathLike[str],
    *,
    capture: int | str | None = None,
    lazy: bool | None = None,
    map_location: Any = None,
) -> Trace:
    """The trace of an artifact, or of a capture in a journal.

    Args:
        path: Directory that ``trace.save`` made, or directory of a journal.
        capture: Of a journal, number of the capture, from the end if negative, or its name; None for the only one.
        lazy: Of an artifact, read each tensor when it is first asked for; False, and None, reads all of them now.
        map_location: Of an artifact, the device that tensors are put on, such as ``"cuda"``; None is the CPU.

    Raises:
        ConfigurationError: ``load_option_not_applicable``, for an option of the other kind; ``map_location_invalid``;
            ``option_value_invalid``.
        ArtifactError: ``artifact_path_invalid``, for an empty path and that of a file within an artifact; what is wrong
            with an artifact.
        JournalError: ``journal_path_invalid``, for what is no path; ``journal_holds_none``; ``journal_holds_many``,
            when there are several captures and none was chosen; ``capture_unknown``, ``capture_ambiguous``.
    """
    path = place_given(path)
    if not is_artifact(path):
        given = [name for name, value in (("lazy", lazy), ("map_location", map_location)) if value is not None]
        if given:
            raise not_applicable(given[0], "a journal, whose tensors are read when they are asked for, on the CPU")
        return journal_view.load(path, capture=capture)
    if capture is not None:
        raise not_applicable("capture", "an artifact, which holds one capture")
    require_switch("lazy", lazy)
    return load_artifact(path, lazy=bool(lazy), map_location=map_location)


def place_given(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """A path as it was given, bytes as text.

    Raises:
        ArtifactError: ``artifact_path_invalid``.
    """
    if path in ("", b""):
        place_of(path)  # refuses it: a journal might stand in the working directory
    given = os.fsdecode(path) if isinstance(path, bytes) else path
    folder = folder_around(given)
    if folder is not None:
        raise ArtifactError(
            code="artifact_path_invalid",
            problem=f"{given!r} is a file of an artifact, which is loaded whole",
            remedy=f"give its folder, {str(folder)!r}",
            path=str(folder),
        )
    return given


def folder_around(path: str | os.PathLike[str]) -> Path | None:
    """The artifact that a file is of; None for what is no file, or one of no artifact."""
    with suppress(OSError, ArtifactError):  # of what is no path of anything, opening it tells
        place = place_of(path)
        if place.is_file():
            around = (place.parent, place.parent.parent)
            return next((folder for folder in around if (folder / MANIFEST).is_file()), None)
    return None


def is_artifact(path: str | os.PathLike[str]) -> bool:
    """Whether an artifact stands at a path, or should."""
    try:
        place = place_of(path)
        if (place / "data.mdb").exists():
            return False
        return (standing_at(place) / MANIFEST).exists() or place.suffix == SUFFIX
    except (OSError, ArtifactError):  # no path of anything, which opening it as a journal tells
        return False


def not_applicable(option: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        code="load_option_not_applicable",
        problem=f"{option}= was given for {what}",
        remedy="leave it out",
        argument=option,
    )


def load_artifact(path: str | os.PathLike[str], *, lazy: bool, map_location: Any) -> Trace:
    device = device_of(map_location)
    with collector.paused():
        manifest, events, tables, blobs = reading(path, lambda folder: read_files(folder, lazy=lazy))
    try:
        with over_events():
            journal = ArtifactJournal(events, blobs, has_passes=manifest.backward_summary is not None)
    except BaseException:
        blobs.close()
        raise
    made = Trace(journal, STREAM)
    made.projector = StoredProjector(tables, StreamSource(journal, STREAM))
    made.artifact = Artifact(made, blobs.path, manifest, blobs, device)
    return made


def read_files(folder: Folder, *, lazy: bool) -> tuple[Manifest, bytes, Mapping[str, PackedTable], Blobs]:
    """What the files of an artifact hold: the manifest, the events, the tables, and the payloads."""
    manifest = Manifest.read(folder)
    with suppress(PackageNotFoundError):
        manifest.require_torch(version("torch"), folder.path)
    events, records = (read_file(folder, manifest, name) for name in (EVENTS, RECORDS))
    tables = tables_of(folder.path, manifest, records)
    return manifest, events, tables, Blobs(folder, manifest.body_index, manifest.files, lazy=lazy)


class Artifact:
    """What a trace was loaded from.

    Attributes:
        view: The trace.
        path: Where it was.
        manifest: What it says of itself.
        device: The device that tensors are put on; None for the CPU.
    """

    def __init__(self, view: View, path: Path, manifest: Manifest, blobs: Blobs, device: Any) -> None:
        self.view: Final = view
        self.path: Final = path
        self.manifest: Final = manifest
        self.blobs: Final = blobs
        self.device: Final = device

    @property
    def level(self) -> str:
        """The level that it was saved at."""
        return self.manifest.level

    def keeps(self, kind: PayloadKind) -> bool:
        """Whether it holds the payloads of a kind that the capture kept."""
        return kind in kinds_of(self.manifest.options, self.manifest.level)

    def leaves_out(self, kind: type[Event]) -> bool:
        """Whether the capture had events of a kind, each of which told of a payload that it does not hold."""
        return kind.event_name in self.left_out

    @cached_property
    def left_out(self) -> frozenset[str]:
        """Names of the events that it does not hold for that."""
        with over_events():
            runs = StreamSource(self.view.journal, self.view.stream).rows(0)
            return frozenset(row[NAME] for run in runs for row in run if row[0] == LeftOut.type_id)

    def placed(self, tensor: Any) -> Any:
        """A tensor that was read from it, on the device that was asked for."""
        return tensor if self.device is None else tensor.to(self.device)

    def weights(self) -> Weights | None:
        """The parameters and buffers that it holds, by address; None where it was saved without."""
        return Weights(self.view, self.blobs) if self.manifest.options.get("include_weights") is True else None


def device_of(given: Any) -> Any:
    """The device that tensors are put on; None for the CPU.

    Raises:
        ConfigurationError: ``map_location_invalid``.
    """
    if given is None or given == "cpu":
        return None
    try:
        import torch  # for cost: records are read without torch

        device = torch.device(given)
        torch.empty(0, device=device)  # whether it is there
    except ModuleNotFoundError as exc:
        raise no_torch(exc) from exc
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as exc:
        raise ConfigurationError(
            code="map_location_invalid",
            problem=f"tensors cannot be put on map_location={given!r}: " + f"{exc}".partition("\n")[0],
            remedy='pass a device that is here, such as "cpu" or "cuda:0"',
            argument="map_location",
        ) from exc
    return device


def read_file(folder: Folder, manifest: Manifest, name: str) -> bytes:
    """A file of an artifact, held against its digest."""
    told = manifest.file(name)
    if told is None:
        raise integrity_refused(folder.path, f"{name} is not among its files")
    try:
        data = folder.read(name, told.nbytes)
    except FileNotFoundError as exc:
        raise load_failed(folder.path, f"{name} is missing") from exc
    if len(data) != told.nbytes or xxhash.xxh3_128_hexdigest(data) != told.digest:
        raise integrity_refused(folder.path, f"{name} does not match its digest")
    return data


def tables_of(path: Path, manifest: Manifest, data: bytes) -> Mapping[str, PackedTable]:
    """The tables of an artifact, packed: those that there are of a capture, each as the manifest tells it."""
    found: dict[str, PackedTable] = {}
    unpacker = msgpack.Unpacker(None, max_buffer_size=max(1, len(data)), max_bin_len=len(data))
    unpacker.feed(data)
    while unpacker.tell() < len(data):
        try:
            stored = unpacker.unpack()
        except (ValueError, TypeError, msgpack.UnpackException) as exc:
            raise integrity_refused(path, f"its records are no tables ({type(exc).__name__})") from exc
        if not isinstance(stored, bytes):
            raise integrity_refused(path, "its records are no tables")
        table = unpack_table(stored)
        found[table.summary.name] = table
    later = [one.name for one in manifest.tables if one.version > VERSIONS.get(one.name, one.version)]
    if later:
        raise ArtifactError(
            code="artifact_version_above_runtime",
            problem=f"the table of {later[0]} in the artifact {str(path)!r} is of a later version than this one reads",
            remedy="load it with the version of this package that wrote it, or with a later one",
            path=str(path),
        )
    told = {one.name: (one.rows, one.digest) for one in manifest.tables}
    if told != {name: (table.summary.num_rows, table.summary.digest().hex()) for name, table in found.items()}:
        raise integrity_refused(path, "its records are not those that its manifest tells")
    if not COLUMNS.keys() <= found.keys() or found["capture"].summary.num_rows != 1:
        raise integrity_refused(path, "its records are not those of one capture")
    return {name: found[name] for name in COLUMNS}
