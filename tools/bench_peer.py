"""Times TorchLens 2.36.1 on request, in the Python of its own virtual environment.

One JSON request a line, one JSON answer a line: ``{"build": NAME, "grad": true}`` gives ``{"ops": n}``,
``{"run": "bare" | "nothing" | "everything"}`` gives ``{"ns": n, "cpu": seconds}``, where ``cpu`` is what
this process has used since it started. ``"bare backward"`` and ``"backward"`` run a backward too, the second with every
gradient saved and its records read, as ``bench_backward.py`` does.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from typing import Any

import torch
from bench_models import build

import torchlens as tl


class Peer:
    def __init__(self, name: str, grad: bool) -> None:
        self.model, self.x = build(name)
        self.grad = grad
        self.nothing = tl.options.CaptureOptions(layers_to_save="none")
        self.ops = self.traced(self.nothing).num_ops

    def traced(self, capture: Any) -> Any:
        return tl.trace(self.model, self.x, capture=capture)

    def backward(self, mode: str) -> int:
        gc.collect()
        result = None
        for _ in range(2 if mode == "bare backward" else 1):  # the first is untimed, as for ours
            self.model.zero_grad(set_to_none=True)
            start = time.perf_counter_ns()
            if mode == "bare backward":
                first_tensor(self.model(self.x)).sum().backward()
            else:
                capture = tl.options.CaptureOptions(layers_to_save="none", save_grads=True)
                result = self.traced(capture)
                result.backward(result[result.output_layers[0]].out.sum())
                for table in (result.grad_fns, result.grad_fn_calls, result.backward_passes, result.saved_grad_ops):
                    _ = len(table)
                _ = result.grad_fn_fire_timings
            spent = time.perf_counter_ns() - start
        if result is not None:
            result.cleanup()
        return spent

    def run(self, mode: str) -> int:
        if mode.endswith("backward"):
            return self.backward(mode)
        gc.collect()
        with torch.set_grad_enabled(self.grad):
            self.model(self.x)  # untimed, as before each sample of ours
            start = time.perf_counter_ns()
            if mode == "bare":
                result = self.model(self.x)
            else:
                result = self.traced(self.nothing if mode == "nothing" else None)
            spent = time.perf_counter_ns() - start
        if mode != "bare":
            result.cleanup()
        return spent


def first_tensor(output: Any) -> Any:
    return output if isinstance(output, torch.Tensor) else next(iter(output.values()))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints does not belong among the answers
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    peer = None
    for line in sys.stdin:
        request = json.loads(line)
        if "build" in request:
            peer = Peer(request["build"], request["grad"])
            answer: dict[str, Any] = {"ops": peer.ops}
        else:
            assert peer is not None
            answer = {"ns": peer.run(request["run"]), "cpu": time.process_time()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
