"""The records that lead to one another: Op, Orphan, Layer, Module, ModuleCall, Param, Buffer.

What each tells of itself stands in the file of its kind (``ops.py`` and so on). Here is what leads from one to others,
in one file because they lead in circles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchlens.reading.accessors import BufferAccessor, LayerAccessor, ModuleCallAccessor, OpAccessor, ParamAccessor
from torchlens.reading.fields import pass_through
from torchlens.reading.records.buffers import BufferFields
from torchlens.reading.records.layers import LayerFields, PassField
from torchlens.reading.records.module_calls import ModuleCallFields
from torchlens.reading.records.modules import CallField, ModuleFields
from torchlens.reading.records.ops import OpFields
from torchlens.reading.records.params import ParamFields
from torchlens.reading.view import View

__all__ = ["Buffer", "Layer", "Module", "ModuleCall", "Op", "Orphan", "Param", "module_at"]


class Op(OpFields):
    """One executed torch call, one output of it; also an input, an output or a version of a buffer."""

    __slots__ = ()

    @property
    def layer(self) -> Layer:
        """The layer it is a pass of."""
        return Layer(self.trace, self.read("layer_row"))

    @property
    def params(self) -> ParamAccessor[Param]:
        """The parameters it took."""
        return ParamAccessor(self.trace, self.read("param_rows"))

    @property
    def atomic_module(self) -> Module | None:
        """The module without children whose only op this is; None otherwise."""
        return module_at(self.trace, self.read("atomic_module"))

    @property
    def buffer_source_ops(self) -> OpAccessor[Op]:
        """The versions of buffers that it read."""
        buffers = self.trace.table("ops").column("is_buffer")
        return OpAccessor(self.trace, [row for row in self.read("parent_rows") if buffers[row]])

    @property
    def buffer_sink_ops(self) -> OpAccessor[Op]:
        """The versions of buffers that it wrote."""
        buffers = self.trace.table("ops").column("is_buffer")
        return OpAccessor(self.trace, [row for row in self.read("child_rows") if buffers[row]])


class Orphan(Op):
    """An op that is linked to no input and no output; in no other collection, and never numbered."""

    __slots__ = ()

    table_name = "orphans"


class Layer(LayerFields):
    """Ops that are the same code run more than once; each is one pass.

    Every other field of an op passes through where there is one pass, and is refused with
    ``layer_pass_ambiguous`` where there are several.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # the fields of an op that are given at the end of this file

        def __getattr__(self, name: str) -> Any: ...

    @property
    def func(self) -> Any:
        """The function of its passes; None where none ran, and outside the process that captured."""
        return self.ops[0].func

    @property
    def ops(self) -> OpAccessor[Op]:
        """Its passes: ``layer.ops[0]`` is pass 1."""
        return OpAccessor(self.trace, self.read("op_rows"))

    @property
    def params(self) -> ParamAccessor[Param]:
        """The parameters it takes."""
        return ParamAccessor(self.trace, self.read("param_rows"))


class Module(ModuleFields):
    """One ``nn.Module`` instance of the model.

    Every other field of a call passes through where it was called once, and is refused with
    ``module_call_ambiguous`` where it was called several times.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # the fields of a call that are given at the end of this file

        def __getattr__(self, name: str) -> Any: ...

    @property
    def calls(self) -> ModuleCallAccessor[ModuleCall]:
        """Its calls: ``module.calls[0]`` is the first."""
        return ModuleCallAccessor(self.trace, self.read("call_rows"))

    @property
    def layers(self) -> LayerAccessor[Layer]:
        """The layers inside, those of submodules too."""
        return LayerAccessor(self.trace, self.read("layer_rows"))

    @property
    def params(self) -> ParamAccessor[Param]:
        """Its own parameters."""
        return ParamAccessor(self.trace, self.read("param_rows"))

    @property
    def recursive_params(self) -> ParamAccessor[Param]:
        """Its parameters, those of submodules too."""
        return ParamAccessor(self.trace, self.read("recursive_param_rows"))

    @property
    def buffers(self) -> BufferAccessor[Buffer]:
        """Its buffers, those of submodules too."""
        return BufferAccessor(self.trace, self.read("buffer_rows"))


class ModuleCall(ModuleCallFields):
    """One call of one module; also a call that returned no tensor, and one that was left by an exception."""

    __slots__ = ()

    @property
    def module(self) -> Module:
        """The module that was called."""
        return Module(self.trace, self.read("module_row"))


class Param(ParamFields):
    """One parameter; tied weights are one parameter with several addresses."""

    __slots__ = ()

    @property
    def module(self) -> Module | None:
        """The module that holds it; None where that is unknown."""
        return module_at(self.trace, self.module_address)

    @property
    def modules(self) -> list[Module]:
        """All modules that hold it."""
        found = (module_at(self.trace, address) for address in self.all_module_addresses)
        return [module for module in found if module is not None]


class Buffer(BufferFields):
    """One buffer; each version of it that was seen is an op."""

    __slots__ = ()

    @property
    def versions(self) -> OpAccessor[Op]:
        """Every version that was seen."""
        return OpAccessor(self.trace, self.read("version_rows"))

    @property
    def write_versions(self) -> OpAccessor[Op]:
        """Those that a write made."""
        return OpAccessor(self.trace, self.read("written_rows"))


def module_at(trace: View, address: str | None) -> Module | None:
    """The module of an address; None for no address."""
    rows = () if address is None else trace.index().door("modules").get(address, ())
    return Module(trace, rows[0]) if rows else None


pass_through(Layer, Op, PassField, "Of its only op")
pass_through(Module, ModuleCall, CallField, "Of its only call")
