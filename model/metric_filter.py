"""The metric filter: a local level for any one-dimensional metric, in units that it learns from the stream itself.

    x' = x + w,  E[w²] = s² q tau          y = x + e,  E[e²] = s²          tau = lag / typical lag

q is the same for every metric; the noise scale s and the typical lag are learned while filtering and carried in the
state. s² is the running mean of the innovations' squares over what q says they should be (West and Harrison, Bayesian
Forecasting and Dynamic Models, §4.5), bounded so that a spike does not stretch it:

    z² = innovation² / (s² S),  S = (p + q tau) + 1          s² ← s² (1 + (min(z², 9) - 1) / n)

with n the observations so far, at most `memory`. Bounded ones make n shrink: when the metric has become another one, a
few dozen observations are enough to learn it anew. The first observation is the level, the second one sets s. So the
filter of a y is the filter of y times a in time units of b.

Attention mode is the batch RFA estimate of the linear filter's page, for a level that does not decay: every earlier
observation counts with variance s² (1 + q tau), discounted by what it shares, reweighted by Student-t weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rfa.model.linear_filter import SHARED_NOISE
from rfa.model.recurrence.dense import Eigenpairs, Robustness, Sensor, propagate, robust_weight, transition
from rfa.model.state_filter import FilterOutput, Past, State, StateFilter, Token, head_update
from rfa.runtime.text.config import StrictConfig

# Variance of the level before the first observation, in units of s²: it decides nothing, the first one is the level.
DIFFUSE = 100.0
# Noise that a first observation y is taken to have until the second one tells: this share of |y|.
FIRST_GUESS = 0.1
# Largest z² that the scale takes from one observation, from its `TRUSTED`-th on.
BOUND = 9.0
TRUSTED = 20.0
# What a bounded observation leaves of n.
DOUBT = 0.95
# The noise is at least this share of the level: float32 has seven digits.
RESOLUTION = 1e-6
TINY = 1e-18


@dataclass(frozen=True)
class MetricFilterConfig(StrictConfig):
    """process: q. memory: observations over which the noise scale is learned. nu > 2 of the Student-t weights (null =
    the Kalman filter), inner = their passes K. contamination and outlier_scale: share and size of outliers that the
    reported log-likelihood allows for."""

    process: float = 0.03
    memory: float = 1000.0
    nu: float | None = None
    inner: int = 1
    contamination: float = 0.02
    outlier_scale: float = 10.0

    def __post_init__(self) -> None:
        if not (self.memory >= TRUSTED and math.isfinite(self.memory)):
            raise ValueError(f"memory must be at least {TRUSTED:g}, got {self.memory}")
        if not (self.process > 0 and math.isfinite(self.process)):
            raise ValueError(f"process must be positive, got {self.process}")
        if self.nu is not None and not self.nu > 2:
            raise ValueError(f"nu must be > 2 or null, got {self.nu}")
        if not isinstance(self.inner, int) or isinstance(self.inner, bool) or self.inner < 1:
            raise ValueError(f"inner must be a positive integer, got {self.inner!r}")
        if not 0 <= self.contamination < 1 or not self.outlier_scale > 1:
            raise ValueError("contamination must be in [0, 1) and outlier_scale > 1")


class MetricFilter(StateFilter):
    """See the module's page. State: mean and covariance in the metric's units; `variance` s², `count` n, `lag`."""

    def __init__(self, config: MetricFilterConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = config.inner
        self.observation_size = self.state_size = 1
        values = {
            "process": config.process,
            "inverse_nu": 0.0 if config.nu is None else 1 / config.nu,
            "contamination": config.contamination,
            "outlier_scale": config.outlier_scale,
        }
        for name, value in values.items():
            self.register_buffer(name, torch.tensor([value]))

    def drift(self) -> Eigenpairs:
        """A random walk, per typical lag and in units of s²."""
        q = self.get_buffer("process")
        none, one = torch.zeros_like(q), torch.ones_like(q)[:, None]
        return Eigenpairs(none, none, one, none[:, None], one, none[:, None], q[:, None], none[:, None])

    def sensor(self) -> Sensor:
        """In units of s²."""
        one = torch.ones_like(self.get_buffer("process"))
        return Sensor(one[:, None], torch.zeros_like(one), one[:, None])

    def robustness(self) -> Robustness:
        return Robustness(
            inverse_nu=self.get_buffer("inverse_nu"),
            inner=self.inner,
            contamination=self.get_buffer("contamination"),
            outlier_scale=self.get_buffer("outlier_scale"),
        )

    def init_state(self, batch: int) -> State:
        one = torch.ones_like(self.get_buffer("process")).expand(batch, 1)
        none = torch.zeros_like(one)
        return {"mean": none, "covariance": DIFFUSE * one[..., None], "variance": one, "count": none, "lag": none}

    def cache_rows(self) -> dict[str, tuple[int, ...]]:
        return {"token": (3,)}

    def noise_scales(self, state: State) -> tuple[Tensor, Tensor]:
        variance = state["variance"][..., 0]
        return variance, variance

    def forecast(self, state: State, horizon: Tensor) -> tuple[Tensor, Tensor]:
        lag = torch.where(state["lag"] > 0, state["lag"], torch.ones_like(state["lag"]))
        return super().forecast(state, horizon / lag)

    def step(self, token: Token, state: State) -> tuple[FilterOutput, State]:
        known, lag = self._prior(token, state)
        f, q = transition(self.drift(), token.dt / lag)
        variance = known["variance"][..., None]
        prior = propagate(known["mean"], known["covariance"], f, q * variance)
        factor = known["variance"][:, 0] * token.noise_scale.square()
        update = head_update(prior, token, self.sensor(), factor, self.robustness())
        learned, count = self._learn(update.nis, token.present[:, 0], known)
        grown = (learned / known["variance"])[..., None]
        update = update._replace(
            covariance=update.covariance * grown,
            # The level before the first observation is anything: its density says nothing.
            log_likelihood=torch.where(state["count"][:, 0] > 0, update.log_likelihood, 0 * update.log_likelihood),
        )
        following = {
            "mean": update.mean,
            "covariance": update.covariance,
            "variance": learned,
            "count": count,
            "lag": self._typical(token.dt[:, None], token.present, lag[:, None], state),
        }
        return self.output(update, self.sensor(), f, prior), following

    def attend(self, token: Token, state: State, past: Past) -> tuple[FilterOutput, State, State]:
        stepped, following = self.step(token, state)
        row = torch.cat([token.present * token.value, token.present, token.noise_scale[:, None]], dim=-1)
        tokens = torch.cat([past.rows["token"], row[:, None]], dim=1)
        lags = torch.cat([past.lag, torch.zeros_like(token.dt)[:, None]], dim=1)
        seen = torch.cat([past.valid, torch.ones_like(token.dt)[:, None]], dim=1) * tokens[..., 1]
        unit = torch.where(following["lag"] > 0, following["lag"], torch.ones_like(following["lag"]))
        mean, covariance = self._batch_estimate(tokens, lags / unit, seen, following)
        following = {**following, "mean": mean, "covariance": covariance}
        # Outputs of their own, not the tensors of the state: an ONNX graph gives one tensor one name.
        matrix = self.sensor().matrix
        output = stepped._replace(
            mean=(matrix @ mean[..., None])[..., 0], covariance=matrix @ covariance @ matrix.mT,
            precision=1 / covariance[:, 0, 0], state_mean=mean, state_covariance=covariance,
        )  # fmt: skip
        return output, following, {"token": row}

    def _prior(self, token: Token, state: State) -> tuple[State, Tensor]:
        """What is known before an observation, and the typical lag `[B]`; the first observation brings its own."""
        is_first = (state["count"] == 0) & (token.present > 0)
        guess = (FIRST_GUESS * token.value).square().clamp(min=TINY)
        variance = torch.where(is_first, guess, state["variance"])
        known = {
            "mean": torch.where(is_first, token.value, state["mean"]),
            "covariance": torch.where(is_first[..., None], DIFFUSE * guess[..., None], state["covariance"]),
            "variance": variance,
            "count": state["count"],
        }
        lag, step = state["lag"][:, 0], torch.where(token.dt > 0, token.dt, torch.ones_like(token.dt))
        return known, torch.where(lag > 0, lag, step)

    def _learn(self, nis: Tensor, seen: Tensor, known: State) -> tuple[Tensor, Tensor]:
        """s² and n after an observation with this squared standardised innovation, `[B, 1]` each."""
        count = known["count"][:, 0]
        is_bounded = (nis > BOUND) & (count > TRUSTED)
        z2 = torch.where(is_bounded, torch.full_like(nis, BOUND), nis)
        n = torch.where(is_bounded, (DOUBT * count).clamp(min=TRUSTED), (count + 1).clamp(max=self.config.memory))
        # The first observation has no innovation, so the second one is the first of the mean.
        rate = torch.where(count > 0, 1 / (n - 1).clamp(min=1), torch.zeros_like(n))
        least = (RESOLUTION * known["mean"][:, 0]).square().clamp(min=TINY)
        variance = torch.maximum(known["variance"][:, 0] * (1 + rate * (z2 - 1)), least)
        is_seen = seen > 0
        return (
            torch.where(is_seen, variance, known["variance"][:, 0])[:, None],
            torch.where(is_seen, n, count)[:, None],
        )

    def _typical(self, dt: Tensor, present: Tensor, lag: Tensor, state: State) -> Tensor:
        """Running mean of the lags, each bounded to twice or half of it, `[B, 1]`."""
        bounded = torch.minimum(torch.maximum(dt, lag / 2), 2 * lag)
        moved = lag + (bounded - lag) / (state["count"] + 1)
        return torch.where((present > 0) & (dt > 0), moved, state["lag"])

    def _batch_estimate(self, tokens: Tensor, lag: Tensor, seen: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Level `[B, 1]` and its variance `[B, 1, 1]` from all observations `[B, C, 3]` at lags `[B, C]`; where
        there are none, the state's own."""
        q, inverse_nu, scale2 = self.get_buffer("process"), self.get_buffer("inverse_nu"), state["variance"]
        own = tokens[..., 2].square().clamp(min=TINY)
        shared = q * lag * seen
        trust = seen * torch.exp(-shared / (SHARED_NOISE * own)) / (scale2 * (own + shared))
        level, weight = state["mean"], torch.ones_like(trust)
        for _ in range(self.inner):
            distance = (tokens[..., 0] - level).square() / (scale2 * (own + shared))
            weight = robust_weight(1, distance, inverse_nu)
            total = (weight * trust).sum(1, keepdim=True)
            is_known = total > 0
            safe = torch.where(is_known, total, torch.ones_like(total))
            level = torch.where(is_known, (weight * trust * tokens[..., 0]).sum(1, keepdim=True) / safe, level)
        variance = torch.where(is_known, 1 / safe, state["covariance"][:, 0])
        return level, variance[..., None]
