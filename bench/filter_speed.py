"""Speed of the linear filter in process, beside the public Kalman filters, on one core.

    python -m rfa.bench.filter_speed --out FILE         (or `rfa bench filter-speed`)

Two jobs on a constant-velocity model of the plane (state 4, observation 2, float64, regular steps), output = the
filtered mean, covariance carried:

    online   one stream, one call per observation
    batch    1,000 streams of 1,000 steps in one call

Ours is timed as the exact Kalman filter (the peers' job), and with what no peer has: robust weights, nu = 4 and 3
passes, those with the rule that follows jumps of the state, as the filter is by default, and the rule that learns the
law of the noise. Before a row is timed its final means must agree with a plain textbook filter (or, robust, with a
plain loop of the rules) on the same data. Every figure is the median of several runs by the CPU clock of the process,
which counts helper threads too; the process is held to one core. A row of a peer that is slow runs fewer streams or
steps, as it says; its cost per step does not depend on them. A peer that is not installed is left out with the reason.
"""

# The peers need not be installed.
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rfa.measured import git_commit, hardware
from rfa.model.linear_config import LinearFilterConfig
from rfa.model.recurrence.noise_law import KEPT_PRIOR, MEMORY, NOISE_FACTORS, PRIOR_COUNTS

Array = np.ndarray[Any, Any]
JobName = Literal["online", "batch"]
Rule = Literal["Kalman", "robust", "jumps", "learned"]

STEP = 0.1
PROCESS, MEASUREMENT, PRIOR = 0.5, 1.0, 10.0
NU, PASSES, PATIENCE = 4.0, 3, 6
# Final means may differ from the reference by this: float64 in another order, through ten thousand steps.
AGREEMENT = 1e-7
STREAMS, STEPS, ONLINE_STEPS, RUNS = 1000, 1000, 10_000, 7
# What a slow peer is cut to.
FEW_STREAMS, FEW_STEPS = 20, 500


class NotRun(Exception):
    """Why a row has no figure."""


@dataclass(frozen=True)
class Job:
    """f, q, h, r, the prior's covariance, and observations `[B, N, 2]`."""

    f: Array
    q: Array
    h: Array
    r: Array
    prior: Array
    y: Array

    def cut(self, streams: int, steps: int) -> Job:
        return Job(self.f, self.q, self.h, self.r, self.prior, np.ascontiguousarray(self.y[:streams, :steps]))


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


def make_job(streams: int, steps: int, seed: int = 0) -> Job:
    """Constant velocity in the plane, observed in position; one observation in twenty is ten times as noisy."""
    eye, zero = np.eye(2), np.zeros((2, 2))
    f = np.block([[eye, STEP * eye], [zero, eye]])
    q = PROCESS * np.block([[eye * STEP**3 / 3, eye * STEP**2 / 2], [eye * STEP**2 / 2, eye * STEP]])
    rng = np.random.default_rng(seed)
    x = np.sqrt(PRIOR) * rng.standard_normal((streams, 4))
    y, root = np.empty((streams, steps, 2)), np.linalg.cholesky(q)
    for t in range(steps):
        if t:
            x = x @ f.T + rng.standard_normal((streams, 4)) @ root.T
        size = np.where(rng.random((streams, 1)) < 0.05, 10.0, 1.0) * np.sqrt(MEASUREMENT)
        y[:, t] = x[:, :2] + size * rng.standard_normal((streams, 2))
    return Job(f, q, np.block([[eye, zero]]), MEASUREMENT * eye, PRIOR * np.eye(4), y)


def reference(job: Job, rule: Rule) -> Array:
    """Final means `[B, 4]` by the textbook's formulas, all streams at once."""
    streams, steps = job.y.shape[:2]
    mean, covariance = np.zeros((streams, 4)), np.tile(job.prior, (streams, 1, 1))
    offset, evidence = np.zeros((streams, 4)), np.zeros(streams)
    counts = np.tile(PRIOR_COUNTS, (streams, 1))
    for t in range(steps):
        if t:
            mean, covariance = mean @ job.f.T, job.f @ covariance @ job.f.T + job.q
            offset = offset @ job.f.T
        error = job.y[:, t] - mean @ job.h.T
        inverse = np.linalg.inv(job.h @ covariance @ job.h.T + job.r)
        if rule == "learned":
            step, covariance, counts = _mixture(job, covariance, inverse, error, counts)
            mean = mean + step
            continue
        rival, is_jump = offset, np.zeros(streams, bool)
        if rule == "jumps":
            rival, evidence, wide, opened = _rival(job, covariance, inverse, error, offset, evidence)
            is_jump = evidence >= PATIENCE - 1
            covariance = np.where(is_jump[:, None, None], wide, covariance)
            inverse = np.where(is_jump[:, None, None], opened, inverse)
        cross = covariance @ job.h.T
        signal = job.h @ cross
        weight = np.ones(streams)
        for k in range(0 if rule == "Kalman" else PASSES):
            gain = np.linalg.inv(signal + job.r / weight[:, None, None])
            residual = error if k == 0 else _apply(job.r / weight[:, None, None] @ gain, error)
            weight = np.minimum(1, (NU + 2) / (NU + _distance(inverse, residual)))
        gain = cross @ np.linalg.inv(signal + job.r / weight[:, None, None])
        step = _apply(gain, error)
        mean = mean + step
        covariance = covariance - gain @ np.swapaxes(cross, -1, -2)
        offset = np.where(is_jump[:, None], 0.0, rival - step)
        evidence = np.where(is_jump, 0.0, evidence)
    return mean


def _rival(
    job: Job, covariance: Array, inverse: Array, error: Array, offset: Array, evidence: Array
) -> tuple[Array, Array, Array, Array]:
    """The rule of re-acquisition: the rival at the observation, the evidence for it, and the prior of a state that
    jumped with the inverse of its innovation covariance."""
    expected = offset @ job.h.T
    own, other = (np.log1p(_distance(inverse, e) / NU) for e in (error, error - expected))
    evidence = np.maximum(0, evidence + np.minimum(1, (NU + 2) / 2 * (own - other) / np.log(20)))
    share = np.trace(inverse @ (job.h @ covariance @ job.h.T), axis1=1, axis2=2) / 2
    wide = np.maximum(1, 100 * (1 - share) / share)[:, None, None] * covariance
    opened = np.linalg.inv(job.h @ wide @ job.h.T + job.r)
    kept = np.where((evidence <= 0) & (_distance(inverse, expected) >= 1), 0.0, 1.0)[:, None] * offset
    return kept + _apply(wide @ job.h.T @ opened, error - kept @ job.h.T), evidence, wide, opened


def _mixture(job: Job, covariance: Array, inverse: Array, error: Array, counts: Array) -> tuple[Array, Array, Array]:
    """The rule that learns the noise: a Kalman update for each factor on R, and the moments of their mixture; step of
    the mean, covariance and counts."""
    factors = np.tile(NOISE_FACTORS, (len(error), 1))
    factors[:, -1] = np.maximum(factors[:, -1], _distance(inverse, error))
    cross = (covariance @ job.h.T)[:, None]
    noisy = (job.h @ covariance @ job.h.T)[:, None] + factors[..., None, None] * job.r
    gain = cross @ np.linalg.inv(noisy)
    steps = (gain @ error[:, None, :, None])[..., 0]
    nis = np.einsum("bi,bkij,bj->bk", error, np.linalg.inv(noisy), error)
    logs = np.log(counts) - 0.5 * (nis + np.linalg.slogdet(noisy)[1])
    share = np.exp(logs - logs.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    step = np.einsum("bk,bki->bi", share, steps)
    apart = steps - step[:, None]
    parts = covariance[:, None] - gain @ np.swapaxes(cross, -1, -2) + apart[..., :, None] * apart[..., None, :]
    kept = KEPT_PRIOR * np.array(PRIOR_COUNTS)
    learned = counts + share - kept
    counts = kept + learned * MEMORY / np.maximum(learned.sum(1, keepdims=True), MEMORY)
    mixed = np.einsum("bk,bkij->bij", share, parts)
    # What rounding leaves unsymmetric would grow from step to step.
    return step, (mixed + np.swapaxes(mixed, -1, -2)) / 2, counts


def _distance(matrix: Array, x: Array) -> Array:
    return np.einsum("bi,bij,bj->b", x, matrix, x)


def _apply(matrix: Array, x: Array) -> Array:
    return (matrix @ x[..., None])[..., 0]


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
    from rfa.model.recurrence.dense_numba import LinearStream

    system, y = config(job, rule), job.y[0].tolist()
    times = [STEP * i for i in range(len(y))]

    def call() -> Array:
        stream = LinearStream(system)
        for t, value in zip(times, y, strict=True):
            mean = stream.step(t, value).mean
        return mean[None]

    return call


def ours_batch(job: Job, rule: Rule) -> Callable[[], Array]:
    from rfa.model.recurrence.dense_numba import filter_streams

    system, times = config(job, rule), STEP * np.arange(job.y.shape[1])
    return lambda: filter_streams(system, times, job.y).mean[:, -1]


def ours_common(job: Job) -> Callable[[], Array]:
    from rfa.model.recurrence.common_gain import filter_common

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


@contextmanager
def one_core() -> Iterator[None]:
    """Hold the process, and the threads that it will start, to one core."""
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("this measurement needs a system that can hold a process to one core")
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(before)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def measure(row: Row, job: Job, runs: int) -> dict[str, Any]:
    """Check a row, then time it.

    Raises:
        NotRun: not installed, or there is no such function.
        AssertionError: its means are not the reference's.
    """
    versions = {}
    for package in row.packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise NotRun(f"{package} is not installed") from None
    own = job.cut(row.streams or len(job.y), row.steps or job.y.shape[1])
    call = row.prepare(own)
    error = float(np.abs(call() - reference(own, row.rule)).max())
    if not error <= AGREEMENT:
        raise AssertionError(f"{row.name} ({row.job}) is off the reference by {error:.1e}")
    times = []
    for _ in range(runs):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    streams, steps = own.y.shape[:2]
    low, middle, high = (float(x) * 1e6 / (streams * steps) for x in np.quantile(times, (0.2, 0.5, 0.8)))
    return {
        "us_per_step": _rounded(middle),
        "p20_us": _rounded(low),
        "p80_us": _rounded(high),
        "steps_per_second": round(1e6 / middle),
        "streams": streams,
        "steps": steps,
        "largest_error": error,
        "versions": versions,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def run_speed(
    *, streams: int = STREAMS, steps: int = STEPS, online_steps: int = ONLINE_STEPS, runs: int = RUNS
) -> dict[str, Any]:
    """Both jobs; the document that `write_speed` stores."""
    # Read when jax starts; the affinity holds its pool to one core, this keeps it from splitting the work.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    jobs = {"online": make_job(1, online_steps), "batch": make_job(streams, steps)}
    rows: list[dict[str, Any]] = []
    with one_core():
        for row in ROWS:
            found: dict[str, Any] = {"name": row.name, "job": row.job, "rule": row.rule, "note": row.note}
            try:
                found |= measure(row, jobs[row.job], runs)
            except NotRun as reason:
                found["not_run"] = str(reason)
            rows.append(found)
    return {
        "commit": git_commit(),
        "hardware": hardware(),
        "cores_used": 1,
        "runs": runs,
        "clock": "process_time, median",
        "rows": rows,
        "ratios": ratios(rows),
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per job and own row: the fastest peer of the same job, and how many times slower it is."""
    found = {}
    timed = [row for row in rows if "us_per_step" in row]
    for own in (row for row in timed if row["name"].startswith("rfa ")):
        peers = [
            row for row in timed if row["job"] == own["job"] and not row["name"].startswith("rfa ") and not row["note"]
        ]
        if peers:
            best = min(peers, key=lambda row: row["us_per_step"])
            times = _rounded(best["us_per_step"] / own["us_per_step"])
            found[f"{own['job']}: {own['name']}"] = {"fastest_peer": best["name"], "times_slower": times}
    return found


def table(document: dict[str, Any]) -> list[str]:
    """The rows as lines of a markdown table."""
    lines = ["| job | filter | µs per step | steps/s | note |", "|---|---|---:|---:|---|"]
    for row in document["rows"]:
        if "not_run" in row:
            lines.append(f"| {row['job']} | {row['name']} | | | not run: {row['not_run']} |")
        else:
            cost, rate = f"{row['us_per_step']:g}", f"{row['steps_per_second']:,}"
            lines.append(f"| {row['job']} | {row['name']} | {cost} | {rate} | {row['note']} |")
    return lines


def write_speed(out: Path, **sizes: int) -> dict[str, Any]:
    """`run_speed` to a JSON file."""
    document = run_speed(**sizes)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=2) + "\n")
    return document


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/filter_speed.json"))
    parser.add_argument("--runs", type=int, default=RUNS)
    arguments = parser.parse_args()
    print("\n".join(table(write_speed(arguments.out, runs=arguments.runs))))
