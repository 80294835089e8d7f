"""A process that imports everything once and forks others off, which a test may kill or which die by themselves.

What such a process does, a ``Job`` names: a function, and what it is to do it to. A job says in a file what it does,
a line each; the file outlives it, so what was said before a SIGKILL is known.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import attrs

from tests.programs import PATIENCE, surroundings


@attrs.frozen
class Job:
    """What a process does, and to which journal."""

    path: str
    said: str  # the file in which it says what it does
    program: str  # the function that takes the job, as "module:function"
    durability: str
    sync: str
    seed: int
    calls: int | None = None  # it kills itself before this call into C


# In the process -----------------------------------------------------------------------------------------


class Teller:
    """Says in a file what was done, a line each, with the time."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def say(self, word: str, *numbers: int) -> None:
        os.write(self.file, f"{' '.join([word, str(time.monotonic_ns()), *map(str, numbers)])}\n".encode())


def serve() -> None:
    """A job a line: the number of the process it runs in. A number a line: how that process ended.

    What every job of a module would do first, its ``prepare`` does once for all.
    """
    for module in map(importlib.import_module, sys.argv[1:]):
        getattr(module, "prepare", lambda: None)()
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(run_alone(Job(**asked)))
        print(answer, flush=True)  # noqa: T201 - the answer


def run_alone(job: Job) -> int:
    """A job in a process of its own; its exit status."""
    try:
        module, name = job.program.split(":")
        getattr(importlib.import_module(module), name)(job)
    except BaseException:  # noqa: BLE001  # told, and then the process ends
        traceback.print_exc()
        return 1
    return 0


# In the test --------------------------------------------------------------------------------------------


class Nursery:
    """Forks jobs off. Closing it ends those that still run.

    Args:
        modules: What is imported before the first fork.
    """

    def __init__(self, *modules: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tests import nursery; nursery.serve()", *modules],
            env=surroundings(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running: set[int] = set()

    def ask(self, question: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the nursery has ended; its standard error says why"
        return int(answer)

    def start(self, job: Job) -> Child:
        Path(job.said).unlink(missing_ok=True)
        child = Child(self, job, self.ask(attrs.asdict(job)))
        self.running.add(child.pid)
        return child

    def close(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()  # its end has nothing to do that is worth waiting for
        self.process.communicate()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@attrs.frozen
class Said:
    """One thing a job said."""

    word: str
    time_ns: int
    numbers: tuple[int, ...]


class Child:
    """A job that runs, or ran."""

    def __init__(self, nursery: Nursery, job: Job, pid: int) -> None:
        self.nursery = nursery
        self.job = job
        self.pid = pid

    def said(self) -> list[Said]:
        try:
            lines = Path(self.job.said).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        parts = [line.split() for line in lines if line.endswith("\n")]
        return [Said(word, int(moment), tuple(map(int, numbers))) for word, moment, *numbers in parts]

    def wait_for(self, *words: str, after: int = 0) -> int:
        """Wait until one of these was said, as the ``after``-th thing or later; how many things were said by then."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            said = self.said()
            if any(one.word in words for one in said[after:]):
                return len(said)
            time.sleep(0.0005)
        raise AssertionError(f"the job did not come to {words}: {self.said()[-3:]}")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Exit status, negative for a signal."""
        self.nursery.running.discard(self.pid)
        return self.nursery.ask(self.pid)
