"""What the events say of one row beside its edges: shape, dtype and device of its value, how long its call took.

Reads  a row of the op table's own event, as it is stored.
Gives  ``Detail``, one row's, and ``Details``, those of all rows as columns; and where a field stands in a stored row.
Not    which event is a row's own (projections/forward.py).
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any, Final, NamedTuple

from journal.events import DESCRIPTION, ForwardReturned, InputSeen, OpExecuted, PayloadRef, Row, StreamOpened
from projections.folds.retention import plain_ref
from projections.structure.labels import Names

SHAPE: Final = DESCRIPTION.index("shape")
DTYPE: Final = DESCRIPTION.index("dtype")
DEVICE: Final = DESCRIPTION.index("device")
LAYOUT: Final = DESCRIPTION.index("layout")
VIEW_OF: Final = DESCRIPTION.index("view_of")
SAME_AS: Final = DESCRIPTION.index("same_as")
REQUIRES_GRAD: Final = DESCRIPTION.index("requires_grad")
GRAD_FN: Final = DESCRIPTION.index("grad_fn")
GRAD_SLOT: Final = DESCRIPTION.index("grad_slot")
GRAD_NODE: Final = DESCRIPTION.index("grad_node")
PATH: Final = DESCRIPTION.index("path")
PAYLOAD: Final = DESCRIPTION.index("payload")
CLASS: Final = DESCRIPTION.index("class")

ITEM_BITS: Final = {
    "bool": 8,
    **{f"{sign}int{bits}": 8 for sign in ("", "u") for bits in range(1, 8)},
    **dict.fromkeys(("bits1x8", "bits2x4", "bits4x2"), 8),
    "quint4x2": 4,
    "quint2x4": 2,
    "float4_e2m1fn_x2": 8,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "bfloat16": 16,
}
"""Bits per element where the name of the dtype does not end in its width."""


def item_bytes(dtype: str, count: int) -> int:
    """Bytes that ``count`` elements of a dtype take."""
    bits = ITEM_BITS.get(dtype)
    if bits is None:
        name = dtype.split("_")[0]  # "float8_e4m3fn"
        bits = int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 8)
    return (count * bits + 7) // 8


def field(cls: type[Any], name: str) -> int:
    """Where a field of an event class stands in its rows."""
    fields: tuple[str, ...] = cls.fields
    return 2 + fields.index(name)


told_of: Final = itemgetter(SHAPE, DTYPE, DEVICE, LAYOUT, SAME_AS, REQUIRES_GRAD, GRAD_FN, GRAD_SLOT, PATH, CLASS)
"""What of a description goes into a brief."""

OUTPUTS: Final = field(OpExecuted, "outputs")
ARGS: Final = field(OpExecuted, "args")
KWARGS: Final = field(OpExecuted, "kwargs")
INPUTS: Final = field(OpExecuted, "inputs")
WRITERS: Final = field(OpExecuted, "writers")
CONTAINER: Final = field(OpExecuted, "container")
PATHS: Final = field(ForwardReturned, "paths")
INPUT_PATH: Final = field(InputSeen, "path")
WALL_TIME: Final = field(StreamOpened, "wall_time_ns")
WRITTEN: Final = field(OpExecuted, "written")
MODE: Final = field(OpExecuted, "mode")
DURATION: Final = field(OpExecuted, "duration_ns")
AUTOCAST: Final = field(OpExecuted, "autocast")
RNG: Final = field(OpExecuted, "rng")


class Brief(NamedTuple):
    """What many rows share: passes of one layer mostly have one object of this."""

    shape: tuple[int, ...] | None
    dtype: str | None
    device: str | None
    nbytes: int | None  # of a dense value; what a sparse or nested one takes, its shape does not say
    layout: str | None
    tensor_class: str | None
    requires_grad: bool | None
    grad_fn: str | None
    grad_slot: int | None
    path: tuple[Any, ...]
    is_inplace: bool
    is_alias: bool  # shares the memory of an argument
    mode: int | None
    autocast: tuple[tuple[str, str], ...] | None


class Detail(NamedTuple):
    """What the events say of one row beside its edges."""

    brief: Brief
    node: int | None  # capture-local number of its autograd node
    payload: PayloadRef | None
    duration_ns: int
    rng: int | None


NOTHING: Final = Brief(*(None,) * 9, path=(), is_inplace=False, is_alias=False, mode=None, autocast=None)
UNKNOWN: Final = Detail(NOTHING, None, None, 0, None)


class Details:
    """Details by row, as columns; equal briefs are one object."""

    __slots__ = ("briefs", "durations", "nodes", "payloads", "rngs", "shared")

    def __init__(self, count: int) -> None:
        self.briefs = [NOTHING] * count
        self.nodes: list[int | None] = [None] * count
        self.payloads: list[PayloadRef | None] = [None] * count
        self.durations = [0] * count
        self.rngs: dict[int, int] = {}
        self.shared: dict[Brief, Brief] = {}

    def __getitem__(self, row: int) -> Detail:
        return Detail(self.briefs[row], self.nodes[row], self.payloads[row], self.durations[row], self.rngs.get(row))

    def __setitem__(self, row: int, detail: Detail) -> None:
        brief, self.nodes[row], self.payloads[row], self.durations[row], rng = detail
        self.briefs[row] = self.shared.setdefault(brief, brief)
        if rng is not None:
            self.rngs[row] = rng


def is_alias(given: Any) -> bool:
    """Whether a value, by its description, shares the memory of an argument of its call."""
    return given[VIEW_OF] is not None or given[SAME_AS] is not None


def shown(detail: Detail) -> Detail:
    """The same value at a row that only shows it."""
    brief = detail.brief._replace(path=(), is_inplace=False, is_alias=True, mode=None, autocast=None)
    return Detail(brief, detail.node, detail.payload, 0, None)


def detail_of(event: Row, function: int, slot: int, names: Names) -> Detail:
    """Read one row's detail from the event that describes its value."""
    if function < 0:
        given = event[-1]
        path: tuple[Any, ...] = ()
        in_place, mode, autocast, duration_ns, rng = False, None, None, 0, None
    else:
        given = event[OUTPUTS][slot]
        same_as, written = given[SAME_AS], event[WRITTEN]
        path = tuple(given[PATH])
        in_place = (same_as is not None and written is not None and same_as in written) or names.in_place[function]
        mode, duration_ns, rng = event[MODE], event[DURATION], event[RNG]
        autocast = event[AUTOCAST]
    shape = tuple(given[SHAPE])
    dtype = given[DTYPE]
    brief = Brief(
        shape,
        dtype,
        given[DEVICE],
        None if given[LAYOUT] is not None else item_bytes(dtype, math.prod(shape)),
        given[LAYOUT],
        given[CLASS],
        given[REQUIRES_GRAD],
        given[GRAD_FN],
        given[GRAD_SLOT],
        path,
        in_place,
        is_alias(given),
        mode,
        autocast,
    )
    payload = given[PAYLOAD]
    return Detail(brief, given[GRAD_NODE], None if payload is None else plain_ref(payload), duration_ns, rng)
