"""Pages of made-up data: forms that no small capture has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from torchlens.json_in_html import json_in_html
from torchlens.page.texts import too_large
from torchlens.page.writing import PAGE, POLICY, front, hash_of

OP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(("shape", "dtype", "time", "flops", "memory", "place", "event", "values", "args")),
        "pass": 1,
        "passes": 1,
    }
)
CALL: Final = ("class", "time", "flops", "params", "entered", "left", "shape")


def made_up(
    calls: Sequence[int], ops: Sequence[int], edges: Iterable[tuple[int, int]], *, events: bool = True
) -> dict[str, Any]:
    """Data of a page whose module calls have these parents, whose ops stand in these calls and have these edges."""
    texts = ["op", "relu", *(f"m{row}" for row in range(len(calls))), *(f"relu_{row}" for row in range(len(ops)))]
    names = range(2 + len(calls), len(texts))
    columns = {name: [OP[name]] * len(ops) for name in OP}
    if events:
        columns["event"] = list(range(len(ops)))
    columns["origin"] = list(range(len(ops)))
    columns |= {"label": list(names), "layer": list(names), "kind": [0] * len(ops), "type": [1] * len(ops)}
    columns |= {"call": list(ops), "marks": [[]] * len(ops), "params": [[]] * len(ops)}
    found = list(edges)
    labels = list(range(2, 2 + len(calls)))
    empty = ("op", "param", "pass", "event", "shape", "values", "kept")
    return {
        "version": 1,
        "title": "made up",
        "model": "made.up.Model",
        "status": "complete",
        "ending": None,
        "facts": [],
        "texts": texts,
        "calls": {name: [None] * len(calls) for name in CALL}
        | {"label": labels, "address": labels, "parent": list(calls)},
        "ops": columns,
        "edges": {"from": [one for one, _ in found], "to": [other for _, other in found]},
        "places": [],
        "values": [],
        "gradients": {name: [] for name in empty},
        "passes": {name: [] for name in ("label", "status", "trigger", "begun", "ended")},
        "firings": {name: [] for name in ("pass", "event", "node", "type", "op", "param", "time")},
        "events": {"count": len(ops) if events else 0, "has_diary": True, "times": None},
    }


def page_of(data: dict[str, Any], path: Path) -> Path:
    script, style = front("page.js"), front("page.css")
    policy = POLICY.format(script=hash_of(script), style=hash_of(style))
    parts = {"title": data["title"], "text": "", "data": json_in_html(data, too_large)}
    path.write_text(PAGE.format(policy=policy, script=script, style=style, **parts), encoding="utf-8")
    return path
