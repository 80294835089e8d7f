"""Why a call may give the same whatever values a parent has: what torch's functions read, as tables.

Used only once a call has been seen to give the same. A row says what a function does by its documentation; it never
stands for a capture that recorded a wrong parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from journal.events.template import HOLE
from projections.arguments import argument_paths, flat_kwargs
from projections.memory import Executed
from torchlens.capture.functions import ALWAYS_DRAWS

Place: TypeAlias = "int | str"
"""An argument by position or by name."""


def rows(names: str, *places: Place) -> dict[str, frozenset[Place]]:
    return dict.fromkeys(names.split(), frozenset(places))


FORM_ONLY: Final[Mapping[str, frozenset[Place]]] = {
    **rows("zeros_like ones_like empty_like full_like rand_like randn_like randint_like", 0, "input", "self"),
    **rows("_shape_as_tensor", 0, "self"),
    **rows("new_zeros new_ones new_empty new_full new_empty_strided new_tensor", 0, "self"),
    **rows("expand_as view_as reshape_as type_as align_as resize_as_ resize_as_sparse_ to", 1, "other"),
}
"""Arguments of which a function reads shape, dtype and device alone."""

UNINITIALIZED: Final = frozenset(
    "empty empty_like empty_strided empty_permuted new new_empty new_empty_strided resize_ resize_as_".split()
)
"""Functions that return memory as it happens to be."""

UNCHECKED: Final = frozenset(
    """
    sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor sparse_compressed_tensor
    lstm gru rnn_tanh rnn_relu ctc_loss _pack_padded_sequence _pad_packed_sequence segment_reduce embedding_bag
    _embedding_bag max_unpool2d max_unpool3d
    """.split()
)
"""Functions whose kernels may take indexes and counts without checking them."""

TAKES_PARAMETERS: Final = ALWAYS_DRAWS | {"grid_sampler", "grid_sampler_2d", "grid_sampler_3d"}
"""Functions whose numbers must lie in some range, as the parameters of a distribution do."""

VARIES_ON_CUDA: Final = frozenset(
    """
    index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_put index_put_ __setitem__ put_
    bincount histc cumsum embedding_bag _embedding_bag index_reduce index_reduce_ scatter scatter_ kthvalue median
    """.split()
)
"""Functions that torch documents as not deterministic on CUDA (``torch.use_deterministic_algorithms``)."""


def plain(call: Executed, position: int, name: str, default: Any) -> Any:
    """A plain argument by position or name; ``default`` where it was not given, or holds a tensor."""
    if position < len(call.args):
        found = call.args[position]
        return default if found == HOLE else found
    return dict(flat_kwargs(call.kwargs)).get(name, default)


def scalar_is(position: int, name: str, *values: Any) -> Callable[[Executed], bool]:
    return lambda call: plain(call, position, name, None) in values


def beta_or_alpha_is_nought(call: Executed) -> bool:
    named = dict(flat_kwargs(call.kwargs))
    return named.get("beta", 1) == 0 or named.get("alpha", 1) == 0


def always(call: Executed) -> bool:
    return True


def table(names: str, holds: Callable[[Executed], bool]) -> dict[str, Callable[[Executed], bool]]:
    return dict.fromkeys(names.split(), holds)


CONSTANT: Final[Mapping[str, Callable[[Executed], bool]]] = {
    **table("pow pow_ __pow__ __ipow__ float_power", scalar_is(1, "exponent", 0)),
    **table("__rpow__", scalar_is(1, "other", 1)),
    **table(
        "mul mul_ multiply multiply_ __mul__ __rmul__ __imul__ bitwise_and bitwise_and_ __and__ __rand__ __iand__",
        scalar_is(1, "other", 0, False),
    ),
    **table("remainder remainder_ fmod fmod_ __mod__ __imod__", scalar_is(1, "other", 1, -1)),
    **table("bitwise_or __or__ logical_or", scalar_is(1, "other", True)),
    **table("addmm addmm_ baddbmm baddbmm_ addmv addmv_ addbmm addr sub add add_ sub_", beta_or_alpha_is_nought),
    **table("triu triu_ tril tril_ diagonal", always),  # by its shape and diagonal, nothing may be left
    **table("clamp clamp_ clip clip_ hardtanh hardtanh_", always),  # whole numbers, with equal bounds
}
"""Functions that give a constant for some plain arguments, and when."""


def places(call: Executed) -> Sequence[Place]:
    """The argument in which each tensor of a call sits."""
    return [argument for argument, _ in argument_paths(call.args, call.kwargs)]
