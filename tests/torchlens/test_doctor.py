"""The doctor: what an environment has and lacks, with torch and without."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import torchlens as tl
from tests.programs import ROOT, run
from tests.torchlens.command import printed
from torchlens import compat
from torchlens.capture import wrap
from torchlens.cli import main
from torchlens.report import environment
from torchlens.report.environment import CAPABILITIES, Doctor, Probe, filesystem, is_there


def test_this_environment_has_what_a_capture_needs() -> None:
    found = tl.report.doctor()
    assert found.is_healthy
    assert found.versions["torch"] == torch.__version__
    assert found.versions["torchlens"] == tl.__version__
    assert set(found.capabilities) == {capability.name for capability in CAPABILITIES}
    assert found["cpus"].detail.endswith(f"{torch.get_num_threads()} threads of torch")
    assert [one for one in found.probes if one.status == "fail"] == []


def test_it_reads_as_a_table() -> None:
    text = str(tl.report.doctor())
    assert "capabilities" in text.splitlines()
    assert "torch._C._autograd._get_sequence_nr" in text
    assert len({line.index(line.split()[2]) for line in text.splitlines() if line.startswith("  pass  ")}) == 1
    assert repr(tl.report.doctor()).startswith("<Doctor: ")


COMPAT: Final = ast.parse((ROOT / "torchlens" / "compat.py").read_text())


def dotted(node: ast.AST) -> str | None:
    """What an expression reads of torch, as a dotted path, by attribute or by ``getattr`` of a name that is written."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner, name = node.value, node.attr
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
    ):
        owner, name = node.args[0], str(node.args[1].value)
    else:
        return None
    above = dotted(owner)
    return None if above is None else f"{above}.{name}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_paths() -> set[str]:
    """The paths in torch that ``compat`` reads and that are private somewhere on the way."""
    found = {path for node in ast.walk(COMPAT) if (path := dotted(node)) and path.startswith("torch.")}
    private = {path for path in found if any(map(is_private, path.split(".")))}
    return {path for path in private if not any(other.startswith(f"{path}.") for other in private)}


def private_words() -> set[str]:
    """The private names that it reads of anything, or writes out to read."""
    found: set[str] = set()
    for node in ast.walk(COMPAT):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return set(filter(is_private, found))


OF_OBJECTS: Final = frozenset(
    "_backward_hooks _backward_pre_hooks _buffers _forward_hooks _forward_pre_hooks _modules _parameters"
    " _non_persistent_buffers_set"
    " _state_dict_hooks _load_state_dict_pre_hooks _compiled_call_impl _orig_mod _torchdynamo_orig_callable"
    " _sequence_nr _input_metadata _raw_saved_ _qualified_op_name _user_hooks _checkpoint_internal _forward_cls"
    " _torchlens_hook _post_accumulate_grad_hooks _c _concrete_type _print".split()
)
"""What each module, function, node or operator has itself: there is no name in torch to look for."""


def test_every_private_path_of_torch_that_is_used_is_looked_at() -> None:
    looked_at = {path for capability in CAPABILITIES for path in capability.paths}
    missed = {
        path
        for path in private_paths()
        if not any(known == path or known.startswith(f"{path}.") for known in looked_at)
    }
    assert missed == set()


def test_every_private_name_of_torch_that_is_used_is_looked_at() -> None:
    looked_at = {part for capability in CAPABILITIES for path in capability.paths for part in path.split(".")}
    assert private_words() - looked_at - OF_OBJECTS == set()


MAY_NAME: Final = frozenset(
    {
        ROOT / "torchlens" / "compat.py",
        ROOT / "torchlens" / "report" / "environment.py",  # what compat reads is looked for by name
        ROOT / "torchlens" / "testing" / "snippets.py",  # what a model calls
        ROOT / "torchlens" / "capture" / "taking.py",  # what a model may ask of a tensor, of which none need be there
    }
)


def private(*names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in chain(*names) if name.startswith("_") and not name.startswith("__"))


OF_TENSORS: Final = private(*map(dir, (torch.Tensor, torch.nn.Parameter, torch.nn.Module(), torch.UntypedStorage)))
OF_TORCH: Final = OF_TENSORS | private(
    *map(dir, (torch, torch._C, torch._C._autograd, torch.ones(1, requires_grad=True).exp().grad_fn))
)


def private_names_in(path: Path) -> set[str]:
    """Private names of torch that a file reads of anything but itself, or writes out to read of a tensor or module.

    Functions stand in tables as text: what a model calls has a name, private or not.
    """
    nodes = list(ast.walk(ast.parse(path.read_text())))
    of_others = [
        node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls")
    ]
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute)} - {node.attr for node in of_others}
    written = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.attr for node in of_others} & OF_TORCH | (written - own) & OF_TENSORS


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem) for path in sorted((ROOT / "torchlens").rglob("*.py")) if path not in MAY_NAME],
)
def test_no_other_file_names_what_is_private_to_torch(path: Path) -> None:
    assert private_names_in(path) == set()


def test_a_private_name_is_found_however_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "reading.py"
    file.write_text('tensor._version, getattr(module, "_buffers"), self._parameters, torch._C, tensor.shape')
    assert private_names_in(file) == {"_version", "_buffers", "_C"}


def test_what_a_backward_needs_of_torch_is_told_by_name() -> None:
    here = tl.report.doctor().capabilities
    needed = """
    HAS_CHECKPOINT_HOOK_CLASS HAS_AUTOGRAD_ENGINE_QUEUE_CALLBACK HAS_CURRENT_AUTOGRAD_NODE HAS_GRADIENT_EDGE
    HAS_NODE_PREHOOK
    """
    assert all(here[name] for name in needed.split())
    assert here["HAS_CHECKPOINT_INTERNAL_HOOK_CLASS"] is (compat.CHECKPOINT_INTERNAL_HOOK is not None)


def test_a_name_whose_absence_is_no_lack_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_there", lambda path: not path.endswith("_checkpoint_internal_hook"))
    found = tl.report.doctor()
    assert found["HAS_CHECKPOINT_INTERNAL_HOOK_CLASS"].status == "skip"
    assert "HAS_CHECKPOINT_INTERNAL_HOOK_CLASS" not in found.verdict


def test_a_missing_name_is_told_with_what_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        environment, "is_there", lambda path: not path.endswith(("_get_sequence_nr", "CheckpointFunction"))
    )
    found = tl.report.doctor()
    assert not found.is_healthy
    assert found["HAS_SEQUENCE_NUMBER"] == Probe(
        "capabilities",
        "HAS_SEQUENCE_NUMBER",
        "fail",
        "torch has no torch._C._autograd._get_sequence_nr",
        "telling what the forward made unseen",
    )
    assert found["HAS_CHECKPOINT_FUNCTION"].status == "warn"
    assert found["HAS_CHECKPOINT_FUNCTION"].detail.endswith("a reentrant checkpoint is one op")
    assert not found.capabilities["HAS_SEQUENCE_NUMBER"]
    assert main(["doctor"]) == 1


def test_one_capture_is_tried(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    assert tl.report.doctor()["tiny_capture"] == Probe(
        "capture", "tiny_capture", "pass", "recorded relu, dropout, sum", "capturing"
    )
    assert torch.equal(torch.get_rng_state(), before)

    def broken(*_: Any) -> None:
        raise AttributeError("'classmethod_descriptor' object has no attribute '__func__'")

    monkeypatch.setattr(wrap.Wrappers, "install", broken)
    found = tl.report.doctor()
    assert found["tiny_capture"].status == "fail"
    assert found["tiny_capture"].detail.startswith("AttributeError: 'classmethod_descriptor'")
    assert not found.is_healthy
    assert main(["doctor"]) == 1
    assert "not healthy: tiny_capture failed" in capsys.readouterr().out


def test_none_is_tried_inside_a_capture() -> None:
    found: list[Doctor] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        found.append(tl.report.doctor())
        return torch.relu(x)

    assert [op.func_name for op in tl.trace(model, torch.ones(2)).ops][1:-1] == ["relu"]
    assert found[0]["tiny_capture"].status == "skip"
    assert found[0].is_healthy


def test_what_draws_and_exports_is_listed() -> None:
    found = tl.report.doctor()
    assert [found[name].group for name in ("dot", "graphviz-pure", "networkx")] == ["programs", "packages", "packages"]
    assert all(found[name].status in ("pass", "skip") for name in ("dot", "graphviz-pure", "networkx"))


def test_a_name_is_looked_for_through_modules_and_classes() -> None:
    assert is_there("torch.utils.checkpoint.checkpoint")
    assert is_there("torch.Tensor._version")
    assert not is_there("torch.utils.nothing")
    assert not is_there("nothing.at.all")


def test_a_directory_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tl.report.doctor(tmp_path / "not" / "yet" / "there")
    assert found["writable"] == Probe("path", "writable", "pass", str(tmp_path), "writing journals")
    assert found["filesystem"].status in ("pass", "warn", "skip")
    file = tmp_path / "file"
    file.write_text("x")
    assert tl.report.doctor(file / "below")["writable"].status == "fail"
    rows: list[dict[str, Any]] = json.loads(printed(capsys, "doctor", tmp_path, "--json"))
    assert [row["name"] for row in rows[-3:]] == ["writable", "free_space", "filesystem"]


def test_a_directory_that_may_not_be_looked_at_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tl.report.doctor(tmp_path / ("x" * 300))["writable"]
    assert (found.status, "too long" in found.detail) == ("fail", True)
    assert main(["doctor", str(tmp_path / ("x" * 300))]) == 1
    assert "capture" in capsys.readouterr().out


def test_the_filesystem_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    (tmp_path / "far away").mkdir()
    mounts = tmp_path / "mounts"
    escaped = str(tmp_path / "far away").replace(" ", "\\040")
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n/dev/b {tmp_path} xfs rw 0 0\n")
    assert filesystem(tmp_path, mounts) == "xfs"
    assert filesystem(tmp_path / "far away", mounts) == "nfs4"
    assert filesystem(Path("/"), mounts) == "ext4"
    assert filesystem(tmp_path, tmp_path / "none") is None


def test_a_remote_filesystem_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "filesystem", lambda path: "nfs4")
    assert tl.report.doctor(tmp_path)["filesystem"].status == "warn"


def test_it_works_without_torch_and_says_so() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import torchlens as tl; from torchlens.cli import main\n"
        "found = tl.report.doctor('.')\n"
        "print(found['torch'].status, found.is_healthy, found.capabilities, found.versions['torch'])\n"
        "print(main(['doctor']))\n"
    )
    lines = run(code).stdout.splitlines()
    assert lines[0] == "warn True {} None"
    assert lines[-1] == "0"
    assert any("torch" in line and "not installed" in line for line in lines)


def test_a_detail_may_hold_what_a_terminal_would_obey() -> None:
    assert "\x1b" not in str(Doctor((Probe("path", "writable", "pass", "/tmp/\x1b[2J"),)))


def test_the_report_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(tl.report.doctor()).splitlines()[-1].startswith("healthy")


def test_the_command_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 0
    assert "usage: torchlens" in capsys.readouterr().out
