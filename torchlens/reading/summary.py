"""What ``trace.summary()`` gives: a table of modules or of ops, and totals that its rows add up to.

Reads  the finished tables.
Gives  ``Summary``: text for a terminal, at most 100 columns wide unless more columns are asked for than fit, with the
       rows it was made from. By default a screen high: repeated modules are folded, then the deepest levels left out.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from projections import CaptureTables
from projections.accounts.ended import ended
from projections.accounts.summing import ADDITIVE, Amounts, FlopsPerMac, Level, Part, Sums, added, by_module, by_op
from projections.errors import over_events
from torchlens.errors import ConfigurationError
from torchlens.printable import aligned, amount, cut, printable, shapes_text
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.summary_columns import COLUMNS, SummaryRow, row_of, typed
from torchlens.reading.summary_options import SummaryOptions, chosen_columns
from torchlens.reading.tabular import frame_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Summary", "SummaryText", "summary"]

WIDTH: Final = 100

NARROWEST: Final = 16
"""Characters that names keep where other columns need room."""

WIDEST_NAME: Final = 44
WIDEST_TEXT: Final = 24
"""Characters that a name, and any other text, has in the table at most."""

DEEPEST: Final = 12
"""Levels beyond which a line is not moved further in."""

MOST_OF_A_PLACE: Final = 6
"""Lines that may say where a forward failed."""

FIRST: Final = 12
"""Columns of the names of the totals."""


class SummaryText(str):
    """Text that shows itself line by line where Python would show its repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Summary(SummaryText):
    """A table of modules or ops with totals, as text, and the rows it was made from.

    Attributes:
        rows: The rows that are shown, each behind the one that it is below.
        columns: Names of the columns that the text shows.
        level: What a row is: ``module`` or ``op``.
        totals: By amount the whole of the capture; None where it is not known.
        hidden: By amount what rows have of their own that are not shown; ``num_hidden`` modules or ops.
        outside: By amount what belongs to no row: backward work that differentiates no op, and at level ``op`` also
            what inputs, buffers and outputs hold, and parameters that no op took.
    """

    rows: tuple[SummaryRow, ...]
    columns: tuple[str, ...]
    level: Level
    totals: Mapping[str, Any]
    hidden: Mapping[str, Any]
    outside: Mapping[str, Any]
    num_hidden: int
    show: Shown

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each, with every column that there is; plain numbers, in the units of the documentation.

        Raises:
            CompatibilityError: ``pandas_not_installed``.
        """
        names = [field.name for field in attrs.fields(SummaryRow)]
        return frame_of({name: [plain(getattr(row, name)) for row in self.rows] for name in names}, len(self.rows))

    def to_markdown(self) -> str:
        """The shown columns as a table of markdown, names and texts escaped."""
        sides = ["---:" if COLUMNS[name].is_number else "---" for name in self.columns]
        lines = [self.heads(), sides]
        for row in self.rows:
            indent = "&nbsp;&nbsp;" * self.show.indent(row)
            cells = {name: marked(self.show.cell(row, name)) for name in self.columns}
            if "name" in cells:
                cells["name"] = indent + cells["name"]
            lines.append(list(cells.values()))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def to_html(self) -> str:
        """The shown columns as a table of HTML, with the heading above and the totals below; every text escaped."""
        text = str(self)
        above, below = text.partition("\n")[0], text.rpartition("\n\n")[2]
        head = "".join(f"<th>{escaped(head)}</th>" for head in self.heads())
        lines = [f"<table><caption>{escaped(above)}</caption><thead><tr>{head}</tr></thead><tbody>"]
        for row in self.rows:
            cells: list[str] = []
            for name in self.columns:
                side = "right" if COLUMNS[name].is_number else "left"
                moved = f";padding-left:{0.5 + self.show.indent(row)}em" if name == "name" else ""
                cells.append(f'<td style="text-align:{side}{moved}">{escaped(self.show.cell(row, name))}</td>')
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "\n".join([*lines, f"</tbody></table><pre>{html.escape(below)}</pre>"])

    def _repr_html_(self) -> str:
        return self.to_html()

    def heads(self) -> list[str]:
        return [self.show.head(name) for name in self.columns]


def plain(value: Any) -> Any:
    """A number without its unit."""
    if isinstance(value, Flops | Macs | Bytes):
        return int(value)
    return float(value) if isinstance(value, Duration) else value


def escaped(text: str) -> str:
    """A text in HTML: as it is, whatever it holds."""
    return html.escape(printable(text))


def marked(text: str) -> str:
    """A text in a cell of markdown: as it is, whatever it holds."""
    escaped = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", printable(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def summary(
    tables: CaptureTables, options: SummaryOptions, *, where: str | None = None, is_disarmed: bool = False
) -> Summary:
    """A table of the modules or ops and what they did, with totals.

    Args:
        tables: A capture's tables.
        options: What was asked for.
        where: What is known of the place at which the forward failed.
        is_disarmed: Whether further backward passes are not recorded.

    Raises:
        ConfigurationError: ``summary_option_conflict``, ``flop_convention_unavailable``.
    """
    with over_events():
        level = level_of(tables, options)
        sums, shown = chosen_parts(tables, options, level)
        columns = chosen_columns(options, level, [name for name in ADDITIVE if not sums.is_measured(name)])
        rows = [row_of(tables, sums, part) for part in shown]
    if options.filter is not None:
        wanted = is_wanted(options.filter)
        found = [(part, row) for part, row in zip(shown, rows, strict=True) if wanted(row)][: options.max_rows]
        shown, rows = [part for part, _ in found], [row for _, row in found]
    with over_events():
        return told(tables, options, Chosen(sums, shown, rows, columns), where, is_disarmed=is_disarmed)


class Chosen(NamedTuple):
    """What a summary shows: some of all parts, as rows with columns."""

    sums: Sums
    parts: Sequence[Part]
    rows: Sequence[SummaryRow]
    columns: tuple[str, ...]


def told(
    tables: CaptureTables, options: SummaryOptions, chosen: Chosen, where: str | None, *, is_disarmed: bool
) -> Summary:
    """The text of what was chosen, with what is not shown and the totals."""
    sums, shown, rows, columns = chosen
    level = sums.level
    left = set(map(id, shown))
    gone = [part for part in sums.parts if id(part) not in left]
    hidden, num_hidden = added(part.own for part in gone), sum(len(part.rows) for part in gone)
    show = Shown(options, level)
    text = [show.text(heading(tables)), "", *table(show, columns, rows)]
    if num_hidden:
        text.append(told_hidden(show, level, hidden, num_hidden, is_filtered=options.filter is not None))
    text += ["", *totals(tables, sums, show, options, where, is_disarmed=is_disarmed)]
    made = Summary("\n".join(text))
    made.rows, made.columns, made.level, made.num_hidden, made.show = tuple(rows), columns, level, num_hidden, show
    made.totals = {name: typed(name, number) for name, number in sums.totals.items()}
    made.hidden, made.outside = amounts_of(sums, hidden), amounts_of(sums, sums.outside)
    return made


def amounts_of(sums: Sums, amounts: Amounts) -> Mapping[str, Any]:
    return {name: typed(name, amounts.value(name)) if sums.is_measured(name) else None for name in ADDITIVE}


# Which rows --------------------------------------------------------------------------------------------


def level_of(tables: CaptureTables, options: SummaryOptions) -> Level:
    """Modules, where the model called any; else ops, where any ran."""
    if options.level != "auto":
        return options.level
    if options.buffers == "show":
        return "op"
    return "op" if len(tables.module_calls) == 1 and len(tables.modules) == 1 and tables.fact("num_ops") else "module"


def chosen_parts(tables: CaptureTables, options: SummaryOptions, level: Level) -> tuple[Sums, list[Part]]:
    """All parts, and of them those that are shown for their depth and number."""
    if options.flop_convention == "fma1":
        require_convertible(tables)
    fold, most, deepest = options.fold_repeats, options.max_rows, options.depth
    if fold == "auto":
        fold = most is not None and num_rows(tables, level, deepest) > most
    sums = parts_of(tables, options, level, fold=fold)
    shown = [part for part in sums.parts if not isinstance(deepest, int) or part.depth <= deepest]
    if most is not None and deepest in (None, "auto"):
        depth = max([part.depth for part in shown], default=0)
        while depth > 1 and sum(part.depth <= depth for part in shown) > most:
            depth -= 1
        shown = [part for part in shown if part.depth <= depth]
    # A filter chooses among all rows, and the first of what it chose are shown.
    return sums, shown if options.filter is not None else shown[:most]


def num_rows(tables: CaptureTables, level: Level, deepest: object) -> int:
    """Rows that there are where none is folded, versions of buffers aside."""
    if level == "op":
        return int(tables.fact("num_ops"))
    depths = tables.modules.column("address_depth")
    return sum(depth <= deepest for depth in depths) if isinstance(deepest, int) else len(depths)


def parts_of(tables: CaptureTables, options: SummaryOptions, level: Level, *, fold: bool) -> Sums:
    per_mac: FlopsPerMac = 1 if options.flop_convention == "fma1" else 2
    if level == "module":
        return by_module(tables, fold=fold, flops_per_mac=per_mac)
    return by_op(tables, fold=fold, with_buffers=options.buffers == "show", flops_per_mac=per_mac)


def require_convertible(tables: CaptureTables) -> None:
    """Refuse a multiply-accumulate as one FLOP where it is not known how many there were."""
    flops, macs = tables.ops.column("flops_forward"), tables.ops.column("macs_forward")
    for row, number in enumerate(flops):
        if number is not None and macs[row] is None:
            unavailable(f"of {tables.ops.value('label', row)} FLOPs are known and multiply-accumulates are not")
    if (fact := tables.fact("executed_flops")) and fact % 2:
        unavailable("the backward ran FLOPs that are no products")


def unavailable(problem: str) -> None:
    raise ConfigurationError(
        code="flop_convention_unavailable",
        problem=f"flop_convention is fma1, and {problem}",
        remedy='leave it at "fma2", in which they are recorded',
        argument="flop_convention",
    )


def is_wanted(asked: str | Callable[[SummaryRow], Any]) -> Callable[[SummaryRow], Any]:
    """Whether a row is asked for: by a function, or by a regular expression found in a text that names it."""
    if not isinstance(asked, str):
        return asked
    pattern = re.compile(asked)
    return lambda row: any(pattern.search(text) for text in (row.label, row.name, row.func_name or ""))


# The table ---------------------------------------------------------------------------------------------


class Shown:
    """How numbers and texts are shown.

    Args:
        options: What was asked for.
        level: What a row is.
    """

    def __init__(self, options: SummaryOptions, level: Level) -> None:
        self.units: Final = options.units
        self.style: Final = options.style
        self.level: Final = level
        self.is_filtered: Final = options.filter is not None

    def indent(self, row: SummaryRow) -> int:
        """Levels that a row is moved in: none where what it is below is not shown for sure."""
        return 0 if self.is_filtered else min(row.depth, DEEPEST)

    def head(self, name: str) -> str:
        return self.level if name == "name" else COLUMNS[name].head

    def number(self, value: Any) -> str:
        """A number in the units that were asked for, as a column shows it: those of work without their unit."""
        if isinstance(value, Duration):
            return f"{float(value):.9f}" if self.units == "raw" else str(value)
        if value.bit_length() > 63:  # no capture wrote that, and Python refuses to print some such numbers
            return "?"
        if self.units == "raw":
            return str(int(value))
        if self.units != "auto":
            return f"{value / step_of(value) ** ('KMG'.index(self.units) + 1):,.3f}"
        if type(value) is int:
            return f"{value:,}"
        return str(value).removesuffix(unit_of(value)).strip() if isinstance(value, Flops | Macs) else str(value)

    def told(self, value: Any) -> str:
        """The same with its unit."""
        if self.units == "auto" or (isinstance(value, Duration) and self.units != "raw"):
            return str(value) if isinstance(value, Duration) or value.bit_length() <= 63 else "?"
        return f"{self.number(value)} {'' if self.units == 'raw' else self.units}{unit_of(value)}"

    def cell(self, row: SummaryRow, name: str) -> str:
        """The text of a column; "-" for what there is none of, "?" for what is not known."""
        value, column = getattr(row, name), COLUMNS[name]
        if name in ("input", "output"):
            return self.shapes(row, name, value)
        if name == "name":
            named = f"{row.label} ({row.class_name})" if self.is_filtered and row.class_name else value
            return f"{named} x{row.times}" if row.times > 1 else named
        if column.unit == "%":
            return "" if value is None else f"{value:.1f}%"
        if not column.is_number:
            return "" if value is None else str(value)
        if value is None:
            return "?"
        return self.number(value) if value else "-"

    def shapes(self, row: SummaryRow, name: str, value: Any) -> str:
        if value:
            return shapes_text(value[0], len(value))
        if value is None or name == "input":
            return ""
        return "no tensor" if row.ended == "returned" else row.ended or ""

    def text(self, text: str) -> str:
        """A text in the style that was asked for, as wide as it was where it has only characters of ASCII."""
        if self.style == "ascii":
            return printable(text).replace("…", "~").encode("ascii", "backslashreplace").decode()
        return text

    @property
    def rule(self) -> str:
        return "─" if self.style == "unicode" else "-"


def unit_of(value: Any) -> str:
    units = {Flops: "FLOPs", Macs: "MACs", Bytes: "B", Duration: "s"}
    return units.get(type(value), "")


def step_of(value: Any) -> int:
    return 1024 if isinstance(value, Bytes) else 1000


def table(show: Shown, columns: Sequence[str], rows: Sequence[SummaryRow]) -> list[str]:
    """Lines of text with aligned columns: texts to the left, numbers to the right.

    Names give way where other columns need their room.
    """
    lines = [[show.head(name) for name in columns]]
    for row in rows:
        cells: list[str] = []
        for name in columns:
            text = show.text(show.cell(row, name))
            if name == "name":
                cells.append("  " * show.indent(row) + text)
            else:
                cells.append(text if COLUMNS[name].is_number else cut(text, WIDEST_TEXT))
        lines.append(cells)
    if "name" in columns:
        place = columns.index("name")
        others = sum(max(map(len, column)) for number, column in enumerate(zip(*lines, strict=True)) if number != place)
        room = max(NARROWEST, min(WIDEST_NAME, WIDTH - others - 2 * (len(columns) - 1)))
        for cells in lines:
            cells[place] = show.text(cut_name(cells[place], room))
    made = aligned(lines, right=[number for number, name in enumerate(columns) if COLUMNS[name].is_number])
    rule = show.rule * max(map(len, made))
    return [made[0], rule, *made[1:], rule]


def cut_name(text: str, room: int) -> str:
    """A name as a line has room for it; how many it stands for is always told."""
    name, mark, times = text.rpartition(" x")
    if not (mark and times.isdecimal()):
        return cut(text, room)
    return f"{cut(name, room - len(mark) - len(times))}{mark}{times}"


def told_hidden(show: Shown, level: Level, hidden: Amounts, number: int, *, is_filtered: bool) -> str:
    """How many rows are not shown, and how much of the work was theirs."""
    where = "" if is_filtered else " below"
    flops = hidden.value("flops")
    work = f", which did {show.told(typed('flops', flops))} themselves" if flops else ""
    return f"{amount(number, level)}{where} {'is' if number == 1 else 'are'} not shown{work}"


# The totals --------------------------------------------------------------------------------------------


def heading(tables: CaptureTables) -> str:
    ops = tables.ops
    inputs = [row for row, is_input in enumerate(ops.column("is_input")) if is_input]
    given = ", ".join(f"{ops.value('shape', row)} {ops.value('dtype', row)}" for row in inputs[:3])
    more = f" and {len(inputs) - 3} more" if len(inputs) > 3 else ""
    status = tables.fact("status")
    return cut(f"{tables.fact('model_class_name')} | input {given or 'none'}{more} | {status}", WIDTH)


def totals(
    tables: CaptureTables, sums: Sums, show: Shown, options: SummaryOptions, where: str | None, *, is_disarmed: bool
) -> list[str]:
    fact, told = tables.fact, show.told
    recurrent = len(fact("recurrent_layers"))
    several = f", {recurrent:,} with several passes" if recurrent else ""
    others = fact("num_tensors") - fact("num_ops")
    facts = {
        "ops": f"{fact('num_ops'):,} in {amount(fact('num_compute_layers'), 'layer')}{several};"
        f" {'1 input, buffer or output' if others == 1 else f'{others:,} inputs, buffers and outputs'}",
        "functions": functions(tables) or "none",
        "parameters": f"{fact('num_params'):,} ({fact('num_params_trainable'):,} trainable),"
        f" {told(Bytes(fact('total_param_memory')))}",
        "activations": f"{told(Bytes(fact('total_activation_memory')))},"
        f" {told(Bytes(fact('saved_activation_memory')))} kept",
        "work": work(sums, show),
        "time": durations(tables, show),
    }
    if options.buffers == "summary" and len(tables.buffers):
        facts["buffers"] = buffers(tables, show)
    if passes := fact("num_backward_passes"):
        facts["backward"] = backward(tables, show, passes)
    if is_disarmed:
        facts["disarmed"] = "no further backward pass is recorded"
    if reason := ending(tables):
        status = str(fact("status"))
        facts = {"not finite" if status == "aborted_nonfinite" else status: reason, **facts}
    lines = [show.text(cut(f"{name:<{FIRST}}{text}", WIDTH)) for name, text in facts.items()]
    if where:  # behind the first line, which says what was raised
        wrapped = textwrap.wrap(printable(where), WIDTH - FIRST, max_lines=MOST_OF_A_PLACE, placeholder=" …")
        lines[1:1] = [show.text(" " * FIRST + line) for line in wrapped]
    return lines


def ending(tables: CaptureTables) -> str | None:
    """Why the forward did not run to its end; None where it did, or where nobody could say."""
    end = ended(tables)
    if end is None:
        return None
    if end.kind == "halted":
        return end.message and f"at {end.message}"
    if end.kind == "aborted_nonfinite":
        return end.message and f"{end.message} in what a call returned"
    if end.kind == tables.fact("status"):
        return end.message
    return f"{end.short}: {end.message}" if end.message else end.kind


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


def work(sums: Sums, show: Shown) -> str:
    """FLOPs of the forward, and of how many ops they are not known."""
    flops, macs, unknown = (typed(name, sums.totals[name]) for name in ("flops", "macs", "unknown_ops"))
    if flops is None:
        return f"unknown: {amount(unknown, 'op')} not counted"
    left_out = f"; {amount(unknown, 'op')} not counted" if unknown else ""
    return f"{show.told(flops)}, {show.told(macs)} among it{left_out}"


def buffers(tables: CaptureTables, show: Shown) -> str:
    """How many buffers there are, how large, and how many were written to."""
    sizes, written = tables.buffers.column("activation_memory"), tables.buffers.column("is_overwritten")
    size = show.told(Bytes(sum(filter(None, sizes))))
    return f"{len(sizes):,}, {size}" + (f"; {sum(written):,} written to" if any(written) else "")


def backward(tables: CaptureTables, show: Shown, passes: int) -> str:
    """Backward passes, how often a node fired in them, what was kept, and those that failed."""
    fact = tables.fact
    failed, time = fact("num_failed_backward_passes"), fact("backward_duration")
    parts = [f"{amount(passes, 'pass')}{f' ({failed} failed)' if failed else ''}"]
    parts.append(amount(fact("num_grad_fn_calls"), "firing"))
    if time is not None:
        parts.append(show.told(Duration(time)))
    ops = len(fact("saved_grad_rows"))
    kept = show.told(Bytes(fact("saved_gradient_memory")))
    return f"{', '.join(parts)}; gradients of {amount(ops, 'op')}, {kept} kept"


def durations(tables: CaptureTables, show: Shown) -> str:
    calls, whole = show.told(Duration(tables.fact("func_calls_duration"))), tables.fact("forward_duration")
    return f"{calls} in torch calls" + (
        "" if whole is None else f", {show.told(Duration(whole))} forward with recording"
    )
