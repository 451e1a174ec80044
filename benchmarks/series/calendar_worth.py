"""What the calendar is worth to the series network: the losses of the shipped weights told it, over those not told it.

    python -m rfa.benchmarks.series.calendar_worth --data NAB     prints it, in a quarter of an hour of one core

The network's head takes the calendar of each cell that it is asked about (`calendar_numbers`), and the server tells it
none. Asked both ways are the synthetic series that training keeps for validation, those that have a calendar, by
training's own loss at near and far leads; and NAB's, on the clock of their files, the earlier CHOICE of each, by the
score of 90 % intervals AHEAD cells ahead, upper - lower + 20 times what a value is outside. Means are geometric over
series, with their standard errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from rfa.benchmarks.nab.benchmark import CHOICE, load_nab
from rfa.benchmarks.series.network_forecast import shipped
from rfa.model.series.network import Asked, SeriesNetwork
from rfa.runtime.series.config import FEATURES, PATCH, PATHS
from rfa.runtime.series.leads import CALENDAR, FARTHEST, calendar_numbers
from rfa.runtime.series.tokens_numba import describe
from rfa.training.series_batches import NEAR_LEADS, SEEN_BEFORE, Cells, batch_of, cells_of
from rfa.training.series_network import NINETY, pinball
from rfa.training.synthetic.mixture import draw

Array = np.ndarray
BATCHES, SERIES, TOKENS = 40, 64, 128
PARTS = {"near": slice(None, NEAR_LEADS), "far": slice(NEAR_LEADS, None)}
AHEAD = (1, 48)
# Of what an interval of 90 % leaves out on each side.
TAIL = 0.05


class Worth(NamedTuple):
    """Series, and told over not told: geometric mean, standard error of its logarithm, the share of series where it is
    below one."""

    series: int
    ratio: float
    error: float
    better: float


def worth(losses: Array) -> Worth:
    """Of losses `[S, 2]`, not told and told; series with none of either are left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(losses[:, 1] / losses[:, 0])
    logs = logs[np.isfinite(logs)]
    return Worth(
        len(logs),
        float(np.exp(logs.mean())),
        float(logs.std(ddof=1) / np.sqrt(len(logs))),
        float((logs < 0).mean()),
    )


def both(asked: Asked, ends: torch.Tensor, series: Sequence[Cells]) -> tuple[Asked, Asked]:
    """What is asked without a calendar, and with that of the cells that it is about."""
    start, step = (np.array([getattr(one, name) for one in series])[:, None, None] for name in ("start", "step"))
    at = (ends[..., None] - 1 + asked.leads).numpy()
    calendar = torch.from_numpy(calendar_numbers(start + step * at))
    return asked._replace(calendar=torch.zeros_like(calendar)), asked._replace(calendar=calendar)


def drawn(index: int) -> list[tuple[Cells, tuple[str, ...]]]:
    """Synthetic series with a calendar, and the families in them."""
    count = TOKENS * PATCH + FARTHEST // 2
    batch = draw(0, SERIES, count, index=index, split="validation")
    parts = zip(batch.times, batch.values, batch.step, batch.families, strict=True)
    found = [
        (cells_of(times, values, step, count, has_calendar=True), families)
        for (times, values, step, families), has_calendar in zip(parts, batch.has_calendar, strict=True)
        if has_calendar
    ]
    return [(one, families) for one, families in found if one is not None]


@torch.no_grad()
def synthetic_losses(model: SeriesNetwork, series: Sequence[Cells], rng: np.random.Generator) -> Array:
    """`[S, PARTS, 2]` not told and told."""
    batch = batch_of(list(series), rng, TOKENS)
    states = model.states(batch.tokens, batch.ends)
    found = []
    for asked in both(batch.asked, batch.ends, series):
        losses = pinball(model.head(states, asked), batch) * batch.weights
        sums = [losses[..., leads].sum((1, 2)) / batch.weights[..., leads].sum((1, 2)) for leads in PARTS.values()]
        found.append(torch.stack(sums, 1).numpy())
    return np.stack(found, 2)


@torch.no_grad()
def interval_scores(model: SeriesNetwork, one: Cells) -> Array:
    """`[AHEAD, 2]` not told and told, means over the patches of a series."""
    ends = np.arange(PATCH, len(one.values) + 1, PATCH)
    leads = np.tile(AHEAD, (len(ends), 1))
    tokens, paths = np.zeros((len(ends), FEATURES), np.float32), np.zeros((*leads.shape, PATHS), np.float32)
    centres, scales = np.zeros(len(ends)), np.ones(len(ends))
    describe(one.values, ends, leads, tokens, centres, scales, paths)
    nothing = np.zeros((*leads.shape, CALENDAR), np.float32)
    token, end, *parts = (torch.from_numpy(part)[None] for part in (tokens, ends, leads, paths, nothing))
    asked, states = Asked(*parts), model.states(token, end)
    came = np.append(one.values, np.nan)[np.minimum(ends[:, None] - 1 + leads, len(one.values))]
    came[np.cumsum(np.isfinite(one.values))[ends - 1] < SEEN_BEFORE] = np.nan
    scores = []
    for question in both(asked, end, [one]):
        limits = model.head(states, question)[0, :, :, list(NINETY)].double().numpy()
        low, high = np.moveaxis(centres[:, None, None] + scales[:, None, None] * np.sinh(limits), -1, 0)
        outside = np.maximum(low - came, 0) + np.maximum(came - high, 0)
        scores.append(np.nanmean(high - low + outside / TAIL, axis=0))
    return np.array(scores).T


def recorded(folder: Path) -> list[list[Cells]]:
    """The earlier part of each of NAB's series on cells of its usual lag, begun at each row of a patch: so the ends of
    their patches are all rows."""
    found = []
    for one in load_nab(folder):
        end = int(CHOICE * len(one.times))
        step = float(np.median(np.diff(one.times[:end])))
        count = int((one.times[end - 1] - one.times[0]) / step) + 2
        parts = (slice(begin, end) for begin in range(PATCH))
        begun = [cells_of(one.times[part], one.values[part], step, count, has_calendar=True) for part in parts]
        found.append([cells for cells in begun if cells is not None])
    return found


def line(what: str, losses: Array) -> str:
    """A row of the table."""
    found = worth(losses)
    change, error = 100 * (found.ratio - 1), 100 * found.error
    return f"| {what} | {found.series} | {change:+.2f} % ± {error:.2f} | {found.better:.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of NAB")
    given = parser.parse_args()
    model = shipped()
    losses, has_family = [], []
    for index in tqdm(range(BATCHES), disable=None):
        series, families = zip(*drawn(index), strict=True)
        losses.append(synthetic_losses(model, series, np.random.default_rng(index)))
        has_family += ["calendar" in names for names in families]
    synthetic = np.concatenate(losses)
    scores = np.array(
        [
            np.mean([interval_scores(model, one) for one in begun], axis=0)
            for begun in tqdm(recorded(given.data), disable=None)
        ]
    )
    print("| told over not told | series | loss | better in |\n|---|---:|---:|---:|")
    for i, name in enumerate(PARTS):
        print(line(f"synthetic, {name}", synthetic[:, i]))
        print(line(f"those with work and rest in them, {name}", synthetic[has_family, i]))
    for i, step in enumerate(AHEAD):
        print(line(f"NAB, {step} ahead", scores[:, i]))


if __name__ == "__main__":
    main()
