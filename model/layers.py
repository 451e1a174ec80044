"""Robust Filter Attention as a layer of the language model, with its memory slots."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfa.model.attention.api import AttentionImpl, runs_fused
from rfa.model.attention.reference import AttentionResult, attend, relative_attention, without_autocast
from rfa.model.dynamics import (
    Dynamics,
    DynamicsParameters,
    positive,
    raw_from_positive,
    rotate,
    wrapped_phase,
)
from rfa.model.mixing import ConfidenceGate, MixerOutput, TokenMixer, head_rates
from rfa.model.recurrence.slots import SlotImpl, slot_scan
from rfa.model.recurrence.slots_reference import (
    SlotInputs,
    SlotLag,
    SlotOptions,
    SlotParameters,
    SlotReadout,
    slot_step,
)
from rfa.model.recurrence.window import empty_ring, window_scan
from rfa.runtime.text.config import GATE_RANGE, PROCESS_GATE_SCALE, LanguageModelConfig, Mode

# Initial logit of the output gates: sigmoid(2) = 0.88.
OUTPUT_GATE_START = 2.0
# Range of the initial decay times of the slots, in tokens. They are spaced logarithmically.
SLOT_MEMORY = (2.0, 256.0)


class LayerState(NamedTuple):
    """State of B streams in one layer. It consists of the means `[B, H, S, 4D]` and the precisions `[B, H, S]` of the
    memory slots and, for a model with a window, the ring of the tokens in the window, `[B, W, H, 4D + 2S]`."""

    means: Tensor
    precisions: Tensor
    ring: Tensor | None = None


class RobustMixer(TokenMixer):
    """Robust Filter Attention over a sequence, and gated memory slots that run the same heads as a recurrence.

    Both modes use the same projections, frequencies and noises. Internal vectors are in the rotating frame.
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        heads = config.n_heads
        self.dynamics = DynamicsParameters(
            *head_rates(config),
            process_per_decay=config.initial_process,
            has_noise=config.noise == "learned",
            temperature=config.temperature,
            learns_decay=config.learned_decay,
        )
        if config.n_slots:
            self._add_slots(config)
        if config.output_gate:
            self.output_gate = nn.Linear(config.d_model, heads)
            nn.init.zeros_(self.output_gate.weight)
            nn.init.constant_(self.output_gate.bias, OUTPUT_GATE_START)
        if config.confidence != "none":
            self.confidence = ConfidenceGate(heads, config.confidence)
        if config.bias:
            width = heads * 2 * config.head_dim
            sizes = {"query": width, "key": width, "value": width, "output": config.d_model}
            self.drift = nn.ParameterDict({name: torch.zeros(size) for name, size in sizes.items()})
        self._training_attention = relative_attention
        self.passes = config.inner

    def compile_attention(self) -> None:
        """Compile the attention of the reference implementation for training."""
        self._training_attention = torch.compile(relative_attention)

    def _add_slots(self, config: LanguageModelConfig) -> None:
        heads, slots = config.n_heads, config.n_slots
        self.gates = nn.Linear(config.d_model, 2 * heads * slots)
        nn.init.normal_(self.gates.weight, std=0.6 / math.sqrt(config.d_model))
        nn.init.zeros_(self.gates.bias)
        shortest, longest = SLOT_MEMORY
        rates = torch.linspace(-math.log(longest), -math.log(shortest), heads * slots).reshape(heads, slots)
        self.slot_log_mu = nn.Parameter(rates)
        self.initial_means = nn.Parameter(0.1 * torch.randn(heads, slots, 4 * config.head_dim))
        self.initial_precision_raw = nn.Parameter(raw_from_positive(torch.full((heads, slots), 0.127)))
        self.delta_raw = nn.Parameter(raw_from_positive(torch.ones(heads)))
        if config.robust_slots:
            self.weight_scale_raw = nn.Parameter(raw_from_positive(torch.ones(heads)))

    def initial_state(self) -> tuple[Tensor, Tensor]:
        """Return the means `[H, S, 4D]` and the precisions `[H, S]` of the memory slots before the first token."""
        return self.initial_means.float(), positive(self.initial_precision_raw.float())

    def initial_ring(self) -> Tensor:
        """Return the ring buffer of the last W tokens before the first token, `[W, H, 4D + 2S]`."""
        at_rest = self.own_process(1) + PROCESS_GATE_SCALE
        return empty_ring(self.config.window, at_rest, 2 * self.config.head_dim)

    def own_process(self, tokens: int | Tensor) -> Tensor:
        """Return the process noise of the memory slots over a number of tokens, `[..., H, S]`."""
        steady = positive(self.dynamics.process_raw)[:, None]
        return -steady * torch.expm1(-2 * tokens * self.slot_log_mu.exp())

    def slot_lag(self) -> SlotLag:
        """Return the lag between the memory slots and the query, for models with a window."""
        tokens = self.config.window
        return SlotLag(torch.exp(-tokens * self.slot_log_mu.exp()), self.own_process(tokens))

    def projected(self, x: Tensor, mode: Mode) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values `[..., H, 2D]` of normalised inputs `[..., d]`."""
        shape = (*x.shape[:-1], self.config.n_heads, 2 * self.config.head_dim)
        q, k, v = self.query(x, mode), self.key(x), self.value(x)
        if self.config.bias:
            q, k, v = q + self.drift["query"], k + self.drift["key"], v + self.drift["value"]
        return q.reshape(shape), k.reshape(shape), v.reshape(shape)

    def rotated(self, x: Tensor, phase: Tensor, mode: Mode) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of `projected` in the rotating frame, in float32 or higher precision."""
        q, k, v = (part.to(phase.dtype) for part in self.projected(x, mode))
        if self.config.unit_norm:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return rotate(q, -phase), rotate(k, -phase), rotate(v, -phase) if self.config.rotate_values else v

    def phase(self, positions: Tensor) -> Tensor:
        """Return the phase at `positions` `[...]`, `[..., H, D]`. e^{i phase} rotates out of the rotating frame."""
        wide = torch.promote_types(self.dynamics.gamma2_raw.dtype, torch.float32)
        return wrapped_phase(self.dynamics.omega, positions, wide)

    def slot_parameters(self, dynamics: Dynamics, lags: Tensor | None = None) -> SlotParameters:
        """Return the parameters of the slots. `lags` `[B, N]` contains the positions since the previous token, which
        are 1 by default."""
        exponent = torch.zeros_like(dynamics.nu)  # kappa' = 0: weight 1
        if self.config.robust_slots:
            exponent = dynamics.kappa * positive(self.weight_scale_raw)
        passed = 1 if lags is None else lags[..., None, None]
        return SlotParameters(
            decay=torch.exp(-passed * self.slot_log_mu.exp()),
            nu=dynamics.nu,
            kappa=dynamics.kappa,
            weight_exponent=exponent,
            residual_noise=dynamics.gamma2 + dynamics.eta2,
            gamma2=dynamics.gamma2,
            tau=dynamics.tau,
            delta=positive(self.delta_raw),
        )

    def slot_inputs(
        self, x: Tensor, rotated: tuple[Tensor, Tensor, Tensor], dynamics: Dynamics, lags: Tensor | None = None
    ) -> SlotInputs:
        """Return the inputs of the slots for tokens `x` `[B, N, d]`. The precision of a measurement is (1/eta²)
        exp(a·x) (docs/MATH.md)."""
        config = self.config
        gates = self.gates(x).float().clamp(*GATE_RANGE)
        write, forget = gates.reshape(*x.shape[:-1], 2, config.n_heads, config.n_slots).unbind(-3)
        measurement = torch.exp(write) / dynamics.eta2[:, None]
        own = self.own_process(1 if lags is None else lags[..., None, None])
        return SlotInputs(*rotated, measurement, own + PROCESS_GATE_SCALE * torch.exp(forget))

    def project(self, latent: Tensor, x: Tensor, mode: Mode) -> Tensor:
        """Return the output projection W_o of the latent `[..., H, 2D]`. If the model has output gates, each head of
        the latent is first multiplied by its gate, which is computed from the block input `[..., d]`."""
        if self.config.output_gate:
            latent = latent * torch.sigmoid(self.output_gate(x))[..., None]
        out: Tensor = self.output(latent.flatten(-2), mode)
        return out + self.drift["output"] if self.config.bias else out

    def finish(
        self,
        latent: Tensor,
        x: Tensor,
        phase: Tensor,
        precision: Tensor,
        gamma2: Tensor,
        *,
        mode: Mode,
        noise: Tensor | None = None,
    ) -> MixerOutput:
        """Rotate the latent `[..., H, 2D]` out of the rotating frame, sample it, and apply the output projection.
        Return the output of the mixer.

        Args:
            noise: Scaled standard normal numbers, `[..., H, 2D]`. The sample has variance 1/p̂ + gamma² per complex
                dimension (RFA C.6), half of it in each real part. If None, the latent is not sampled.
        """
        if self.config.rotate_values:
            latent = rotate(latent, phase)
        if noise is not None:
            spread = torch.sqrt((1 / precision + gamma2) / 2)
            latent = latent + noise * spread[..., None]
        return MixerOutput(self.project(latent, x, mode), torch.log(precision), latent)

    def attention(self, x: Tensor, *, with_precision: bool, impl: AttentionImpl = "auto") -> MixerOutput:
        """Compute RFA over a sequence `[B, N, d]` at positions 0 … N-1, and return the output of the mixer. For `impl`,
        see `robust_filter_attention`."""
        dynamics = self.dynamics()
        phase = self.phase(torch.arange(x.shape[1], device=x.device))
        if self._runs_fused(x, impl):
            return self._fused_attention(x, phase, dynamics, with_precision)
        q, k, v = self.rotated(x, phase, "attention")
        config = self.config
        core = self._training_attention if self.training else relative_attention
        # Under autocast, the compiled gradient of the keys is NaN (torch 2.13, CPU).
        with without_autocast(x.device):
            result = core(
                q,
                k,
                v,
                dynamics,
                kernel=config.kernel,
                with_precision=with_precision or config.confidence != "none",
                prior=config.prior,
                horizon=config.horizon,
            )
        precision = result.precision if with_precision else torch.ones_like(result.log_norm)
        return self.finish(self._with_own_value(result, v), x, phase, precision, dynamics.gamma2, mode="attention")

    def _with_own_value(self, result: AttentionResult | SlotReadout, value: Tensor) -> Tensor:
        """Return the estimate. If the model has a confidence gate, the estimate is combined with the value of the
        token."""
        return self.confidence(result, value) if self.config.confidence != "none" else result.out

    def _runs_fused(self, x: Tensor, impl: AttentionImpl) -> bool:
        """Return whether the fused kernels are used for the projections of `x`. They support neither ablations nor
        extensions."""
        config = self.config
        is_ablation = config.prior != "lyapunov" or config.noise != "learned" or not config.rotate_values
        if is_ablation or config.unit_norm or config.confidence != "none" or config.horizon:
            if impl == "triton":
                raise ValueError(
                    "impl='triton' cannot be used here: the kernels support neither ablations nor extensions"
                )
            return False
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        return runs_fused(impl, x.device, dtype, 2 * config.head_dim)

    def _fused_attention(self, x: Tensor, phase: Tensor, dynamics: Dynamics, with_precision: bool) -> MixerOutput:
        """Compute `attention` with the fused kernels, in the dtype of the projections."""
        from rfa.model.attention.triton import fused_attention, fused_rotation

        q, k, v = fused_rotation(*self.projected(x, "attention"), phase=phase, is_inverse=True)
        result = fused_attention(q, k, v, dynamics, kernel=self.config.kernel, with_precision=with_precision)
        log_precision = torch.log(result.precision) if with_precision else torch.zeros_like(result.log_norm)
        (latent,) = fused_rotation(result.out, phase=phase)
        return MixerOutput(self.project(latent, x, "attention"), log_precision, latent)

    def recurrent(
        self,
        x: Tensor,
        positions: Tensor,
        state: LayerState,
        *,
        lags: Tensor | None = None,
        impl: SlotImpl = "auto",
    ) -> tuple[MixerOutput, LayerState]:
        """Update the memory slots with a sequence `[B, N, d]`. Return the outputs and the final state.

        Args:
            positions: Positions of the tokens, `[N]` or `[B, N]`.
            lags: Number of positions since the previous token, `[B, N]` >= 0. The default is 1.
        """
        if lags is not None and state.ring is not None:
            raise ValueError("lags must be None for a model with a window")
        dynamics = self.dynamics()
        phase = self.phase(positions)
        tokens = self.slot_inputs(x, self.rotated(x, phase, "recurrent"), dynamics, lags)
        readout, after = self._scan(tokens, state, dynamics, impl, lags)
        latent = self._with_own_value(readout, tokens.v)
        return self.finish(latent, x, phase, readout.precision, dynamics.gamma2, mode="recurrent"), after

    def step(
        self,
        x: Tensor,
        position: Tensor,
        state: LayerState,
        noise: Tensor | None,
        passes: Tensor | None = None,
    ) -> tuple[MixerOutput, LayerState]:
        """Process one token `[B, d]` of every stream at `position` `[B]`. Return the output and the state after the
        token. `passes` `[B]` contains the number of reweighting passes of each stream."""
        if passes is not None and state.ring is not None:
            raise ValueError("passes must be None for a model with a window")
        dynamics = self.dynamics()
        phase = self.phase(position)
        token = self.slot_inputs(x, self.rotated(x, phase, "recurrent"), dynamics)
        if state.ring is None:
            readout, *slots = slot_step(
                token,
                state.means,
                state.precisions,
                self.slot_parameters(dynamics),
                SlotOptions(self.passes, self.config.innovation, passes=passes),
            )
            after = LayerState(*slots)
        else:
            sequence = SlotInputs(*(part[:, None] for part in token))
            readout, after = self._scan(sequence, state, dynamics, "auto")
            readout = SlotReadout(*(part[:, 0] for part in readout))
        latent = self._with_own_value(readout, token.v)
        out = self.finish(latent, x, phase, readout.precision, dynamics.gamma2, mode="recurrent", noise=noise)
        return out, after

    def _scan(
        self, tokens: SlotInputs, state: LayerState, dynamics: Dynamics, impl: SlotImpl, lags: Tensor | None = None
    ) -> tuple[SlotReadout, LayerState]:
        """Update the memory slots and, if the model has a window, the ring. Return the readout of every token, and the
        state after the last token."""
        config, parameters = self.config, self.slot_parameters(dynamics, lags)
        if state.ring is None:
            readout, *slots = slot_scan(
                tokens,
                state.means,
                state.precisions,
                parameters,
                inner=self.passes,
                innovation=config.innovation,
                impl=impl,
            )
            return readout, LayerState(*slots)
        readout, *after = window_scan(
            tokens,
            state.means,
            state.precisions,
            state.ring,
            parameters,
            dynamics,
            lag=self.slot_lag(),
            inner=self.passes,
            innovation=config.innovation,
            impl=impl,
        )
        return readout, LayerState(*after)

    def extend(
        self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor, noise: Tensor | None
    ) -> tuple[MixerOutput, Tensor, Tensor]:
        """Compute RFA for n new tokens `[B, n, d]` with a cache.

        Args:
            position: Number of valid cache rows, which is the position of the first new token, `[B]`.
            keys, values: Cache, `[B, H, C, 2D]`. Values are in the rotating frame only if the model rotates them.
            noise: Scaled standard normal numbers for the last new token, `[B, H, 2D]`.

        Returns:
            The output of the new tokens, and their rows `[B, H, n, 2D]` of keys and values, which the caller stores.
        """
        dynamics = self.dynamics()
        n = x.shape[1]
        positions = position[:, None] + torch.arange(n, device=x.device)
        phase = self.phase(positions)
        q, new_k, new_v = self.rotated(x, phase, "attention")
        cached = torch.arange(keys.shape[2], device=x.device).expand(keys.shape[0], -1)
        result = attend(
            q,
            torch.cat([keys.transpose(1, 2), new_k], dim=1),
            torch.cat([values.transpose(1, 2), new_v], dim=1),
            dynamics,
            query_times=positions.to(torch.float64),
            key_times=torch.cat([cached, positions], dim=1).to(torch.float64),
            key_valid=torch.cat([cached < position[:, None], torch.ones_like(positions, dtype=torch.bool)], dim=1),
            kernel=self.config.kernel,
            prior=self.config.prior,
            horizon=self.config.horizon,
        )
        padded = None if noise is None else torch.cat([torch.zeros_like(q[:, :-1]), noise[:, None]], dim=1)
        latent = self._with_own_value(result, new_v)
        mixed = self.finish(latent, x, phase, result.precision, dynamics.gamma2, mode="attention", noise=padded)
        return mixed, new_k.transpose(1, 2), new_v.transpose(1, 2)
