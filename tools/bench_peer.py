"""Times TorchLens 2.36.1 on request, in the Python of its own virtual environment.

One JSON request a line, one JSON answer a line: ``{"build": NAME, "grad": true}`` gives ``{"ops": n}``,
``{"run": "bare" | "nothing" | "everything"}`` gives ``{"ns": n, "cpu": seconds}``, where ``cpu`` is what
this process has used since it started.
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

    def run(self, mode: str) -> int:
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
