"""Who runs in `filter_speed.py`: the linear filter by every rule, and the public Kalman filters."""

# The peers need not be installed.
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfa.benchmarks.filters.speed_job import NU, PASSES, PATIENCE, PROCESS, STEP, Array, Job, JobName, Rule
from rfa.runtime.filters.linear_config import LinearFilterConfig

# What a slow peer is cut to.
FEW_STREAMS, FEW_STEPS = 20, 500


class NotRun(Exception):
    """Why a row has no figure."""


@dataclass(frozen=True)
class Row:
    """A contestant. `prepare` gets a job and returns the call to time, which gives the final means `[B, 4]`."""

    name: str
    job: JobName
    prepare: Callable[[Job], Callable[[], Array]]
    packages: tuple[str, ...] = ()
    streams: int | None = None
    steps: int | None = None
    rule: Rule = "Kalman"
    note: str = ""


# Ours.


def config(job: Job, rule: Rule) -> LinearFilterConfig:
    """The same model by its continuous matrices."""
    drift, noise = np.zeros((4, 4)), np.zeros((4, 4))
    drift[0, 2] = drift[1, 3] = 1.0
    noise[2, 2] = noise[3, 3] = PROCESS
    return LinearFilterConfig.from_dict(
        {
            "drift": drift.tolist(),
            "process_noise": noise.tolist(),
            "measurement_noise": job.r.tolist(),
            "observation": job.h.tolist(),
            "initial_covariance": job.prior.tolist(),
            "nu": None if rule == "Kalman" else NU,
            "inner": PASSES,
            "reacquire": PATIENCE if rule == "jumps" else None,
            "rule": "learned" if rule == "learned" else "capped",
        }
    )


def ours_online(job: Job, rule: Rule) -> Callable[[], Array]:
    from rfa.runtime.filters.dense_numba import LinearStream

    system, y = config(job, rule), job.y[0].tolist()
    times = [STEP * i for i in range(len(y))]

    def call() -> Array:
        stream = LinearStream(system)
        for t, value in zip(times, y, strict=True):
            mean = stream.step(t, value).mean
        return mean[None]

    return call


def ours_batch(job: Job, rule: Rule) -> Callable[[], Array]:
    from rfa.runtime.filters.dense_numba import filter_streams

    system, times = config(job, rule), STEP * np.arange(job.y.shape[1])
    return lambda: filter_streams(system, times, job.y).mean[:, -1]


def ours_common(job: Job) -> Callable[[], Array]:
    from rfa.runtime.filters.common_gain import filter_common

    system, times = config(job, "Kalman"), STEP * np.arange(job.y.shape[1])
    return lambda: filter_common(system, times, job.y).mean[:, -1]


def ours(job: JobName, prepare: Callable[[Job, Rule], Callable[[], Array]]) -> list[Row]:
    names: dict[Rule, str] = {
        "Kalman": "rfa Kalman",
        "robust": "rfa robust",
        "jumps": "rfa robust, follows jumps",
        "learned": "rfa robust, learns the noise",
    }

    def row(rule: Rule) -> Row:
        return Row(names[rule], job, lambda given: prepare(given, rule), ("numba",), rule=rule)

    return [row(rule) for rule in names]


# The peers.


def filterpy_loop(job: Job) -> Callable[[], Array]:
    from filterpy.kalman import KalmanFilter

    def one(y: Array) -> Array:
        kf = KalmanFilter(dim_x=4, dim_z=2)
        kf.F, kf.Q, kf.H, kf.R, kf.P = job.f, job.q, job.h, job.r, job.prior.copy()
        for t, value in enumerate(y):
            if t:
                kf.predict()
            kf.update(value)
        return np.asarray(kf.x).ravel()

    return lambda: np.array([one(y) for y in job.y])


def pykalman_online(job: Job) -> Callable[[], Array]:
    from pykalman import KalmanFilter

    kf = KalmanFilter(job.f, job.h, job.q, job.r, np.zeros(2 * 2), np.zeros(2), np.zeros(4), job.prior)

    def call() -> Array:
        # Two observations to start with: it takes a single one for one component of several.
        means, covariances = kf.filter(job.y[0, :2])
        mean, covariance = means[1], covariances[1]
        for value in job.y[0, 2:]:
            mean, covariance = kf.filter_update(mean, covariance, value)
        return np.asarray(mean)[None]

    return call


def pykalman_loop(job: Job) -> Callable[[], Array]:
    from pykalman import KalmanFilter

    kf = KalmanFilter(job.f, job.h, job.q, job.r, np.zeros(2 * 2), np.zeros(2), np.zeros(4), job.prior)
    return lambda: np.array([kf.filter(y)[0][-1] for y in job.y])


def _statsmodels(job: Job, y: Array) -> Any:
    from statsmodels.tsa.statespace.mlemodel import MLEModel

    class Model(MLEModel):
        def clone(self, endog: Array, **_: Any) -> Any:
            """What `extend` goes on with."""
            return _statsmodels(job, endog)

    model = Model(y, k_states=4, k_posdef=4)
    model["design"], model["obs_cov"] = job.h, job.r
    model["transition"], model["state_cov"], model["selection"] = job.f, job.q, np.eye(4)
    model.ssm.initialize_known(np.zeros(4), job.prior)
    return model


def statsmodels_online(job: Job) -> Callable[[], Array]:
    def call() -> Array:
        result = _statsmodels(job, job.y[0, :1]).filter([])
        for value in job.y[0, 1:]:
            result = result.extend(value[None])
        return np.asarray(result.filtered_state)[None, :, -1]

    return call


def statsmodels_loop(job: Job) -> Callable[[], Array]:
    """A model per stream: a bound series stays with its model."""

    def one(y: Array) -> Array:
        return np.asarray(_statsmodels(job, y).ssm.filter().filtered_state)[:, -1]

    return lambda: np.array([one(y) for y in job.y])


def simdkalman_online(job: Job) -> Callable[[], Array]:
    import simdkalman

    kf = simdkalman.KalmanFilter(job.f, job.q, job.h, job.r)

    def call() -> Array:
        mean, covariance = np.zeros((1, 4, 1)), job.prior[None]
        for t, value in enumerate(job.y[0]):
            if t:
                mean, covariance = kf.predict_next(mean, covariance)
            mean, covariance, *_ = kf.update(mean, covariance, value[None, :, None])
        return np.asarray(mean)[..., 0]

    return call


def simdkalman_batch(job: Job) -> Callable[[], Array]:
    import simdkalman

    kf = simdkalman.KalmanFilter(job.f, job.q, job.h, job.r)

    def call() -> Array:
        found = kf.compute(
            job.y, 0, initial_value=np.zeros(4), initial_covariance=job.prior, smoothed=False, filtered=True
        )
        return np.asarray(found.filtered.states.mean)[:, -1]

    return call


def torch_kf(job: Job, *, shares_covariance: bool) -> Callable[[], Array]:
    import torch
    import torch_kf

    f, q, h, r, prior, y = (torch.from_numpy(a) for a in (job.f, job.q, job.h, job.r, job.prior, job.y))
    kf = torch_kf.KalmanFilter(f, h, q, r)
    streams = len(y)
    covariance = prior if shares_covariance else prior.expand(streams, 4, 4).clone()
    values = y.permute(1, 0, 2).contiguous()[..., None]

    def call() -> Array:
        state = torch_kf.GaussianState(torch.zeros(streams, 4, 1, dtype=torch.float64), covariance.clone())
        for t, value in enumerate(values):
            if t:
                state = kf.predict(state)
            state = kf.update(state, value)
        return np.asarray(state.mean[..., 0])

    return call


def dynamax_batch(job: Job, *, shares_covariance: bool) -> Callable[[], Array]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from dynamax.linear_gaussian_ssm import lgssm_filter
    from dynamax.linear_gaussian_ssm.inference import (
        ParamsLGSSM,
        ParamsLGSSMDynamics,
        ParamsLGSSMEmissions,
        ParamsLGSSMInitial,
    )

    def last_mean(r: Any, y: Any) -> Any:
        parameters = ParamsLGSSM(
            initial=ParamsLGSSMInitial(mean=jnp.zeros(4), cov=jnp.asarray(job.prior)),
            dynamics=ParamsLGSSMDynamics(
                weights=jnp.asarray(job.f), bias=jnp.zeros(4), input_weights=jnp.zeros((4, 0)), cov=jnp.asarray(job.q)
            ),
            emissions=ParamsLGSSMEmissions(
                weights=jnp.asarray(job.h), bias=jnp.zeros(2), input_weights=jnp.zeros((2, 0)), cov=r
            ),
        )
        return lgssm_filter(parameters, y).filtered_means

    y = jnp.asarray(job.y)
    r = jnp.asarray(job.r) if shares_covariance else jnp.tile(jnp.asarray(job.r), (len(job.y), 1, 1))
    run = jax.jit(jax.vmap(last_mean, in_axes=(None if shares_covariance else 0, 0)))
    return lambda: np.asarray(run(r, y).block_until_ready()[:, -1])


def dynamax_online(job: Job) -> Callable[[], Array]:
    raise NotRun("dynamax has no public function for one observation at a time")


SHARED = "carries one covariance for all streams: no robust weights, gaps or noises of their own"
ROWS = (
    *ours("online", ours_online),
    Row("filterpy", "online", filterpy_loop, ("filterpy",)),
    Row("simdkalman", "online", simdkalman_online, ("simdkalman",)),
    Row("torch-kf", "online", lambda job: torch_kf(job, shares_covariance=True), ("torch-kf", "torch")),
    Row("pykalman", "online", pykalman_online, ("pykalman",), steps=FEW_STEPS),
    Row("statsmodels extend", "online", statsmodels_online, ("statsmodels",), steps=FEW_STEPS),
    Row("dynamax", "online", dynamax_online, ("dynamax", "jax")),
    *ours("batch", ours_batch),
    Row(
        "dynamax vmap, own covariances", "batch", lambda job: dynamax_batch(job, shares_covariance=False),
        ("dynamax", "jax"),
    ),
    Row(
        "torch-kf, own covariances", "batch", lambda job: torch_kf(job, shares_covariance=False),
        ("torch-kf", "torch"),
    ),
    Row("simdkalman", "batch", simdkalman_batch, ("simdkalman",)),
    Row("statsmodels loop", "batch", statsmodels_loop, ("statsmodels",), streams=FEW_STREAMS),
    Row("filterpy loop", "batch", filterpy_loop, ("filterpy",), streams=FEW_STREAMS),
    Row("pykalman loop", "batch", pykalman_loop, ("pykalman",), streams=FEW_STREAMS, steps=FEW_STEPS),
    Row("rfa Kalman, shared covariance", "batch", ours_common, ("numba",), note=SHARED),
    Row(
        "dynamax vmap, shared covariance", "batch", lambda job: dynamax_batch(job, shares_covariance=True),
        ("dynamax", "jax"), note=SHARED,
    ),
    Row(
        "torch-kf, shared covariance", "batch", lambda job: torch_kf(job, shares_covariance=True),
        ("torch-kf", "torch"), note=SHARED,
    ),
)  # fmt: skip
