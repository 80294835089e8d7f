"""The model zoo, run from artifacts where its code is not: outputs are the models', bit for bit."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import torchlens as tl
from tests.programs import PATIENCE, ROOT, surroundings
from tests.running.comparing import REPLAYABLE, tensors_of
from torchlens.errors import RunCapabilityUnavailableError

ZOO: Final = ROOT / "tests" / "data" / "zoo"
NAMES: Final = sorted(path.stem for path in (ZOO / "peer").glob("[a-z]*.json"))

REFUSED: Final = {"custom_autograd_function": "missing_callable_ref"}
"""Models that cannot be saved as runnable, and why."""

SAMPLE: Final = (
    *("batchnorm_train", "custom_autograd_function", "data_dependent_branches", "dict_in_dict_out", "dropout_train"),
    *("inplace_chain", "nn_lstm_bidirectional", "shared_block_loop"),
)


@pytest.fixture(scope="module")
def zoo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_models", ZOO / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Arguments with the names of tensors in their places, as JSON holds them."""
    if isinstance(value, Tensor):
        tensors[str(len(tensors))] = value.detach().clone().contiguous()
        return f"tensor:{len(tensors) - 1}"
    if isinstance(value, dict):
        return {name: named(item, tensors) for name, item in value.items()}
    return [named(item, tensors) for item in value] if isinstance(value, (list, tuple)) else value


def moved(value: Any) -> Any:
    """Arguments of the same form with other elements, which still are token numbers where they were."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            return value + 0.01 * torch.randn_like(value)
        return value.flip(-1) if value.dtype is torch.int64 and value.ndim else value
    if isinstance(value, dict):
        return {name: moved(item) for name, item in value.items()}
    return type(value)(map(moved, value)) if type(value) in (list, tuple) else value


def prepare(zoo: ModuleType, names: Iterable[str], folder: Path) -> dict[str, str]:
    """Save each model as an artifact, with inputs and the model's outputs; by model, why it was refused."""
    told: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name in names:
        model, args, kwargs = zoo.MODELS[name]()
        trace = tl.trace(model, list(args), kwargs, capture=REPLAYABLE)
        if name in REFUSED:
            with pytest.raises(RunCapabilityUnavailableError) as error:
                trace.save(folder / f"{name}.tlspec", level="runnable")
            assert error.value.code == "sparse_preflight_failed"
            refused[name] = error.value.fields["diagnostics"][0].code
            trace.cleanup()
            continue
        trace.save(folder / f"{name}.tlspec", level="runnable", include_weights=True)
        trace.cleanup()
        told[name] = []
        for number, change in enumerate((lambda value: value, moved)):
            model, args, kwargs = zoo.MODELS[name]()
            torch.manual_seed(5)
            args, kwargs = change(args), change(kwargs)
            given: dict[str, Tensor] = {}
            told[name].append([named(args, given), named(kwargs, given)])
            torch.manual_seed(number)
            random.seed(number)
            np.random.seed(number)  # as the models do
            outputs = {
                str(place): tensor.clone().contiguous()
                for place, (_, tensor) in enumerate(tensors_of(model(*args, **kwargs)))
            }
            save_file(given, folder / f"{name}.{number}.in.safetensors")
            save_file(outputs, folder / f"{name}.{number}.out.safetensors")
    (folder / "told.json").write_text(json.dumps(told))
    return refused


def run_elsewhere(folder: Path) -> dict[str, str]:
    """What came of each, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "running" / "elsewhere.py"), str(folder)],
        env=surroundings(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def hold(zoo: ModuleType, names: Iterable[str], folder: Path) -> None:
    names = list(names)
    refused = prepare(zoo, names, folder)
    assert refused == {name: why for name, why in REFUSED.items() if name in names}
    assert run_elsewhere(folder) == {name: "same" for name in names if name not in refused}


def test_a_sample_of_the_zoo_runs_where_its_code_is_not(zoo: ModuleType, tmp_path: Path) -> None:
    hold(zoo, SAMPLE, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # some models use what torch calls beta
def test_the_whole_zoo_runs_where_its_code_is_not(zoo: ModuleType, tmp_path: Path) -> None:
    assert len(NAMES) == 46
    hold(zoo, NAMES, tmp_path)
