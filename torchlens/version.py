"""The version of this package, as written into every stream."""

from __future__ import annotations

from importlib import metadata

try:
    VERSION = metadata.version("torchlens-journal")
except metadata.PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0.1.0.dev0"
