"""The model of a capture as it is now, if it lives, held against what the capture began with.

Reads  its modules, parameters and buffers under their names, and the tensors that the forward took from outside.
Gives  parameters and buffers by the numbers of the capture, and one ``Divergence`` for each kind of difference.
Not    its code, and what stands in attributes but tensors that the forward took: these are part of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from projections.folds.vocabulary import ROOT
from torchlens.capture.model import describe
from torchlens.reading.run_result import Divergence
from torchlens.reading.view import View

__all__ = ["Living", "living", "of_outside"]

TRAINING: Final = 4
"""Where a module row says whether the module is in training."""

MODULE_FACTS: Final = ("address", "class", "class", "parent", "training", "names", *("hooks",) * 3)
STATE_FACTS: Final = ("address", "shape", "dtype", "device", "requires_grad", "size", "names")
"""What the places of a module row, and of a row of a parameter or buffer, tell; see ``ModelDescribed``."""


class Living(NamedTuple):
    """What a model has now."""

    parameters: dict[int, Tensor | None]  # by number
    buffers: dict[int, Tensor | None]
    differences: tuple[Divergence, ...]


def living(view: View) -> Living | None:
    """The model of a capture, looked at now; None where nothing of it can be in this process.

    Of a model that is gone, parameters may live on by themselves, as on a graph.
    """
    handles = view.handles
    if handles is None:
        return None
    words = view.tables.forward.words
    held = {number: handles.parameter(number) for number in range(words.registered)}
    buffers = {number: handles.buffer(number) for number in range(len(words.buffers))}
    root = handles.module(0)
    differences = list(of_training(view))
    if root is not None:
        aliases = words.modules[0].aliases
        described = describe(root, also_called=aliases[0] if aliases else None)
        now: Any = described.event
        named = {
            kind: {name: tensor for row, tensor in zip(rows, tensors, strict=True) for name in (row[0], *row[6])}
            for kind, rows, tensors in (
                ("parameter", now.parameters, described.parameters),
                ("buffer", now.buffers, described.buffers),
            )
        }
        for number, row in enumerate(words.parameters[: words.registered]):
            held[number] = named["parameter"].get(row.address, held[number])
        for number, row in enumerate(words.buffers):
            buffers[number] = named["buffer"].get(row.address, buffers[number])
        modules = [row[:-1] for row in words.modules if row.is_registered]
        parameters = [row[:7] for row in words.parameters[: words.registered]]
        differences += (
            Divergence("model_differs", problem, None, None)
            for problem in (
                *differing("module", MODULE_FACTS, modules, [(row[0] or ROOT, *row[1:]) for row in now.modules]),
                *differing("parameter", STATE_FACTS, parameters, now.parameters),
                *differing("buffer", STATE_FACTS, [row[:7] for row in words.buffers], now.buffers),
            )
        )
    return Living(held, buffers, tuple(differences))


def differing(kind: str, facts: tuple[str, ...], then: list[Any], now: Any) -> Iterator[str]:
    """In which row of a description a model is another one than it was; the first alone."""
    before, after = ({row[0]: tuple(row) for row in rows} for rows in (then, now))
    for address in (*before, *(address for address in after if address not in before)):
        name = "the model" if kind == "module" and address == ROOT else f"{kind} {address!r}"
        if address not in after:
            yield f"the model has no {name} any more"
            return
        if address not in before:
            yield f"the model has {name}, and had none"
            return
        for place, (fact, was, found) in enumerate(zip(facts, before[address], after[address], strict=True)):
            if was != found and not (kind == "module" and place == TRAINING):
                yield f"{name} has {fact} {found}, and had {was}"
                return


def of_training(view: View) -> Iterator[Divergence]:
    """Modules that were put into training or evaluation since."""
    handles = view.handles
    assert handles is not None  # asked before
    for number, row in enumerate(view.tables.forward.words.modules):
        module: nn.Module | None = handles.module(number)
        if module is not None and module.training is not row.training:
            name = "the model" if row.address == ROOT else row.address
            problem = f"{name} has training={module.training}, and had {row.training}"
            yield Divergence("training_differs", problem, None, None)
            return  # a model is put into a mode as a whole


def of_outside(view: View) -> Iterator[Divergence]:
    """Tensors from outside that were written, or exchanged, since the forward took them."""
    handles = view.handles
    if handles is None:
        return
    words, is_there = view.tables.forward.words, handles.module(0) is not None
    for met in handles.outside.values():
        holder = None if met.module is None else handles.module(met.module)
        now = met.now(holder)
        if now is None and (holder is None if met.module is not None else not is_there):
            continue  # nobody is left who could take another one
        if now is None or not met.agrees(now):
            parts = () if met.module in (None, 0) else (words.modules[met.module].address,)
            name = ".".join(map(str, (*parts, *met.path))) or "a tensor from outside"
            problem = f"{name} {'is gone' if now is None else 'was written or exchanged'} since the forward took it"
            yield Divergence("constant_differs", problem, None, None)
