"""Many streams at once by the kernels that Triton compiles for a GPU, executed: both modes, ragged, in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.ptx.required  # noqa: F401
from rfa.model import ragged as ragged_module
from rfa.model.decoder import Decoder
from rfa.model.ragged import RaggedDecoder
from rfa.model.recurrence import slots
from tests.model import test_paged_attention as paged
from tests.model import test_ragged as streams
from tests.ptx.launches import SCAN, Compiler, Emulator, emulated

ATTENTION = {"_columns_kernel", "table_kernel", "_forward_kernel"}
AROUND = {"begin_kernel", "product_kernel", "arrange_kernel", "leave_frame_kernel", "logits_kernel"}


@pytest.fixture(params=[80, 90], ids="sm_{}".format)
def emulator(compiler: Compiler, request: pytest.FixtureRequest) -> Emulator:
    return Emulator(compiler, request.param)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ragged_module, slots):
        monkeypatch.setattr(module, "is_on_gpu", lambda _: True)


def test_pages(emulator: Emulator) -> None:
    """Bit for bit what each sequence is in one piece."""
    with emulated(emulator):
        paged.assert_pages_are_read_where_they_lie(torch.bfloat16, "student_t", with_precision=True)
    assert set(emulator.played) == ATTENTION


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_streams_together_and_alone(emulator: Emulator, mode: str) -> None:
    """Results of a stream do not depend on the others, and differ from eager results by the rounding to 16 bits."""
    decoder = Decoder(streams.small_model(**streams.SIZE, own_readout=True, output_gate=True), torch.bfloat16)
    run: Any = streams.read if mode == "recurrent" else extended
    with emulated(emulator):
        fused = RaggedDecoder(decoder)
        outputs, state = run(fused)
        alone, _ = run(fused, [1])
    for ours, theirs in zip(alone, outputs, strict=True):
        assert all(torch.equal(part[0], expected[1]) for part, expected in zip(ours, theirs, strict=True))
    assert set(emulator.played) == AROUND | (ATTENTION if mode == "attention" else {*SCAN})
    assert all(bool(part.isfinite().all()) for part in state)


def extended(fused: RaggedDecoder, chosen: Any = (0, 1, 2)) -> Any:
    pools = streams.Pools.of(fused)
    return streams.extended(fused, pools, chosen), ()
