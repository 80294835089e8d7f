"""JSON from anybody, read in bounded memory, and written in one canonical form.

Rule  What is read holds nil, booleans, integers of 64 bits, finite floats, text, lists, and maps whose keys differ.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeAlias

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

MOST_BYTES: Final = 64 << 20
MOST_VALUES: Final = 4 << 20
"""Lists, maps and members: each takes some 100 bytes of memory once it is read."""

MOST_DEPTH: Final = 32

MOST_DIGITS: Final = 20


class NotPlain(ValueError):
    """A text is no JSON, or more than is read."""


def read(data: bytes) -> Plain:
    """The value of a JSON text.

    Raises:
        NotPlain: with what is wrong.
    """
    if len(data) > MOST_BYTES:
        raise NotPlain(f"it has {len(data)} bytes, and {MOST_BYTES} are the most")
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise NotPlain(f"it has more than {MOST_VALUES} values")
    try:
        found = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=map_of,
            parse_int=integer,
            parse_float=finite,
            parse_constant=refused,
        )
    except NotPlain:
        raise
    except RecursionError as exc:
        raise NotPlain(f"it is nested deeper than {MOST_DEPTH}") from exc
    except ValueError as exc:
        raise NotPlain(f"it is no JSON: {str(exc)[:200]}") from exc
    require_shallow(found)
    return found


def map_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotPlain("a map has a key twice")
    return found


def integer(text: str) -> int:
    if len(text) > MOST_DIGITS or not -(1 << 63) <= (number := int(text)) < 1 << 64:
        raise NotPlain("a whole number has more than 64 bits")
    return number


def finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotPlain("a number is not finite")
    return number


def refused(text: str) -> float:
    raise NotPlain(f"{text} is no number of JSON")


def require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (list, dict))
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return
    raise NotPlain(f"it is nested deeper than {MOST_DEPTH}")


def canonical(value: Any) -> bytes:
    """One text for one value: keys in order, no spaces, nothing but ASCII.

    Raises:
        NotPlain: for what JSON does not hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as exc:
        raise NotPlain(str(exc)[:200]) from exc


def lined(value: dict[str, Any]) -> bytes:
    """A text for people, with the same value as the canonical one: a member a line, and a line for each of a list."""
    lines: list[str] = []
    for name, member in value.items():
        start = f" {json.dumps(name)}: "
        if isinstance(member, list) and member:
            lines.append(start + "[\n" + ",\n".join([f"  {json.dumps(one)}" for one in member]) + "\n ]")
        else:
            lines.append(start + json.dumps(member))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")
