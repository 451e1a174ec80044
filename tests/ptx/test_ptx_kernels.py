"""The fused kernels as Triton compiles them for a GPU, executed: their numbers, their order, and what they may not do.

Launches are the shipped ones; the tolerance is that of `tests.rounding`, as everywhere.
"""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest
import torch

import tests.ptx.required  # noqa: F401
from rfa.benchmarks.kernels.cases import AttentionInputs, rfa_inputs
from rfa.model.attention.triton import fused_rotation
from rfa.model.dynamics import rotate
from rfa.runtime.text.config import Innovation
from tests.model import test_slots_triton as slots
from tests.model import test_triton_backward as backward
from tests.model import test_triton_forward as forward
from tests.ptx.emulator import machine
from tests.ptx.launches import SCAN, Compiler, Emulator, emulated

ATTENTION = ("_columns_kernel", "_forward_kernel")
GRADIENT = ("_describe_keys", "_describe_queries", "_rows_kernel", "_columns_kernel")


@pytest.fixture
def emulator(compiler: Compiler, request: pytest.FixtureRequest) -> Emulator:
    return Emulator(compiler, getattr(request, "param", 90))


both = pytest.mark.parametrize("emulator", [80, 90], indirect=True, ids="sm_{}".format)


def attend_and_differentiate(emulator: Emulator, inputs: AttentionInputs, kernel: str = "student_t") -> None:
    """Both passes with the blocks of the launch table, held to their rules."""
    with emulated(emulator):
        forward.check(inputs._replace(dynamics=inputs.dynamics.to(torch.float32)), kernel=kernel, blocks=None)
        backward.check(inputs, kernel, rows=None, columns=None)


@both
def test_attention(emulator: Emulator) -> None:
    """Longer than two blocks, so that every kind of block is there; a length that no block divides."""
    attend_and_differentiate(emulator, rfa_inputs(1, 300, 2, 32, dtype=torch.bfloat16))
    assert {*ATTENTION, *GRADIENT, "table_kernel"} == set(emulator.played)


@pytest.mark.parametrize("emulator", [80], indirect=True)
def test_slots(emulator: Emulator) -> None:
    with emulated(emulator):
        slots.assert_matches_reference(*slots.make(2, 7, 3, 16, 32))
    assert {*SCAN, "scan_gradient_kernel"} == set(emulator.played)


@both
def test_slots_whose_tokens_have_lags_of_their_own(emulator: Emulator) -> None:
    with emulated(emulator):
        slots.assert_matches_reference(*slots.with_lags(*slots.make(2, 7, 3, 8, 16)))
    assert {*SCAN, "scan_gradient_kernel"} == set(emulator.played)


@pytest.mark.parametrize("emulator", [80], indirect=True)
@pytest.mark.parametrize(("inner", "innovation"), [(2, "key"), (3, "key"), (3, "value")])
def test_slots_of_more_passes(emulator: Emulator, inner: int, innovation: Innovation) -> None:
    tokens, means, precisions, parameters = slots.make(2, 7, 3, 16, 32)
    with emulated(emulator):
        slots.assert_passes_match_reference(tokens, means, precisions, parameters, inner, innovation)
    assert emulator.played == dict.fromkeys(SCAN, 1)


@pytest.mark.parametrize("emulator", [80], indirect=True)
def test_rows_of_different_lengths_are_scanned_alone(emulator: Emulator) -> None:
    """Bit for bit, though the kernel that knows lengths is another one."""
    tokens, means, precisions, parameters = slots.inputs(4, 5, 3, 16, 32)
    with emulated(emulator):
        slots.assert_rows_are_read_alone(tokens, means, precisions, parameters, torch.tensor([5, 1, 0, 3]))
    assert emulator.played == dict.fromkeys(SCAN, 4)


@pytest.mark.parametrize("emulator", [80], indirect=True)
@pytest.mark.parametrize(("of_a_warp", "reals"), [(128, 16), (1024, 64)])
def test_how_slots_are_shared_out_changes_no_bits(emulator: Emulator, of_a_warp: int, reals: int) -> None:
    """Other layouts in registers, other sums that cross threads."""
    with emulated(emulator):
        slots.assert_shares_change_no_bits(of_a_warp, reals, 1, 4, 2, 16, 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_rotating_frame(emulator: Emulator, dtype: torch.dtype) -> None:
    x, phase = torch.randn(2, 37, 3, 40).to(dtype), torch.rand(37, 3, 20) * 6 - 3
    with emulated(emulator):
        for is_inverse in (False, True):
            (turned,) = fused_rotation(x, phase=phase, is_inverse=is_inverse)
            expected = rotate(x.double(), (-phase if is_inverse else phase).double())
            # Rounded once; three roundings of float32 before that.
            allowed = torch.finfo(dtype).eps / 2 + 2 * torch.finfo(torch.float32).eps
            norm = (x.double()[..., :20] ** 2 + x.double()[..., 20:] ** 2).sqrt().repeat(1, 1, 1, 2)
            assert ((turned.double() - expected).abs() <= allowed * norm).all()


@both
def test_a_nan_stays_a_nan(emulator: Emulator) -> None:
    """Not a zero distance, the best match there is: of a query in its row, of a key in all rows that see it."""
    inputs = forward.inputs_of(1, 300, 2, 32, torch.bfloat16)
    inputs.q[0, 70, 0, 3] = inputs.k[0, 200, 1, 3] = torch.nan
    with emulated(emulator):
        result = forward.fused(inputs, blocks=None)
    for actual, expected in zip(result, forward.eager(inputs, torch.float32), strict=True):
        assert torch.equal(actual.isnan(), expected.isnan())


def apart(x: torch.Tensor, memory: torch.Tensor, start: int) -> torch.Tensor:
    """x `[1, N, H, W]` within `memory`, its heads 2^30 numbers apart."""
    length, _, width = x.shape[1:]
    view = memory.as_strided(x.shape, (length * width, width, 2**30, 1), start)
    return view.copy_(x)


@both
def test_heads_may_be_far_apart(emulator: Emulator) -> None:
    """The offset of the third head takes more than 31 bits; of the memory between them nothing is ever touched."""
    inputs = forward.inputs_of(1, 70, 3, 32, torch.bfloat16)
    memory = torch.frombuffer(mmap.mmap(-1, 2 * (2 * 2**30 + 2**20)), dtype=torch.bfloat16)
    spread = inputs._replace(
        **{name: apart(getattr(inputs, name), memory, start) for name, start in (("q", 0), ("k", 2**17), ("v", 2**18))}
    )
    weights = backward.random_weights(inputs, 70, True)
    oracle = backward.reference(inputs, weights, "student_t", torch.float32)
    with emulated(emulator):
        results = [
            [*forward.fused(x, blocks=None), *backward.fused(x, weights, oracle, rows=None, columns=None).values()]
            for x in (inputs, spread)
        ]
    for near, far in zip(*results, strict=True):
        assert torch.equal(near, far)


@both
@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
@pytest.mark.parametrize(("width", "dtype"), [(64, torch.float16), (128, torch.bfloat16), (64, torch.float32)], ids=str)
def test_attention_of_all_kinds(
    emulator: Emulator, width: int, dtype: torch.dtype, irregular: bool, kernel: str
) -> None:
    attend_and_differentiate(emulator, rfa_inputs(2, 203, 2, width // 2, dtype=dtype, irregular=irregular), kernel)


@both
def test_attention_without_the_evidence(emulator: Emulator) -> None:
    inputs = forward.inputs_of(1, 300, 2, 32, torch.bfloat16)
    with emulated(emulator):
        required = forward.fused(inputs, blocks=None)
        short = forward.fused(inputs, blocks=None, with_precision=False)
        backward.check(inputs, with_precision=False, rows=None, columns=None)
    # Another launch, so other blocks.
    torch.testing.assert_close(short.out, required.out, rtol=2**-7, atol=2**-7)


@both
@pytest.mark.parametrize("queries", [1, 65])
def test_queries_behind_a_prefix(emulator: Emulator, queries: int) -> None:
    inputs = forward.inputs_of(1, 300, 2, 32, torch.bfloat16)
    with emulated(emulator):
        forward.check(inputs, queries, blocks=None)
        backward.check(inputs, queries=queries, rows=None, columns=None)


@both
def test_rows_that_need_the_running_maximum(emulator: Emulator) -> None:
    with emulated(emulator):
        inputs = forward.inputs_of(1, 200, 2, 32, torch.float16, scale=30.0)
        inputs.k[:, 3] = inputs.q[:, 190]
        dynamics = replace(inputs.dynamics, tau=torch.tensor([30.0, 30.0]), mu=torch.tensor([0.0, 1e-4]))
        forward.check(inputs._replace(dynamics=dynamics), blocks=None)


@both
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_order_of_warps_and_ctas_changes_a_bit(emulator: Emulator, seed: int) -> None:
    inputs = forward.inputs_of(1, 300, 2, 32, torch.bfloat16)
    weights = backward.random_weights(inputs, 300, True)
    oracle = backward.reference(inputs, weights, "student_t", torch.float32)

    def played(play: machine.Play) -> list[torch.Tensor]:
        with emulated(replace(emulator, play=play)):
            gradients = backward.fused(inputs, weights, oracle, rows=None, columns=None)
            return [*forward.fused(inputs, blocks=None), *gradients.values()]

    for given, other in zip(played(machine.Play()), played(machine.Play(seed=seed)), strict=True):
        assert torch.equal(given, other)


@both
@pytest.mark.parametrize("functions", ["up", "down", "either"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_functions_may_be_an_ulp_off(emulator: Emulator, dtype: torch.dtype, functions: machine.Functions) -> None:
    play = machine.Play(functions=functions)
    attend_and_differentiate(replace(emulator, play=play), rfa_inputs(1, 203, 2, 32, dtype=dtype))


@pytest.mark.parametrize("functions", ["up", "down", "either"])
def test_slots_may_be_an_ulp_off(emulator: Emulator, functions: machine.Functions) -> None:
    with emulated(replace(emulator, play=machine.Play(functions=functions))):
        slots.assert_matches_reference(*slots.make(2, 5, 3, 5, 12))
        slots.assert_matches_reference(*slots.make(1, 17, 4, 16, 32))
