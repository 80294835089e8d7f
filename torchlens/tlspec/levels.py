"""What an artifact keeps: its level, and the options that widen or narrow it.

Gives  the kinds of payloads that a save keeps, from its level and its ``include_*`` options.
Rule   an option that is None is as the level has it; one that contradicts the level is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from projections.stored.stripped import PAYLOAD_KINDS, PayloadKind
from torchlens.errors import ConfigurationError
from torchlens.tlspec.asked import USUAL, SaveAsked

Level: TypeAlias = Literal["portable", "audit", "runnable", "executable_with_callables"]

LEVELS: Final[tuple[Level, ...]] = get_args(Level)

OPTIONS: Final = tuple(name for name in SaveAsked.__annotations__ if name not in USUAL)

OF_OPTION: Final[Mapping[str, tuple[PayloadKind, ...]]] = {
    "include_outs": ("activation", "transformed", "constant"),
    "include_activations": ("activation", "transformed", "constant"),
    "include_grads": ("gradient",),
    "include_saved_args": ("argument",),
    "include_rng_states": ("generator",),
    "include_source": ("source",),
}
"""The kinds of payloads of the capture that an option is about."""

DEFAULTS: Final[Mapping[Level, frozenset[str]]] = {
    "portable": frozenset(("include_outs", "include_grads", "include_source")),
    "audit": frozenset(("include_source",)),
    "runnable": frozenset(("include_source",)),
    "executable_with_callables": frozenset(OF_OPTION) - {"include_activations"},
}
"""By level, the options that are on unless they are given."""

OF_LEVEL: Final[Mapping[str, frozenset[PayloadKind]]] = {
    "runnable": frozenset(("generator", "run_constant")),
    "executable_with_callables": frozenset(("run_constant",)),
}
"""By level, the kinds of payloads that are kept in any case: without them the forward could not be run again."""

FIXED: Final[Mapping[Level, Mapping[str, bool]]] = {
    "portable": {"include_activations": False},
    "audit": dict.fromkeys(
        (
            *("include_outs", "include_grads", "include_saved_args", "include_rng_states", "include_weights"),
            "include_activations",
        ),
        False,
    ),
    "runnable": dict.fromkeys(("include_outs", "include_grads", "include_saved_args", "include_rng_states"), False),
    "executable_with_callables": {
        "include_saved_args": True,
        "include_rng_states": True,
        "include_activations": False,
    },
}
"""By level, the options that cannot be otherwise."""

WHY_FIXED: Final[Mapping[tuple[str, bool], str]] = {
    ("include_activations", False): "only a runnable artifact archives activations beside what it needs",
    ("include_saved_args", True): "the level is for making calls again, which takes what they were given",
    ("include_rng_states", True): "the level is for making calls again, which takes the states that they drew from",
}


@attrs.frozen(kw_only=True)
class Kept:
    """What a save keeps.

    Attributes:
        level: Its level.
        options: Each option as it came out, by name.
    """

    level: Level
    options: Mapping[str, bool]

    @property
    def kinds(self) -> frozenset[PayloadKind]:
        """Kinds of payloads of the capture."""
        return kinds_of(self.options, self.level)

    @property
    def has_weights(self) -> bool:
        """Whether the model's parameters and buffers are kept too."""
        return self.options["include_weights"]

    @property
    def left_out(self) -> frozenset[PayloadKind]:
        """The other kinds."""
        return frozenset(PAYLOAD_KINDS) - self.kinds


def kept_at(level: object, given: Mapping[str, Any]) -> Kept:
    """What a save keeps.

    Args:
        level: Its level.
        given: The ``include_*`` options; one that was not given is None, or is not there.

    Raises:
        ConfigurationError: ``artifact_save_level_invalid``, ``option_value_invalid``,
            ``save_payload_level_conflict``.
        TypeError: For a name that is none of them.
    """
    for name in given:
        if name not in OPTIONS:
            raise TypeError(f"save() got an unexpected keyword argument {name!r}")
    if level not in LEVELS:
        raise ConfigurationError(
            code="artifact_save_level_invalid",
            problem=f"there is no level {level!r}",
            remedy=f"pass one of {', '.join(LEVELS)}",
            argument="level",
        )
    options: dict[str, bool] = {}
    for name in OPTIONS:
        value = given.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigurationError(
                code="option_value_invalid",
                problem=f"{name}={value!r} is neither True nor False",
                remedy="pass one of these, or leave it out",
                argument=name,
            )
        fixed = FIXED[level].get(name)
        if value is not None and fixed is not None and value is not fixed:
            raise ConfigurationError(
                code="save_payload_level_conflict",
                problem=f"{name}={value} contradicts level={level!r}: "
                + WHY_FIXED.get((name, fixed), "the level keeps no payloads of tensors"),
                remedy=f"leave {name} out, or save at another level",
                argument=name,
                level=level,
            )
        options[name] = name in DEFAULTS[level] if value is None else value
    return Kept(level=level, options=options)


def kinds_of(options: Mapping[str, Any], level: str) -> frozenset[PayloadKind]:
    """The kinds of payloads that a save at a level with these options keeps, or an artifact has."""
    asked = [kind for name, those in OF_OPTION.items() if options.get(name) is True for kind in those]
    return frozenset(asked) | OF_LEVEL.get(level, frozenset())
