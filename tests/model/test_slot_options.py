"""The options of the language model: what each changes, and that streams and caches give the numbers of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rfa.model import decoder
from rfa.model.dynamics import DynamicsParameters, banded_decay, banded_frequencies, phi
from rfa.model.language import Cache, LanguageModel
from rfa.model.recurrence import slots
from rfa.runtime.text.config import LanguageModelConfig, Mode
from rfa.training.language_config import load_variants

SMALL = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4, "head_dim": 6, "n_slots": 5}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"inner": 3},
    {"innovation": "value", "inner": 2},
    {"robust_slots": False},
    {"learned_decay": True},
    {"output_gate": True},
    {"own_readout": True},
    {"window": 1},
    {"window": 4, "robust_slots": False},
    {"window": 16, "output_gate": True, "learned_decay": True},
]
ABLATIONS: list[dict[str, Any]] = [
    {"n_slots": 0, "prior": "constant"},
    {"n_slots": 0, "prior": "additive"},
    {"n_slots": 0, "rotate_values": False},
    {"n_slots": 0, "kernel": "gaussian", "noise": "anchor", "damping": 0.0, "unit_norm": True},
]
TOLERANCE = 1e-6  # a few dozen roundings of float32


def model_of(**given: Any) -> LanguageModel:
    """Random weights; gates and decays are moved away from their start, where they would hide."""
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(**{**SMALL, **given}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def tokens_of(length: int = 30) -> torch.Tensor:
    return torch.randint(61, (2, length), generator=torch.Generator().manual_seed(1))


def scaled_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@torch.no_grad()
@pytest.mark.parametrize("given", OPTIONS, ids=str)
def test_stream_equals_batch(given: dict[str, Any]) -> None:
    """Token by token, and in pieces shorter and longer than the window."""
    model, tokens = model_of(**given), tokens_of()
    model.mode = "recurrent"
    expected = model(tokens)
    state = pieces = model.init_state(2)
    for i in range(tokens.shape[1]):
        output, state = model.step(tokens[:, i], state)
        assert scaled_error(output.logits, expected.logits[:, i]) <= TOLERANCE
        assert scaled_error(output.log_precision, expected.log_precision[:, i]) <= TOLERANCE
    for start, stop in ((0, 2), (2, 3), (3, 11), (11, 30)):
        output, pieces = model.prefill(tokens[:, start:stop], pieces)
        assert scaled_error(output.logits, expected.logits[:, stop - 1]) <= TOLERANCE
    assert state.position.tolist() == [30, 30]
    for part, other in zip(state, pieces, strict=True):
        assert scaled_error(part, other) <= TOLERANCE or torch.equal(part, other)


def stored(cache: Cache, new_keys: torch.Tensor, new_values: torch.Tensor) -> Cache:
    """The cache with the rows that `extend` returned behind the valid ones."""
    n = new_keys.shape[3]
    rows = cache.position[:, None] + torch.arange(n)
    index = rows[:, None, None, :, None].expand(new_keys.shape)
    return Cache(cache.keys.scatter(3, index, new_keys), cache.values.scatter(3, index, new_values), cache.position + n)


@torch.no_grad()
@pytest.mark.parametrize("given", [{}, *OPTIONS[4:7], *ABLATIONS], ids=str)
def test_cached_attention_equals_the_full_pass(given: dict[str, Any]) -> None:
    model, tokens = model_of(**given), tokens_of()
    model.mode = "attention"
    expected = model(tokens)
    cache, start = model.init_cache(2, 34), 0
    for stop in (1, 2, 25, 30):
        output, keys, values = model.extend(tokens[:, start:stop], cache)
        assert scaled_error(output.logits, expected.logits[:, stop - 1]) <= 2 * TOLERANCE
        assert scaled_error(output.log_precision, expected.log_precision[:, stop - 1]) <= 2 * TOLERANCE
        cache, start = stored(cache, keys, values), stop


@torch.no_grad()
@pytest.mark.parametrize("given", OPTIONS[1:4], ids=str)
def test_options_of_the_slots_change_their_mode_alone(given: dict[str, Any]) -> None:
    plain, changed, tokens = model_of(), model_of(**given), tokens_of()
    changed.load_state_dict(plain.state_dict(), strict=False)  # robust_slots=False lacks the scale of the weight
    for mode, is_same in (("attention", True), ("recurrent", False)):
        plain.mode = changed.mode = mode
        assert torch.equal(plain(tokens).logits, changed(tokens).logits) == is_same


@pytest.mark.parametrize("given", OPTIONS, ids=str)
def test_every_parameter_learns(given: dict[str, Any]) -> None:
    model, tokens = model_of(**given), tokens_of()
    for mode in ("attention", "recurrent"):
        model.mode = mode
        model(tokens, with_precision=False).logits.logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
        assert float(parameter.grad.abs().max()) > 0, name


@torch.no_grad()
@pytest.mark.parametrize("module", ["blocks.0.mixer.query", "blocks.1.mixer.output", "blocks.0.mixer_norm", "norm"])
def test_readouts_of_their_own_are_of_one_mode(module: str) -> None:
    model, tokens = model_of(own_readout=True), tokens_of()
    for name, moved in (("weight", "attention"), ("recurrent_weight", "recurrent")):
        before = {mode: logits_of(model, tokens, mode) for mode in model.config.modes}
        model.get_parameter(f"{module}.{name}").mul_(2)
        is_changed = {mode: not torch.equal(logits_of(model, tokens, mode), before[mode]) for mode in before}
        assert is_changed == {mode: mode == moved for mode in before}


def logits_of(model: LanguageModel, tokens: torch.Tensor, mode: Mode) -> torch.Tensor:
    model.mode = mode
    return model(tokens).logits


def test_learned_decay_starts_at_the_fixed_one_and_keeps_heads_without() -> None:
    omega, mu = banded_frequencies(4, 6), banded_decay(4, 6, 0.05)
    fixed, learned = DynamicsParameters(omega, mu), DynamicsParameters(omega, mu, learns_decay=True)
    assert "mu_raw" not in fixed.state_dict()
    for name in ("mu", "sigma2", "eta2"):
        assert torch.allclose(getattr(learned(), name), getattr(fixed(), name), rtol=1e-3, atol=0)
    assert learned.mu_raw is not None
    with torch.no_grad():
        learned.mu_raw += 3
    moved = learned()
    assert moved.mu[0].item() == 0 and bool((moved.mu[1:] > mu[1:]).all())
    # The steady-state variance sigma² phi(∞) is learned beside it, and stays at its start.
    steady = moved.sigma2 * phi(moved.mu, torch.tensor(1e6))
    assert torch.allclose(steady[1:], torch.full((3,), 0.1))
    (moved.mu.sum() + moved.sigma2.sum()).backward()
    assert learned.mu_raw.grad is not None
    assert float(learned.mu_raw.grad[0]) == 0 and bool((learned.mu_raw.grad[1:] > 0).all())


def test_the_process_starts_at_half_the_decay_in_m3() -> None:
    """A standard deviation of mu / 2 in the steady state; the slowest head has no decay, and its usual start."""
    given, usual = (
        LanguageModel(LanguageModelConfig(**{**SMALL, **load_variants()[name]["model"]})) for name in ("M3", "M2-b5e+0")
    )
    for m3, m2 in zip(given.blocks, usual.blocks, strict=True):
        d, other = m3.mixer.dynamics(), m2.mixer.dynamics()
        assert d.mu[0] == 0 and bool((d.mu[1:] > 0).all()) and torch.equal(d.mu, other.mu)
        steady = d.sigma2 * phi(d.mu, torch.tensor(1e6))
        assert steady[1:].sqrt().tolist() == pytest.approx((d.mu[1:] / 2).tolist(), rel=1e-4)
        assert d.sigma2[0] == other.sigma2[0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"innovation": "query"}, "innovation must be one of"),
        ({"robust_slots": 1}, "robust_slots must be true or false, got 1"),
        ({"robust_slots": False, "inner": 2}, "must be 1 and 'key' without robust_slots, got 2 and 'key'"),
        ({"robust_slots": False, "innovation": "value"}, "got 1 and 'value'"),
        ({"mixer": "softmax", "output_gate": True}, "output_gate requires the mixer 'rfa', got 'softmax'"),
        ({"mixer": "softmax", "own_readout": True}, "own_readout requires the mixer 'rfa', got 'softmax'"),
        ({"own_readout": True, "n_slots": 0}, "own_readout requires mixer 'rfa' and n_slots > 0"),
        ({"mixer": "softmax", "learned_decay": True}, "learned_decay requires the mixer 'rfa', got 'softmax'"),
        ({"initial_process": 0.0}, "initial_process must be a finite number > 0, got 0.0"),
        ({"mixer": "softmax", "initial_process": 0.5}, "requires mixer 'rfa' and noise 'learned', got mixer 'softmax'"),
        ({"noise": "anchor", "initial_process": 0.5}, "requires mixer 'rfa' and noise 'learned', .* noise 'anchor'"),
    ],
)
def test_config_refuses_what_has_no_meaning(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LanguageModelConfig(**{**SMALL, **given})


@torch.no_grad()
@pytest.mark.parametrize(("inner", "innovation"), [(4, "key"), (4, "value")])
def test_a_gpu_without_its_kernel_says_so(monkeypatch: pytest.MonkeyPatch, inner: int, innovation: Any) -> None:
    """What no kernel runs goes through Python token by token: to the same numbers, and never in silence."""
    model = LanguageModel(LanguageModelConfig(11, 16, 2, 2, 4, n_slots=3, inner=inner, innovation=innovation))
    tokens, state = torch.randint(11, (1, 5)), model.init_state(1)
    expected, after = model.prefill(tokens, state, impl="reference")
    monkeypatch.setattr(slots, "is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(slots, "_numba_refusal", lambda tokens: "it requires tensors on the CPU")
    with pytest.warns(
        RuntimeWarning, match="the GPU kernel cannot process these memory slots: .*; they are processed one token"
    ):
        found, reached = model.prefill(tokens, state)
    assert torch.equal(found.logits, expected.logits) and torch.equal(reached.means, after.means)
    with pytest.raises(ValueError, match="impl='triton' cannot be used here"):
        model.prefill(tokens, state, impl="triton")


@torch.no_grad()
@pytest.mark.parametrize("given", [{"n_slots": 33}, {"head_dim": 66}, {"inner": 4}], ids=str)
def test_a_step_without_its_kernels_says_so(monkeypatch: pytest.MonkeyPatch, given: dict[str, int]) -> None:
    """And is what it is on a CPU."""
    sizes = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "n_heads": 2, "head_dim": 4, "n_slots": 3}
    model = LanguageModel(LanguageModelConfig(**{**sizes, **given}))
    decoding, state, token = (
        decoder.Decoder(model, torch.float32),
        model.init_state(1),
        torch.ones(1, dtype=torch.int64),
    )
    noise, pools = torch.zeros(1, 2, 2 * model.config.head_dim), []
    for _ in range(2):
        pools.append(decoder.SlotPool(*(part.transpose(0, 1).clone() for part in state[:2])))
    expected = decoding.step(token, state.position, noise, pools[0], state.position)
    monkeypatch.setattr(decoder, "is_on_gpu", lambda tensor: True)
    with pytest.warns(
        RuntimeWarning,
        match="the GPU kernel cannot process these memory slots: it .*; they are processed one token at a time",
    ):
        found = decoding.step(token, state.position, noise, pools[1], state.position)
    for part, target in zip((*found, *pools[1]), (*expected, *pools[0]), strict=True):
        assert torch.equal(part, target)


@pytest.mark.parametrize("given", [{"prior": "constant"}, {"rotate_values": False}, {"unit_norm": True}], ids=str)
def test_an_ablation_is_refused_by_the_fused_attention_that_was_named(given: dict[str, Any]) -> None:
    mixer = LanguageModel(LanguageModelConfig(11, 16, 2, 2, 16, n_slots=0, **given)).blocks[0].mixer
    with pytest.raises(ValueError, match="the kernels support neither ablations"):
        mixer.attention(torch.randn(1, 4, 16), with_precision=True, impl="triton")
