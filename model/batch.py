"""Batches of recorded or simulated sequences of equal length, used to train filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Batch of sequences of equal length.

    Attributes:
        times: Times, `[B, N]`.
        observations: Observations, `[B, N, P]`. NaN marks a missing value.
        truth: True states, `[B, N, P]`. None for recorded data.
    """

    times: np.ndarray
    observations: np.ndarray
    truth: np.ndarray | None = None

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the observations with 0 in place of missing values, 1 for each observed component and 0 for each
        missing one, and the times. The first two are `[B, N, P]` float32, and the times are `[B, N]` float64."""
        import torch  # optional for readers of recorded series

        present = np.isfinite(self.observations)
        values = np.where(present, self.observations, 0.0)
        return torch.from_numpy(values).float(), torch.from_numpy(present).float(), torch.from_numpy(self.times)


__all__ = ["Batch"]
