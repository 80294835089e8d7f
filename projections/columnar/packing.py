"""msgpack's packer, kept: making one costs more than most of what is packed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import msgpack


class Packer(threading.local):
    """One packer a thread, since a packer is one buffer."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack


PACKER: Final = Packer()


def packed_bytes(value: Any) -> bytes:
    """A value as msgpack has it: ``TypeError``, ``ValueError`` or ``OverflowError`` for what has no such form."""
    return PACKER.pack(value)
