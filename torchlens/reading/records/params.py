"""What a parameter tells: its columns, its value and its gradients.

Not   the modules that hold it (``links.py``).
"""

from __future__ import annotations

import hashlib
from typing import Any

from projections.errors import over_events
from torchlens.errors import PayloadUnavailableError
from torchlens.quantities import Bytes
from torchlens.reading.autograd import Gradients, gradients_of
from torchlens.reading.fields import Field, Record
from torchlens.reading.values import torch_dtype

__all__ = ["ParamFields"]


class ParamFields(Record):
    """The columns of a parameter, and what is read by them."""

    __slots__ = ()
    table_name = "params"

    address = Field[str]("Its first registered name, dotted.")
    name = Field[str]("Last part of its address.")
    all_addresses = Field[tuple[str, ...]]("Every name it is registered under.")
    has_multiple_addresses = Field[bool]("Whether that is more than one.")
    module_address = Field[str | None]("Address of the module that holds it; None where that is unknown.")
    all_module_addresses = Field[tuple[str, ...]]("Addresses of all modules that hold it.")
    is_registered = Field[bool]("Whether the model registers it.")
    shape = Field[tuple[int, ...]]("Sizes of its axes.")
    dtype = Field[Any]("Its element type, a ``torch.dtype``.", torch_dtype)
    device_ref = Field[str]("Its device.")
    num_params = Field[int]("Its elements.")
    param_memory = Field[Bytes]("Its size.", Bytes)
    is_trainable = Field[bool]("Whether it required a gradient at capture.")
    is_quantized = Field[bool]("Whether its elements are quantised.")
    used_by_ops = Field[list[str]]("Labels of the ops that took it.", list)
    used_by_layers = Field[list[str]]("Their layers.", list)
    has_optimizer = Field[bool | None]("Whether the optimizer given at capture steps it; None where none was given.")
    num_uses_by_ops = Field[int]("How many ops took it.")
    num_uses_by_layers = Field[int]("How many layers took it.")
    num_calls = Field[int]("How many ops took it.")
    co_parent_params = Field[list[str]]("Parameters that were taken together with it.", list)
    has_grad = Field[bool](
        "Whether a recorded backward pass added to its gradient, which is told whether or not it was kept:"
        " ``.grads[k].is_saved`` says which can be read."
    )
    grad_shape = Field[tuple[int, ...] | None]("Shape of what the last one added; None without one.")
    grad_dtype = Field[Any]("Element type of that, a ``torch.dtype``; None without one.", torch_dtype)
    gradient_memory = Field[Bytes]("Size of that; 0 without one.", Bytes)

    @property
    def barcode(self) -> str:
        """Token of which parameter this is: of model class, address, shape and dtype, and the same in every capture."""
        model = self.trace.tables.fact("model_class_qualname")
        facts = "\n".join(map(str, (model, self.address, self.read("shape"), self.read("dtype"))))
        return hashlib.sha256(facts.encode("utf-8", "backslashreplace")).hexdigest()[:16]

    @property
    def handle(self) -> Any:
        """The parameter itself, held weakly; None once it is gone, and outside the process that captured."""
        return None if self.trace.handles is None else self.trace.handles.parameter(self.row)

    def live(self, field: str) -> Any:
        """The parameter itself, for what only it can tell."""
        handle = self.handle
        if handle is None:
            raise PayloadUnavailableError(
                code="parameter_not_live",
                problem=f"{field} of parameter {self.address!r} is asked of the parameter itself, which is not here",
                remedy="ask in the process that captured, while the model lives",
                address=self.address,
                field=field,
            )
        return handle

    def changed(self, field: str, how: str) -> PayloadUnavailableError:
        return PayloadUnavailableError(
            code="parameter_changed",
            problem=f"{field} is asked, and parameter {self.address!r} was {how}",
            remedy="read it before the parameters change, or capture with CaptureOptions(save_arg_values=True)",
            address=self.address,
            field=field.partition(" ")[0],
        )

    @property
    def value(self) -> Any:
        """A copy of the parameter: as it is now while it lives, else as it was when an op first took it, or as an
        artifact holds it.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, where it is gone or of another process, and was not kept;
                ``parameter_changed``, where its storage was freed.
        """
        if self.value_basis == "stored":
            embedded = self.embedded()
            row = self.read("op_rows")[0] if embedded is None else -1
            return self.trace.argument("ops", row, self.first_place(row)) if embedded is None else embedded
        from torchlens.tensors import is_freed  # for cost: records are read without torch

        live = self.live("value")
        if is_freed(live):
            raise self.changed("value", "freed")
        return live.detach().clone()

    def embedded(self) -> Any | None:
        """It as the artifact holds it that the trace was loaded from; None where that does not."""
        weights = None if self.trace.artifact is None else self.trace.artifact.weights()
        return None if weights is None else weights.get(self.address)

    def as_captured(self, field: str) -> Any:
        """The parameter itself if nothing has written to it since the capture, else a copy of what was kept of it.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, where it is neither; ``parameter_changed``, where it was
                written since, and was not kept.
        """
        handle = self.handle
        if handle is not None and self.trace.handles is not None and self.trace.handles.is_as_captured(self.row):
            return handle
        embedded = self.embedded()
        if embedded is not None:
            return embedded
        rows = self.read("op_rows")
        if rows and self.trace.table("ops").value("has_saved_args", rows[0]):
            return self.trace.argument("ops", rows[0], self.first_place(rows[0]))
        self.live(field)
        raise self.changed(f"{field} as of the capture", "written since")

    @property
    def value_basis(self) -> str | None:
        """Where ``value`` comes from: ``live`` or ``stored``; None where it is not to be had."""
        if self.handle is not None:
            return "live"
        rows = self.read("op_rows")
        is_stored = rows and self.trace.table("ops").value("has_saved_args", rows[0])
        return "stored" if is_stored or self.embedded() is not None else None

    def first_place(self, row: int) -> int:
        """Where it stands among the inputs of an op that took it."""
        with over_events():
            place: int = self.trace.event(self.trace.table("ops").value("event", row)).inputs.index(-1 - self.row)
        return place

    @property
    def grad(self) -> Any:
        """The gradient that torch has accumulated on the parameter by now; None where there is none.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, as for ``value``.
        """
        return self.live("grad").grad

    @property
    def grads(self) -> Gradients:
        """What each recorded backward pass added to its gradient; ``torch.autograd.grad`` adds nothing."""
        return gradients_of(self.trace, self.read("gradient_rows"), self.address)

    def about(self) -> str:
        return f" {self.read('shape')} {self.read('dtype')}{'' if self.read('is_trainable') else ', frozen'}"
