"""What torch's kernels do beside giving a result from their arguments, as tables of function names.

Rule  a row stands for what torch documents, or for a check that a kernel does not make.
"""

from __future__ import annotations

from typing import Final

from torchlens.capture.functions import ALWAYS_DRAWS

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


def varies_on(device: str, func_name: str) -> bool:
    """Whether torch documents that the function gives different bits for the same arguments on this device."""
    return device.startswith("cuda") and func_name in VARIES_ON_CUDA
