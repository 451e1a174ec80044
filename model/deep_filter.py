"""The deep filter, in which RFA blocks estimate the current noise of a stream from the innovations of a linear filter.

It has three causal parts:

1. The nominal filter is a linear SDE with learned stable eigenpairs, observation matrix and noises, run as the capped
   IRKF. Its standardised innovations, their squares and their lag-one products are the tokens.
2. RFA blocks process the tokens, with exact RFA in attention mode and with the IRKF of the same heads in recurrent
   mode. They output log factors for the process and measurement noise.
3. The structured head is the same SDE with scaled noises. It is linear-Gaussian, so the state covariance and forecasts
   have closed forms.

The factors after token i apply to the following tokens, so the density of the next observation is a prediction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rfa.model.deep_blocks import DeepFilterConfig, FilterBlock
from rfa.model.dynamics import positive, raw_from_positive
from rfa.model.recurrence.dense import DenseUpdate, Robustness, Sensor, dense_update, propagate
from rfa.model.recurrence.eigenpairs import Eigenpairs, transition
from rfa.model.state_filter import FilterOutput, Past, State, StateFilter, Token
from rfa.runtime.text.config import Mode

# Bound on the log noise factors. A factor of e^-8 nearly removes the process noise.
LOG_FACTOR_RANGE = 8.0
# Slope of the factors at the origin. It accelerates learning towards zero process noise, where the likelihood is flat.
LOG_FACTOR_GAIN = 4.0
# Bound on the standardised innovations z, which are replaced by z / sqrt(1 + (z / bound)²).
INNOVATION_SCALE = 4.0
NOISE_FLOOR = 1e-6


class DeepFilter(StateFilter):
    """Deep filter. Observations are standardised by the buffers `center` and `scale`, which are computed from training
    data."""

    def __init__(self, config: DeepFilterConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = config.inner
        self.observation_size = p = config.observation_size
        self.state_size = n = 2 * config.n_modes
        self.register_buffer("center", torch.zeros(p))
        self.register_buffer("scale", torch.ones(p))
        self.decay_raw = nn.Parameter(raw_from_positive(torch.full((config.n_modes,), 0.03)))
        self.omega = nn.Parameter(torch.linspace(0.05, 0.4, config.n_modes))
        self.matrix = nn.Parameter(torch.eye(p, n) + 0.1 * torch.randn(p, n))
        self.process_factor = nn.Parameter(0.2 * torch.eye(n))
        self.noise_factor = nn.Parameter(0.5 * torch.eye(p))
        self.prior_factor = nn.Parameter(torch.eye(n))
        self.nu_raw = nn.Parameter(raw_from_positive(torch.full((1,), 2.0)))
        self.contamination_raw = nn.Parameter(torch.full((1,), -3.0))
        self.outlier_scale_raw = nn.Parameter(raw_from_positive(torch.full((1,), 4.0)))
        features = 4 * p + 2
        self.embed = nn.Sequential(
            nn.Linear(features, config.d_model), nn.GELU(), nn.Linear(config.d_model, config.d_model)
        )
        self.blocks = nn.ModuleList(FilterBlock(config) for _ in range(config.n_layers))
        factors = nn.Linear(config.d_model, 2)
        nn.init.zeros_(factors.weight)
        nn.init.zeros_(factors.bias)
        self.readout = nn.Sequential(nn.LayerNorm(config.d_model), factors)
        self.initial_factors = nn.Parameter(torch.zeros(2))

    def filter_blocks(self) -> list[FilterBlock]:
        return [block for block in self.blocks if isinstance(block, FilterBlock)]

    # Parameters of the linear SDE, in units of `time_unit` and scaled observations.

    def _scaled_drift(self) -> Eigenpairs:
        mu, omega = positive(self.decay_raw), self.omega
        half = math.sqrt(0.5)
        n = self.config.n_modes
        eye = torch.eye(n, dtype=mu.dtype, device=mu.device) * half
        none = torch.zeros_like(eye)
        # The eigenvalues are -mu ± i omega. The coordinates are n real parts, then n imaginary parts.
        basis_re = torch.cat([torch.cat([eye, eye], 1), torch.cat([none, none], 1)])
        basis_im = torch.cat([torch.cat([none, none], 1), torch.cat([-eye, eye], 1)])
        dual_re, dual_im = basis_re.T, -basis_im.T
        noise = self.process_factor @ self.process_factor.T
        left_re, left_im = dual_re @ noise, dual_im @ noise
        return Eigenpairs(
            rate_re=torch.cat([-mu, -mu]),
            rate_im=torch.cat([omega, -omega]),
            basis_re=basis_re,
            basis_im=basis_im,
            dual_re=dual_re,
            dual_im=dual_im,
            noise_re=left_re @ dual_re.T + left_im @ dual_im.T,
            noise_im=left_im @ dual_re.T - left_re @ dual_im.T,
        )

    def drift(self) -> Eigenpairs:
        """Return the eigenpairs of the drift in the time unit of the data."""
        drift, unit = self._scaled_drift(), self.config.time_unit
        per_time = {name: getattr(drift, name) / unit for name in ("rate_re", "rate_im", "noise_re", "noise_im")}
        return drift._replace(**per_time)

    def sensor(self) -> Sensor:
        scale = self.get_buffer("scale")
        noise = self.noise_factor @ self.noise_factor.T
        noise = noise + NOISE_FLOOR * torch.eye(self.observation_size, dtype=noise.dtype, device=noise.device)
        return Sensor(scale[:, None] * self.matrix, self.get_buffer("center"), scale[:, None] * noise * scale)

    def robustness(self) -> Robustness:
        return Robustness(
            inverse_nu=1 / (2 + positive(self.nu_raw)),
            inner=self.inner,
            contamination=0.5 * torch.sigmoid(self.contamination_raw),
            outlier_scale=2 + positive(self.outlier_scale_raw),
        )

    def prior_covariance(self) -> Tensor:
        return self.prior_factor @ self.prior_factor.T + NOISE_FLOOR * torch.eye(
            self.state_size, dtype=self.prior_factor.dtype, device=self.prior_factor.device
        )

    def init_state(self, batch: int) -> State:
        config, prior = self.config, self.prior_covariance()
        mean = torch.zeros_like(prior[0]).expand(batch, -1)
        covariance = prior.expand(batch, -1, -1)
        heads = (batch, config.n_layers, config.n_heads)
        zeros = torch.zeros_like(prior[0, 0])
        return {
            "mean": mean,
            "covariance": covariance,
            "nominal_mean": mean,
            "nominal_covariance": covariance,
            "previous": zeros.expand(batch, self.observation_size),
            "log_factors": self.initial_factors.expand(batch, -1),
            "block_means": zeros.expand(*heads, 2 * config.head_dim),
            "block_precisions": zeros.expand(*heads),
        }

    def cache_rows(self) -> dict[str, tuple[int, ...]]:
        shape = (self.config.n_layers, self.config.n_heads, 2 * self.config.head_dim)
        return {"keys": shape, "values": shape}

    def noise_scales(self, state: State) -> tuple[Tensor, Tensor]:
        process, measurement = torch.exp(state["log_factors"]).unbind(-1)
        return process, measurement

    # The nominal filter and its tokens.

    def _update(
        self,
        token: Token,
        moves: tuple[Tensor, Tensor],
        state: tuple[Tensor, Tensor],
        rules: tuple[Sensor, Robustness],
        log_factors: Tensor | None = None,
    ) -> tuple[DenseUpdate, tuple[Tensor, Tensor]]:
        """Predict and update the state. Return the update and the prediction. `log_factors` are the logarithms of the
        noise factors after the previous token. If None, the factors are 1."""
        (f, q), factor = moves, token.noise_scale.square()
        if log_factors is not None:
            process, measurement = torch.exp(log_factors).unbind(-1)
            q, factor = q * process[..., None, None], measurement * factor
        prior = propagate(*state, f, q)
        return dense_update(*prior, token.value, token.present, rules[0].scaled(factor), rules[1]), prior

    def features(self, update: DenseUpdate, token: Token, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of an observation, `[B, 4P + 2]`, and its bounded innovation, from which the lag-one
        product of the next observation is computed."""
        deviation = torch.diagonal(update.innovation_covariance, dim1=-2, dim2=-1).sqrt()
        z = update.innovation / deviation
        z = z / torch.sqrt(1 + (z / INNOVATION_SCALE).square())
        span = torch.log1p(token.dt / self.config.time_unit)
        parts = [z, z.square(), z * previous, token.present, span[..., None], torch.log(token.noise_scale)[..., None]]
        return torch.cat(parts, dim=-1), z

    def factors(self, x: Tensor) -> Tensor:
        """Return the bounded logarithms `[..., 2]` of the factors by which the process covariance and the measurement
        covariance are multiplied."""
        return LOG_FACTOR_RANGE * torch.tanh(self.readout(x) * (LOG_FACTOR_GAIN / LOG_FACTOR_RANGE))

    def _both_filters(self, token: Token, state: State) -> tuple[FilterOutput, State, Tensor]:
        """Update the structured and the nominal filter with one observation. Return the output, the state without the
        state of the blocks, and the embedded features."""
        moves = transition(self.drift(), token.dt)
        rules = self.sensor(), self.robustness()
        head, prior = self._update(token, moves, (state["mean"], state["covariance"]), rules, state["log_factors"])
        nominal, _ = self._update(token, moves, (state["nominal_mean"], state["nominal_covariance"]), rules)
        features, bounded = self.features(nominal, token, state["previous"])
        partial = {
            "mean": head.mean,
            "covariance": head.covariance,
            "nominal_mean": nominal.mean,
            "nominal_covariance": nominal.covariance,
            "previous": bounded,
        }
        return self.output(head, rules[0], moves[0], prior), partial, self.embed(features)

    def step(self, token: Token, state: State) -> tuple[FilterOutput, State]:
        output, partial, x = self._both_filters(token, state)
        elapsed = (token.dt / self.config.time_unit).to(torch.float64)[:, None]
        means, precisions = [], []
        for i, block in enumerate(self.filter_blocks()):
            mixed = block.recurrent(x[:, None], elapsed, state["block_means"][:, i], state["block_precisions"][:, i])
            x = mixed.out[:, 0]
            means.append(mixed.mean[:, 0])
            precisions.append(mixed.precision[:, 0])
        return output, self._next(partial, x, means, precisions)

    def attend(self, token: Token, state: State, past: Past) -> tuple[FilterOutput, State, State]:
        output, partial, x = self._both_filters(token, state)
        lag = past.lag / self.config.time_unit
        means, precisions, keys, values = [], [], [], []
        for i, block in enumerate(self.filter_blocks()):
            mixed, key, value = block.attend_cached(
                x, past.rows["keys"][:, :, i], past.rows["values"][:, :, i], lag, past.valid
            )
            x = mixed.out
            # The recurrence continues from the last row of attention (docs/MATH.md §2 c).
            means.append(mixed.mean)
            precisions.append(mixed.precision)
            keys.append(key)
            values.append(value)
        return (
            output,
            self._next(partial, x, means, precisions),
            {"keys": torch.stack(keys, 1), "values": torch.stack(values, 1)},
        )

    def _next(self, partial: State, x: Tensor, means: list[Tensor], precisions: list[Tensor]) -> State:
        return {
            **partial,
            "log_factors": self.factors(x),
            "block_means": torch.stack(means, 1),
            "block_precisions": torch.stack(precisions, 1),
        }

    # Complete sequences for training. The results are the same as those of single steps.

    def nominal_scan(
        self, observation: Tensor, present: Tensor, lags: Tensor, noise_scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens `[B, N, 4P + 2]` and the one-step log-likelihoods `[B, N]` of the nominal filter.

        Args:
            observation, present: Observations and their presence, `[B, N, P]`.
            lags: Time since the previous row, `[B, N]`.
            noise_scale: Factor of the standard deviation of the measurement noise, `[B, N]`.
        """
        f, q = transition(self.drift(), lags)
        start = self.init_state(observation.shape[0])
        state, previous = (start["mean"], start["covariance"]), start["previous"]
        rules = self.sensor(), self.robustness()
        tokens, log_likelihoods = [], []
        for i in range(observation.shape[1]):
            token = Token(observation[:, i], present[:, i], lags[:, i], noise_scale[:, i])
            update, _ = self._update(token, (f[:, i], q[:, i]), state, rules)
            features, previous = self.features(update, token, previous)
            state = update.mean, update.covariance
            tokens.append(features)
            log_likelihoods.append(update.log_likelihood)
        return torch.stack(tokens, 1), torch.stack(log_likelihoods, 1)

    def context(self, tokens: Tensor, times: Tensor, mode: Mode) -> Tensor:
        """Return the log factors of the process and measurement noise after each token, `[B, N, 2]`. `times` is `[B,
        N]` float64."""
        x = self.embed(tokens)
        scaled = (times - times[:, :1]) / self.config.time_unit
        zeros = x.new_zeros(x.shape[0], self.config.n_heads, 2 * self.config.head_dim)
        for block in self.filter_blocks():
            if mode == "attention":
                x = block.attention(x, scaled).out
            else:
                x = block.recurrent(x, scaled, zeros, zeros[..., 0]).out
        return self.factors(x)

    def head_scan(
        self, observation: Tensor, present: Tensor, lags: Tensor, noise_scale: Tensor, log_factors: Tensor
    ) -> Tensor:
        """Return the one-step log-likelihoods of the structured filter, `[B, N]`.

        Args:
            observation, present, lags, noise_scale: See `nominal_scan`.
            log_factors: Log factors of the noise after each token, `[B, N, 2]`.
        """
        f, q = transition(self.drift(), lags)
        batch = observation.shape[0]
        start = self.init_state(batch)
        state = start["mean"], start["covariance"]
        before = torch.cat([start["log_factors"][:, None], log_factors[:, :-1]], dim=1)
        rules = self.sensor(), self.robustness()
        log_likelihoods = []
        for i in range(observation.shape[1]):
            token = Token(observation[:, i], present[:, i], lags[:, i], noise_scale[:, i])
            update, _ = self._update(token, (f[:, i], q[:, i]), state, rules, before[:, i])
            state = update.mean, update.covariance
            log_likelihoods.append(update.log_likelihood)
        return torch.stack(log_likelihoods, 1)


def mean_per_component(log_likelihood: Tensor, present: Tensor) -> Tensor:
    """Return the mean log-likelihood per observed component. The terms of the training loss are negatives of such
    means."""
    return log_likelihood.sum() / present.sum().clamp(min=1)
