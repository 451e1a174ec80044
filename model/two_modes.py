"""Base class of networks with two modes."""

from __future__ import annotations

from torch import nn

from rfa.runtime.text.config import MODES, Mode, check_choice


class TwoModeNetwork(nn.Module):
    """Network that runs as attention or as a recurrence with the same weights.

    Args:
        mode: Initial mode.
    """

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self._mode: Mode = mode

    @property
    def mode(self) -> Mode:
        """Mode of `forward`: "attention" or "recurrent"."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        check_choice("mode", mode, MODES)
        self.check_mode(mode)
        self._mode = mode

    def check_mode(self, mode: Mode) -> None:
        """Raise ValueError if the network does not support a mode. By default, it supports both."""
