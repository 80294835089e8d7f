"""How a check of a stream refuses: by an ``AssertionError``, also where Python runs without assertions."""

from __future__ import annotations

from torchlens.errors import ValidationError

__all__ = ["require"]


def require(holds: bool, problem: str) -> None:
    """Refuse unless it holds.

    Raises:
        ValidationError: ``stream_illegal``.
    """
    if not holds:
        raise ValidationError(
            code="stream_illegal",
            problem=f"no capture tells its events like this: {problem}",
            remedy="if a capture wrote the stream, report it with the journal; if your code made it up, mend that",
        )
