"""Refusals of artifacts that are raised in more than one file."""

from __future__ import annotations

import os
from typing import Final

from torchlens.errors import ArtifactCorrupt, ArtifactError

ROOM: Final = "make room or give a path that can be written; what stood at this one is as it was"


def save_failed(path: str | os.PathLike[str], why: str, remedy: str) -> ArtifactError:
    return ArtifactError(
        code="bundle_save_failed",
        problem=f"no artifact was saved at {str(path)!r}: {why}",
        remedy=remedy,
        path=str(path),
    )


def load_failed(path: str | os.PathLike[str], why: str) -> ArtifactError:
    return ArtifactError(
        code="bundle_load_failed",
        problem=f"the artifact {str(path)!r} cannot be read: {why}",
        remedy="check that all of it is there and may be read; where a file is missing, save it again or copy it anew",
        path=str(path),
    )


def integrity_refused(path: str | os.PathLike[str], why: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(
        code="bundle_metadata_integrity_refused",
        problem=f"the artifact {str(path)!r} is not as it was saved: {why}",
        remedy="copy it anew from where it was saved, or save it again; what fails this check is not read",
        path=str(path),
    )
