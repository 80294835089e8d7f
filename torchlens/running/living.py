"""The model of a capture as it is now, if it lives, held against what the capture began with.

Reads  its modules, parameters and buffers under their names, and the tensors that the forward took from outside.
Gives  parameters and buffers by the numbers of the capture, and one ``Divergence`` for each kind of difference.
Not    its code, and what stands in attributes but tensors that the forward took: these are part of the record.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from projections.folds.vocabulary import ROOT
from torchlens.capture.model import describe
from torchlens.reading.run_result import Divergence
from torchlens.reading.view import View

__all__ = ["Living", "living", "of_outside"]

MODULE_FACTS: Final = ("address", "class", "class", "parent", "training", "names", *("hooks",) * 3)
STATE_FACTS: Final = ("address", "shape", "dtype", "device", "requires_grad", "size", "names")
"""What the places of a module row, and of a row of a parameter or buffer, tell; see ``ModelDescribed``."""


class Living(NamedTuple):
    """What a model has now."""

    parameters: Sequence[Tensor | None]  # by number
    buffers: Sequence[Tensor | None]
    differences: tuple[Divergence, ...]


class Described(NamedTuple):
    """A model in rows, as ``ModelDescribed`` has them."""

    modules: tuple[tuple[Any, ...], ...]
    parameters: tuple[tuple[Any, ...], ...]
    buffers: tuple[tuple[Any, ...], ...]


_recorded: Final[weakref.WeakKeyDictionary[View, Described]] = weakref.WeakKeyDictionary()


def recorded(view: View) -> Described:
    """The model as the capture began with it."""
    known = _recorded.get(view)
    if known is None:
        words = view.tables.forward.words
        known = _recorded[view] = Described(
            tuple(
                ("" if row.address == ROOT else row.address, *row[1:-1]) for row in words.modules if row.is_registered
            ),
            tuple(row[: len(STATE_FACTS)] for row in words.parameters[: words.registered]),
            tuple(row[: len(STATE_FACTS)] for row in words.buffers),
        )
    return known


def living(view: View) -> Living | None:
    """The model of a capture, looked at now; None where nothing of it can be in this process.

    Of a model that is gone, parameters may live on by themselves, as on a graph.
    """
    handles = view.handles
    if handles is None:
        return None
    then, root = recorded(view), handles.module(0)
    training = of_training(view, 0 if root is None else len(then.modules))
    if root is not None:
        aliases = then.modules[0][MODULE_FACTS.index("names")]
        described = describe(root, also_called=aliases[0] if aliases else None)
        event: Any = described.event
        now = Described(event.modules, event.parameters, event.buffers)
        if now == then:  # in the same order, then
            return Living(described.parameters, described.buffers, tuple(training))
        found = (
            *of_training(view, 0),
            *(Divergence("model_differs", problem, None, None) for problem in differences(then, now)),
        )
        return Living(
            in_order(then.parameters, now.parameters, described.parameters, handles.parameter),
            in_order(then.buffers, now.buffers, described.buffers, handles.buffer),
            found,
        )
    return Living(
        [handles.parameter(number) for number in range(len(then.parameters))],
        [handles.buffer(number) for number in range(len(then.buffers))],
        tuple(training),
    )


def in_order(
    then: Any, now: Any, tensors: list[Tensor], otherwise: Callable[[int], Tensor | None]
) -> list[Tensor | None]:
    """What stands under each address of before; the tensor that stood there, if it lives, where nothing does."""
    named = {
        name: tensor
        for row, tensor in zip(now, tensors, strict=True)
        for name in (row[0], *row[STATE_FACTS.index("names")])
    }
    return [named.get(row[0], otherwise(number)) for number, row in enumerate(then)]


def differences(then: Described, now: Described) -> Iterator[str]:
    yield from differing("module", MODULE_FACTS, then.modules, now.modules)
    yield from differing("parameter", STATE_FACTS, then.parameters, now.parameters)
    yield from differing("buffer", STATE_FACTS, then.buffers, now.buffers)


def differing(kind: str, facts: tuple[str, ...], then: Any, now: Any) -> Iterator[str]:
    """In which row of a description a model is another one than it was; the first alone."""
    before, after = ({row[0]: tuple(row) for row in rows} for rows in (then, now))
    for address in (*before, *(address for address in after if address not in before)):
        name = "the model" if not address else f"{kind} {address!r}"
        if address not in after:
            yield f"the model has no {name} any more"
            return
        if address not in before:
            yield f"the model has {name}, and had none"
            return
        for fact, was, found in zip(facts, before[address], after[address], strict=True):
            if was != found and fact != "training":
                yield f"{name} has {fact} {found}, and had {was}"
                return


def of_training(view: View, first: int) -> Iterator[Divergence]:
    """Modules that were put into training or evaluation since, from a number on."""
    handles = view.handles
    assert handles is not None  # asked before
    for number, row in enumerate(view.tables.forward.words.modules[first:], first):
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
