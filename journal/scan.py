"""The scan behind `verify`: all that can be recomputed is recomputed, by a process that may die of it.

    pages       `lmdb.verify`, which reads and does not map, where nobody writes meanwhile
    meta        format, id, state, version of the last writer
    commits     dense, each with the chain of its chunks and the end of the payloads
    chunks      checksum, place in journal and stream, index entry, every event, payload numbers
    payloads    inside their segments, each byte in one at most, each with its digest
    HEAD        the same end, where the journal is sealed

Rule  What is found is told at once, so that it is known if the process dies of what comes next.
Not   commits and events (scan_events.py), payload bytes (scan_payloads.py), or starting the process (integrity.py).
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Final

import lmdb.verify
import msgpack

from journal.damages import Damages, Message
from journal.environment import Environment
from journal.errors import JournalCorrupt, JournalError
from journal.head import Found, find_head, head_missing, head_torn
from journal.lease import is_held
from journal.lifecycle import WriterState
from journal.lmdb_layout import check_length, meta_pages
from journal.scan_events import Events
from journal.scan_payloads import scan_payloads

MEMORY_LIMIT: Final = 2 << 30
"""What the process may allocate. The map of data.mdb does not count: it is shared and only read."""

REFUSALS: Final = frozenset(["journal_newer", "journal_not_found", "journal_open_failed"])
"""Codes that say nothing of the journal's bytes: the question cannot be answered here."""


def scan(folder: Path, found: Damages) -> None:
    """Look at everything in the journal at ``folder`` and tell what was found."""
    try:
        scan_parts(folder, found)
    except JournalError as exc:
        if exc.code in REFUSALS:
            return found.tell(("refused", exc.code, exc.problem, exc.remedy))
        found.damage(exc.code, exc.problem)
    except OSError as exc:
        remedy = "check the permissions, and that the disk is healthy"
        return found.tell(("refused", "journal_read_failed", f"{str(folder)!r} cannot be read: {exc}", remedy))
    except MemoryError:
        found.damage("scan_broke_off", f"what the journal says of itself takes more than {MEMORY_LIMIT >> 20} MiB")
    except Exception as exc:  # noqa: BLE001 - a damaged journal must not end in a traceback
        found.damage("scan_broke_off", f"the scan met what no journal holds ({type(exc).__name__}: {exc})")
    found.end()


def scan_parts(folder: Path, found: Damages) -> None:
    check_length(folder)
    if not are_pages_sound(folder, found):
        found.note("events and payloads were not looked at: reading damaged pages is not safe")
        return
    head: Found | None = None
    is_head_whole = True
    try:
        head = find_head(folder)  # before the events, which are never behind it
    except JournalCorrupt as exc:
        is_head_whole = False
        found.damage(exc.code, exc.problem, file="HEAD")
    journal = Scanned(folder, sync="none")
    journal.open(writing=False)
    try:
        with journal.reading() as txn:
            events = Events(journal, txn, found)
            events.scan()
            if is_head_whole:
                scan_head(events, head)
        scan_payloads(folder / "segments", events.places, found)
    finally:
        journal.shut()


class Scanned(Environment):
    """A journal as the scan opens it: HEAD is looked at last, since what contradicts it can still be read."""

    def check_head(self, writing: bool = False) -> None:
        return


def are_pages_sound(folder: Path, found: Damages) -> bool:
    """Whether data.mdb may be mapped; True also where that cannot be told, since it is being written."""
    before = metas_of(folder)
    if is_held(folder):
        found.note("the structure of the pages was not looked at: the journal is being written")
        return True
    try:
        problems: list[str] = lmdb.verify.verify(str(folder))  # type: ignore[no-untyped-call] # lmdb has no types there
    except lmdb.verify.VerifyError as exc:
        problems = [str(exc)]
    if problems and (is_held(folder) or metas_of(folder) != before):
        found.note("the structure of the pages was not looked at: the journal was written meanwhile")
        return True
    for problem in problems:
        found.damage("pages_damaged", problem)
    return not problems


def metas_of(folder: Path) -> list[bytes]:
    """What changes in data.mdb with every transaction."""
    with (folder / "data.mdb").open("rb") as file:
        return meta_pages(file.fileno())


def scan_head(events: Events, head: Found | None) -> None:
    """Compare what HEAD said before with the events, in the transaction that read them."""
    journal, found = events.journal, events.found
    is_sealed = events.state is WriterState.SEALED
    why = None if head is None else journal.contradiction(events.txn, head.head, is_sealed)
    if find_head(journal.folder) != head:  # it was sealed meanwhile
        return
    if head is None:
        if is_sealed:
            found.damage("head_missing", head_missing(journal.folder).problem, file="HEAD")
    elif head.is_torn and is_sealed:
        found.damage("head_malformed", head_torn(journal.folder).problem, file="HEAD")
    elif why is not None:
        found.damage("journal_rolled_back", f"the journal is not as it was sealed: {why}", file="HEAD")


# The process --------------------------------------------------------------------------------------


def main(path: str) -> None:
    """Scan the journal at ``path`` and write what is found to standard output, as msgpack."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what a library may print is no part of the answer

        def tell(message: Message) -> None:
            out.write(msgpack.packb(message))
            out.flush()

        scan(Path(path), Damages(tell))
