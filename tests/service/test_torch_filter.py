"""Long pieces of a series by the runtime for a GPU, on a CPU where there is none: beside the compiled network."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rfa.runtime.bundle.bundle import Bundle, BundleError, open_bundle
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.gpu import filter as torch_filter
from rfa.runtime.gpu.filter import TorchSeries, device_seconds, host_seconds
from rfa.runtime.outputs import LongSeries
from rfa.runtime.pool import StatePool
from rfa.runtime.series import chunk as series_chunk
from rfa.runtime.series.chunk import TOKENS
from rfa.runtime.series.config import FEATURES, SeriesConfig
from rfa.runtime.series.filter import SeriesRuntime, open_series
from rfa.runtime.uncertainty.interface import Piece
from rfa.service.engine import device
from rfa.service.engine.models import Models, load_models
from rfa.service.settings import Settings
from tests.service.live import answer, connected
from tests.service.models import model_info
from tests.small_series import exported

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Two orders of the sum of a row of the longest matrix, in each of the eleven products between a token and its state.
ROUNDING = 11 * FEATURES * 2.0**-24
# Scores are of an innovation over a width that is itself told, a tenth of the scale at least.
NARROWEST = 0.1
SCORES = ("weight", "nis", "anomaly", "log_likelihood")
ROWS, LEAST = 82, 32
HORIZON = (1.0, 2.4, 24.0)


@pytest.fixture(scope="module")
def bundle(bundle_cache: Path) -> Bundle:
    return exported(bundle_cache, "small-series")


@pytest.fixture
def on_torch(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeriesRuntime]:
    """As on a GPU, where pieces of so many tokens are worth it, and a chunk is no more than three patches."""
    monkeypatch.setattr(torch_filter, "least_tokens", lambda _: LEAST)
    monkeypatch.setattr(series_chunk, "TOKENS", 48)
    runtime = open_series(bundle, Recorded(bundle))
    yield runtime
    assert runtime.buffers.allocated_bytes <= runtime.kept_bytes


@pytest.fixture(scope="module")
def compiled(bundle: Bundle) -> SeriesRuntime:
    return open_series(bundle)


class Recorded(TorchSeries):
    """On a CPU, and how many tokens its calls had."""

    def __init__(self, bundle: Bundle, name: str = DEVICE) -> None:
        super().__init__(bundle, DEVICE)
        self.tokens: list[int] = []

    def run(self, chunk: Any, tokens: int, queries: int, column_states: Any) -> bool:
        self.tokens.append(tokens)
        return super().run(chunk, tokens, queries, column_states)


def calls(runtime: SeriesRuntime) -> list[int]:
    assert isinstance(runtime.device, Recorded)
    return runtime.device.tokens


def series(rows: int = ROWS) -> tuple[list[float], list[Any]]:
    """Two columns on an uneven clock: a gap of some patches, cells without a value, and looks at the stream."""
    rng = np.random.default_rng(4)
    lags = rng.choice([0.9, 1.0, 1.1, 3.0], rows)
    lags[rows // 2] = 70.0
    t = np.arange(rows)
    values = np.stack([50 + np.sin(t / 4), t / 9], 1) + 0.2 * rng.standard_normal((rows, 2))
    values[:5, 1] = np.nan
    values[rng.integers(5, rows, 9), 0] = np.nan
    values[20:22] = np.nan
    lags[21] = 0.0
    rounded = [[None if np.isnan(x) else float(x) for x in row] for row in values]
    return np.cumsum(lags).tolist(), [None if row == [None, None] else row for row in rounded]


def run_filter(runtime: SeriesRuntime, part: slice = slice(None), state: Any = None, **given: Any) -> tuple[Any, Any]:
    times, values = series()
    found = runtime.sized(2).filter(times[part], values[part], horizon=HORIZON, state=state, **given)
    pieces = [piece.outputs for piece in found.pieces]
    names = [name for name in pieces[0]._fields if name not in ("tally", "is_good", "position")]
    return {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}, found.state


def assert_equal_within_rounding(found: Any, reference: Any, rows: slice = slice(None)) -> None:
    for name, expected in reference.items():
        tolerance = ROUNDING / NARROWEST if name in SCORES else ROUNDING
        scale = np.nanmax(np.abs(expected), initial=1.0, where=~np.isnan(expected))
        np.testing.assert_allclose(found[name], expected[rows], rtol=tolerance, atol=tolerance * scale, err_msg=name)


def assert_states_agree(one: Any, other: Any) -> None:
    for name, expected in {**other.tensors, **other.adaptive}.items():
        tolerance = ROUNDING / NARROWEST * max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(
            {**one.tensors, **one.adaptive}[name], expected, rtol=1e-2, atol=tolerance, err_msg=name
        )


def test_the_golden_outputs_are_reproduced_and_those_of_other_weights_are_not(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = sum(len(part["values"]) for case in bundle.golden["cases"] for part in case["outputs"].values())
    assert TorchSeries(bundle, DEVICE).hold_to_golden() == values > 0
    weights = dict(bundle.weights())
    name = "blocks.1.mixer.value.weight"
    monkeypatch.setattr(bundle, "weights", lambda: {**weights, name: weights[name] * np.float32(1.01)})
    with pytest.raises(BundleError, match=r"golden\.json"):
        TorchSeries(bundle, DEVICE).hold_to_golden()


def test_a_series_is_the_same_in_halves_whichever_takes_them(on_torch: SeriesRuntime, compiled: SeriesRuntime) -> None:
    """In one piece, of several chunks; and with a state between, as bytes, from one to the other and back."""
    whole, end = run_filter(compiled)
    found, state = run_filter(on_torch)
    assert len(calls(on_torch)) > 3 and max(calls(on_torch)) <= 48 + 2 * 17
    assert_equal_within_rounding(found, whole)
    assert_states_agree(state, end)
    for first, second in ((on_torch, compiled), (compiled, on_torch)):
        before, state = run_filter(first, slice(0, 41))
        state = second.sized(2).unpack(first.sized(2).pack(state))
        after, state = run_filter(second, slice(41, None), state)
        assert_equal_within_rounding(before, whole, slice(0, 41))
        assert_equal_within_rounding(after, whole, slice(41, None))
        assert_states_agree(state, end)


def test_a_short_piece_stays_on_the_cpu_bit_for_bit(on_torch: SeriesRuntime, compiled: SeriesRuntime) -> None:
    """Tokens are rows times columns."""
    for rows, is_there in ((LEAST // 2 - 1, False), (LEAST // 2, True)):
        found, reference = (run_filter(model, slice(0, rows))[0] for model in (on_torch, compiled))
        assert bool(calls(on_torch)) is is_there
        equal = all(np.array_equal(found[name], reference[name], equal_nan=True) for name in reference)
        assert equal is not is_there


def spoil(monkeypatch: pytest.MonkeyPatch, runtime: SeriesRuntime, what: str) -> None:
    """Of the second chunk a number is none: of a quantile, or of what the stream would keep."""
    assert isinstance(runtime.device, TorchSeries)
    network = runtime.device.network
    real, seen = getattr(network, what), []

    def spoilt(*given: Any) -> Any:
        seen.append(real(*given))
        if len(seen) == 2:
            (seen[1] if what == "quantiles" else seen[1][2])[0] = torch.nan
        return seen[-1]

    monkeypatch.setattr(network, what, spoilt)


def fail_in_the_second_chunk(monkeypatch: pytest.MonkeyPatch, runtime: SeriesRuntime, error: Exception) -> list[Any]:
    """From here on; what it was asked for."""
    assert isinstance(runtime.device, TorchSeries)
    real, seen = runtime.device.network.quantiles, []

    def fail(*given: Any) -> Any:
        seen.append(given)
        if len(seen) == 2:
            raise error
        return real(*given)

    monkeypatch.setattr(runtime.device.network, "quantiles", fail)
    return seen


@pytest.mark.parametrize("what", ["states", pytest.param("quantiles", marks=pytest.mark.slow)])
def test_what_is_not_finite_there_reaches_no_state(
    on_torch: SeriesRuntime, compiled: SeriesRuntime, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The whole piece is taken by the compiled code: from the state before it, bit for bit."""
    spoil(monkeypatch, on_torch, what)
    found, state = run_filter(on_torch)
    reference, end = run_filter(compiled)
    assert len(calls(on_torch)) == 2
    assert all(np.array_equal(found[name], reference[name], equal_nan=True) for name in reference)
    assert on_torch.sized(2).pack(state) == compiled.sized(2).pack(end)


def test_what_finds_no_memory_there_is_computed_here(
    on_torch: SeriesRuntime,
    compiled: SeriesRuntime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The whole piece, from the state before it, bit for bit; the log says once what to do."""
    reference, end = run_filter(compiled)
    for asked in (1, 2):
        fail_in_the_second_chunk(monkeypatch, on_torch, torch.OutOfMemoryError())
        found, state = run_filter(on_torch)
        assert len(calls(on_torch)) == 2 * asked
        assert all(np.array_equal(found[name], reference[name], equal_nan=True) for name in reference)
        assert on_torch.sized(2).pack(state) == compiled.sized(2).pack(end)
        assert caplog.text.count("lower RFA_MAX_RUNNING or RFA_PROCESSES") == 1


def test_a_device_that_fails_leaves_the_stream_as_it_was(
    on_torch: SeriesRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = StatePool(on_torch.state_fields, 1)
    pool_slot = pool.acquire()
    on_torch.put(pool, pool_slot, on_torch.start())
    readout = on_torch.readout((0.9,), (), 0)
    rows = np.arange(100.0)
    on_torch.follow(pool, Piece(pool_slot, rows[:40], rows[:40, None], np.ones(40), readout, 0))
    before = on_torch.pack(on_torch.get(pool, pool_slot, 0))
    seen = fail_in_the_second_chunk(monkeypatch, on_torch, RuntimeError("an illegal access"))
    with pytest.raises(RuntimeError, match="an illegal access"):
        on_torch.follow(pool, Piece(pool_slot, rows[40:], rows[40:, None], np.ones(60), readout, 0))
    assert len(seen) == 2 and on_torch.pack(on_torch.get(pool, pool_slot, 0)) == before


# What is worth it, and what it needs.


@pytest.fixture
def default_config(bundles: Path) -> SeriesConfig:
    return SeriesConfig.from_dict(open_bundle(bundles / "series").config)


def test_the_least_tokens_are_the_first_whole_patches_that_pay(default_config: SeriesConfig, bundle: Bundle) -> None:
    least = torch_filter.least_tokens(default_config)
    assert least % 16 == 0 and 16 < least < TOKENS

    def pays(tokens: int) -> bool:
        return host_seconds(default_config, tokens) >= 2 * device_seconds(default_config, tokens)

    assert pays(least) and pays(TOKENS) and not pays(least - 16)
    assert torch_filter.least_tokens(SeriesConfig.from_dict(bundle.config)) > TOKENS
    assert "too small" in str(torch_filter.refusal(bundle, "cpu"))


def test_memory_is_asked_for_before_it_is_taken(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(bundles / "series")
    monkeypatch.setattr(torch_filter, "build_model", lambda *_: pytest.fail("it has begun"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (250 << 20, 80 << 30))
    with pytest.raises(UnsupportedError, match=r"bundle 'series' needs \d+ MiB .* 250 MiB are free"):
        TorchSeries(bundle, "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (300 << 20, 80 << 30))
    torch_filter.check_memory(bundle, SeriesConfig.from_dict(bundle.config))


# Through the door.

FACTS = [model_info("small-series", "series", "0" * 64, ("recurrent",))]


async def filtered(models: Models, body: dict[str, Any]) -> Any:
    async with connected(models, workers=1, series_threads=1) as client:
        return await answer(client, body)


def numbers(reply: Any) -> np.ndarray:
    """Of the steps, by rows."""
    parts = ("mean", "std", "interval", "forecast")
    return np.array([list(flat([step[part] for part in parts])) for step in reply["steps"]])


def flat(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from flat(part)
    else:
        yield float(value)


@pytest.mark.anyio
async def test_the_same_request_to_both_runtimes(on_torch: SeriesRuntime, compiled: SeriesRuntime) -> None:
    times, values = series()
    body = {
        "model": "small-series", "times": times, "observations": values, "levels": [0.5, 0.9], "horizon": [1, 24],
    }  # fmt: skip
    replies = [await filtered(Models({}, {"small-series": model}, FACTS), body) for model in (on_torch, compiled)]
    assert calls(on_torch)
    found, reference = map(numbers, replies)
    np.testing.assert_allclose(found, reference, rtol=ROUNDING, atol=ROUNDING * np.abs(reference).max())


def test_a_server_with_a_gpu_says_where_long_series_go(
    bundle: Bundle, oscillator_bundle: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(device, "check_gpu", lambda _: None)
    settings = Settings(bundles=(bundle.path, oscillator_bundle), device="cuda")
    with caplog.at_level(logging.INFO, "rfa.engine"):
        models = load_models(settings)
    long_pieces = {facts.name: facts.long_series for facts in models.facts}
    assert long_pieces["auto"] is None
    for name in ("small-series", "oscillator"):
        where = long_pieces[name]
        assert where is not None and (where.device, where.tokens) == ("cpu", None)
        assert f"bundle {name!r} filters long series on the CPU: {where.reason}" in caplog.text

    monkeypatch.setattr(torch_filter, "least_tokens", lambda _: LEAST)
    monkeypatch.setattr(torch_filter, "TorchSeries", Recorded)
    models = load_models(settings.replace(bundles=(bundle.path,)))
    (facts,) = (facts for facts in models.facts if facts.name == "small-series")
    assert facts.long_series == LongSeries("cuda", LEAST, None)
    runtime = models.filters["small-series"]
    assert isinstance(runtime, SeriesRuntime) and calls(runtime) == [LEAST]  # it was warmed
    runtime.filter(list(range(5)), [[0.0]] * 5)
    assert calls(runtime) == [LEAST]
    # What was warmed compiles nothing more, whatever is asked.
    runtime.sized(2).filter(list(range(LEAST)), [[0.0, None]] * LEAST, smooth=True, horizon=HORIZON, levels=(0.5,))
    assert calls(runtime) == [LEAST, LEAST]
