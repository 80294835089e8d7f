"""Make the golden journal anew: ``python tools/golden.py``.

Until version 0.1 is tagged the schema may change without an upcaster, and whoever changes it runs this and says so in
CHANGELOG under "Stored format". Afterwards a golden journal is made once for each released schema and kept: this
writes the newest one, and those before it must go on projecting to what their manifests say (CONTRIBUTING, "Change
an event").

The models run under the file name ``models.py``, so that no path of this machine is stored.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attrs
import torch

import torchlens as tl
from journal import open_for_reading, open_for_writing
from journal.events import (
    EVENTS_BY_NAME,
    EngineEntered,
    ForwardReturned,
    GradientKept,
    GradientObserved,
    LeftOut,
    NodeFired,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
    PayloadKept,
)
from journal.wire import FORMAT
from tests.golden import (
    EVENTS,
    GOLDEN,
    GOLDENS,
    JOURNAL,
    MANIFEST,
    OF_A_PROCESS,
    described,
    manifest,
    portable,
    write_portable,
)
from torchlens import compat


def models() -> Any:
    """The models, as if they had been imported from the folder they are in."""
    module = ModuleType("models")
    sys.modules["models"] = module
    SourceFileLoader("models", "models.py").exec_module(module)
    return module


def capture_all(path: Path, models: Any) -> None:
    """Append every capture."""
    image = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4)
    line = torch.linspace(-1, 1, 3)

    def capture(
        name: str,
        model: Callable[..., Any],
        *inputs: Any,
        durability: Any = "batch",
        behind: Callable[..., Any] | None = None,
        **asked: Any,
    ) -> None:
        options = tl.JournalOptions(path, durability=durability)
        try:
            trace = models.asked(tl.trace, model, *inputs, journal=options, name=name, **asked)
            if behind is not None:
                behind(trace, inputs[0])
            trace.cleanup()
        except tl.TraceCaptureError as exc:
            if exc.partial_trace is not None:
                exc.partial_trace.cleanup()
        except KeyboardInterrupt:
            if name != "interrupted":
                raise

    told = tl.CaptureOptions(save_code_context=True)
    capture("static", models.ConvNet(), image, tags=("image", "training"), capture=told)
    capture("loop", models.Loop(), [line, torch.zeros(3)])
    capture("unregistered", models.Hidden(), line.reshape(1, 3), capture=tl.CaptureOptions(random_seed=7))
    capture("broken", models.Broken(), line, save="none")
    capture("halted", models.ConvNet(), image, stop_after="norm")
    capture("interrupted", models.Interrupted(), line)
    capture("constants", models.constants, [torch.linspace(0, 1, 6).reshape(2, 3)], {"bias": torch.ones(2, 1)})
    capture("kept later", models.Loop(), [line, torch.zeros(3)], save=tl.label("tanh_1_6:2"))
    capture("flight", models.Flight(), image, durability="event", save="none")
    capture("measured", models.Loop(), [line, torch.zeros(3)], capture=tl.CaptureOptions(measure_autograd_memory=True))
    capture("unwatched", models.unwatched, line.requires_grad_())
    capture("witnessed", models.unwatched, line, capture=tl.CaptureOptions(verify_capture=True))
    capture("not finite", models.ConvNet(), image * math.nan, capture=tl.CaptureOptions(raise_on_nan=True))
    capture("helped", models.with_a_helper(models.Loop()), [line.detach(), torch.zeros(3)])
    capture("to be run again", models.taking, line.detach(), save="none", capture=tl.CaptureOptions(replayable=True))
    beside = models.asked(tl.trace, models.written_beside, line.detach(), name="written beside")
    beside.journal.copy_to(path)  # only of values that are held in memory is it told that they were written
    beside.cleanup()
    narrow = tl.SaveOptions(tl.func("conv2d"), dtype=torch.bfloat16)
    capture("transformed", models.ConvNet(), image, save=narrow)
    differentiable = line.detach().requires_grad_()
    measured = tl.CaptureOptions(save_grads=tl.stats_only())
    capture("statistics", models.bent, differentiable, save=tl.stats_only(), capture=measured, behind=models.once)
    hooked = models.ConvNet()
    models.with_a_pre_hook(hooked.head)
    optimizer = torch.optim.SGD(hooked.head.parameters(), lr=0.1)
    options = tl.CaptureOptions(random_seed=7, save_arg_values=True, save_rng_states=True, optimizer=optimizer)
    capture("asked for all", hooked, image, save="none", capture=options)
    for name, model, behind, options in (
        ("differentiated", models.bent, models.twice, None),
        ("second order", models.bent, models.second_order, None),
        ("nested", models.bent, models.nested, None),
        ("refused", models.refusing, models.failing, None),
        ("unannounced", models.bent, models.unannounced, tl.CaptureOptions(backward_ready=True)),
        ("counted", models.bent, models.once, tl.CaptureOptions(backward_ready=True)),
    ):
        capture(name, model, line.detach().requires_grad_(), behind=behind, save="none", capture=options)
    checkpointed = models.Linear(3, 3)
    run_in_a_checkpoint(checkpointed)
    capture("checkpointed", checkpointed, line.detach().requires_grad_(), behind=models.twice, save="none")


def run_in_a_checkpoint(module: torch.nn.Module) -> None:
    """Have a module run in a checkpoint, entered past torch's own Python code, while a thread enters another one."""
    context, other = checkpoint(), checkpoint()

    def elsewhere() -> None:
        with other:
            pass

    def enter(module: torch.nn.Module, args: Any) -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        context.__enter__()

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(lambda module, args, result: context.__exit__(None, None, None))


def checkpoint() -> Any:
    """A context of torch's class that keeps what it is given, where torch would compute it again."""
    kind: Any = compat.CHECKPOINT_HOOK
    made = object.__new__(kind)
    compat.SAVED_TENSORS_HOOKS.__init__(made, lambda tensor: tensor, lambda held: held)
    return made


def branch_off(path: Path) -> None:
    """Append a branch of ``kept later``, left before it settled: one more value is kept, whose bytes are its own, and
    something is told to be left out."""
    journal = open_for_writing(path)
    (parent,) = (info for info in journal.streams() if info.opened.label == "kept later")
    *_, returned, _, settled = journal.events(parent.stream)
    assert isinstance(returned.event, ForwardReturned)
    place = {"kind": "branch", "parent": parent.stream, "branched_at": settled.at}
    opened = attrs.evolve(parent.opened, **place, label="kept on a branch", tags=("branch",))
    writer = journal.open_stream(opened, settled.time_ns)
    payload = (writer.keep(struct.pack("<3f", 0.25, 0.5, 0.75)), 0, None)
    writer.append(PayloadKept(value=returned.event.outputs[0], payload=payload), settled.time_ns)
    writer.append(LeftOut(event="payload_kept"), settled.time_ns)
    writer.append(settled.event, settled.time_ns)
    writer.close()
    journal.close()


def keep_on_a_device(path: Path) -> None:
    """Go on with ``differentiated``: a pass whose gradient waited on a device, which this machine may not have."""
    journal = open_for_writing(path)
    (info,) = (info for info in journal.streams() if info.opened.label == "differentiated")
    stamped = list(journal.events(info.stream))
    time_ns, firsts = stamped[-1].time_ns, {type(one.event): one.event for one in reversed(stamped)}
    number = sum(isinstance(one.event, PassOpened) for one in stamped)
    opened, observed, fired = firsts[PassOpened], firsts[GradientObserved], firsts[NodeFired]
    assert isinstance(observed, GradientObserved)
    shape, dtype, _ = observed.like
    writer = journal.continue_stream(info.stream)
    writer.append(attrs.evolve(opened, pass_number=number, retain_graph=False), time_ns)
    writer.append(attrs.evolve(firsts[EngineEntered], pass_number=number, task=number), time_ns)
    like = (shape, dtype, "cuda:0")
    at = writer.append(attrs.evolve(observed, pass_number=number, like=like, payload=None), time_ns)
    writer.append(attrs.evolve(fired, pass_number=number, node=observed.node), time_ns)
    writer.append(attrs.evolve(firsts[PassJournaled], pass_number=number), time_ns)
    data = struct.pack(f"<{math.prod(shape)}f", *[0.5] * math.prod(shape))
    writer.append(GradientKept(of=at, payload=(writer.keep(data), 0, None)), time_ns)
    writer.append(PassScavenged(pass_number=number), time_ns)
    writer.append(PassFinalized(pass_number=number), time_ns)
    journal.close()


def make(folder: Path) -> None:
    """Write the journal, its portable form and the manifest."""
    path = folder / JOURNAL
    sys.dont_write_bytecode = True
    before = Path.cwd()
    os.chdir(GOLDEN)
    try:
        capture_all(path, models())
        branch_off(path)
        keep_on_a_device(path)
    finally:
        os.chdir(before)
    shutil.rmtree(GOLDEN / JOURNAL, ignore_errors=True)
    shutil.copytree(path, GOLDEN / JOURNAL, ignore=shutil.ignore_patterns(*OF_A_PROCESS))
    journal = open_for_reading(path)
    write_portable(journal, GOLDEN / EVENTS)
    facts = {
        "format": FORMAT,
        "events": {name: cls.event_version for name, cls in EVENTS_BY_NAME.items()},
        "captures": described(journal),
    }
    journal.close()
    (GOLDEN / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n")


def project_again() -> None:
    """Write the manifests anew from the journals as they are, after a projection was changed on purpose."""
    for golden in GOLDENS:
        facts = manifest(golden) | {"captures": described(portable(golden))}
        (golden / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n")


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    asked.add_argument(
        "--manifests", action="store_true", help="keep every journal; write what it projects to now into its manifest"
    )
    if asked.parse_args().manifests:
        project_again()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
    files = [GOLDEN / EVENTS, GOLDEN / MANIFEST, *(file for file in (GOLDEN / JOURNAL).rglob("*") if file.is_file())]
    for file in files:
        print(f"{file.stat().st_size:>8}  {file.relative_to(GOLDEN)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
