"""A program that runs artifacts where the models' classes do not exist: it is started by tests.

It is given a folder with ``NAME.tlspec`` and files of inputs and outputs for each model, runs each
artifact on each set of inputs, and compares with what the model gave, bit for bit. It prints a line for each.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import torchlens as tl
from tests.running.comparing import seed_all, tensors_of
from torchlens.bits import same_bits


def put_in(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Arguments with the names of tensors in their places."""
    if isinstance(value, dict):
        return {name: put_in(item, tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [put_in(item, tensors) for item in value]
    return tensors[value.removeprefix("tensor:")] if isinstance(value, str) and value.startswith("tensor:") else value


def judged(folder: Path, name: str, told: Any) -> str:
    trace = tl.load(folder / f"{name}.tlspec")
    for number, (args, kwargs) in enumerate(told):
        given = load_file(folder / f"{name}.{number}.in.safetensors")
        wanted = load_file(folder / f"{name}.{number}.out.safetensors")
        seed_all(number)
        result = trace.run(None, put_in(args, given), put_in(kwargs, given))
        found = [tensor for _, tensor in tensors_of(result.output)]
        report = result.report
        if report.state_source != "embedded_capture_state":
            return f"took {report.state_source}"
        same = len(found) == len(wanted) and all(
            same_bits(tensor, wanted[str(place)]) for place, tensor in enumerate(found)
        )
        if not same and report.path_faithfulness == "verified":
            return f"differs with inputs {number}"
        if number == 0 and (report.path_faithfulness == "diverged" or not same):
            return f"{report.path_faithfulness} with the capture's own inputs"
    return "same"


def main(folder: Path) -> None:
    import json

    warnings.simplefilter("ignore", tl.errors.TorchLensWarning)
    for name, told in json.loads((folder / "told.json").read_text()).items():
        sys.stdout.write(f"{name} {judged(folder, name, told)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
