"""A trace is put together of parts, and is one class to whoever uses it."""

from __future__ import annotations

import pydoc

import torchlens as tl
from torchlens.reading.view import View

PARTS = [part for part in tl.Trace.__mro__ if issubclass(part, View) and part not in (View, tl.Trace)]


def test_no_part_of_a_trace_hides_what_another_has() -> None:
    told: dict[str, type] = {}
    for part in PARTS:
        for name in vars(part):
            if not name.startswith("_") or name in ("__getitem__", "__len__", "__iter__", "_repr_html_"):
                assert name not in told, f"{part.__name__} and {told[name].__name__} both have {name}"
                told[name] = part
    assert told.keys().isdisjoint(vars(tl.Trace).keys() | (vars(View).keys() - View.__abstractmethods__))


def test_each_part_is_of_a_trace_and_stands_beside_it() -> None:
    assert {part.__module__.rpartition(".")[0] for part in PARTS} == {"torchlens.reading.facade"}
    assert set(PARTS) == set(tl.Trace.__bases__)


def test_the_help_of_a_trace_has_every_verb_and_what_it_is_for() -> None:
    text = pydoc.plain(pydoc.render_doc(tl.Trace))
    names = set(tl.Trace.__dir__(object.__new__(tl.Trace))) - {"journal"}  # which an instance has
    assert names >= {"ops", "backward", "run", "save", "summary", "draw", "to_html", "why", "find_sites", "cleanup"}
    for name in names:
        first_line = (getattr(tl.Trace, name).__doc__ or "").strip().partition("\n")[0]
        assert first_line, name
        assert f" |  {name}" in text
        assert first_line in text
