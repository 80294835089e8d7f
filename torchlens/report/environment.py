"""What this environment has and lacks: ``tl.report.doctor()``.

Needs no torch: what can be told without is told, and that it is missing is among it. Each name of torch that this
project uses and torch does not promise stands in ``CAPABILITIES``, with what depends on it.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from torchlens.errors import message_of
from torchlens.printable import aligned, printable
from torchlens.quantities import Bytes
from torchlens.version import VERSION

__all__ = ["CAPABILITIES", "Capability", "Doctor", "Probe", "doctor"]

Status: TypeAlias = Literal["pass", "warn", "fail", "skip"]

PYTHON: Final = (3, 10)
TORCH: Final = (2, 4)

PACKAGES: Final = {
    "attrs": "records and options",
    "lmdb": "journals on disk",
    "msgpack": "stored events",
    "rich": "tables of the command line",
    "xxhash": "digests of payloads",
}

OPTIONAL: Final = {
    "numpy": "seeding it along, with CaptureOptions(random_seed=...)",
    "pandas": "to_pandas()",
    "networkx": "tl.export.to_networkx()",
    "graphviz-pure": "svg and png of trace.draw() where there is no dot",
    "hypothesis": "torchlens.testing",
    "textual": "the screen of torchlens travel",
}

PROGRAMS: Final = {"dot": "svg, png and pdf of trace.draw(); Graphviz has it"}

REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "glusterfs", "ceph", "afs")
"""Filesystems of other machines: memory maps and locks on them are not what LMDB relies on."""


class Capability(NamedTuple):
    """A name of torch that is private, or not in every version."""

    name: str
    paths: tuple[str, ...]  # where it may be; one of them is enough
    serves: str  # what depends on it
    without: str | None = None  # what happens without; None where nothing can be captured then
    is_lack: bool = True  # whether anything is less without


CAPABILITIES: Final = (
    # wrapping
    Capability("HAS_VARIABLE_FUNCTIONS", ("torch._C._VariableFunctions",), "wrapping the functions of torch"),
    Capability("HAS_VARIABLE_FUNCTION_MODULE", ("torch._VF",), "wrapping what recurrent layers call"),
    Capability("HAS_TENSOR_BASE", ("torch._C.TensorBase",), "wrapping the methods of tensors"),
    Capability("HAS_FUNCTION_APPLY", ("torch.autograd.Function.apply",), "wrapping custom autograd functions"),
    Capability("HAS_SCRIPT_METHOD", ("torch._C.ScriptMethod",), "telling scripted methods"),
    Capability("HAS_OP_PACKET", ("torch._ops.OpOverloadPacket",), "wrapping torch.ops"),
    Capability("HAS_OP_OVERLOAD", ("torch._ops.OpOverload",), "wrapping torch.ops"),
    Capability("HAS_OP_NAMESPACE", ("torch._ops._OpNamespace",), "wrapping torch.ops"),
    Capability("HAS_OP_SCHEMA", ("torch.ops.aten.add_.Tensor._schema.is_mutable",), "telling which operators write"),
    Capability(
        "HAS_SCRIPT_BUILTINS", ("torch.jit._builtins._get_builtin_table",), "scripting while functions are wrapped"
    ),
    Capability(
        "HAS_SCRIPTED_MODULE",
        ("torch.jit._script.RecursiveScriptModule",),
        "putting scripted parts of a model back after a validation",
    ),
    Capability(
        "HAS_DEVICE_CONSTRUCTORS", ("torch.utils._device._device_constructors",), "device contexts after a capture"
    ),
    # modules
    Capability("HAS_MODULE_CALL", ("torch.nn.Module._call_impl",), "telling module calls"),
    *(
        Capability(
            f"HAS_GLOBAL_{kind.upper()}_HOOKS",
            (f"torch.nn.modules.module._global_{kind}_hooks",),
            "running the user's hooks",
        )
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    ),
    Capability("HAS_TRACING_STATE", ("torch._C._get_tracing_state",), "leaving torch.jit.trace alone"),
    Capability(
        "HAS_BACKWARD_HOOK_FUNCTION",
        ("torch.nn.modules._functions.BackwardHookFunction",),
        "modules with full backward hooks",
        without="the Function that torch puts around them is recorded as an op",
    ),
    # tensors
    Capability("HAS_TENSOR_VERSION", ("torch.Tensor._version",), "seeing writes in place"),
    Capability("HAS_TENSOR_IS_VIEW", ("torch.Tensor._is_view",), "telling views of parameters"),
    Capability("HAS_STORAGE_IDENTITY", ("torch.UntypedStorage._cdata",), "telling which tensors share memory"),
    Capability("HAS_SPARSE_VALUES", ("torch.Tensor._values", "torch.Tensor._indices"), "elements of sparse tensors"),
    Capability("HAS_REBUILD_TENSOR", ("torch._tensor._rebuild_from_type_v2",), "copying tensors that have attributes"),
    Capability("HAS_MAKE_SUBCLASS", ("torch.Tensor._make_subclass",), "knowing a tensor that gets another class"),
    Capability("HAS_NEGATIVE_VIEW", ("torch._neg_view",), "copying inputs that are negative views"),
    Capability(
        "HAS_FUNCTIONAL_WRAPPER",
        ("torch._C._functorch.is_functorch_wrapped_tensor",),
        "keeping out of function transforms",
    ),
    Capability(
        "HAS_BATCHED_TENSOR", ("torch._C._functorch.is_legacy_batchedtensor",), "keeping out of batched gradients"
    ),
    Capability(
        "HAS_JAGGED_TENSOR",
        ("torch.nested._internal.nested_tensor.NestedTensor",),
        "nested tensors of the jagged layout",
        without="there are none in this version",
    ),
    # modes and autograd
    Capability("HAS_SEQUENCE_NUMBER", ("torch._C._autograd._get_sequence_nr",), "telling what the forward made unseen"),
    Capability(
        "HAS_CURRENT_AUTOGRAD_NODE",
        ("torch._C._current_autograd_node",),
        "telling which node runs in a backward",
        without="no operator of a backward is told, so what it executed is unknown, as are more orders of nodes",
    ),
    Capability("HAS_GRAPH_TASK", ("torch._C._current_graph_task_id",), "telling runs of the autograd engine apart"),
    Capability(
        "HAS_ENGINE_CALL",
        ("torch.autograd._engine_run_backward", "torch.autograd.graph._engine_run_backward"),
        "recording plain loss.backward() and torch.autograd.grad",
        without="they are recorded as runs that nothing announced, with save_grads= or backward_ready=True",
    ),
    Capability(
        "HAS_AUTOGRAD_ENGINE_QUEUE_CALLBACK",
        ("torch.autograd.Variable._execution_engine.queue_callback",),
        "telling the end of runs of scripted code and C++",
        without="such a run ends with the next thing that is asked of its trace",
    ),
    Capability(
        "HAS_NODE_PREHOOK",
        ("torch.autograd.graph.Node.register_prehook",),
        "telling when a node begins, and what arrives",
    ),
    Capability(
        "HAS_GRADIENT_EDGE",
        ("torch.autograd.graph.get_gradient_edge",),
        "backward passes that begin or end at a place of the graph",
        without="there are none",
    ),
    *(
        Capability(
            f"HAS_BATCH_{what}",
            (path,),
            "telling which node made batched gradients",
            without="a pass that makes a graph of batched gradients reads as incomplete",
        )
        for what, path in (
            ("LEVEL_BEGUN", "torch._C._vmapmode_increment_nesting"),
            ("LEVEL_ENDED", "torch._C._vmapmode_decrement_nesting"),
            ("TAKEN_APART", "torch._remove_batch_dim"),
        )
    ),
    Capability("HAS_GATHERER", ("torch._C._functions.AccumulateGrad",), "telling which leaf a gradient is added to"),
    Capability("HAS_FUNCTION_NODE", ("torch._C._FunctionBase",), "telling nodes of Python functions"),
    Capability(
        "HAS_SAVED_TENSOR",
        ("torch._C._autograd.SavedTensor.data",),
        "measuring what autograd keeps",
        without="measure_autograd_memory is refused",
    ),
    Capability(
        "HAS_NO_TORCH_FUNCTION",
        ("torch._C.DisableTorchFunction", "torch._C.DisableTorchFunctionSubclass"),
        "keeping code of tensor subclasses and modes out of the recording",
    ),
    Capability(
        "HAS_DISPATCH_MODE", ("torch.utils._python_dispatch.TorchDispatchMode",), "counting what the dispatcher runs"
    ),
    Capability(
        "HAS_DISPATCH_MODES", ("torch._C._get_dispatch_stack_at",), "keeping the user's modes out of the recording"
    ),
    Capability("HAS_KERNEL_LOOKUP", ("torch._C._dispatch_has_kernel",), "telling which operators a run may call"),
    Capability(
        "HAS_FUNCTION_MODES",
        ("torch._C._len_torch_function_stack", "torch._C._get_function_stack_at"),
        "telling a forward's own modes from those around it",
    ),
    Capability("HAS_NUM_DISPATCH_MODES", ("torch._C._len_torch_dispatch_stack",), "the same"),
    Capability("HAS_PUT_DISPATCH_MODE", ("torch._C._push_on_torch_dispatch_stack",), "telling what runs in a backward"),
    Capability("HAS_TAKE_DISPATCH_MODE", ("torch._C._pop_torch_dispatch_stack",), "the same"),
    Capability("HAS_OP_CALL", ("torch.ops.aten.add_.Tensor._op",), "calling operators on from a dispatch mode"),
    Capability(
        "HAS_NO_DISPATCH", ("torch._C._DisableTorchDispatch",), "keeping copies of gradients out of dispatch modes"
    ),
    *(
        Capability(
            f"HAS_{act.upper()}_DISPATCH_MODE",
            (f"torch.utils._python_dispatch._{act}_mode",),
            "verifying a capture whose model makes subclasses of Tensor",
            without="with verify_capture, torch refuses to make them",
        )
        for act in ("pop", "push")
    ),
    Capability(
        "HAS_FUNCTION_MODE_ON",
        ("torch._C._is_torch_function_mode_enabled",),
        "keeping the recording out of the user's function modes",
        without="a mode of the user's may see calls of the recording",
    ),
    Capability(
        "HAS_ANY_AUTOCAST_ENABLED",
        ("torch._C._is_any_autocast_enabled",),
        "the autocast state of ops",
        without="autocast is seen on the GPU alone",
    ),
    Capability(
        "HAS_CHECKPOINT_FUNCTION",
        ("torch.utils.checkpoint.CheckpointFunction",),
        "looking inside reentrant checkpoints",
        without="a reentrant checkpoint is one op",
    ),
    Capability(
        "HAS_CHECKPOINT_HOOK_CLASS",
        ("torch.utils.checkpoint._checkpoint_hook",),
        "witnessing non-reentrant checkpoints",
        without="no checkpoint has a token, and trace.checkpoint_invocation_witness says so",
    ),
    Capability(
        "HAS_CHECKPOINT_INTERNAL_HOOK_CLASS",
        ("torch.utils.checkpoint._checkpoint_internal_hook",),
        "telling that hooks of checkpoints have state of their own",
        without="they have none in this version, which is as well",
        is_lack=False,
    ),
)
"""By what they are for."""


class Probe(NamedTuple):
    """One thing that was looked at."""

    group: str  # "versions", "packages", "programs", "capabilities", "capture", "machine", "path"
    name: str
    status: Status
    detail: str
    serves: str = ""  # what depends on it


@attrs.frozen(repr=False)
class Doctor:
    """What was found. Its text is a table; ``doctor["torch"]`` is one probe.

    Attributes:
        probes: Everything that was looked at, in order.
    """

    probes: tuple[Probe, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is missing that a capture needs."""
        return not any(probe.status == "fail" for probe in self.probes)

    @property
    def versions(self) -> dict[str, str | None]:
        """Version of each package, and of Python; None for one that is not installed."""
        there = [probe for probe in self.probes if probe.group in ("versions", "packages")]
        return {probe.name: probe.detail if probe.detail[:1].isdigit() else None for probe in there}

    @property
    def capabilities(self) -> dict[str, bool]:
        """Whether torch has what its versions do not all have; empty without torch."""
        return {probe.name: probe.status == "pass" for probe in self.probes if probe.group == "capabilities"}

    def __getitem__(self, name: str) -> Probe:
        return {probe.name: probe for probe in self.probes}[name]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        counts = {status: sum(one.status == status for one in self.probes) for status in ("pass", "warn", "fail")}
        return f"<Doctor: {counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail>"

    def lines(self) -> Iterator[str]:
        group = None
        for probe, line in zip(self.probes, aligned([cells_of(probe) for probe in self.probes]), strict=True):
            if probe.group != group:
                if group is not None:
                    yield ""
                yield probe.group
                group = probe.group
            yield f"  {line}"
        yield ""
        yield self.verdict

    @property
    def verdict(self) -> str:
        """Whether this environment can capture, in a line, with what is missing."""
        failed = [probe.name for probe in self.probes if probe.status == "fail"]
        warned = [probe.name for probe in self.probes if probe.status == "warn"]
        lacks = f"; with less: {', '.join(warned)}" if warned else ""
        return printable(f"not healthy: {', '.join(failed)} failed{lacks}" if failed else f"healthy{lacks}")


def cells_of(probe: Probe) -> tuple[str, str, str]:
    """What a line says of it."""
    serves = f"  (for {probe.serves})" if probe.serves else ""
    return probe.status, probe.name, f"{probe.detail}{serves}"


def doctor(path: str | os.PathLike[str] | None = None) -> Doctor:
    """Look at the environment: versions, what torch offers, the machine, and a directory that journals are to go to.

    With torch, a function of three calls is captured, to see whether that works; no generator is moved by it.

    Args:
        path: A directory; it need not be there yet.

    Example:
        >>> import torchlens as tl
        >>> tl.report.doctor().is_healthy
        True
    """
    torch = imported("torch")
    found = [*versions(torch), *packages(), *programs(), *capabilities(torch), *captured(torch), *machine(torch)]
    if path is not None:
        found += directory(Path(path))
    return Doctor(tuple(found))


def imported(name: str) -> Any:
    """A module; None where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001  # a broken installation may raise anything, and is reported
        return None


def versions(torch: Any) -> Iterator[Probe]:
    yield Probe("versions", "torchlens", "pass", VERSION)
    is_new = sys.version_info >= PYTHON
    yield Probe("versions", "python", "pass" if is_new else "fail", platform.python_version())
    if torch is None:
        yield Probe("versions", "torch", "warn", "not installed", "capturing; journals are read without")
        return
    version = str(torch.__version__)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    yield Probe("versions", "torch", "pass" if numbers >= TORCH else "warn", version, "capturing")


def packages() -> Iterator[Probe]:
    for name, serves in PACKAGES.items():
        version = version_of(name)
        yield Probe("packages", name, "fail" if version is None else "pass", version or "not installed", serves)
    for name, serves in OPTIONAL.items():
        version = version_of(name)
        yield Probe("packages", name, "skip" if version is None else "pass", version or "not installed", serves)


def programs() -> Iterator[Probe]:
    for name, serves in PROGRAMS.items():
        found = shutil.which(name)
        yield Probe("programs", name, "skip" if found is None else "pass", found or "not on the PATH", serves)


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def capabilities(torch: Any) -> Iterator[Probe]:
    if torch is None:
        return
    for name, paths, serves, without, is_lack in CAPABILITIES:
        there = [path for path in paths if is_there(path)]
        if there:
            yield Probe("capabilities", name, "pass", there[0], serves)
        elif without is None:
            yield Probe("capabilities", name, "fail", f"torch has no {paths[0]}", serves)
        else:
            detail = f"torch has no {paths[0]}: {without}"
            yield Probe("capabilities", name, "warn" if is_lack else "skip", detail, serves)


def captured(torch: Any) -> Iterator[Probe]:
    """Whether a capture works: names may be there, and be something else than they were."""
    if torch is None:
        return
    name, serves = "tiny_capture", "capturing"
    try:
        turns, options = importlib.import_module("torchlens.turns"), importlib.import_module("torchlens.options")
        if not turns.is_free():
            yield Probe("capture", name, "skip", "not tried: a capture is running", serves)
            return
        one = options.CaptureOptions(random_seed=0)
        trace = importlib.import_module("torchlens.api").trace(tiny, torch.ones(2, requires_grad=True), capture=one)
        calls = [op.func_name for op in trace.ops if op.func_name not in (None, "none")]
        trace.cleanup()
    except Exception as exc:  # noqa: BLE001  # whatever it is, it is the answer
        yield Probe("capture", name, "fail", f"{type(exc).__name__}: {message_of(exc)}", serves)
        return
    is_whole = calls == ["relu", "dropout", "sum"]
    yield Probe("capture", name, "pass" if is_whole else "fail", f"recorded {', '.join(calls) or 'nothing'}", serves)


def tiny(x: Any) -> Any:
    """What is captured: with a call that draws from a generator."""
    torch = sys.modules["torch"]
    return torch.nn.functional.dropout(torch.relu(x), 0.5, training=True).sum()


def is_there(path: str) -> bool:
    """Whether a dotted name leads to something; modules on the way are imported."""
    first, *names = path.split(".")
    here, walked = imported(first), first
    for name in names:
        walked = f"{walked}.{name}"
        inner = getattr(here, name, None)
        if inner is None and not hasattr(here, name):
            inner = imported(walked)
            if inner is None:
                return False
        here = inner
    return True


def machine(torch: Any) -> Iterator[Probe]:
    yield Probe("machine", "platform", "pass", f"{platform.system()} {platform.machine()}")
    cpus = os.cpu_count() or 1
    threads = "" if torch is None else f", {torch.get_num_threads()} threads of torch"
    yield Probe("machine", "cpus", "pass", f"{cpus}{threads}")
    has_columns = sys.version_info >= (3, 11)
    detail = "line and column" if has_columns else "line and instruction: Python before 3.11 has no columns"
    yield Probe("machine", "call_sites", "pass" if has_columns else "warn", detail, "telling layers apart")
    if torch is not None:
        yield cuda(torch)


def cuda(torch: Any) -> Probe:
    if not torch.cuda.is_available():
        return Probe("machine", "cuda", "skip", "none")
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Probe("machine", "cuda", "pass", f"{torch.version.cuda}: {', '.join(names)}")


def directory(path: Path) -> Iterator[Probe]:
    """What journals meet in a directory, or in the nearest one above it that is there."""
    here = path.absolute()
    try:
        while not here.exists() and here != here.parent:
            here = here.parent
    except OSError as exc:  # in a folder that this user may not enter, or a name that is too long
        yield Probe("path", "writable", "fail", f"{printable(str(here))}: {exc.strerror}", "writing journals")
        return
    is_writable = here.is_dir() and os.access(here, os.W_OK | os.X_OK)
    yield Probe("path", "writable", "pass" if is_writable else "fail", str(here), "writing journals")
    free = shutil.disk_usage(here).free
    yield Probe("path", "free_space", "pass", str(Bytes(free)))
    kind = filesystem(here)
    if kind is None:
        yield Probe("path", "filesystem", "skip", "not known on this platform")
    else:
        is_remote = kind in REMOTE
        detail = f"{kind}: of another machine; keep journals on a local disk" if is_remote else kind
        yield Probe("path", "filesystem", "warn" if is_remote else "pass", detail, "memory maps and locks of LMDB")


def filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the filesystem that a directory is on; None where the platform does not tell."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        place = Path(point.encode().decode("unicode_escape"))  # a space in it is written \\040
        if (resolved == place or place in resolved.parents) and (best is None or len(place.parts) >= best[0]):
            best = len(place.parts), kind
    return None if best is None else best[1]
