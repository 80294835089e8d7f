"""Files that a user asked for: whole or not at all, never in the place of what is no file, refused by code."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from torchlens.errors import ConfigurationError

Write = Callable[[Any], Path]

WRITERS: dict[str, tuple[Callable[[tl.Trace, Any], Path], str]] = {
    "export": (lambda trace, path: Path(tl.export.to_json(trace, path, overwrite=True)), "export_not_written"),
    "page": (lambda trace, path: trace.to_html(path, overwrite=True), "page_not_written"),
    "drawing": (lambda trace, path: trace.draw().save(path, overwrite=True), "drawing_not_written"),
}

ENDING = {"export": ".json", "page": ".html", "drawing": ".dot"}


@pytest.fixture(scope="module")
def trace() -> tl.Trace:
    return tl.trace(nn.Linear(2, 2), torch.ones(1, 2))


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def refused(write: Callable[[], object]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        write()
    return caught.value


def test_what_is_no_regular_file_is_never_replaced(trace: tl.Trace, kind: str, tmp_path: Path) -> None:
    write, code = WRITERS[kind]
    pipe = tmp_path / f"pipe{ENDING[kind]}"
    os.mkfifo(pipe)
    found = refused(lambda: write(trace, pipe))
    assert (found.code, "no regular file" in str(found)) == (code, True)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    circle = tmp_path / f"circle{ENDING[kind]}"
    circle.symlink_to(circle)
    assert refused(lambda: write(trace, circle)).code == code
    assert circle.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {pipe.name, circle.name}


def test_behind_a_link_the_file_is_written_that_it_stands_for(trace: tl.Trace, kind: str, tmp_path: Path) -> None:
    write, _ = WRITERS[kind]
    real, link = tmp_path / f"real{ENDING[kind]}", tmp_path / f"link{ENDING[kind]}"
    link.symlink_to(real)
    for _ in range(2):  # made, then replaced
        assert write(trace, link) == real
        assert link.is_symlink()
        assert real.stat().st_size > 0


def test_a_file_that_is_replaced_keeps_who_may_read_it(trace: tl.Trace, kind: str, tmp_path: Path) -> None:
    write, _ = WRITERS[kind]
    path = tmp_path / f"mine{ENDING[kind]}"
    path.write_text("mine")
    path.chmod(0o600)
    write(trace, path)
    assert path.read_text() != "mine"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["", "x" * 300, "nul\0", "not/there/x", 5, b"bytes"])
def test_a_path_that_cannot_be_written_is_refused_by_code(
    trace: tl.Trace, kind: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, code = WRITERS[kind]
    given = path + ENDING[kind] if isinstance(path, str) and path else path
    assert refused(lambda: write(trace, given)).code in (code, "drawing_format_unknown")
    assert list(tmp_path.iterdir()) == []


def test_a_name_as_long_as_the_system_takes_is_written(trace: tl.Trace, kind: str, tmp_path: Path) -> None:
    write, _ = WRITERS[kind]
    name = "\N{GREEK SMALL LETTER LAMDA}" * ((255 - len(ENDING[kind])) // 2) + ENDING[kind]
    assert write(trace, tmp_path / name).name == name
