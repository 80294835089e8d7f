"""What a check or a strategy was given, refused by code where it is nothing that it can work with.

Not    what is wrong with a model or a record (checking).
"""

from __future__ import annotations

import math
from typing import Any, Final

from torchlens.errors import ConfigurationError

__all__ = ["argument_invalid", "require_seed", "require_tolerance"]

SEEDS: Final = 2**32
"""NumPy's generator takes no larger seed."""


def argument_invalid(problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(code="testing_argument_invalid", problem=problem, remedy=remedy)


def require_seed(seed: Any) -> None:
    """Refuse what is no seed of every generator.

    Raises:
        ConfigurationError: ``testing_argument_invalid``.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
        raise argument_invalid(f"seed={seed!r} is no seed", "pass a whole number from 0 to 2**32 - 1")


def require_tolerance(**tolerances: Any) -> None:
    """Refuse tolerances, by name, that are no numbers from 0 on.

    Raises:
        ConfigurationError: ``testing_argument_invalid``.
    """
    for name, value in tolerances.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise argument_invalid(f"{name}={value!r} is no tolerance", f"pass a number from 0 on, such as {name}=1e-4")
