"""docs/reprojection.md, command by command: what the page shows is what a journal of an earlier day gives.

A comment before a block says what happened in between: a journal was given, a release is run, an upgrade changed how
records are made. ``...`` on the page stands for anything within a line; alone on a line, for any lines.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from projections import build
from projections.columnar.tables import Column
from projections.columns import VERSIONS
from projections.forward import Forward
from projections.records import ops
from tests.golden import GOLDEN, copied
from tests.journal import evolving
from tests.programs import ROOT, run
from torchlens.cli import main

PAGE = (ROOT / "docs" / "reprojection.md").read_text()
STEP = re.compile(r"^<!-- (?P<what>[a-z]+)(?:: (?P<which>[\w. ]+))? -->$|^```console\n(?P<block>.*?)^```$", re.M | re.S)

OWN_COUNT = ops.OPS["num_args_total"]
OWN_NAMES = ops.OPS["func_name"]


def counted(forward: Forward) -> Column:
    """One argument more of each convolution."""
    pairs = zip(OWN_COUNT(forward), OWN_NAMES(forward), strict=True)
    return [count + 1 if name == "conv2d" else count for count, name in pairs]


def raise_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "VERSIONS", {name: version + 1 for name, version in VERSIONS.items()})


def count_arguments(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(ops.OPS, "num_args_total", counted)


def add_field(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "OPS", {**ops.OPS, "colour": lambda forward: ["red"] * len(forward)})


UPGRADES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "versions raised": raise_versions,
    "arguments counted": count_arguments,
    "a field more": add_field,
}


def give(name: str) -> None:
    """Put a journal of an earlier day here."""
    if name == "run.journal":
        kept = copied(Path.cwd(), GOLDEN)
        taken = ("--capture", "static", "--capture", "broken")
        assert main(["journal", "prune", str(kept), name, *taken]) == 0
        return
    for version in (1, 2, 3):
        script = "import sys; from tests.journal.evolving import append; append(sys.argv[1], int(sys.argv[2]))"
        run(script, Path.cwd() / name, version)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block with what it is said to print."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def pattern(output: str) -> str:
    """What the page shows, as a pattern of what is printed: columns may be wider or narrower."""
    lines: list[str] = []
    for line in output.splitlines():
        if line.strip() == "...":
            lines.append(r"(?:[^\n]*\n)*")
        else:
            words = [".*" if word == "..." else re.escape(word) for word in line.split()]
            lines.append(r"[ ]*" + r"[ ]+".join(words) + r"[ ]*\n")
    return "".join(lines)


def run_command(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *arguments = shlex.split(command)
    if program == "rm":
        for path in arguments[1:]:
            shutil.rmtree(path)
        return ""
    assert program == "torchlens"
    capsys.readouterr()
    main(arguments)
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_every_command_of_the_page_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    num_commands = 0
    with pytest.MonkeyPatch.context() as patch:
        released = False
        try:
            for step in STEP.finditer(PAGE):
                what, which, block = step["what"], step["which"], step["block"]
                if what == "given":
                    give(which)
                elif what == "upgrade":
                    patch.undo()
                    UPGRADES[which](patch)
                elif what in ("release", "present"):
                    patch.undo()
                    if released:
                        evolving.forget()
                    released = what == "release"
                    if released:
                        evolving.register(int(which))
                for command, output in commands(block or ""):
                    printed = run_command(command, capsys)
                    assert re.fullmatch(pattern(output), printed), f"$ {command}\n{printed}\nthe page has:\n{output}"
                    num_commands += 1
        finally:
            if released:
                evolving.forget()
    assert num_commands == PAGE.count("\n$ ") > 9


def test_a_line_of_the_page_that_is_not_printed_is_noticed() -> None:
    shown = " a  ...  1\n...\n z\n"
    assert re.fullmatch(pattern(shown), "a   b c  1\nmore\nand more\nz\n")
    assert not re.fullmatch(pattern(shown), "a   b c  2\nz\n")
    assert not re.fullmatch(pattern(shown), "a b 1\n")


def test_every_upgrade_of_the_page_is_tried() -> None:
    told = {step["which"] for step in STEP.finditer(PAGE) if step["what"] == "upgrade"}
    assert told == set(UPGRADES)
