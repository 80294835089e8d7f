"""The pages tell the truth: their examples run, their diagrams are the tables, and nothing public is left out."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import torchlens as tl
from journal.events import EVENTS_BY_NAME
from projections.build import FOLDS
from tools.diagrams import redrawn

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_it_stands(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "example.py"
    script.write_text(example)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))


def test_the_readme_has_an_example() -> None:
    assert BLOCK.search((ROOT / "README.md").read_text())


def test_the_readme_leads_to_every_page() -> None:
    links = {(ROOT / link).resolve() for link in LINK.findall((ROOT / "README.md").read_text())}
    assert [page.name for page in PAGES[1:] if page not in links] == []


def test_the_readme_names_every_extra() -> None:
    declared = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]\n")[1].split("\n\n")[0]
    extras = set(re.findall(r"^(\w+) = ", declared, re.MULTILINE)) - {"dev"}
    assert "draw" in extras
    assert [extra for extra in sorted(extras) if f"`{extra}` (" not in (ROOT / "README.md").read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def anchors_of(page: Path) -> list[str]:
    """What a page's headings are linked by, as GitHub makes it of their text; of two that are alike it numbers one."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_anchor_is_that_of_one_heading(page: Path) -> None:
    links = ANCHOR.findall(FENCED.sub("", page.read_text()))
    pages = [(page.parent / file if file else page, anchor) for file, anchor in links]
    assert [anchor for there, anchor in pages if anchors_of(there).count(anchor) != 1] == []


def test_the_contents_of_the_reference_are_its_headings_in_order() -> None:
    page = ROOT / "docs" / "reference.md"
    contents = page.read_text().partition("\n## ")[0]
    assert ["reference", *(anchor for _, anchor in ANCHOR.findall(contents))] == anchors_of(page)


def test_every_line_of_the_reference_can_be_read_in_an_editor() -> None:
    lines = (ROOT / "docs" / "reference.md").read_text().splitlines()
    assert [f"{line[:60]}... ({len(line)})" for line in lines if len(line) > 500] == []


def test_every_diagram_is_what_its_table_draws() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    assert "stateDiagram" in page
    assert redrawn(page) == page, "run tools/diagrams.py"


def rows_of(page: Path) -> Iterator[tuple[str, ...]]:
    """What names each row of the tables of a page, with its table: its first cell, or that and the field of a model."""
    head: tuple[str, ...] = ()
    for number, line in enumerate(page.read_text().splitlines()):
        cells = tuple(re.split(r"(?<!\\)\s*\|\s*", line)[1:-1]) if line.startswith("|") else ()
        if not cells or head[1:] == ():
            head = (f"{page.name}:{number}", *cells)
        elif cells[0].strip("-: "):  # a row; one without a name goes on with the one above
            yield (head[0], *cells[: 2 if head[1] == "model" else 1])


FILE = re.compile(r"(?<![\w./*])(?:[\w-]+/)*[\w-]+\.(?:py|ts)\b")
PACKAGES = ("journal", "projections", "torchlens")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
THERE = [
    f"/{path.relative_to(ROOT).as_posix()}"
    for path in (*SOURCES, *(ROOT / "tools").glob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.rglob("*.ts"))
]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name in ("CONTRIBUTING.md", "how_it_works.md")], ids=lambda page: page.name
)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = FILE.findall(page.read_text())
    assert named
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in THERE)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_that_a_header_names_stands_beside_it_or_is_named_with_its_folder(path: Path) -> None:
    header = ast.get_docstring(ast.parse(path.read_text())) or ""
    package = ROOT / path.relative_to(ROOT).parts[0]
    roots = (path.parent, package, ROOT)
    assert [name for name in FILE.findall(header) if not any((root / name).is_file() for root in roots)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_of_a_table_stands_once(page: Path) -> None:
    assert [row for row, times in Counter(rows_of(page)).items() if times > 1] == []


def test_the_tables_of_the_pages_are_read() -> None:
    reference = {row[1] for row in rows_of(ROOT / "docs" / "reference.md")}
    assert {"`graph freed`", "`grad_fn_calls`", "`token_count`"} <= reference
    assert sum(1 for _ in rows_of(ROOT / "docs" / "errors.md")) > 200


def test_the_folds_are_told_by_name_and_in_their_order() -> None:
    page = (ROOT / "docs" / "how_it_works.md").read_text()
    told = re.search(r"^(\w+) folds advance together.*?^What needs", page, re.DOTALL | re.MULTILINE)
    assert told is not None
    assert re.findall(r"\*\*(\w+)\*\*", told[0]) == [fold.name for fold in FOLDS]
    assert told[1] == {8: "Eight", 9: "Nine", 10: "Ten"}[len(FOLDS)]


@pytest.mark.parametrize("name", EVENTS_BY_NAME)
def test_every_event_type_stands_in_the_format_with_its_version_and_fields(name: str) -> None:
    event = EVENTS_BY_NAME[name]
    row = f"| `{name}` | {event.event_version} | {', '.join(event.fields)} |"
    assert row in (ROOT / "docs" / "format.md").read_text()


@pytest.mark.parametrize("name", tl.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    assert f"`tl.{name}" in (ROOT / "docs" / "reference.md").read_text()


OPTIONS = [
    *attrs.fields_dict(tl.CaptureOptions),
    *attrs.fields_dict(tl.JournalOptions),
    *attrs.fields_dict(tl.SaveOptions),
    *(name for name, given in inspect.signature(tl.trace).parameters.items() if given.kind is not given.VAR_KEYWORD),
]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_and_keyword_is_explained(name: str) -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    assert f"`{name}`" in {word for row in rows for word in row.split(", ")}
