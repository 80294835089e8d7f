"""Carving: the longest prefix of a journal that its own bytes speak for, found page by page in data.mdb.

    chunks     msgpack and a CRC-32; each knows its first seq
    commits    a key of 8 bytes and a value of 64 in a leaf page; proven by the chain alone
    ids        16 bytes under the key `id`

Pages that have their own number tell the size of all; no page is reached through another, so it does not matter
which are gone, the root or all above the leaves. LMDB copies a page before it changes it, so a piece may be
found in several copies, an old commit beside the one that took its place: the chain, followed from
seq 0, says which belong together. Where copies of a piece differ, each is tried.

A file that was cut often has the events of a time and not their commits, which LMDB moves to the newest pages
while there are few. So where the chain ends, chunks alone are followed, while each has its checksum, goes on
where journal and stream had come to, is the only one that does, and lies before the end of some commit.

Rule  Read, never mapped. What is kept of a piece is its place in the file.
Rule  At most `READ_FACTOR` times the file's size is read, whatever pages claim: no piece of a journal shares its
      bytes with another, so more is needed only by a file that was made up.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import msgpack
import xxhash

from journal.errors import JournalCorrupt, JournalError
from journal.head import Head, read_head
from journal.lmdb_layout import COMMIT, IS_ELSEWHERE, IS_LEAF, IS_OVERFLOW, NODE_HEADER, ONE, PAGE_HEADER
from journal.wire import FORMAT, MAX_CHUNK_BYTES, read_envelope

PAGE_SIZES: Final = (4096, 8192, 16384, 32768, 2048, 1024, 512)


CHUNK_BEGIN: Final = bytes([0x98, FORMAT])
"""An array of eight, then the format."""

BLOCK_BYTES: Final = 4 << 20
HEAD_BYTES: Final = 4 << 10
READ_FACTOR: Final = 16
LEAST_READ: Final = 512  # what a read counts for at least
MAX_IDS: Final = 8
MAX_BRIDGES: Final = 4


class Carved(NamedTuple):
    """A chunk as it stands in the file."""

    offset: int
    length: int
    end: int  # seq after its last event
    stream: int
    first_at: int
    end_at: int


class Commit(NamedTuple):
    """What an entry of the commits says."""

    end: int
    chain: bytes


@attrs.define(slots=True)
class Proven:
    """A prefix that was proven."""

    id: bytes = b""
    next_seq: int = 0
    chained: int = 0  # events up to the last commit that the chain proves
    commits: int = 0
    pieces: list[Carved] = attrs.Factory(list[Carved])


class GaveUp(Exception):
    """More would have to be read than a journal of this size can need."""


class DataFile:
    """A data.mdb that is read within limits."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.size = os.fstat(self.file).st_size
        self.allow()

    def allow(self) -> None:
        """Begin to count anew what is read."""
        self.left = READ_FACTOR * self.size + (1 << 20)

    def read(self, offset: int, length: int) -> bytes:
        """What is there, which may be less; nothing where the disk refuses.

        Raises:
            GaveUp: when too much was read.
        """
        self.left -= max(min(length, self.size - offset), LEAST_READ)
        if self.left < 0:
            raise GaveUp
        with suppress(OSError):
            return os.pread(self.file, length, offset)
        return b""

    def chunk(self, piece: Carved) -> bytes:
        return self.read(piece.offset, piece.length)

    def close(self) -> None:
        os.close(self.file)


# Finding ------------------------------------------------------------------------------------------


class Carving:
    """The pieces of one data.mdb."""

    def __init__(self, data: DataFile) -> None:
        self.data = data
        self.chunks: dict[int, list[Carved]] = {}
        self.commits: dict[int, list[Commit]] = {}
        self.ids: Counter[bytes] = Counter()
        self.known: set[bytes] = set()  # chunks and commits that were found before
        self.elsewhere: dict[int, int] = {}  # where leaf pages say that values are, and their lengths
        self.tried: set[int] = set()
        self.end = 0  # seq after the last event of any commit that was found
        self.page_size = page_size_of(data)
        with suppress(GaveUp):
            self.carve()

    def carve(self) -> None:
        size = self.page_size
        skipped = 0  # pages before this belong to a chunk that was found
        for block in range(0, self.data.size, BLOCK_BYTES):
            data = self.data.read(block, BLOCK_BYTES)
            for at in range(0, len(data) - PAGE_HEADER.size, size):
                _, _, flags, lower, upper = PAGE_HEADER.unpack_from(data, at)  # its number may be that of another place
                if block + at < skipped:
                    continue
                if flags == IS_OVERFLOW:
                    begin = block + at + PAGE_HEADER.size
                    length = self.take_overflow(begin, (lower | upper << 16) * size - PAGE_HEADER.size)
                    skipped = max(skipped, begin + length)
                elif flags == IS_LEAF:
                    self.take_leaf(data[at : at + size], block + at, lower, upper)
        for offset, length in self.elsewhere.items():
            if offset not in self.tried:
                self.take_chunk(offset, self.data.read(offset, length))

    def take_overflow(self, begin: int, room: int) -> int:
        """Take the chunk that begins here, if one does; its length, or 0."""
        self.tried.add(begin)
        room = min(room, self.data.size - begin, MAX_CHUNK_BYTES + 4)
        head = self.data.read(begin, min(room, HEAD_BYTES))
        if head[:2] != CHUNK_BEGIN:
            return 0
        length = chunk_length(head)
        while length is None and len(head) < room:
            more = self.data.read(begin + len(head), min(room - len(head), 3 * len(head)))
            if not more:
                break
            head += more
            length = chunk_length(head)
        if length is None or length > room:
            return 0
        return length if self.take_chunk(begin, self.data.read(begin, length)) else 0

    def take_leaf(self, page: bytes, offset: int, lower: int, upper: int) -> None:
        if not PAGE_HEADER.size <= lower <= upper <= len(page):
            return
        room = 2 * len(page)  # nodes share no bytes; a damaged one may seem to
        for pointer in range(PAGE_HEADER.size, lower - 1, 2):
            node = int.from_bytes(page[pointer : pointer + 2], "little")
            if not upper <= node <= len(page) - NODE_HEADER.size:
                continue
            low, high, flags, key_length = NODE_HEADER.unpack_from(page, node)
            length = low | high << 16
            key_at = node + NODE_HEADER.size
            value_at = key_at + key_length
            if flags == 0 and value_at + length <= len(page):
                room -= value_at + length - node
                if room < 0:
                    return
                self.take_value(page[key_at:value_at], page[value_at : value_at + length], offset + value_at)
            elif flags == IS_ELSEWHERE and key_length == ONE.size and length <= MAX_CHUNK_BYTES + 4:
                place = int.from_bytes(page[value_at : value_at + 8], "little") * self.page_size + PAGE_HEADER.size
                if place + length <= self.data.size:
                    self.elsewhere[place] = length

    def take_value(self, key: bytes, value: bytes, offset: int) -> None:
        if key == b"id" and len(value) == 16:
            self.ids[value] += 1
        elif len(key) == ONE.size and value[:2] == CHUNK_BEGIN:
            self.take_chunk(offset, value)
        elif len(key) == ONE.size and len(value) == COMMIT.size:
            first, count, _, _, chain = COMMIT.unpack(value)
            if ONE.unpack(key)[0] == first + count - 1 and first + count < 1 << 62 and self.is_new(key + value):
                self.commits.setdefault(first, []).append(Commit(first + count, chain))
                self.end = max(self.end, first + count)

    def take_chunk(self, offset: int, data: bytes) -> bool:
        """Take a chunk whose checksum is right; whether it was one."""
        try:
            envelope = read_envelope(data)
        except JournalError:
            return False
        if self.is_new(data):
            end = envelope.first_seq + envelope.count
            piece = Carved(offset, len(data), end, envelope.stream, envelope.first_at, envelope.end_at)
            self.chunks.setdefault(envelope.first_seq, []).append(piece)
        return True

    def is_new(self, data: bytes) -> bool:
        digest = xxhash.xxh3_128_digest(data)
        if digest in self.known:
            return False
        self.known.add(digest)
        return True


def page_size_of(data: DataFile) -> int:
    """The size of pages by which the most of them have their own number: a meta page that says it may be gone."""
    return max(PAGE_SIZES, key=lambda size: sum(1 for _ in numbered(data, size)))


def numbered(data: DataFile, size: int) -> Iterator[int]:
    """Those that have their own number, of some thousand pages in runs of 64 all over the file."""
    pages = data.size // size
    for begin in range(0, pages, 64 * max(1, pages // 4096)):
        for page in range(max(1, begin), min(begin + 64, pages)):
            with suppress(OSError):
                if os.pread(data.file, 8, page * size) == page.to_bytes(8, "little"):
                    yield page


def chunk_length(head: bytes) -> int | None:
    """The length of the chunk that begins like this; None where more is needed to tell, or it is no chunk."""
    walk = msgpack.Unpacker(None, max_buffer_size=len(head))
    walk.feed(head)
    try:
        if walk.read_array_header() != 8:
            return None
        for _ in range(7):
            walk.skip()
        at = walk.tell()
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return None
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4}.get(head[at] if at < len(head) else 0)
    if width is None or at + 1 + width > len(head):
        return None
    return at + 1 + width + int.from_bytes(head[at + 1 : at + 1 + width], "big") + 4


# Proving ------------------------------------------------------------------------------------------


class State(NamedTuple):
    """A point that the chain has reached."""

    end: int
    chain: bytes
    before: int  # number of the state that it was reached from; -1 at the beginning
    pieces: tuple[Carved, ...]
    is_proven: bool


Link: TypeAlias = "tuple[Link, Carved] | None"
"""Pieces from the last to the first."""


class Proof:
    """Follows the chain of commits with one journal id."""

    def __init__(self, carving: Carving, journal_id: bytes, head: Head | None) -> None:
        self.carving = carving
        self.id = journal_id
        self.head = head
        self.firsts = sorted(carving.commits)
        self.states = [State(0, bytes(32), -1, (), True)]
        self.reached = {(0, bytes(32)): 0}
        self.waiting = [(0, 0)]
        with suppress(GaveUp):
            while self.waiting:
                self.go_on(heappop(self.waiting)[1])

    def go_on(self, number: int) -> None:
        """Follow every commit that fits behind a state."""
        state = self.states[number]
        is_followed = False
        for commit in self.carving.commits.get(state.end, ()):
            for chain, link in self.runs(state, commit.end):
                if chain == commit.chain:
                    self.reach(number, commit.end, chain, link, True)
                    is_followed = True
                    break
        if is_followed:
            return
        if self.head is not None and self.head.next_seq > state.end:
            for chain, link in self.runs(state, self.head.next_seq):
                if chain == self.head.chain:
                    return self.reach(number, self.head.next_seq, chain, link, True)
        if state.is_proven:
            self.bridge(number, state)

    def bridge(self, number: int, state: State) -> None:
        """Pass over one commit that is lost: the next one says where it ended, and proves it with its own chain."""
        place = bisect_right(self.firsts, state.end)
        for first in self.firsts[place : place + MAX_BRIDGES]:
            for chain, link in self.runs(state, first):
                self.reach(number, first, chain, link, False)

    def runs(self, state: State, end: int) -> Iterator[tuple[bytes, Link]]:
        """Every way to get from a state to ``end`` by chunks, with the chain that it gives."""
        digest: Any = hashlib.sha256(state.chain + self.id + ONE.pack(state.end))
        stack: list[tuple[int, Any, Link]] = [(state.end, digest, None)]
        while stack:
            seq, digest, link = stack.pop()
            if seq == end:
                yield digest.digest(), link
                continue
            for piece in reversed(self.carving.chunks.get(seq, ())):
                if piece.end <= end:
                    longer = digest.copy()
                    longer.update(self.carving.data.chunk(piece))
                    stack.append((piece.end, longer, (link, piece)))

    def reach(self, before: int, end: int, chain: bytes, link: Link, is_proven: bool) -> None:
        for number in (before, self.reached.get((end, chain), before)):
            if is_proven and not self.states[number].is_proven:
                self.states[number] = self.states[number]._replace(is_proven=True)
        if (end, chain) in self.reached:
            return
        self.reached[end, chain] = len(self.states)
        pieces: list[Carved] = []
        while link is not None:
            link, piece = link
            pieces.append(piece)
        self.states.append(State(end, chain, before, tuple(reversed(pieces)), is_proven))
        heappush(self.waiting, (end, len(self.states) - 1))

    def longest(self) -> Proven:
        """The longest proven way; one that comes by HEAD goes before all others."""
        by_head: set[int] = set()
        for number, state in enumerate(self.states):
            is_head = self.head is not None and (state.end, state.chain) == (self.head.next_seq, self.head.chain)
            if is_head or state.before in by_head:
                by_head.add(number)
        best = max(
            (number for number, state in enumerate(self.states) if state.is_proven),
            key=lambda number: (number in by_head, self.states[number].end),
        )
        proven = Proven(self.id, self.states[best].end, self.states[best].end)
        while best > 0:
            state = self.states[best]
            proven.pieces += reversed(state.pieces)
            proven.commits += 1
            best = state.before
        proven.pieces.reverse()
        return proven


def go_on_by_chunks(proven: Proven, carving: Carving, end: int) -> None:
    """Follow chunks where no commit leads any further, up to ``end``."""
    ends: dict[int, int] = {}
    for piece in proven.pieces:
        ends[piece.stream] = piece.end_at
    while True:
        fitting = [
            piece
            for piece in carving.chunks.get(proven.next_seq, ())
            if piece.end <= end and (piece.stream == len(ends) or piece.first_at == ends.get(piece.stream))
        ]
        if len(fitting) != 1:
            return
        proven.pieces.append(fitting[0])
        proven.next_seq = fitting[0].end
        ends[fitting[0].stream] = fitting[0].end_at


def prove(data: DataFile, folder: Path) -> tuple[Proven, int]:
    """The longest prefix that a journal's bytes speak for, and the number of events that it is known to have had.

    Args:
        data: Its data.mdb.
        folder: Its directory, for HEAD.

    Raises:
        JournalError: `journal_newer`.
    """
    head: Head | None = None
    with suppress(JournalCorrupt, OSError):
        head = read_head(folder)
    carving = Carving(data)
    ids = ([] if head is None else [head.id]) + [found for found, _ in carving.ids.most_common(MAX_IDS)]
    best = Proven(ids[0] if ids else b"")
    for journal_id in dict.fromkeys(ids):
        data.allow()
        proven = Proof(carving, journal_id, head if head is not None and head.id == journal_id else None).longest()
        if proven.next_seq > best.next_seq:
            best = proven
    data.allow()
    known = carving.end if head is None or head.id != best.id else max(head.next_seq, carving.end)
    go_on_by_chunks(best, carving, known)
    return best, max(known, best.next_seq)
