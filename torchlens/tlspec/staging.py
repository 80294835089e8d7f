"""The save of an artifact: written beside its place, flushed, and put there whole.

    .NAME.0123456789abcdef.staging/     beside the place, for as long as a save lasts
        writer.lease                    locked by the process that saves
        artifact/                       what will stand at the place; afterwards, what stood there before
        replaced/                       what stood there before, where the system cannot exchange two folders

Rule  Killed at any point, a save leaves what was at the place before, or the new artifact, whole: the new one comes
      there by one step of the system, which either exchanges it for the old one or finds nothing there.
Rule  Where the system cannot exchange, the old one is moved aside first. A process that dies between the two steps
      leaves nothing at the place; then `standing_at` finds the old one, and the next save puts it back.
Rule  A staging folder whose lease nobody holds is a leftover. Every save removes those of its directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from journal.errors import JournalError
from journal.lease import LEASE, Lease, is_held
from journal.lifecycle import ARTIFACT, ArtifactState, ArtifactStep
from journal.machine import Machine
from torchlens.errors import ArtifactError, TorchLensError
from torchlens.tlspec.errors import ROOM, save_failed

MANIFEST: Final = "manifest.json"

NEW: Final = "artifact"
OLD: Final = "replaced"

STAGING: Final = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.staging", re.DOTALL)

BEGINNING: Final = re.compile(rb'\s*\{\s*"format":\s*"tlspec"')
"""How a manifest begins, also one that is damaged further on."""

OURS: Final = re.compile(r"manifest\.json|(records|events)\.msgpack|payloads|payloads/[0-9]{5}\.safetensors")
"""The files of an artifact, by their paths in it."""

TRIES: Final = 16
"""So many times a step is tried again that another process came before."""

NOREPLACE: Final = 1
EXCHANGE: Final = 2
"""Flags of the system's `renameat2`."""

HERE: Final = -100
"""Stands for the working directory, where `renameat2` wants an open one; paths are absolute."""

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

UNABLE: Final = frozenset((errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM))
"""What a system or a file system says that does not know a flag."""

TAKEN: Final = frozenset((errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR))
"""What is said where something stands at the place."""

AGAIN: Final = "give a path where nothing is, or overwrite=True to replace an artifact"


def find_renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """The system's `renameat2`, which Python does not offer; None where there is none."""
    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found


renameat2: Final = find_renameat2()


def moved(source: Path, target: Path, flag: int) -> int:
    """Rename a folder in one step of the system; its error number, 0 for none and one of ``UNABLE`` where it has no
    such step."""
    if renameat2 is None:
        return errno.ENOSYS
    done = renameat2(HERE, os.fsencode(source), HERE, os.fsencode(target), flag) == 0
    return 0 if done else ctypes.get_errno()


class Staging:
    """A folder to write an artifact in, and its way to its place.

    Args:
        target: Where the artifact will stand. Directories above are made.
        overwrite: Whether an artifact that stands there is replaced.

    Raises:
        ArtifactError: `bundle_save_failed`, when something stands at the target that may not be replaced, or the disk
            refuses; on leaving, for every ``OSError`` from within. `artifact_path_invalid`.
    """

    def __init__(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.target = place_of(target)
        self.overwrite = overwrite
        self.machine = Machine(ARTIFACT, ArtifactState.STAGED)
        self.lease: Lease | None = None
        self.around: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the artifact's files are written."""
        assert self.around is not None, "the artifact is written inside `with`"
        return self.around / NEW

    def __enter__(self) -> Staging:
        try:
            self.require_replaceable()
            self.target.parent.mkdir(parents=True, exist_ok=True)
            sweep(self.target.parent)
            self.around, self.lease = staged(self.target)
            self.folder.mkdir()
        except BaseException as exc:
            self.abandon()
            if isinstance(exc, OSError):
                raise save_failed(self.target, str(exc), ROOM) from exc
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self.abandon()
        if isinstance(exc, OSError) and not isinstance(exc, TorchLensError):
            raise save_failed(self.target, str(exc), ROOM) from exc

    def publish(self) -> None:
        """Flush everything that was written, and put it at its place.

        Raises:
            ArtifactError: `bundle_save_failed`.
            OSError: what the disk refuses, which leaving the context wraps.
        """
        self.machine.step(ArtifactStep.WRITE)
        sync(self.folder)
        self.machine.step(ArtifactStep.SYNC)
        around = os.open(self.target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # which may be a link
        try:
            self.put()
            try:
                os.fsync(around)
            except OSError as exc:
                problem = f"it stands at its place, and the disk does not say that it will after a power cut: {exc}"
                raise save_failed(self.target, problem, "load it to see; save it again where that matters") from exc
        finally:
            os.close(around)

    def put(self) -> None:
        for _ in range(TRIES):
            if self.rename():
                return
            self.require_replaceable()
            if self.replace():
                return
        raise save_failed(self.target, "other processes save there all the time", AGAIN)

    def rename(self) -> bool:
        """Move the artifact to its place, if nothing is there; whether it was moved."""
        number = moved(self.folder, self.target, NOREPLACE)
        if number in UNABLE:
            if os.path.lexists(self.target):
                return False
            try:
                os.rename(self.folder, self.target)  # what came meanwhile stays, unless it is an empty folder
            except OSError as exc:
                if exc.errno in TAKEN:
                    return False
                raise
        elif number in TAKEN:
            return False
        elif number:
            raise save_failed(self.target, os.strerror(number), ROOM)
        self.machine.step(ArtifactStep.RENAME)
        return True

    def replace(self) -> bool:
        """Move the artifact to its place and what is there away; False where nothing is there any more."""
        assert self.around is not None
        number = moved(self.folder, self.target, EXCHANGE)
        if number == 0:
            self.machine.step(ArtifactStep.EXCHANGE)
            return True
        if number not in UNABLE:
            if number == errno.ENOENT:
                return False
            raise save_failed(self.target, os.strerror(number), ROOM)
        if os.path.lexists(self.around / OLD):  # moved aside before, and then somebody else's came to stand there
            shutil.rmtree(self.around / OLD)
        try:
            os.rename(self.target, self.around / OLD)
        except FileNotFoundError:
            return False
        self.machine.step(ArtifactStep.SET_ASIDE)
        try:
            is_there = self.rename()
        except BaseException:
            self.put_back()
            raise
        if not is_there:
            self.put_back()
        return is_there

    def put_back(self) -> None:
        assert self.around is not None
        if self.machine.state is not ArtifactState.ASIDE:  # an interrupt, behind the last step
            return
        with suppress(OSError):  # somebody else's stands there now; else the staging folder is left for the next save
            os.rename(self.around / OLD, self.target)
        self.machine.step(ArtifactStep.PUT_BACK)

    def require_replaceable(self) -> None:
        """Refuse where something stands at the target that is not to be replaced."""
        for _ in range(TRIES):
            try:
                found = os.lstat(self.target)
                if not self.overwrite:
                    raise save_failed(self.target, "something is there", AGAIN)
                other = stranger(self.target) if stat.S_ISDIR(found.st_mode) else "other than a folder"
                if other is not None and not os.path.samestat(found, os.lstat(self.target)):
                    continue  # another save has moved or removed it meanwhile
            except FileNotFoundError:
                return
            if other is None:
                return
            raise save_failed(
                self.target,
                f"what is there is no artifact and nothing else, which alone is replaced: it is or holds {other}",
                "give another path, or remove what is there",
            )
        raise save_failed(self.target, "other processes save there all the time", AGAIN)

    def abandon(self) -> None:
        """Remove the staging folder, with whatever is in it."""
        if self.machine.allows(ArtifactStep.FAIL):
            self.machine.step(ArtifactStep.FAIL)
        around, lease, self.around, self.lease = self.around, self.lease, None, None
        if around is not None and not is_needed(around, self.target):
            shutil.rmtree(around, ignore_errors=True)
        if lease is not None:
            lease.release()


def place_of(target: str | os.PathLike[str]) -> Path:
    """The absolute path of an artifact; ``~`` in front is somebody's home.

    Raises:
        ArtifactError: `artifact_path_invalid`.
    """
    try:
        text = os.path.expanduser(os.fsdecode(target))
        place = Path(os.path.abspath(text))
        is_sound = bool(text and place.name) and "\0" not in text and bool(os.fsencode(text))
    except (TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise ArtifactError(
            code="artifact_path_invalid",
            problem=f"{target!r} is no path of an artifact",
            remedy="give a text or a pathlib.Path, with a name in it",
            received_type=type(target).__name__,
        )
    return place


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Generator[int]:
    """A file of an artifact that is being written: open where nothing was, no link is followed; closed behind."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def stranger(folder: Path) -> str | None:
    """What in a folder is of no artifact; None where all is of one. It is looked at wherever it is moved meanwhile.

    Raises:
        FileNotFoundError: Nothing is there any more.
    """
    looked_at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not is_begun_as_ours(looked_at):
            return f"no {MANIFEST} of an artifact"
        for place, names, files, _ in os.fwalk(".", dir_fd=looked_at):
            for name in sorted(names + files):
                path = os.path.normpath(os.path.join(place, name))
                if OURS.fullmatch(path) is None:
                    return repr(path)
    finally:
        os.close(looked_at)
    return None


def is_begun_as_ours(folder: int) -> bool:
    """Whether an open folder has a manifest that begins as those of artifacts do."""
    try:
        file = os.open(MANIFEST, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    try:
        return BEGINNING.match(os.read(file, 64)) is not None
    except OSError:  # it is a folder
        return False
    finally:
        os.close(file)


def staged(target: Path) -> tuple[Path, Lease]:
    """A staging folder of our own, and its lease: whoever sweeps may come between the two."""
    for _ in range(TRIES):
        around = target.with_name(f".{target.name}.{secrets.token_hex(8)}.staging")
        os.mkdir(around)
        try:
            lease = Lease(around)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lease.file.fileno()), os.lstat(around / LEASE)):
                    return around, lease
            lease.release()
        except (FileNotFoundError, JournalError):
            continue
        except BaseException:
            shutil.rmtree(around, ignore_errors=True)
            raise
    raise save_failed(target, "other processes removed its staging folder all the time", AGAIN)


def leftovers(parent: Path) -> Iterator[tuple[Path, Path]]:
    """The staging folders in a directory, whoever's, and the place of each."""
    with os.scandir(parent) as entries:
        found = sorted(
            (entry.name, match["name"])
            for entry in entries
            if (match := STAGING.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False)
        )
    for name, of in found:
        yield parent / name, parent / of


def is_needed(around: Path, place: Path) -> bool:
    """Whether a staging folder holds all that there is of what stood at the place."""
    return os.path.lexists(around / OLD) and not os.path.lexists(place)


def sweep(parent: Path) -> None:
    """Remove what saves of dead processes have left in a directory, and put back what they had moved aside."""
    for around, place in leftovers(parent):
        with suppress(OSError, JournalError):
            if is_held(around):
                continue
            lease = Lease(around)
            try:
                if is_needed(around, place):
                    os.rename(around / OLD, place)
                shutil.rmtree(around)
            finally:
                lease.release()


def standing_at(place: Path) -> Path:
    """Where the artifact of a place is. Nothing is moved by asking, so that reading needs no right to write."""
    return next((found for found in places_for(place) if os.path.lexists(found)), place)


def places_for(place: Path) -> Iterator[Path]:
    """Where the artifact of a place may be, first things first: there, or where a save that is between its two steps,
    or died there, has moved it; and once more there, for a save that has gone on since."""
    for _ in range(TRIES):
        yield place
        with suppress(OSError):
            aside = [around / OLD for around, of in leftovers(place.parent) if of == place]
            yield from aside
            if aside:
                continue
        yield place
        return


def sync(folder: Path) -> None:
    """Flush every file and folder below, and the folder."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            sync(Path(entry.path))
        else:
            sync_one(entry.path)
    sync_one(folder)


def sync_one(path: str | Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(file)
    finally:
        os.close(file)
