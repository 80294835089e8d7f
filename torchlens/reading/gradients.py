"""What is known of gradients: no backward pass is recorded yet, so there are none; and each op's autograd node.

Gives  ``op.autograd`` and ``trace.autograd``, with the collections that backward passes will fill.
Rule   what is told of gradients follows from their records. So there are none, and a gradient is refused, never None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, overload

from torchlens.errors import LookupRefused, PayloadUnavailableError
from torchlens.printable import amount
from torchlens.quantities import Bytes
from torchlens.reading.accessors import ExplanationAccessor
from torchlens.reading.explaining import Explanation, explain
from torchlens.reading.lookup import at_position, sliced
from torchlens.reading.tabular import BACKWARD_COLUMNS, frame_of
from torchlens.reading.view import View

if TYPE_CHECKING:
    import pandas

__all__ = ["BackwardRecords", "HasGradients", "OpAutograd", "TraceAutograd", "only_gradient"]


class BackwardRecords(Sequence[Any]):
    """Records that backward passes make, of one kind. Empty, as no backward pass is recorded.

    It answers as an ``Accessor`` does, and is none: an accessor reads a table, and these records have no table yet.

    Args:
        kind: What one of them is, a key of ``BACKWARD_COLUMNS``.
    """

    labels: tuple[str, ...] = ()

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 0

    @overload
    def __getitem__(self, key: int | str) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, slice):
            return list(sliced((), key, self.kind))
        if not isinstance(key, str):
            at_position(key, 0, self.kind)
        raise LookupRefused(
            code="record_lookup_not_found",
            problem=f"{key!r} names no {self.kind}: no backward pass is recorded",
            remedy="ask for one that .labels lists",
            key=key,
            suggestions=(),
        )

    def for_pass(self, number: int) -> NoReturn:
        """The record of a backward pass, from 1; refused with ``backward_pass_unknown``, as there is none."""
        raise LookupRefused(
            code="backward_pass_unknown",
            problem=f"there is no backward pass {number!r}: none is recorded",
            remedy="ask for one that is; has_backward_pass tells whether there is any",
            key=number,
            passes=(),
        )

    def keys(self) -> tuple[str, ...]:
        return self.labels

    def values(self) -> list[Any]:
        return []

    def items(self) -> list[tuple[str, Any]]:
        return []

    def find(self, text: str) -> list[Any]:
        """The members whose label holds ``text``."""
        return []

    def head(self, n: int = 5) -> list[Any]:
        """The first ``n`` members."""
        return []

    def to_pandas(self) -> pandas.DataFrame:
        """One row per member; needs pandas."""
        return frame_of(dict.fromkeys(BACKWARD_COLUMNS[self.kind], ()), 0)

    def __repr__(self) -> str:
        return f"<{amount(0, self.kind)}>"


class HasGradients:
    """What follows from the saved gradients of an op or a buffer."""

    __slots__ = ()

    @property
    def gradient_records(self) -> BackwardRecords:
        """One for each backward pass that left a gradient here."""
        return BackwardRecords("gradient record")

    @property
    def has_grad(self) -> bool:
        """Whether a gradient was saved."""
        return bool(self.gradient_records)

    @property
    def grad_shape(self) -> tuple[int, ...] | None:
        """Shape of the saved gradients; None without one."""
        return next((record.shape for record in self.gradient_records), None)

    @property
    def grad_dtype(self) -> Any:
        """Dtype of the saved gradients; None without one."""
        return next((record.dtype for record in self.gradient_records), None)

    @property
    def gradient_memory(self) -> Bytes:
        """Size of the saved gradients."""
        return Bytes(sum(record.memory for record in self.gradient_records))


def only_gradient(label: str, records: BackwardRecords) -> NoReturn:
    """The only gradient of the op ``label``; refused with ``gradient_not_saved``, as none is recorded."""
    raise PayloadUnavailableError(
        code="gradient_not_saved",
        problem=f"{label!r} has {len(records)} saved gradients: no backward pass is recorded",
        remedy="run the backward with torch: .out stands on the model's graph, and .grad of a parameter is torch's own",
        label=label,
        count=len(records),
    )


class Recorded(Protocol):
    """An op, as far as its autograd side reads it."""

    trace: View

    def read(self, column: str) -> Any:
        """The value of one column."""
        ...


class OpAutograd:
    """What autograd had to do with an op."""

    __slots__ = ("op",)

    def __init__(self, op: Recorded) -> None:
        self.op = op

    @property
    def grads(self) -> BackwardRecords:
        """Its saved gradients, one for each backward pass that left one."""
        return BackwardRecords("gradient record")

    @property
    def num_saved_grads(self) -> int:
        return len(self.grads)

    def grad_for(self, *, bwd: int) -> Any:
        """Its gradient in a backward pass, from 1; refused with ``backward_pass_unknown``, as none is recorded."""
        return self.grads.for_pass(bwd)

    @property
    def grad_fn_class_name(self) -> str | None:
        """Class of its autograd node; None without one."""
        name: str | None = self.op.read("grad_fn_class_name")
        return name

    @property
    def grad_fn_object_id(self) -> int | None:
        """Number of that node, which the results of one call share; None without one."""
        number: int | None = self.op.read("grad_fn_object_id")
        return number

    @property
    def grad_fn_handle(self) -> Any:
        """That node; None without one, and where the trace is not of this process."""
        number, handles = self.grad_fn_object_id, self.op.trace.handles
        return None if number is None or handles is None else handles.node(number)

    @property
    def grad_fn(self) -> Any:
        """The record of that node; None until a backward pass finds it."""
        found = (record for record in BackwardRecords("grad_fn") if record.grad_fn_object_id == self.grad_fn_object_id)
        return next(found, None)

    @property
    def grad_fn_label(self) -> str | None:
        """Label of that record; None until a backward pass finds it."""
        return None if self.grad_fn is None else self.grad_fn.label

    def __repr__(self) -> str:
        return f"<autograd of {self.op.read('label')}: {self.grad_fn_class_name}, {self.num_saved_grads} gradients>"


class TraceAutograd:
    """What autograd had to do with a capture: the records of its backward passes. None is recorded yet."""

    __slots__ = ("trace",)

    def __init__(self, trace: View) -> None:
        self.trace = trace

    @property
    def grad_fns(self) -> BackwardRecords:
        """The autograd nodes that backward passes found."""
        return BackwardRecords("grad_fn")

    @property
    def grad_fn_calls(self) -> BackwardRecords:
        """Their firings."""
        return BackwardRecords("grad_fn call")

    @property
    def backward_passes(self) -> BackwardRecords:
        """The backward passes."""
        return BackwardRecords("backward pass")

    @property
    def last_backward_pass(self) -> Any:
        """The newest backward pass; None before the first."""
        return self.backward_passes[-1] if self.backward_passes else None

    @property
    def explanations(self) -> ExplanationAccessor[Explanation]:
        """Why what has no gradient has none: one for each such op and parameter."""
        return ExplanationAccessor(self.trace)

    def explain(self, subject: object) -> Explanation | None:
        """Why an op or a parameter has no gradient; None where it has one.

        Args:
            subject: An op or a parameter of the trace, a site of a selection, a label or address, or a parameter of the
                model itself. What has one op stands for it: a layer, a module that was called once.

        Raises:
            LookupRefused: ``explanation_subject_invalid``, and what ``trace[...]`` raises for a key.
            AmbiguousReadError: ``explanation_subject_ambiguous``.
        """
        return explain(self.trace, subject)

    @property
    def num_backward_passes(self) -> int:
        return len(self.backward_passes)

    @property
    def num_grad_fns(self) -> int:
        return len(self.grad_fns)

    @property
    def num_grad_fn_calls(self) -> int:
        return len(self.grad_fn_calls)

    def __repr__(self) -> str:
        return f"<autograd of {self.trace!r}: {self.num_backward_passes} backward passes>"
