"""A Robust Filter Attention language model for transformers, in one file. It requires only torch and transformers.

`rfa export --format transformers` writes this file as modeling_rfa.py, for `trust_remote_code`. `config.mode` selects
the mode. The recurrent mode processes one token after another in constant memory. The attention mode processes whole
sequences. The equations in the rotating frame (docs/MATH.md) are

    slots      m⁻ = E m,  1/p⁻ = E²/p + q,  w = (1 + r² / (nu (1/p⁻ + R)))^(-kappa') in K passes,
               p = p⁻ + w pi,  m = m⁻ + (delta w pi / p)(z - m⁻),  z = (k, v);  read at variance 1/p + gamma²
    attention  softmax of tau (-log V - kappa log(1 + r² / (nu V))) over the tokens, times E v

The layout `[B, N, H, 2D]` has B rows, N tokens, H heads, and D real parts followed by D imaginary parts. A bundle
divides the logits by its calibrated temperature. This file returns the logits as trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

FLOOR = 1e-6
GATE_RANGE = (-12.0, 8.0)
PROCESS_GATE_SCALE = 0.1


class RfaConfig(PretrainedConfig):
    """Configuration of the model.

    Args:
        rfa: Fields of the class `LanguageModelConfig` of rfa-server.
        mode: "recurrent" or "attention".
    """

    model_type = "rfa"

    def __init__(self, rfa: dict[str, Any] | None = None, mode: str = "attention", **others: Any) -> None:
        self.rfa, self.mode = rfa or {}, mode
        self.vocab_size = self.rfa.get("vocab_size", 0)
        self.hidden_size = self.rfa.get("d_model", 0)
        self.num_hidden_layers = self.rfa.get("n_layers", 0)
        self.num_attention_heads = self.rfa.get("n_heads", 0)
        super().__init__(**others)


class RfaState:
    """State of B streams after some tokens.

    Attributes:
        layers: `(means, precisions)` or `(keys, values)` of each layer.
        mask: 1 for tokens and 0 for padding among all inputs so far, `[B, M]`.
    """

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = []
        self.mask: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.mask is None else self.mask.shape[1]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.layers = [None if pair is None else (pair[0][beam_idx], pair[1][beam_idx]) for pair in self.layers]
        self.mask = None if self.mask is None else self.mask[beam_idx]


@dataclass
class RfaOutput(ModelOutput):
    """Output of the language model.

    Attributes:
        loss: Mean cross-entropy of the labels. None without labels.
        logits: Logits of the next tokens, `[B, N, V]`.
        state: State after the last token, from which a later call continues.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    state: RfaState | None = None


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype in which the filter computes. It is at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def positive(raw: Tensor) -> Tensor:
    """Return the positive parameter for an unconstrained one."""
    return F.softplus(raw.to(wide(raw))) + FLOOR


def banded(heads: int, dims: int) -> Tensor:
    """Return frequencies `[H, D]` in rad/token. One set is split over the heads, from slow to fast."""
    half = heads * dims // 2
    bands = (10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)).flip(0).reshape(heads, dims // 2)
    return torch.stack([bands, -bands], dim=-1).reshape(heads, dims)


def frequencies(kind: str, heads: int, dims: int) -> Tensor:
    """Return angular frequencies `[H, D]` in rad/token."""
    if kind == "none":
        return torch.zeros(heads, dims, dtype=torch.float64)
    if kind == "banded":
        return banded(heads, dims)
    bank = 10000.0 ** (-torch.arange(dims // 2, dtype=torch.float64) / (dims // 2))
    return torch.stack([bank, -bank], dim=-1).reshape(dims).repeat(heads, 1)


def rotate(x: Tensor, phase: Tensor) -> Tensor:
    """Return complex vectors `[..., H, 2D]` multiplied by e^{i phase}."""
    cos, sin = torch.cos(phase), torch.sin(phase)
    real, imaginary = x.chunk(2, dim=-1)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


class RfaLinear(nn.Linear):
    """A linear layer without bias. It has one matrix for both modes or one matrix per mode."""

    def __init__(self, d_in: int, d_out: int, is_own: bool) -> None:
        super().__init__(d_in, d_out, bias=False)
        self.recurrent_weight = nn.Parameter(torch.empty_like(self.weight)) if is_own else None

    def forward(self, x: Tensor, mode: str = "attention") -> Tensor:
        own = self.recurrent_weight
        return F.linear(x, own if own is not None and mode == "recurrent" else self.weight)


class RfaNorm(nn.RMSNorm):
    """An RMS norm. It has one vector of gains for both modes or one per mode."""

    def __init__(self, width: int, is_own: bool) -> None:
        super().__init__(width, eps=1e-6)
        self.recurrent_weight = nn.Parameter(torch.ones(width)) if is_own else None

    def forward(self, x: Tensor, mode: str = "attention") -> Tensor:
        own = self.recurrent_weight
        gains = own if own is not None and mode == "recurrent" else self.weight
        return F.rms_norm(x, self.normalized_shape, gains, self.eps)


class RfaDynamics(nn.Module):
    """Computes the decay, noises, nu and temperature of each head, `[H]` each."""

    process_raw: Tensor
    eta2_raw: Tensor
    gamma2_raw: Tensor
    nu_raw: Tensor
    tau_raw: Tensor
    mu_raw: Tensor

    def __init__(self, rfa: dict[str, Any]) -> None:
        super().__init__()
        self.rfa, heads = rfa, rfa["n_heads"]
        names = ["process_raw", "eta2_raw", "gamma2_raw", "nu_raw", "tau_raw"]
        for name in names + ["mu_raw"] * rfa["learned_decay"]:
            self.register_parameter(name, nn.Parameter(torch.zeros(heads)))

    def forward(self) -> dict[str, Tensor]:
        rfa, device = self.rfa, self.nu_raw.device
        mu = (rfa["damping"] * banded(rfa["n_heads"], rfa["head_dim"]).amax(-1)).to(device, wide(self.nu_raw))
        mu[: int(rfa["n_heads"] * rfa["zero_decay_fraction"])] = 0.0
        decays = mu > 0
        if rfa["learned_decay"]:
            mu = torch.where(decays, positive(self.mu_raw), 0.0)
        steady, nu = positive(self.process_raw), 2 + rfa["head_dim"] * positive(self.nu_raw)
        return {
            "mu": mu, "steady": steady, "sigma2": torch.where(decays, 2 * mu * steady, steady),
            "eta2": positive(self.eta2_raw), "gamma2": positive(self.gamma2_raw), "tau": positive(self.tau_raw),
            "nu": nu, "kappa": (nu + rfa["head_dim"]) / rfa["head_dim"],
        }  # fmt: skip


class MixerInputs(NamedTuple):
    """Normalised inputs `[B, n, d]` and rotated queries, keys and values `[B, n, H, 2D]` of n new tokens, and positions
    and mask `[B, M]` of all M tokens."""

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    positions: Tensor
    mask: Tensor


class RfaMixer(nn.Module):
    """Robust Filter Attention, computed either over a sequence or as a recurrence with memory slots."""

    def __init__(self, rfa: dict[str, Any]) -> None:
        super().__init__()
        self.rfa, heads, slots, own = rfa, rfa["n_heads"], rfa["n_slots"], rfa["own_readout"]
        d_model, width = rfa["d_model"], heads * 2 * rfa["head_dim"]
        self.query, self.output = RfaLinear(d_model, width, own), RfaLinear(width, d_model, own)
        self.key, self.value = nn.Linear(d_model, width, bias=False), nn.Linear(d_model, width, bias=False)
        self.dynamics = RfaDynamics(rfa)
        if slots:
            self.gates = nn.Linear(d_model, 2 * heads * slots)
            self.slot_log_mu = nn.Parameter(torch.zeros(heads, slots))
            self.initial_means = nn.Parameter(torch.zeros(heads, slots, 4 * rfa["head_dim"]))
            self.initial_precision_raw = nn.Parameter(torch.zeros(heads, slots))
            self.delta_raw = nn.Parameter(torch.zeros(heads))
            if rfa["robust_slots"]:
                self.weight_scale_raw = nn.Parameter(torch.zeros(heads))
        self.output_gate = nn.Linear(d_model, heads) if rfa["output_gate"] else None

    def forward(
        self, x: Tensor, mode: str, mask: Tensor, before: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Apply the mixer to the last n of M inputs. Return the outputs `[B, n, d]` and the state after the inputs.

        Args:
            x: Normalised inputs of the new tokens, `[B, n, d]`.
            mode: "recurrent" or "attention".
            mask: 1 for tokens and 0 for padding, `[B, M]`.
            before: State after the earlier inputs. None if there are none.
        """
        rfa, d = self.rfa, self.dynamics()
        positions = (mask.long().cumsum(1) - 1).clamp_min(0)
        omega = frequencies(rfa["frequencies"], rfa["n_heads"], rfa["head_dim"]).to(x.device)
        phase = positions[:, -x.shape[1] :, None, None].double() * omega
        phase = (phase - 2 * torch.pi * torch.round(phase / (2 * torch.pi))).to(wide(x))  # [B, n, H, D]
        shape = (*x.shape[:2], rfa["n_heads"], 2 * rfa["head_dim"])
        parts = self.query(x, mode), self.key(x), self.value(x)
        q, k, v = (rotate(part.reshape(shape).to(phase.dtype), -phase) for part in parts)
        mix = self._slots if mode == "recurrent" else self._attention
        latent, after = mix(MixerInputs(x, q, k, v, positions, mask), d, before)
        latent = rotate(latent, phase).to(x.dtype)
        if self.output_gate is not None:
            latent = latent * torch.sigmoid(self.output_gate(x))[..., None]
        return self.output(latent.flatten(-2), mode), after

    def _attention(
        self, inputs: MixerInputs, d: dict[str, Tensor], before: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x, q, *rows, positions, mask = inputs
        k, v = rows if before is None else (torch.cat(pair, 1) for pair in zip(before, rows, strict=True))
        count, total = q.shape[1], k.shape[1]
        lag = (positions[:, -count:, None] - positions[:, None]).clamp_min(0)[:, None].to(q.dtype)  # [B, 1, n, M]
        mu, sigma2, eta2, gamma2, tau, nu, kappa = (
            d[name][:, None, None] for name in ("mu", "sigma2", "eta2", "gamma2", "tau", "nu", "kappa")
        )
        transport = torch.exp(-mu * lag)
        exponent = 2 * mu * lag
        phi = lag * torch.where(exponent > 0, -torch.expm1(-exponent) / torch.where(exponent > 0, exponent, 1.0), 1.0)
        variance = sigma2 * phi + eta2 * transport * transport + gamma2
        heads = [part.transpose(1, 2) for part in (q, k, v)]
        dot, key2 = heads[0] @ heads[1].transpose(-1, -2), heads[1].square().sum(-1)[:, :, None]
        residual2 = heads[0].square().sum(-1)[..., None] + transport * (transport * key2 - 2 * dot)
        excess = 1 / (nu * variance) * residual2.clamp_min(0)
        fit = kappa * torch.log1p(excess) if self.rfa["kernel"] == "student_t" else excess
        index = torch.arange(total, device=x.device)
        own = index[total - count :, None]
        # Padding attends to itself, because a softmax over an empty set is NaN.
        is_visible = ((index <= own) & mask[:, None].bool() | (index == own))[:, None]
        logits = (tau * (-torch.log(variance) - fit)).masked_fill(~is_visible, float("-inf"))
        return ((torch.softmax(logits, dim=-1) * transport) @ heads[2]).transpose(1, 2), (k, v)

    def _slots(
        self, inputs: MixerInputs, d: dict[str, Tensor], before: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rfa, (x, q, k, v, _, mask) = self.rfa, inputs
        heads, slots, width = rfa["n_heads"], rfa["n_slots"], 2 * rfa["head_dim"]
        gates = self.gates(x).to(q.dtype).clamp(*GATE_RANGE).reshape(*x.shape[:2], 2, heads, slots)
        rates, steady = self.slot_log_mu.to(q.dtype).exp(), d["steady"][:, None]
        measurement = torch.exp(gates[:, :, 0]) / d["eta2"][:, None]
        process = -steady * torch.expm1(-2 * rates) + PROCESS_GATE_SCALE * torch.exp(gates[:, :, 1])
        decay, delta, nu = torch.exp(-rates), positive(self.delta_raw)[:, None], d["nu"][:, None]
        kappa, tau, gamma2 = (d[name][:, None] for name in ("kappa", "tau", "gamma2"))
        noise = gamma2 + d["eta2"][:, None]
        exponent = -kappa * positive(self.weight_scale_raw)[:, None] if rfa["robust_slots"] else torch.zeros_like(nu)
        if before is None:
            before = self.initial_means.to(q.dtype)[None], positive(self.initial_precision_raw)[None]
        (means, precisions), outs = before, []
        is_token = mask[:, -x.shape[1] :].bool()
        for i in range(x.shape[1]):
            predicted, variance = decay[..., None] * means, decay.square() / precisions + process[:, i]
            away = torch.cat([k[:, i], v[:, i]], dim=-1)[:, :, None] - predicted
            driving = away[..., :width] if rfa["innovation"] == "key" else away[..., width:]
            residual2 = remaining2 = driving.square().sum(-1)
            for _ in range(rfa["inner"]):
                weighted = (1 + remaining2 / (nu * (variance + noise))) ** exponent * measurement[:, i]
                precision = 1 / variance + weighted
                gain = delta * weighted / precision
                remaining2 = (1 - gain).square() * residual2
            here = is_token[:, i, None, None]
            means = torch.where(here[..., None], predicted + gain[..., None] * away, means)
            precisions = torch.where(here, precision, precisions)
            spread = 1 / precisions + gamma2
            read2 = (q[:, i, :, None] - means[..., :width]).square().sum(-1)
            logits = tau * (-torch.log(spread) - kappa * torch.log1p(read2 / (nu * spread)))
            outs.append((torch.softmax(logits, dim=-1)[..., None] * means[..., width:]).sum(-2))
        return torch.stack(outs, 1), (means, precisions)


class RfaFeedForward(nn.Module):
    """Feed-forward layer, which consists of two linear layers with a GELU between them."""

    def __init__(self, rfa: dict[str, Any]) -> None:
        super().__init__()
        inner = rfa["mlp_ratio"] * rfa["d_model"]
        self.up = nn.Linear(rfa["d_model"], inner, bias=False)
        self.down = nn.Linear(inner, rfa["d_model"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class RfaBlock(nn.Module):
    """A residual block: a mixer and a feed-forward layer."""

    def __init__(self, rfa: dict[str, Any]) -> None:
        super().__init__()
        self.mixer_norm = RfaNorm(rfa["d_model"], rfa["own_readout"])
        self.mixer = RfaMixer(rfa)
        self.feed_forward_norm = RfaNorm(rfa["d_model"], rfa["own_readout"])
        self.feed_forward = RfaFeedForward(rfa)

    def forward(
        self, x: Tensor, mode: str, mask: Tensor, before: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, after = self.mixer(self.mixer_norm(x, mode), mode, mask, before)
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x, mode)), after


class RfaForCausalLM(PreTrainedModel, GenerationMixin):
    """The language model. `config.mode` can be changed, but a state is valid only in the mode in which it was
    created."""

    config_class = RfaConfig
    _is_stateful = True

    def __init__(self, config: RfaConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(RfaBlock(config.rfa) for _ in range(config.num_hidden_layers))
        self.norm = RfaNorm(config.hidden_size, config.rfa["own_readout"])
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing, because this class only loads trained weights. `rfa train lm` initialises new weights."""

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def _supports_default_dynamic_cache(self, *_: Any, **__: Any) -> bool:
        return False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: RfaState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> RfaOutput:
        """Return the logits of the next token after each token, `[B, N, V]`.

        Args:
            input_ids: New tokens, `[B, N]`.
            attention_mask: 1 for tokens and 0 for padding, on either side, `[B, M]`. By default, all inputs are tokens.
            state: State after the previous tokens. It is modified. By default, the state before the first token.
            labels: Tokens `[B, N]` to predict, or -100 for none. The loss is their mean cross-entropy.
            use_cache: Whether to return the state. It is returned unless this is False.
            logits_to_keep: Number of last tokens whose logits are returned. 0 returns all logits.
        """
        mode, state = self.config.mode, state or RfaState()
        new = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        state.mask = new if state.mask is None else torch.cat([state.mask, new], 1)
        x = self.embedding(input_ids) * math.sqrt(self.config.hidden_size)
        befores, state.layers = state.layers or [None] * len(self.blocks), []
        for block, before in zip(self.blocks, befores, strict=True):
            x, after = block(x, mode, state.mask, before)
            state.layers.append(after)
        logits = F.linear(self.norm(x[:, -logits_to_keep:], mode), self.embedding.weight)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return RfaOutput(loss=loss, logits=logits, state=None if use_cache is False else state)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, state: RfaState | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        kept = {name: kwargs.get(name) for name in ("attention_mask", "use_cache")}
        new = input_ids[:, 0 if state is None else state.length :]
        return {"input_ids": new, "state": state, "logits_to_keep": 1, **kept}

    def _update_model_kwargs_for_generation(
        self, outputs: RfaOutput, model_kwargs: dict[str, Any], *others: Any, **named: Any
    ) -> dict[str, Any]:
        kept = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *others, **named)
        return {**kept, "state": outputs.state}
