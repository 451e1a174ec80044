"""Token mixers of the language model. This module contains base classes, output types and the registry."""

from __future__ import annotations

import math
from abc import abstractmethod
from importlib import import_module
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfa.model.attention.reference import AttentionResult
from rfa.model.dynamics import banded_decay, frequencies
from rfa.model.recurrence.slots_reference import SlotReadout
from rfa.runtime.text.config import Confidence, LanguageModelConfig, Mixer, Mode

# Module and class of each mixer. Modules are imported when they are used, because some of them, which contain other
# systems of the papers, are not in the installed package.
HOMES: dict[Mixer, tuple[str, str]] = {
    "rfa": ("rfa.model.layers", "RobustMixer"),
    "softmax": ("rfa.model.softmax_mixer", "SoftmaxMixer"),
    "afa": ("rfa.benchmarks.papers.adaptive_mixer", "AdaptiveMixer"),
    "radial_tangential": ("rfa.benchmarks.papers.radial_mixer", "RadialTangentialMixer"),
    "tensor": ("rfa.benchmarks.papers.tensor_mixer", "TensorMixer"),
    "polar": ("rfa.benchmarks.papers.polar_mixer", "PolarMixer"),
    "unrolled": ("rfa.benchmarks.papers.unrolled_mixer", "UnrolledMixer"),
    "stacked": ("rfa.benchmarks.papers.stacked_mixer", "StackedMixer"),
}


class MixerOutput(NamedTuple):
    """Output of a mixer.

    Attributes:
        out: Output after the projection, `[..., d]`.
        log_precision: Logarithm of the evidence, `[..., H]`.
        latent: Estimates of the heads before the projection, `[..., H, 2D]`.
    """

    out: Tensor
    log_precision: Tensor
    latent: Tensor


class ModeLinear(nn.Linear):
    """Linear layer without bias. It has either one matrix for both modes or a separate matrix for each mode."""

    def __init__(self, d_in: int, d_out: int, scale: float = 1.0, *, is_own: bool) -> None:
        super().__init__(d_in, d_out, bias=False)
        _draw(self.weight, scale)
        if is_own:
            self.recurrent_weight = nn.Parameter(torch.empty_like(self.weight))
            _draw(self.recurrent_weight, scale)

    def of(self, mode: Mode) -> Tensor:
        """Return the matrix `[d_out, d_in]` for a mode."""
        return _weight_of(self, mode)

    def forward(self, x: Tensor, mode: Mode = "attention") -> Tensor:
        return F.linear(x, self.of(mode))


class ModeNorm(nn.RMSNorm):
    """RMS norm. Its gains are either the same for both modes or separate for each mode."""

    def __init__(self, width: int, *, is_own: bool) -> None:
        super().__init__(width, eps=1e-6)
        if is_own:
            self.recurrent_weight = nn.Parameter(torch.ones(width))

    def of(self, mode: Mode) -> Tensor:
        """Return the gains `[d]` for a mode."""
        return _weight_of(self, mode)

    def forward(self, x: Tensor, mode: Mode = "attention") -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.of(mode), self.eps)


def _weight_of(layer: ModeLinear | ModeNorm, mode: Mode) -> Tensor:
    return layer.recurrent_weight if mode == "recurrent" and hasattr(layer, "recurrent_weight") else layer.weight


def head_rates(config: LanguageModelConfig, zero_fraction: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the frequencies `[H, D]` and initial decays `[H]` of a configuration. If `zero_fraction` is set, it
    replaces the `zero_decay_fraction` of the configuration."""
    sizes = config.n_heads, config.head_dim
    without_decay = config.zero_decay_fraction if zero_fraction is None else zero_fraction
    return frequencies(config.frequencies, *sizes), banded_decay(*sizes, config.damping, without_decay)


def projection(d_in: int, d_out: int, scale: float = 1.0) -> nn.Linear:
    """Create a linear layer without bias, with the initialisation of mixers."""
    linear = nn.Linear(d_in, d_out, bias=False)
    _draw(linear.weight, scale)
    return linear


def _draw(weight: Tensor, scale: float) -> None:
    """Initialise a complex projection, stored as 2D real rows, with independent normal numbers. This is equivalent to
    Rayleigh magnitudes and uniform phases (RFA D.2)."""
    d_out, d_in = weight.shape
    nn.init.normal_(weight, std=scale / math.sqrt(d_in + d_out / 2))


# Initial scale and offset of the gate. "balanced" gives p / (p + 1), which is the fraction of the estimate if the
# precision of the prior is 1. "open" is the initialisation of RFA C.4, whose derivative is ten times smaller.
GATE_STARTS = {"open": (0.1, -4.0), "balanced": (1.0, 0.0), "linear": (0.1, 0.0)}


class ConfidenceGate(nn.Module):
    """Combines an estimate v̄ with the value v of the token: g v̄ + (1 - g) v, where g depends on the evidence p.

    In general, g = sigmoid(a log p - b) (RFA C.4). With kind "linear", g = sigmoid(a p - b), and the result is (1 -
    delta) g v̄ + delta v (AFA B.2).
    """

    def __init__(self, heads: int, kind: Confidence) -> None:
        super().__init__()
        self.kind = kind
        scale, offset = GATE_STARTS[kind]
        self.scale = nn.Parameter(torch.full((heads,), scale))
        self.offset = nn.Parameter(torch.full((heads,), offset))
        if kind == "linear":
            self.delta_raw = nn.Parameter(torch.full((heads,), -2.0))

    def gate(self, precision: Tensor) -> Tensor:
        """Return g in (0, 1) for evidence `[..., H]`."""
        evidence = precision if self.kind == "linear" else torch.log(precision)
        return torch.sigmoid(self.scale * evidence - self.offset)

    def forward(self, result: AttentionResult | SlotReadout, value: Tensor) -> Tensor:
        gate = self.gate(result.precision)[..., None]
        if self.kind == "linear":
            share = torch.sigmoid(self.delta_raw)[:, None]
            return (1 - share) * gate * result.out + share * value
        return gate * result.out + (1 - gate) * value


class TokenMixer(nn.Module):
    """Base class of mixers, with projections from d to 2D real dimensions per head and back to d.

    Args:
        config: Configuration of the model.
        output_scale: Scale of the initial output projection. The default is 1 / √(2 · n_layers).
    """

    # Whether the input of the mixer is the normalised residual stream rather than the residual stream.
    takes_norm = True
    # Whether the output is added to the residual stream. Otherwise, it is only the input of the feed-forward layer.
    is_residual = True

    def __init__(self, config: LanguageModelConfig, output_scale: float | None = None) -> None:
        super().__init__()
        self.config = config
        if output_scale is None:
            output_scale = 1 / math.sqrt(2 * config.n_layers)
        width, is_own = config.n_heads * 2 * config.head_dim, config.own_readout
        self.query = ModeLinear(config.d_model, width, is_own=is_own)
        self.key = projection(config.d_model, width)
        self.value = projection(config.d_model, width)
        self.output = ModeLinear(width, config.d_model, output_scale, is_own=is_own)

    @abstractmethod
    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """Mix a sequence `[B, N, d]` at positions 0 … N-1, and return the output of the mixer. Without
        `with_precision`, the values of log_precision are undefined."""

    def extend(
        self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor, noise: Tensor | None
    ) -> tuple[MixerOutput, Tensor, Tensor]:
        """Mix n new tokens with the cached keys and values of earlier tokens.

        Args:
            x: Inputs, `[B, n, d]`.
            position: Number of valid cache rows, which is the position of the first new token, `[B]`.
            keys, values: Cache, `[B, H, C, 2D]`.
            noise: Scaled standard normal numbers for the sample of the last token's latent, `[B, H, 2D]`.

        Returns:
            The output of the new tokens, and their rows `[B, H, n, 2D]` of keys and values, which the caller stores.

        Raises:
            ValueError: If the mixer does not support a cache.
        """
        raise ValueError(f"a {self.config.mixer} model attends to complete sequences and does not support a cache")

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values `[..., H, 2D]` of inputs `[..., d]`, in float32 or higher precision."""
        shape = (*x.shape[:-1], self.config.n_heads, 2 * self.config.head_dim)
        q, k, v = (weight(x).reshape(shape) for weight in (self.query, self.key, self.value))
        wide = torch.promote_types(v.dtype, torch.float32)
        return q.to(wide), k.to(wide), v.to(wide)


class Pairs(NamedTuple):
    """Positions of queries and keys.

    Attributes:
        queries: Positions of the queries, `[1 or B, n]`.
        keys: Positions of the keys, `[1 or B, M]`. The last n keys are those of the tokens of the queries.
        key_valid: Mask `[B, M]`, False for empty cache rows. If None, all keys are valid.
    """

    queries: Tensor
    keys: Tensor
    key_valid: Tensor | None = None

    @property
    def is_visible(self) -> Tensor:
        """Mask of the valid keys up to the token of each query, `[1 or B, n, M]`."""
        index = torch.arange(self.keys.shape[1], device=self.keys.device)
        own = index[self.keys.shape[1] - self.queries.shape[1] :]
        is_causal = (index <= own[:, None])[None]
        return is_causal if self.key_valid is None else is_causal & self.key_valid[:, None]

    def lag(self, dtype: torch.dtype) -> Tensor:
        """Return the time from each key to each query, `[1 or B, n, M]`. It is 0 for later keys."""
        return (self.queries[:, :, None] - self.keys[:, None, :]).clamp_min(0).to(dtype)


class PairMixer(TokenMixer):
    """Base class of mixers whose tokens attend to the keys and values of a complete sequence or of a cache."""

    @abstractmethod
    def rows(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values `[B, n, H, 2D]` of tokens `[B, n, d]` at `positions` `[1 or B, n]`."""

    @abstractmethod
    def read(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, *, with_precision: bool) -> tuple[Tensor, Tensor]:
        """Return the latents of the queries, `[B, n, H, 2D]`, and their log precision, `[B, n, H]`.

        Args:
            q: Queries, `[B, n, H, 2D]`.
            k, v: Keys and values, `[B, M, H, 2D]`.
            pairs: Positions of the queries and keys.
            with_precision: Whether to compute the log precision.
        """

    def anchor_noise(self) -> Tensor:
        """Return gamma² of the heads, `[H]`, which is added to the variance of a sample of the latent (RFA C.5)."""
        return torch.zeros(self.config.n_heads, device=self.key.weight.device)

    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        pairs = Pairs(positions, positions)
        latent, log_precision = self.read(*self.rows(x, positions), pairs, with_precision=with_precision)
        return MixerOutput(self.output(latent.flatten(-2)), log_precision, latent)

    def extend(
        self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor, noise: Tensor | None
    ) -> tuple[MixerOutput, Tensor, Tensor]:
        positions = position[:, None] + torch.arange(x.shape[1], device=x.device)
        cached = torch.arange(keys.shape[2], device=x.device).expand(keys.shape[0], -1)
        q, new_k, new_v = self.rows(x, positions)
        pairs = Pairs(
            positions,
            torch.cat([cached, positions], dim=1),
            torch.cat([cached < position[:, None], torch.ones_like(positions, dtype=torch.bool)], dim=1),
        )
        k, v = (torch.cat([old.transpose(1, 2), new], dim=1) for old, new in ((keys, new_k), (values, new_v)))
        latent, log_precision = self.read(q, k, v, pairs, with_precision=True)
        if noise is not None:
            spread = torch.sqrt((torch.exp(-log_precision[:, -1]) + self.anchor_noise()) / 2)
            last = latent[:, -1:] + (noise * spread[..., None])[:, None]
            latent = torch.cat([latent[:, :-1], last], dim=1)
        mixed = MixerOutput(self.output(latent.flatten(-2)), log_precision, latent)
        return mixed, new_k.transpose(1, 2), new_v.transpose(1, 2)


def token_mixer(config: LanguageModelConfig) -> TokenMixer:
    """Create a new mixer for a configuration.

    Raises:
        ValueError: If the installed package does not contain the mixer.
    """
    home, name = HOMES[config.mixer]
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not home.startswith(error.name):
            raise
        raise ValueError(
            f"the mixer {config.mixer!r} is not part of the installed package, because its code is in {home}; "
            "use a checkout of the repository"
        ) from None
    made: TokenMixer = getattr(module, name)(config)
    return made
