"""The scan of payload bytes: each is read once, in the order of the disk, and compared with its digest."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

from journal.damages import Damages
from journal.payloads import open_segment

BLOCK_BYTES: Final = 1 << 20
"""Payloads are read by as much at a time."""

PLACE: Final = struct.Struct(">QQQQQ16s")
"""A payload as it waits to be read: segment, offset, bytes, stream, number, digest. Their order is that on disk."""


def scan_payloads(folder: Path, places: bytearray, found: Damages) -> None:
    """Read every payload, in the order of the disk, and compare it with its digest."""
    records = sorted(bytes(places[at : at + PLACE.size]) for at in range(0, len(places), PLACE.size))
    places.clear()
    buffer = bytearray(BLOCK_BYTES)
    unnamed = 0
    files = set(segments_in(folder))
    for segment, group in by_segment(records):
        name = f"segments/{segment:06d}.seg"
        files.discard(f"{segment:06d}.seg")
        file = open_segment(folder / f"{segment:06d}.seg")
        size = 0 if file is None else os.fstat(file).st_size
        at = 0
        for record in group:
            _, offset, nbytes, stream, number, digest = PLACE.unpack(record)
            unnamed += max(0, offset - at)
            found.counts.payloads += 1
            if offset < at:
                problem = f"payload {number} of stream {stream} shares bytes with another one"
                found.damage("payload_misplaced", problem, file=name, stream=stream, number=number)
                continue
            at = offset + nbytes
            found.counts.payload_bytes += nbytes
            if file is None or at > size:
                problem = f"the bytes of payload {number} of stream {stream} are not in segment {segment}"
                found.damage("payload_lost", problem, file=name, stream=stream, number=number)
            elif digest_at(file, offset, nbytes, buffer) != digest:
                problem = f"the bytes of payload {number} of stream {stream} do not match their digest"
                found.damage("payload_damaged", problem, file=name, stream=stream, number=number)
        if file is not None:
            os.close(file)
            if size > at:
                found.note(f"{name} has {size - at} bytes at its end that no event names")
    if unnamed:
        found.note(f"{unnamed} bytes between payloads are named by no event")
    for left in sorted(files):
        found.note(f"segments/{left} holds nothing that an event names")


def by_segment(records: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    begin = 0
    while begin < len(records):
        segment = records[begin][:8]
        stop = begin
        while stop < len(records) and records[stop][:8] == segment:
            stop += 1
        yield int.from_bytes(segment, "big"), records[begin:stop]
        begin = stop


def segments_in(folder: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (entry.name for entry in entries)


def digest_at(file: int, offset: int, nbytes: int, buffer: bytearray) -> bytes | None:
    """The digest of some bytes of a file; None where they cannot be read."""
    digest = xxhash.xxh3_128()
    view = memoryview(buffer)
    done = 0
    try:
        while done < nbytes:
            count = os.preadv(file, [view[: min(len(buffer), nbytes - done)]], offset + done)
            if count == 0:
                return None
            digest.update(view[:count])
            done += count
    except OSError:
        return None
    return digest.digest()
