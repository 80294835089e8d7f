"""What a stream names by number: functions, code, call sites, modules, parameters, buffers.

Reads  ModelDescribed, ClassDescribed, ModuleSeen, ParameterSeen, FunctionSeen, CodeSeen, CallSiteSeen.
Gives  one entry per number, as it was described.
Rule   an unregistered module is called ``~Class_n``, an unregistered parameter ``~Class_n.attribute`` or ``~n``.
Not    which of them were used (graph.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import attrs

from journal.events import (
    CallSiteSeen,
    ClassDescribed,
    CodeSeen,
    FunctionSeen,
    ModelDescribed,
    ModuleSeen,
    ParameterSeen,
)
from projections.errors import contradictory
from projections.folds.fold import Fold
from projections.folds.split import appended, first_of, head

ROOT: Final = "self"
"""Address of the root module."""


class Module(NamedTuple):
    """A module as described before the forward, or as first called where the model does not register it."""

    address: str
    class_name: str
    class_qualname: str
    parent: int | None
    training: bool
    aliases: tuple[str, ...]
    forward_hooks: tuple[str, ...]
    forward_pre_hooks: tuple[str, ...]
    backward_hooks: tuple[str, ...]
    is_registered: bool


class ClassFacts(NamedTuple):
    """What the source says of the class of some modules."""

    modules: tuple[int, ...]
    docstring: str | None
    class_location: tuple[str, int] | None
    init_location: tuple[str, int] | None
    forward_location: tuple[str, int] | None
    init_signature: str | None
    forward_signature: str | None


class Tensor(NamedTuple):
    """A parameter or buffer as described before the forward, or as first used."""

    address: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    nbytes: int
    aliases: tuple[str, ...]
    is_registered: bool
    module: int  # number of the module that holds it, -1 where that is unknown


class Code(NamedTuple):
    """A Python function of the model."""

    file: str
    qualname: str
    name: str
    first_line: int
    source: int | None  # payload number of its text


class Site(NamedTuple):
    """A call site: one place in the source, reached through ``caller``."""

    code: int
    span: tuple[int, ...]
    caller: int | None


@attrs.define(slots=True)
class Vocabulary:
    """What the vocabulary fold has made so far."""

    func_names: list[str] = appended("functions")
    func_qualnames: list[str] = appended()
    func_opaque: list[str | None] = appended()  # why what happens inside was not watched; None where it was
    same_name: list[int] = appended()  # by function: the first function of that name
    seen_names: dict[str, int] = first_of("func_names")
    codes: list[Code] = appended("codes")
    sites: list[Site] = appended("call_sites")
    modules: list[Module] = appended("modules")
    classes: list[ClassFacts] = appended()
    parameters: list[Tensor] = appended("params")
    registered: int = 0  # parameters that the model registers, which come first
    buffers: list[Tensor] = appended("buffers")
    by_address: dict[str, int] = first_of("modules")  # by address and alias
    class_counts: dict[str, int] = head(dict)  # unregistered modules seen, by class

    def frozen(self) -> Vocabulary:
        """As it stands now, untouched by what is folded later."""
        made = Vocabulary()
        for field in attrs.fields(Vocabulary):
            value = getattr(self, field.name)
            setattr(made, field.name, value if isinstance(value, int) else value.copy())
        return made

    def module_path(self, number: int) -> str:
        """Address of a module, also where the stream does not describe it."""
        return self.modules[number].address if number < len(self.modules) else f"~{number}"


def names_of_modules(modules: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """Address by every name of a module, from the address and the other names of each; the root's comes first."""
    found: dict[str, str] = {}
    root: str | None = None
    for address, aliases in modules:
        root = address if root is None else root
        for name in (address, *aliases):
            found.setdefault(name, address)
    if root is not None:
        found.setdefault("", root)
    return found


def model_described(
    words: Vocabulary,
    at: int,
    type_id: int,
    time_ns: int,
    modules: tuple[Any, ...],
    parameters: tuple[Any, ...],
    buffers: tuple[Any, ...],
) -> None:
    for address, class_name, class_qualname, parent, training, aliases, forward, pre, backward in modules:
        number = len(words.modules)
        if parent is not None and not 0 <= parent < number:
            raise contradictory(f"module {number} lies in {parent}, which comes after it")
        require_names(address, class_name, class_qualname, *aliases)
        words.modules.append(
            Module(
                address or ROOT,
                class_name,
                class_qualname,
                parent,
                training,
                tuple(aliases),
                tuple(forward),
                tuple(pre),
                tuple(backward),
                is_registered=True,
            )
        )
        for name in (address, *aliases):
            words.by_address.setdefault(name, number)
    words.parameters += described(words, parameters)
    words.registered = len(words.parameters)
    words.buffers += described(words, buffers)


def require_names(*names: object) -> None:
    """Refuse names that are no text: a description holds any plain value."""
    if any(type(name) is not str for name in names):
        raise contradictory("a module, parameter or buffer is named by something other than text")


def described(words: Vocabulary, rows: Iterable[Any]) -> list[Tensor]:
    return [
        tensor_of(row, row[0], words.by_address.get(row[0].rpartition(".")[0], -1), is_registered=True) for row in rows
    ]


def tensor_of(description: tuple[Any, ...], address: str, module: int, *, is_registered: bool) -> Tensor:
    name, shape, dtype, device, requires_grad, nbytes, aliases = description
    require_names(name, *aliases)
    return Tensor(
        address,
        tuple(shape),
        dtype,
        device,
        requires_grad,
        nbytes,
        tuple(aliases),
        is_registered=is_registered,
        module=module,
    )


def class_described(words: Vocabulary, at: int, type_id: int, time_ns: int, modules: Any, *_rest: Any) -> None:
    words.classes.append(ClassFacts(tuple(modules), *_rest))


def module_seen(
    words: Vocabulary,
    at: int,
    type_id: int,
    time_ns: int,
    _number: int,
    class_name: str,
    class_qualname: str,
    training: bool,
) -> None:
    count = words.class_counts[class_name] = words.class_counts.get(class_name, 0) + 1
    address = f"~{class_name}_{count}"
    words.by_address.setdefault(address, len(words.modules))
    words.modules.append(
        Module(address, class_name, class_qualname, None, training, (), (), (), (), is_registered=False)
    )


def parameter_seen(
    words: Vocabulary,
    at: int,
    type_id: int,
    time_ns: int,
    _number: int,
    module: int | None,
    attribute: str | None,
    _source: int | None,
    description: tuple[Any, ...],
) -> None:
    if module is None or attribute is None:
        address = f"~{len(words.parameters) - words.registered + 1}"
    else:
        address = f"{words.module_path(module)}.{attribute}"
    words.parameters.append(tensor_of(description, address, -1 if module is None else module, is_registered=False))


def function_seen(
    words: Vocabulary,
    at: int,
    type_id: int,
    time_ns: int,
    _number: int,
    func_name: str,
    qualname: str,
    opaque: str | None,
) -> None:
    number = len(words.func_names)
    words.func_names.append(func_name)
    words.func_qualnames.append(qualname)
    words.func_opaque.append(opaque)
    words.same_name.append(words.seen_names.setdefault(func_name, number))


def code_seen(
    words: Vocabulary,
    at: int,
    type_id: int,
    time_ns: int,
    _number: int,
    file: str,
    qualname: str,
    name: str,
    first_line: int,
    source: int | None,
) -> None:
    words.codes.append(Code(file, qualname, name, first_line, source))


def call_site_seen(
    words: Vocabulary,
    at: int,
    type_id: int,
    time_ns: int,
    _number: int,
    code: int,
    span: tuple[int, ...],
    caller: int | None,
) -> None:
    words.sites.append(Site(code, tuple(span), caller))


VOCABULARY: Final = Fold(
    "vocabulary",
    version=2,
    initial=Vocabulary,
    handlers={
        ModelDescribed: model_described,
        ClassDescribed: class_described,
        ModuleSeen: module_seen,
        ParameterSeen: parameter_seen,
        FunctionSeen: function_seen,
        CodeSeen: code_seen,
        CallSiteSeen: call_site_seen,
    },
)
