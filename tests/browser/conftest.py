"""A headless Chromium, and pages opened in it that may ask nobody for anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

WINDOW: Final = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """The Chromium of this machine; ``CHROMIUM`` names another one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running browser. Where there is none, the test says so and is skipped."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine: install it, or name one in CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install .[dev]")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=["--disable-gpu"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def window(browser: Any) -> Any:
    """What pages are opened in, unless a test asks for one of its own: a new one costs a third of a second."""
    return browser.new_context(**WINDOW)


@pytest.fixture
def open_page(browser: Any, window: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file as a person would who clicks on it. At the end, nothing may have been asked of a network, no dialog
    opened, and nothing complained in the console."""
    heard: list[str] = []
    pages = []

    def opened(path: Path, **options: Any) -> Any:
        page = (browser.new_context(**WINDOW, **options) if options else window).new_page()
        pages.append(page)
        page.on("console", lambda said: heard.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (heard.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: asked.url == path.as_uri() or heard.append(f"request: {asked.url}"))
        page.goto(path.as_uri())
        assert page.evaluate("window.torchlens !== undefined"), heard
        return page

    yield opened
    for page in pages:
        page.close()
    assert heard == []
