"""Small journals on disk, and ways to look at them and to change them behind their back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from journal import JournalError, open_for_reading, open_for_writing
from journal.events import BranchTaken, StreamOpened
from journal.lmdb_journal import LmdbJournal
from tests.strategies import opened

SEALING = """
import sys
from journal import open_for_writing
from tests.strategies import opened
for _ in range(int(sys.argv[2])):
    one = open_for_writing(sys.argv[1], sync="none")
    one.open_stream(opened())
    one.close()
"""
"""A program that seals the journal at a path so many times, a stream each."""


def branch(number: int) -> BranchTaken:
    return BranchTaken(value=number, result=True, site=0, call=0)


def long_header(label: str) -> StreamOpened:
    """A header that takes a page of its own."""
    return opened(label, environment=(("text", label * 5000),))


def write_small(path: Path) -> None:
    """Opened and closed twice; each time two streams with payloads, numbers without payload, and several commits."""
    for _ in range(2):
        one = open_for_writing(path, durability="close")
        writers = [one.open_stream(long_header("a")), one.open_stream(opened("b"))]
        for number in range(3):
            for writer in writers:
                writer.keep(bytes([number + 1]) * 40)
                writer.reserve()
                for value in range(6):
                    writer.append(branch(value))
                writer.commit()
        one.close()


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(JournalError) as refused:
        act()
    return refused.value.code


def flip(file: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1 << bit
    file.write_bytes(data)


def entries(path: Path, database: bytes) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(path), max_dbs=16, readonly=True) as env:
        found = env.open_db(database, create=False)
        with env.begin() as txn:
            return [(bytes(key), bytes(value)) for key, value in txn.cursor(db=found)]


def put(path: Path, database: bytes, *changes: tuple[bytes, bytes | None]) -> None:
    """Change entries behind the journal's back; None removes one."""
    with lmdb.open(str(path), max_dbs=16, map_size=64 << 20) as env:
        found = env.open_db(database, create=False)
        with env.begin(write=True) as txn:
            for key, value in changes:
                assert txn.delete(key, db=found) if value is None else txn.put(key, value, db=found)


def hashes(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def everything(one: LmdbJournal) -> str:
    """A digest of all that a journal says: its id, streams, events and the bytes of payloads."""
    said = hashlib.sha256(one.environment.id)
    for info in one.streams():
        for stamped in one.events(info.stream):
            said.update(repr(stamped).encode())
        for number in range(one.environment.places(info.stream).end):
            try:
                said.update(one.payload(info.stream, number))
            except JournalError as exc:  # noqa: PERF203 - what a payload is refused with belongs to what is said
                said.update(exc.code.encode())
    return said.hexdigest()


def all_of(path: Path) -> str:
    one = open_for_reading(path)
    try:
        return everything(one)
    finally:
        one.close()
