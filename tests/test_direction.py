"""The imports follow the layout: journal <- projections <- torchlens, and nothing points back.

Read from the sources, not from what happens to be loaded: an import inside a function or under
``TYPE_CHECKING`` is an arrow like any other.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.programs import ROOT, run
from torchlens import running
from torchlens.above import Running

PACKAGES = ("journal", "projections", "torchlens")

FORBIDDEN = {
    "journal": {"torch", "projections", "torchlens"},
    "projections": {"torch", "torchlens"},
    "torchlens": set[str](),
}

READ_SIDE = (
    *("cli", "commands", "debugger", "export", "journals", "page", "printable", "quantities", "questions", "reading"),
    *("report", "travel", "viz"),
)
"""Files of torchlens that let people read records; they and the write side do not know each other."""

FACADE_ASKS = {
    "torchlens.reading.facade.drawing": "viz",
    "torchlens.reading.facade.page": "page",
    "torchlens.reading.facade.questions": "questions",
}
"""Two questions, the page and drawings are methods of a trace, and their folders read traces: the arrows from these
files, each to one folder, alone point back."""

WRITE_SIDE = ("backward", "capture")
"""Folders of torchlens that append events: of the forward, and of backward passes."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def all_modules() -> dict[str, Path]:
    return {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


MODULES = all_modules()


def imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """Dotted names that a file imports, of our own modules the file meant and not its package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                keep = len(package) - node.level + (path.name == "__init__.py")
                base = ".".join([*package[:keep], *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    """What each of our modules imports."""
    return {name: imports(path, MODULES) for name, path in MODULES.items()}


def reached(starts: set[str]) -> set[str]:
    """Our modules that can be got to by following imports."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in graph():
            continue
        seen.add(name)
        waiting.extend(graph()[name])
    return seen


def is_in(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == f"torchlens.{part}" or name.startswith(f"torchlens.{part}.") for part in parts)


def is_write_side(name: str) -> bool:
    return is_in(name, WRITE_SIDE)


def is_read_side(name: str) -> bool:
    return is_in(name, READ_SIDE)


def test_the_three_packages_are_there() -> None:
    assert {name.split(".")[0] for name in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("name", MODULES)
def test_no_import_points_up(name: str) -> None:
    tops = {target.split(".")[0] for target in graph()[name]}
    assert not tops & FORBIDDEN[name.split(".")[0]]


@pytest.mark.parametrize("name", MODULES)
def test_every_import_of_ours_names_something_there(name: str) -> None:
    ours = {target for target in graph()[name] if target.split(".")[0] in PACKAGES}
    assert ours <= set(MODULES)


def require_one_way(folders: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(folders).prepare()
    except CycleError as exc:
        pytest.fail(" -> ".join(exc.args[1]))


def test_no_modules_import_each_other_in_a_circle() -> None:
    require_one_way({name: targets & set(MODULES) for name, targets in graph().items()})


def folders_of(arrows: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Which folders, or files beside them, of one package name which others."""
    folders: dict[str, set[str]] = {}
    for name, target in arrows:
        here, there = name.split(".")[1], target.split(".")[1]
        if here != there:
            folders.setdefault(here, set()).add(there)
    return folders


def test_the_folders_of_the_read_side_do_not_know_each_other_in_a_circle() -> None:
    arrows = {
        (name, target) for name in MODULES if is_read_side(name) for target in graph()[name] if is_read_side(target)
    }
    back = {(name, target) for name, target in arrows if is_in(target, (FACADE_ASKS.get(name, ""),))}
    assert {name for name, _ in back} == FACADE_ASKS.keys()
    require_one_way(folders_of(arrows - back))


def test_the_folders_of_projections_do_not_know_each_other_in_a_circle() -> None:
    inner = {name for name in MODULES if name.startswith("projections.")}
    arrows = {(name, target) for name in inner for target in graph()[name] if target in inner}
    folders = folders_of(arrows)
    assert folders["records"] >= {"autograd", "columnar", "folds", "formulas", "source", "structure"}
    require_one_way(folders)


def test_the_write_side_reaches_nothing_of_the_read_side() -> None:
    starts = {name for name in MODULES if is_write_side(name)}
    assert {name.split(".")[1] for name in starts} == set(WRITE_SIDE)
    assert not {name for name in reached(starts) if is_read_side(name)}


def test_the_read_side_reaches_nothing_of_the_write_side() -> None:
    starts = {name for name in MODULES if is_read_side(name)}
    assert {name.split(".")[1] for name in starts} == set(READ_SIDE)
    assert not {name for name in reached(starts) if is_write_side(name)}


def test_neither_side_reaches_what_sees_both() -> None:
    starts = {name for name in MODULES if is_write_side(name) or is_read_side(name)}
    assert not {name for name in reached(starts) if is_in(name, ("api", "running", "tracing"))}


def test_artifacts_are_written_and_read_without_what_captures_or_runs() -> None:
    starts = {name for name in MODULES if is_in(name, ("tlspec",))}
    assert starts
    assert not {name for name in reached(starts) if is_write_side(name) or is_in(name, ("running", "tracing"))}


def test_running_sees_both_sides_and_is_what_traces_ask_for() -> None:
    seen = reached({"torchlens.running"})
    assert any(map(is_write_side, seen))
    assert any(map(is_read_side, seen))
    made: Running = running  # held by the type checker
    for name, asked in vars(Running).items():
        if not name.startswith("_"):
            _, *parameters = inspect.signature(asked).parameters.values()
            assert [(one.name, one.kind) for one in parameters] == [
                (one.name, one.kind) for one in inspect.signature(getattr(made, name)).parameters.values()
            ]


def test_capture_does_not_know_of_backward_passes() -> None:
    starts = {name for name in MODULES if is_in(name, ("capture",))}
    assert not {name for name in reached(starts) if is_in(name, ("backward",))}


def test_an_import_hidden_in_a_function_or_under_type_checking_is_found(tmp_path: Path) -> None:
    hidden = tmp_path / "late.py"
    hidden.write_text("if TYPE_CHECKING:\n    import torch\ndef f():\n    from torchlens import capture, trace\n")
    assert imports(hidden, {"torchlens": hidden, "torchlens.capture": hidden}) == {
        "torch",
        "torchlens",
        "torchlens.capture",
    }


def test_journal_and_projections_load_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import journal, projections; print('torchlens' in sys.modules)"
    assert run(code).stdout == "False\n"


# -- __all__ ------------------------------------------------------------------------------------


def sort_key(name: str) -> tuple[int, list[int | str]]:
    """Constants, then classes, then the rest, each in natural order: what ruff's RUF022 writes."""
    if len(name) > 1 and name.isupper():
        kind = 0
    elif name[:1].isupper():
        kind = 1
    else:
        kind = 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def bound_names(path: Path) -> set[str]:
    """Public names that a file defines or takes from our own packages, at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


WITH_ALL = [name for name, path in MODULES.items() if "\n__all__" in path.read_text()]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_is_public(package: str) -> None:
    assert package in WITH_ALL


@pytest.mark.parametrize("name", WITH_ALL)
def test_all_is_sorted_and_every_name_in_it_is_there(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert listed == sorted(set(listed), key=sort_key)
    assert [item for item in listed if not hasattr(module, item)] == []


@pytest.mark.parametrize("name", [name for name in WITH_ALL if MODULES[name].name == "__init__.py"])
def test_all_of_a_package_is_complete(name: str) -> None:
    submodules = {inner.removeprefix(f"{name}.") for inner in MODULES if inner.startswith(f"{name}.")}
    assert bound_names(MODULES[name]) - submodules <= set(importlib.import_module(name).__all__)
