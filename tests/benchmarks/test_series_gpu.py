"""Long series of `rfa gpu-check`, on a CPU in the GPU's place: what is compared, told and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rfa.benchmarks.gpu.series import ROUNDING, both, check_series, measure_series
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.runtime.gpu import filter as torch_filter
from rfa.runtime.series.filter import SeriesRuntime
from tests.small_series import exported

SHAPES = {"one column": (96, 1), "two columns": (48, 2)}


@pytest.fixture(scope="module")
def runtimes(bundle_cache: Path) -> tuple[SeriesRuntime, SeriesRuntime]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_filter, "least_tokens", lambda _: 32)
        return both(exported(bundle_cache, "small-series"), "cpu")


def test_both_are_compared_then_timed(runtimes: tuple[SeriesRuntime, SeriesRuntime]) -> None:
    errors = check_series(*runtimes, SHAPES)
    # Another order of the sums: not the same numbers, and no others.
    assert errors.keys() == SHAPES.keys() and all(0 < error <= ROUNDING for error in errors.values())
    rows, bars = measure_series(*runtimes, SHAPES, lambda call: 1.0)
    assert [(row["series"], row["network"]) for row in rows] == [
        (shape, name) for shape in SHAPES for name in ("gpu", "cpu")
    ]
    assert [row["rows_per_second"] for row in rows] == [96_000, 96_000, 96_000, 96_000]
    assert [(bar.actual, bar.is_met) for bar in bars] == [(1.0, True)] * 2


def test_a_network_that_tells_others_is_wrong(
    runtimes: tuple[SeriesRuntime, SeriesRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, compiled = runtimes
    assert isinstance(ours.device, torch_filter.TorchSeries)
    honest = ours.device.network.quantiles
    monkeypatch.setattr(ours.device.network, "quantiles", lambda *given: 1.001 * honest(*given))
    with pytest.raises(WrongResultError, match="one column"):
        check_series(ours, compiled, SHAPES)
