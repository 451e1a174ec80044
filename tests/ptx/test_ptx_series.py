"""The network of a series over a piece at once, its slots from the kernels that Triton compiles for a GPU, executed."""

from __future__ import annotations

import numpy as np
import pytest

import tests.ptx.required  # noqa: F401
from rfa.model.recurrence import slots
from rfa.model.series.network import SeriesNetwork
from tests.model.test_series_patches import assert_at_once_is_one_by_one
from tests.ptx.launches import SCAN, Compiler, Emulator, emulated
from tests.small_series import SMALL


@pytest.mark.parametrize("architecture", [80, 90], ids="sm_{}".format)
def test_a_piece_at_once_by_its_kernels(compiler: Compiler, architecture: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column with two whole patches and one with none: each layer scans the former, and steps every token."""
    monkeypatch.setattr(slots, "is_on_gpu", lambda _: True)
    emulator = Emulator(compiler, architecture)
    with emulated(emulator):
        assert_at_once_is_one_by_one(SeriesNetwork(SMALL).eval(), [np.arange(14, 34), np.array([3, 5])])
    assert emulator.played == dict.fromkeys(SCAN, 2 * SMALL.n_layers)
