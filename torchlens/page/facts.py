"""The facts of a page: what is told of the capture as a whole, each as a name and a text.

Reads  facts of the tables, and how many values and places of source were left out.
Gives  names and texts in the order in which they are shown; a text that is empty is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, Final

from torchlens.page.places import Places
from torchlens.page.values import Values
from torchlens.printable import amount
from torchlens.quantities import Bytes, Duration, Flops

__all__ = ["NANOSECONDS", "facts"]

NANOSECONDS: Final = 1e9
"""Of one second."""


def facts(fact: Callable[[str], Any], values: Values, places: Places) -> Iterator[tuple[str, str]]:
    """What is told of a capture whose facts are got by name."""
    unknown = fact("compute_coverage")["unknown"]
    yield "status", fact("status")
    yield "ops", f"{fact('num_ops'):,} in {amount(fact('num_compute_layers'), 'layer')}"
    yield "module calls", f"{fact('num_module_calls'):,} of {amount(fact('num_modules'), 'module')}"
    yield "parameters", f"{fact('num_params'):,}, {Bytes(fact('total_param_memory'))}"
    yield "activations", f"{Bytes(fact('total_activation_memory'))}, {Bytes(fact('saved_activation_memory'))} kept"
    untold = f"; of {amount(unknown, 'op')} not known" if unknown else ""
    yield "work", f"{Flops(fact('total_flops_forward'))}{untold}"
    forward = fact("forward_duration")
    calls = f"{Duration(fact('func_calls_duration'))} in torch calls"
    yield "time", calls if forward is None else f"{calls}, {Duration(forward)} forward with recording"
    if fact("num_backward_passes"):
        passes, firings = fact("num_backward_passes"), fact("num_grad_fn_calls")
        kept = Bytes(fact("saved_gradient_memory"))
        yield "backward", f"{amount(passes, 'pass')}, {amount(firings, 'firing')}; gradients of {kept} kept"
    yield "statistics", str(values)
    if places.num_left_out:
        yield "source", f"{amount(places.num_left_out, 'place')} without lines"
    yield "captured", captured(fact("wall_time_ns"))
    yield "environment", ", ".join(f"{name} {said}" for name, said in fact("environment"))


def captured(wall_time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(wall_time_ns / NANOSECONDS, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # a time that no clock has
        return ""
