"""Amounts over some ops, as a line of a node: FLOPs, time, memory, parameters.

Reads  the columns of ops and parameters.
Rule   an amount is over what is known, and says so where not all is; it is left out where nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from projections.build import CaptureTables
from projections.columnar.tables import Table
from projections.picture.texts import shape_text, short
from projections.wording import bytes_text, thousands, time_text, work_text

AMOUNTS: Final = {"flops": "flops_forward", "time": "func_duration", "memory": "activation_memory"}
"""The column that tells each amount."""

TEXTS: Final[dict[str, Callable[[Any], str]]] = {
    "flops": partial(work_text, unit="FLOPs"),
    "time": time_text,
    "memory": bytes_text,
}

OF_CALLS: Final = ("flops", "time")
"""Amounts of a call of torch, which each of its results has."""

SUM: Final = "Σ "
"""Before an amount over several that are drawn as one."""

AT_LEAST: Final = "≥ "
"""Before an amount over ops of which some have none that is known."""

MOST: Final = 3
"""Parameters that a line names at most."""


def amount_line(ops: Table[Any], rows: Sequence[int], line: str, *, is_sum: bool = False) -> str | None:
    """An amount over some ops; ``is_sum`` where these are in several places that are drawn as one."""
    if line in OF_CALLS:
        event = {ops.value("event", row): row for row in reversed(rows)}  # each call once
        rows = list(event.values())
    found = [ops.value(AMOUNTS[line], row) for row in rows]
    known = [one for one in found if one is not None]
    total = sum(known)
    if not total:
        return None
    text = f"{SUM if is_sum else ''}{TEXTS[line](total)}"
    return text if len(known) == len(found) else f"{AT_LEAST}{text}"


def params_line(tables: CaptureTables, rows: Sequence[int]) -> str | None:
    """Names and shapes of parameters that an op took."""
    params = tables.params
    if not rows:
        return None
    told = [f"{params.value('name', row)} {shape_text(params.value('shape', row), None)}" for row in rows[:MOST]]
    return short(", ".join(told) + (", …" if len(rows) > MOST else ""))


def params_text(tables: CaptureTables, op_rows: Sequence[int]) -> str | None:
    """How many elements the parameters have that some ops took."""
    taken = {param for row in op_rows for param in tables.ops.value("param_rows", row)}
    if not taken:
        return None
    return f"{thousands(sum([tables.params.value('num_params', param) for param in taken]))} parameters"
