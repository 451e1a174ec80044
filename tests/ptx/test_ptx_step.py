"""The kernels of a decode step as Triton compiles them for a GPU, executed: each alone, and all of them as one step."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

import tests.ptx.required  # noqa: F401
from rfa.model import decoder as decoding
from rfa.model import product_triton
from rfa.model.decoder import Decoder
from rfa.runtime.text.config import Innovation
from tests.model import test_decoder as steps
from tests.model import test_decoder_triton as parts
from tests.model import test_product_triton as products
from tests.ptx.emulator import machine
from tests.ptx.launches import SCAN, Compiler, Emulator, emulated

TARGETS = torch.tensor([1, 2, 3])


@pytest.fixture(params=[80, 90], ids="sm_{}".format)
def emulator(compiler: Compiler, request: pytest.FixtureRequest) -> Emulator:
    return Emulator(compiler, request.param)


def test_each_kernel(emulator: Emulator) -> None:
    with emulated(emulator):
        parts.assert_slots_match((2, 5, 6), 2, "value", True)
        parts.assert_rows_match(96)
        parts.assert_turns_match()
    assert set(emulator.played) == {"begin_kernel", "slots_kernel", "logits_kernel"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products(emulator: Emulator, dtype: torch.dtype) -> None:
    """With what is around them; and a row has its bits in any company."""
    with emulated(emulator):
        products.assert_products(19, 43, 100, dtype)
        products.assert_products(3, 9, 4 * product_triton.PART + 5, dtype)
        products.assert_company_changes_nothing(dtype)
    assert set(emulator.played) == {"product_kernel"}


def test_products_of_many_rows(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    products.make_many_soon(monkeypatch)
    with emulated(emulator):
        products.assert_many_rows(torch.bfloat16)
        # As wide as models are: nothing is masked, and other code comes of it.
        products.assert_norms_agree(256)
    assert set(emulator.played) == {"product_kernel", "normed_kernel"}


@pytest.mark.parametrize(("inner", "innovation"), [(1, "key"), (3, "value")])
def test_slots_are_the_scan_of_prompts(emulator: Emulator, inner: int, innovation: Innovation) -> None:
    """Bit for bit."""
    with emulated(emulator):
        parts.assert_slots_are_the_scan(inner, innovation)
    assert set(emulator.played) == {*SCAN, "slots_kernel"}


def products_in_sums(ptx: str) -> list[str]:
    """Sums one of whose terms is a product of its own, which an assembler may make one instruction of."""
    products = set(re.findall(r"\bmul(?:\.ftz)?\.f32\s+(%\w+)", ptx))
    sums = re.findall(r"\b(?:add|sub)(?:\.ftz)?\.f32\s[^;]*;", ptx)
    return [line for line in sums if products & set(re.findall(r"%\w+", line)[1:])]


def test_no_assembler_can_round_the_scan_and_the_step_apart(emulator: Emulator) -> None:
    """What the emulator plays is PTX, and of a product and a sum that PTX has apart machine code may round once."""
    texts: dict[str, str] = {}

    def kept(request: Any) -> Any:
        reply = emulator.compiler(request)
        texts[request.name] = reply.ptx
        return reply

    with emulated(replace(emulator, compiler=cast(Compiler, kept))):
        parts.assert_slots_are_the_scan(1, "key")
    assert {name: products_in_sums(text) for name, text in texts.items()} == {
        name: [] for name in (*SCAN, "slots_kernel")
    }
    assert products_in_sums("mul.f32 %r1, %r2, %r3;\nadd.f32 %r4, %r5, %r1;") == ["add.f32 %r4, %r5, %r1;"]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_step(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """All kernels of one step one after the other: the numbers of the eager step."""
    model = steps.model_of(n_layers=2, output_gate=True)
    decoder, noise = Decoder(model, dtype), torch.randn(steps.STREAMS, 2, 12)
    tokens, pools = steps.tokens_of(1)[:, 0], (steps.pool_of(model), steps.pool_of(model))
    given = tokens, steps.FAR, noise
    expected, _ = decoder.step_between(*given, pools[0], steps.ROWS, TARGETS)
    monkeypatch.setattr(decoding, "is_on_gpu", lambda _: True)
    with emulated(emulator):
        found, is_finite = decoder.step_between(*given, pools[1], steps.ROWS, TARGETS)
    # A number between two of bfloat16 may be rounded to the other one: half a unit of a factor, in a few of them.
    limit = 64 * steps.EPS if dtype == torch.float32 else torch.finfo(dtype).eps
    for part, required in zip((*found, *pools[1]), (*expected, *pools[0]), strict=True):
        assert float((part - required).abs().max()) <= limit * max(1.0, float(required.abs().max()))
    assert is_finite.tolist() == [1.0] * steps.STREAMS
    assert emulator.played == {
        "begin_kernel": 1, "slots_kernel": 2, "product_kernel": 8, "logits_kernel": 1
    }  # fmt: skip


@pytest.mark.parametrize("functions", ["up", "down", "either"])
def test_functions_of_a_step_may_be_an_ulp_off(emulator: Emulator, functions: machine.Functions) -> None:
    with emulated(replace(emulator, play=machine.Play(functions=functions))):
        for shape in parts.SHAPES:
            parts.assert_slots_match(shape, 3, "key", True)
        parts.assert_rows_match(96)
        products.assert_products(19, 43, 100, torch.bfloat16)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_order_of_warps_and_ctas_changes_a_bit_of_a_step(emulator: Emulator, seed: int) -> None:
    layer, x = parts.layer_of(2, 16, 32), torch.randn(3, 300)

    def played(play: machine.Play) -> list[torch.Tensor]:
        with emulated(replace(emulator, play=play)):
            found, after, _ = parts.fused(layer, 1, "key", True)
            forms = products.every_form(*products.of(19, 43, 100, torch.bfloat16))
            return [*found.values(), after.means, *parts.rows_by_kernels(x), *forms.values()]

    for given, other in zip(played(machine.Play()), played(machine.Play(seed=seed)), strict=True):
        assert torch.equal(given, other)
