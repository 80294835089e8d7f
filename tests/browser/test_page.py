"""The page of a capture, used as a person would: by what is seen, clicked and typed.

``window.torchlens`` tells where something stands on the canvas and what is shown there; everything else is read from
the elements of the page. Screenshots are left in the folder that ``TORCHLENS_SCREENSHOTS`` names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.page import examples

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        told = self.norm(x)
        x = x + self.attn(told, told, told)[0]
        return x + self.mlp(x)


class Reader(nn.Module):
    """Modules in modules in modules, and values that go past them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.body = nn.ModuleDict({"blocks": nn.ModuleList(Block() for _ in range(4))})
        self.head = nn.Linear(8, 20)

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.words(x)
        for block in self.body["blocks"]:
            x = block(x)
        return self.head(x + first)


@pytest.fixture(scope="module")
def reader(browser: Any) -> tl.Trace:
    torch.manual_seed(0)
    trace = tl.trace(Reader(), torch.arange(10).reshape(2, 5), name="a small reader")
    return trace.backward(trace.output.square().mean(), save_grads=True)


@pytest.fixture(scope="module")
def reader_page(reader: tl.Trace, folder: Path) -> Path:
    return reader.to_html(folder / "reader.html")


@pytest.fixture(scope="module")
def recurrent(browser: Any) -> tl.Trace:
    return examples.recurrent()


@pytest.fixture(scope="module")
def recurrent_page(recurrent: tl.Trace, folder: Path) -> Path:
    return recurrent.to_html(folder / "recurrent.html")


@pytest.fixture(scope="module")
def failed_page(browser: Any, folder: Path) -> Path:
    return examples.failed().to_html(folder / "failed.html")


def picture(page: Any, name: str) -> None:
    if target := os.environ.get("TORCHLENS_SCREENSHOTS"):
        page.screenshot(path=Path(target) / f"{name}.png")


def ask(page: Any, question: str) -> Any:
    return page.evaluate(f"window.torchlens.{question}")


def until(page: Any, question: str) -> None:
    """Wait until the page says yes. (Playwright's own way to wait evaluates text, which the page's policy forbids.)"""
    for _ in range(500):
        if ask(page, question):
            return
        page.wait_for_timeout(20)
    raise AssertionError(question)


def place(page: Any, label: str) -> tuple[float, float]:
    """Where to click to meet something."""
    at = page.evaluate("label => window.torchlens.where(label)", label)
    assert at is not None, label
    assert at["inSight"], label
    return at["x"], at["y"]


def click(page: Any, label: str) -> None:
    page.mouse.click(*place(page, label))


def search(page: Any, words: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_selector("#hits li")
    page.keyboard.press("Enter")


def panel(page: Any) -> str:
    return page.inner_text("#panel .body")


def told(page: Any, name: str) -> str:
    """What the panel's table says under a name."""
    return page.evaluate(
        "name => [...document.querySelectorAll('#panel dt')].find((one) => one.textContent === name)"
        ".nextElementSibling.textContent",
        name,
    )


def links(page: Any, title: str) -> list[str]:
    """Texts of the links in a part of the panel."""
    return page.evaluate(
        """title => [...document.querySelectorAll('#panel section')]
            .filter((one) => one.querySelector('h3').textContent.startsWith(title))
            .flatMap((one) => [...one.querySelectorAll('li .link')].map((link) => link.textContent))""",
        title,
    )


def colour_at(page: Any, label: str) -> list[int]:
    """Red, green and blue of a box, beside its text."""
    x, y = place(page, label)
    return page.evaluate(
        """([x, y]) => {
            const canvas = document.querySelector("#stage canvas");
            const frame = canvas.getBoundingClientRect();
            const scale = canvas.width / frame.width;
            const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
            pixel.drawImage(canvas, (x - frame.left) * scale, (y - frame.top + 14) * scale, 1, 1, 0, 0, 1, 1);
            return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [x, y],
    )


def settled(page: Any) -> None:
    """Two frames later everything asked for is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


# -- looking


def test_a_page_begins_at_a_size_that_can_be_read(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    assert page.title() == "a small reader"
    assert 4 <= len(ask(page, "shown()")) <= 60
    assert ask(page, "scale") >= 0.8
    assert ask(page, "overlaps()") == 0
    assert page.inner_text("#status") == "complete"
    picture(page, "begin")


@pytest.mark.parametrize("size", [(1280, 800), (800, 600)])
def test_nothing_covers_what_a_page_begins_with(size: tuple[int, int], reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.reload()
    settled(page)
    begun = ask(page, "where('input_1')")
    page.keyboard.press("f")
    settled(page)
    stage, below = page.locator("#stage").bounding_box(), page.locator("#below").bounding_box()
    assert stage["y"] + stage["height"] <= below["y"] + 1
    assert begun["inSight"]
    assert ask(page, "where('output_1')")["inSight"]
    small = page.locator("#overview").bounding_box()
    for label in ask(page, "shown()"):
        at = page.evaluate("label => window.torchlens.where(label)", label)
        if small is not None:
            assert not (at["x"] > small["x"] and at["y"] > small["y"]), label


def test_no_box_covers_another_at_any_level(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    counts = []
    for level in page.eval_on_selector_all("#depth option[value]", "all => all.map((one) => one.value)")[1:]:
        page.select_option("#depth", level)
        assert ask(page, "overlaps()") == 0, level
        counts.append(len(ask(page, "shown()")))
    assert counts == sorted(counts)
    page.keyboard.press("f")
    settled(page)
    picture(page, "open")


def test_an_op_that_is_searched_for_is_shown_with_everything_known_of_it(
    reader: tl.Trace, reader_page: Path, open_page: Opened
) -> None:
    page = open_page(reader_page)
    op = next(one for one in reader.ops if one.func_name == "softmax" or "attention" in one.layer_type)
    assert ask(page, f"standsFor('{op.label}')") != op.label  # it is in a closed module
    search(page, op.label)
    settled(page)
    assert ask(page, "selected()") == op.label
    assert ask(page, f"standsFor('{op.label}')") == op.label
    _, y = place(page, op.label)
    stage = page.locator("#stage").bounding_box()
    assert abs(y - stage["y"] - stage["height"] / 2) < stage["height"] / 8  # in the middle, not at an edge
    assert page.inner_text("#panel h2") == op.label
    assert told(page, "shape") == str(tuple(op.shape))
    assert told(page, "dtype") == str(op.dtype).removeprefix("torch.")
    assert float(told(page, "time").split()[0]) > 0
    assert links(page, "parents") == list(op.parents)
    assert links(page, "children") == list(op.children)
    assert page.locator(".path .link").all_inner_texts() == ["Reader", "body.blocks.0", "attn"]
    here = page.inner_text(".source .here")
    assert int(here.split(None, 1)[0]) in [frame.line_number for frame in op.code_context]
    assert page.locator("#panel .histogram rect").count() > 0
    assert "gradient, backward 1" in panel(page)
    picture(page, "found")


def test_modules_classes_parameters_functions_and_ops_are_found_by_name(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    kinds = {
        "blocks.1.mlp": "module",
        "MultiheadAtt": "class",
        "words.weight": "parameter",
        "Block.forward": "function",
        "gelu_1": "op",
    }
    for words, kind in kinds.items():
        page.keyboard.press("/")
        page.keyboard.type(words)
        assert page.locator("#hits li .kind").first.inner_text() == kind
        page.locator("#hits li").first.click()
        selected = ask(page, "selected()")
        assert selected is not None
        assert selected == page.inner_text("#panel h2")
        page.keyboard.press("Escape")
        assert ask(page, "selected()") is None


def test_a_search_for_what_is_not_there_says_so(recurrent_page: Path, open_page: Opened) -> None:
    page = open_page(recurrent_page)
    page.fill("#search", "no such thing")
    assert page.inner_text("#hits") == "nothing is called so"
    page.keyboard.press("Escape")
    assert page.is_hidden("#hits")


def test_clicking_follows_the_data(recurrent: tl.Trace, recurrent_page: Path, open_page: Opened) -> None:
    page = open_page(recurrent_page)
    click(page, "tanh_1_4:1")
    assert ask(page, "selected()") == "tanh_1_4:1"
    assert told(page, "pass") == "1 of 6 of tanh_1_4"
    child = links(page, "children")[0]
    assert child in recurrent.ops["tanh_1_4:1"].children
    page.click(f"#panel .link:text-is('{child}')")
    assert page.inner_text("#panel h2") == child
    page.click("#panel .link:text-is('tanh_1_4:1')")
    assert ask(page, "selected()") == "tanh_1_4:1"


def test_a_module_opens_and_closes_by_two_clicks_by_its_button_and_by_enter(
    reader_page: Path, open_page: Opened
) -> None:
    page = open_page(reader_page)
    search(page, "blocks.1.attn")
    label = ask(page, "selected()")
    before = set(ask(page, "shown()"))
    assert label in before
    page.mouse.dblclick(*place(page, label))
    after = set(ask(page, "shown()"))
    assert label not in after
    assert before - {label} < after
    page.mouse.dblclick(*place(page, label))
    assert set(ask(page, "shown()")) == before
    page.click("#panel .toggle")
    assert set(ask(page, "shown()")) == after
    page.keyboard.press("Escape")
    click(page, label)
    page.keyboard.press("Enter")
    assert set(ask(page, "shown()")) == before


def test_what_is_opened_stays_where_it_was(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    search(page, "blocks.1.attn")
    label = ask(page, "selected()")
    x, y = place(page, label)
    page.mouse.dblclick(x, y)
    now = place(page, label)
    assert abs(now[0] - x) < 1
    assert abs(now[1] - y) < 20


def test_levels_open_one_after_the_other_and_close_again(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    page.select_option("#depth", "1")
    counts = [len(ask(page, "shown()"))]
    for _ in range(2):
        page.click("#more")
        counts.append(len(ask(page, "shown()")))
    assert counts == sorted(set(counts))
    page.click("#more")
    page.click("#more")  # what holds one op shows one box, open or closed
    assert len(ask(page, "shown()")) == counts[-1]
    page.click("#less")
    for expected in reversed(counts[:-1]):
        page.click("#less")
        assert len(ask(page, "shown()")) == expected


def test_the_picture_is_moved_zoomed_and_fitted(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    label = ask(page, "shown()")[0]
    x, y = place(page, label)
    page.mouse.move(300, 400)
    page.mouse.down()
    page.mouse.move(360, 430, steps=4)
    page.mouse.up()
    moved = place(page, label)
    assert abs(moved[0] - x - 60) < 2
    assert abs(moved[1] - y - 30) < 2
    assert ask(page, "selected()") is None  # a drag is no click
    scale = ask(page, "scale")
    page.mouse.move(460, 300)
    page.mouse.wheel(0, -240)
    until(page, f"scale > {scale}")
    page.click("#fit")
    settled(page)
    assert all(ask(page, f"where({one!r})")["inSight"] for one in ask(page, "shown()"))


def test_the_overview_goes_where_it_is_clicked(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    assert page.is_hidden("#overview") == all(ask(page, f"where({one!r})")["inSight"] for one in ask(page, "shown()"))
    page.select_option("#depth", index=page.locator("#depth option").count() - 1)
    settled(page)
    before = ask(page, "where('input_1')")
    frame = page.locator("#overview").bounding_box()
    page.mouse.click(frame["x"] + frame["width"] - 4, frame["y"] + frame["height"] - 4)
    after = ask(page, "where('input_1')")
    assert after["x"] < before["x"] - 200
    assert after["y"] < before["y"] - 200
    page.keyboard.press("f")
    settled(page)
    assert page.is_hidden("#overview")


def test_arrows_walk_along_the_data_and_through_time(
    recurrent: tl.Trace, recurrent_page: Path, open_page: Opened
) -> None:
    page = open_page(recurrent_page)
    click(page, "tanh_1_4:2")
    page.keyboard.press("ArrowUp")
    above = ask(page, "selected()")
    assert above in {ask(page, f"standsFor('{one}')") for one in recurrent.ops["tanh_1_4:2"].parents}
    page.keyboard.press("ArrowDown")
    assert ask(page, "selected()") == "tanh_1_4:2"
    page.keyboard.press("ArrowRight")
    right = ask(page, "selected()")
    page.keyboard.press("ArrowLeft")
    assert ask(page, "selected()") == "tanh_1_4:2" != right
    page.keyboard.press("Shift+ArrowUp")
    assert ask(page, "selected()") == "self:1"
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    assert page.is_hidden("#help")


def test_colours_tell_what_is_asked(recurrent_page: Path, open_page: Opened) -> None:
    page = open_page(recurrent_page)
    by_type = colour_at(page, "tanh_1_4:1")
    for by in ("time", "flops", "memory", "gradient"):
        page.select_option("#by", by)
        settled(page)
        assert colour_at(page, "tanh_1_4:1") != by_type
        assert page.locator("#legend .scale span").count() == 5
        assert len(page.inner_text("#legend .entry").split()) >= 2  # the least and the most
    picture(page, "by gradient")
    page.select_option("#by", "type")
    settled(page)
    assert colour_at(page, "tanh_1_4:1") == by_type


def test_the_colour_of_a_closed_module_is_that_of_its_number_which_the_legend_has(
    reader: tl.Trace, reader_page: Path, open_page: Opened
) -> None:
    page = open_page(reader_page)
    for _ in range(8):
        page.keyboard.press("c")
    inside = [reader.module_calls[label] for label in reader.module_calls[0].call_children]
    page.select_option("#by", "time")
    settled(page)
    assert "time in torch calls" in page.inner_text("#legend")
    most = max([call.func_calls_duration for call in inside] + [op.func_duration for op in reader.ops])
    assert page.inner_text("#legend .entry").endswith(str(most))
    page.select_option("#by", "memory")
    settled(page)
    largest = max(inside, key=memory_in)
    assert page.inner_text("#legend .entry").endswith(str(tl.Bytes(memory_in(largest))))
    swatch = "getComputedStyle(document.querySelector('#legend .scale span:last-child')).backgroundColor"
    red, green, blue = colour_at(page, largest.call_label)
    assert page.evaluate(swatch) == f"rgb({red}, {green}, {blue})"
    click(page, largest.call_label)
    assert told(page, "ops") == str(largest.num_ops)
    assert told(page, "time in torch calls") == str(largest.func_calls_duration)


def memory_in(call: Any) -> int:
    return sum(op.activation_memory or 0 for op in call.trace.ops if op.label in set(call.ops))


def test_a_page_counts_ops_and_no_inputs_and_outputs(
    recurrent: tl.Trace, recurrent_page: Path, open_page: Opened
) -> None:
    page = open_page(recurrent_page)
    assert f"of {recurrent.num_ops} ops shown" in page.inner_text("#shown")
    page.click("text=This moment")
    assert told(page, "ops that ran") == f"{recurrent.num_ops} of {recurrent.num_ops}"


def test_the_page_of_an_artifact_says_that_backward_passes_cannot_be_played(
    recurrent: tl.Trace, folder: Path, open_page: Opened
) -> None:
    recurrent.save(folder / "recurrent.tlspec")
    page = open_page(tl.load(folder / "recurrent.tlspec").to_html(folder / "loaded.html"))
    assert "no events of backward passes; open the journal to play them" in panel(page)
    assert "no event\n" not in panel(page)


def test_a_page_is_light_or_dark_as_the_machine_is_and_as_one_asks(recurrent_page: Path, open_page: Opened) -> None:
    page = open_page(recurrent_page, color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(20, 24, 31)"
    picture(page, "dark")
    page.click("#theme")
    assert page.evaluate(back) == "rgb(255, 255, 255)"


# -- time


def moment_of(cursor: tl.Cursor) -> dict[str, Any]:
    """What the trace's own records say of a moment."""
    past = cursor.trace
    labels = [call.call_label for call in cursor.whole.module_calls]
    fired = past.autograd.grad_fn_calls
    return {
        "position": cursor.position,
        "ran": sorted(op.label for op in past.ops),
        "dotted": sorted(op.label for op in past.ops if op.has_grad),
        "running": [labels[number] for number in past.moment.running],
        "fired": sorted([call.backward_pass_index - 1, call.label.rsplit(":", 1)[0]] for call in fired),
        "gradients": sorted(
            [one.backward_pass_index - 1, one.owner.label if one.owner_kind == "op" else one.owner.address]
            for one in past.autograd.gradients
        ),
    }


def agrees(page: Any, cursor: tl.Cursor) -> None:
    shown = ask(page, "moment()")
    cursor.seek(0 if shown["position"] == 0 else shown["position"] - 1)
    if shown["position"] == 0:
        cursor.back()
    expected = moment_of(cursor)
    for part in ("ran", "dotted", "fired", "gradients"):
        shown[part].sort()
    assert shown == expected


@pytest.mark.parametrize("seed", range(2))
def test_at_any_moment_the_page_shows_what_the_records_say(
    seed: int, recurrent: tl.Trace, recurrent_page: Path, open_page: Opened
) -> None:
    page = open_page(recurrent_page)
    chance = random.Random(seed)
    track = page.locator("#position").bounding_box()
    with tl.time_travel(recurrent) as cursor:
        for part in [0.0, *(chance.random() for _ in range(8)), 1.0]:
            x = track["x"] + 8 + part * (track["width"] - 16)
            page.mouse.click(x, track["y"] + track["height"] / 2)
            agrees(page, cursor)
            for key in chance.choices([",", ".", "<", ">"], k=3):
                page.keyboard.press("Escape")
                page.keyboard.press(key)
                agrees(page, cursor)


def test_each_event_on_and_back_shows_one_event_more_and_one_less(
    recurrent: tl.Trace, recurrent_page: Path, open_page: Opened
) -> None:
    page = open_page(recurrent_page)
    page.select_option("#jump", label="backward 2, its beginning")
    begun = ask(page, "moment().position")
    assert "backward 2 began" in page.inner_text("#event")
    seen = [ask(page, "moment()")]
    for _ in range(12):
        page.click("#on")
        seen.append(ask(page, "moment()"))
    assert [one["position"] for one in seen] == list(range(begun, begun + 13))
    assert len(seen[-1]["fired"]) > len(seen[0]["fired"])
    for expected in reversed(seen[:-1]):
        page.click("#back")
        assert ask(page, "moment()") == expected
    page.click("[data-tab=moment]")
    assert "backward 2, running" in panel(page)
    picture(page, "backward 2")


def test_an_event_selects_its_op(recurrent: tl.Trace, recurrent_page: Path, open_page: Opened) -> None:
    page = open_page(recurrent_page)
    page.click("#first")
    assert page.inner_text("#event").endswith("nothing yet")
    met = []
    for _ in range(30):
        page.click("#after")
        met.append(ask(page, "selected()"))
    assert {"self:1", "cell:1", "tanh_1_4:1"} < set(met)
    assert set(met) <= {op.label for op in recurrent.ops} | {call.call_label for call in recurrent.module_calls}
    page.keyboard.press("Escape")
    search(page, "tanh_1_4:1")
    page.click("#panel .link:has-text('event ')")
    assert "tanh_1_4:1 ran" in page.inner_text("#event")


def test_play_goes_on_to_the_end_and_backwards_to_the_beginning(
    recurrent: tl.Trace, recurrent_page: Path, open_page: Opened
) -> None:
    page = open_page(recurrent_page)
    page.select_option("#speed", "5")
    page.click("#first")
    page.click("#play")
    until(page, "moment().position > 0")
    page.click("#play")
    stopped = ask(page, "moment().position")
    page.wait_for_timeout(400)  # two events long
    assert ask(page, "moment().position") == stopped
    page.select_option("#speed", "500")
    page.keyboard.press("Escape")  # out of the list
    page.keyboard.press("Space")
    until(page, f"moment().position === {recurrent.num_events}")
    page.select_option("#way", "-1")
    page.click("#play")
    until(page, "moment().position === 0")
    assert page.inner_text("#play") == "Play"


# -- what went wrong, and who means harm


def test_the_op_that_failed_is_red_and_its_message_is_told(failed_page: Path, open_page: Opened) -> None:
    page = open_page(failed_page)
    red, green, blue = colour_at(page, "linear_failed")
    assert red > 150 > 90 > max(green, blue)
    assert "RuntimeError" in page.inner_text("#status")
    page.click("#status")
    assert ask(page, "selected()") == "linear_failed"
    assert "shapes cannot be multiplied" in page.inner_text("#panel .failure")
    picture(page, "failed")


def test_a_backward_pass_that_raised_is_red_and_says_what_and_where(
    browser: Any, folder: Path, open_page: Opened
) -> None:
    page = open_page(examples.failed_backward().to_html(folder / "failed_backward.html"))
    assert page.inner_text("#status") == "complete; backward 1 failed"
    assert "RuntimeError: no way <b>, in noway_back_1" in page.inner_text("#panel .failure")
    red, green, blue = colour_at(page, "noway_1_2")
    assert red > 150 > 90 > max(green, blue)
    page.click("#status")
    assert ask(page, "selected()") == "noway_1_2"
    assert "no way" in page.inner_text("#panel .failure")
    page.select_option("#jump", label="backward 1, its end")
    assert "backward 1 failed: RuntimeError: no way <b>" in page.inner_text("#event")
    picture(page, "failed_backward")


def test_keys_move_the_picture_again_once_something_was_chosen_from_a_list(
    recurrent_page: Path, open_page: Opened
) -> None:
    page = open_page(recurrent_page)
    page.focus("#by")
    page.select_option("#by", "time")
    page.keyboard.press("f")
    page.keyboard.press("o")
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    page.focus("#by")
    page.keyboard.press("ArrowDown")  # who walks along the list with keys stays in it
    assert page.evaluate("document.activeElement.id") == "by"
    before = ask(page, "moment().position")
    page.keyboard.press(",")
    assert ask(page, "moment().position") == before - 1


def test_an_emptied_search_finds_nothing(recurrent_page: Path, open_page: Opened) -> None:
    page = open_page(recurrent_page)
    page.keyboard.press("/")
    page.keyboard.type("tanh")
    page.wait_for_selector("#hits li")
    page.keyboard.press("Control+a")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    assert ask(page, "selected()") is None


def test_a_page_is_headed_by_the_name_that_the_capture_was_given(
    reader_page: Path, browser: Any, folder: Path, open_page: Opened
) -> None:
    page = open_page(reader_page)
    assert page.inner_text("#toolbar .title") == page.inner_text("#panel h2") == "a small reader"
    assert "Reader" in page.inner_text("#panel h2 + .note")
    unnamed = open_page(tl.trace(Block(), torch.rand(1, 2, 8)).to_html(folder / "unnamed.html"))
    assert unnamed.inner_text("#toolbar .title") == "Block"


def test_blocks_that_follow_each_other_stand_one_below_the_other(reader_page: Path, open_page: Opened) -> None:
    page = open_page(reader_page)
    page.keyboard.press("f")
    heights = [page.evaluate("label => window.torchlens.where(label).y", f"body.blocks.{one}:1") for one in range(4)]
    assert heights == sorted(set(heights))


HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def many(x: Tensor) -> tuple[Tensor, ...]:
    return tuple([torch.sin(x) if number % 2 else x * number for number in range(40)])


def test_an_output_stands_right_below_the_op_that_it_was_returned_from(
    browser: Any, folder: Path, open_page: Opened
) -> None:
    trace = tl.trace(many, torch.ones(2))
    page = open_page(trace.to_html(folder / "many.html"))
    page.keyboard.press("f")
    settled(page)
    for op in trace.ops:
        if op.layer_type == "output":
            at, above = (ask(page, f"where('{label}')") for label in (op.label, op.parents[0]))
            assert 0 < at["y"] - above["y"] < 80 * ask(page, "scale"), op.label
    assert ask(page, "overlaps()") == 0


class Onion(nn.Module):
    """Modules in modules, as many as asked for."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.i = Onion(depth - 1) if depth else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.i(x + 1)


@pytest.mark.parametrize(("depth", "is_open"), [(300, True), (420, False)])
def test_a_deep_model_opens_to_its_end_or_says_where_it_stops(
    depth: int, is_open: bool, browser: Any, folder: Path, open_page: Opened
) -> None:
    trace = tl.trace(Onion(depth), torch.ones(2), save="none")
    page = open_page(trace.to_html(folder / f"onion{depth}.html"))
    search(page, "relu_1")
    relu = next(op.label for op in trace.ops if op.layer_type == "relu")
    assert (ask(page, f"standsFor('{relu}')") == relu) == is_open
    assert ("stays closed" in page.inner_text("#shown")) != is_open
    assert len(page.inner_text("#panel .path")) < 300


def test_names_that_look_like_markup_are_shown_as_text(browser: Any, folder: Path, open_page: Opened) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(HOSTILE, nn.Sequential(nn.Linear(3, 3), nn.ReLU()))

        def forward(self, x: Tensor) -> Tensor:
            for child in self.children():
                x = child(x)
            raise ValueError(HOSTILE)

    Model.__name__ = Model.__qualname__ = HOSTILE
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(Model(), torch.rand(2, 3), name=HOSTILE)
    partial = caught.value.partial_trace
    assert partial is not None
    page = open_page(partial.to_html(folder / "hostile.html"))
    assert page.title() == HOSTILE
    assert HOSTILE in panel(page)
    page.keyboard.press("/")
    page.keyboard.type("<img")
    assert HOSTILE in page.inner_text("#hits")
    page.keyboard.press("Enter")
    assert HOSTILE in page.inner_text("#panel h2")
    page.click("[data-tab=moment]")
    page.click("#before")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    picture(page, "hostile")


def test_five_thousand_ops_are_shown_moved_and_found(browser: Any, folder: Path, open_page: Opened) -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for step in range(2400):
                x = torch.tanh(x) * 0.5
                x = x + x if step % 10 == 0 else x
            return x

    trace = tl.trace(Flat(), torch.ones(2), save="none")
    page = open_page(trace.to_html(folder / "flat.html", statistics=False))
    assert len(trace.ops) > 5000
    page.evaluate(
        """() => {
            const depth = document.getElementById("depth");
            depth.selectedIndex = depth.options.length - 1;
            depth.dispatchEvent(new Event("change"));
        }"""
    )
    assert len(ask(page, "shown()")) > 5000
    page.keyboard.press("f")
    settled(page)
    first = ask(page, 'where("tanh_1_1:1")')
    page.mouse.move(400, 400)
    page.mouse.down()
    page.mouse.move(480, 460)
    settled(page)
    page.mouse.up()
    moved = ask(page, 'where("tanh_1_1:1")')
    assert (round(moved["x"] - first["x"]), round(moved["y"] - first["y"])) == (80, 60)
    search(page, "tanh_1_1:1200")
    settled(page)
    assert ask(page, 'where("tanh_1_1:1200")')["inSight"]
    picture(page, "five thousand")
