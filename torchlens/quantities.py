"""Numbers that print with their unit: memory, time and work.

They compare, hash and format as the plain number, and keep their class under ``+``, ``-`` and
multiplication by a plain number, so that a sum of durations is a duration.
"""

from __future__ import annotations

from typing import Any

from projections.wording import bytes_text, time_text, work_text

__all__ = ["Bytes", "Duration", "Flops", "Macs"]


class Whole(int):
    """A whole number of something; which class says of what."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)

    def __add__(self, other: Any) -> Any:
        return _kept(type(self), int.__add__(self, other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _kept(type(self), int.__sub__(self, other))

    def __mul__(self, other: Any) -> Any:
        return _kept(type(self), int.__mul__(self, other))

    __rmul__ = __mul__


class Bytes(Whole):
    """A count of bytes; prints in units of 1024."""

    __slots__ = ()

    def __str__(self) -> str:
        return bytes_text(self)


class Flops(Whole):
    """A count of floating-point operations; prints in units of 1000."""

    __slots__ = ()

    def __str__(self) -> str:
        return work_text(self, "FLOPs")


class Macs(Whole):
    """A count of multiply-accumulates, two FLOPs each; prints in units of 1000."""

    __slots__ = ()

    def __str__(self) -> str:
        return work_text(self, "MACs")


class Duration(float):
    """A time in seconds; prints in ns, us, ms, s, min or h."""

    __slots__ = ()

    def __str__(self) -> str:
        return time_text(float(self))

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __add__(self, other: Any) -> Any:
        return _kept(Duration, float.__add__(self, other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _kept(Duration, float.__sub__(self, other))

    def __mul__(self, other: Any) -> Any:
        return _kept(Duration, float.__mul__(self, other))

    __rmul__ = __mul__


def _kept(kind: type[Any], result: Any) -> Any:
    return result if result is NotImplemented else kind(result)
