"""A page is one file that runs its own script and nothing that a journal says, written whole or refused."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchlens as tl
from torchlens import json_in_html as json_module
from torchlens.json_in_html import json_in_html
from torchlens.page import data as page_module
from torchlens.page import texts as texts_module
from torchlens.page import writing
from torchlens.page.data import page_data
from torchlens.page.texts import too_large
from torchlens.page.writing import PAGE, front, page_of


class Elements(html.parser.HTMLParser):
    """The elements of a page in order, with their attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.is_inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self.is_inside = True

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            tag, attrs, before = self.found[-1]
            self.found[-1] = (tag, attrs, before + data)

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, text) for name, attrs, text in self.found if name == tag]


def data_in(page: str) -> Any:
    [(attrs, text)] = [one for one in Elements(page).of("script") if one[0].get("id") == "torchlens-data"]
    assert attrs["type"] == "application/json"
    return json.loads(text)


@pytest.fixture(scope="module")
def trace() -> tl.Trace:
    return tl.trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.rand(2, 3))


TEXTS = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(
            ["</script>", "<!--", "-->", "<script>", "</", "<", "]]>", "&lt;", "\u2028", "\ud800", "\\u003c", "'", '"']
        )
    ).map("".join),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(PLAIN)
def test_any_data_stands_in_a_page_and_parses_back_equal(told: Any) -> None:
    written = json_in_html(told, too_large)
    assert "<" not in written
    assert written.isascii()
    page = PAGE.format(policy="", title="", text="", style="", data=written, script="")
    assert data_in(page) == told
    assert page.count("<script") == 2


HOSTILE = "</script><script>alert(1)</script><!--\u202e\x1b[31m&<b>"


def hostile() -> tl.Trace:
    """A trace with markup wherever a user can put text."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(HOSTILE.replace(".", ""), nn.Linear(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for child in self.children():
                x = child(x)
            raise ValueError(HOSTILE)  # </script> stands in the stored source, too

    Model.__name__ = Model.__qualname__ = HOSTILE
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(Model(), torch.rand(2, 3), name=HOSTILE)
    made = caught.value.partial_trace
    assert isinstance(made, tl.Trace)
    return made


def test_text_of_a_model_is_never_markup() -> None:
    made = hostile()
    page = page_of(made)
    elements = Elements(page)
    allowed = ["html", "head", "meta", "meta", "meta", "title", "style", "body", "main", "noscript", "h1", "p", "pre"]
    assert [tag for tag, _, _ in elements.found] == [*allowed, "script", "script"]
    found = data_in(page)
    assert found == page_data(made)
    assert "</script><script>alert(1)</script><!--\\u202e\\x1b[31m&<b>" in found["title"]
    assert "alert(1)" in found["ending"]["message"]
    assert any("alert" in text for text in found["texts"])


def test_no_text_of_a_page_does_more_than_show_itself() -> None:
    found = page_data(hostile())
    lines = [text for place in found["places"] for _, text in place["lines"]]
    shown = [*found["texts"], found["title"], found["model"], *found["ending"].values(), *lines]
    assert all(text.isprintable() for text in shown if isinstance(text, str))


def test_the_policy_allows_the_scripts_and_styles_of_the_page_by_their_hashes_and_no_other(trace: tl.Trace) -> None:
    elements = Elements(page_of(trace))
    [policy] = [str(attrs["content"]) for attrs, _ in elements.of("meta") if "http-equiv" in attrs]
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    assert not {"unsafe-inline", "unsafe-eval", "http:", "https:", "*"} & set(re.findall(r"[\w:*-]+", policy))
    [(_, style)] = elements.of("style")
    [script] = [text for attrs, text in elements.of("script") if "type" not in attrs]
    for text, directive in ((style, "style-src"), (script, "script-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed[directive] == f"'sha256-{digest}'"


@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_the_built_front_end_stands_in_a_page_as_it_is(name: str) -> None:
    """No script may hold what ends it, or what makes the next end not count (HTML, "restrictions for contents of script
    elements"); and no carriage return, which a parser would make another character, and so the hash another."""
    built = front(name)
    assert not re.search(r"</(script|style)|<!--|<script|\r|\0", built, re.IGNORECASE)
    assert built.encode()


def test_nothing_is_fetched(trace: tl.Trace) -> None:
    for tag, attrs, _ in Elements(page_of(trace)).found:
        assert not {"src", "href", "srcset", "action"} & set(attrs), tag


# -- the file ----------------------------------------------------------------------------------------------


def test_a_page_is_written_and_its_place_given(
    trace: tl.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = trace.to_html("page.html")
    assert made == tmp_path / "page.html"
    assert data_in(made.read_text(encoding="utf-8")) == page_data(trace)
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_file_that_is_there_is_replaced_only_when_asked(trace: tl.Trace, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert refusal(trace, path) == "page_path_exists"
    assert path.read_text() == "mine"
    trace.to_html(path, overwrite=True)
    assert data_in(path.read_text())["title"] == "Sequential"


def test_a_folder_is_not_replaced(trace: tl.Trace, tmp_path: Path) -> None:
    assert refusal(trace, tmp_path) == "page_path_exists"
    assert refusal(trace, tmp_path, overwrite=True) == "page_path_exists"


def test_a_page_that_came_meanwhile_stays(trace: tl.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"

    def late(*args: Any, **options: Any) -> str:
        path.write_text("first")
        return "second"

    monkeypatch.setattr(writing, "page_of", late)
    assert refusal(trace, path) == "page_path_exists"
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("name", ["no such folder/page.html", "zero\0.html"])
def test_a_page_that_cannot_be_written_is_refused_and_leaves_nothing(
    trace: tl.Trace, tmp_path: Path, name: str
) -> None:
    assert refusal(trace, tmp_path / name) == "page_not_written"
    assert os.listdir(tmp_path) == []


def test_a_choice_of_statistics_that_is_none_is_refused(trace: tl.Trace, tmp_path: Path) -> None:
    assert refusal(trace, tmp_path / "page.html", statistics="all") == "page_option_invalid"
    assert refusal(trace, tmp_path / "page.html", statistics=1) == "page_option_invalid"


@pytest.mark.parametrize(
    ("module", "bound"),
    [(page_module, "MOST_ROWS"), (page_module, "MOST_PARENTS"), (texts_module, "MOST"), (json_module, "MOST_BYTES")],
)
def test_a_page_beyond_its_bounds_is_refused(
    trace: tl.Trace, tmp_path: Path, module: Any, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, bound, 2)
    assert refusal(trace, tmp_path / "page.html") == "page_too_large"
    assert os.listdir(tmp_path) == []


def test_a_trace_that_was_cleaned_up_has_no_page(tmp_path: Path) -> None:
    gone = tl.trace(nn.ReLU(), torch.rand(2))
    gone.cleanup()
    assert refusal(gone, tmp_path / "page.html") == "trace_cleaned_up"


def refusal(trace: tl.Trace, path: Path, **options: Any) -> str:
    with pytest.raises(tl.TorchLensError) as caught:
        trace.to_html(path, **options)
    return caught.value.code
