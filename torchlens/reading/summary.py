"""The text that ``trace.summary()`` gives: the module tree with its calls, shapes and parameters, and totals.

Reads  the finished tables.
Gives  plain text, at most 100 columns wide and, by default, a screen high: the deepest levels are left out first.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from projections import CaptureTables
from torchlens.printable import aligned, amount, cut, printable
from torchlens.quantities import Bytes, Duration, Flops, Macs

__all__ = ["SummaryText", "summary"]

WIDEST_NAME: Final = 44
WIDEST_SHAPE: Final = 24
WIDTH: Final = 100

MOST_OF_A_PLACE: Final = 6
"""Lines that may say where a forward failed."""

FIRST: Final = 12
"""Columns of the names of the totals."""


class Line(NamedTuple):
    """One module of the tree."""

    name: str
    calls: str
    ops: str
    output: str
    params: str
    time: str


HEADING: Final = Line("module", "calls", "ops", "output", "params", "time")


class SummaryText(str):
    """Text that shows itself line by line where Python would show its repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def summary(
    tables: CaptureTables,
    *,
    depth: int | None = None,
    max_rows: int = 60,
    where: str | None = None,
    is_disarmed: bool = False,
) -> SummaryText:
    """A table of the modules and what they did, with totals.

    Args:
        tables: A capture's tables.
        depth: Deepest level of the module tree to show; None shows as many levels as fit in ``max_rows``.
        max_rows: Most lines of the tree.
        where: What is known of the place at which the forward failed.
        is_disarmed: Whether further backward passes are not recorded.
    """
    modules = tables.modules
    depths = modules.column("address_depth")
    if depth is None:
        depth = max(depths, default=0)
        while depth > 1 and sum(level <= depth for level in depths) > max_rows:
            depth -= 1
    shown = [row for row in tree(tables) if depths[row] <= depth][:max_rows]
    lines = [module_line(tables, row) for row in shown]
    text = [heading(tables), "", *table([HEADING, *lines])]
    if len(shown) < len(depths):
        hidden = len(depths) - len(shown)
        text.append(f"{amount(hidden, 'module')} below {'is' if hidden == 1 else 'are'} not shown")
    return SummaryText("\n".join([*text, "", *totals(tables, where, is_disarmed=is_disarmed)]))


def tree(tables: CaptureTables) -> list[int]:
    """Rows of the modules as the model registers them, each behind the module that holds it."""
    modules = tables.modules
    addresses, holders, numbers = map(modules.column, ("address", "address_parent", "module_number"))
    held: dict[str | None, list[int]] = {}
    for row in sorted(range(len(modules)), key=numbers.__getitem__):
        held.setdefault(holders[row], []).append(row)
    order: list[int] = []
    stack = held.pop(None, [])[::-1]
    while stack:
        row = stack.pop()
        order.append(row)
        stack += held.pop(addresses[row], [])[::-1]
    return order


def module_line(tables: CaptureTables, row: int) -> Line:
    modules = tables.modules
    indent = "  " * modules.value("address_depth", row)
    name, kind = modules.value("name", row), modules.value("class_name", row)
    calls = modules.value("call_rows", row)
    computes = tables.ops.column("is_compute_op")
    ops = sum(computes[op] for op in modules.value("op_rows", row))
    params = modules.value("num_recursive_params", row)
    # A forward that was left on purpose has no end, so its calls that were open have no duration.
    time = modules.value("total_forward_duration", row)
    return Line(
        cut(f"{indent}{name} ({kind})", WIDEST_NAME),
        str(len(calls)) if calls else "-",
        str(ops) if calls else "-",
        cut(returned(tables, calls[0]), WIDEST_SHAPE) if calls else "",
        f"{params:,}" if params else "-",
        str(Duration(time)) if time else "-",
    )


def returned(tables: CaptureTables, call: int) -> str:
    """What a module call returned: the first shape, and how many more there are; or that it did not."""
    rows, status = tables.module_calls.value("output_op_rows", call), tables.fact("status")
    if not rows and not tables.module_calls.value("is_returned", call):
        return {"halted": "left", "aborted_nonfinite": "left", "unfinished": "not left"}.get(status, "raised")
    if not rows:
        return "no tensor"
    first = str(tables.ops.value("shape", rows[0]))
    return first if len(rows) == 1 else f"{first} +{len(rows) - 1}"


def table(lines: Sequence[Line]) -> list[str]:
    """Lines of text with aligned columns: names and shapes to the left, numbers to the right.

    Names give way where large numbers need their room.
    """
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADING))]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
    lines = [line._replace(name=cut(line.name, widths[0])) for line in lines]
    text = aligned(lines, right=(1, 2, 4, 5))
    rule = "-" * max(len(line) for line in text)
    return [text[0], rule, *text[1:], rule]


def heading(tables: CaptureTables) -> str:
    ops = tables.ops
    inputs = [row for row, is_input in enumerate(ops.column("is_input")) if is_input]
    given = ", ".join(f"{ops.value('shape', row)} {ops.value('dtype', row)}" for row in inputs[:3])
    more = f" and {len(inputs) - 3} more" if len(inputs) > 3 else ""
    status = tables.fact("status")
    return cut(f"{tables.fact('model_class_name')} | input {given or 'none'}{more} | {status}", WIDTH)


def totals(tables: CaptureTables, where: str | None, *, is_disarmed: bool) -> list[str]:
    fact = tables.fact
    recurrent = len(fact("recurrent_layers"))
    several = f", {recurrent} with several passes" if recurrent else ""
    others = fact("num_tensors") - fact("num_ops")
    facts = {
        "ops": f"{fact('num_ops'):,} in {amount(fact('num_compute_layers'), 'layer')}{several};"
        f" {others:,} inputs, buffers and outputs",
        "functions": functions(tables) or "none",
        "parameters": f"{fact('num_params'):,} ({fact('num_params_trainable'):,} trainable),"
        f" {Bytes(fact('total_param_memory'))}",
        "activations": f"{Bytes(fact('total_activation_memory'))}, {Bytes(fact('saved_activation_memory'))} kept",
        "work": work(tables),
        "time": durations(tables),
    }
    if passes := fact("num_backward_passes"):
        facts["backward"] = backward(tables, passes)
    if is_disarmed:
        facts["disarmed"] = "no further backward pass is recorded"
    if reason := ending(tables):
        status = str(fact("status"))
        facts = {"not finite" if status == "aborted_nonfinite" else status: reason, **facts}
    lines = [cut(f"{name:<{FIRST}}{text}", WIDTH) for name, text in facts.items()]
    if where:  # behind the first line, which says what was raised
        wrapped = textwrap.wrap(printable(where), WIDTH - FIRST, max_lines=MOST_OF_A_PLACE, placeholder=" …")
        lines[1:1] = [" " * FIRST + line for line in wrapped]
    return lines


def ending(tables: CaptureTables) -> str | None:
    """Why the forward did not run to its end; None where it did, or where nobody could say."""
    if reason := tables.fact("halt_reason"):
        return f"at {reason}"
    if reason := tables.fact("nonfinite_reason"):
        return f"{reason} in what a call returned"
    kind, message = tables.fact("error_type"), tables.fact("error_message")
    return f"{kind.rpartition('.')[2]}: {message}" if kind and message else kind


def functions(tables: CaptureTables) -> str:
    """The functions that ran most often, with how often."""
    names, computes = tables.ops.column("func_name"), tables.ops.column("is_compute_op")
    counted = Counter(name for name, is_op in zip(names, computes, strict=True) if is_op).most_common()
    text, left = "", sum(count for _, count in counted)
    for name, count in counted:
        part = f"{', ' if text else ''}{name} {count}"
        if FIRST + len(f"{text}{part}, others {left}") > WIDTH:
            return f"{text}, others {left}" if text else ""
        text, left = text + part, left - count
    return text


def work(tables: CaptureTables) -> str:
    """FLOPs of the forward, and of how many ops they are not known."""
    unknown = tables.fact("compute_coverage")["unknown"]
    left_out = f"; {amount(unknown, 'op')} not counted" if unknown else ""
    return f"{Flops(tables.fact('total_flops_forward'))}, {Macs(tables.fact('total_macs_forward'))} among it{left_out}"


def backward(tables: CaptureTables, passes: int) -> str:
    """Backward passes, how often a node fired in them, what was kept, and those that failed."""
    fact = tables.fact
    failed, time = fact("num_failed_backward_passes"), fact("backward_duration")
    parts = [f"{amount(passes, 'pass')}{f' ({failed} failed)' if failed else ''}"]
    parts.append(amount(fact("num_grad_fn_calls"), "firing"))
    if time is not None:
        parts.append(str(Duration(time)))
    ops = len(fact("saved_grad_rows"))
    return f"{', '.join(parts)}; gradients of {amount(ops, 'op')}, {Bytes(fact('saved_gradient_memory'))} kept"


def durations(tables: CaptureTables) -> str:
    calls, whole = Duration(tables.fact("func_calls_duration")), tables.fact("forward_duration")
    return f"{calls} in torch calls" + ("" if whole is None else f", {Duration(whole)} forward with recording")
