"""The common part of the papers' mixers: rows of queries, keys and values in the rotating frame."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rfa.model.dynamics import rotate, wrapped_phase
from rfa.model.mixing import PairMixer


class RotatingMixer(PairMixer):
    """A mixer whose rows rotate by the frequencies of its `dynamics`."""

    dynamics: Any

    def anchor_noise(self) -> Tensor:
        noise: Tensor = self.dynamics().gamma2
        return noise

    def phase(self, positions: Tensor, like: Tensor) -> Tensor:
        """Return the phase at `positions` `[...]`, `[..., H, D]`, in the dtype of `like`."""
        return wrapped_phase(self.dynamics.omega, positions, like.dtype)

    def rows(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._project(x)
        phase = self.phase(positions, v)
        return rotate(q, -phase), rotate(k, -phase), rotate(v, -phase)
