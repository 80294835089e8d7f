"""Numbers that print with their unit: memory, time and work.

They compare, hash and format as the plain number, and keep their class under ``+``, ``-`` and
multiplication by a plain number, so that a sum of durations is a duration.
"""

from __future__ import annotations

from typing import Any, Final

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
        size = float(self)
        for unit in ("B", "KB", "MB", "GB"):
            if abs(size) < 1024:
                return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
            size /= 1024
        return f"{size:.1f} TB"


class Flops(Whole):
    """A count of floating-point operations; prints in units of 1000."""

    __slots__ = ()

    def __str__(self) -> str:
        return _in_thousands(self, "FLOPs")


class Macs(Whole):
    """A count of multiply-accumulates, two FLOPs each; prints in units of 1000."""

    __slots__ = ()

    def __str__(self) -> str:
        return _in_thousands(self, "MACs")


class Duration(float):
    """A time in seconds; prints in ns, us, ms, s, min or h."""

    __slots__ = ()

    def __str__(self) -> str:
        size = abs(float(self))
        if size >= 3600:
            return f"{self / 3600:.1f} h"
        if size >= 60:
            return f"{self / 60:.1f} min"
        if size >= 1 or size == 0:
            return f"{float(self):.3g} s"
        for factor, unit in ((1e3, "ms"), (1e6, "us")):
            if size * factor >= 1:
                return f"{float(self) * factor:.3g} {unit}"
        return f"{float(self) * 1e9:.3g} ns"

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


PREFIXES: Final = ("", "K", "M", "G", "T", "P")


def _in_thousands(number: int, unit: str) -> str:
    """A count with three digits, in the largest unit of which there is one."""
    size = float(number)
    if abs(size) < 1000:
        return f"{int(number)} {unit}"
    for prefix in PREFIXES[1:]:
        size /= 1000
        if abs(size) < 999.5:  # what would print as 1000 is one of the next
            return f"{size:.3g} {prefix}{unit}"
    return f"{size:,.0f} {PREFIXES[-1]}{unit}"


def _kept(kind: type[Any], result: Any) -> Any:
    return result if result is NotImplemented else kind(result)
