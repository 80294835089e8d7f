"""Programs of their own that tests start: other processes, with this tree's packages and no others of their names."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

PATIENCE: Final = 300
"""Seconds after which a program that should have ended has not, on a machine that is busy."""


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a program that finds this tree's packages wherever it runs."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def python(script: str, *arguments: object, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a script with arguments."""
    return [sys.executable, *options, "-c", textwrap.dedent(script), *map(str, arguments)]


def run(
    script: str,
    *arguments: object,
    ends: int | None = 0,
    options: tuple[str, ...] = (),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end.

    Args:
        script: Python, indented as one likes.
        arguments: Its ``sys.argv`` from 1 on, as text.
        ends: The exit status it must end with, negative for a signal; None for any.
        options: Of the interpreter.
        cwd: Where it runs; where the test does by default.
        env: Its environment; ``surroundings()`` by default.
    """
    done = subprocess.run(
        python(script, *arguments, options=options),
        env=surroundings() if env is None else env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ends is None or done.returncode == ends, f"ended with {done.returncode}: {done.stderr}"
    return done


@contextmanager
def started(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A script that runs while the context lasts, with pipes to and from it, and is killed on leaving."""
    process = subprocess.Popen(
        python(script, *arguments),
        env=surroundings(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
