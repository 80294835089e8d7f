"""Why a selector matched nothing: what it names that this trace has not, with what looks like it.

Reads  the terms of a selector and the keys of the tables.
Rule   no match is no refusal, since a selector is asked of any trace; so it is told where the emptiness is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from projections.selecting.backward_terms import InPass
from projections.selecting.selector import Func, InModule, Label, ModuleOutput, Selector, call_key
from torchlens.reading.lookup import Index, near_misses

__all__ = ["absences", "absent_name"]


def absences(selector: Selector, index: Index) -> Iterator[str]:
    """Each module, label and function that a selector names and the trace does not have, in a sentence."""
    if isinstance(selector, ModuleOutput | InModule):
        modules = index.door("modules")
        address = call_key(selector.address, index.tables.aliases).address
        if address not in modules:
            yield index.later(address) or said("module", address, near_misses(address, (modules,)))
    elif isinstance(selector, Label):
        base, colon, _ = selector.name.rpartition(":")
        labels = [index.door("layers"), index.door("short labels")]
        raw = index.tables.ops.column("raw_label")
        if not any(name in door for door in labels for name in (selector.name, *((base,) if colon else ()))) and (
            selector.name not in raw
        ):
            yield index.later(selector.name) or said("label", selector.name, near_misses(selector.name, labels))
    elif isinstance(selector, Func):
        ops = index.tables.ops
        names = {**dict.fromkeys(ops.column("func_name"), ()), **dict.fromkeys(ops.column("layer_type"), ())}
        bare = selector.name.rpartition(".")[2]
        if selector.name not in names:
            if bare != selector.name and bare in names:
                yield f"tl.func takes the bare name {bare!r}, not {selector.name!r}"
            else:
                yield said("function", selector.name, near_misses(selector.name, (names,)))
    elif isinstance(selector, InPass):
        recorded = len(index.tables.table("backward_passes"))
        if selector.number > recorded:
            yield f"no backward pass {selector.number}, of {recorded}"
    for part in selector.parts():
        yield from absences(part, index)


def absent_name(text: str, index: Index) -> str:
    """That no label has a text in it and no module is called so, in a sentence."""
    return said("label or module", text, near_misses(text, (index.door("modules"), index.door("layers"))))


def said(kind: str, name: str, near: list[str]) -> str:
    return f"no {kind} {name!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
