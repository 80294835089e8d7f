"""The pages tell the truth: their examples run, their diagrams are the tables, and nothing public is left out."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import attrs
import pytest

import torchlens as tl
from journal.events import EVENTS_BY_NAME
from tools.diagrams import redrawn

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_every_diagram_is_what_its_table_draws() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    assert "stateDiagram" in page
    assert redrawn(page) == page, "run tools/diagrams.py"


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
