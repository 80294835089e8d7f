"""What ``trace.summary()`` shows."""

from __future__ import annotations

import copy
import inspect
import re
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import ConfigurationError
from torchlens.printable import amount
from torchlens.reading.summary_columns import COLUMNS, SummaryRow
from torchlens.reading.summary_options import ONE_CALL, SummaryAsked, SummaryOptions


def cells(text: str) -> list[list[str]]:
    """The lines of the tree, as words."""
    lines = text.splitlines()
    first, last = (number for number, line in enumerate(lines) if line.startswith("---"))
    return [line.split() for line in lines[first + 1 : last]]


def test_counts_read_as_one_says_them() -> None:
    assert [amount(number, "op") for number in (0, 1, 2048)] == ["0 ops", "1 op", "2,048 ops"]
    assert [amount(number, "pass") for number in (1, 2)] == ["1 pass", "2 passes"]


def test_a_summary_is_the_module_tree_with_totals(worked: tl.Trace) -> None:
    text = worked.summary()
    assert text.splitlines()[0] == "Worked | input (2, 4) float32 | complete"
    tree = cells(text)
    assert [line[:4] for line in tree] == [
        ["self", "(Worked)", "1", "15"],
        ["fc", "(Linear)", "3", "3"],
        ["blk", "(Block)", "2", "4"],
        ["lin", "(Linear)", "2", "2"],
        ["act", "(ReLU)", "2", "2"],
        ["scale", "(Scale)", "1", "1"],
        ["head", "(Linear)", "1", "1"],
        ["unused", "(Linear)", "-", "-"],
    ]
    assert "15 in 9 layers, 4 with several passes" in text
    assert "linear 6, tanh 3" in text
    assert "55 (52 trainable), 220 B" in text
    assert "no tensor" in text


def test_a_summary_fits_a_terminal(worked: tl.Trace) -> None:
    assert max(len(line) for line in worked.summary().splitlines()) <= 80


def test_depth_and_rows_bound_the_tree(worked: tl.Trace) -> None:
    shallow = worked.summary(depth=1)
    assert len(cells(shallow)) == 6
    assert "2 modules below are not shown" in shallow
    assert cells(worked.summary(max_rows=6)) == cells(shallow), "the deepest level is left out first"
    assert len(cells(worked.summary(max_rows=3))) == 3


def test_a_submodule_stands_below_the_module_that_holds_it() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleDict({"used": nn.ReLU(), "unused": nn.ReLU()})
            self.second = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first["used"](x))
            return out

    names = [line[0] for line in cells(tl.trace(Partly(), torch.ones(2)).summary())]
    assert names == ["self", "first", "used", "unused", "second"]


def test_a_very_long_name_is_cut() -> None:
    model = nn.Sequential()
    model.add_module("a" * 200, nn.ReLU())
    text = tl.trace(model, torch.ones(2)).summary()
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_plain_function_and_a_failed_capture_have_summaries() -> None:
    def model(x: Tensor) -> Tensor:
        raise ValueError

    assert "cos 1" in tl.trace(torch.cos, torch.ones(2)).summary()
    try:
        tl.trace(model, torch.ones(2))
    except tl.TraceCaptureError as exc:
        assert exc.partial_trace is not None  # noqa: PT017  # the trace inside is what is asked about
        text = exc.partial_trace.summary()
    assert "failed" in text.splitlines()[0]
    assert "none" in text


def test_a_trace_shows_itself_in_a_line(worked: tl.Trace) -> None:
    assert repr(worked) == "<Trace Worked: 15 ops, complete>"


def test_a_module_that_raised_is_not_said_to_have_returned_no_tensor() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(nn.Sequential(nn.Linear(4, 5), nn.Linear(6, 2)), torch.ones(1, 4))
    assert caught.value.partial_trace is not None
    summary = caught.value.partial_trace.summary()
    (raised,) = (line for line in summary.splitlines() if line.startswith("  1 (Linear)"))
    assert raised.split()[4] == "raised"
    assert "no tensor" not in summary


# -- what may be asked for


class Repeated(nn.Module):
    """Four equal blocks, one that is not, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)])
        self.blocks.append(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def repeated() -> tl.Trace:
    return tl.trace(Repeated(), torch.ones(3, 4))


def test_equal_neighbours_are_one_row_where_not_all_would_fit(repeated: tl.Trace) -> None:
    apart, folded = repeated.summary(), repeated.summary(max_rows=10)
    assert len(apart.rows) == 17
    assert [(row.label, row.times, row.calls, row.ops, row.params, row.flops) for row in folded.rows] == [
        ("self", 1, 1, 10, 90, 540),
        ("blocks", 1, 0, 10, 90, 540),
        ("blocks.0", 4, 4, 8, 80, 480),
        ("blocks.0.0", 4, 4, 4, 80, 432),
        ("blocks.0.1", 4, 4, 4, 0, 48),
        ("blocks.4", 1, 1, 2, 10, 60),
        ("blocks.4.0", 1, 1, 1, 10, 54),
        ("blocks.4.1", 1, 1, 1, 0, 6),
    ]
    assert "    0..3 (Sequential) x4 " in folded
    assert len(repeated.summary(max_rows=10, fold_repeats=False).rows) == 7, "the deepest level is left out"
    assert repeated.summary(fold_repeats=True) == folded


def test_blocks_that_did_not_do_the_same_are_not_folded() -> None:
    class Skipping(Repeated):
        def forward(self, x: Tensor) -> Tensor:
            for number, block in enumerate(self.blocks):
                x = block[0](x) if number == 1 else block(x)
            return x

    labels = [row.label for row in tl.trace(Skipping(), torch.ones(3, 4)).summary(fold_repeats=True, depth=2).rows]
    assert labels == ["self", "blocks", "blocks.0", "blocks.1", "blocks.2", "blocks.4"]


def test_passes_of_a_layer_are_folded_at_the_level_of_ops(worked: tl.Trace) -> None:
    apart, folded = worked.summary("op"), worked.summary("op", fold_repeats=True)
    assert len(apart.rows) == 15
    assert len(folded.rows) == 9
    assert folded.rows[0].name == "linear_1_1"
    assert folded.rows[0].times == folded.rows[0].calls == 3
    assert folded.rows[0].flops == sum(row.flops or 0 for row in apart.rows if row.name.startswith("linear_1_1:"))
    assert "linear_1_1 x3" in folded


def test_a_model_without_submodules_shows_its_ops(worked: tl.Trace) -> None:
    assert tl.trace(torch.cos, torch.ones(2)).summary().level == "op"
    assert worked.summary().level == "module"
    assert worked.summary("op").rows[0].label == "linear_1_1:1"


def test_versions_of_buffers_are_rows_where_they_are_asked_for(worked: tl.Trace) -> None:
    shown = worked.summary(buffers="show")
    assert [row.label for row in shown.rows if row.kind == "buffer"] == ["buffer_1"]
    assert "buffers     1, 16 B" in worked.summary()
    assert "buffers     1" not in worked.summary(buffers="hide")


def test_columns_are_chosen_by_name(repeated: tl.Trace) -> None:
    chosen = repeated.summary(columns=["label", "input", "self_flops"], depth=2)
    assert chosen.columns == ("label", "input", "self_flops")
    assert cells(chosen)[2] == ["blocks.0", "(3,", "4)", "-"]
    changed = repeated.summary(columns=["+macs", "-time"])
    assert changed.columns == ("name", "calls", "ops", "output", "params", "flops", "macs")
    assert repeated.summary("op", view="compute").columns[-1] == "evidence"


def test_every_column_shows_at_its_levels(worked: tl.Trace) -> None:
    for name, column in COLUMNS.items():
        for level in ("module", "op"):
            if column.level in (None, level):
                text = worked.summary(level, columns=[name])
                assert text.columns == (name,)
            else:
                with pytest.raises(ConfigurationError, match="have no column"):
                    worked.summary(level, columns=[name])


def test_a_filter_shows_what_it_finds_and_tells_what_it_leaves_out(repeated: tl.Trace) -> None:
    found = repeated.summary(filter="ReLU")
    assert [row.label for row in found.rows] == [f"blocks.{number}.1" for number in range(5)]
    assert "blocks.3.1 (ReLU)" in found
    assert "12 modules are not shown, which did 486 FLOPs themselves" in found
    large = repeated.summary("op", filter=lambda row: row.flops and row.flops > 100, max_rows=3)
    assert [row.label for row in large.rows] == ["linear_1_1", "linear_2_3", "linear_3_5"]
    assert not repeated.summary(filter="nothing").rows


def test_what_a_filter_raises_is_raised(repeated: tl.Trace) -> None:
    with pytest.raises(KeyError, match="mine"):
        repeated.summary(filter=lambda row: {}["mine"])


def test_numbers_come_in_the_units_that_are_asked_for(repeated: tl.Trace) -> None:
    def row(units: str) -> list[str]:
        return repeated.summary(columns=["flops", "param_memory", "macs"], units=units, depth=0).splitlines()[4].split()

    assert row("auto") == ["540", "360", "B", "216"]
    assert row("raw") == ["540", "360", "216"]
    assert row("K") == ["0.540", "0.352", "0.216"]
    assert "540 FLOPs, 216 MACs" in repeated.summary(units="raw")
    assert "0.540 KFLOPs, 0.216 KMACs" in repeated.summary(units="K")


def test_a_multiply_accumulate_may_count_as_one(repeated: tl.Trace) -> None:
    assert repeated.summary(flop_convention="fma1").totals["flops"] == 540 - 216


def test_a_style_chooses_characters() -> None:
    model = nn.Sequential()
    model.add_module("größe", nn.ReLU())
    trace = tl.trace(model, torch.ones(2))
    assert trace.summary(style="ascii").isascii()
    assert "gr\\xf6\\xdfe (ReLU)" in trace.summary(style="ascii")
    assert "───" in trace.summary(style="unicode")
    assert "größe (ReLU)" in trace.summary()


def test_an_unknown_amount_is_never_nought() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * grad

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Double.apply(x)

    trace = tl.trace(nn.Sequential(Odd(), nn.ReLU()), torch.ones(3, 3))
    odd = trace.summary().rows[1]
    assert odd.flops is None
    assert odd.unknown_ops == 1
    assert cells(trace.summary())[1][-3] == "?"
    assert trace.summary(columns=["backward_flops"]).rows[0].backward_flops is None, "it was not counted"


HOSTILE = "a|b`*_<img src=x>&\x1b[31m\n| c"


def test_names_are_escaped_in_markdown_and_html() -> None:
    model = nn.Sequential()
    model.add_module(HOSTILE.replace(".", "_"), nn.ReLU())
    summary = tl.trace(model, torch.ones(2)).summary()
    lines = summary.to_markdown().splitlines()
    assert len(lines) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    assert "<img" not in summary.to_markdown()
    for page in (summary.to_html(), summary._repr_html_()):
        assert "<img" not in page
        assert "\x1b" not in page
        assert page.startswith("<table><caption>Sequential | input (2,) float32 | complete</caption>")


def test_a_data_frame_has_every_column_in_plain_numbers(repeated: tl.Trace) -> None:
    frame = repeated.summary().to_pandas()
    assert list(frame.columns) == [field.name for field in attrs.fields(SummaryRow)]
    assert set(COLUMNS) <= set(frame.columns)
    assert frame["self_flops"].sum() == 540


# -- what may not


@pytest.mark.parametrize(
    ("code", "options", "said"),
    [
        ("summary_level_invalid", {"level": "graph"}, "graph"),
        ("summary_option_invalid", {"view": "both"}, "overview, compute"),
        ("summary_option_invalid", {"depth": -1}, "from 0 on"),
        ("summary_option_invalid", {"depth": True}, "from 0 on"),
        ("summary_option_invalid", {"max_rows": 0}, "from 1 on"),
        ("summary_option_invalid", {"columns": ["flop"]}, "did you mean flops"),
        ("summary_option_invalid", {"columns": []}, "list of names"),
        ("summary_option_invalid", {"columns": ["name", "name"]}, "once"),
        ("summary_option_invalid", {"filter": "("}, "regular expression"),
        ("summary_option_invalid", {"filter": 3}, "regular expression"),
        ("summary_option_invalid", {"buffers": "all"}, "hide"),
        ("summary_option_invalid", {"flop_convention": "fma3"}, "fma1"),
        ("summary_option_invalid", {"units": "k"}, "raw"),
        ("summary_option_invalid", {"style": "loud"}, "ascii"),
        ("summary_option_invalid", {"show_ops": True}, 'level="op"'),
        ("summary_option_invalid", {"preset": "x"}, "view="),
        ("summary_option_invalid", {"colums": ["name"]}, "did you mean columns"),
        ("fold_repeats_invalid", {"fold_repeats": 2}, "auto"),
        ("summary_one_call_only", {"input_size": (1, 2)}, "tl.summary"),
        ("summary_one_call_only", {"execution_mode": "train"}, "tl.summary"),
        ("summary_option_conflict", {"level": "op", "depth": 1}, "depth"),
        ("summary_option_conflict", {"level": "module", "buffers": "show"}, "buffers"),
        ("summary_option_conflict", {"view": "compute", "columns": ["name"]}, "leave out one"),
        ("summary_option_conflict", {"columns": ["name", "+macs"]}, "alone"),
        ("summary_option_conflict", {"level": "module", "columns": ["evidence"]}, 'level="op"'),
    ],
)
def test_what_a_summary_cannot_do_is_refused(repeated: tl.Trace, code: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        repeated.summary(**options)
    assert caught.value.fields["code"] == code
    assert said in str(caught.value)


def test_a_convention_that_the_records_do_not_bear_is_refused() -> None:
    trace = tl.trace(nn.Linear(2, 2), torch.ones(2))
    trace.tables.ops.column("macs_forward")
    trace.tables.ops.made["macs_forward"] = [None] * 3  # as records would have it that another program made
    with pytest.raises(ConfigurationError) as caught:
        trace.summary(flop_convention="fma1")
    assert caught.value.fields["code"] == "flop_convention_unavailable"


# -- the page


def test_every_option_and_every_column_stands_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "summary.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    told = {word.strip("`") for row in rows for word in row.split(", ")}
    taken = inspect.signature(tl.Trace.summary).parameters
    options = {name for name, one in taken.items() if one.kind is not one.VAR_KEYWORD} - {"self"}
    assert told >= options | set(COLUMNS) | {field.name for field in attrs.fields(SummaryRow)}


def test_each_option_is_declared_alike_as_a_keyword_and_as_an_option() -> None:
    keywords, options = SummaryAsked.__annotations__, attrs.fields_dict(SummaryOptions)
    assert ["level", *keywords] == list(options)
    types = {name: kind.__forward_arg__ for name, kind in keywords.items()}
    assert types.pop("columns") == "Sequence[str] | str | None"  # a tuple, where it was checked
    assert types == {name: options[name].type for name in types}


def test_both_summaries_take_the_same_options_with_the_same_defaults() -> None:
    of_trace, of_model = (dict(inspect.signature(verb).parameters) for verb in (tl.Trace.summary, tl.summary))
    others = of_model.keys() - of_trace.keys()
    assert others == {"model", "input_args", "input_kwargs", *ONE_CALL}
    assert [of_model[name] for name in SummaryAsked.__annotations__] == [
        of_trace[name] for name in SummaryAsked.__annotations__
    ]
    defaults = {name: one.default for name, one in of_trace.items() if name != "self"}
    assert defaults == {field.name: field.default for field in attrs.fields(SummaryOptions)}
    assert of_model["level"].default == of_trace["level"].default


def timeless(text: str) -> list[str]:
    """The lines of a summary without the times, and without the widths that those have."""
    return [" ".join(re.sub(r"[\d.]+ [mun]?s\b", "", line).split()) for line in text.splitlines()]


def test_the_summary_of_the_documentation_is_what_comes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "summary.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    trace = tl.trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
    rules = re.compile(r"^-+$")
    found, wanted = ([line for line in timeless(text) if not rules.match(line)] for text in (trace.summary(), shown))
    assert found == wanted


def test_a_summary_and_a_cost_tree_go_to_other_processes(worked: tl.Trace) -> None:
    for made in (worked.summary(filter=lambda row: row.depth < 2), tl.report.cost_tree(worked)):
        copied = copy.deepcopy(made)
        assert (str(copied), copied.rows) == (str(made), made.rows)
        assert copied is not made
        assert ForkingPickler.dumps(made)
    assert copy.deepcopy(worked.summary()).totals == worked.summary().totals
