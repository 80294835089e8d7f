"""The collections of a trace: its ops, layers, modules and others, all of them or those of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

from projections.folds.vocabulary import ROOT
from torchlens.reading.accessors import (
    BufferAccessor,
    ConditionalAccessor,
    LayerAccessor,
    ModuleAccessor,
    ModuleCallAccessor,
    OpAccessor,
    OrphanAccessor,
    ParamAccessor,
)
from torchlens.reading.backward import BackwardPass, GradFn, GradFnCall, GradientRecord
from torchlens.reading.conditionals import Conditional
from torchlens.reading.executed import DispatchedOp
from torchlens.reading.explaining import Explanation
from torchlens.reading.fields import Field, Record
from torchlens.reading.records import Buffer, Layer, Module, ModuleCall, Op, Orphan, Param
from torchlens.reading.tabular import COLUMNS
from torchlens.reading.view import View

if TYPE_CHECKING:
    import pandas

__all__ = ["RECORDS", "Collections"]

RECORDS: Final[Mapping[str, type[Record]]] = {
    record.table_name: record
    for record in (
        *(Op, Layer, Module, ModuleCall, Param, Buffer, Conditional, Explanation, Orphan),
        *(BackwardPass, GradFn, GradFnCall, DispatchedOp, GradientRecord),
    )
}
"""The class that stands for a row of each table."""


class Collections(View):
    """Its records, in collections; here and in the other parts of a trace, *it* is the trace."""

    @property
    def ops(self) -> OpAccessor[Op]:
        """Every op in capture order, inputs, buffers and outputs included."""
        return OpAccessor(self.alive())

    @property
    def layers(self) -> LayerAccessor[Layer]:
        """Every layer, by first pass."""
        return LayerAccessor(self.alive())

    @property
    def modules(self) -> ModuleAccessor[Module]:
        """Every module, the root first; those that were not called come last."""
        return ModuleAccessor(self.alive())

    @property
    def module_calls(self) -> ModuleCallAccessor[ModuleCall]:
        """Every module call, in order of entry."""
        return ModuleCallAccessor(self.alive())

    @property
    def params(self) -> ParamAccessor[Param]:
        """Every parameter of the model."""
        return ParamAccessor(self.alive())

    @property
    def buffers(self) -> BufferAccessor[Buffer]:
        """Every buffer of the model."""
        return BufferAccessor(self.alive())

    @property
    def conditionals(self) -> ConditionalAccessor[Conditional]:
        """Every if and conditional expression that the truth of a tensor had a part in, in the order of their tests."""
        return ConditionalAccessor(self.alive())

    @property
    def orphans(self) -> OrphanAccessor[Orphan]:
        """Ops linked to no input and no output; empty unless the capture was asked to keep them."""
        kept = dict(self.tables.fact("options")).get("keep_orphans", False)
        return OrphanAccessor(self.alive(), None if kept else ())

    @property
    def root_module(self) -> Module:
        """The model itself."""
        return self.modules[ROOT]

    # -- some of them

    @property
    def input_ops(self) -> OpAccessor[Op]:
        """The inputs, in order."""
        return OpAccessor(self.alive(), self.tables.fact("input_rows"))

    @property
    def output_ops(self) -> OpAccessor[Op]:
        """The outputs, in order."""
        return OpAccessor(self.alive(), self.tables.fact("output_rows"))

    @property
    def compute_ops(self) -> OpAccessor[Op]:
        """The ops that are neither input, output nor buffer."""
        return self.ops.compute

    @property
    def saved_ops(self) -> OpAccessor[Op]:
        """The ops whose activation was kept, or what ``SaveOptions`` made of it."""
        return OpAccessor(self.alive(), self.tables.fact("saved_rows"))

    @property
    def saved_grad_ops(self) -> OpAccessor[Op]:
        """The ops of which a gradient was saved; outputs have none of their own."""
        return OpAccessor(self.alive(), self.tables.fact("saved_grad_rows"))

    @property
    def compute_layers(self) -> LayerAccessor[Layer]:
        """The layers that are neither input, output nor buffer."""
        return self.layers.compute

    @property
    def recurrent_layers(self) -> LayerAccessor[Layer]:
        """The layers with several passes."""
        return self.layers.recurrent

    @property
    def saved_layers(self) -> LayerAccessor[Layer]:
        """The layers of ``saved_ops``."""
        layers = self.tables.ops.column("layer_row")
        return LayerAccessor(self.alive(), list(dict.fromkeys(layers[row] for row in self.tables.fact("saved_rows"))))

    # -- their labels

    @property
    def op_labels(self) -> list[str]:
        """Labels of all ops, in order."""
        return list(self.ops.labels)

    @property
    def layer_labels(self) -> list[str]:
        """Labels of all layers, in order."""
        return list(self.layers.labels)

    input_layers = Field[list[str]]("Labels of the inputs, in order.", list)
    output_layers = Field[list[str]]("Labels of the outputs, in order.", list)
    internal_source_ops = Field[list[str]]("Labels of the ops made without tensors from other ops.", list)
    internal_sink_ops = Field[list[str]]("Labels of the ops that nothing used, outputs left out.", list)
    buffer_read_ops = Field[list[str]]("Labels of the buffer versions that were read first.", list)
    buffer_write_ops = Field[list[str]]("Labels of the buffer versions that were written.", list)
    uncalled_modules = Field[list[str]]("Addresses of the modules that the forward did not call.", list)
    unexecuted_param_names = Field[list[str]]("Addresses of the parameters that no op took.", list)

    # -- as a table

    def to_pandas(self) -> pandas.DataFrame:
        """One row per op, without tensors and what is as large, which ``trace.ops.to_pandas()`` has; needs pandas."""
        return self.ops.frame(COLUMNS["trace"])

    # -- what collections need of it

    def record(self, table: str, row: int) -> Record:
        return RECORDS[table](self, row)

    def alive(self) -> Self:
        self.require_open()
        return self
