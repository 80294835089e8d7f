"""Why there is no gradient: for each op and parameter without one the reason, and the place where the path was cut.

Reads  a ``Forward``: what required a gradient, in which mode each call ran, who was made from whom; and a ``Flow``.
Gives  ``Absence``, one for each op row and parameter that has no gradient, in order.
Rule   what requires no gradient has none because something before it took it off, or because nothing that it was made
       from requires one. What requires one has none because a pass did not keep it or did not come to it; and a pass
       does not come to it where something behind it took it off, or where the loss was not made from it.
Rule   a path is followed by the edges of the capture where no pass went, and by those of autograd where one did.
       Of one pass is told what is so of that pass alone.
Not    which gradients there are (autograd/gradients.py), where any came (autograd/arrivals.py), or how a reason
       reads in words (explanations.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from journal.events import MODE_GRAD, MODE_INFERENCE
from projections.folds.graph import NOWHERE
from projections.forward import Forward, once
from projections.structure.rows import is_buffer

Reason: TypeAlias = Literal[
    "no_grad section",
    "detached",
    "frozen",
    "never called",
    "not upstream of the loss",
    "not in the graph",
    "not differentiable",
    "graph freed",
    "not saved by policy",
    "backward failed",
    "no backward yet",
]

DETACHING: Final = frozenset(("detach", "detach_"))
"""Names of the functions that take a gradient off on purpose; ``Tensor.data`` is told as one of them."""

DERIVED: Final = frozenset(
    (
        *("linear", "bilinear", "conv1d", "conv2d", "conv3d", "embedding", "matmul", "mm", "bmm", "addmm", "einsum"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "batch_norm", "layer_norm", "group_norm"),
        *("rms_norm", "instance_norm", "prelu", "add", "sub", "mul", "div", "__add__", "__sub__", "__mul__"),
    )
)
"""Names of functions that layers call with their parameters, and that have a derivative in each."""

CONTINUOUS: Final = ("float", "bfloat", "complex")
"""How the names of the dtypes begin that have a derivative."""


class Cut(NamedTuple):
    """Why a gradient is kept from something, and where."""

    reason: Reason
    row: int = NOWHERE  # the op row at which it is, if it is one
    parameter: int = NOWHERE  # or the parameter
    number: int = NOWHERE  # or the backward pass
    takes_off: bool = False  # what came in required a gradient


class Met(NamedTuple):
    """What backward passes made of a place in autograd's graph.

    ``arrived``: a gradient came. ``nothing``: what stands behind it gave none. ``unasked``: a pass leads there, and did
    not need it. ``freed`` and ``failed``: a pass leads there, and ended before. ``unmet``: no pass leads there.
    """

    how: Literal["arrived", "nothing", "unasked", "freed", "failed", "unmet"]
    number: int = NOWHERE  # the pass
    row: int = NOWHERE  # of ``nothing``, the op whose node gave none


class PassFacts(NamedTuple):
    """What a backward pass was asked for, and where it ended."""

    raised_in: str | None  # label of the node that raised; None where none did, or that is not known
    is_transient: bool  # none of its gradients could be kept
    accumulates: bool
    names_inputs: bool  # whether only the gradients of some places were asked for


class Flow(Protocol):
    """What backward passes have told of gradients."""

    @property
    def only(self) -> int | None:
        """The one pass that is asked about, from 0; None for all together."""
        ...

    @property
    def has_passes(self) -> bool:
        """Whether there was any."""
        ...

    def has_gradient(self, row: int) -> bool:
        """Whether a gradient of an op row was saved."""
        ...

    def has_increment(self, parameter: int) -> bool:
        """Whether something was added to a parameter's gradient."""
        ...

    def met(self, row: int) -> Met:
        """What was made of an op row's place."""
        ...

    def met_leaf(self, parameter: int) -> Met:
        """What was made of a parameter's."""
        ...

    def facts(self, number: int) -> PassFacts:
        """What is known of a pass."""
        ...


class Absence(NamedTuple):
    """That an op row, or a parameter, has no gradient."""

    is_param: bool
    row: int  # of the table of its kind
    cut: Cut


class Reasons:
    """Finds them.

    Args:
        forward: The capture.
        islands: Its islands, whose ops may be all that took a parameter.
        flow: What backward passes have told.
    """

    def __init__(self, forward: Forward, islands: Forward, flow: Flow) -> None:
        self.forward = forward
        self.islands = islands
        self.flow = flow
        self.met = [flow.met(row) for row in range(len(forward))]
        self.requires = [brief.requires_grad is True for brief in forward.details.briefs]
        self.before = befores(forward, self.requires)
        self.behind = [NOTHING] * len(forward)
        self.look_behind()

    @cached_property
    def absences(self) -> list[Absence]:
        """Everything without a gradient: op rows, then parameters."""
        return list(self.found())

    def place(self, row: int, *, is_param: bool) -> int | None:
        """Where in ``absences`` a row of its table is; None where it has a gradient."""
        place = bisect_left(self.absences, (is_param, row))
        return place if self.absences[place : place + 1] and self.absences[place][:2] == (is_param, row) else None

    def found(self) -> Iterator[Absence]:
        for row in range(len(self.forward)):
            if not self.flow.has_gradient(row):
                yield Absence(is_param=False, row=row, cut=self.of_op(row))
        for number in range(len(self.forward.words.parameters)):
            if not self.flow.has_increment(number):
                yield Absence(is_param=True, row=number, cut=self.of_parameter(number))

    def of_op(self, row: int) -> Cut:
        """Why an op row has no gradient."""
        met = self.met[row]
        if met.how != "unmet":
            return of_pass(met)
        if not self.requires[row]:
            return self.before[row] if self.is_continuous(row) else Cut("not differentiable", row)
        return self.unmet(self.behind[row])

    def of_parameter(self, number: int) -> Cut:
        """Why nothing was added to a parameter's gradient."""
        met = self.flow.met_leaf(number)
        if met.how == "arrived":  # and was not added
            return Cut("frozen", parameter=number, number=met.number)
        if met.how != "unmet":
            return of_pass(met)
        if not self.forward.words.parameters[number].requires_grad:
            return Cut("frozen", parameter=number)
        users = self.forward.ops_using.get(number, ())
        if not users and number not in self.islands.ops_using:
            return Cut("never called")
        return self.unmet(self.joined(users))

    def unmet(self, behind: Behind) -> Cut:
        """Why no pass came to what requires a gradient."""
        taken = behind.before_loss
        if taken == NOWHERE and not behind.is_open:
            taken = behind.before_output
        if taken != NOWHERE:
            return self.before[taken]
        if behind.leads:
            return Cut("not in the graph")
        return Cut("not upstream of the loss") if self.flow.has_passes else Cut("no backward yet")

    def is_continuous(self, row: int) -> bool:
        return is_continuous(self.forward, row)

    def look_behind(self) -> None:
        """Find what is behind each op row. A row's children stand behind it."""
        forward, found = self.forward, self.behind
        outputs = frozenset(forward.output_rows)
        for row in range(len(found) - 1, -1, -1):
            behind = self.joined(forward.children[row])
            meets, ends = self.met[row].how == "arrived", row in outputs
            found[row] = behind._replace(
                meets_loss=behind.meets_loss or meets,
                meets_output=behind.meets_output or ends,
                is_open=behind.is_open or ends,
                leads=behind.leads or (meets and self.requires[row]),
            )

    def joined(self, users: Iterable[int]) -> Behind:
        """What is behind something that some op rows take."""
        before_loss = before_output = NOWHERE
        meets_loss = meets_output = is_open = leads = False
        for row in users:
            behind = self.behind[row]
            meets_loss = meets_loss or behind.meets_loss
            meets_output = meets_output or behind.meets_output
            if self.requires[row]:
                is_open = is_open or behind.is_open
                leads = leads or behind.leads
                if before_loss == NOWHERE and self.met[row].how != "arrived":
                    before_loss = behind.before_loss
                if before_output == NOWHERE:
                    before_output = behind.before_output
            elif self.before[row].takes_off:
                if behind.meets_loss and before_loss == NOWHERE:
                    before_loss = row
                if behind.meets_output and before_output == NOWHERE:
                    before_output = row
        return Behind(before_loss, before_output, meets_loss, meets_output, is_open, leads)


class Behind(NamedTuple):
    """What is made from a value, by the edges of the capture."""

    before_loss: int = NOWHERE  # where the gradient is taken off on a way to what the loss was made from
    before_output: int = NOWHERE  # the same on a way to an output
    meets_loss: bool = False  # some way leads to what the loss was made from
    meets_output: bool = False  # some way leads to an output
    is_open: bool = False  # some way leads to an output, and nothing on it takes the gradient off
    leads: bool = False  # some way leads to what has a gradient, and nothing on it takes that off


NOTHING: Final = Behind()


def of_pass(met: Met) -> Cut:
    match met.how:
        case "nothing":
            return Cut("not differentiable", met.row, number=met.number)
        case "freed":
            return Cut("graph freed", number=met.number)
        case "failed":
            return Cut("backward failed", number=met.number)
        case _:
            return Cut("not saved by policy", number=met.number)


def befores(forward: Forward, requires: Sequence[bool]) -> list[Cut]:
    """By op row, where the gradient of what requires none was taken off; of no meaning for what requires one."""
    found: list[Cut] = []
    for row in range(len(forward)):
        found.append(before(forward, requires, found, row))
    return found


def before(forward: Forward, requires: Sequence[bool], found: Sequence[Cut], row: int) -> Cut:
    origin = forward.origin(row)
    if origin != row:
        return found[origin]
    parents = forward.unique_parents[row]
    parameters = forward.words.parameters
    used = forward.own_params.get(row, ())
    trained = [number for number in used if parameters[number].requires_grad]
    is_of_trained = any(requires[parent] for parent in parents)
    if trained or is_of_trained:
        reason = taken_off(forward, row)
        if reason == "not differentiable" and not is_of_trained and has_derivative(forward, row):
            return Cut("frozen", row, trained[0], takes_off=True)
        return Cut(reason, row, takes_off=True)
    earlier = [found[parent] for parent in parents]
    for cut in earlier:
        if cut.takes_off:
            return cut
    if not is_continuous(forward, row):
        return Cut("not differentiable", row)
    for parent, cut in zip(parents, earlier, strict=True):
        if is_continuous(forward, parent):
            return cut
    if used:
        return Cut("frozen", parameter=used[0])
    return earlier[0] if earlier else Cut("frozen", row)


def taken_off(forward: Forward, row: int) -> Reason:
    """What became of the gradient at a row that is made from something that requires one, and requires none."""
    if is_buffer(forward.rows.function[row]):
        return "frozen"
    mode = forward.details.briefs[row].mode
    if mode is not None and (not mode & MODE_GRAD or mode & MODE_INFERENCE):
        return "no_grad section"
    if forward.names.func_name(forward.rows.function[row]) in DETACHING:
        return "detached"
    return "not differentiable"


def has_derivative(forward: Forward, row: int) -> bool:
    """Whether the function of a row is known to have one: by its name, or as another row of it requires a gradient."""
    if not is_continuous(forward, row):
        return False
    name = forward.names.func_name(forward.rows.function[row])
    return name in DERIVED or forward.rows.function[row] in functions_with_gradient(forward, 0)


@once
def functions_with_gradient(forward: Forward, _whole: int) -> Sequence[int]:
    briefs = zip(forward.rows.function, forward.details.briefs, strict=True)
    return sorted({function for function, brief in briefs if brief.requires_grad and brief.grad_slot is not None})


def is_continuous(forward: Forward, row: int) -> bool:
    """Whether a row's value has a derivative, by its dtype."""
    dtype = forward.details.briefs[row].dtype
    return dtype is None or dtype.startswith(CONTINUOUS)
