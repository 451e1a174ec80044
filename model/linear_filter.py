"""Linear filter, which is a capped robust Kalman filter of a linear SDE with known matrices.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + b + e,  E[e eᵀ] = R

The covariance is dense, so the filter is exact for non-orthogonal eigenvectors and dense noises. With nu = inf, it is
the Kalman filter. For the isotropic model, the results equal those of `irkf_scan`. A may be defective, as for constant
velocity (`recurrence/modes.py`).

Attention mode computes the batch RFA estimate. Every earlier observation is transported to the present with covariance
C F⁻¹ Q F⁻ᵀ Cᵀ + R. The estimate is the precision-weighted mean of the transported observations with Student-t weights
(Kalman-IRLS, docs/MATH.md §7). The estimate treats the process noises of observations as independent. A discount of old
observations accounts for the noise that observations share. This is optimal for Q = 0, and otherwise less accurate than
the Kalman filter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rfa.model.recurrence.dense import Robustness, Sensor, Suspicion, dense_update, in_pass, robust_weight
from rfa.model.recurrence.eigenpairs import Eigenpairs
from rfa.model.recurrence.inverse import spd_inverse
from rfa.model.recurrence.modes import Chains, Drift, seen_from_now, transition
from rfa.model.state_filter import FilterOutput, Past, State, StateFilter, Token
from rfa.runtime.filters.linear_config import LinearFilterConfig, stationary_covariance
from rfa.runtime.filters.robust_constants import NOISE_FACTORS, PRIOR_COUNTS
from rfa.runtime.filters.spectrum import mode_arrays, spectrum

# In attention mode, if the transported process noise of an observation is this fraction of its measurement noise, its
# weight is divided by e, because observations share process noise. A Kalman filter of a random walk discounts old
# observations at a similar rate.
SHARED_NOISE = 0.25
# In attention mode, observations that have decayed by more than e^-MAX_DECAY are ignored.
MAX_DECAY = 12.0


class LinearFilter(StateFilter):
    """Linear filter whose matrices are those of a `LinearFilterConfig`."""

    def __init__(self, config: LinearFilterConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = config.inner
        drift = np.asarray(config.drift)
        self.state_size = n = drift.shape[0]
        self.observation_size = p = len(config.measurement_noise)
        found = spectrum(drift)
        self._drift_kind: type[Eigenpairs] | type[Chains] = Eigenpairs if found.terms == 1 else Chains
        arrays = mode_arrays(found, np.asarray(config.process_noise))
        for name in self._drift_kind._fields:
            self._constant(name, arrays[name])
        self._constant("matrix", np.eye(n) if config.observation is None else config.observation)
        self._constant("offset", np.zeros(p) if config.offset is None else config.offset)
        self._constant("noise", config.measurement_noise)
        self._constant("inverse_nu", [0.0 if config.nu is None else 1 / config.nu])
        self._constant("contamination", [config.contamination])
        self._constant("outlier_scale", [config.outlier_scale])
        prior = stationary_covariance(config) if config.initial_covariance is None else config.initial_covariance
        self._constant("prior_mean", np.zeros(n) if config.initial_mean is None else config.initial_mean)
        self._constant("prior_covariance", prior)
        if self.learns_noise():
            self._constant("noise_factors", NOISE_FACTORS)
            self._constant("prior_noise_counts", PRIOR_COUNTS)

    def _constant(self, name: str, values: Any) -> None:
        self.register_buffer(name, torch.tensor(np.asarray(values), dtype=torch.get_default_dtype()))

    def drift(self) -> Drift:
        return self._drift_kind(*(getattr(self, name) for name in self._drift_kind._fields))

    def sensor(self) -> Sensor:
        return Sensor(self.get_buffer("matrix"), self.get_buffer("offset"), self.get_buffer("noise"))

    def robustness(self, passes: Tensor | None = None) -> Robustness:
        constants = self.get_buffer("contamination"), self.get_buffer("outlier_scale")
        inverse_nu, patience = self.get_buffer("inverse_nu"), self.config.reacquire
        learned: tuple[Tensor, ...] = ()
        if self.learns_noise():
            learned = self.get_buffer("noise_factors"), self.get_buffer("prior_noise_counts")
        return Robustness(inverse_nu, self.inner, *constants, patience, *learned)._replace(passes=passes)

    def takes_passes(self) -> bool:
        return self.config.nu is not None and not self.learns_noise() and self.inner > 1

    def reacquires(self) -> bool:
        """Return whether the state includes evidence of a jump."""
        return self.config.nu is not None and self.config.reacquire is not None

    def learns_noise(self) -> bool:
        """Return whether the state includes the learned noise scale."""
        return self.config.nu is not None and self.config.rule == "learned"

    def init_state(self, batch: int) -> State:
        mean, covariance = self.get_buffer("prior_mean"), self.get_buffer("prior_covariance")
        state = {"mean": mean.expand(batch, -1).clone(), "covariance": covariance.expand(batch, -1, -1).clone()}
        if self.reacquires():
            state |= {"jump_offset": torch.zeros_like(state["mean"]), "jump_evidence": mean.new_zeros(batch, 1)}
        if self.learns_noise():
            state["noise_counts"] = self.get_buffer("prior_noise_counts").expand(batch, -1).clone()
        return state

    def cache_rows(self) -> dict[str, tuple[int, ...]]:
        return {"token": (2 * self.observation_size + 1,)}

    def step(self, token: Token, state: State, passes: Tensor | None = None) -> tuple[FilterOutput, State]:
        f, _, mean, covariance = self.predict(state["mean"], state["covariance"], token.dt)
        sensor, suspicion = self.sensor(), None
        if self.reacquires():
            suspicion = Suspicion((f @ state["jump_offset"][..., None])[..., 0], state["jump_evidence"])
        update = dense_update(
            mean,
            covariance,
            token.value,
            token.present,
            sensor.scaled(token.noise_scale.square()),
            self.robustness(passes),
            suspicion=suspicion,
            noise_counts=state.get("noise_counts"),
        )
        following = {"mean": update.mean, "covariance": update.covariance}
        if update.suspicion is not None:
            following |= {"jump_offset": update.suspicion.offset, "jump_evidence": update.suspicion.evidence}
        if update.noise_counts is not None:
            following["noise_counts"] = update.noise_counts
        return self.output(update, sensor, f, (mean, update.prior_covariance)), following

    def attend(
        self, token: Token, state: State, past: Past, passes: Tensor | None = None
    ) -> tuple[FilterOutput, State, State]:
        f, _, mean, covariance = self.predict(state["mean"], state["covariance"], token.dt)
        sensor = self.sensor()
        robustness = self.robustness(passes)
        scaled = sensor.scaled(token.noise_scale.square())
        update = dense_update(mean, covariance, token.value, token.present, scaled, robustness)
        value = torch.where(token.present > 0, token.value, torch.zeros_like(token.value))
        row = torch.cat([value, token.present, token.noise_scale[:, None]], dim=-1)
        tokens = torch.cat([past.rows["token"], row[:, None]], dim=1)
        lags = torch.cat([past.lag, torch.zeros_like(token.dt)[:, None]], dim=1)
        seen = torch.cat([past.valid, torch.ones_like(token.dt)[:, None]], dim=1)
        mean_now, covariance_now = self._batch_estimate(tokens, lags, seen, update.mean, robustness)
        update = update._replace(mean=mean_now, covariance=covariance_now)
        following = {"mean": mean_now, "covariance": covariance_now}
        # The batch estimate reweights every observation, so a recurrence that continues from it starts without evidence
        # of a jump.
        following |= {name: torch.zeros_like(state[name]) for name in ("jump_offset", "jump_evidence") if name in state}
        if "noise_counts" in state:
            following["noise_counts"] = torch.zeros_like(state["noise_counts"]) + self.get_buffer("prior_noise_counts")
        return self.output(update, sensor, f, (mean, covariance)), following, {"token": row}

    def _batch_estimate(
        self, tokens: Tensor, lag: Tensor, valid: Tensor, start: Tensor, robustness: Robustness
    ) -> tuple[Tensor, Tensor]:
        """Return the precision-weighted mean of all transported observations, `[B, n]`, computed by iteratively
        reweighted least squares (IRLS).

        Args:
            tokens: Values, presence and noise scale of each observation, `[B, C, 2P + 1]`.
            lag: Time since each observation, `[B, C]`.
            valid: Whether each cache row is valid, `[B, C]`.
            start: Initial estimate, `[B, n]`.
            robustness: Parameters of the robust weights.
        """
        size = self.observation_size
        observation, seen, noise_scale = tokens.split([size, size, 1], dim=-1)
        drift, sensor = self.drift(), self.sensor()
        fastest = (-drift.rate_re).amax(dim=0).clamp(min=1e-12)
        useful = valid * (lag * fastest <= MAX_DECAY).to(lag.dtype)
        matrix, process = seen_from_now(drift, sensor.matrix, lag * useful)
        present = seen * useful[..., None]
        both = present[..., :, None] * present[..., None, :]
        matrix, process = present[..., :, None] * matrix, both * process
        noise = process + both * (sensor.noise * noise_scale.square()[..., None])
        precision, _ = spd_inverse(noise + torch.diag_embed(1 - present))
        information = matrix.mT @ precision @ matrix
        evidence = matrix.mT @ (precision @ (present * (observation - sensor.offset))[..., None])
        shared = torch.diagonal(process, dim1=-2, dim2=-1) / torch.diagonal(sensor.noise)
        # The noise scale of empty cache rows is 0.
        own = (SHARED_NOISE * noise_scale[..., 0].square()).clamp(min=1e-12)
        trust = torch.exp(-shared.mean(-1) / own)[..., None, None]
        information, evidence = trust * information, trust * evidence
        first = (lag * useful).amax(dim=1)
        f, q = transition(drift, first)
        prior = f @ self.get_buffer("prior_covariance") @ f.mT + q
        prior_information, _ = spd_inverse(prior)
        prior_evidence = prior_information @ (f @ self.get_buffer("prior_mean")[:, None])
        count, estimate, covariance = present.sum(-1), start, prior
        for i in range(robustness.inner):
            residual = present * (observation - sensor.offset) - (matrix @ estimate[:, None, :, None])[..., 0]
            distance = (residual * (precision @ residual[..., None])[..., 0]).sum(-1)
            weight = robust_weight(count, distance, robustness.inverse_nu)[..., None, None]
            spread, _ = spd_inverse(prior_information + (weight * information).sum(1))
            found = (spread @ (prior_evidence + (weight * evidence).sum(1)))[..., 0]
            estimate = in_pass(i, robustness, found, estimate)
            covariance = in_pass(i, robustness, spread, covariance)
        return estimate, covariance
