"""Long series on a GPU as `/filter` runs them: the network of `series` on the GPU and on the CPU.

Golden outputs and the outputs of both are compared first. Times are of whole series, on the host's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from rfa.benchmarks.gpu.device import gpu_hardware, require_gpu
from rfa.benchmarks.gpu.paired import Bar, Timer, host_clock, interleaved, quantiles, ratio
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.measured import origin
from rfa.runtime.bundle.bundle import Bundle, BundleError, open_bundle
from rfa.runtime.bundle.locate import default_bundles
from rfa.runtime.gpu.filter import TorchSeries
from rfa.runtime.series.config import FEATURES
from rfa.runtime.series.filter import SeriesRuntime, compile_tasks, open_series

BUNDLE: Final = "series"
# Rows and columns.
SHAPES: Final = {"one column": (16_384, 1), "sixteen columns": (2_048, 16)}
HORIZON: Final = (1.0, 24.0)
ROUNDS: Final = 5
# Two summation orders of a row of the longest matrix, in each of the eleven products between a token and its state.
ROUNDING: Final = 11 * FEATURES * 2.0**-24
COMPARED: Final = ("mean", "std", "interval", "moments", "bands")
# Minimum speed-up by the GPU.
SPEED_BAR: Final = 1.0


def series_of(rows: int, columns: int) -> tuple[list[float], list[list[float]]]:
    """Return times and values: a daily season, a slope and noise."""
    t = np.arange(rows)
    noise = np.random.default_rng(0).standard_normal((rows, columns))
    values = 50 + 10 * np.sin(2 * np.pi * t / 24)[:, None] + 0.01 * t[:, None] + noise
    return t.astype(float).tolist(), values.tolist()


def outputs(runtime: SeriesRuntime, rows: int, columns: int) -> dict[str, np.ndarray]:
    """Return the outputs of every row of a series."""
    times, values = series_of(rows, columns)
    pieces = [piece.outputs for piece in runtime.sized(columns).filter(times, values, horizon=HORIZON).pieces]
    return {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in COMPARED}


def check_series(
    ours: SeriesRuntime, compiled: SeriesRuntime, shapes: Mapping[str, tuple[int, int]]
) -> dict[str, float]:
    """Return the largest difference of the outputs of each shape, relative to the largest value of their kind."""
    errors = {}
    for shape, size in shapes.items():
        found, expected = outputs(ours, *size), outputs(compiled, *size)
        each = {
            name: float(np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max()) for name in COMPARED
        }
        worst = max(each, key=lambda name: each[name])
        if not each[worst] <= ROUNDING:
            raise WrongResultError(f"series, {shape}: {worst} has relative error {each[worst]:.2g} beside the CPU's")
        errors[shape] = each[worst]
    return errors


def measure_series(
    ours: SeriesRuntime, compiled: SeriesRuntime, shapes: Mapping[str, tuple[int, int]], timer: Timer
) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Return paired times of whole series, and the speed-up by the GPU."""
    rows: list[dict[str, Any]] = []
    faster: dict[str, float] = {}
    for shape, (count, columns) in shapes.items():
        times, values = series_of(count, columns)
        cases: dict[str, Callable[[], object]] = {
            name: partial(_whole, runtime.sized(columns), times, values)
            for name, runtime in (("gpu", ours), ("cpu", compiled))
        }
        samples = interleaved(cases, timer, rounds=ROUNDS, warmups=1, label=shape)
        for name, taken in samples.items():
            summary = quantiles(taken)
            per_second = round(1e3 * count * columns / summary["p50_ms"])
            rows.append({"network": name, "series": shape, **summary, "rows_per_second": per_second})
        faster[shape] = 1.0 / ratio(samples["gpu"], samples["cpu"])
    bars = [Bar(f"{shape}: speed / that without the GPU", SPEED_BAR, times_faster, is_minimum=True)
            for shape, times_faster in faster.items()]  # fmt: skip
    return rows, bars


def _whole(runtime: SeriesRuntime, times: list[float], values: list[list[float]]) -> None:
    for _ in runtime.filter(times, values, horizon=HORIZON).pieces:
        pass


def both(bundle: Bundle, device: str) -> tuple[SeriesRuntime, SeriesRuntime]:
    """Return the model with its network on a device, and compiled. Both are checked against golden outputs."""
    runtimes = open_series(bundle, TorchSeries(bundle, device)), open_series(bundle)
    try:
        for runtime in runtimes:
            first, then = compile_tasks(bundle, runtime, lambda _: None)
            for _, task in [*first, *then]:
                task()
    except BundleError as error:
        raise WrongResultError(f"series: {error}") from error
    return runtimes


def run_series_gpu() -> dict[str, Any]:
    """Check the packaged model, then measure it. Most of the time is spent compiling its network for the CPU."""
    device = require_gpu()
    packaged = open_bundle(next(path for path in default_bundles() if path.name == BUNDLE))
    runtimes = both(packaged, str(device))
    errors = check_series(*runtimes, SHAPES)
    rows, bars = measure_series(*runtimes, SHAPES, host_clock)
    return {
        **origin("rfa gpu-check"), "hardware": gpu_hardware(device), "errors": errors, "rows": rows,
        "bars": [bar.to_dict() for bar in bars],
    }  # fmt: skip
