"""Filters that `rfa bench filter-speed` compares: the linear filter with every rule, and public Kalman filters."""

# The peers need not be installed.
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import rfa
from rfa.benchmarks.filters.speed_job import NU, PASSES, PATIENCE, PROCESS, STEP, Array, Job, JobName, Rule

# Limits for slow peers.
FEW_STREAMS, FEW_STEPS = 20, 500


class NotRun(Exception):
    """The reason why a row has no figure."""


@dataclass(frozen=True)
class Row:
    """A contestant.

    `prepare` gets a job and returns the call to time, which returns the final means of the state `[B, 4]` or of the
    position `[B, 2]`.
    """

    name: str
    job: JobName
    prepare: Callable[[Job], Callable[[], Array]]
    packages: tuple[str, ...] = ()
    streams: int | None = None
    steps: int | None = None
    rule: Rule = "Kalman"


# Our filters.


def system(job: Job, rule: Rule) -> dict[str, Any]:
    """Return the same model by its continuous matrices."""
    drift, noise = np.zeros((4, 4)), np.zeros((4, 4))
    drift[0, 2] = drift[1, 3] = 1.0
    noise[2, 2] = noise[3, 3] = PROCESS
    return {
        "A": drift,
        "Q": noise,
        "R": job.r,
        "C": job.h,
        "P0": job.prior,
        "nu": None if rule == "Kalman" else NU,
        "passes": PASSES,
        "reacquire": PATIENCE if rule == "jumps" else None,
    }


def ours_online(job: Job, rule: Rule) -> Callable[[], Array]:
    document, y = system(job, rule), job.y[0].tolist()
    times = [STEP * i for i in range(len(y))]

    def call() -> Array:
        stream = rfa.Stream(system=document)
        for t, value in zip(times, y, strict=True):
            mean = stream.update(t, value).mean
        return np.array([mean])

    return call


def ours_batch(job: Job, rule: Rule) -> Callable[[], Array]:
    streams, steps = job.y.shape[:2]
    columns = {name: job.y[:, :, i].ravel() for i, name in enumerate("xy")}
    columns |= {"stream": np.repeat(np.arange(streams), steps), "t": np.tile(STEP * np.arange(steps), streams)}
    table, document = pa.table(columns), system(job, rule)

    def call() -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the coverage of short streams with outliers
            found = rfa.filter(table, time="t", columns=("x", "y"), by="stream", system=document)
        return np.column_stack([found[f"{name}_mean"].to_numpy() for name in "xy"])[steps - 1 :: steps]

    return call


def ours(job: JobName, prepare: Callable[[Job, Rule], Callable[[], Array]]) -> list[Row]:
    names: dict[Rule, str] = {
        "Kalman": "rfa Kalman",
        "robust": "rfa robust",
        "jumps": "rfa robust, follows jumps",
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


def _statsmodels(job: Job, y: Array) -> Any:
    from statsmodels.tsa.statespace.mlemodel import MLEModel

    class Model(MLEModel):
        def clone(self, endog: Array, **_: Any) -> Any:
            """Return the object that `extend` continues with."""
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
    """Run a model per stream, because a bound series stays with its model."""

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


def dynamax_batch(job: Job) -> Callable[[], Array]:
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
    r = jnp.tile(jnp.asarray(job.r), (len(job.y), 1, 1))
    run = jax.jit(jax.vmap(last_mean))
    return lambda: np.asarray(run(r, y).block_until_ready()[:, -1])


ROWS = (
    *ours("online", ours_online),
    Row("filterpy", "online", filterpy_loop, ("filterpy",)),
    Row("simdkalman", "online", simdkalman_online, ("simdkalman",)),
    Row("statsmodels extend", "online", statsmodels_online, ("statsmodels",), steps=FEW_STEPS),
    *ours("batch", ours_batch),
    Row("dynamax vmap, own covariances", "batch", dynamax_batch, ("dynamax", "jax")),
    Row("simdkalman", "batch", simdkalman_batch, ("simdkalman",)),
    Row("statsmodels loop", "batch", statsmodels_loop, ("statsmodels",), streams=FEW_STREAMS),
    Row("filterpy loop", "batch", filterpy_loop, ("filterpy",), streams=FEW_STREAMS),
)
