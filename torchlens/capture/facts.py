"""What is known of an op as it returns, kept up to date while modules return it and others run.

Gives  one ``Facts`` for each op row that the graph fold will make, in the same order: an input, a buffer
       version, a result of a call, what a module handed through, an output.
Rule   a fact is told under the name and with the value that the finished ``Op`` has; what is not certain
       before the end is not told: ``NotYetKnown``. No tensor value is ever among them.
Not    what is done about an op (plan.py).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import attrs
import torch
from torch import Tensor

from journal.events import MODE_AUTOCAST, MODE_GRAD, MODE_INFERENCE
from projections.columnar.arguments import step_into
from projections.errors import NotYetKnown
from projections.folds.graph import function_of_node
from projections.folds.vocabulary import ROOT, names_of_modules
from projections.selecting.selector import CallKey, call_key
from projections.structure.labels import layer_type
from torchlens import compat
from torchlens.capture.functions import Function
from torchlens.tensors import DTYPE_WORD

__all__ = ["TOLD", "Facts", "FactsOfCapture"]

TOLD: Final = (
    *("func_name", "func_qualname", "layer_type", "raw_label", "shape", "dtype", "device_ref", "requires_grad"),
    *("modules", "module", "in_submodule", "module_call_depth", "multi_output_index", "multi_output_name"),
    *("in_multi_output", "is_input", "is_output", "is_buffer", "is_compute_op", "address"),
)
"""What a predicate may read while the model runs."""


@attrs.define(slots=True, eq=False)
class Group:
    """The rows of one event among the ops that ran: they come at once."""

    before: int  # ops that had run
    after: int  # the same, these included


@attrs.define(slots=True, eq=False, repr=False)
class Facts:
    """What is known of an op as it returns. A predicate sees this and no tensor value.

    Attributes:
        func_name: Name of the wrapped function, such as ``relu``.
        func_qualname: Its import path; None where no function ran.
        layer_type: The name as labels spell it.
        raw_label: ``{layer_type}_{ordinal}_raw``.
        shape, dtype, device_ref, requires_grad: Of the result.
        modules: Labels of the enclosing module calls, outermost first, without the root's.
        multi_output_index: Position among the results of one call; None for a single result.
        in_multi_output: Whether the call returned several tensors.
        is_input, is_output, is_buffer: Whether it is no call but one of these.
        address: Of the buffer; None for all else.

    Reading what only the finished ``Op`` can tell is refused with ``fact_not_live``; as ``save=``, the op is held
    then, and the predicate asked again when the forward has ended.
    """

    func_name: str
    func_qualname: str | None
    layer_type: str
    raw_label: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device_ref: str
    requires_grad: bool
    modules: tuple[str, ...]
    _known: FactsOfCapture
    multi_output_index: int | None = None
    in_multi_output: bool = False
    is_input: bool = False
    is_output: bool = False
    is_buffer: bool = False
    address: str | None = None
    # What selectors ask beyond that:
    output_of: tuple[str, ...] = ()  # labels of the module calls that its value has been returned from so far
    row: int = 0  # position among all op rows
    value: int = 0
    _returned: tuple[Any, tuple[Any, ...]] = (None, ())  # template of what the call returned, and the path in it
    _group: Group | None = None

    @property
    def is_compute_op(self) -> bool:
        return not (self.is_input or self.is_output or self.is_buffer)

    @property
    def module(self) -> str | None:
        return self.modules[-1] if self.modules else None

    @property
    def in_submodule(self) -> bool:
        return bool(self.modules)

    @property
    def module_call_depth(self) -> int:
        return len(self.modules)

    @property
    def multi_output_name(self) -> str | None:
        """Name under which the call returned it; None without one."""
        template, path = self._returned
        steps = step_into(template, path) if path else ()
        return str(steps[-1][1]) if steps and steps[-1][0] in ("NamedField", "DictKey") else None

    @property
    def at_end(self) -> bool:
        return self._known.at_end

    def call_key(self, address: str) -> CallKey:
        return self._known.call_key(address)

    def before(self, count: int) -> Sequence[Facts]:
        first = len(self._known.ran) if self._group is None else self._group.before
        return self._known.ran[max(0, first - count) : first]

    def after(self, count: int) -> tuple[Sequence[Facts], bool]:
        ran = self._known.ran
        last = (len(ran) if self._group is None else self._group.after) + count
        return ran[last - count : last], self._known.at_end or len(ran) >= last

    def __getattr__(self, name: str) -> Any:
        if name in self._known.later:
            raise NotYetKnown(
                code="fact_not_live",
                problem=f"{name!r} of an op is known when the forward has ended, not as the op returns",
                remedy=f"decide by what is known then: {', '.join(TOLD)}; or choose with trace[tl.where(...)]",
                name=name,
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<facts of {self.raw_label}>"


class FactsOfCapture:
    """The facts of one capture.

    Args:
        modules: Address and other names of each module, by number, as the model is described.
        buffers: Address of each buffer, by number.
        later: Names of what the finished op tells and an op that has just run may not.
        remembers: Whether the facts of a value are needed again, when a module returns it.
        looks_around: Whether it is needed what ran before and after.
    """

    __slots__ = (
        "_addresses",
        "_buffers",
        "_call_counts",
        "_call_labels",
        "_call_rows",
        "_found",
        "_group",
        "_keys",
        "_looks_around",
        "_names",
        "_remembers",
        "_shown",
        "at_end",
        "later",
        "of_value",
        "ran",
        "rows",
    )

    def __init__(
        self,
        modules: Iterable[tuple[str, Sequence[str]]],
        buffers: Sequence[str],
        later: Container[str],
        *,
        remembers: bool = False,
        looks_around: bool = False,
    ) -> None:
        named = [(address or ROOT, aliases) for address, aliases in modules]
        self._addresses = [address for address, _ in named]
        self._names = names_of_modules(named)
        self._buffers = buffers
        self.later = later
        self._remembers = remembers
        self._looks_around = looks_around
        self._keys: dict[str, CallKey] = {}
        self._call_labels: dict[int, str] = {}
        self._call_counts: dict[int, int] = {}
        self._call_rows: dict[int, int] = {}  # op rows there were when the call began
        self._found: dict[str, int] = {}
        self._shown: dict[int, int] = {}  # by value: the newest row that only shows it
        self._group: Group | None = None
        self.rows = 0
        self.ran: list[Facts] = []  # op rows that are calls, in order
        self.of_value: dict[int, Facts] = {}  # where the value stands now
        self.at_end = False

    def call_key(self, address: str) -> CallKey:
        found = self._keys.get(address)
        if found is None:
            found = self._keys[address] = call_key(address, self._names)
        return found

    # -- modules

    def entered(self, number: int, call: int) -> None:
        """A module call begins; its label is ``address:k``."""
        count = self._call_counts[number] = self._call_counts.get(number, 0) + 1
        self._call_labels[call] = f"{self._addresses[number]}:{count}"
        self._call_rows[call] = self.rows

    def label(self, call: int) -> str:
        """Label of a module call that has begun."""
        return self._call_labels[call]

    def discovered(self, class_name: str) -> None:
        """A module that the model does not register gets the next number, and the name its records will have."""
        count = self._found[class_name] = self._found.get(class_name, 0) + 1
        self._addresses.append(f"~{class_name}_{count}")

    def _inside(self, stack: Sequence[tuple[int, int]]) -> tuple[str, ...]:
        return tuple([self._call_labels[call] for _, call in stack[1:]])

    # -- rows, in the order of the graph fold

    def event(self) -> None:
        """The rows to come are of another event than those before."""
        if self._looks_around:
            self._group = Group(len(self.ran), len(self.ran))

    def called(
        self,
        stack: Sequence[tuple[int, int]],
        function: Function,
        slot: int | None,
        value: int,
        tensor: Tensor,
        returned: tuple[Any, tuple[Any, ...]],
    ) -> Facts:
        """A result of a call."""
        kind = layer_type(function.func_name)
        made = self._facts(function.func_name, function.qualname, kind, value, tensor, self._inside(stack))
        made.multi_output_index, made.in_multi_output = slot, slot is not None
        made._returned = returned
        return self._stands(made)

    def source(
        self,
        kind: str,
        stack: Sequence[tuple[int, int]],
        value: int,
        tensor: Tensor,
        func_name: str,
        buffer: int | None,
    ) -> Facts:
        """An input, or a version of a buffer."""
        made = self._facts(func_name, None, kind, value, tensor, self._inside(stack))
        made.is_input, made.is_buffer = kind == "input", kind == "buffer"
        if buffer is not None:
            made.address = self._buffers[buffer] if buffer < len(self._buffers) else f"~{buffer}"
        return self._stands(made)

    def unwatched(self, node_class: str, stack: Sequence[tuple[int, int]], value: int, tensor: Tensor) -> Facts:
        """What a call made that nobody watched."""
        name = function_of_node(node_class)
        return self._stands(self._facts(name, None, layer_type(name), value, tensor, self._inside(stack)))

    def handed_on(self, stack: Sequence[tuple[int, int]], call: int, value: int, tensor: Tensor) -> Facts | None:
        """The row of what a module returns that it was given; None where an inner call has made one in this call."""
        if self._shown.get(value, -1) >= self._call_rows[call]:
            return None
        self._shown[value] = self.rows
        modules = (*self._inside(stack), self._call_labels[call])
        made = self._facts("identity", None, "identity", value, tensor, modules)
        made.raw_label = f"identity_{self.rows + 1}_raw"
        return self._stands(made)

    def output(self, value: int, tensor: Tensor) -> Facts:
        """What the forward returned, or where it was left."""
        made = self._facts("none", None, "output", value, tensor, ())
        made.raw_label, made.is_output = f"output_{self.rows + 1}_raw", True
        return self._counted(made)

    def returned(self, call: int, value: int) -> Facts | None:
        """A module call returned a value: the row it stands at; None where that is none, or not remembered."""
        made = self.of_value.get(value)
        if made is not None:
            made.output_of = (*made.output_of, self._call_labels[call])
        return made

    def reread(self, value: int, writer: int) -> None:
        """From now on ``value`` stands at the row that wrote its memory."""
        if writer in self._shown:
            self._shown[value] = self._shown[writer]
        if writer in self.of_value:
            self.of_value[value] = self.of_value[writer]

    def _facts(
        self,
        func_name: str,
        qualname: str | None,
        kind: str,
        value: int,
        tensor: Tensor,
        modules: tuple[str, ...],
    ) -> Facts:
        return Facts(
            func_name,
            qualname,
            kind,
            f"{kind}_{value + 1}_raw",
            shape_of(tensor),
            tensor.dtype,
            "cpu" if tensor.is_cpu else str(tensor.device),
            tensor.requires_grad,
            modules,
            self,
            value=value,
            group=self._group,
        )

    def _stands(self, made: Facts) -> Facts:
        if self._remembers:
            self.of_value[made.value] = made
        return self._counted(made)

    def _counted(self, made: Facts) -> Facts:
        made.row = self.rows
        self.rows += 1
        if self._group is not None and made.is_compute_op:
            self.ran.append(made)
            self._group.after = len(self.ran)
        return made


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Its shape; () where it has no one shape, as a nested tensor, or none yet, as a lazy module's buffer."""
    return () if tensor.is_nested or compat.is_uninitialized(tensor) else tuple(int(size) for size in tensor.shape)


def settings_around() -> tuple[tuple[str, str], ...]:
    """Default dtype and device and autocast's dtypes, where they are not torch's own: a run puts them as they were."""
    told: list[tuple[str, str]] = []
    if torch.get_default_dtype() is not torch.float32:
        told.append(("default_dtype", DTYPE_WORD[torch.get_default_dtype()]))
    if torch.get_default_device().type != "cpu":
        told.append(("default_device", str(torch.get_default_device())))
    told += [
        (f"autocast:{device}", DTYPE_WORD[torch.get_autocast_dtype(device)])
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    return tuple(told)


def modes_around() -> int:
    """The modes that torch is in here, as an event tells them."""
    mode = MODE_GRAD if compat.grad_enabled() else 0
    mode |= MODE_INFERENCE if compat.inference_enabled() else 0
    return mode | (MODE_AUTOCAST if compat.any_autocast_enabled() else 0)
