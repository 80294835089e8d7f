"""A trace saved as an artifact: its records, the events of its forward, and the payloads that its level keeps.

Reads  the tables of a trace, its events, and payload bytes from its journal or, live, from what lends them.
Gives  a ``.tlspec`` directory: payload files, ``events.msgpack``, ``records.msgpack``, ``manifest.json``.
Rule   What the level leaves out is taken out of the events first, and the records are those of such events: an artifact
       never says of a payload that it is there when it is not.
Rule   Of equal captures the same bytes are written. Nothing here reads a clock.
Not    how files come to their place whole (staging.py), or how they are read (loading.py).
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgpack
from typing_extensions import Unpack

from journal.errors import JournalError
from journal.events import CaptureSettled, Row
from journal.wire import Located
from journal.writing import write_all_at
from projections import CaptureTables, Projector, Source
from projections.columnar.canonical import fingerprint_of
from projections.errors import over_events
from projections.stored.artifact_tables import Overlaid, StoredTables, stored
from projections.stored.encoding import EncodedTable, packed
from projections.stored.stripped import Stripped, named_by
from torchlens import above, collector, threads
from torchlens.errors import ConfigurationError, PayloadUnavailableError, TorchLensWarning
from torchlens.options import require_switch
from torchlens.reading.view import View, require_trace
from torchlens.signatures import takes
from torchlens.tlspec import blobs
from torchlens.tlspec.artifact_journal import EVENTS, RECORDS, packed_events
from torchlens.tlspec.asked import USUAL, SaveAsked
from torchlens.tlspec.levels import Kept, kept_at
from torchlens.tlspec.manifest import STORED_AS, Manifest, StoredFile, StoredPayload, StoredTable
from torchlens.tlspec.naming import Name, names_of
from torchlens.tlspec.staging import Staging, new_file
from torchlens.tlspec.weights import weights_of
from torchlens.version import VERSION

WITHOUT_BYTES: Final = ("payload_without_bytes", "payload_lost", "payload_damaged")
"""Why a payload cannot be saved."""

MOST_NAMED: Final = 6
"""Payloads that a warning names."""


@takes(SaveAsked, USUAL)
def save(obj: Any, path: str | os.PathLike[str], **options: Unpack[SaveAsked]) -> Path:
    """Save a trace as an artifact: ``trace.save(path, **options)``.

    Args:
        obj: A trace.
        path: Where nothing is yet, such as ``"run.tlspec"``.
        options: As for ``Trace.save``.

    Returns:
        Its absolute path.

    Raises:
        ConfigurationError: ``save_type_invalid``, for what is no trace.
        TorchLensError: What ``Trace.save`` raises.
    """
    require_trace(obj, "save_type_invalid", "an artifact")
    return write_artifact(obj, path, **options)


def write_artifact(view: View, path: str | os.PathLike[str], **options: Unpack[SaveAsked]) -> Path:
    """See ``Trace.save``."""
    view.require_open()
    asked: dict[str, Any] = {**USUAL, **options}
    level, overwrite, strict = (asked.pop(name) for name in USUAL)
    kept = kept_at(level, asked)
    require_switch("overwrite", overwrite)
    require_switch("strict", strict)
    if kept.level == "runnable":
        above.running().require_runnable(view)
    with collector.paused(), threads.one_of_torch(), over_events(), Staging(path, overwrite=overwrite) as staging:
        saved = Saved(view, kept)
        written = blobs.write(staging.folder, saved.blobs(strict=strict))
        files = list(written.files)
        # The disk is at the payloads meanwhile: to have the records made first would let it wait.
        for name, data in ((EVENTS, saved.events(written.body_index)), (RECORDS, saved.records())):
            with new_file(staging.folder / name) as file:
                write_all_at(file, data, 0)
            files.append(StoredFile.of(name, data))
        manifest = saved.manifest(files, written.body_index)
        manifest.write(staging.folder)
        staging.publish()
    return staging.target


def fingerprint_at(view: View, level: str) -> str:
    """See ``Trace.fingerprint_at``."""
    view.require_open()
    with collector.paused(), over_events():
        return fingerprint_of([table.summary for table in Saved(view, kept_at(level, {})).encoded])


def end_of_forward(source: Source) -> int:
    """Number of events up to and with that by which the capture settled; all, where it has not."""
    at = 0
    for run in source.rows(0, source.head()):
        for row in run:
            at += 1
            if row[0] == CaptureSettled.type_id:
                return at
    return at


class Saved:
    """What is saved of a trace.

    Args:
        view: The trace.
        kept: What of it is kept.
    """

    def __init__(self, view: View, kept: Kept) -> None:
        self.view: Final = view
        self.kept: Final = kept
        whole = view.tables
        assert view.projector is not None  # its tables are there
        source, head = view.projector.source, whole.head
        self.source: Source = source
        self.tables: CaptureTables = whole
        if self.leaves_out_some(source, head):
            self.source = Stripped(source, kept.left_out)
            projector = Projector(self.source)
            self.tables = Overlaid(whole, projector) if isinstance(whole, StoredTables) else projector.tables(head)
        self.rows: Final[list[Row]] = [row for run in self.source.rows(0, end_of_forward(source)) for row in run]
        self.whole: Final = whole
        named = names_of(self.tables, enumerate(self.rows))
        self.payload_end: Final = 1 + max(named, default=-1)
        without = {"generator"} & kept.left_out  # a state that a call drew from is named all the same
        self.names: Final[Mapping[int, Name]] = {at: name for at, name in named.items() if name.kind not in without}

    def leaves_out_some(self, source: Source, head: int) -> bool:
        """Whether a payload of the capture is left out: else its records are what they are.

        Raises:
            ConfigurationError: ``gradients_inseparable``.
        """
        left_out = self.kept.left_out
        if "gradient" in left_out and not self.tables.has_diary and any(self.tables.grad_fns.column("has_saved_call")):
            raise ConfigurationError(
                code="gradients_inseparable",
                problem="gradients cannot be left out of a trace that was loaded from an artifact: the events that told"
                " of them are not there",
                remedy="save at a level that keeps gradients, or from the capture itself",
            )
        return any(what in left_out for run in source.rows(0, head) for row in run for what, _ in named_by(row))

    # -- payloads

    def blobs(self, *, strict: bool) -> Iterator[blobs.Blob]:
        """Each payload that has bytes, in the order of their numbers.

        Raises:
            PayloadUnavailableError: ``payload_without_bytes``, and what ``weights_of`` raises.
            JournalError: ``payload_lost``, ``payload_damaged``.
        """
        left_out: list[str] = []
        for number, (kind, name, dtype, shape) in sorted(self.names.items()):
            data = self.bytes_of(number, name, strict=strict)
            if data is None:
                left_out.append(name)
            else:
                yield blobs.Blob(number=number, kind=kind, name=name, dtype=dtype, shape=shape, data=data)
        if self.kept.has_weights:
            yield from weights_of(self.view)
        if left_out:
            warnings.warn(not_saved(left_out), stacklevel=2)

    def bytes_of(self, number: int, name: str, *, strict: bool) -> Any | None:
        """The bytes of a payload; None where it has none, unless that is refused."""
        artifact = self.view.artifact
        kind = self.names[number].kind
        try:
            payloads = [of for of, stored in STORED_AS.items() if stored == kind]  # none of what every level has
            if artifact is not None and payloads and not any(map(artifact.keeps, payloads)):
                raise not_at_level(artifact.level, name)
            return payload_of(self.view, number, name)
        except (JournalError, PayloadUnavailableError) as exc:
            if strict or exc.code not in WITHOUT_BYTES:
                raise
            return None

    # -- files

    @cached_property
    def encoded(self) -> list[EncodedTable]:
        """The tables that are stored. What of them nobody has read is made for it."""
        return list(stored(self.tables, self.whole))

    def events(self, body_index: Sequence[StoredPayload]) -> bytes:
        payloads = [one for one in body_index if blobs.counted(one.kind) == "payload"]
        places = [Located(one.number, 0, 0, one.nbytes, bytes.fromhex(one.digest)) for one in payloads]
        return packed_events(self.rows, places, self.payload_end)

    def records(self) -> bytes:
        pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
        return b"".join([pack(packed(table)) for table in self.encoded])

    def manifest(self, files: Sequence[StoredFile], body_index: tuple[StoredPayload, ...]) -> Manifest:
        environment = dict(self.tables.fact("environment"))
        summaries = [table.summary for table in self.encoded]
        return Manifest(
            level=self.kept.level,
            options=self.kept.options,
            versions={
                "package": VERSION,
                "torch": environment.get("torch", ""),
                "python": environment.get("python", platform.python_version()),
            },
            tables=tuple(
                StoredTable(
                    name=one.name,
                    rows=one.num_rows,
                    version=self.tables.table(one.name).version,
                    digest=one.digest().hex(),
                )
                for one in summaries
            ),
            files=tuple(files),
            body_index=body_index,
            fingerprint=fingerprint_of(summaries),
            backward_summary=backward_summary(self.tables),
        )


def payload_of(view: View, number: int, name: str) -> Any:
    """The bytes of a payload, from the journal, or from the process that holds its tensor."""
    try:
        return view.journal.payload(view.stream, number)
    except JournalError as exc:
        if exc.code != "payload_not_stored":
            raise
    lender = view.journal.lender(view.stream)
    data = None if lender is None else lender.lend(number)
    if data is None:
        raise PayloadUnavailableError(
            code="payload_without_bytes",
            problem=f"{name} has no bytes to save: it is sparse, nested, quantised or fake, or repeats few elements in "
            "over 64 MiB, as after expand, or its memory was written or freed since",
            remedy="pass strict=False to save all but such; capture with journal=, which stores what repeats once, and "
            "copies what is written later",
            payload=number,
        )
    return data


def not_at_level(level: str, name: str) -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="payload_unavailable",
        problem=f"{name} is not in the artifact that the trace was loaded from, which was saved at level {level!r}",
        remedy="save at that level, at one that keeps less, or from the capture itself",
        level=level,
    )


def not_saved(names: Sequence[str]) -> TorchLensWarning:
    others = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return TorchLensWarning(
        code="payloads_left_out",
        problem=f"without bytes, and so not in the artifact: {', '.join(names[:MOST_NAMED])}{others}",
        remedy="the records are all there; read these tensors in the process that captured",
        names=tuple(names),
    )


def backward_summary(tables: CaptureTables) -> Mapping[str, Any] | None:
    """What a manifest tells of backward passes; None where there were none."""
    fact, passes = tables.fact, tables.backward_passes
    if not len(passes):
        return None
    return {
        "num_backward_passes": fact("num_backward_passes"),
        "num_failed_backward_passes": fact("num_failed_backward_passes"),
        "triggers": list(passes.column("trigger")),
        "statuses": list(passes.column("status")),
        "num_grad_fns": fact("num_grad_fns"),
        "num_grad_fn_calls": fact("num_grad_fn_calls"),
        "num_saved_gradients": sum(map(bool, tables.gradients.column("is_saved"))),
        "saved_gradient_memory": fact("saved_gradient_memory"),
        "executed_flops": fact("executed_flops"),
        "executed_evidence": fact("executed_evidence"),
    }
