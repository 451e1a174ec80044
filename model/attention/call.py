"""Arguments of the operator `rfa::attention`, which the launchers of its kernels take as one value."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rfa.model.attention.triton_blocks import last_contiguous


class AttentionCall(NamedTuple):
    """Arguments of `rfa::attention`, in order.

    Attributes:
        q, k, v: rotated, `[B, n, H, W]`, `[B, M, H, W]`; the queries belong to the last n keys. Any strides.
        heads: `[H, 6]` float32: mu, sigma2, eta2, gamma2, nu, tau.
        query_stamps, key_stamps: `[1 or B, n, 2]`, `[1 or B, M, 2]` float32, time = first + second; None: token
            numbers.
        query_starts, key_starts: `[S + 1]` int32, sequences packed into B = 1; None: one sequence a row.
        longest, longest_keys: most queries and most keys of a sequence; 0: of a row.
        is_gaussian: the Gaussian kernel function, else Student-t.
        with_precision: whether precision is computed.
        horizons: `[H]` int32, first far lag of each head (`far_horizons`), without stamps; None: no far field.
        needs_decay: whether mu gets a gradient, else it is 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    heads: Tensor
    query_stamps: Tensor | None = None
    key_stamps: Tensor | None = None
    query_starts: Tensor | None = None
    key_starts: Tensor | None = None
    longest: int = 0
    longest_keys: int = 0
    is_gaussian: bool = False
    with_precision: bool = True
    horizons: Tensor | None = None
    needs_decay: bool = True

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.q) if self.query_starts is None else self.query_starts.numel() - 1

    def normalised(self) -> AttentionCall:
        """The same call with the last dim of q, k and v contiguous and both lengths given."""
        q, k, v = (last_contiguous(x) for x in self[:3])
        return self._replace(
            q=q, k=k, v=v, longest=self.longest or q.shape[1], longest_keys=self.longest_keys or k.shape[1]
        )
