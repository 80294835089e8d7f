"""The built front end of a page: made from the sources that stand beside it, and shipped with every licence."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final

import pytest

FRONT: Final = Path(__file__).parents[2] / "torchlens" / "page" / "front"
OTHERS: Final = ("build.mjs", "package-lock.json", "package.json", "tsconfig.json")


def digest_of_sources() -> str:
    """As build.mjs makes it."""
    digest = hashlib.sha256()
    for name in sorted([*OTHERS, *(f"src/{path.name}" for path in (FRONT / "src").iterdir())]):
        text = (FRONT / name).read_bytes()
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_what_is_shipped_was_built_from_the_sources_beside_it(name: str) -> None:
    header = (FRONT / name).read_text(encoding="utf-8").splitlines()[0]
    said = re.search(r"sha256 of them: ([0-9a-f]{64})", header)
    assert said is not None, header
    assert said[1] == digest_of_sources(), f"run `npm ci && npm run build` in {FRONT.name}"


def test_the_built_page_makes_no_code_of_text_and_knows_no_address() -> None:
    built = (FRONT / "page.js").read_text(encoding="utf-8")
    assert not re.search(r"\beval\(|new Function|\bimport\(|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", built)
    # Names of XML namespaces, which nobody asks for.
    assert set(re.findall(r"https?://[^\"'`\s]+", built)) <= {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/2000/xmlns/",
        "http://www.w3.org/XML/1998/namespace",
    }


def test_every_package_that_is_bundled_has_its_licence_beside_it() -> None:
    said = (FRONT / "THIRD_PARTY").read_text(encoding="utf-8")
    wanted = json.loads((FRONT / "package.json").read_text(encoding="utf-8"))["dependencies"]
    licences = dict(re.findall(r"^(@?[\w./-]+) [\d.]+ \(([^)]+)\)$", said, re.MULTILINE))
    assert set(wanted) <= set(licences)
    assert set(licences.values()) <= {"MIT", "ISC", "BSD-3-Clause"}


def test_the_lock_names_no_place_to_fetch_from() -> None:
    lock = json.loads((FRONT / "package-lock.json").read_text(encoding="utf-8"))
    assert all("resolved" not in package for package in lock["packages"].values())
    assert all("integrity" in package for path, package in lock["packages"].items() if path)


def test_the_front_end_makes_no_markup_of_text() -> None:
    for path in (FRONT / "src").glob("*.ts"):
        text = path.read_text(encoding="utf-8")
        made = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\.html\(|DOMParser", text)
        assert made is None, path.name
