"""The decoder gives the numbers of the language model, in place, and in bfloat16 what the rounding allows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from rfa.model import decoder as decoding
from rfa.model.decoder import Decoder, SlotPool
from rfa.model.decoder_constants import decoder_constants
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from tests.kernels import interpreted

SMALL = {"vocab_size": 61, "d_model": 32, "n_layers": 3, "n_heads": 2, "head_dim": 6, "n_slots": 5}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"inner": 2, "learned_decay": True, "own_readout": True, "output_gate": True},
    {"kernel": "gaussian", "frequencies": "full", "robust_slots": False},
    {"innovation": "value", "inner": 3},
)
# What runs without slots: the ablations, alone and together.
ATTENTION: tuple[dict[str, Any], ...] = (
    {"n_slots": 0},
    {"n_slots": 0, "prior": "constant", "frequencies": "none", "output_gate": True},
    {"n_slots": 0, "prior": "additive", "rotate_values": False},
    {"n_slots": 0, "kernel": "gaussian", "noise": "anchor", "damping": 0.0, "unit_norm": True},
    {"n_slots": 0, "rotate_values": False, "unit_norm": True, "learned_decay": True},
)
slow = partial(pytest.param, marks=pytest.mark.slow)
STREAMS = 3
ROWS = torch.tensor([4, 0, 6])  # of a pool of 7
FAR = torch.tensor([0, 17, 1_000_000])
EPS = torch.finfo(torch.float32).eps


def model_of(**given: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**{**SMALL, **given})).eval()


def pool_of(model: LanguageModel) -> SlotPool:
    state = model.init_state(7)
    return SlotPool(state.means.transpose(0, 1).clone(), state.precisions.transpose(0, 1).clone())


def tokens_of(count: int) -> torch.Tensor:
    return torch.randint(61, (STREAMS, count), generator=torch.Generator().manual_seed(1))


def assert_close(found: torch.Tensor, expected: torch.Tensor, steps: int) -> None:
    """Both round every operation; a step is at most a few dozen of them deep, and errors of steps add up."""
    error = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    assert error <= 64 * EPS * steps**0.5, error


@torch.no_grad()
@pytest.mark.parametrize("given", VARIANTS)
def test_steps_are_those_of_the_model(given: dict[str, Any]) -> None:
    model = model_of(**given)
    decoder, pool = Decoder(model, torch.float32), pool_of(model)
    untouched = [part[:, [1, 2, 3, 5]].clone() for part in pool]
    state = model.init_state(STREAMS)._replace(position=FAR)
    noise = torch.randn(STREAMS, 2, 12) * torch.tensor([0.0, 0.3, 1.0])[:, None, None]
    tokens = tokens_of(20)
    for i in range(tokens.shape[1]):
        expected, state = model.step(tokens[:, i], state, noise)
        found = decoder.step(tokens[:, i], FAR + i, noise, pool, ROWS)
        for part, target in zip(found, expected, strict=True):
            assert_close(part, target, i + 1)
    for part, target in zip(pool, state[:2], strict=True):
        assert_close(part[:, ROWS].transpose(0, 1), target, tokens.shape[1])
    assert all(torch.equal(part[:, [1, 2, 3, 5]], before) for part, before in zip(pool, untouched, strict=True))


OTHERS = torch.tensor([1, 3, 2])


@interpreted
@torch.no_grad()
@pytest.mark.parametrize("given", [VARIANTS[1], *map(slow, (VARIANTS[0], *VARIANTS[2:]))])
def test_kernels_may_take_a_step(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    """From row to row and back, as a text does."""
    pytest.importorskip("triton")
    model, tokens = model_of(**{"n_layers": 2, **given}), tokens_of(2)
    pools = pool_of(model), pool_of(model)
    decoder, noise = Decoder(model, torch.float32), torch.randn(STREAMS, 2, 12)
    for i in range(tokens.shape[1]):
        rows = (ROWS, OTHERS) if i % 2 == 0 else (OTHERS, ROWS)
        expected, _ = decoder.step_between(tokens[:, i], FAR + i, noise, pools[0], *rows)
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "is_on_gpu", lambda _: True)
            found, is_finite = decoder.step_between(tokens[:, i], FAR + i, noise, pools[1], *rows)
        for part, target in zip((*found, *pools[1]), (*expected, *pools[0]), strict=True):
            assert_close(part, target, i + 1)
        assert is_finite.tolist() == [1.0] * STREAMS


@interpreted
@torch.no_grad()
@pytest.mark.parametrize("given", [slow({}), {"n_layers": 2, "output_gate": True, "inner": 3, "own_readout": True}])
def test_a_step_by_kernels_is_five_launches_a_layer(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    """Four products and the slots; before and behind the layers the embedding, and the logits with what is told of a
    row."""
    pytest.importorskip("triton")
    from tests.nodes import Nodes

    monkeypatch.undo()  # what fills unwritten memory is no launch of the step
    model = model_of(**given)
    decoder, pool = Decoder(model, torch.float32), pool_of(model)
    numbers = tokens_of(1)[:, 0], FAR, torch.zeros(STREAMS, 2, 12)
    monkeypatch.setattr(decoding, "is_on_gpu", lambda _: True)
    with Nodes() as nodes:
        decoder.step_between(*numbers, pool, ROWS, OTHERS)
    assert not nodes.operators
    assert len(nodes.launches) == 5 * model.config.n_layers + 2


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy, about NaN
@pytest.mark.parametrize(
    ("part", "by_kernels"),
    [("means", False), ("precisions", False), pytest.param("means", True, marks=(interpreted, pytest.mark.slow))],
)
def test_a_broken_stream_is_flagged(monkeypatch: pytest.MonkeyPatch, part: str, by_kernels: bool) -> None:
    model = model_of(n_layers=2)
    decoder, pool = Decoder(model, torch.float32), pool_of(model)
    getattr(pool, part)[1, ROWS[2]] = torch.nan
    monkeypatch.setattr(decoding, "is_on_gpu", lambda _: by_kernels)
    noise = torch.zeros(STREAMS, 2, 12)
    _, is_finite = decoder.step_between(tokens_of(1)[:, 0], FAR, noise, pool, ROWS, OTHERS)
    assert is_finite.tolist() == [1.0, 1.0, 0.0]


@torch.no_grad()
@pytest.mark.parametrize("given", VARIANTS)
def test_a_prompt_is_read_as_the_model_reads_it(given: dict[str, Any]) -> None:
    model = model_of(**given)
    decoder, tokens = Decoder(model, torch.float32), tokens_of(20)[:1]
    state = model.init_state(1)._replace(position=torch.tensor([7]))
    expected, after = model.prefill(tokens, state)
    found, means, precisions = decoder.prefill(tokens[0], 7, state.means[0], state.precisions[0])
    for part, target in zip((*found, means[None], precisions[None]), (*expected, *after[:2]), strict=True):
        assert_close(part, target, 20)


@torch.no_grad()
@pytest.mark.parametrize("given", [*VARIANTS, *ATTENTION])
def test_attention_over_a_cache_is_that_of_the_model(given: dict[str, Any]) -> None:
    model = model_of(**given)
    decoder, tokens = Decoder(model, torch.float32), tokens_of(20)[:1]
    noise = 0.5 * torch.randn(1, 2, 12)
    empty = model.init_cache(1, 16)
    _, keys, values = model.extend(tokens[:, :16], empty)
    cache = empty._replace(keys=keys, values=values, position=torch.tensor([16]))
    expected = model.extend(tokens[:, 16:], cache, noise)
    _, own_keys, own_values = decoder.extend(tokens[0, :16], 0, keys[0, :, :, :0], keys[0, :, :, :0], 0 * noise)
    found = decoder.extend(tokens[0, 16:], 16, own_keys, own_values, noise)
    pairs = zip((*found[0], found[1][None], found[2][None]), (*expected[0], *expected[1:]), strict=True)
    for part, target in pairs:
        assert_close(part, target, 20)


@torch.no_grad()
def test_bfloat16_costs_no_more_than_its_rounding() -> None:
    model, tokens = model_of(), tokens_of(20)
    exact, rounded = Decoder(model, torch.float32), Decoder(model, torch.bfloat16)
    pools = pool_of(model), pool_of(model)
    noise = torch.zeros(STREAMS, 2, 12)
    # Half a unit of the last place for each factor of the four products of a layer and of the head, all of one sign.
    limit = 2 * (4 * SMALL["n_layers"] + 1) * torch.finfo(torch.bfloat16).eps / 2
    for i in range(tokens.shape[1]):
        a, b = (d.step(tokens[:, i], FAR + i, noise, p, ROWS) for d, p in zip((exact, rounded), pools, strict=True))
        for part, target in zip(b, a, strict=True):
            error = float((part - target).norm() / target.norm())
            assert 0 < error <= limit


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"window": 4}, "a decoder requires window 0, got 4"),
        ({"mixer": "softmax", "n_slots": 0}, "requires mixer 'rfa', got 'softmax'"),
    ],
)
def test_what_no_decoder_runs_is_refused(given: dict[str, Any], reason: str) -> None:
    model = model_of(**given)
    with pytest.raises(ValueError, match=reason):
        Decoder(model, torch.float32)
    with pytest.raises(ValueError, match=reason):
        decoder_constants(model)
