"""Open and compile a filter, and check it against the golden outputs of its bundle, before the first request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, BundleError
from rfa.runtime.bundle.golden import GoldenMismatch, run_golden
from rfa.runtime.compiling import CompileTask
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.steps import Batch
from rfa.runtime.golden import Named
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty import scoring
from rfa.runtime.uncertainty.interface import ReadoutOptions

if TYPE_CHECKING:
    from rfa.runtime.filters.compiled_steps import CompiledSteps

Array = np.ndarray


def open_filter(bundle: Bundle) -> FilterRuntime:
    """Open a filter. It can process observations after the tasks of `filter_tasks` have been completed.

    Raises:
        BundleError: If the filter cannot run.
    """
    try:
        return FilterRuntime(bundle)
    except ValueError as error:
        raise BundleError(str(error)) from None


def filter_tasks(
    bundle: Bundle, model: FilterRuntime, report: Callable[[int], None] = lambda _: None
) -> tuple[list[CompileTask], list[CompileTask]]:
    """Return two lists of tasks that prepare a filter.

    The tasks in the first list compile parts of the kernels. The tasks in the second list compile the rest and run the
    golden cases. They must run after the tasks in the first lists of all filters.

    Args:
        bundle: Bundle of the filter.
        model: The opened filter.
        report: Function that is called with the number of golden values that a compiled filter reproduced.
    """
    if model.runtime != "compiled":
        return [(scoring, partial(_observe_nothing, model))], []
    steps = cast("CompiledSteps", model.steps)
    return [(steps.module, steps.begin)], [(steps.module, lambda: report(hold_to_golden(bundle, model)))]


def hold_to_golden(bundle: Bundle, model: FilterRuntime) -> int:
    """Run the golden cases of a linear filter, then disable compilation. Return the number of compared values.

    Raises:
        BundleError: If a value differs by more than its tolerance.
    """
    try:
        count = run_golden(bundle.golden, compiled_sessions(model), bundle.weights())
    except GoldenMismatch as error:
        raise BundleError(f"golden.json, in compiled code: {error}") from None
    model.steps.disable_compilation()
    return count


def compiled_sessions(model: FilterRuntime) -> dict[str, CompiledSession]:
    """Return sessions for the compiled step and forecast of a linear filter. They are used for golden outputs and
    comparisons."""
    steps = cast("CompiledSteps", model.steps)
    return {graph: CompiledSession(model, steps, graph) for graph in ("step", "forecast")}


def _observe_nothing(model: FilterRuntime) -> None:
    """Process a missing observation, which compiles the scoring functions. Then disable compilation."""
    pool = StatePool(model.state_fields, 1)
    slot = pool.acquire()
    model.put(pool, slot, model.start())
    nothing = Batch(pool.rows([slot]), np.zeros(1), np.full((1, model.observation_size), np.nan), np.ones(1))
    model.steps.advance(pool, nothing, model.readout((0.9,), (), 0), traced=False)
    model.steps.disable_compilation()


@dataclass(frozen=True)
class CompiledSession:
    """The step or the forecast of a linear filter in the interface of a session for `rfa.runtime.bundle.golden`."""

    model: FilterRuntime
    steps: CompiledSteps
    graph: str

    def get_outputs(self) -> list[Named]:
        """Return the names of the outputs."""
        names = ["forecast_mean", "forecast_covariance"]
        if self.graph == "step":
            names = [
                "mean", "covariance", "precision", "weight", "innovation", "innovation_covariance", "nis",
                "log_likelihood", "transition", "predicted_mean", "predicted_covariance",
                *(f"next.{name}" for name in self.steps.layout),
            ]  # fmt: skip
        return [Named(name) for name in names]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs with the given names, in their order, as float32."""
        rows = len(inputs["state.mean"])
        values, lags, noise = np.full((rows, self.steps.size), np.nan), np.zeros(rows), np.ones(rows)
        horizon: Sequence[float] = ()
        if self.graph == "step":
            values = np.where(inputs["present"] > 0, inputs["observation"], np.nan).astype(np.float64)
            lags, noise = inputs["dt"].astype(np.float64), inputs["noise_scale"].astype(np.float64)
        else:
            horizon = inputs["horizon"].astype(np.float64).tolist()
        outputs = self._advance(inputs, Batch(np.arange(rows), lags, values, noise), tuple(horizon))
        return [outputs[name].astype(np.float32) for name in output_names or outputs]

    def _advance(self, inputs: Mapping[str, Array], batch: Batch, horizon: tuple[float, ...]) -> dict[str, Any]:
        rows = len(batch.slots)
        pool = StatePool(self.model.state_fields, rows)
        for row in range(rows):
            slot = pool.acquire()
            self.model.put(pool, slot, self.model.start())
            given = {name: inputs[f"state.{name}"][row] for name in self.steps.layout}
            pool.write(slot, {**self.steps.adopt(given), "clock.count": 1})
        passes = int(inputs["passes"][0]) if "passes" in inputs else None  # a case has one row
        readout = self.model.readout((0.9,), horizon, 0, ReadoutOptions(passes=passes))
        out, trace = self.steps.advance(pool, batch, readout, traced=True)
        following = {f"next.{name}": part for name, part in self.steps.split(trace.state).items()}
        precision, weight, nis, log_likelihood = trace.scalars.T
        return {
            "mean": out.mean, "covariance": trace.covariance, "precision": precision,
            "weight": weight,
            "innovation": np.nan_to_num(out.innovation),
            "innovation_covariance": trace.innovation_covariance, "nis": nis,
            "log_likelihood": log_likelihood,
            "transition": trace.transition,
            "predicted_mean": trace.predicted_mean, "predicted_covariance": trace.predicted_covariance,
            "forecast_mean": trace.forecast_mean, "forecast_covariance": trace.forecast_covariance, **following,
        }  # fmt: skip
