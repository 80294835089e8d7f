"""Data as JSON that stands inside a script element of HTML, for a page and for an animation.

Rule   no ``<`` is in it, so that no tag and no comment begins; it is JSON to any reader, so no number is NaN.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from torchlens.errors import CompatibilityError

__all__ = ["json_in_html"]

MOST_BYTES: Final = 1 << 27
"""Of the data; browsers refuse strings not far above."""


def json_in_html(data: Any, too_large: Callable[[str], CompatibilityError]) -> str:
    """Data as text.

    Args:
        data: What ``json`` writes, with finite numbers.
        too_large: The refusal of data of a size, which is given in words.

    Raises:
        CompatibilityError: that refusal.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    if len(text) > MOST_BYTES:
        raise too_large(f"{len(text):,} bytes")
    return text
