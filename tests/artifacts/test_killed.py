"""A save that is killed leaves the artifact of before or the new one, whole, and the next save leaves nothing else."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.artifacts.savers import save_version, version_at
from tests.nursery import Job, Nursery
from tests.programs import PATIENCE
from torchlens.errors import ArtifactError
from torchlens.tlspec.staging import sweep

SAVERS = "tests.artifacts.savers"

WAYS = pytest.mark.parametrize("way", ["exchange", "two_steps"])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(SAVERS) as one:
        yield one


def job(path: Path, program: str, way: str, sync: str, seed: int, calls: int | None = None) -> Job:
    return Job(str(path), f"{path.parent.parent}/said", f"{SAVERS}:{program}", way, sync, seed, calls)


def found_at(path: Path) -> int | None:
    """The version that is read at a path; None where nothing is."""
    try:
        return version_at(path)
    except ArtifactError as refused:
        if refused.code != "manifest_missing":
            raise
        return None


@WAYS
@pytest.mark.parametrize("sync", ["overwrite", "new"])
def test_a_save_may_be_killed_at_any_call_of_the_system(nursery: Nursery, tmp_path: Path, way: str, sync: str) -> None:
    path, old = tmp_path / "runs" / "a.tlspec", tmp_path / "old"
    save_version(old, 1, overwrite=False)
    before, found, limit, aside = (1 if sync == "overwrite" else None), Counter[int | None](), 0, 0
    while True:
        limit += 1
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        if before is not None:
            shutil.copytree(old, path)
        child = nursery.start(job(path, "save_once", way, sync, 2, limit))
        status = child.wait()
        if status == 0:
            break
        assert status == -signal.SIGKILL
        aside += before is not None and not path.exists()
        version = found_at(path)
        found[version] += 1
        sweep(path.parent)
        assert found_at(path) == version
        assert os.listdir(path.parent) == ([] if version is None else ["a.tlspec"])
    assert set(found) == {before, 2}
    assert found[before] > 30
    assert found_at(path) == 2
    assert (aside > 0) == (way == "two_steps" and before is not None)


@WAYS
def test_savers_and_readers_of_one_path_see_whole_artifacts(nursery: Nursery, tmp_path: Path, way: str) -> None:
    """Two save over each other, are killed at random moments and come again; one reads all the time."""
    path = tmp_path / "runs" / "a.tlspec"
    save_version(path, 0, overwrite=False)
    chance = random.Random(7)
    versions: set[int] = set()
    for turn in range(6):
        jobs = [job(path, "save_on_and_on", way, "overwrite", 1000 * turn + which) for which in (1, 2)]
        children = []
        for one in jobs:
            mine = Job(one.path, f"{one.said}.{one.seed}", one.program, one.durability, one.sync, one.seed)
            children.append(nursery.start(mine))
        children[0].wait_for("saved")
        until, seen = time.monotonic() + chance.uniform(0.05, 0.25), set[int]()
        while time.monotonic() < until or len(seen) < 2:
            seen.add(version_at(path))
            assert time.monotonic() < until + PATIENCE
        versions |= seen
        for child in children:
            child.kill()
        told = [said.numbers[0] for child in children for said in child.said() if said.word == "saving"]
        assert version_at(path) in told
    assert len(versions) > 6
    sweep(path.parent)
    assert os.listdir(path.parent) == ["a.tlspec"]


def test_a_saver_that_lives_is_not_swept(nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a.tlspec"
    child = nursery.start(job(path, "save_on_and_on", "exchange", "overwrite", 1))
    child.wait_for("saved")
    for _ in range(20):
        sweep(path.parent)
    said = len(child.said())
    child.wait_for("saved", after=said)
    child.kill()
    assert path.is_dir()
    version_at(path)  # raises where it is not whole
