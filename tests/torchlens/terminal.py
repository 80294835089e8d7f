"""A terminal for tests: a program in it, keys that are pressed, and what stands on the screen then."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import pyte

from tests.programs import PATIENCE


class Terminal:
    """A program that believes to be at a terminal.

    Args:
        command: The program and its arguments.
        columns, rows: The size.
    """

    def __init__(self, command: Sequence[str], *, columns: int = 110, rows: int = 40) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = {**known, "TERM": "xterm-256color", "LANG": "C.UTF-8", "COLORTERM": "truecolor"}
        self.program = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=own_terminal,  # so that it is told when the terminal is gone, as with the tests themselves
        )
        os.close(theirs)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def read(self, seconds: float) -> bool:
        """Take in what was written within so much time; whether there was something."""
        ready, _, _ = select.select([self.ours], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.ours, 65536)
        except OSError:  # the program has ended
            return False
        self.stream.feed(data)
        return bool(data)

    def until(self, holds: str | Callable[[str], object]) -> str:
        """The screen, once a text stands on it, or something holds of it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            text = self.text
            if holds in text if isinstance(holds, str) else holds(text):
                return text
            self.read(0.05)
        raise AssertionError(f"{holds!r} did not come:\n{self.text}")

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        """Wait for the end of the program; its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self.program.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        return self.program.wait(1)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self.ours)


def own_terminal() -> None:
    """Make the terminal that a new session reads from the one that it belongs to."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
