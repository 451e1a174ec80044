"""The compiled decoder against the model in float64, and its functions against the standard library's."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from rfa.model.decoder_constants import decoder_constants
from rfa.model.dynamics import wrapped_phase
from rfa.model.language import LanguageModel, SlotState
from rfa.model.layers import RobustMixer
from rfa.runtime.text import decoder_numba, math_numba
from rfa.runtime.text.compiled_decoder import CompiledDecoder, Slots
from rfa.runtime.text.config import LanguageModelConfig

EPS = float(np.finfo(np.float32).eps)
TOKENS = 40
# Widths that are not a multiple of a vector, one head and one slot of weight one, and the widths of the shipped model.
CONFIGS: list[dict[str, Any]] = [
    {
        "d_model": 24,
        "n_layers": 2,
        "n_heads": 2,
        "head_dim": 6,
        "n_slots": 3,
        "mlp_ratio": 2,
        "own_readout": True,
        "output_gate": True,
        "inner": 3,
    },
    {"d_model": 10, "n_layers": 1, "n_heads": 1, "head_dim": 2, "n_slots": 1, "mlp_ratio": 1, "robust_slots": False},
    {"d_model": 64, "n_layers": 3, "n_heads": 4, "head_dim": 32, "n_slots": 16, "mlp_ratio": 4},
]


def model_of(config: dict[str, Any]) -> LanguageModel:
    """Random weights, with learned-looking noises."""
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(vocab_size=50, **config)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def decoder_of(model: LanguageModel) -> CompiledDecoder:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return CompiledDecoder(weights, {name: tensor.numpy() for name, tensor in decoder_constants(model).items()})


def slots_of(model: LanguageModel, rows: int) -> Slots:
    """Rows that all hold the state before the first token."""
    state = model.init_state(rows)
    return Slots(state.means.numpy().copy(), state.precisions.numpy().copy())


def passes_of(model: LanguageModel, rows: int) -> np.ndarray:
    """Different numbers of passes, as far as the model supports them."""
    return np.arange(rows) % model.config.inner + 1


def tokens_of(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 50, (rows, TOKENS))


class Exact:
    """`LanguageModel.step` in float64 throughout."""

    def __init__(self, model: LanguageModel, patch: pytest.MonkeyPatch) -> None:
        self.model, self._patch = model, patch

    def run(self, tokens: np.ndarray, noise: np.ndarray, dtype: torch.dtype) -> list[np.ndarray]:
        """logits, log_precision and latent of all tokens, and the state, of streams `[B, N]` from position 10^6 b."""
        with self._patch.context() as patch:
            if dtype == torch.float64:
                patch.setattr(torch.Tensor, "float", torch.Tensor.double)
                patch.setattr(
                    RobustMixer, "phase", lambda mixer, at: wrapped_phase(mixer.dynamics.omega, at, torch.float64)
                )
            model = self.model.to(dtype)
            start = model.init_state(len(tokens))
            state = SlotState(*start[:2], 1_000_000 * torch.arange(len(tokens)))
            outputs = []
            for index in range(tokens.shape[1]):
                token, sample = torch.from_numpy(tokens[:, index]), torch.from_numpy(noise).to(dtype)
                output, state = model.step(token, state, sample, torch.from_numpy(passes_of(model, len(tokens))))
                outputs.append(output)
        self.model.float()
        stacked = [torch.stack(parts).double().numpy() for parts in zip(*outputs, strict=True)]
        return [*stacked, *(part.double().numpy() for part in state[:2])]


def errors(found: list[np.ndarray], exact: list[np.ndarray]) -> list[float]:
    for a, b in zip(found, exact, strict=True):
        assert a.shape == b.shape
    return [float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["d_model"]))
def test_steps_and_prompts_are_as_exact_as_eager_float32(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = model_of(config), 3
    decoder, tokens = decoder_of(model), tokens_of(rows)
    latent = (rows, config["n_heads"], 2 * config["head_dim"])
    noise = np.random.default_rng(2).standard_normal(latent).astype(np.float32)
    exact = Exact(model, monkeypatch)
    expected = exact.run(tokens, noise, torch.float64)
    allowed = errors(exact.run(tokens, noise, torch.float32), expected)

    slots, positions, passes = slots_of(model, 2 * rows), 1_000_000 * np.arange(rows), passes_of(model, rows)
    places = np.arange(rows), np.arange(rows) + rows
    outputs = []
    for index in range(TOKENS):
        source, target = places if index % 2 == 0 else places[::-1]
        output, finite = decoder.step(tokens[:, index], positions + index, noise, slots, source, target, passes=passes)
        assert finite.all()
        outputs.append(output)
    stepped = [np.stack(parts).astype(np.float64) for parts in zip(*outputs, strict=True)]
    found = errors([*stepped, *(part[target] for part in slots)], expected)
    assert all(ours <= 2 * theirs + 4 * EPS for ours, theirs in zip(found, allowed, strict=True)), (found, allowed)

    for row in range(rows):
        slots = slots_of(model, 2)
        last, is_finite = decoder.prefill(
            tokens[row], int(positions[row]), slots, 0, 1, passes=int(passes[row]), outputs=1
        )
        assert is_finite and last is not None
        # The latent sample of the step is the only difference; its logits are those of the mean.
        silent = exact.run(tokens, np.zeros_like(noise), torch.float64)
        requested = [part[-1, row : row + 1] for part in silent[:3]] + [part[row : row + 1] for part in silent[3:]]
        found = errors([*(part.astype(np.float64) for part in last), *(part[1:] for part in slots)], requested)
        assert all(ours <= 2 * theirs + 4 * EPS for ours, theirs in zip(found, allowed, strict=True)), (found, allowed)


# Functions.


def values_of(function: Any, x: np.ndarray) -> np.ndarray:
    return np.array([function(np.float32(value)) for value in x], dtype=np.float64)


def test_exp_is_exact_to_rounding() -> None:
    x = np.linspace(-87, 88, 20_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(values_of(math_numba.exp, x) / exact - 1).max() <= 1.5 * EPS
    low, high = values_of(math_numba.exp, np.array([-np.inf, np.inf]))
    assert 0 < low < 2e-38 and 1e38 < high < np.inf
    assert math.isnan(math_numba.exp(np.float32(np.nan)))


def test_log_is_exact_to_rounding() -> None:
    x = np.exp(np.linspace(-80, 80, 20_001)).astype(np.float32)
    x = np.concatenate([x, np.float32(1) + np.linspace(-0.4, 0.6, 20_001).astype(np.float32)])
    exact = np.log(x.astype(np.float64))
    assert np.all(np.abs(values_of(math_numba.log, x) - exact) <= EPS * np.maximum(np.abs(exact), 0.5))
    assert math_numba.log(np.float32(1)) == 0
    assert math_numba.log(np.float32(np.inf)) == np.inf and math.isnan(math_numba.log(np.float32(np.nan)))


def test_gelu_is_that_of_torch_and_lets_nothing_pass_for_a_number() -> None:
    x = np.linspace(-8, 8, 4_003).astype(np.float32).reshape(1, -1)
    found = x.copy()
    decoder_numba.gelu(found)
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    assert np.all(np.abs(found - exact) <= 2 * EPS * np.maximum(1, np.abs(x)))
    broken = np.array([[np.nan, np.inf, 1.0]], np.float32)
    decoder_numba.gelu(broken)
    assert np.isnan(broken[0, 0]) and np.isinf(broken[0, 1]) and np.isfinite(broken[0, 2])


# What a server relies on.


def test_nothing_is_compiled_while_it_serves() -> None:
    decoder_numba.compile_kernels()
    with pytest.raises((TypeError, RuntimeError)):
        decoder_numba.gelu(np.zeros((2, 2)))
    assert [len(kernel.signatures) for kernel, _ in decoder_numba._SIGNATURES] == [1] * len(decoder_numba._SIGNATURES)


def test_kernels_are_closed_that_another_model_compiled_first() -> None:
    """The network of series is made of the same kernels, and is compiled first here."""
    script = (
        "from rfa.runtime.text import decoder_numba\n"
        "import numpy as np\n"
        "decoder_numba.gelu(np.zeros((2, 2), np.float32)); decoder_numba.compile_kernels()\n"
        "decoder_numba.compile_kernels()\n"
        "assert [len(kernel.signatures) for kernel, _ in decoder_numba._SIGNATURES] == [1] * 6\n"
        "try: decoder_numba.gelu(np.zeros((2, 2)))\n"
        "except TypeError: print('refused')"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "refused\n"


def test_constants_are_the_constrained_parameters() -> None:
    """Against the formulas, from the raw parameters, in float64."""
    model = model_of(CONFIGS[0])
    found = {name: tensor.double().numpy() for name, tensor in decoder_constants(model).items()}

    def positive(raw: np.ndarray) -> np.ndarray:
        return np.log1p(np.exp(raw)) + 1e-6

    for layer in range(2):
        raw = {
            name.removeprefix(f"blocks.{layer}.mixer."): tensor.double().numpy()
            for name, tensor in model.state_dict().items()
        }
        dynamics = {key: positive(raw[f"dynamics.{key}_raw"]) for key in ("eta2", "gamma2", "nu", "tau", "process")}
        nu, rate = 2 + 6 * dynamics["nu"], np.exp(raw["slot_log_mu"])
        kappa = (nu + 6) / 6
        expected = {
            "nu": nu, "kappa": kappa, "tau": dynamics["tau"], "eta2": dynamics["eta2"], "gamma2": dynamics["gamma2"],
            "residual_noise": dynamics["eta2"] + dynamics["gamma2"], "delta": positive(raw["delta_raw"]),
            "weight_exponent": kappa * positive(raw["weight_scale_raw"]), "decay": np.exp(-rate),
            "own_process": dynamics["process"][:, None] * (1 - np.exp(-2 * rate)),
        }  # fmt: skip
        for name, values in expected.items():
            np.testing.assert_allclose(found[name][layer], values, rtol=8 * EPS, err_msg=name)
