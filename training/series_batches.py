"""Create batches for the series network. A batch contains the tokens of series, horizons, and the values at these
horizons.

A series is averaged on a regular grid of time steps, which are called cells.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rfa.model.series.network import LeadQueries
from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.config import LAGS, PATCH
from rfa.runtime.series.leads import FARTHEST, clock_seasons
from rfa.training.synthetic.mixture import Split, draw

# Number of batches that each process prepares in advance.
AHEAD = 4
# The horizons of a token are the next cell, one of each quarter of the near horizons, and distant ones, which are
# sampled on a log scale.
NEAR, NEAR_LEADS, FAR_LEADS = 64, 5, 3
LEADS = NEAR_LEADS + FAR_LEADS
# Training part of a recorded series.
TRAINED_SHARE = 0.8
# In half of the series, a quarter of the tokens end early, like the last token of a stream, whose patch is incomplete.
JITTERED_SERIES, JITTERED_TOKENS = 0.5, 0.25
# Fraction of the series with dates whose tokens contain the daily, weekly and yearly season.
CALENDAR_SHARE = 0.6
# Of 8 batches, 2 have short series, with an eighth of the tokens each, and 1 has long series, with twice as many
# tokens.
SHORT, LONG, OF_BATCHES = 2, 1, 8
SHORT_PART, LONG_PART = 8, 2
# Minimum number of values in a series up to a token whose forecasts are trained, and bound on targets after asinh.
SEEN_BEFORE, FARTHEST_TARGET = 4, 10.0


class Cells(NamedTuple):
    """A series that is averaged on a regular grid of time steps (cells).

    Attributes:
        values: Mean of the values in each cell, `[C]` float64, NaN if a cell is empty. The first cell is not empty.
        start: Time of the first cell, in seconds.
        step: Length of a cell, in seconds.
        has_calendar: Whether times are dates.
    """

    values: np.ndarray
    start: float
    step: float
    has_calendar: bool


class SeriesBatch(NamedTuple):
    """A batch of B series with N tokens each, and K horizons per token.

    Attributes:
        tokens: Tokens, `[B, N, FEATURES]`.
        ends: Number of cells up to the end of each token, `[B, N]`.
        asked: Horizons of the forecasts, with their paths.
        targets: asinh((y - c) / s), `[B, N, K]`, where y are the values at the horizons, and c and s are the centre and
            the scale of the token.
        weights: 1 if there is a target, else 0, `[B, N, K]`.
    """

    tokens: Tensor
    ends: Tensor
    asked: LeadQueries
    targets: Tensor
    weights: Tensor


def cells_of(times: np.ndarray, values: np.ndarray, step: float, count: int, *, has_calendar: bool) -> Cells | None:
    """Average values on a grid of at most `count` cells that starts at the first value, or return None if there are no
    values.

    Args:
        times: Times in seconds, `[N]`.
        values: Values, `[N]`. NaN marks a missing value.
        step: Length of a cell in seconds.
        count: Maximum number of cells.
        has_calendar: Whether times are dates.
    """
    seen = np.flatnonzero(np.isfinite(values))
    if not len(seen):
        return None
    start = times[seen[0]]
    index = np.rint((times[seen] - start) / step).astype(np.int64)
    seen, index = seen[index < count], index[index < count]
    total, number = (np.bincount(index, weights) for weights in (values[seen], None))
    with np.errstate(invalid="ignore"):
        return Cells(total / number, float(start), float(step), has_calendar)


class TokenPlan(NamedTuple):
    """Settings for the conversion of series to tokens.

    Attributes:
        tokens: Number of tokens per series.
        early_series: Fraction of series in which some tokens end before their patch is complete.
        early_tokens: Fraction of such tokens in these series.
    """

    tokens: int
    early_series: float = JITTERED_SERIES
    early_tokens: float = JITTERED_TOKENS


def batch_of(series: list[Cells], rng: np.random.Generator, plan: TokenPlan) -> SeriesBatch:
    """Return the tokens of each series, the horizons for each token, and the values at the horizons. Most tokens are
    one patch apart; some end earlier."""
    shape = (len(series), plan.tokens, LEADS)
    ends = _ends(rng, len(series), plan)
    leads = _leads(rng, shape)
    tokens = SeriesTokens.allocate(shape)
    came = np.full(shape, np.nan)
    shows_calendar = rng.random(len(series)) < CALENDAR_SHARE
    for i, one in enumerate(series):
        knows = one.has_calendar and bool(shows_calendar[i])
        seasons = clock_seasons(one.step) if knows else np.zeros(LAGS, np.int64)
        describe(one.values, ends[i], leads[i], SeriesTokens(*(part[i] for part in tokens)), seasons)
        at = ends[i, :, None] - 1 + leads[i]
        padded = np.append(one.values, np.nan)
        came[i] = padded[np.minimum(at, len(one.values))]
        seen = np.cumsum(np.isfinite(one.values))[np.minimum(ends[i], len(one.values)) - 1]
        came[i, (seen < SEEN_BEFORE) | (ends[i] > len(one.values))] = np.nan
    # A constant series has no scale, so it has no targets.
    came[tokens.scales <= 2e-9 * np.abs(tokens.centres)] = np.nan
    is_there = np.isfinite(came)
    away = np.where(is_there, came - tokens.centres[..., None], 0.0) / tokens.scales[..., None]
    targets = np.clip(np.arcsinh(away), -FARTHEST_TARGET, FARTHEST_TARGET).astype(np.float32)
    queries = LeadQueries(*map(torch.from_numpy, (leads, tokens.paths)))
    arrays = (tokens.features, ends, targets, is_there.astype(np.float32))
    features, cells, target_values, weights = map(torch.from_numpy, arrays)
    return SeriesBatch(features, cells, queries, target_values, weights)


def _ends(rng: np.random.Generator, series: int, plan: TokenPlan) -> np.ndarray:
    """Return the number of cells up to the end of each token, `[B, N]`."""
    shape = (series, plan.tokens)
    is_early = (rng.random(shape) < plan.early_tokens) & (rng.random((series, 1)) < plan.early_series)
    return np.cumsum(np.where(is_early, rng.integers(1, PATCH, shape), PATCH), axis=1)


def _leads(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Sample horizons for each token, in cells, `[B, N, K]`."""
    count = NEAR_LEADS - 1
    width = NEAR // count
    near = 1 + width * np.arange(count) + rng.integers(0, width, (*shape[:2], count))
    near = np.concatenate([np.ones((*shape[:2], 1), np.int64), near], axis=2)
    far = np.exp(rng.uniform(np.log(NEAR + 1), np.log(FARTHEST + 1), (*shape[:2], FAR_LEADS))).astype(np.int64)
    return np.concatenate([near, far], axis=2)


def synthetic_batch(seed: int, series: int, tokens: int, index: int = 0, split: Split = "training") -> SeriesBatch:
    """Return batch `index` of synthetic series. The result depends only on the arguments.

    Some batches contain more but shorter series, or fewer but longer series, with the same total number of tokens.

    Args:
        seed: Seed of the run.
        series: Number of series per batch.
        tokens: Number of tokens per series.
        index: Index of the batch.
        split: "training" or "validation".
    """
    rng = np.random.default_rng(np.random.SeedSequence((seed, index), spawn_key=(0 if split == "training" else 1, 1)))
    plan, is_short = TokenPlan(tokens), False
    if tokens % SHORT_PART == 0 and tokens >= 2 * SHORT_PART and series % LONG_PART == 0:
        # Eight consecutive validation batches contain short, long and other batches in the configured proportion.
        kind = int(rng.integers(OF_BATCHES)) if split == "training" else index % OF_BATCHES
        is_short = kind < SHORT
        if is_short:
            series, plan = series * SHORT_PART, plan._replace(tokens=tokens // SHORT_PART, early_tokens=0.9)
        elif kind < SHORT + LONG:
            series, plan = series // LONG_PART, plan._replace(tokens=tokens * LONG_PART)
    cells = plan.tokens * PATCH + (PATCH * 2 if is_short else FARTHEST // 2)
    drawn = draw(seed, series, cells, index=index, split=split, is_short=is_short)
    parts = zip(drawn.times, drawn.values, drawn.step, drawn.has_calendar, strict=True)
    found = [
        cells_of(times, values, step, cells, has_calendar=bool(has_calendar))
        for times, values, step, has_calendar in parts
    ]
    # A series without values is replaced by one cell, which gives no targets.
    nothing = Cells(np.zeros(1), 0.0, 1.0, False)
    return batch_of([one or nothing for one in found], rng, plan)


class Recorded:
    """Samples windows of recorded series. The last fifth of each series is held out.

    Args:
        series: Series to train on. Series that are shorter than two patches are omitted.
        tokens: Number of tokens per window.

    Raises:
        ValueError: If all series are shorter than two patches.
    """

    def __init__(self, series: Sequence[Cells], tokens: int) -> None:
        self._tokens, self._plan = tokens, TokenPlan(tokens)
        self._parts = [(one, int(TRAINED_SHARE * len(one.values))) for one in series if len(one.values) >= 2 * PATCH]
        if not self._parts:
            raise ValueError(
                f"training needs a series of at least {2 * PATCH} regular time steps, but all series are shorter"
            )

    def batch(self, seed: int, count: int, index: int) -> SeriesBatch:
        """Return `count` windows of the training parts of random series. The result depends only on the arguments."""
        rng = np.random.default_rng(np.random.SeedSequence((seed, index), spawn_key=(2,)))
        windows = []
        for which in rng.integers(0, len(self._parts), count).tolist():
            one, end = self._parts[which]
            last = int(rng.integers(min(2 * PATCH, end), end + 1))
            windows.append(_window(one, max(0, last - self._cells), last))
        return batch_of(windows, rng, self._plan)

    def held_out(self) -> SeriesBatch:
        """Return one window per series, which contains the start of the held-out part and the values before it. Targets
        have weight 1 only if their token is in the held-out part."""
        windows, begins = [], []
        for one, end in self._parts:
            begin = max(0, end - self._tokens * PATCH // 2)
            windows.append(_window(one, begin, min(len(one.values), begin + self._cells)))
            begins.append(end - begin)
        batch = batch_of(windows, np.random.default_rng(0), self._plan)
        is_later = batch.ends >= torch.tensor(begins)[:, None]
        return batch._replace(weights=batch.weights * is_later[..., None])

    @property
    def _cells(self) -> int:
        return self._tokens * PATCH + FARTHEST // 2


def _window(one: Cells, begin: int, end: int) -> Cells:
    """Return the cells `begin` to `end` of a series, without empty cells at the start."""
    values = one.values[begin:end]
    seen = np.flatnonzero(np.isfinite(values))
    first = int(seen[0]) if len(seen) else 0
    values = values[first:] if len(seen) else np.zeros(1)
    return Cells(values, one.start + (begin + first) * one.step, one.step, one.has_calendar)


class _SyntheticBatches(IterableDataset[SeriesBatch]):
    """Data set of synthetic batches. Each of W worker processes creates every W-th batch."""

    def __init__(self, seed: int, series: int, tokens: int, first: int) -> None:
        super().__init__()
        self._asked, self._first = (seed, series, tokens), first

    def __iter__(self) -> Iterator[SeriesBatch]:
        worker = get_worker_info()
        begin, every = (self._first + worker.id, worker.num_workers) if worker else (self._first, 1)
        for index in itertools.count(begin, every):
            yield synthetic_batch(*self._asked, index)


def feed(
    seed: int,
    series: int,
    tokens: int,
    *,
    first: int = 0,
    workers: int = 0,
    is_pinned: bool = False,
) -> Iterator[SeriesBatch]:
    """Yield the synthetic batches `first`, first + 1, … The batches do not depend on the number of workers.

    Args:
        seed, series, tokens: See `synthetic_batch`.
        first: Number of batches that a resumed training has already used.
        workers: Number of worker processes. If it is 0, this process creates the batches.
        is_pinned: Whether to use pinned memory.
    """
    loader: DataLoader[SeriesBatch] = DataLoader(
        _SyntheticBatches(seed, series, tokens, first),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=_leave_interrupts if workers else None,
        pin_memory=is_pinned,
    )
    return iter(loader)


def to_device(batch: SeriesBatch, device: torch.device) -> SeriesBatch:
    """Return a copy of a batch on a device. The copy is asynchronous if the batch is in pinned memory."""
    tokens, ends, asked, targets, weights = batch
    moved = [x.to(device, non_blocking=True) for x in (tokens, ends, *asked, targets, weights)]
    return SeriesBatch(moved[0], moved[1], LeadQueries(*moved[2:4]), *moved[4:])


def on_device(batches: Iterator[SeriesBatch], device: torch.device) -> Iterator[SeriesBatch]:
    """Yield batches on a device. On a GPU, the next batch is copied during the computation."""
    if device.type != "cuda":
        yield from batches
        return
    copies = torch.cuda.Stream(device)

    def copied() -> SeriesBatch:
        with torch.cuda.stream(copies):
            return to_device(next(batches), device)

    ahead = copied()
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(copies)
        batch = ahead
        for x in (batch.tokens, batch.ends, *batch.asked, batch.targets, batch.weights):
            x.record_stream(current)
        ahead = copied()
        yield batch


def _leave_interrupts(_: int) -> None:
    """Ignore SIGINT in a worker process, because the training process handles the signal and saves its state."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
