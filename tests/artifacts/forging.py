"""Artifacts that somebody has changed on purpose: every digest is right, and what they say is not what was saved.

Gives  ``rows_of`` and ``forged``, the events of an artifact and the same artifact with others; ``with_tables``, with
       other records; ``bases``, sound artifacts of every level and ending; ``read_artifact``, every way of using one.
Rule   as with journals (``tests.hostile``), using one ends with an answer or with an error of this project.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import torch
import xxhash
from torch import nn

import torchlens as tl
from journal import Row
from journal.errors import TorchLensError
from journal.wire import Located
from projections.columnar.canonical import fingerprint_of
from projections.columnar.decoding import unpack_table
from tests.hostile import Outcomes, changed, mutated, read_trace
from torchlens.reading.source import StreamSource
from torchlens.tlspec import json_text
from torchlens.tlspec.artifact_journal import EVENTS, RECORDS, packed_events
from torchlens.tlspec.blobs import counted
from torchlens.tlspec.manifest import digest_of
from torchlens.tlspec.staging import MANIFEST

# Sound ones ----------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Views, writes in place, a branch, random numbers, a buffer that is written, and a dict that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("b", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(self.a(x))
        y = x.view(-1)[2:5]
        x = x + self.b
        y.mul_(2)
        if x.sum() > 1e9:
            return x
        z = torch.cat([x, x], 1)
        z[0] = z.max().item()
        return {"a": z.split(3, 1), "b": nn.functional.dropout(z, 0.5)}


def fails(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) @ torch.ones(7, 7)


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 6).view(2, 3)


def bases(folder: Path) -> list[Path]:
    """Sound artifacts: one to be run, one with all that can be kept, one of a forward that failed."""
    run = tl.trace(Net(), inputs(), capture=tl.CaptureOptions(replayable=True))
    run.save(folder / "runnable.tlspec", level="runnable", include_weights=True)
    options = tl.CaptureOptions(replayable=True, save_arg_values=True, save_rng_states=True, save_grads=True)
    whole = tl.trace(Net(), inputs(), capture=options)
    whole.backward(whole.output["b"].sum())
    whole.save(folder / "whole.tlspec", level="executable_with_callables")
    try:
        tl.trace(fails, inputs())
    except tl.TraceCaptureError as failed:
        failed.partial_trace.save(folder / "failed.tlspec")
    return [folder / f"{name}.tlspec" for name in ("runnable", "whole", "failed")]


# Changed ones ---------------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[Row]:
    """The events that an artifact holds."""
    loaded = tl.load(path)
    rows = [row for run in StreamSource(loaded.journal, loaded.stream).rows(0) for row in run]
    loaded.cleanup()
    return rows


def forged(base: Path, path: Path, rows: Sequence[Row]) -> Path:
    """The artifact with other events, all its digests made good."""
    manifest = json.loads((base / MANIFEST).read_text())
    kept = [one for one in manifest["body_index"] if counted(one["kind"]) == "payload"]
    places = [Located(one["number"], 0, 0, one["nbytes"], bytes.fromhex(one["digest"])) for one in kept]
    events = packed_events(rows, places, 1 + max((one.number for one in places), default=0))
    return sealed(base, path, manifest, {EVENTS: events})


def with_tables(base: Path, path: Path, change: Callable[[Any], Any]) -> Path:
    """The artifact with other records, all its digests made good.

    Args:
        base: The artifact.
        path: Where the other one is put.
        change: Given the tables as plain data, gives others.
    """
    data = (base / RECORDS).read_bytes()
    unpacker = msgpack.Unpacker(None, max_buffer_size=len(data), use_list=False)
    unpacker.feed(data)
    plain = tuple(msgpack.unpackb(one, use_list=False, strict_map_key=False) for one in unpacker)
    packed = [msgpack.packb(table) for table in change(plain)]
    summaries = [unpack_table(one).summary for one in packed]
    manifest = json.loads((base / MANIFEST).read_text())
    told = [{"name": one.name, "rows": one.num_rows, "digest": one.digest().hex()} for one in summaries]
    versions = {one["name"]: one["version"] for one in manifest["tables"]}
    manifest["tables"] = [{**one, "version": versions.get(str(one["name"]), 1)} for one in told]
    manifest["fingerprint"] = fingerprint_of(summaries)
    return sealed(base, path, manifest, {RECORDS: b"".join(map(msgpack.packb, packed))})


def sealed(base: Path, path: Path, manifest: dict[str, Any], files: Mapping[str, bytes]) -> Path:
    shutil.copytree(base, path)
    for name, data in files.items():
        (path / name).write_bytes(data)
        (told,) = (one for one in manifest["files"] if one["path"] == name)
        told.update(nbytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))
    del manifest["digest"]
    manifest["digest"] = digest_of(manifest)
    (path / MANIFEST).write_bytes(json_text.lined(manifest))
    return path


def changed_tables(tables: Any, draw: random.Random) -> Any:
    """The tables with one cell, of any column, exchanged."""
    at = draw.randrange(len(tables))
    version, name, count, labels, columns = tables[at]
    place = draw.randrange(len(columns)) if columns else 0
    if not columns:
        return tables
    column, is_labelled, cells = columns[place]
    plain = msgpack.unpackb(cells, use_list=False, strict_map_key=False)
    other = msgpack.packb(changed(plain, draw))
    columns = (*columns[:place], (column, is_labelled, other), *columns[place + 1 :])
    return (*tables[:at], (version, name, count, labels, columns), *tables[at + 1 :])


def tampered(base: Path, path: Path, rows: Sequence[Row], draw: random.Random) -> Path | None:
    """The artifact with something in it changed; None where no bytes are of that."""
    try:
        if draw.random() < 0.3:
            return with_tables(base, path, lambda tables: changed_tables(tables, draw))
        return forged(base, path, mutated(rows, draw))
    except (TorchLensError, ValueError, OverflowError, TypeError):  # nothing that is stored says so
        shutil.rmtree(path, ignore_errors=True)
        return None


# Used -----------------------------------------------------------------------------------------------------


def read_artifact(path: Path, *, lazy: bool = False, fields: bool = False) -> Outcomes:
    """Load an artifact, run it, read it, draw it, write it in every form, save it again, and read that."""
    found = Outcomes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = found.of("load", lambda: tl.load(path, lazy=lazy))
        if trace is not None:
            used(trace, path.parent, found, fields=fields)
            trace.cleanup()
    return found


def used(trace: tl.Trace, folder: Path, found: Outcomes, *, fields: bool) -> None:
    again, page, copy = folder / "again.tlspec", folder / "page.html", folder / "copy.journal"
    found.of("readiness", lambda: trace.readiness)
    found.of("weights", lambda: {name: one.sum() for name, one in (trace.weights() or {}).items()})
    found.of("run", lambda: trace.run(inputs=inputs()).report)
    found.of("run told", lambda: (trace.run(inputs=inputs(), draws="recorded").trace or trace).summary())
    found.of("run of nothing", lambda: trace.run().output)
    for at in found.of("count", lambda: range(min(4, len(trace.ops)))) or ():
        found.of(f"make_again {at}", lambda at=at: trace.make_again(at))
        found.of(f"explain {at}", lambda at=at: str(trace.why(at)))
    found.of("why", lambda: [str(trace.why(op)) for op in list(trace.ops)[-2:]])
    found.of("draw", lambda: trace.draw())
    found.of("animate", lambda: trace.animate(list(trace.layers)[-1]))
    found.of("html", lambda: trace.to_html(page, overwrite=True))
    found.of("invariants", trace.check_metadata_invariants)
    found.of("failure", lambda: str(trace.failure))
    found.of("past", lambda: [tl.time_travel(trace).step() for _ in range(2)])
    found.of("as_of", lambda: str(trace.as_of(max(1, trace.num_events // 2))))
    read_trace(trace, found, fields)
    for level in ("portable", "audit", "runnable", "executable_with_callables"):
        saved = found.of(f"save {level}", lambda level=level: trace.save(again, level=level, overwrite=True))
        if saved is not None:
            found.of(f"load again {level}", lambda: tl.load(again).cleanup())
    shutil.rmtree(copy, ignore_errors=True)
    if found.of("copy", lambda: trace.journal.copy_to(copy)) is not None:
        found.of("copied", lambda: tl.load(copy).summary())
