"""``journal passes``: the backward passes of a capture."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Final

from torchlens.commands.parsing import Commands, add_capture, count
from torchlens.commands.printing import write_json, write_rows
from torchlens.commands.reading import chosen, reading
from torchlens.journals.journal_view import JournalView
from torchlens.quantities import Duration


def add(commands: Commands) -> None:
    made = commands.add("passes", passes, "the backward passes of a capture, in order")
    add_capture(made)
    made.add_argument("--limit", type=count, metavar="N", help="at most N passes")


PASS_FIELDS: Final = {
    "pass": "pass_index",
    "trigger": "trigger",
    "within": "outer_context",
    "order": "order",
    "status": "status",
    "closed by": "closed_by",
    "firings": "num_grad_fn_calls",
    "kept": "save_grads_policy",
    "roots": "root_grad_fns",
    "error": "error_type",
    "raised in": "raised_in",
    "incomplete": "incomplete_reason",
    "seconds": "duration",
}
"""The column of the table of backward passes behind each field."""


@reading
def passes(asked: argparse.Namespace, view: JournalView) -> None:
    table = chosen(view, asked.capture).tables.backward_passes
    columns = [list(islice(table.column(name), asked.limit)) for name in PASS_FIELDS.values()]
    rows = [dict(zip(PASS_FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]
    if asked.json:
        write_json([{name.replace(" ", "_"): value for name, value in row.items()} for row in rows])
        return
    for row in rows:
        row["seconds"] = None if row["seconds"] is None else Duration(row["seconds"])
        row["roots"] = ", ".join(label or "a leaf" for label in row["roots"]) or None
    write_rows(
        tuple(PASS_FIELDS),
        rows,
        right=("pass", "within", "order", "firings", "seconds"),
        wrap=("roots", "kept", "error", "incomplete"),
        spare=("closed by", "order", "within", "kept", "seconds", "roots"),
        below=("incomplete", "raised in", "error"),
    )
