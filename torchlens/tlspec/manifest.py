"""The manifest of an artifact: what it is, who may read it, and what each of its files must be.

Rule  Reading trusts nothing that stands here: its size, nesting and counts are bounded, every field has one form, and
      its digest covers all of it. Whether it was forged as a whole, digest and all, nothing here can tell.
Rule  An artifact of a later format says from which reader on it may be read. Fields that this version does not know are
      passed over in such a one, and refused in one of this version's format.
Not   what the files hold: blobs.py reads payloads, projections the records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import xxhash

from journal.writing import write_all_at
from projections.stored.stripped import PayloadKind
from torchlens.errors import ArtifactCorrupt, ArtifactError
from torchlens.tlspec import json_text
from torchlens.tlspec.errors import integrity_refused, save_failed
from torchlens.tlspec.folder import Folder, is_plain, manifest_missing
from torchlens.tlspec.json_text import NotPlain
from torchlens.tlspec.levels import LEVELS
from torchlens.tlspec.staging import MANIFEST, new_file

FORMAT: Final = "tlspec"
FORMAT_VERSION: Final = 1
FLOOR: Final = 1
"""The oldest format that this version reads."""

Kind: TypeAlias = Literal["trace"]
KINDS: Final = frozenset(get_args(Kind))

StoredKind: TypeAlias = Literal[
    "activation",
    "argument",
    "buffer",
    "constant",
    "generator",
    "gradient",
    "node_gradient",
    "parameter",
    "source",
    "transformed",
]
STORED_KINDS: Final = frozenset(get_args(StoredKind))
"""What a stored tensor is. Parameters, buffers and what nodes of autograd were called with are not payloads of which a
level leaves some out."""

STORED_AS: Final[Mapping[PayloadKind, StoredKind]] = {
    "activation": "activation",
    "transformed": "transformed",
    "gradient": "gradient",
    "argument": "argument",
    "generator": "generator",
    "source": "source",
    "constant": "constant",
    "run_constant": "constant",  # why it is kept is for the level to say
}
"""By kind of a payload in the events, the kind that it is stored as."""

DIGEST: Final = re.compile(r"[0-9a-f]{32}")

LONGEST: Final = 4096
"""Characters of a name or a word."""

MOST_AXES: Final = 64


@attrs.frozen(kw_only=True)
class StoredTable:
    """A table among the records."""

    name: str
    rows: int
    version: int
    digest: str


@attrs.frozen(kw_only=True)
class StoredFile:
    """A file of the artifact.

    The digest is XXH3-128, in hexadecimal: over its bytes; over those before the tensors, in a file of payloads, each
    of which has its own.
    """

    path: str
    nbytes: int
    digest: str

    @classmethod
    def of(cls, path: str, data: Any) -> StoredFile:
        """A file that holds these bytes."""
        return cls(path=path, nbytes=memoryview(data).nbytes, digest=xxhash.xxh3_128_hexdigest(data))


@attrs.frozen(kw_only=True)
class StoredPayload:
    """A payload, and where its bytes are.

    Attributes:
        number: Of the payload, parameter or buffer, as the events have it.
        kind: What it is; it also says among which numbers it is counted.
        file: Path of the safetensors file.
        tensor: Its name there.
        dtype: Its dtype there, a word of safetensors such as "F32"; "U8" also for what safetensors has no word for.
        shape: Its shape there.
        nbytes: How many bytes it has.
        digest: XXH3-128 over them, in hexadecimal.
        address: Of a parameter or buffer.
    """

    number: int
    kind: StoredKind
    file: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str
    address: str | None = None


@attrs.frozen(kw_only=True)
class Manifest:
    """What an artifact says of itself.

    Attributes:
        kind: What was saved.
        level: How much of it was kept.
        options: The options of the save, by name.
        versions: Of "package", "torch" and "python".
        tables: The records, table by table.
        files: Every file but the manifest.
        body_index: Every payload.
        fingerprint: Of the records that were saved.
        backward_summary: What is told of backward passes; None where there were none.
        format_version: Of the form in which all this is stored.
        min_reader_version: A version of this package that writes an older form does not read it.
    """

    kind: Kind = "trace"
    level: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    versions: Mapping[str, str]
    tables: tuple[StoredTable, ...] = ()
    files: tuple[StoredFile, ...] = ()
    body_index: tuple[StoredPayload, ...] = ()
    fingerprint: str | None = None
    backward_summary: Mapping[str, Any] | None = None
    format_version: int = FORMAT_VERSION
    min_reader_version: int = FORMAT_VERSION

    def file(self, path: str) -> StoredFile | None:
        """What is said of a file; None where it is not part of the artifact."""
        return next((file for file in self.files if file.path == path), None)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``manifest.json``, after every other file.

        Args:
            folder: The artifact's folder while it is staged.

        Raises:
            ArtifactError: `bundle_save_failed`, when it would be more than is read again.
            OSError: what the disk refuses.
        """
        body = {"format": FORMAT, **{name: told(getattr(self, name)) for name in FIELDS}}
        try:
            data = json_text.lined({**body, "digest": digest_of(body)})
            require_form(json_text.read(data))
        except (NotPlain, Malformed) as exc:
            raise save_failed(
                folder, f"its manifest could not be read again: {exc}", "save less of it, with level= or include_*="
            ) from exc
        with new_file(Path(folder) / MANIFEST) as file:
            write_all_at(file, data, 0)

    @classmethod
    def read(cls, folder: Folder) -> Manifest:
        """What the manifest in a folder says, checked.

        Raises:
            ArtifactError: `manifest_missing`, `manifest_unreadable`, `artifact_version_below_floor`,
                `artifact_version_above_runtime`, `load_path_symlink_rejected`, `bundle_load_failed`.
            ArtifactCorrupt: `manifest_not_json_object`, `manifest_schema_invalid`,
                `bundle_metadata_integrity_refused`.
        """
        try:
            data = folder.read(MANIFEST, json_text.MOST_BYTES)
        except FileNotFoundError as exc:
            raise manifest_missing(folder.path) from exc
        try:
            found = json_text.read(data)
        except NotPlain as exc:
            raise unreadable(folder.path, str(exc)) from exc
        if not isinstance(found, dict):
            raise ArtifactCorrupt(
                code="manifest_not_json_object",
                problem=f"the manifest of {str(folder.path)!r} is no JSON object",
                remedy="copy the artifact anew from where it was saved, or save it again",
                path=str(folder.path),
            )
        return cls.of(found, folder.path)

    @classmethod
    def of(cls, found: dict[str, Any], path: Path) -> Manifest:
        if found.get("format") != FORMAT:
            raise schema_invalid(path, f'its format is not "{FORMAT}"')
        version: Any = found.get("format_version")
        reader: Any = found.get("min_reader_version")
        if not (is_count(version) and is_count(reader)):
            raise schema_invalid(path, "format_version and min_reader_version are whole numbers")
        require_version(found, path)
        digest = found.pop("digest", None)
        if not is_digest(digest) or digest != digest_of(found):
            raise integrity_refused(path, "its manifest does not match its own digest")
        if version > FORMAT_VERSION:
            found = {name: value for name, value in found.items() if name in SCHEMA}
        try:
            require_form({**found, "digest": digest})
        except Malformed as exc:
            raise schema_invalid(path, str(exc)) from exc
        return cls(**{name: made_of(name, found[name]) for name in FIELDS})

    def require_torch(self, version: str, path: str | os.PathLike[str]) -> None:
        """Refuse what a later major version of torch wrote.

        Args:
            version: Of torch here.
            path: Of the artifact, to be told.

        Raises:
            ArtifactError: `bundle_torch_incompatible`.
        """
        written = self.versions.get("torch", "")
        if major(written) > major(version):
            raise ArtifactError(
                code="bundle_torch_incompatible",
                problem=f"the artifact {str(path)!r} was saved under torch {written}, and this is torch {version}",
                remedy=f"load it under torch {major(written)}, whose dtypes and operations this one may not have",
                path=str(path),
                saved_under=written,
                found=version,
            )


def major(version: str) -> int:
    match = re.match(r"\d{1,9}", version)
    return int(match[0]) if match else 0


# The form ----------------------------------------------------------------------------------------------


class Malformed(ValueError):
    """A value has not the form that a manifest has at this place."""


Check: TypeAlias = "Callable[[Any], bool]"


def is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def is_word(value: Any) -> bool:
    """Text that may be shown to people as it is."""
    return is_text(value) and len(value) <= 200 and value.isprintable()


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def is_path(value: Any) -> bool:
    return isinstance(value, str) and is_plain(value) and value.casefold() != MANIFEST


def is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_AXES and all(map(is_count, value))


def is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_word(key) and is_word(text) for key, text in value.items())


def is_map(value: Any) -> bool:
    return isinstance(value, dict)


def is_none_or(check: Check) -> Check:
    return lambda value: value is None or check(value)


def is_one_of(words: frozenset[str]) -> Check:
    return lambda value: isinstance(value, str) and value in words


def is_list_of(fields: Mapping[str, Check], what: str) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, list):
            return False
        for place, one in enumerate(value):
            form(one, f"{what} {place}", fields)
        return True

    return check


TABLE: Final[Mapping[str, Check]] = {"name": is_word, "rows": is_count, "version": is_count, "digest": is_word}

FILE: Final[Mapping[str, Check]] = {"path": is_path, "nbytes": is_count, "digest": is_digest}

PAYLOAD: Final[Mapping[str, Check]] = {
    "number": is_count,
    "kind": is_one_of(STORED_KINDS),
    "file": is_path,
    "tensor": is_text,
    "dtype": is_word,
    "shape": is_shape,
    "nbytes": is_count,
    "digest": is_digest,
    "address": is_none_or(is_text),
}

SCHEMA: Final[Mapping[str, Check]] = {
    "format": is_text,
    "format_version": is_count,
    "min_reader_version": is_count,
    "kind": is_one_of(KINDS),
    "level": is_one_of(frozenset(LEVELS)),
    "options": is_map,
    "versions": is_texts,
    "tables": is_list_of(TABLE, "table"),
    "files": is_list_of(FILE, "file"),
    "body_index": is_list_of(PAYLOAD, "payload"),
    "fingerprint": is_none_or(is_word),
    "backward_summary": is_none_or(is_map),
    "digest": is_digest,
}
"""Every field of a stored manifest."""

FIELDS: Final = tuple(name for name in SCHEMA if name not in ("format", "digest"))
"""Those that a `Manifest` has as attributes."""

PARTS: Final[Mapping[str, Any]] = {"tables": StoredTable, "files": StoredFile, "body_index": StoredPayload}


def form(value: Any, what: str, fields: Mapping[str, Check]) -> None:
    """Hold a value against the fields that it must have.

    Raises:
        Malformed: with the first thing that is wrong.
    """
    if not isinstance(value, dict):
        raise Malformed(f"{what} is no map")
    if value.keys() != fields.keys():
        missing = sorted(fields.keys() - value.keys())
        raise Malformed(f"{what} lacks {missing[0]}" if missing else f"{what} has a field that this version has not")
    for name, check in fields.items():
        if not check(value[name]):
            raise Malformed(f"{name} of {what} is not what it must be")


def require_form(found: Any) -> None:
    """Hold a stored manifest against its schema.

    Raises:
        Malformed: with the first thing that is wrong.
    """
    form(found, "the manifest", SCHEMA)
    for names, what in (
        ([file["path"].casefold() for file in found["files"]], "files have one path"),
        ([table["name"] for table in found["tables"]], "tables have one name"),
    ):
        if len(set(names)) != len(names):
            raise Malformed(f"two {what}")


def told(value: Any) -> Any:
    """A field as it is stored."""
    if isinstance(value, tuple):
        return [attrs.asdict(one, recurse=False) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def made_of(name: str, value: Any) -> Any:
    """A field as it was before it was stored."""
    part = PARTS.get(name)
    if part is None:
        return value
    return tuple([part(**{key: tuple(one) if key == "shape" else one for key, one in each.items()}) for each in value])


def digest_of(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json_text.canonical(body))


def require_version(found: Mapping[str, Any], path: Path) -> None:
    version, reader = found["format_version"], found["min_reader_version"]
    written = found.get("versions")
    by = written.get("package") if isinstance(written, dict) else None
    whose = f" (version {by})" if is_word(by) and by else ""
    if version < FLOOR:
        raise ArtifactError(
            code="artifact_version_below_floor",
            problem=f"the artifact {str(path)!r} has format {version}, and {FLOOR} is the oldest that is read here",
            remedy=f"load it with the version of this package that wrote it{whose}, and save it again with a later one",
            path=str(path),
            version=version,
        )
    if reader > FORMAT_VERSION:
        raise ArtifactError(
            code="artifact_version_above_runtime",
            problem=f"the artifact {str(path)!r} needs a reader of format {reader}, and this one has {FORMAT_VERSION}",
            remedy=f"load it with the version of this package that wrote it{whose}, or with a later one",
            path=str(path),
            version=version,
        )


def unreadable(path: Path, why: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(
        code="manifest_unreadable",
        problem=f"the manifest of {str(path)!r} cannot be read: {why}",
        remedy="copy the artifact anew from where it was saved, or save it again",
        path=str(path),
    )


def schema_invalid(path: Path, why: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(
        code="manifest_schema_invalid",
        problem=f"the manifest of {str(path)!r} is none of this format: {why}",
        remedy="copy the artifact anew from where it was saved, or save it again",
        path=str(path),
    )
