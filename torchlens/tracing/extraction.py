"""``tl.extract`` and ``tl.pluck``: the activations of a few sites, and nothing else.

Each is one capture with ``save=``, read and cleaned up. Where every site is known to be complete when it is met (one
call of a module, a raw label) and has a name of its own, the forward is left after the last of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from projections.selecting.queries import unresolvable
from projections.selecting.selector import ANY_CALL, LAST_CALL, Label, ModuleOutput, Selector, call_key, union
from torchlens.api import trace
from torchlens.capture.facts import Facts
from torchlens.capture.model import address_of
from torchlens.errors import SiteAmbiguityError, TorchLensWarning
from torchlens.options import CaptureOptions
from torchlens.reading.facade import Trace
from torchlens.tracing.request import model_of, selector_for
from torchlens.tracing.requested import what_there_is

__all__ = ["extract", "pluck"]


def extract(
    model: Any,
    input_args: Any,
    sites: Any,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    detach: bool = True,
) -> dict[Any, Tensor]:
    """The activations of some sites, from one forward pass.

    Args:
        model: As for ``tl.trace``.
        input_args: As for ``tl.trace``.
        sites: What ``save=`` takes: a selector, a label, a module address, or a list of these; or a mapping of
            names to such sites, of which each must match one op.
        input_kwargs: As for ``tl.trace``.
        detach: Cut the tensors from the autograd graph; with False, a loss made of them reaches the model.

    Returns:
        Each activation, as the op returned it, in the order of the forward: by the text that was given, where it names
        one op, else by the op's label. Of a mapping, by the names given, in their order.

    Raises:
        SelectionError: ``selection_unresolvable``, when a site matches nothing (``site_not_in_trace``).
        SiteAmbiguityError: ``site_ambiguous``, when a named site matches several ops; ``site_names_collide``, when
            one name would stand for two.
        TorchLensError: As ``tl.trace``.

    Example:
        >>> import torch, torchlens as tl
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> list(tl.extract(model, torch.ones(1, 2), ["0", tl.func("relu")]))
        ['0', 'relu_1_2']
    """
    if isinstance(sites, Mapping):
        named = {name: selector_for(site, model) for name, site in sites.items()}
        return _named(model, input_args, input_kwargs, named, detach=detach)
    several = sites if isinstance(sites, list | tuple) else [sites]
    selectors = [selector_for(site, model) for site in several]
    captured = _captured(model, input_args, input_kwargs, selectors, detach=detach, stop=None)
    try:
        found: dict[str, int] = {}
        for site, selector in zip(several, selectors, strict=True):
            rows = _rows(captured, repr(site), selector)
            for row in rows:
                label = captured.records(row).label
                name = site if isinstance(site, str) and len(rows) == 1 else label
                if found.setdefault(name, row) != row:
                    raise _collide(name, captured.records(found[name]).label, label)
        return {name: captured.records(row).out for name, row in sorted(found.items(), key=lambda item: item[1])}
    finally:
        captured.cleanup()


def _collide(name: str, *labels: str) -> SiteAmbiguityError:
    return SiteAmbiguityError(
        code="site_names_collide",
        problem=f"{name!r} would stand for {' and '.join(labels)}",
        remedy="give the sites names of your own: tl.extract(model, x, {'one': ..., 'other': ...})",
        labels=labels,
    )


def pluck(
    model: Any, input_args: Any, site: Any, input_kwargs: Mapping[str, Any] | None = None, *, detach: bool = True
) -> Tensor:
    """The activation of one site, from one forward pass.

    Args:
        model: As for ``tl.trace``.
        input_args: As for ``tl.trace``.
        site: A selector, a label or a module address that matches one op.
        input_kwargs: As for ``tl.trace``.
        detach: As for ``tl.extract``.

    Raises:
        SelectionError: ``selection_unresolvable``, when it matches nothing (``site_not_in_trace``).
        SiteAmbiguityError: ``site_ambiguous``, when it matches several ops.
        TorchLensError: As ``tl.trace``.
    """
    named = {repr(site): selector_for(site, model)}
    made: Tensor = _named(model, input_args, input_kwargs, named, detach=detach).popitem()[1]
    return made


def _named(
    model: Any,
    input_args: Any,
    input_kwargs: Mapping[str, Any] | None,
    named: dict[Any, Selector],
    *,
    detach: bool,
) -> dict[Any, Tensor]:
    stop = AllMet(named) if named and all(comes_once(site, model) for site in named.values()) else None
    captured = _captured(model, input_args, input_kwargs, [*named.values()], detach=detach, stop=stop)
    try:
        made: dict[Any, Tensor] = {}
        for name, selector in named.items():
            row, *others = _rows(captured, name, selector)
            if others:
                labels = tuple([captured.records(one).label for one in (row, *others)])
                raise SiteAmbiguityError(
                    code="site_ambiguous",
                    problem=f"{name} matches {len(labels)} ops: {', '.join(labels[:5])}{', ...' * (len(labels) > 5)}",
                    remedy="name one of them, with its pass or call; or take all, with tl.extract(model, x, [site])",
                    labels=labels,
                )
            made[name] = captured.records(row).out
        return made
    finally:
        captured.cleanup()


def _captured(
    model: Any,
    input_args: Any,
    input_kwargs: Mapping[str, Any] | None,
    wanted: Sequence[Selector],
    *,
    detach: bool,
    stop: AllMet | None,
) -> Trace:
    options = CaptureOptions(detach_saved_activations=detach)
    save = union(*wanted) if wanted else "none"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchLensWarning)  # what was not met is refused
        return trace(model, input_args, input_kwargs, capture=options, save=save, stop_after=stop)


def _rows(captured: Trace, text: Any, selector: Selector) -> tuple[int, ...]:
    rows = selector.rows(captured.tables, captured.records)
    if not rows:
        raise unresolvable(
            "site_not_in_trace",
            f"{text} matches no op of this forward",
            what_there_is(selector, captured.tables, "tl.trace(model, x)"),
            site=text,
        )
    return rows


class AllMet:
    """Leaves the forward when each of some sites was met. Asked of every op, and again when a module returns it."""

    def __init__(self, sites: Mapping[Any, Selector]) -> None:
        self.waiting = dict(sites)

    def __call__(self, facts: Facts) -> bool:
        self.waiting = {name: site for name, site in self.waiting.items() if site.live(facts) is not True}
        return not self.waiting


def comes_once(selector: Selector, model: Any) -> bool:
    """Whether all that it matches comes with one event."""
    match selector:
        case Label():
            return selector.is_raw
        case ModuleOutput():
            if address_of(model_of(model)[0], selector.address) is not None:  # all of its calls, also of one named a:2
                return False
            return call_key(selector.address, {}).token not in (ANY_CALL, LAST_CALL)
        case _:
            return False
