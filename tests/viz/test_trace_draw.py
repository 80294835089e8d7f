"""What trace.draw and trace.animate show of real captures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.page import examples
from tests.programs import PATIENCE
from tests.torchlens.models import refusal
from tests.viz import drawn_models
from tests.viz.geometry import Box, Thing, all_texts, curves, things
from tests.viz.test_drawings import words_of
from tests.work import at_most
from torchlens.errors import CompatibilityError, ConfigurationError, PayloadUnavailableError
from torchlens.viz.drawing import inline
from torchlens.viz.wording import node_words

STEPS = ("next", "next", "back", "first", "next", "next", "last", "first")

VIEWS: tuple[dict[str, Any], ...] = (
    {},
    {"collapse": "none", "direction": "topdown"},
    {"rolled": True, "direction": "leftright"},
    {"collapse": "max", "params": "always", "buffers": "always"},
    {"graph": "backward"},
    {"graph": "combined", "theme": "dark"},
)


@pytest.fixture(scope="module", params=drawn_models.MODELS, ids=lambda make: make.__name__.lower())
def trace(request: pytest.FixtureRequest) -> Iterator[tl.Trace]:
    made = drawn_models.traced(request.param)
    yield made
    made.cleanup()


@pytest.fixture(scope="module")
def loop() -> Iterator[tl.Trace]:
    made = drawn_models.traced(drawn_models.Loop)
    yield made
    made.cleanup()


def test_every_view_of_a_model_is_legible(trace: tl.Trace) -> None:
    for view in VIEWS:
        if "graph" in view and not len(trace.autograd.grad_fns):
            continue
        drawing = trace.draw(**view)
        svg = drawing.render("svg")
        nodes, clusters, whole = things(svg, "node"), things(svg, "cluster"), things(svg, "graph")[0]
        assert len(nodes) == len(drawing.picture.nodes)
        assert overlapping(nodes) == []
        assert [text.text for node in nodes for text in node.texts if not node.box.holds(text.box)] == []
        titles = [Thing(title.id, text.box, []) for title in things(svg, "title") for text in title.texts]
        assert overlapping([*titles, *nodes]) == []  # the title of a module stands on none of its nodes
        assert struck(titles, svg) == []
        assert [one.id for one in (*nodes, *clusters) if not whole.box.holds(one.box)] == []
        assert set(words_of(drawing.picture)) - set(all_texts(svg)) - {""} == set()


def test_the_sign_of_a_sum_is_in_the_legend_where_it_is_in_the_picture() -> None:
    made = tl.trace(nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(30)]), torch.ones(2, 4))
    folded = made.draw(node_lines=("time",))
    assert any(line.startswith("Σ ") for node in folded.picture.nodes for line in node.lines)
    meaning = "Σ all that are drawn as one, together"
    assert meaning in " ".join(str(folded).split())
    assert meaning in folded.source
    plain = made.draw(node_lines=("time",), fold_repeats=False, collapse="none")
    assert "Σ" not in str(plain) + plain.source
    made.cleanup()


def struck(texts: list[Thing], svg: bytes) -> list[tuple[str, str]]:
    """Texts and the lines between nodes that go through them."""
    lines = curves(svg)
    assert lines
    return [
        (text.id, name)
        for text in texts
        for name, line in lines.items()
        if any(text.box.meets(Box(x, y, x, y), slack=0) for x, y in line)
    ]


def overlapping(given: list[Thing]) -> list[tuple[str, str]]:
    return [
        (one.id, other.id) for number, one in enumerate(given) for other in given[:number] if one.box.meets(other.box)
    ]


def test_a_text_tells_every_node_once(trace: tl.Trace) -> None:
    drawing = trace.draw()
    _, _, body = str(drawing).partition("\n\n")
    numbers = re.findall(r"^ *(\d+) ", body, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(drawing.picture.nodes) + 1)]


def test_a_stored_capture_is_drawn_as_the_live_one(tmp_path: Path) -> None:
    live = tl.trace(drawn_models.mlp(), torch.ones(2, 8), journal=tmp_path / "j")
    source = live.draw().source
    live.cleanup()
    stored = tl.load(tmp_path / "j")
    assert stored.draw().source == source
    stored.cleanup()


def test_the_call_that_failed_is_red() -> None:
    trace = drawn_models.traced(drawn_models.Failing)
    drawing = trace.draw()
    failed = [number for number, node in enumerate(drawing.picture.nodes) if node.kind == "failed"]
    assert len(failed) == 1
    line = next(line for line in drawing.source.split("\n") if line.strip().startswith(f"n{failed[0]} ["))
    assert tl.viz.LIGHT.failed in line
    words = node_words(drawing.picture.nodes[failed[0]])[1]
    assert words == drawing.picture.nodes[failed[0]].lines  # the picture tells it, and nobody twice
    trace.cleanup()


class FailingLate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for number in range(5):
            x = torch.tanh(self.cell(x))
            if number == 2:
                return x @ torch.ones(3, 3)
        return x


def test_where_loops_are_rolled_the_call_that_failed_tells_the_pass_that_fed_it() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(FailingLate(), torch.ones(2, 4))
    trace = caught.value.partial_trace
    assert isinstance(trace, tl.Trace)
    picture = trace.draw(rolled=True).picture
    into = [edge for edge in picture.edges if picture.nodes[edge.target].kind == "failed"]
    assert {(picture.nodes[edge.source].title, edge.label) for edge in into} == {("tanh_1", "from pass 3")}
    assert {edge.label for edge in trace.draw().picture.edges} == {None}
    trace.cleanup()


def test_what_is_highlighted_and_labelled_is_that_of_the_trace(loop: tl.Trace) -> None:
    drawing = loop.draw(
        highlight=tl.func("tanh"), node_label=lambda record: f"<{type(record).__name__}>", collapse="none"
    )
    told = [drawing.picture.nodes[position].title for position in drawing.look.highlighted]
    assert len(told) == 4
    assert all(title.startswith("tanh") for title in told)
    assert set(drawing.look.labels.values()) == {"<Op>"}


def test_each_pass_of_a_site_is_a_frame_with_its_node(loop: tl.Trace) -> None:
    layer = next(layer for layer in loop.layers.recurrent if layer.layer_type == "tanh")
    fragment = loop.animate(layer)
    found = re.search(r'<script type="application/json">(.*?)</script>', fragment, re.DOTALL)
    assert found is not None
    frames = json.loads(found[1])
    assert [frame["text"] for frame in frames] == [
        f"{label}: pass {number} of 4, (2, 8) float32" for number, label in enumerate(layer.op_labels, 1)
    ]
    picture = loop.draw(fold_repeats=False).picture
    rows = {row for frame in frames for node in frame["nodes"] for row in picture.nodes[node].rows}
    assert {loop.ops[label].row for label in layer.op_labels} <= rows
    assert fragment.count("<svg ") == 1
    assert loop.animate(layer.layer_label) == fragment == loop.animate(loop.ops[layer.op_labels[1]])


def frames_of(fragment: str) -> list[list[int]]:
    found = re.search(r'<script type="application/json">(.*?)</script>', fragment, re.DOTALL)
    assert found is not None
    return [frame["nodes"] for frame in json.loads(found[1])]


def test_each_of_many_passes_is_a_node_of_its_own_or_the_loop_is_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(examples.Recurrent(20), torch.ones(1, 8))
    assert any(node.kind == "ops" for node in trace.draw(fold_repeats=False).picture.nodes)
    fragment = trace.animate("tanh_1")
    frames = frames_of(fragment)
    assert [len(nodes) for nodes in frames] == [1] * 20
    assert len({node for nodes in frames for node in nodes}) == 20
    for number, (node,) in enumerate(frames, 1):
        assert f">tanh_1:{number}</text>" in fragment.split(f'data-id="n{node}"')[1].split("</g>")[0]
    monkeypatch.setattr("torchlens.viz.animation.MOST_NODES_APART", 40)
    assert len({tuple(nodes) for nodes in frames_of(trace.animate("tanh_1"))}) == 1
    trace.cleanup()


def test_several_drawings_in_one_page_share_no_ids(loop: tl.Trace) -> None:
    for shown in (loop.animate("tanh_1"), loop.draw()._repr_svg_()):
        assert shown is not None
        assert 'data-id="n0"' in shown
        assert re.search(r"""\sid=["']""", shown) is None
    kept = """<svg a="x id='1'" id="a"><g id='b'>text id="c" &gt;</g><use href="#d"/><g id="d"/></svg>"""
    assert inline(kept.encode()).replace('style="max-width:100%;height:auto" ', "") == (
        """<svg a="x id='1'" data-id="a"><g data-id='b'>text id="c" &gt;</g><use href="#d"/><g id="d"/></svg>"""
    )


def test_what_stands_on_a_node_names_it_where_loops_are_rolled(loop: tl.Trace) -> None:
    drawing = loop.draw(rolled=True, highlight="tanh_1")
    assert [drawing.picture.nodes[node].title for node in drawing.look.highlighted] == ["tanh_1"]
    assert loop.animate("tanh_1") == loop.animate("tanh_1_4")


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(4, 4) for _ in range(60))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([linear(x) for linear in self.linears]).sum(0)


def test_several_ops_in_one_node_are_told_as_kept_where_all_of_them_were() -> None:
    every = tl.trace(Wide(), torch.ones(2, 4))
    drawing = every.draw(fold_repeats=False)
    assert any(node.kind == "ops" for node in drawing.picture.nodes)
    assert "op, not kept" not in drawing.source
    some = tl.trace(Wide(), torch.ones(2, 4), save=[f"linears.{number}" for number in range(0, 60, 2)])
    told = some.draw(fold_repeats=False)
    assert "op, not kept" in told.source
    assert re.search(r"\d+ of \d+ kept", str(told))
    for made in (every, some):
        made.cleanup()


def test_an_animation_needs_nothing_from_elsewhere(loop: tl.Trace, tmp_path: Path) -> None:
    fragment = loop.animate("tanh_1_4")
    reached = re.findall(r"https?://[^\"' ]+", fragment)
    assert set(reached) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not addresses
    assert re.search(r"\b(eval|fetch|import|XMLHttpRequest|innerHTML|src=)\b", fragment) is None
    assert fragment._repr_html_() == fragment
    page = fragment.save(tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert fragment in page


def test_an_animation_is_a_whole_file_and_replaces_one_only_when_asked(loop: tl.Trace, tmp_path: Path) -> None:
    fragment = loop.animate("tanh_1_4")
    path = fragment.save(tmp_path / "page.html")
    path.write_text("mine")
    assert refusal(lambda: fragment.save(path), ConfigurationError) == "drawing_path_exists"
    assert path.read_text() == "mine"
    assert fragment in fragment.save(path, overwrite=True).read_text()
    nowhere = tmp_path / "no such folder" / "page.html"
    assert refusal(lambda: fragment.save(nowhere), ConfigurationError) == "drawing_not_written"


def test_an_animation_beyond_what_a_browser_opens_is_refused(loop: tl.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchlens.json_in_html.MOST_BYTES", 2)
    assert refusal(lambda: loop.animate("tanh_1_4"), CompatibilityError) == "animation_too_large"


@pytest.mark.parametrize("site", [tl.func("linear"), "cell", "cell.weight", [], 5, None, ["tanh_1_4", "add_1_3"]])
def test_what_is_not_one_layer_is_not_animated(loop: tl.Trace, site: Any) -> None:
    assert refusal(lambda: loop.animate(site), ConfigurationError) == "animation_site_invalid"


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ({"graph": "sideways"}, "visualization_mode_invalid"),
        ({"collapse": "some"}, "collapse_mode_invalid"),
        ({"collapse": 2.5}, "collapse_level_invalid"),
        ({"fold_repeats": 3}, "fold_repeats_invalid"),
        ({"buffers": "all"}, "buffer_visibility_invalid"),
        ({"node_lines": ("colour",)}, "visualization_node_style_invalid"),
        ({"node_label": 3}, "visualization_node_style_invalid"),
        ({"theme": "neon"}, "visualization_theme_invalid"),
        ({"layout": "circo"}, "visualization_layout_invalid"),
        ({"direction": "inside out"}, "visualization_direction_invalid"),
        ({"renderer": "dagua"}, "visualization_renderer_invalid"),
        ({"legend": "yes"}, "visualization_legend_invalid"),
        ({"highlight": 3.5}, "visualization_highlight_invalid"),
    ],
)
def test_what_is_no_value_of_an_option_is_refused(loop: tl.Trace, option: dict[str, Any], code: str) -> None:
    assert refusal(lambda: loop.draw(**option), ConfigurationError) == code


def test_a_backward_is_not_drawn_before_there_is_one() -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    assert refusal(lambda: trace.draw(graph="backward"), PayloadUnavailableError) == "backward_graph_unavailable"
    trace.cleanup()
    assert refusal(trace.draw, tl.TorchLensError) == "trace_cleaned_up"
    assert refusal(lambda: trace.animate("relu_1_1"), tl.TorchLensError) == "trace_cleaned_up"


class Deep(nn.Module):
    """Many blocks, no two of which are alike."""

    def __init__(self, blocks: int, within: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Tanh() for _ in range(within + n % 7))) for n in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_thousands_of_ops_are_drawn_collapsed_in_a_moment() -> None:
    trace = tl.trace(Deep(60, 40), torch.ones(2), save=[])
    assert len(trace.ops) > 2500
    trace.draw()  # the tables are folded when they are first read
    with at_most(10):
        drawing = trace.draw()
        svg = drawing.render("svg")
    assert len(things(svg, "node")) == len(drawing.picture.nodes) < 100
    trace.cleanup()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_buttons_of_an_animation_step_through_its_passes(loop: tl.Trace, tmp_path: Path) -> None:
    told = "document.querySelector('output').textContent"
    press = "".join(f"document.querySelector('[data-go={name}]').click(); said.push({told});" for name in STEPS)
    script = f"<script>const said = [{told}]; {press} document.title = said.join(';')</script></body>"
    page = loop.animate(tl.func("tanh")).save(tmp_path / "page.html")
    page.write_text(page.read_text().replace("</body>", script))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title is not None
    assert re.findall(r"pass (\d) of 4", title[1]) == list("123212341")
