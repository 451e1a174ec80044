"""The kernels that draw tokens as Triton compiles them for a GPU, executed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tests.ptx.required  # noqa: F401
from rfa.model import draw_triton
from tests.model import test_draw_triton as draws
from tests.ptx.emulator import machine
from tests.ptx.launches import Compiler, Emulator, emulated


@pytest.fixture(params=[80, 90], ids="sm_{}".format)
def emulator(compiler: Compiler, request: pytest.FixtureRequest) -> Emulator:
    return Emulator(compiler, request.param)


def test_tokens_are_those_that_are_certain(emulator: Emulator) -> None:
    """In one block, of which four warps have a part."""
    with emulated(emulator):
        draws.assert_draws_match(700, 7)
    assert set(emulator.played) == {"extent_kernel", "weigh_kernel", "narrow_kernel", "draw_kernel"}


@pytest.mark.parametrize("vocabulary", [4_096, 5_001])
def test_a_row_may_have_many_blocks(emulator: Emulator, vocabulary: int) -> None:
    with emulated(emulator):
        draws.assert_draws_match(vocabulary, 3)


@pytest.mark.parametrize("functions", ["up", "down", "either"])
def test_functions_may_be_an_ulp_off(emulator: Emulator, functions: machine.Functions) -> None:
    with emulated(replace(emulator, play=machine.Play(functions=functions))):
        draws.assert_draws_match(300, 7)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_order_of_warps_and_ctas_changes_a_bit(
    emulator: Emulator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_triton, "LARGEST_BLOCK", 512)
    rows = draws.rows_of(1_100, 3)

    def played(play: machine.Play) -> draws.Drawn:
        with emulated(replace(emulator, play=play)):
            return draws.by_kernel(rows)

    for given, other in zip(played(machine.Play()), played(machine.Play(seed=seed)), strict=True):
        assert torch.equal(given, other)
