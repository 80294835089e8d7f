"""Hostile journals: whole and well-formed to LMDB, every checksum right, with content that no capture writes.

Gives  ``chunk``, stored bytes of any rows or of no rows at all; ``write``, chunks put into a journal by its own
       writer; ``mutated``, sound captures with something changed; ``read_journal`` and ``read_records``, every way of
       reading one.
Rule   Reading ends, with an answer or with an error of this project: `Outcomes` holds which, and lets pass no other.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import msgpack

from journal import At, LmdbJournal, Row, Seq, StreamId, TorchLensError, open_for_reading
from journal.events import event_class
from journal.sharing import OPEN
from journal.wire import FORMAT, Chunk, Located
from projections.promises import invariants
from projections.selecting.backward_terms import grad_fn, grad_input, in_backward_pass
from projections.selecting.selector import contains, grad
from tests.golden import GOLDEN, payloads, portable
from torchlens.cli import main
from torchlens.codes import CODES
from torchlens.export import to_json, to_networkx
from torchlens.journals.journal_view import open_journal
from torchlens.questions.differing import first_difference
from torchlens.reading.facade import Trace
from torchlens.reading.fields import Record
from torchlens.report import backward_status

Payloads: TypeAlias = "Sequence[bytes | None]"

# Making them -------------------------------------------------------------------------------------------


def sealed(parts: Any) -> bytes:
    """Any message with the checksum of a chunk."""
    data = parts if isinstance(parts, bytes) else bytes(msgpack.packb(parts))
    return data + zlib.crc32(data).to_bytes(4, "little")


def chunk(
    rows: Sequence[Row],
    *,
    seq: int = 0,
    stream: int = 0,
    at: int = 0,
    count: int | None = None,
    types: Sequence[Any] | None = None,
    payloads: Any = (0, ()),
    body: bytes | None = None,
) -> bytes:
    """A stored chunk that says whatever it is told to, with a right checksum."""
    if types is None:
        classes = [event_class(kind) for kind in sorted({row[0] for row in rows})]
        types = [(cls.type_id, cls.event_name, cls.event_version) for cls in classes]
    packed = msgpack.packb(rows) if body is None else body
    return sealed((FORMAT, seq, stream, at, len(rows) if count is None else count, types, payloads, packed))


class Writing:
    """A journal to which chunks are added as they are, through its own writer."""

    def __init__(self, path: Path) -> None:
        self.journal = LmdbJournal(path, sync="none")
        self.shelf = self.journal.environment
        self.shelf.written_by = "9.9"
        self.heads: dict[int, int] = {}

    def add(self, data: bytes, count: int, stream: int = 0, payloads: Sequence[Located] = ()) -> None:
        """Store ``data`` as the next chunk of a stream, which is told to hold ``count`` events."""
        at = self.heads.get(stream, 0)
        self.heads[stream] = at + count
        place = (Seq(self.shelf.next_seq), StreamId(stream), At(at), count, tuple(payloads))
        self.shelf.add(Chunk(*place, data))

    def rows(self, rows: Sequence[Row], stream: int = 0, *, size: int = 256, payloads: Payloads = ()) -> None:
        """Store rows as chunks of ``size``, and payloads, which the first chunk names: None for one without bytes."""
        kept = [(number, data) for number, data in enumerate(payloads) if data is not None]
        places = tuple(Located(number, *self.shelf.payloads.write(data)) for number, data in kept)
        for start in range(0, len(rows), size):
            part, named = rows[start : start + size], places if start == 0 else ()
            place = {"seq": self.shelf.next_seq, "stream": stream, "at": self.heads.get(stream, 0)}
            self.add(chunk(part, **place, payloads=(len(payloads), named)), len(part), stream, named)

    def close(self) -> None:
        self.journal.close()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Writing]:
    made = Writing(path)
    yield made
    made.close()


def write(path: Path, rows: Sequence[Row], payloads: Payloads = ()) -> Path:
    """A journal with one stream of these rows."""
    with writing(path) as made:
        made.rows(rows, payloads=payloads)
    return path


def let_go(path: Path) -> None:
    """Close a journal whose writer was refused, without another try at exit."""
    environment = OPEN.pop(os.path.realpath(path), None)
    if environment is not None:
        environment.shut()
        if environment.lease is not None:
            environment.lease.release()


@contextlib.contextmanager
def edited(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A transaction over the databases of a journal that nobody has open."""
    env = lmdb.open(str(path), map_size=1 << 30, max_dbs=16)
    names = ("meta", "events", "index", "commits")
    databases = {name: env.open_db(name.encode(), create=False) for name in names}
    with env.begin(write=True) as txn:
        yield txn, databases
    env.close()


# Changing sound ones -----------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 255, 2**31, 2**53, 2**62, 2**63, 2**64 - 1, -(2**63)),
    *(0.5, -0.0, float("nan"), float("inf")),
    *("", "x", "\x1b[31mred\x1b[0m", "a\nb", "\u202eback", "\0", "../../etc/passwd", "x" * 5000),
    *(b"", b"ab", (), (1,), ((),), (0, 0, None), (3, 1), (7,), (12, "no number"), (20, 1, (), 2**62)),
)
"""What a plain value may be changed to."""


def sound_streams() -> list[tuple[list[Row], list[bytes | None]]]:
    """Rows and payloads of each capture of the golden journal."""
    journal = portable(GOLDEN)
    return [
        (
            [row for run in journal.rows(info.stream) for row in run],
            list(payloads(journal, info.stream)),
        )
        for info in journal.streams()
        if info.opened.kind == "capture"
    ]


def changed(value: Any, draw: random.Random) -> Any:
    """The value with one part of it, at any depth, exchanged."""
    if isinstance(value, tuple) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        if draw.random() < 0.15:
            return draw.choice(((*value[:place], *value[place + 1 :]), (*value, value[place]), value[::-1]))
        return (*value[:place], changed(value[place], draw), *value[place + 1 :])
    if type(value) is int and draw.random() < 0.4:
        return max(-(2**63), min(2**64 - 1, value + draw.choice((-2, -1, 1, 2, 5, 1 << 20))))
    return draw.choice(ODD)


def mutated(rows: Sequence[Row], draw: random.Random) -> list[Row]:
    """The rows with one to three things changed: a field of an event, its time, its place, its being there."""
    made = list(rows)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.randrange(len(made))
        row = made[at]
        kind = draw.random()
        if kind < 0.7:
            field = draw.randrange(1 if draw.random() < 0.05 else 2, len(row))
            made[at] = (*row[:field], changed(row[field], draw), *row[field + 1 :])
        elif kind < 0.8:
            del made[at]
        elif kind < 0.9:
            made.insert(draw.randrange(len(made) + 1), row)
        else:
            other = draw.randrange(len(made))
            made[at], made[other] = made[other], made[at]
        if not made:
            return list(rows[:1])
    return made


# Reading them ------------------------------------------------------------------------------------------


class Outcomes(dict[str, "str | None"]):
    """What came of each way of reading: the code of a refusal, or None for an answer."""

    def of(self, what: str, read: Callable[[], Any]) -> Any:
        """Read, and note what came of it.

        Raises:
            AssertionError: when anything but a coded error came of it.
        """
        try:
            answer, code = read(), None
        except TorchLensError as exc:
            answer, code = None, exc.code
        except Exception as exc:
            raise AssertionError(f"{what}: {type(exc).__name__}: {exc}") from exc
        assert code is None or code in CODES, f"{what}: the code {code} is not listed"
        self[what] = code
        return answer

    @property
    def codes(self) -> set[str]:
        return {code for code in self.values() if code is not None}


def is_printable(text: str) -> bool:
    """Whether a terminal shows the text as it is, instead of obeying it."""
    return all(char.isprintable() or char == "\n" for char in text)


def read_journal(path: Path) -> Outcomes:
    """Every stream, row, event and payload."""
    found = Outcomes()
    journal = found.of("open", lambda: open_for_reading(path))
    if journal is None:
        return found
    try:
        infos = found.of("streams", journal.streams) or ()
        for stream in dict.fromkeys([*(info.stream for info in infos), *map(StreamId, range(3))]):
            found.of(f"rows {stream}", lambda stream=stream: [row for run in journal.rows(stream) for row in run])
            found.of(f"events {stream}", lambda stream=stream: list(journal.events(stream)))
            for number in (*range(4), 2**62, -1):
                found.of(f"payload {stream} {number}", lambda of=(stream, number): bytes(journal.payload(*of)))
                found.of(f"size {stream} {number}", lambda of=(stream, number): journal.payload_size(*of))
    finally:
        journal.close()
    return found


FACTS = ("summary", "check_metadata_invariants", "_repr_html_", "__repr__", "to_pandas")


def read_records(path: Path, *, fields: bool = True) -> Outcomes:
    """Every table, column and record of every capture, and what the command line prints.

    Args:
        path: Directory of the journal.
        fields: Read every field of every record too.
    """
    found = Outcomes()
    view = found.of("open", lambda: open_journal(path))
    if view is None:
        return found
    with view:
        for trace in found.of("captures", lambda: view.captures) or ():
            read_trace(trace, found, fields)
    read_commands(path, found)
    return found


def read_trace(trace: Trace, found: Outcomes, fields: bool) -> None:
    tables = found.of("tables", lambda: trace.tables)
    if tables is None:
        return
    for name, table in (found.of("all tables", lambda: tables.all) or {}).items():
        for column in table.names:
            found.of(f"{name}.{column}", lambda table=table, column=column: list(table.column(column)))
    found.of("keys", lambda: (tables.keys, tables.aliases, trace.index()))
    found.of("invariants", lambda: invariants.check(tables))
    found.of("fingerprint", lambda: trace.fingerprint)
    for name in FACTS:
        found.of(name, getattr(trace, name))
    read_fields(trace, "trace", found)
    found.of("summary of modules", lambda: trace.summary("module", fold_repeats=True, flop_convention="fma1").to_html())
    found.of("summary of ops", lambda: trace.summary("op", view="compute", buffers="show", units="raw").to_markdown())
    for graph in ("forward", "combined"):
        found.of(f"graph {graph}", lambda graph=graph: (to_json(trace, graph=graph), to_networkx(trace, level="layer")))
    found.of("first_nonfinite", lambda: str(trace.first_nonfinite()))
    found.of("why", lambda: str(trace.why(-1)))
    for call in found.of("firings", lambda: list(trace.autograd.grad_fn_calls)[:8]) or ():
        found.of("why a firing", lambda call=call: str(trace.why(call)))
    found.of("first_difference", lambda: str(first_difference(trace, trace)))
    for key in ("self", "self:1", "relu", "relu:2", "no such label", "x" * 100):
        found.of(f"trace[{key!r}]", lambda key=key: trace[key])
    for name in ("ops", "layers", "modules", "module_calls", "params", "buffers", "conditionals", "orphans"):
        records = found.of(name, lambda name=name: list(getattr(trace, name))) or ()
        found.of(f"{name}.to_pandas", lambda name=name: getattr(trace, name).to_pandas())
        found.of(f"{name}.repr", lambda name=name: repr(getattr(trace, name)))
        for record in records:
            text = found.of(f"{name} {record.row}", lambda record=record: repr(record))
            assert text is None or is_printable(text), text
            if fields:
                read_fields(record, f"{name} {record.row}", found)
    read_backward(trace, found, fields)


BACKWARD = ("backward_passes", "grad_fns", "grad_fn_calls", "dispatched_ops", "explanations")


def read_backward(trace: Trace, found: Outcomes, fields: bool) -> None:
    """What is told of backward passes and gradients."""
    autograd = trace.autograd
    found.of("autograd", lambda: (repr(autograd), autograd.last_backward_pass, dict(autograd.grad_fn_fire_timings)))
    for selector in (grad("relu"), in_backward_pass(1), grad(contains("_")) - in_backward_pass(2)):
        found.of(f"trace[{selector!r}]", lambda selector=selector: trace[selector].labels())
    found.of("trace[...] of firings", lambda: autograd.grad_fn_calls.matching(grad_fn() - grad_input()).labels)
    status = found.of("backward_status", lambda: backward_status(trace))
    text = found.of("backward_status printed", lambda: f"{status}{status!r}")
    assert text is None or all(map(is_printable, text.splitlines())), text
    for account in () if status is None else status.flops_attributions:
        found.of("flops_attribution", lambda account=account: (account.rows, account.flops_by_op(), repr(account)))
        found.of("flops_attribution.to_pandas", lambda account=account: account.to_pandas())
    collections = {name: partial(getattr, autograd, name) for name in BACKWARD}
    for op in found.of("ops", lambda: list(trace.ops)) or ():
        collections[f"gradients of op {op.row}"] = partial(getattr, op.autograd, "grads")
    for param in found.of("params", lambda: list(trace.params)) or ():
        collections[f"gradients of parameter {param.row}"] = partial(getattr, param, "grads")
    for name, ask in collections.items():
        found.of(f"{name}.to_pandas", lambda ask=ask: ask().to_pandas())
        found.of(f"{name}.repr", lambda ask=ask: repr(ask()))
        for record in found.of(name, lambda ask=ask: list(ask())) or ():
            text = found.of(f"{name} {record.row}", lambda record=record: repr(record))
            assert text is None or is_printable(text), text
            if fields:
                read_fields(record, f"{name} {record.row}", found)


def read_fields(record: Record | Trace, what: str, found: Outcomes) -> None:
    for name in dir(type(record)):
        if not name.startswith("_") and not callable(getattr(type(record), name)):
            found.of(f"{what}.{name}", lambda name=name: getattr(record, name))


COMMANDS = (
    *(("info",), ("info", "--json"), ("captures",), ("captures", "--json")),
    *(("events", "--capture", "0"), ("events", "--capture", "0", "--json")),
    *(("ops", "--capture", "0"), ("ops", "--capture", "0", "--json")),
    *(("passes", "--capture", "0"), ("passes", "--capture", "0", "--json")),
)


def read_commands(path: Path, found: Outcomes) -> None:
    """What the command line answers; nothing that a terminal would obey may be in it."""
    for command, *rest in COMMANDS:
        what = " ".join((command, *rest))
        status, said, refused = found.of(what, partial(asked, "journal", command, str(path), *rest))
        assert status in (0, 1), what
        assert status == 0 or refused.startswith("torchlens: "), refused
        assert is_printable(said + refused), f"{what}: {said + refused!r}"


def asked(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command line."""
    said, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(refused):
        status = main(arguments)
    return status, said.getvalue(), refused.getvalue()
