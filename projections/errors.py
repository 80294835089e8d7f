"""Refusals of this package, by what a caller may want to catch apart; codes tell causes apart."""

from __future__ import annotations

from journal.errors import TorchLensError


class SelectionError(TorchLensError, ValueError):
    """A selector or selection cannot be resolved or used as asked."""


class SelectorTypeError(TorchLensError, TypeError):
    """A selector was given something of the wrong type."""


class EncodingError(TorchLensError, ValueError):
    """Something is no table in canonical form, or cannot be brought into it."""
