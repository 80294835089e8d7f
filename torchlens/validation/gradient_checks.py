"""Validating a backward: the gradients of a captured run against those of runs that nobody recorded.

Gives  every check of ``scope="backward"``: the loss; the gradient of each leaf after the captured run, and what the
       trace has for it, against a bare run; what the trace has for what each module returned, against a run with hooks
       on these tensors alone; the flow from node to node (flow_checks.py); the promises of the records.
Rule   gradients agree bit for bit. Only where they are not the same twice without a capture, or on CUDA, a tolerance
       decides. What differs between two runs without a capture says nothing of the capture, and is told as that.
Rule   a run that is held against the captured one begins after that has been disarmed: an effect of capturing would
       pass for noise of the model's own.
Rule   the call of the root is left out: the gradient of what it returned is that of the loss, and agrees in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from torch import Tensor, nn

from projections.columnar.arguments import Path
from projections.folds.vocabulary import ROOT
from projections.selecting.backward_terms import grad_input, grad_output
from torchlens import api, compat
from torchlens.bits import gap, is_close, same_bits
from torchlens.errors import message_of
from torchlens.handles import Handles
from torchlens.options import CaptureOptions
from torchlens.reading.facade import Trace
from torchlens.validation.differentiating import Ran, Runs
from torchlens.validation.findings import Check, Kind
from torchlens.validation.flow_checks import HookedPlaces, flow_checks, total
from torchlens.validation.module_watch import Arrivals

__all__ = ["Tolerance", "backward_checks", "non_leaf_checks"]

EVERYTHING: Final = grad_output() | grad_input()
"""Both sides of every node."""


Invariants: TypeAlias = "Callable[[Trace], Iterable[Check]]"

Again: TypeAlias = "Callable[[], Sequence[Tensor]]"
"""Gives the gradients of another run without a capture."""


class Tolerance(NamedTuple):
    """By how much gradients may differ where they are not the same twice; by default that of the dtype."""

    atol: float | None
    rtol: float | None


def non_leaf_checks(model: nn.Module) -> list[Check]:
    """A failure for each parameter that is no leaf: its gradient would run on to what it was made from."""
    names = [name for name, parameter in model.named_parameters() if not compat.is_leaf(parameter)]
    return [Check("leaf_gradient", name, outcome="failed", reason="non_leaf_parameter") for name in names]


def backward_checks(
    runs: Runs, *, tolerance: Tolerance, layer_tolerance: Tolerance | None, invariants: Invariants | None
) -> list[Check]:
    """Every check of a backward.

    Args:
        runs: The model.
        tolerance: Of the gradients of leaves.
        layer_tolerance: Of those of what modules returned; None to leave these out.
        invariants: Checks the promises of a trace; None to leave them out.
    """
    bare = runs.bare()
    if bare.loss is None:
        return [Check("loss", "loss", outcome="failed", reason="nothing_differentiable")]
    hooked = HookedPlaces()
    trace: Trace | None = None
    try:
        with runs.fresh(), hooked.noting():
            try:
                trace = api.trace(runs.model, runs.args, runs.kwargs, capture=CaptureOptions(save_grads=EVERYTHING))
                loss = runs.loss(trace.output)
                if loss is not None:
                    trace.backward(loss)
            except Exception as error:  # noqa: BLE001  # the bare run raised nothing, so whatever it is is the finding
                if trace is not None:
                    trace.autograd.disarm()
                return [raised(error, runs)]
            captured = runs.ran(loss, {})
        flow = list(flow_checks(trace, hooked))  # asks the nodes what hooks they have, which are let go of next
        trace.autograd.disarm()
        compared = Compared(trace, runs, bare, captured)
        checks = [*compared.loss(tolerance), *compared.leaves(tolerance), *recorded_passes(trace)]
        if layer_tolerance is not None:
            checks += compared.modules(layer_tolerance)
        checks += flow
        return checks if invariants is None else [*checks, *invariants(trace)]
    finally:
        if trace is not None:
            trace.cleanup()


def raised(error: Exception, runs: Runs) -> Check:
    """What the captured run raised, and a bare one did not."""
    detail = f"{type(error).__name__}: {message_of(error)}"[:300]
    reason = "captured_run_raised"
    runs.restore()
    try:
        runs.bare()
    except Exception:  # noqa: BLE001  # this time it does
        reason = "model_not_deterministic"
    return Check("loss", "loss", outcome="failed", reason=reason, detail=detail)


def recorded_passes(trace: Trace) -> Iterator[Check]:
    """That every pass was recorded to its end, and there is one."""
    passes = trace.autograd.backward_passes
    if not len(passes):
        yield Check("loss", "backward pass", None, None, "failed", "backward_not_recorded", "there is no backward pass")
    for one in passes:
        if one.status in ("incomplete", "unfinished"):
            detail = one.incomplete_reason or one.status
            yield Check(
                "loss", f"backward pass {one.pass_index}", None, None, "failed", "backward_not_recorded", detail
            )


class Compared:
    """A captured run beside those that nobody recorded."""

    def __init__(self, trace: Trace, runs: Runs, bare: Ran, captured: Ran) -> None:
        self.trace: Final = trace
        self.runs: Final = runs
        self.bare: Final = bare
        self.captured: Final = captured
        self._again: Ran | None = None

    @property
    def again(self) -> Ran:
        """A second bare run, made once something differs."""
        if self._again is None:
            self._again = self.runs.bare()
        return self._again

    # -- the loss and the leaves

    def loss(self, tolerance: Tolerance) -> Iterator[Check]:
        reason = self.differs(self.captured.loss, self.bare.loss, lambda: self.again.loss, tolerance, "losses_differ")
        yield told("loss", "loss", reason, [(self.captured.loss, self.bare.loss)])

    def leaves(self, tolerance: Tolerance) -> Iterator[Check]:
        """The gradient that each leaf has after the captured run, and what was recorded of it."""
        recorded = self.increments()
        for name, leaf in self.runs.leaves.items():
            wanted, found = self.bare.gradients[name], self.captured.gradients[name]

            def second(name: str = name) -> Tensor | None:
                return self.again.gradients[name]

            reason = self.differs(found, wanted, second, tolerance, "gradients_differ")
            yield told("leaf_gradient", name, reason, [(found, wanted)])
            terms = recorded.get(id(leaf))
            if terms is None:
                continue
            if name in self.bare.is_early or has_gradient_taken(leaf):
                yield Check("increment", name, outcome="skipped", reason="gradient_taken")
                continue
            made = total(terms) if terms else None
            loose = len(terms) > 2 and made is not None and wanted is not None and is_close(made, wanted, *tolerance)
            reason = None if loose else self.differs(made, wanted, second, tolerance, "recorded_gradient_differs")
            yield told("increment", name, reason, [(made, wanted)])

    def increments(self) -> dict[int, list[Tensor]]:
        """By id of a parameter that the trace knows, what it has of the gradients added to it."""
        handles, params = self.trace.handles, self.trace.tables.params
        assert isinstance(handles, Handles)  # a capture of this process
        found: dict[int, list[Tensor]] = {}
        for number, rows in enumerate(params.column("gradient_rows")):
            parameter = handles.parameter(number)
            if parameter is not None:
                found[id(parameter)] = [self.trace.gradient(row) for row in rows]
        return found

    # -- what modules returned

    def modules(self, tolerance: Tolerance) -> Iterator[Check]:
        """What the trace has of the gradients of what each module call returned, against those that came there."""
        modules = self.called()
        watched = self.runs.watched(modules)
        second: list[Ran] = []

        def once_more() -> Arrivals:
            if not second:
                second.append(self.runs.watched(modules))
            return second[0].arrivals

        calls, num_evident = self.calls(), 0
        for address in modules:
            rows, came = calls.get(address, []), watched.arrivals.get(address, [])
            if len(rows) != len(came):
                detail = f"{len(rows)} calls were recorded, and {len(came)} were seen"
                yield Check("module_gradient", address, None, None, "skipped", "module_call_unseen", detail)
                continue
            for place, (row, seen) in enumerate(zip(rows, came, strict=True)):
                recorded = self.recorded(row)
                for path in dict.fromkeys((*seen, *recorded)):
                    wanted, found = seen.get(path, []), recorded.get(path, [])
                    num_evident += bool(wanted)
                    if not wanted and not found:
                        continue

                    def again(address: str = address, place: int = place, path: Path = path) -> list[Tensor]:
                        return at(once_more(), address, place, path)

                    reason = self.all_differ(found, wanted, again, tolerance)
                    name = str(self.trace.tables.module_calls.value("call_label", row))
                    where = name if not path else f"{name} {'.'.join(str(key) for _, key in path)}"
                    yield told("module_gradient", where, reason, longest(found, wanted))
        if not num_evident:
            yield Check("module_gradient", "module calls", None, None, "failed", "no_module_output_evidence")

    def called(self) -> dict[str, nn.Module]:
        """The modules that were called, without the root, by address."""
        calls = self.calls()
        found = {module.address: module.handle for module in self.trace.modules if module.address in calls}
        return {address: module for address, module in found.items() if module is not None}

    def calls(self) -> dict[str, list[int]]:
        """The rows of the calls that came to their end, by address, without the root's."""
        table = self.trace.tables.module_calls
        found: dict[str, list[int]] = {}
        for row, (address, is_returned) in enumerate(
            zip(table.column("address"), table.column("is_returned"), strict=True)
        ):
            if address != ROOT and is_returned:
                found.setdefault(address, []).append(row)
        return found

    def recorded(self, call: int) -> dict[Path, list[Tensor]]:
        """By place in what a call returned: the gradients that the trace has of it, in order."""
        calls, ops = self.trace.tables.module_calls, self.trace.tables.ops
        found: dict[Path, list[Tensor]] = {}
        paths = calls.value("output_paths", call)
        for row, path in zip(calls.value("output_op_rows", call), paths, strict=True):
            rows = ops.value("gradient_rows", ops.value("origin_row", row))
            found[path] = [self.trace.gradient(one) for one in rows]
        return found

    # -- judging

    def differs(
        self,
        found: Tensor | None,
        wanted: Tensor | None,
        second: Callable[[], Tensor | None],
        tolerance: Tolerance,
        reason: str,
    ) -> str | None:
        """Why a gradient is not what it should be; None where it is.

        Args:
            found: Of the capture.
            wanted: Of a run without.
            second: Gives that of another run without, which says how far they may differ.
            tolerance: How far, where they do.
            reason: What it is called where these two agree.
        """

        def again() -> list[Tensor]:
            made = second()
            return [] if made is None else [made]

        one, other = ([] if found is None else [found]), ([] if wanted is None else [wanted])
        return self.all_differ(one, other, again, tolerance, reason)

    def all_differ(
        self,
        found: Sequence[Tensor],
        wanted: Sequence[Tensor],
        second: Again,
        tolerance: Tolerance,
        reason: str = "recorded_gradient_differs",
    ) -> str | None:
        if all_same(found, wanted):
            return None
        is_close = all_close(found, wanted, tolerance)
        if is_close and any(tensor.is_cuda for tensor in wanted):
            return None
        again = second()
        if is_close and not all_same(wanted, again):
            return None
        return reason if all_same(wanted, again) or all_close(wanted, again, tolerance) else "model_not_deterministic"


def at(arrivals: Arrivals, address: str, place: int, path: Path) -> list[Tensor]:
    calls = arrivals.get(address, [])
    return calls[place].get(path, []) if place < len(calls) else []


def all_same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(found) == len(wanted) and all(map(same_bits, found, wanted))


def all_close(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: Tolerance) -> bool:
    return len(found) == len(wanted) and all(
        is_close(one, other, *tolerance) for one, other in zip(found, wanted, strict=True)
    )


def longest(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    for place in range(max(len(found), len(wanted))):
        yield (found[place] if place < len(found) else None), (wanted[place] if place < len(wanted) else None)


def told(kind: Kind, name: str, reason: str | None, pairs: Iterable[tuple[Tensor | None, Tensor | None]]) -> Check:
    """The check of some gradients."""
    if reason is None:
        return Check(kind, name)
    return Check(kind, name, None, None, "failed", reason, "; ".join(map(shown, pairs)))


def shown(pair: tuple[Tensor | None, Tensor | None]) -> str:
    found, wanted = pair
    if found is None or wanted is None:
        return "there is no gradient, and should be one" if found is None else "there is a gradient, and should be none"
    return gap(found, wanted)


def has_gradient_taken(leaf: Tensor) -> bool:
    """Whether a hook may take or change the sum right after something was added to it, as an optimizer does."""
    return compat.has_hooks_on_sum(leaf)
