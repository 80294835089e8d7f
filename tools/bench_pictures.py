"""What drawing a long trace costs, and how fluid its page is.

    python tools/bench_pictures.py [--ops 10000] [--page-ops 5000] [--folder DIR]

``nested`` is a model of blocks in stages in groups, with that many calls; ``flat`` calls everything in one forward.
Each is traced once, with nothing kept. ``picture`` is ``trace.draw(...)`` (records to nodes and edges), ``svg`` its
file by each renderer that is here: closed to a readable size, as ``draw()`` does by itself. ``page`` is
``trace.to_html``.

Where there is a Chromium (``CHROMIUM`` names another) and Playwright, the page of the flat one is opened there, 1280 by
800, without a GPU, and all its nodes are shown: what opening them takes, then each of some frames while a mouse drags
the whole graph, while it drags at a size that can be read, and while the scrubber is drawn through the forward. ``own``
is what the page's code takes for a frame, ``frame`` from one frame to the next.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 (this tree's packages come first)
from rich.console import Console  # noqa: E402 (the same)
from rich.table import Table  # noqa: E402 (the same)
from torch import Tensor, nn  # noqa: E402 (the same)

import torchlens as tl  # noqa: E402 (the same)
from tests.browser.conftest import WINDOW, chromium  # noqa: E402 (the same)

FRAMES: Final = 60

OPEN_ALL: Final = """() => {
    const begun = performance.now();
    const depth = document.getElementById("depth");
    depth.selectedIndex = depth.options.length - 1;
    depth.dispatchEvent(new Event("change"));
    return performance.now() - begun;
}"""

NEXT_FRAME: Final = """() => new Promise((done) => {
    const begun = performance.now();
    requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - begun) / 2)));
})"""

OWN: Final = "(count) => window.torchlens.frames.slice(-count)"


class Block(nn.Module):
    """Ten calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + torch.relu(self.first(x)) * 0.5
        return torch.tanh(self.second(x))


class Flat(nn.Module):
    """Calls of one forward, with a skip connection now and then."""

    def __init__(self, ops: int) -> None:
        super().__init__()
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        early = x
        for step in range(self.ops * 10 // 21):
            x = torch.tanh(x) * 0.5
            if step % 10 == 9:
                x, early = x + early, x
        return x


def nested(ops: int) -> nn.Module:
    blocks = max(1, ops // 100)
    return nn.Sequential(*(nn.Sequential(*(Block() for _ in range(10))) for _ in range(blocks)))


def timed(of: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = of()
    return time.perf_counter() - start, made


def drawings(trace: tl.Trace, name: str, folder: Path) -> Iterator[tuple[str, str]]:
    spent, drawing = timed(trace.draw)
    yield f"{name}: picture", f"{spent:.2f} s, {len(drawing.picture.nodes)} nodes"
    for renderer in ("graphviz", "graphviz-pure"):
        yield f"{name}: svg, {renderer}", svg_of(trace, renderer, folder / f"{name}.svg")


def svg_of(trace: tl.Trace, renderer: str, path: Path) -> str:
    try:
        drawing = trace.draw(renderer=renderer)
        spent, _ = timed(lambda: drawing.save(path))
    except tl.TorchLensError as exc:
        return exc.code
    return f"{spent:.2f} s, {path.stat().st_size / 1e3:.0f} kB"


def told(samples: list[float]) -> str:
    samples = sorted(samples)
    return f"median {statistics.median(samples):.1f} ms, 95 % {samples[int(len(samples) * 0.95)]:.1f} ms"


def dragged(page: Any, move: Callable[[int], None]) -> str:
    between = []
    for step in range(FRAMES):
        move(step)
        between.append(page.evaluate(NEXT_FRAME))
    return f"own {told(page.evaluate(OWN, FRAMES))}; frame {told(between)}"


def looked_at(path: Path, program: str) -> Iterator[tuple[str, str]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--disable-gpu"])
        page = browser.new_page(**WINDOW)
        spent, _ = timed(lambda: page.goto(path.as_uri()))
        yield "page: opened", f"{spent:.2f} s"
        yield "page: all shown", f"{page.evaluate(OPEN_ALL) / 1e3:.2f} s"
        page.keyboard.press("f")
        page.evaluate(NEXT_FRAME)
        for name in ("whole", "readable"):
            if name == "readable":
                page.keyboard.press("/")
                page.keyboard.type("tanh")
                page.keyboard.press("Enter")
                page.evaluate(NEXT_FRAME)
            page.mouse.move(400, 300)
            page.mouse.down()
            yield f"page: drag, {name}", dragged(page, lambda step: page.mouse.move(400 + 3 * step, 300 + 2 * step))
            page.mouse.up()
        page.keyboard.press("f")
        slider = page.locator("#position").bounding_box()
        y = slider["y"] + slider["height"] / 2
        page.mouse.move(slider["x"] + 2, y)
        page.mouse.down()
        width = (slider["width"] - 4) / FRAMES
        yield "page: scrub", dragged(page, lambda step: page.mouse.move(slider["x"] + 2 + width * step, y))
        page.mouse.up()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=10_000)
    parser.add_argument("--page-ops", type=int, default=5_000)
    parser.add_argument("--folder", help="where to leave the pictures and the page; else they are removed")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    table = Table(title=f"load of the machine before: {os.getloadavg()[0]:.1f}")
    for heading in ("", "measured"):
        table.add_column(heading)
    torch.manual_seed(0)
    for name, model in (("nested", nested(options.ops)), ("flat", Flat(options.ops))):
        trace = tl.trace(model, torch.ones(2, 8), save="none")
        table.add_row(f"{name}: ops", f"{len(trace.ops):,}")
        for row in drawings(trace, name, folder):
            table.add_row(*row)
    trace = tl.trace(Flat(options.page_ops), torch.ones(2, 8), save="none")
    spent, path = timed(lambda: trace.to_html(folder / "flat.html", statistics=False))
    table.add_row("page", f"{len(trace.ops):,} ops, {spent:.2f} s, {Path(path).stat().st_size / 1e6:.1f} MB")
    program = chromium()
    if program is None:
        table.add_row("page: opened", "no Chromium on this machine")
    else:
        for row in looked_at(Path(path), program):
            table.add_row(*row)
    Console(width=120).print(table)
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
