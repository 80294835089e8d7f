"""Draws the state machines of ``docs/format.md`` from their tables: the page cannot say what the code does not.

python tools/diagrams.py    # rewrites every diagram in place
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from journal import lifecycle  # noqa: E402 (this tree's, also where it is not installed)
from journal.machine import name_of  # noqa: E402 (the same)

PAGE: Final = ROOT / "docs" / "format.md"
BLOCK: Final = re.compile(
    r"(<!-- drawn from journal\.lifecycle\.(?P<name>[A-Z]+) -->\n)```mermaid\n.*?```\n", re.DOTALL
)


def drawn(table: Mapping[tuple[Any, Any], Any]) -> str:
    """A Mermaid state diagram: states in the order of their enum, one arrow per pair of the table."""
    states = list(type(next(iter(table))[0]))
    lines = ["stateDiagram-v2", f"    [*] --> {states[0].value}"]
    for state in states:
        steps = [(given, after) for (before, given), after in table.items() if before is state]
        lines += [f"    {state.value} --> {after.value}: {name_of(given)}" for given, after in steps]
        if all(after is state for _, after in steps):
            lines.append(f"    {state.value} --> [*]")
    return "".join(f"{line}\n" for line in lines)


def redrawn(page: str) -> str:
    """The page with every diagram as its table has it now."""
    return BLOCK.sub(lambda block: f"{block[1]}```mermaid\n{drawn(getattr(lifecycle, block['name']))}```\n", page)


def main() -> None:
    PAGE.write_text(redrawn(PAGE.read_text()))


if __name__ == "__main__":
    main()
