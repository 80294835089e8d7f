"""The columns of a summary: what each tells, in which unit, and how a row shows it.

Reads  parts of ``projections.accounts.summing``.
Gives  ``SummaryRow``, and ``COLUMNS``, the closed list of what may be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import attrs

from projections import CaptureTables
from projections.accounts.roles import role_of
from projections.accounts.summing import ADDITIVE, Amounts, Level, Part, Sums, shapes_at
from torchlens.quantities import Bytes, Duration, Flops, Macs

__all__ = ["BUNDLES", "COLUMNS", "KINDS", "Column", "SummaryRow", "row_of", "typed"]

Unit: TypeAlias = Literal["", "count", "bytes", "FLOPs", "MACs", "seconds", "%"]

KINDS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {"bytes": Bytes, "FLOPs": Flops, "MACs": Macs, "seconds": Duration, "count": int}
)
"""What the numbers of a unit are made of."""


@attrs.frozen(kw_only=True)
class SummaryRow:
    """A module or an op, or several that are alike.

    The amounts have what is below the row too; those that begin with ``self_`` have what is its own, and add up: over
    all rows, with ``Summary.hidden`` and ``Summary.outside``, to ``Summary.totals``. An amount is None where nothing of
    it is known, never 0. FLOPs are in the convention that was asked for.

    Attributes:
        name: Last part of the address of a module, with its class; label of an op. Of several: the first and the last.
        label: Address of the module, or label of the op, of the first of several.
        kind: ``module``, ``op`` or ``buffer``.
        depth: Modules that hold it; 0 for the root, and for ops.
        parent: Address of the module that holds it; of an op, of the module that called it. None where there is none.
        times: How many it stands for.
        class_name: Class of the module; None of an op.
        func_name: Function of the op; None of a module.
        calls: Calls of the module, or passes of the layer that the row has.
        training: Mode of the module; None of an op.
        input: Shapes of what its first call was given.
        output: Shapes of what its first call returned; None where it was not called.
        ended: How that call ended: ``returned``, ``raised``, ``left`` where the capture was stopped, or ``not left``;
            None where it was not called, and of an op.
        dtype, device: Of the first of these that it returned.
        evidence: How the FLOPs of the op are known: ``formula_exact``, ``estimated`` or ``unknown``; None of a module.
        ops, unknown_ops: Compute ops, and those of which FLOPs are not known.
        params, trainable_params, param_memory: Elements and bytes of parameters, each with its first holder, or the
            first op that took it.
        params_pct, flops_pct, time_pct: The part of the whole, in per cent; None where there is no whole.
        flops, macs: Of the forward; a multiply-accumulate is two FLOPs.
        memory: Bytes of the values of its op rows.
        kept: Bytes of the payloads that were kept of them.
        time: Seconds inside calls of torch.
        saved_for_backward: Bytes that autograd kept because of it, where that was measured.
        backward_flops: What backward passes executed for it, where that was counted.
        backward_time: Seconds in its autograd nodes, over backward passes.
    """

    name: str
    label: str
    kind: Literal["module", "op", "buffer"]
    depth: int
    parent: str | None
    times: int
    class_name: str | None
    func_name: str | None
    calls: int
    training: bool | None
    input: tuple[tuple[int, ...] | None, ...] | None
    output: tuple[tuple[int, ...] | None, ...] | None
    ended: str | None
    dtype: str | None
    device: str | None
    evidence: str | None
    ops: int | None
    unknown_ops: int | None
    params: int | None
    trainable_params: int | None
    params_pct: float | None
    param_memory: Bytes | None
    flops: Flops | None
    flops_pct: float | None
    macs: Macs | None
    memory: Bytes | None
    kept: Bytes | None
    time: Duration | None
    time_pct: float | None
    saved_for_backward: Bytes | None
    backward_flops: Flops | None
    backward_time: Duration | None
    self_ops: int | None
    self_unknown_ops: int | None
    self_params: int | None
    self_trainable_params: int | None
    self_param_memory: Bytes | None
    self_flops: Flops | None
    self_macs: Macs | None
    self_memory: Bytes | None
    self_kept: Bytes | None
    self_time: Duration | None
    self_saved_for_backward: Bytes | None
    self_backward_flops: Flops | None
    self_backward_time: Duration | None


@attrs.frozen
class Column:
    """A column that may be shown.

    Attributes:
        head: What stands above it.
        unit: Of its numbers; "" for text.
        level: The only level that has it; None for both.
    """

    head: str
    unit: Unit = ""
    level: Level | None = None

    @property
    def is_number(self) -> bool:
        return bool(self.unit)


UNITS: Final[Mapping[str, Unit]] = MappingProxyType(
    {
        "ops": "count",
        "unknown_ops": "count",
        "params": "count",
        "trainable_params": "count",
        "param_memory": "bytes",
        "flops": "FLOPs",
        "macs": "MACs",
        "memory": "bytes",
        "kept": "bytes",
        "time": "seconds",
        "saved_for_backward": "bytes",
        "backward_flops": "FLOPs",
        "backward_time": "seconds",
    }
)
"""Of each additive amount."""

HEADS: Final = {
    "unknown_ops": "unknown",
    "trainable_params": "trainable",
    "param_memory": "param mem",
    "flops": "FLOPs",
    "macs": "MACs",
    "saved_for_backward": "saved",
    "backward_flops": "bwd FLOPs",
    "backward_time": "bwd time",
}

COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(
    {
        "name": Column("name"),
        "label": Column("label"),
        "class_name": Column("class", level="module"),
        "func_name": Column("function", level="op"),
        "parent": Column("module"),
        "times": Column("times", "count"),
        "calls": Column("calls", "count"),
        "training": Column("training", level="module"),
        "input": Column("input"),
        "output": Column("output"),
        "ended": Column("ended", level="module"),
        "dtype": Column("dtype"),
        "device": Column("device"),
        "evidence": Column("evidence", level="op"),
        "params_pct": Column("%", "%"),
        "flops_pct": Column("%", "%"),
        "time_pct": Column("%", "%"),
        **{name: Column(HEADS.get(name, name), UNITS[name]) for name in ADDITIVE},
        **{f"self_{name}": Column(f"own {HEADS.get(name, name)}", UNITS[name], "module") for name in ADDITIVE},
    }
)
"""By name, in the order of the documentation."""

COMPUTE: Final = ("name", "output", "params", "flops", "flops_pct", "macs", "backward_flops")

BUNDLES: Final[Mapping[tuple[str, Level], tuple[str, ...]]] = MappingProxyType(
    {
        ("overview", "module"): ("name", "calls", "ops", "output", "params", "flops", "time"),
        ("overview", "op"): ("name", "parent", "output", "params", "flops", "time"),
        ("compute", "module"): (*COMPUTE, "unknown_ops"),
        ("compute", "op"): (*COMPUTE, "evidence"),
    }
)
"""The columns of each view and level. Of these, amounts that the capture did not measure are left out."""


# A row -------------------------------------------------------------------------------------------------


def typed(name: str, number: float | None) -> Any:
    """An amount as a number that prints with its unit."""
    return None if number is None else KINDS[UNITS[name]](number)


def row_of(tables: CaptureTables, sums: Sums, part: Part) -> SummaryRow:
    described: dict[str, Any] = module_facts(tables, part) if sums.level == "module" else op_facts(tables, part)
    return SummaryRow(
        depth=part.depth,
        times=len(part.rows),
        **described,
        **amounts_of(sums, part.within, ""),
        **amounts_of(sums, part.own, "self_"),
        params_pct=share(sums, part, "params"),
        flops_pct=share(sums, part, "flops"),
        time_pct=share(sums, part, "time"),
    )


def amounts_of(sums: Sums, amounts: Amounts, prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}{name}": typed(name, amounts.value(name)) if sums.is_measured(name) else None for name in ADDITIVE
    }


def share(sums: Sums, part: Part, name: str) -> float | None:
    whole, number = sums.totals[name], part.within.value(name)
    return 100 * number / whole if number is not None and whole else None


def module_facts(tables: CaptureTables, part: Part) -> dict[str, Any]:
    modules, first, last = tables.modules, part.rows[0], part.rows[-1]
    value = modules.value
    name, kind, calls = value("name", first), value("class_name", first), value("call_rows", first)
    ending = value("name", last)
    several = name if ending == name else f"{name}..{ending}"
    returned = tables.module_calls.value("output_op_rows", calls[0]) if calls else ()
    return {
        "name": f"{several} ({kind})",
        "label": value("address", first),
        "kind": "module",
        "parent": value("address_parent", first),
        "class_name": kind,
        "func_name": None,
        "calls": sum([len(value("call_rows", row)) for row in part.rows]),
        "training": value("training", first),
        "input": shapes_at(tables, calls[0], "input") if calls else None,
        "output": shapes_at(tables, calls[0], "output") if calls else None,
        "ended": ended(tables, calls[0]) if calls else None,
        "dtype": tables.ops.value("dtype", returned[0]) if returned else None,
        "device": tables.ops.value("device_ref", returned[0]) if returned else None,
        "evidence": None,
    }


def ended(tables: CaptureTables, call: int) -> str:
    value = tables.module_calls.value
    if value("output_op_rows", call) or value("is_returned", call):
        return "returned"
    left = {"halted": "left", "aborted_nonfinite": "left", "unfinished": "not left"}
    return left.get(tables.fact("status"), "raised")


def op_facts(tables: CaptureTables, part: Part) -> dict[str, Any]:
    ops, first = tables.ops, part.rows[0]
    value, several = ops.value, len(part.rows) > 1
    call, record = value("call_row", first), value("compute_record", first)
    return {
        "name": value("layer_label" if several else "label", first),
        "label": value("label", first),
        "kind": role_of(ops, first),
        "parent": tables.module_calls.value("address", call) if 0 <= call < len(tables.module_calls) else None,
        "class_name": None,
        "func_name": value("func_name", first),
        "calls": len(part.rows),
        "training": None,
        "input": value("input_shapes", first),
        "output": (value("shape", first),),
        "ended": None,
        "dtype": value("dtype", first),
        "device": value("device_ref", first),
        "evidence": record[2] if record is not None else None,
    }
