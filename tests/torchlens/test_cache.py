"""The cache beside a journal: what comes back is what was put, or nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchlens.journals.cache as module
from journal import MemoryJournal, open_for_reading, open_for_writing
from tests.projections.making import Made
from tests.strategies import write_stream
from torchlens.journals.cache import HEADER_BYTES, CacheKey, FileCache, cache_of

ID = bytes(range(16))
KEY = CacheKey("ops", 1, 0, 5)

keys = st.builds(
    CacheKey,
    st.sampled_from(["ops", "layers", "fold_graph"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 1 << 40),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def empty(folder: Path) -> FileCache:
    """A cache in which nothing is, in a folder that many examples share."""
    shutil.rmtree(folder, ignore_errors=True)
    return FileCache(folder, ID)


@given(st.lists(st.tuples(keys, st.binary(max_size=40))))
def test_a_cache_gives_what_was_put_last_under_each_key(folder: Path, kept: list[tuple[CacheKey, bytes]]) -> None:
    cache = empty(folder)
    for key, data in kept:
        cache.put(key, data)
    assert {key: cache.get(key) for key, _ in kept} == dict(kept)
    for stream in range(4):
        assert sorted(cache.keys(stream)) == sorted(key for key in dict(kept) if key.stream == stream)


@given(st.binary(max_size=30), st.data())
def test_one_damaged_byte_anywhere_is_nothing_kept(folder: Path, data: bytes, draw: st.DataObject) -> None:
    cache = empty(folder)
    cache.put(KEY, data)
    file = cache.path(KEY)
    stored = bytearray(file.read_bytes())
    place = draw.draw(st.integers(0, len(stored) - 1))
    stored[place] ^= draw.draw(st.integers(1, 255))
    file.write_bytes(stored)
    assert cache.get(KEY) is None


@given(st.binary(max_size=30), st.data())
def test_a_cut_or_lengthened_file_is_nothing_kept(folder: Path, data: bytes, draw: st.DataObject) -> None:
    cache = empty(folder)
    cache.put(KEY, data)
    file = cache.path(KEY)
    stored = file.read_bytes()
    cut = draw.draw(st.integers(0, len(stored) - 1))
    file.write_bytes(draw.draw(st.sampled_from([stored[:cut], stored + stored[cut:]])))
    assert cache.get(KEY) is None


def test_nothing_was_ever_kept(folder: Path) -> None:
    cache = empty(folder)
    assert cache.get(KEY) is None
    assert list(cache.keys(0)) == []
    assert not folder.exists()


def test_a_file_under_another_name_is_nothing_kept(folder: Path) -> None:
    cache = empty(folder)
    cache.put(KEY, b"five")
    for other in (KEY._replace(head=6), KEY._replace(version=2), KEY._replace(stream=1), KEY._replace(projection="x")):
        cache.path(other).parent.mkdir(exist_ok=True)
        shutil.copy(cache.path(KEY), cache.path(other))
        assert cache.get(other) is None


def test_the_cache_of_another_journal_is_nothing_kept(folder: Path) -> None:
    empty(folder).put(KEY, b"theirs")
    assert FileCache(folder, bytes(16)).get(KEY) is None
    assert FileCache(folder, ID).get(KEY) == b"theirs"


def test_several_heads_and_versions_stand_side_by_side_until_they_are_dropped(folder: Path) -> None:
    cache = empty(folder)
    for head in (40, 7, 300):
        cache.put(KEY._replace(head=head), b"%d" % head)
    cache.put(KEY._replace(version=2), b"two")
    assert sorted(cache.keys(0)) == [KEY._replace(head=head) for head in (7, 40, 300)] + [KEY._replace(version=2)]
    cache.drop(KEY._replace(head=40))
    cache.drop(KEY._replace(head=41))
    assert sorted(cache.keys(0)) == [KEY._replace(head=head) for head in (7, 300)] + [KEY._replace(version=2)]
    assert cache.get(KEY._replace(head=300)) == b"300"
    assert cache.get(KEY._replace(version=2)) == b"two"


def test_what_lies_about_in_the_folder_is_no_result(folder: Path) -> None:
    cache = empty(folder)
    cache.put(KEY, b"five")
    place = cache.path(KEY).parent
    (place / ".ops.1.9.unfinished").write_bytes(b"")
    (place / "ops.1").write_bytes(b"")
    (place / "ops.1.8").mkdir()
    os.mkfifo(place / "ops.1.7")
    assert cache.get(KEY._replace(head=8)) is None
    assert cache.get(KEY._replace(head=7)) is None
    assert sorted(cache.keys(0)) == [KEY._replace(head=head) for head in (5, 7, 8)]
    cache.put(KEY._replace(head=8), b"a folder is in the way")
    assert cache.get(KEY._replace(head=8)) is None
    assert sorted(os.listdir(place)) == [".ops.1.9.unfinished", "ops.1", "ops.1.5", "ops.1.7", "ops.1.8"]


@pytest.mark.parametrize("link", [".", "0", "0/ops.1.5"])
def test_nothing_is_read_written_or_deleted_through_a_link(tmp_path: Path, link: str) -> None:
    theirs = FileCache(tmp_path / "theirs", ID)
    theirs.put(KEY, b"theirs")
    place = tmp_path / "cache" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(theirs.folder / link)
    cache = FileCache(tmp_path / "cache", ID)
    assert cache.get(KEY) is None
    cache.put(KEY._replace(head=6), b"six")
    cache.put(KEY, b"ours")
    cache.drop(KEY)
    assert sorted(theirs.keys(0)) == [KEY]
    assert theirs.get(KEY) == b"theirs"


def test_a_folder_that_cannot_be_written_keeps_nothing_and_says_nothing(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("a file is where the folder should be")
    cache = FileCache(folder, ID)
    cache.put(KEY, b"five")
    assert cache.get(KEY) is None
    assert list(cache.keys(0)) == []
    folder.unlink()


def test_what_is_too_large_is_neither_kept_nor_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = empty(folder)
    cache.put(KEY, bytes(100))
    monkeypatch.setattr(module, "MOST_BYTES", HEADER_BYTES + 99)
    assert cache.get(KEY) is None
    cache.put(KEY._replace(head=6), bytes(100))
    cache.put(KEY._replace(head=7), bytes(99))
    assert [cache.get(KEY._replace(head=head)) for head in (6, 7)] == [None, bytes(99)]


def test_a_projection_of_no_plain_name_is_not_kept(folder: Path) -> None:
    cache = empty(folder)
    for name in ("../../ops", "a/b", "", "ops.1", "Ops", "."):
        cache.put(KEY._replace(projection=name), b"elsewhere")
        cache.drop(KEY._replace(projection=name))
        assert cache.get(KEY._replace(projection=name)) is None
    assert not folder.exists()


def test_a_journal_on_disk_has_a_cache_of_its_own_and_one_in_memory_none(tmp_path: Path) -> None:
    assert cache_of(MemoryJournal()) is None
    for name in ("one", "other"):
        journal = open_for_writing(tmp_path / name)
        write_stream(journal, Made().events)
        journal.close()
    first, second = open_for_reading(tmp_path / "one"), open_for_reading(tmp_path / "other")
    assert first.id != second.id
    assert first.id == open_for_reading(tmp_path / "one").id
    cache = cache_of(first)
    assert cache is not None
    cache.put(KEY, b"five")
    shutil.copytree(tmp_path / "one" / "cache", tmp_path / "other" / "cache")
    copied = cache_of(second)
    assert copied is not None
    assert copied.get(KEY) is None
    assert cache.get(KEY) == b"five"
