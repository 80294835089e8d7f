"""A drawing shows everything of its picture and nothing else, in every language, whoever wrote its names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest
from rich.cells import cell_len

import torchlens as tl
from projections.picture import Node, Picture
from tests.torchlens.models import refusal
from tests.viz.geometry import SVG, all_texts, things
from tests.viz.hand_made import HOSTILE, chain, hostile, op, small
from torchlens.errors import ConfigurationError, GraphvizUnavailableError, RenderingError, TorchLensWarning
from torchlens.viz import THEMES, Drawing, Edge, Graphviz, Look, Theme, programs, registry
from torchlens.viz.dot import dot_of
from torchlens.viz.look import look_of
from torchlens.viz.wording import caption_of, cluster_words, edge_word, node_words

PROGRAMS = [name for name, lacks in tl.viz.renderers().items() if lacks is None and name != "text"]

FAILED = frozenset(("failed",))


def words_of(picture: Picture) -> Iterator[str]:
    """Every text of a picture, as it is to be read."""
    title, caption = caption_of(picture)
    yield from (title, *caption)
    for node in picture.nodes:
        title, lines = node_words(node)
        yield from (title, *lines)
    for cluster in picture.clusters:
        title, lines = cluster_words(cluster)
        yield from (title, *lines)
    yield from filter(None, map(edge_word, picture.edges))


def test_a_program_that_draws_is_installed_with_the_tests() -> None:
    assert PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("make", [small, hostile])
def test_every_text_of_a_picture_stands_in_the_svg_as_it_is(make: Callable[[], Picture], program: str) -> None:
    picture = make()
    shown = all_texts(Drawing(picture, renderer=program).render("svg"))
    told = [re.sub(r"\s+", " ", text).strip() for text in shown]
    missing = {re.sub(r"\s+", " ", word).strip() for word in words_of(picture)} - set(told) - {""}
    assert missing == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_hostile_names_add_nothing_to_an_svg(program: str) -> None:
    root = ElementTree.fromstring(Drawing(hostile(), renderer=program).render("svg"))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "title", "polygon", "polyline", "path", "text", "a", "tspan", "ellipse"}
    assert [key for element in root.iter() for key in element.attrib if key.lower().startswith("on")] == []
    assert len(things(Drawing(hostile(), renderer=program).render("svg"), "node")) == len(HOSTILE)


def test_a_notebook_gets_the_element_alone_and_the_text() -> None:
    shown = Drawing(hostile())._repr_mimebundle_()
    assert set(shown) == {"text/plain", "image/svg+xml"}
    svg = shown["image/svg+xml"]
    assert svg.startswith("<svg ")
    assert "<!DOCTYPE" not in svg
    ElementTree.fromstring(svg)
    assert "<script" not in svg


def test_hostile_names_are_bounded_and_printable_in_the_text_and_the_source() -> None:
    drawing = Drawing(hostile())
    for line in str(drawing).split("\n"):
        assert line.isprintable()
        assert cell_len(line) <= 80
    assert len(drawing.source) < 300_000
    assert drawing.source.replace("\n", "").isprintable()
    drawing.source.encode()
    assert repr(drawing).isprintable()


def test_the_source_has_the_nodes_clusters_and_edges_of_the_picture_and_no_others() -> None:
    for picture in (small(), hostile(), chain(5, within=4)):
        source = dot_of(picture, Look())
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', source)
        bare = re.sub(r"label=<.*?>(?=[ \]])", "", bare)
        assert len(re.findall(r"^\s*n\d+ \[", bare, re.MULTILINE)) == len(picture.nodes)
        assert len(re.findall(r"^\s*subgraph cluster_\d+ \{", bare, re.MULTILINE)) == len(picture.clusters)
        assert len(re.findall(r"^\s*n\d+ -> n\d+ \[", bare, re.MULTILINE)) == len(picture.edges)
        assert bare.count("{") == bare.count("}") == 1 + len(picture.clusters)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("direction", ["bottomup", "topdown", "leftright"])
def test_nodes_do_not_overlap_and_hold_their_texts(direction: str, program: str) -> None:
    look = look_of(theme="light", direction=direction, layout="auto", legend=True)
    svg = Drawing(small(), look, renderer=program).render("svg")
    nodes = things(svg, "node")
    assert len(nodes) == len(small().nodes)
    for number, node in enumerate(nodes):
        assert [text.text for text in node.texts if not node.box.holds(text.box)] == []
        assert [other.id for other in nodes[:number] if node.box.meets(other.box)] == []
    whole = things(svg, "graph")[0]
    for thing in (*nodes, *things(svg, "cluster")):
        assert whole.box.holds(thing.box)
        assert [text.text for text in whole.texts if text.box.meets(thing.box)] == []


def test_the_forward_goes_where_the_direction_says() -> None:
    def places(direction: str) -> tuple[float, float, float, float]:
        look = look_of(theme="light", direction=direction, layout="dot", legend=False)
        first, last = (thing.box for thing in things(Drawing(chain(2), look).render("svg"), "node"))
        return first.left, first.top, last.left, last.top

    left, top, last_left, last_top = places("topdown")
    assert last_top > top
    left, top, last_left, last_top = places("bottomup")
    assert last_top < top
    left, top, last_left, last_top = places("leftright")
    assert last_left > left


def test_equal_pictures_give_equal_sources_texts_and_svgs() -> None:
    assert Drawing(small()).source == Drawing(small()).source
    assert str(Drawing(small())) == str(Drawing(small()))
    assert Drawing(small()).render("svg") == Drawing(small()).render("svg")


def test_the_text_tells_nodes_by_number_and_from_where_they_read() -> None:
    told = str(Drawing(small(), Look(legend=False)))
    assert (
        told
        == """\
Small
14 nodes
nothing hidden

   + encoder  Encoder
   | + encoder.0 x 12  Block
   | | + x 3
 1 | | | * relu_0_0  (2, 3) float32  <- 5  again after 2
 2 | | o relu_1_1  (2, 3) float32  in place  <- 1 (mask)
 3 | o relu_2_2  (2, 3) float32  opaque  <- 2  written by 7  of 10
 4 o relu_3_3  (2, 3) float32  halted here  checkpointed  made by a backward
       pass  made without inputs  reaches no output  <- 10
 5 > the input x 3  a line  another  2 passes
 6 < the output x 3  a line  another  2 passes  <- 3
 7 b the buffer x 3  a line  another  2 passes
 8 p the param x 3  a line  another  2 passes
 9 # the module x 3  a line  another  2 calls  <- nothing
10 d the grad_fn x 3  a line  another  fired 2 times  again after 10 (loop)
11 X the failed x 3  a line  another  2 passes
12 : the ops x 3  a line  another  2 passes  <- nothing
13 D the grad_fns x 3  a line  another  2 passes
14 P the params x 3  a line  another  2 passes"""
    )


def test_modules_as_deep_as_they_come_are_drawn_without_a_stack() -> None:
    deep = chain(3, within=3000)
    assert Drawing(deep).source.count("subgraph") == 3000
    assert max(map(cell_len, str(Drawing(deep)).split("\n"))) <= 80


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_browser_shows_an_svg_well_whatever_fonts_it_has(program: str) -> None:
    root = ElementTree.fromstring(Drawing(small(), renderer=program).render("svg"))
    whole = root.find(f"{SVG}g")
    assert whole is not None
    groups = [(group.get("class"), group) for group in whole.findall(f"{SVG}g")]
    nodes = [group for kind, group in groups if kind == "node"]
    assert len(nodes) == len(small().nodes)
    for group in nodes:
        assert {text.get("text-anchor") for text in group.iter(f"{SVG}text")} == {"middle"}
        assert len({text.get("x") for text in group.iter(f"{SVG}text")}) == 1
        title, lines = node_words(small().nodes[int(group.get("id", "")[1:])])
        assert group.findtext(f"{SVG}title") == "\n".join((title, *lines))  # what a pointer that rests on it shows
    kinds = [kind for kind, _ in groups]
    assert kinds[-3:] == ["title"] * 3  # behind the edges, so in front of them
    assert kinds.count("title") == kinds.count("cluster") == 3
    for kind, group in groups:
        if kind == "cluster":
            assert list(group.iter(f"{SVG}text")) == []
        if kind == "title":
            assert {text.get("paint-order") for text in group.iter(f"{SVG}text")} == {"stroke"}


WRITTEN = Picture(
    title="Names",
    nodes=(op(0, title="漢字かな混じり文を読む層"), op(1, title="emoji 🧪🧪🧪🧪🧪🧪🧪🧪")),
    edges=(Edge(source=0, target=1),),
)


def test_nodes_are_as_wide_as_letters_that_a_program_has_no_fonts_for() -> None:
    svg = Drawing(WRITTEN, renderer="graphviz-pure").render("svg")
    assert [text.text for node in things(svg, "node") for text in node.texts if not node.box.holds(text.box)] == []


def test_a_png_without_some_letters_warns_of_them() -> None:
    with pytest.warns(TorchLensWarning) as caught:
        Drawing(WRITTEN, renderer="graphviz-pure").render("png")
    (warned,) = caught
    assert isinstance(warned.message, TorchLensWarning)
    assert warned.message.code == "visualization_letters_missing"
    plain = Picture(title="T", nodes=(op(0, title="Δx → äß, Имя, ½ ≥ Σ …"),))
    Drawing(plain, renderer="graphviz-pure").render("png")  # a warning would be an error
    Drawing(WRITTEN, renderer="graphviz-pure").render("svg")


# -- the look


@pytest.mark.parametrize("name", THEMES)
def test_every_text_of_a_theme_stands_out_from_what_is_behind_it(name: str) -> None:
    theme = THEMES[name]
    fills = ("op", "kept", "input", "output", "param", "buffer", "module", "grad_fn")
    for fill in (*fills, "cluster", "background", "failed"):
        assert contrast(theme.ink, getattr(theme, fill)) >= 4.5, fill
    for fill in (*fills, "cluster", "background"):
        assert contrast(theme.faint, getattr(theme, fill)) >= 4.5, fill
    assert min(contrast(theme.inplace, fill) for fill in (theme.op, theme.kept)) >= 4.5
    for word in ("gradient", "inplace", "line"):
        assert contrast(getattr(theme, word), theme.background) >= 3, word  # WCAG 2.1, 1.4.11


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_a_theme_gives_each_kind_its_colour_and_the_legend_tells_them(name: str) -> None:
    look = look_of(theme=name, direction="bottomup", layout="auto", legend=True)
    source = Drawing(small(), look).source
    for field in attrs.fields(Theme):
        if field.name not in ("name", "font", "highlight"):
            assert getattr(THEMES[name], field.name) in source, field.name
    told = all_texts(Drawing(small(), look).render("svg"))
    fills = {
        "input",
        "output",
        "op, kept",
        "op, not kept",
        "module, closed",
        "parameter",
        "buffer",
        "grad_fn",
        "failed",
    }
    lines = {"gradient kept", "dashed: opaque", "gradient flows", "dashed: writes", "dashed: again"}
    assert fills | lines <= set(told)


def test_the_legend_tells_only_what_is_there_and_nothing_where_it_is_not_wanted() -> None:
    told = all_texts(Drawing(chain(2)).render("svg"))
    assert "op, not kept" in told
    assert "input" not in told
    assert "op, not kept" not in all_texts(Drawing(chain(2), Look(legend=False)).render("svg"))


def test_what_a_picture_tells_by_itself_is_not_told_twice() -> None:
    call = Node(key="a", kind="failed", title="matmul", lines=("RuntimeError",), table="", rows=(), marks=FAILED)
    closed = Node(key="b", kind="module", title="encoder", table="modules", rows=(1,), marks=FAILED)
    assert node_words(call)[1] == ("RuntimeError",)
    assert node_words(closed)[1] == ("failed",)  # of which the picture only has the mark


def test_a_theme_of_ones_own_is_used() -> None:
    mine = attrs.evolve(tl.viz.LIGHT, name="mine", op="#123456")
    assert "#123456" in Drawing(chain(1), look_of(theme=mine, direction="bottomup", layout="auto", legend=True)).source


def test_a_large_picture_is_placed_with_less_work() -> None:
    assert Look().placing(chain(100)) == "dot"
    assert Look().placing(chain(2000)) == "rank"
    assert Look(layout="dot").placing(chain(2000)) == "dot"
    assert "nslimit" in dot_of(chain(2000), Look())
    assert "nslimit" not in dot_of(chain(100), Look())


def test_highlighted_nodes_stand_out_and_labels_take_the_place_of_texts() -> None:
    drawing = Drawing(chain(3), Look(highlighted=frozenset({1}), labels={2: "mine\nbelow <it>"}))
    lines = [line for line in drawing.source.split("\n") if tl.viz.LIGHT.highlight in line and "n1 [" in line]
    assert len(lines) == 1
    told = all_texts(drawing.render("svg"))
    assert {"mine", "below <it>", "highlighted"} <= set(told)
    assert "relu_2_2" not in told
    assert "relu_1_1  (highlighted)" in str(drawing)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"theme": "lihgt"}, "visualization_theme_invalid"),
        ({"theme": 3}, "visualization_theme_invalid"),
        ({"direction": "up"}, "visualization_direction_invalid"),
        ({"layout": "neato"}, "visualization_layout_invalid"),
        ({"legend": 1}, "visualization_legend_invalid"),
    ],
)
def test_what_is_no_value_of_an_option_is_refused(given: dict[str, Any], code: str) -> None:
    look = {"theme": "light", "direction": "bottomup", "layout": "auto", "legend": True, **given}
    assert refusal(lambda: look_of(**look), ConfigurationError) == code


@pytest.mark.parametrize("bad", ["red", '#ffffff" onload="x', "#fff", 7])
def test_a_colour_is_six_digits_and_nothing_else(bad: Any) -> None:
    assert refusal(lambda: attrs.evolve(tl.viz.LIGHT, op=bad), ConfigurationError) == "visualization_theme_invalid"


@pytest.mark.parametrize("bad", ['Arial" bgcolor="red', "", 7])
def test_a_font_is_a_plain_name(bad: Any) -> None:
    assert refusal(lambda: attrs.evolve(tl.viz.LIGHT, font=bad), ConfigurationError) == "visualization_theme_invalid"


# -- renderers and files


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_file_is_what_its_suffix_says(program: str, tmp_path: Path) -> None:
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "dot": b"digraph", "gv": b"digraph", "txt": b"Small", "pdf": b"%PDF"}
    drawing = Drawing(small(), renderer=program)
    for suffix, start in starts.items():
        if suffix == "pdf" and suffix not in registry.known(program).formats:
            continue
        path = drawing.save(tmp_path / f"picture.{suffix}")
        assert path.read_bytes().startswith(start)


def test_a_png_has_as_many_dots_as_asked_for() -> None:
    def width(dpi: int) -> int:
        return int.from_bytes(Drawing(small()).render("png", dpi=dpi)[16:20], "big")

    assert width(192) == pytest.approx(2 * width(96), abs=4)
    for bad in (True, 3, 5000, "fine"):
        refused = refusal(lambda bad=bad: Drawing(small()).render("svg", dpi=bad), ConfigurationError)  # type: ignore[misc]
        assert refused == "visualization_dpi_invalid"


def test_a_file_of_no_known_format_is_refused_and_not_written(tmp_path: Path) -> None:
    for name in ("picture.jpeg2", "picture"):
        refused = refusal(lambda name=name: Drawing(small()).save(tmp_path / name), ConfigurationError)  # type: ignore[misc]
        assert refused == "visualization_format_invalid"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Drawing(small()).save("picture.txt")
    assert path == tmp_path / "picture.txt"
    path.write_text("mine")
    monkeypatch.setattr(Drawing, "render", lambda *args, **options: pytest.fail("rendered"))
    assert refusal(lambda: Drawing(small()).save("picture.txt"), ConfigurationError) == "drawing_path_exists"
    assert path.read_text() == "mine"
    monkeypatch.undo()
    assert Drawing(small()).save(path, overwrite=True).read_text().startswith("Small")
    folder = tmp_path / "folder.txt"
    folder.mkdir()
    for overwrite in (False, True):
        refused = refusal(lambda be=overwrite: Drawing(small()).save(folder, overwrite=be), ConfigurationError)  # type: ignore[misc]
        assert refused == "drawing_path_exists"


def test_the_home_of_a_user_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Drawing(small()).save("~/picture.txt") == tmp_path / "picture.txt"


@pytest.mark.parametrize("name", ["no such folder/picture.txt", "zero\0.txt"])
def test_a_file_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    assert refusal(lambda: Drawing(small()).save(tmp_path / name), ConfigurationError) == "drawing_not_written"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = Drawing(small()).save(tmp_path / "picture.txt")
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    assert refusal(lambda: Drawing(small()).save(path, overwrite=True), ConfigurationError) == "drawing_not_written"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_pdf_is_refused_where_no_program_here_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "where_is", lambda name: name if name == "graphviz-pure" else None)
    with pytest.raises(RenderingError) as caught:
        Drawing(small()).render("pdf")
    assert caught.value.code == "visualization_format_unavailable"
    assert "dot" in caught.value.remedy


def test_a_renderer_that_is_recommended_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    found = programs.where_is
    for here in ((), ("graphviz-pure",)):
        monkeypatch.setattr(programs, "where_is", lambda name, here=here: found(name) if name in here else None)
        with pytest.raises(RenderingError) as caught:
            Drawing(small(), renderer="text").render("svg")
        assert caught.value.code == "visualization_format_unavailable"
        assert ("renderer='graphviz-pure'" in caught.value.remedy) == bool(here)
        assert "renderer='graphviz'" not in caught.value.remedy


def test_text_and_source_need_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "where_is", lambda name: None)
    drawing = Drawing(small())
    assert drawing.renderer == "text"
    assert drawing._repr_svg_() is None
    assert set(drawing._repr_mimebundle_()) == {"text/plain"}
    drawing.save(tmp_path / "a.txt")
    drawing.save(tmp_path / "a.dot")
    for format in ("svg", "png", "pdf"):
        assert refusal(lambda format=format: drawing.render(format), GraphvizUnavailableError) == "graphviz_unavailable"  # type: ignore[misc]
    assert refusal(lambda: Drawing(small(), renderer="graphviz"), GraphvizUnavailableError) == "graphviz_unavailable"
    assert "install Graphviz" in caught_remedy("graphviz")
    assert caught_remedy("graphviz-pure").startswith("pip install graphviz-pure")


def test_a_drawing_without_a_program_shows_itself_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "where_is", lambda name: None)
    assert Drawing(small()).view() is None
    assert "relu_1_1" in capsys.readouterr().out


def test_a_drawing_opens_in_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = Drawing(small()).view()
    assert path is not None
    assert opened == [path.as_uri()]
    assert path.read_bytes() == Drawing(small()).render("svg")
    path.unlink()


def test_a_renderer_of_ones_own_draws_by_its_name() -> None:
    class Mermaid:
        formats = ("mmd",)

        def missing(self) -> str | None:
            return None

        def render(self, picture: Picture, look: Look, format: str, *, dpi: int) -> bytes:
            return "\n".join(["graph BT", *(f"n{edge.source}-->n{edge.target}" for edge in picture.edges)]).encode()

    tl.viz.register_renderer("mermaid", Mermaid())
    try:
        assert Drawing(chain(2)).render("mmd") == b"graph BT\nn0-->n1"
        assert Drawing(chain(2), renderer="mermaid").renderer == "mermaid"
        taken = refusal(lambda: tl.viz.register_renderer("mermaid", Mermaid()), ConfigurationError)
        assert taken == "visualization_renderer_invalid"
        with pytest.raises(RenderingError) as caught:
            Drawing(chain(2), renderer="mermaid").render("svg")
        assert caught.value.code == "visualization_format_unavailable"
    finally:
        tl.viz.unregister_renderer("mermaid")
    assert "mermaid" not in tl.viz.renderers()


def test_a_renderer_that_replaced_one_of_ours_gives_way_to_it_again() -> None:
    patient = Graphviz("graphviz-pure", seconds=600)
    tl.viz.register_renderer("graphviz-pure", patient, replace=True)
    try:
        assert registry.known("graphviz-pure") is patient
    finally:
        tl.viz.unregister_renderer("graphviz-pure")
    assert registry.known("graphviz-pure") is registry.OURS["graphviz-pure"]


@pytest.mark.parametrize(
    "act",
    [
        lambda: Drawing(small(), renderer="grahpviz"),
        lambda: Drawing(small(), renderer=3),  # type: ignore[arg-type]
        lambda: tl.viz.register_renderer("auto", Graphviz("dot")),
        lambda: tl.viz.register_renderer("", Graphviz("dot")),
        lambda: tl.viz.register_renderer("mine", Graphviz),  # type: ignore[arg-type]
        lambda: tl.viz.register_renderer("mine", object()),  # type: ignore[arg-type]
        lambda: tl.viz.unregister_renderer("text"),
        lambda: tl.viz.unregister_renderer("unheard of"),
    ],
)
def test_what_is_no_renderer_is_refused(act: Callable[[], Any]) -> None:
    assert refusal(act, ConfigurationError) == "visualization_renderer_invalid"


# -- programs that fail


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts a shell script in the place of ``dot``."""
    if sys.platform == "win32":
        pytest.skip("there is no shell")

    def put(script: str) -> None:
        path = tmp_path / "dot"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        found = programs.where_is
        monkeypatch.setattr(programs, "where_is", lambda name: str(path) if name == "dot" else found(name))

    return put


def test_a_program_that_does_not_end_is_ended(stand_in: Callable[[str], None]) -> None:
    stand_in("exec sleep 60")
    late = Graphviz("dot", seconds=0.1)
    assert refusal(lambda: late.render(small(), Look(), "svg", dpi=96), RenderingError) == (
        "visualization_renderer_timeout"
    )


@pytest.mark.parametrize(
    "script",
    [
        "echo hello",
        "echo '<svg xmlns=\"http://www.w3.org/2000/svg\"><g>'",
        "echo '<html></html>'",
        "exec head -c 300000000 /dev/zero",
        "exec yes",
        "echo cannot >&2; exit 1",
        "exit 0",
    ],
)
def test_what_is_no_image_is_refused_and_the_next_program_draws(script: str, stand_in: Callable[[str], None]) -> None:
    stand_in(script)
    alone = Drawing(small(), renderer="graphviz")
    for format in ("svg", "png", "pdf"):
        assert refusal(lambda format=format: alone.render(format), RenderingError) == "visualization_renderer_failed"  # type: ignore[misc]
    assert set(alone._repr_mimebundle_()) == {"text/plain"}
    if "graphviz-pure" in PROGRAMS:
        assert Drawing(small()).render("svg").startswith(b"<?xml")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_png_too_long_to_be_read_is_refused(program: str) -> None:
    picture = chain(230)
    drawing = Drawing(picture, renderer=program)
    with pytest.raises(RenderingError) as caught:
        drawing.render("png", dpi=300)
    assert caught.value.code == "visualization_image_too_large"
    assert drawing.render("png", dpi=24).startswith(b"\x89PNG")
    assert refusal(lambda: Drawing(picture).render("png", dpi=300), RenderingError) == "visualization_image_too_large"


def test_the_limit_of_time_holds_for_the_program_itself() -> None:
    hasty = Graphviz(registry.OURS[PROGRAMS[-1]].program, seconds=0.001)  # type: ignore[attr-defined]
    assert (
        refusal(lambda: hasty.render(chain(3000), Look(), "svg", dpi=96), RenderingError)
        == "visualization_renderer_timeout"
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_says_as_it_fails_is_told_in_short(program: str) -> None:
    with pytest.raises(RenderingError) as caught:
        registry.OURS[program].run("digraph { this is no graph \x1b[31m" + "x" * 10_000, "-Tsvg")  # type: ignore[attr-defined]
    assert caught.value.code == "visualization_renderer_failed"
    assert len(caught.value.problem) < 500
    assert caught.value.problem.isprintable()


@pytest.mark.parametrize("program", PROGRAMS)
def test_modules_within_modules_are_drawn_as_deep_as_a_program_can_read_and_refused_beyond(program: str) -> None:
    assert len(things(Drawing(chain(3, within=300), renderer=program).render("svg"), "cluster")) == 300
    deep = Drawing(chain(3, within=5000), renderer=program)
    assert refusal(lambda: deep.render("svg"), RenderingError) == "visualization_renderer_failed"


def test_where_one_program_fails_the_next_one_draws() -> None:
    class Broken:
        formats = ("svg", "png")

        def missing(self) -> str | None:
            return None

        def render(self, picture: Picture, look: Look, format: str, *, dpi: int) -> bytes:
            raise RenderingError(code="visualization_renderer_failed", problem="it is broken", remedy="mend it")

    tl.viz.register_renderer("graphviz", Broken(), replace=True)
    tl.viz.register_renderer("graphviz-pure", Graphviz("graphviz-pure"), replace=True)
    try:
        drawing = Drawing(small())
        assert drawing.renderer == "graphviz"
        assert drawing.render("svg").startswith(b"<?xml")
        assert drawing.renderer == "graphviz-pure"
        assert refusal(lambda: Drawing(small(), renderer="graphviz").render("svg"), RenderingError)
    finally:
        tl.viz.unregister_renderer("graphviz")
        tl.viz.unregister_renderer("graphviz-pure")


def test_a_picture_of_nothing_is_drawn() -> None:
    empty = Picture(title="Nothing")
    assert str(Drawing(empty)) == "Nothing"
    assert things(Drawing(empty).render("svg"), "node") == []


def test_a_single_node_is_called_by_its_title() -> None:
    assert op(0).title in str(Drawing(Picture(title="One", nodes=(op(0),))))


def caught_remedy(renderer: str) -> str:
    with pytest.raises(GraphvizUnavailableError) as caught:
        Drawing(small(), renderer=renderer)
    return caught.value.remedy
