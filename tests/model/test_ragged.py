"""Many streams at once: by the kernels the numbers of one by one, a stream's bits its own, in few launches.

They run on a GPU where there is one, else in Triton's interpreter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from rfa.model import ragged as ragged_module
from rfa.model.attention.pages import PAGE_KEYS
from rfa.model.decoder import Decoder
from rfa.model.language import LanguageModel, StepOutput
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import Ragged
from rfa.model.recurrence import slots
from tests.kernels import IS_INTERPRETED, interpreted
from tests.model.test_decoder import assert_close
from tests.model.test_decoder import model_of as model_on_cpu
from tests.nodes import Nodes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH = 16
SIZE: dict[str, Any] = {"head_dim": WIDTH // 2, "n_layers": 2}
RECURRENT: tuple[dict[str, Any], ...] = ({}, {"own_readout": True, "output_gate": True, "learned_decay": True})
ATTENTION: tuple[dict[str, Any], ...] = (
    {"own_readout": True, "output_gate": True},
    {"n_slots": 0, "rotate_values": False, "unit_norm": True},
    {"n_slots": 0, "kernel": "gaussian", "noise": "anchor", "damping": 0.0},
)
# Operators of our own, whose launches are counted; what the tests put into unwritten memory; and what looks at lengths,
# which it does on a CPU alone.
NO_LAUNCH = ("rfa.", "aten.fill_", "aten.ge", "aten.le", "aten.bitwise_and", "aten.all", "aten._local_scalar_dense")
# Tokens of each stream: what was read before, then what comes next; within a page, over its end, of one token.
BEFORE, NEXT = (PAGE_KEYS - 1, 5, 1), (2, 1, 4)
PAGES = ([5, 0], [2, 7], [1, 4])
POOL = 8
slow = partial(pytest.param, marks=pytest.mark.slow)


class Pools(NamedTuple):
    keys: Tensor
    values: Tensor

    @classmethod
    def of(cls, ragged: RaggedDecoder, layers: int = 2) -> Pools:
        """Nothing that was not written may be read: all NaN."""
        shape = layers, POOL * PAGE_KEYS, 2, WIDTH
        return cls(*(torch.full(shape, torch.nan, dtype=ragged.cache_dtype, device=DEVICE) for _ in range(2)))


def small_model(**given: Any) -> LanguageModel:
    return model_on_cpu(**given).to(DEVICE)


def decoder_of(given: dict[str, Any], dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(small_model(**SIZE, **given), dtype)


def made_on(monkeypatch: pytest.MonkeyPatch, *, is_gpu: bool) -> Any:
    def made(decoder: Decoder) -> RaggedDecoder:
        for module in (ragged_module, slots):
            monkeypatch.setattr(module, "is_on_gpu", lambda _: is_gpu)
        return RaggedDecoder(decoder)

    return made


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A decoder as it is on a GPU."""
    return made_on(monkeypatch, is_gpu=True)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A decoder as it is elsewhere, until the next one is made."""
    return made_on(monkeypatch, is_gpu=False)


def tokens_of(counts: Sequence[int], seed: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(61, (count,), generator=draw).tolist() for count in counts]


def noise_of(rows: int) -> Tensor:
    return torch.randn(rows, 2, WIDTH, generator=torch.Generator().manual_seed(9)).to(DEVICE)


@torch.no_grad()
def extended(ragged: RaggedDecoder, pools: Pools, streams: Sequence[int] = (0, 1, 2)) -> list[StepOutput]:
    """What comes before and what comes next, of these streams."""
    outputs = []
    for counts, begins, seed in ((BEFORE, (0, 0, 0), 1), (NEXT, BEFORE, 2)):
        tokens = tokens_of(counts, seed)
        piece = Ragged.of([tokens[i] for i in streams], [begins[i] for i in streams], DEVICE)
        outputs.append(ragged.extend(piece, [PAGES[i] for i in streams], *pools, noise_of(3)[list(streams)]))
    return outputs


@pytest.mark.parametrize("given", [ATTENTION[0], *map(slow, ATTENTION[1:])], ids=str)
def test_attention_by_the_kernels_is_that_of_one_by_one(given: dict[str, Any], by_kernels: Any, by_torch: Any) -> None:
    one_by_one = by_torch(decoder_of(given))
    assert one_by_one.attention_refusal == "it requires a GPU"
    pools = Pools.of(one_by_one)
    expected = extended(one_by_one, pools)
    fused = by_kernels(decoder_of(given))
    assert fused.attention_refusal is None
    found_pools = Pools.of(fused)
    found = extended(fused, found_pools)
    for ours, theirs in zip(found, expected, strict=True):
        for part, target in zip(ours, theirs, strict=True):
            assert_close(part, target, max(NEXT))
    for part, target in zip(found_pools, pools, strict=True):
        assert torch.equal(part.isnan(), target.isnan())
        assert_close(part.nan_to_num(), target.nan_to_num(), max(NEXT))


def test_a_stream_has_the_same_bits_in_any_company(by_kernels: Any) -> None:
    fused = by_kernels(decoder_of(ATTENTION[0]))
    together = Pools.of(fused)
    outputs = extended(fused, together)
    for stream, own in enumerate(PAGES):
        alone = Pools.of(fused)
        for ours, theirs in zip(extended(fused, alone, [stream]), outputs, strict=True):
            assert all(torch.equal(part[0], target[stream]) for part, target in zip(ours, theirs, strict=True))
        rows = (
            torch.tensor(own, device=DEVICE)[:, None] * PAGE_KEYS + torch.arange(PAGE_KEYS, device=DEVICE)
        ).flatten()
        for part, target in zip(alone, together, strict=True):
            assert torch.equal(part[:, rows].nan_to_num(), target[:, rows].nan_to_num())


@pytest.mark.slow
@torch.no_grad()
def test_a_prompt_in_pieces_has_the_bits_of_one_at_once(by_kernels: Any) -> None:
    """A GPU's compiler may round otherwise in the loop over whole blocks than in that over blocks that end early."""
    fused = by_kernels(decoder_of(ATTENTION[0]))
    (tokens,), noise = tokens_of([PAGE_KEYS + 4], 3), noise_of(1)
    whole, parts = Pools.of(fused), Pools.of(fused)
    pages = PAGES[:1]
    expected = fused.extend(Ragged.of([tokens], [0], DEVICE), pages, *whole, noise)
    for first, end in ((0, 1), (1, 65), (65, 67), (67, 68)):
        found = fused.extend(Ragged.of([tokens[first:end]], [first], DEVICE), pages, *parts, noise)
    for part, target in zip((*found, *parts), (*expected, *whole), strict=True):
        assert torch.equal(part.isnan(), target.isnan())
        if IS_INTERPRETED:
            assert torch.equal(part.nan_to_num(), target.nan_to_num())
        else:
            assert_close(part.nan_to_num(), target.nan_to_num(), len(tokens))


# The slots.


@torch.no_grad()
def read(ragged: RaggedDecoder, streams: Sequence[int] = (0, 1, 2)) -> tuple[list[StepOutput], list[Tensor]]:
    state = small_model(**SIZE).init_state(3)
    slots = [part.transpose(0, 1)[:, list(streams)].clone() for part in (state.means, state.precisions)]
    outputs = []
    for counts, begins, seed in (((9, 5, 1), (0, 7, 1_000_000), 1), (NEXT, (9, 12, 1_000_001), 2)):
        tokens = tokens_of(counts, seed)
        piece = Ragged.of([tokens[i] for i in streams], [begins[i] for i in streams], DEVICE)
        output, *slots = ragged.prefill(piece, *slots)
        outputs.append(output)
    return outputs, slots


@pytest.mark.parametrize("given", [slow(RECURRENT[0]), RECURRENT[1]], ids=str)
def test_prompts_by_the_kernels_are_those_of_one_by_one(given: dict[str, Any], by_kernels: Any, by_torch: Any) -> None:
    one_by_one = by_torch(decoder_of(given))
    assert one_by_one.scan_refusal == "it requires a GPU"
    expected, state = read(one_by_one)
    fused = by_kernels(decoder_of(given))
    assert fused.scan_refusal is None
    found, reached = read(fused)
    pairs = [*zip(reached, state, strict=True)]
    pairs += [pair for ours, theirs in zip(found, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    for part, target in pairs:
        assert_close(part, target, 9 + max(NEXT))


def test_slots_have_the_same_bits_in_any_company(by_kernels: Any) -> None:
    fused = by_kernels(decoder_of(RECURRENT[1]))
    outputs, together = read(fused)
    for stream in (0, 2):
        found, alone = read(fused, [stream])
        for ours, theirs in zip(found, outputs, strict=True):
            assert all(torch.equal(part[0], target[stream]) for part, target in zip(ours, theirs, strict=True))
        assert all(torch.equal(part[:, 0], target[:, stream]) for part, target in zip(alone, together, strict=True))


# What is launched, and what the kernels do not run.


@interpreted
@torch.no_grad()
@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_a_layer_of_a_piece_is_few_launches(mode: str, by_kernels: Any) -> None:
    counts = []
    for layers in (2, 3):
        model = small_model(**{**SIZE, "n_layers": layers}, own_readout=True, output_gate=True)
        fused = by_kernels(Decoder(model, torch.float32))
        state, pools = model.init_state(3), Pools.of(fused, layers)
        slots = [part.transpose(0, 1).clone() for part in (state.means, state.precisions)]
        piece = Ragged.of(tokens_of((3, 1, 2), 1), (0, 0, 0), DEVICE)
        with Nodes() as seen:
            if mode == "attention":
                fused.extend(piece, PAGES, *pools, noise_of(3))
            else:
                fused.prefill(piece, *slots)
        counts.append(Counter([*seen.operators, *seen.launches]))
    a_layer = {name: count for name, count in (counts[1] - counts[0]).items() if not name.startswith(NO_LAUNCH)}
    assert sum(a_layer.values()) <= 9, a_layer
    assert not [name for name in seen.operators if "softmax" in name or "bmm" in name]
    assert ("_forward_kernel" in seen.launches) == (mode == "attention")
    assert ("scan_kernel" in seen.launches) == (mode == "recurrent")


@pytest.mark.parametrize(
    ("given", "dtype", "reason"),
    [
        ({"n_slots": 0, "prior": "additive"}, torch.float32, "it requires prior 'lyapunov', got 'additive'"),
        ({"head_dim": 6}, torch.float32, "it supports heads with 16 to 256 real dimensions, got 12"),
    ],
)
def test_what_the_kernels_do_not_run_is_said(
    given: dict[str, Any], dtype: torch.dtype, reason: str, by_kernels: Any
) -> None:
    assert by_kernels(Decoder(small_model(**{**SIZE, **given}), dtype)).attention_refusal == reason
