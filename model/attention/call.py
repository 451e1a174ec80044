"""Arguments of the operator `rfa::attention` as one tuple, which is passed to the functions that launch its kernels."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rfa.model.attention.triton_blocks import last_contiguous

OptionalTensor = Tensor | None


class AttentionCall(NamedTuple):
    """Arguments of `rfa::attention`, in the order of its schema.

    Attributes:
        q: Rotated queries `[B, n, H, W]` of the last n tokens. q, k and v may have any strides.
        k, v: Rotated keys and values `[B, M, H, W]`.
        heads: mu, sigma2, eta2, gamma2, nu and tau of each head, `[H, 6]` float32.
        query_stamps, key_stamps: Times `[1 or B, n, 2]` and `[1 or B, M, 2]` float32. Each time is the sum of two
            numbers. If None, token positions are used.
        query_starts, key_starts: Starts `[S + 1]` int32 of sequences packed into B = 1. If None, each row is one
            sequence.
        longest, longest_keys: Largest number of queries and of keys in a sequence. 0 means the length of a row.
        is_gaussian: Whether to use the Gaussian kernel function rather than Student-t.
        with_precision: Whether to compute the precision.
        needs_decay: Whether to compute the gradient of mu. Otherwise, this gradient is 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    heads: Tensor
    query_stamps: OptionalTensor = None
    key_stamps: OptionalTensor = None
    query_starts: OptionalTensor = None
    key_starts: OptionalTensor = None
    longest: int = 0
    longest_keys: int = 0
    is_gaussian: bool = False
    with_precision: bool = True
    needs_decay: bool = True

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.q) if self.query_starts is None else self.query_starts.numel() - 1

    def normalised(self) -> AttentionCall:
        """Return a copy in which the last dimensions of q, k and v are contiguous and both lengths are set."""
        q, k, v = (last_contiguous(x) for x in self[:3])
        return self._replace(
            q=q, k=k, v=v, longest=self.longest or q.shape[1], longest_keys=self.longest_keys or k.shape[1]
        )
