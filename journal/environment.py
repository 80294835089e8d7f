"""The journal directory as this process has it open: chunks that wait and are committed to LMDB, and one lease.

What stands where is said in lmdb_layout.py, how a process shares an environment in sharing.py.

Rule  Begin, put and commit happen on the thread that holds the lock: LMDB ties a transaction to a thread.
Rule  Nothing but LMDB opens lock.mdb: closing a second descriptor of it would drop the process's locks.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Generator, Hashable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import lmdb

from journal.chunk_list import ChunkList
from journal.directories import found_at
from journal.errors import JournalCorrupt, JournalError
from journal.events.base import StreamId
from journal.flushing import FLUSHER
from journal.head import NAME as HEAD_NAME
from journal.head import Head, contradiction, find_head, head_missing, head_torn, rolled_back, write_head
from journal.lease import Lease, is_held
from journal.lifecycle import WRITER, WriterState, WriterStep
from journal.lmdb_layout import COMMIT, COPYING, FOLDERS, KNOWN_NAMES, ONE, TWO, check_length
from journal.lmdb_opening import Sync, once_there_is_room, open_reader, open_writer
from journal.machine import Machine
from journal.payloads import Segments, write_failed
from journal.shelf import Shelf
from journal.stream_writer import Writer
from journal.wire import FORMAT, Chunk, newer_format, read_envelope

COMMIT_ROWS: Final = 4096
COMMIT_BYTES: Final = 64 << 20
GREATEST_MAP_SIZE: Final = 1 << 46

SWEEP_SECONDS: Final = 2.0
"""So often a user looks for slots of readers that were killed: they are of no use, and keep old pages from reuse."""

SYNCS: Final[tuple[Sync, ...]] = ("none", "events", "all")  # weakest first


class Seat:
    """One user's place in an environment. It is there before the user joins, so that whatever an interrupt cuts short,
    joining or leaving, can be brought to its end by leaving once more.
    """

    def __init__(self, writing: bool) -> None:
        self.writing = writing
        self.environment: Environment | None = None


class Environment(Shelf):
    """The shared state of one journal directory in this process. A new one has opened nothing yet."""

    def __init__(self, folder: Path, sync: Sync) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.segments = Segments(self.folder / "segments")
        super().__init__(self.segments)
        self.seats: set[Seat] = set()
        self.sync: Sync = sync
        self.machine: Machine[WriterState] = Machine(WRITER, WriterState.SEALED)
        self.waiting = ChunkList()  # taken, not yet committed
        self.waiting_rows = 0
        self.waiting_bytes = 0
        self.waiting_streams = 0  # those that have chunks which wait are numbered from 0 to before this
        self.lease: Lease | None = None
        self.env: Any = None
        self.file: tuple[int, int] | None = None  # device and number of the data.mdb that is open
        self.id = b""
        self.sweep_at = 0.0  # on the monotonic clock

    @property
    def users(self) -> int:
        return len(self.seats)

    # opening and closing

    def open(self, writing: bool) -> None:
        if writing:
            self.open_to_write()
        else:
            self.open_to_read()

    def open_to_read(self) -> None:
        with self.failures("open"):
            found_at(self.folder)
            self.require_own_files()
            if file_length(self.folder / "data.mdb") == 0:
                raise self.not_a_journal("its data.mdb is empty, as where its maker was killed")
        self.connect(writing=False)
        self.segments.look(self.file)
        try:
            self.check_head()
        except BaseException:
            self.shut()
            raise

    def open_to_write(self) -> None:
        with self.failures("open"):
            if self.folder.exists() and not self.folder.is_dir():
                raise self.not_a_journal("it is a file")
            names = {name.name for name in self.folder.iterdir()} if self.folder.exists() else set[str]()
            if "data.mdb" not in names:  # one look at all: another process may be making it
                if not names.issubset(KNOWN_NAMES):
                    raise self.not_a_journal("it is a directory with other files in it")
                if HEAD_NAME in names:
                    raise self.not_a_journal("it was one, and its data.mdb is gone")
            if any(map(file_length, self.segments.files())) and file_length(self.folder / "data.mdb") == 0:
                raise self.not_a_journal("it has no events, but segments with payloads")
            self.folder.mkdir(parents=True, exist_ok=True)
            self.require_own_files()
        try:
            with self.failures("open"):
                self.lease = Lease(self.folder)
            self.connect(writing=True)
            with self.reading() as txn:
                last = self.last_commit(txn)
                self.check_last_commit(txn)
            self.remove_broken_head()
            self.check_head(writing=True)
            self.next_seq = last[0]
            self.segments.start(last[1], last[2], self.file)
            self.machine.step(WriterStep.REOPEN)
            FLUSHER.keep(self)
        except BaseException:
            self.give_up()
            self.shut()
            raise

    def require_own_files(self) -> None:
        """Refuse links and devices in the place of files that are written, by LMDB too when it reads.

        A link would let a journal from elsewhere change any file of its reader.
        """
        for name in ("data.mdb", *KNOWN_NAMES):
            path = self.folder / name
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            is_folder = name in FOLDERS
            if not (stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)):
                raise self.not_a_journal(f"its {name} is a link, or no {'directory' if is_folder else 'file'}")

    def write_too(self, sync: Sync) -> None:
        """A user that writes joins: open for writing if nobody wrote, and flush as much as the strictest asks."""
        with self.lock:
            if self.lease is None:
                try:
                    self.disconnect()
                    self.sync = sync
                    self.open_to_write()
                except BaseException:
                    self.disconnect()
                    self.open_to_read()
                    raise
            elif SYNCS.index(sync) > SYNCS.index(self.sync):
                weaker, self.sync = self.sync, sync
                if weaker == "none":
                    try:
                        self.disconnect()
                        self.connect(writing=True)
                    except BaseException:
                        self.disconnect()
                        self.connect(writing=True)
                        raise

    def connect(self, writing: bool) -> None:
        with self.lock, self.failures("open"):
            check_length(self.folder)
            self.env = once_there_is_room(
                lambda: open_writer(self.folder, self.sync) if writing else open_reader(self.folder)
            )
            try:
                self.sweep_readers(at_once=True)
                self.file = file_at(self.folder / "data.mdb")
                self.open_databases(writing)
            except BaseException:
                self.disconnect()
                raise

    def sweep_readers(self, at_once: bool = False) -> None:
        """Free the slots of readers that were killed, from time to time."""
        now = time.monotonic()
        if self.env is not None and (at_once or now >= self.sweep_at):
            self.sweep_at = now + SWEEP_SECONDS
            with suppress(lmdb.Error):  # where it cannot be, as on a read-only disk, there are no slots either
                self.env.reader_check()

    def is_removed(self) -> bool:
        """Whether the files that are open here are no longer what stands at the path."""
        return file_at(self.folder / "data.mdb") != self.file

    def open_databases(self, writing: bool) -> None:
        try:
            if writing:
                with self.env.begin(write=True) as txn:
                    is_new = txn.stat()["entries"] == 0
                    if is_new:
                        meta = self.env.open_db(b"meta", txn=txn, create=True)
                        txn.put(b"format", ONE.pack(FORMAT), db=meta)
                        txn.put(b"id", secrets.token_bytes(16), db=meta)
                        for name in (b"events", b"index", b"commits"):
                            self.env.open_db(name, txn=txn, create=True)
            self.meta_db = self.env.open_db(b"meta", create=False)
            self.read_meta()
            self.events_db = self.env.open_db(b"events", create=False)
            self.index_db = self.env.open_db(b"index", create=False)
            self.commits_db = self.env.open_db(b"commits", create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as exc:
            raise self.not_a_journal("it lacks a database") from exc

    def read_meta(self) -> None:
        with self.env.begin(db=self.meta_db) as txn:
            stored, author = txn.get(b"format"), txn.get(b"written_by")
            self.id = txn.get(b"id", default=b"")
        self.written_by = None if author is None else author.decode("utf-8", "replace")
        if stored is None or len(stored) != 8 or len(self.id) != 16:
            raise self.not_a_journal("it does not say its format")
        if ONE.unpack(stored)[0] > FORMAT:
            raise newer_format(ONE.unpack(stored)[0], self.written_by)

    def disconnect(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None

    def seal(self) -> None:
        """Commit everything, mark the journal as sealed and give the lease back. What is done is not done again.

        Users that read go on with LMDB as it is open: opening the path anew might find another journal there.
        """
        with self.lock:
            if self.machine.state is not WriterState.SEALED:
                for writer in list(self.writers.values()):
                    writer.close()
                self.commit()
                if self.machine.state is WriterState.WRITING and not self.is_removed():
                    with self.failures("write"):
                        if self.sync != "none":
                            self.env.sync(True)
                        with self.reading() as txn:
                            head = Head(self.id, *self.last_commit(txn))
                        write_head(self.folder, head, durable=self.sync != "none")
                    self.commit(sealing=True)
                self.machine.step(WriterStep.SEAL)
            self.stop_writing()

    def give_up(self) -> None:
        """Give the lease back and store nothing of what waits; on the disk the journal stays as it was committed."""
        with self.lock:
            self.forget_waiting()
            if self.machine.state is not WriterState.SEALED:
                self.machine.step(WriterStep.SEAL)
            self.stop_writing()

    def stop_writing(self) -> None:
        FLUSHER.leave(self)
        try:
            self.segments.discard()  # no commit names what is still gathered
            with self.segments.lock:
                self.segments.stop()
        finally:
            if self.lease is not None:
                self.lease.release()
                self.lease = None

    def shut(self) -> None:
        """Close every file. It may be done again, also after an interrupt."""
        with self.lock:
            FLUSHER.leave(self)
            self.disconnect()
            self.segments.close()

    def disown(self) -> None:
        self.is_forked = True
        if self.lease is not None:
            self.lease.disown()

    def flush_waiting(self) -> None:
        """Flush and commit what has waited. What fails is tried again by the next flush, which says what is wrong."""
        with suppress(JournalError), self.lock:
            if self.lease is None:
                return
            self.sweep_readers()
            for writer in list(self.writers.values()):
                if writer.is_closing:
                    writer.close()
            writers = [writer for writer in self.writers.values() if writer.durability == "batch"]
            for writer in writers:
                writer.flush()
            if writers:
                self.commit()

    # refusing

    def check(self) -> None:
        if self.is_forked:
            raise JournalError(
                code="journal_forked",
                problem=f"the journal {str(self.folder)!r} was opened by the process that this one was forked from",
                remedy="let only one of the two use it: fork before opening it, or start the process by spawn",
                path=str(self.folder),
            )
        if self.env is None:
            raise closed(self.folder)

    def check_writable(self) -> None:
        self.check()
        if self.lease is None:
            raise closed(self.folder)

    def not_a_journal(self, why: str) -> JournalError:
        return JournalError(
            code="journal_not_a_journal",
            problem=f"{str(self.folder)!r} is not a journal: {why}",
            remedy="give the directory of a journal, or a path where nothing is yet",
            path=str(self.folder),
        )

    @contextmanager
    def failures(self, doing: Literal["open", "read", "write"]) -> Generator[None]:
        """Wraps what LMDB and the operating system refuse, once, where it enters."""
        try:
            yield
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, lmdb.PageNotFoundError) as exc:
            raise self.not_a_journal(f"its data.mdb cannot be read ({exc})") from exc
        except struct.error as exc:
            raise self.not_a_journal("an entry of its databases is malformed") from exc
        except (lmdb.MapFullError, lmdb.MemoryError) as exc:
            raise JournalError(
                code="journal_full",
                problem=f"the journal {str(self.folder)!r} cannot grow: {exc}",
                remedy="raise the limit on address space, or begin a new journal; nothing pending is lost yet",
                path=str(self.folder),
            ) from exc
        except lmdb.ReadersFullError as exc:
            raise JournalError(
                code="journal_readers_full",
                problem=f"as many processes read the journal {str(self.folder)!r} as can at once",
                remedy="close some of them, or wait; the slots of those that were killed are freed by the others",
                path=str(self.folder),
            ) from exc
        except (lmdb.Error, OSError) as exc:
            if doing == "write":
                raise write_failed(self.folder, exc) from exc
            raise JournalError(
                code="journal_open_failed" if doing == "open" else "journal_read_failed",
                problem=f"the journal {str(self.folder)!r} cannot be {'opened' if doing == 'open' else 'read'}: {exc}",
                remedy="check the permissions, and that the disk is local, healthy and not full",
                path=str(self.folder),
            ) from exc

    # writing

    def add(self, chunk: Chunk) -> None:
        self.machine.step(WriterStep.APPEND)
        self.waiting_streams = max(self.waiting_streams, chunk.stream + 1)
        self.waiting.add(chunk)
        self.waiting_rows += chunk.count
        self.waiting_bytes += len(chunk.data) + sum(place.nbytes for place in chunk.payloads)
        self.next_seq = chunk.end_seq

    def recount(self) -> None:
        self.next_seq = self.end_seq()

    def withdraw(self, stream: StreamId) -> None:
        super().withdraw(stream)
        for chunk in self.waiting.of.pop(stream, ()):
            self.waiting_rows -= chunk.count
            self.waiting_bytes -= len(chunk.data)
        self.waiting_streams = max(self.waiting.of, default=-1) + 1
        self.recount()

    def forget_waiting(self) -> None:
        """Forget chunks that no commit has stored, and what is known of streams, which may be known from them."""
        self.waiting = ChunkList()
        self.waiting_rows = self.waiting_bytes = self.waiting_streams = self.fresh_rows = 0
        for known in (self.writers, self.indexes, self.origins, self.started, self.left, self.fresh):
            known.clear()

    def flushed(self, writer: Writer) -> None:
        if writer.durability == "event" or (writer.durability == "batch" and self.is_due()):
            self.commit()

    def is_due(self) -> bool:
        return self.waiting_rows >= COMMIT_ROWS or self.waiting_bytes >= COMMIT_BYTES

    def begin_copy(self) -> int:
        with self.lock, self.failures("write"), self.env.begin(write=True) as txn:
            txn.put(COPYING + ONE.pack(self.next_seq), b"", db=self.meta_db)
            return self.next_seq

    def end_copy(self, first_seq: int) -> None:
        with self.lock, self.failures("write"), self.env.begin(write=True) as txn:
            txn.delete(COPYING + ONE.pack(first_seq), db=self.meta_db)

    def unfinished_copies(self) -> list[int]:
        with self.reading() as txn:
            keys = [bytes(key) for key in txn.cursor(db=self.meta_db).iternext(keys=True, values=False)]
        return [ONE.unpack(key[len(COPYING) :])[0] for key in keys if key.startswith(COPYING)]

    def commit(self, sealing: bool = False) -> None:
        """One transaction with every chunk that waits. What fails leaves them waiting."""
        self.check_writable()
        with self.lock:
            chunks = self.waiting.in_order()
            if not chunks and not (sealing and self.machine.state is WriterState.WRITING):
                return
            if self.is_removed():
                if not chunks:
                    return
                raise JournalError(
                    code="journal_removed",
                    problem=f"the journal {str(self.folder)!r} was removed or replaced while it was open",
                    remedy="capture again; what was not written yet can be read in this process alone",
                    path=str(self.folder),
                )
            if self.sync == "all":
                self.segments.sync()
            else:
                self.segments.push()
            with self.failures("write"):
                while True:
                    try:
                        with self.env.begin(write=True) as txn:
                            self.put(txn, chunks, WriterState.SEALED if sealing else WriterState.WRITING)
                        break
                    except lmdb.MapFullError:
                        if self.env.info()["map_size"] * 2 > GREATEST_MAP_SIZE:
                            raise
                        self.env.set_mapsize(self.env.info()["map_size"] * 2)
            self.waiting = ChunkList()
            self.waiting_rows = self.waiting_bytes = self.waiting_streams = 0

    def put(self, txn: Any, chunks: list[Chunk], state: WriterState) -> None:
        next_seq, segment, length, chain = self.last_commit(txn)
        chunks = [chunk for chunk in chunks if chunk.first_seq >= next_seq]  # an interrupt may have hidden a commit
        digest = hashlib.sha256(chain + self.id + ONE.pack(next_seq))
        seq = next_seq
        for chunk in chunks:
            is_next = chunk.first_seq == seq and txn.put(ONE.pack(seq), chunk.data, db=self.events_db, append=True)
            key, entry = TWO.pack(chunk.stream, chunk.first_at), TWO.pack(seq, chunk.count)
            if not is_next or not txn.put(key, entry, db=self.index_db, overwrite=False):
                raise JournalError(
                    code="journal_overtaken",
                    problem=f"event {seq} of {str(self.folder)!r} was written by someone else",
                    remedy="let one process at a time write a journal, on a local disk; what waits here is not stored",
                    path=str(self.folder),
                    seq=seq,
                )
            digest.update(chunk.data)
            seq = chunk.end_seq
            for place in chunk.payloads:
                segment, length = max((segment, length), place.end)
        if chunks:
            entry = COMMIT.pack(next_seq, seq - next_seq, segment, length, digest.digest())
            txn.put(ONE.pack(seq - 1), entry, db=self.commits_db, append=True)
        txn.put(b"state", state.value.encode(), db=self.meta_db)
        if chunks and self.written_by is not None:  # a stream that was refused leaves no trace
            txn.put(b"written_by", self.written_by.encode("utf-8", "replace"), db=self.meta_db)

    def last_commit(self, txn: Any) -> tuple[int, int, int, bytes]:
        """Next seq, growing segment and its length, chain."""
        cursor = txn.cursor(db=self.commits_db)
        if not cursor.last():
            return 0, 0, 0, bytes(32)
        entry = cursor.value()
        if len(entry) != COMMIT.size:
            raise self.not_a_journal("its last commit is malformed")
        first, count, segment, length, chain = COMMIT.unpack(entry)
        if max(first, count, segment, length) >= 1 << 62:
            raise self.not_a_journal("its last commit is malformed")
        return first + count, segment, length, chain

    def check_last_commit(self, txn: Any) -> None:
        """Refuse to write after a commit that does not fit its chunks: it says from where on segments are cut off.

        Raises:
            JournalCorrupt: `commit_malformed`, `chunk_checksum`, `chunk_malformed`.
        """
        cursor = txn.cursor(db=self.commits_db)
        if not cursor.last():
            return
        end_seq, *end, found = self.last_commit(txn)
        last_seq = ONE.unpack(cursor.key())[0]
        before = COMMIT.unpack(cursor.value()) if cursor.prev() else (0, 0, 0, 0, bytes(32))
        seq, place, digest = before[0] + before[1], before[2:4], hashlib.sha256(before[4] + self.id)
        digest.update(ONE.pack(seq))
        while seq < end_seq:
            data = txn.get(ONE.pack(seq), db=self.events_db)
            if data is None:
                break
            chunk = read_envelope(bytes(data))
            digest.update(data)
            seq += chunk.count
            place = max([place, *(one.end for one in chunk.payloads)])
        if (seq, last_seq, place, digest.digest()) != (end_seq, end_seq - 1, tuple(end), found):
            raise JournalCorrupt(
                code="commit_malformed",
                problem=f"the last commit of {str(self.folder)!r} does not fit the events before it",
                remedy="read it, which goes on, and write a new journal; or bring it back from a copy",
                path=str(self.folder),
            )

    def remove_broken_head(self) -> None:
        """Remove a HEAD that says nothing, as a crash leaves the first one, of a journal that was not sealed with it.

        The next sealing makes it anew. The lease is held, so nobody else writes it.
        """
        try:
            with self.failures("open"):
                find_head(self.folder)
        except JournalCorrupt:
            with self.reading() as txn:
                is_sealed = txn.get(b"state", db=self.meta_db) == WriterState.SEALED.value.encode()
            if is_sealed:
                raise
            with self.failures("open"):
                (self.folder / HEAD_NAME).unlink()

    def check_head(self, writing: bool = False) -> None:
        """Refuse a journal that lacks what it had when it was sealed: LMDB opens an older state without a word.

        One whose last commit is damaged is read on: each chunk has a checksum of its own.

        Raises:
            JournalCorrupt: `journal_rolled_back`, `head_malformed`, and for writing `head_missing`.
            JournalError: `journal_newer`.
        """
        while True:
            with self.failures("open"):
                found = find_head(self.folder)  # before the events, which are never behind it
            with self.reading() as txn:
                is_sealed = txn.get(b"state", db=self.meta_db) == WriterState.SEALED.value.encode()
                why = None if found is None else self.contradiction(txn, found.head, is_sealed)
                if why is not None and not self.is_last_commit_whole(txn):
                    return
            if found is None:
                if is_sealed and writing:
                    raise head_missing(self.folder)
                return
            is_torn = is_sealed and found.is_torn
            if why is None and not is_torn:
                return
            with self.failures("open"):
                if find_head(self.folder) == found:  # else another process has sealed it since
                    raise head_torn(self.folder) if why is None or is_torn else rolled_back(self.folder, why)

    def is_last_commit_whole(self, txn: Any) -> bool:
        try:
            self.check_last_commit(txn)
        except JournalError:
            return False
        return True

    def contradiction(self, txn: Any, head: Head, is_sealed: bool) -> str | None:
        """What speaks against this being the journal of a HEAD."""
        try:
            last = Head(self.id, *self.last_commit(txn))
        except JournalError as exc:
            return exc.problem
        at_head: Head | None = Head(self.id, 0, 0, 0, bytes(32))
        if head.next_seq > 0:
            entry = txn.get(ONE.pack(head.next_seq - 1), db=self.commits_db)
            at_head = None
            if entry is not None and len(entry) == COMMIT.size:
                first, count, *rest = COMMIT.unpack(entry)
                at_head = Head(self.id, first + count, *rest)
        return contradiction(head, last, at_head, is_sealed)

    # reading

    @contextmanager
    def reading(self) -> Generator[Any]:
        """A short read transaction. Nothing read in it is a view of the map."""
        self.check()
        with self.lock, self.failures("read"), self.begin_reading() as txn:
            yield txn

    def begin_reading(self) -> Any:
        self.sweep_readers()
        try:
            return self.env.begin()
        except lmdb.MapResizedError:  # the writer's process has enlarged the map
            self.env.set_mapsize(0)
        except lmdb.ReadersFullError:
            self.env.reader_check()
        return self.env.begin()

    def news(self) -> Hashable:
        self.check()
        with self.lock, self.failures("read"):
            self.sweep_readers()
            return self.env.info()["last_txnid"], super().news()

    def is_written(self) -> bool:
        self.check()
        with self.lock:
            if self.lease is not None:
                return True
        return not self.is_removed() and is_held(self.folder)

    def find(self, stream: StreamId, at: int) -> bytes | None:
        chunk = self.waiting.find(stream, at)
        if chunk is not None:
            return chunk.data
        with self.reading() as txn:
            cursor = txn.cursor(db=self.index_db)
            entry = self.entry_before(cursor, stream, at + 1)
            if entry is None or not entry[0] <= at < entry[0] + entry[2]:
                return None
            data = txn.get(ONE.pack(entry[1]), db=self.events_db)
            return data if data is None else bytes(data)

    def entry_before(self, cursor: Any, stream: StreamId, at: int) -> tuple[int, int, int] | None:
        """First at, first seq and rows of the last chunk of a stream that begins before ``at``."""
        found = cursor.prev() if cursor.set_range(TWO.pack(stream, at)) else cursor.last()
        if not found:
            return None
        of, first_at = TWO.unpack(cursor.key())
        return (first_at, *TWO.unpack(cursor.value())) if of == stream else None

    def stored_head(self, stream: StreamId) -> int:
        waiting = self.waiting.head(stream)
        if waiting or not 0 <= stream < 1 << 63:
            return waiting
        with self.reading() as txn:
            entry = self.entry_before(txn.cursor(db=self.index_db), stream, (1 << 64) - 1)
        return 0 if entry is None else entry[0] + entry[2]

    def stored_start(self, stream: StreamId) -> int | None:
        if not 0 <= stream < 1 << 63:
            return None
        with self.reading() as txn:
            cursor = txn.cursor(db=self.index_db)
            if cursor.set_range(TWO.pack(stream, 0)):
                of, first_at = TWO.unpack(cursor.key())
                if of == stream:
                    return int(first_at)
        return self.waiting.start(stream)

    def find_seq(self, seq: int) -> bytes | None:
        chunk = self.waiting.find_seq(seq)
        if chunk is not None:
            return chunk.data
        key = ONE.pack(seq)
        with self.reading() as txn:
            cursor = txn.cursor(db=self.events_db)
            found = cursor.set_range(key)
            if not found or cursor.key() != key:
                found = cursor.prev() if found else cursor.last()
            return bytes(cursor.value()) if found else None

    def end_seq(self) -> int:
        with self.reading() as txn:
            committed = self.last_commit(txn)[0]
        return max(committed, self.waiting.end_seq())

    def stream_count(self) -> int:
        with self.reading() as txn:
            cursor = txn.cursor(db=self.index_db)
            committed = int(TWO.unpack(cursor.key())[0]) + 1 if cursor.last() else 0
        return max(self.waiting_streams, committed)


def file_at(path: Path) -> tuple[int, int] | None:
    """What tells one file from another at the same path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def file_length(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def closed(folder: Path) -> JournalError:
    return JournalError(
        code="journal_closed",
        problem=f"the journal {str(folder)!r} was closed",
        remedy="open it again",
        path=str(folder),
    )
