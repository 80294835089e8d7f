"""What a save is asked for: the options of ``trace.save`` and ``tl.save``, and what each is unless it is given.

Not   what they come to (levels.py).
"""

from __future__ import annotations

from typing import Final, TypedDict

__all__ = ["USUAL", "SaveAsked"]


class SaveAsked(TypedDict, total=False):
    """The options of a save, ``include_*`` in the order in which a manifest has them; see ``Trace.save``."""

    level: str
    include_outs: bool | None
    include_activations: bool | None
    include_grads: bool | None
    include_saved_args: bool | None
    include_rng_states: bool | None
    include_source: bool | None
    include_weights: bool | None
    overwrite: bool
    strict: bool


USUAL: Final[SaveAsked] = {"level": "portable", "overwrite": False, "strict": True}
"""The options that are not None unless they are given."""
