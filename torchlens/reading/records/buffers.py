"""What a buffer tells: its columns, and its values over time.

Not   the ops that are its versions (``links.py``).
"""

from __future__ import annotations

from typing import Any

from torchlens.errors import IndexOutOfRange
from torchlens.printable import amount
from torchlens.quantities import Bytes
from torchlens.reading.fields import Field, Record
from torchlens.reading.values import torch_dtype

__all__ = ["BufferFields"]


class BufferFields(Record):
    """The columns of a buffer, and what is read by them."""

    __slots__ = ()
    table_name = "buffers"

    address = Field[str]("Its first registered name, dotted.")
    name = Field[str]("Last part of its address.")
    all_addresses = Field[tuple[str, ...]]("Every name it is registered under.")
    has_multiple_addresses = Field[bool]("Whether that is more than one.")
    module_address = Field[str]("Address of the module that holds it.")
    all_module_addresses = Field[tuple[str, ...]]("Addresses of all modules that hold it.")
    label = Field[str | None]("Op label of the newest version; None where none was seen.")
    num_overwrites = Field[int]("Writes that were seen.")
    num_versions = Field[int]("Versions that were seen.")
    is_overwritten = Field[bool]("Whether it was written.")
    buffer_pass = Field[int | None]("Number of the newest version; None where none was seen.")
    device_ref = Field[str]("Device of the newest version.")
    module = Field[str | None]("Call label of the innermost submodule that the newest version was seen in.")
    modules = Field[tuple[str, ...]]("Call labels of the submodules it was seen in, outermost first.")
    layer_label = Field[str | None]("Layer label of the newest version; None where none was seen.")
    buffer_source = Field[str | None]("Label of the op that wrote that; None where it was never written.")
    shape = Field[tuple[int, ...]]("Sizes of the axes of the newest version.")
    dtype = Field[Any]("Its element type, a ``torch.dtype``.", torch_dtype)
    activation_memory = Field[Bytes]("Its size.", Bytes)
    has_saved_activation = Field[bool]("Whether the newest version was kept.")
    has_grad = Field[bool]("Whether a gradient of the newest version was saved.")
    grad_shape = Field[tuple[int, ...] | None]("Shape of that; None without one.")
    grad_dtype = Field[Any]("Element type of that, a ``torch.dtype``; None without one.", torch_dtype)
    gradient_memory = Field[Bytes]("Size of the saved gradients of the newest version.", Bytes)

    @property
    def handle(self) -> Any:
        """What stands under its name now; None once its module is gone, and outside the process that captured."""
        return None if self.trace.handles is None else self.trace.handles.buffer(self.row)

    @property
    def call_index(self) -> int | None:
        """Number of the newest version; None where none was seen."""
        return self.buffer_pass

    @property
    def initial_value(self) -> Any:
        """The value before the forward, where it was read before any write; None otherwise."""
        first = self.read("version_rows")[:1]
        return self.trace.activation(first[0]) if first and first != self.read("written_rows")[:1] else None

    @property
    def final_value(self) -> Any:
        """The newest version that was seen; None where none was."""
        rows = self.read("version_rows")
        return self.trace.activation(rows[-1]) if rows else None

    def value_at(self, n: int) -> Any:
        """The n-th version, from 1."""
        return self.nth("version_rows", n, "version")

    def value_after(self, n: int) -> Any:
        """The value after the n-th write, from 1."""
        return self.nth("written_rows", n, "write")

    def nth(self, column: str, n: int, what: str) -> Any:
        """The value of the n-th of the ops in a column, from 1."""
        rows = self.read(column)
        if 1 <= n <= len(rows):
            return self.trace.activation(rows[n - 1])
        raise IndexOutOfRange(
            code="buffer_version_out_of_range",
            problem=f"buffer {self.address!r} has no {what} {n}: it has {len(rows)}",
            remedy=f"ask for one from 1 to {len(rows)}" if rows else "ask for a buffer that the forward used",
            address=self.address,
            count=len(rows),
        )

    def about(self) -> str:
        versions = len(self.read("version_rows"))
        return f" {amount(versions, 'version')}"
