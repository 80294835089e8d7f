"""A real artifact whose files are changed: what is read is what was saved, or is refused by a code of ours."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.programs import run
from torchlens.codes import CODES
from torchlens.errors import TorchLensWarning

FILES = ("manifest.json", "records.msgpack", "events.msgpack", "payloads/00000.safetensors")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    trace = tl.trace(model, torch.randn(2, 4), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    path = tmp_path_factory.mktemp("real") / "a.tlspec"
    trace.save(path)
    trace.cleanup()
    return path


def content(path: Path, *, lazy: bool) -> dict[str, object]:
    """Every column and tensor of an artifact, or the code with which it is refused."""
    found: dict[str, object] = {}
    try:
        trace = tl.load(path, lazy=lazy)
        tables = trace.tables
    except tl.TorchLensError as refused:
        return {"load": refused.code}
    for name, table in tables.all.items():
        for column in table.names:
            found[f"{name}.{column}"] = answer(lambda table=table, column=column: repr(list(table.column(column))))
    for op in trace.ops:
        found[f"{op.row}.out"] = answer(lambda op=op: op.out.detach().numpy().tobytes())
    found["events"] = answer(lambda: repr(list(trace.journal.events(trace.stream))))
    trace.cleanup()
    return found


def answer(of: object) -> object:
    try:
        return of()  # type: ignore[operator]
    except tl.TorchLensError as refused:
        return refused.code


def test_a_real_artifact_that_is_changed_anywhere_says_nothing_wrong(sound: Path, tmp_path: Path) -> None:
    whole = content(sound, lazy=True)
    assert not CODES.keys() & {str(value) for value in whole.values()} - {"activation_not_saved"}
    chance = random.Random(11)
    path = tmp_path / "a.tlspec"
    refusals = 0
    for turn in range(120):
        shutil.copytree(sound, path, dirs_exist_ok=True)
        name = FILES[turn % len(FILES)]
        data = bytearray((path / name).read_bytes())
        for _ in range(chance.choice((1, 1, 2, 5))):
            start = chance.randrange(len(data))
            end = start + chance.choice((0, 1, 1, 8))
            data[start:end] = chance.randbytes(chance.choice((0, 1, 1, 8)))
        (path / name).write_bytes(data)
        found = content(path, lazy=turn % 8 < 4)
        if "load" in found:
            assert found["load"] in CODES
            refusals += 1
        else:
            wrong = {key for key, value in found.items() if value != whole[key] and value not in CODES}
            assert not wrong, (turn, name, sorted(wrong)[:3])
    assert refusals > 60


@pytest.mark.parametrize("path", [7, None, "a\0b", "x" * 5000, "x" * 5000 + ".tlspec"])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.load(path)  # type: ignore[arg-type]
    assert refused.value.code in ("journal_path_invalid", "journal_open_failed", "bundle_load_failed")


@pytest.mark.parametrize("path", ["", b""])
def test_an_empty_path_is_not_the_working_directory(path: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.load(path)
    assert refused.value.code == "artifact_path_invalid"


def test_a_path_may_be_bytes(sound: Path, tmp_path: Path) -> None:
    loaded = tl.load(os.fsencode(sound))  # type: ignore[arg-type]
    with pytest.warns(TorchLensWarning, match="forward alone"):
        loaded.journal.copy_to(tmp_path / "j")
    assert tl.load(os.fsencode(tmp_path / "j")).ops.labels == loaded.ops.labels  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["manifest.json", "events.msgpack", "payloads/00000.safetensors"])
def test_of_a_file_within_an_artifact_the_folder_is_named(sound: Path, name: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.load(sound / name)
    assert refused.value.code == "artifact_path_invalid"
    assert repr(str(sound)) in refused.value.remedy


def test_the_tensors_of_an_artifact_are_read_without_torch_and_without_this_package(sound: Path) -> None:
    code = (
        "import sys, json; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from safetensors.numpy import load_file\n"
        f"path = Path({str(sound)!r})\n"
        "rows = json.loads((path / 'manifest.json').read_text())['body_index']\n"
        "tensors = load_file(path / 'payloads' / '00000.safetensors')\n"
        "print(all(list(tensors[row['tensor']].shape) == row['shape'] for row in rows), len(rows) > 3)\n"
    )
    assert run(code).stdout == "True True\n"


def test_the_records_of_an_artifact_are_read_without_torch(sound: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import msgpack\n"
        "from projections.columnar.decoding import unpack_table\n"
        f"data = open({str(sound / 'records.msgpack')!r}, 'rb').read()\n"
        "unpacker = msgpack.Unpacker(None, max_buffer_size=len(data)); unpacker.feed(data)\n"
        "print({'ops', 'modules'} <= {unpack_table(table).summary.name for table in unpacker})\n"
    )
    assert run(code).stdout == "True\n"
