"""Sample series for training. They are sums of signals from several families, observed with link functions, noise and
faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rfa.training.synthetic.autoregression import autoregression, long_memory
from rfa.training.synthetic.chaos import chaos
from rfa.training.synthetic.clock import Clock, draw_clock
from rfa.training.synthetic.counts import counted, intermittent
from rfa.training.synthetic.events import events, resets
from rfa.training.synthetic.faults import disturb, lose
from rfa.training.synthetic.gaussian import features, gaussian, rbf_frequencies
from rfa.training.synthetic.linear_sde import linear_sde
from rfa.training.synthetic.links import in_units, link
from rfa.training.synthetic.noise import noise
from rfa.training.synthetic.nonlinear_sde import nonlinear_sde
from rfa.training.synthetic.priors import choose, log_uniform
from rfa.training.synthetic.regimes import regimes
from rfa.training.synthetic.seasons import calendar, daylight, harmonic, profile
from rfa.training.synthetic.signals import modulated, pulses
from rfa.training.synthetic.structural import growth, structural
from rfa.training.synthetic.trends import breaks, trend, walk

Family = Callable[[np.random.Generator, Clock], np.ndarray]
Split = Literal["training", "validation"]

# Functions that return a component of a signal at the times of a clock, `[B, N]`. Components have no unit.
FAMILIES: dict[str, Family] = {
    "calendar": calendar,
    "daylight": daylight,
    "harmonic": harmonic,
    "profile": profile,
    "pulses": pulses,
    "modulated": modulated,
    "trend": trend,
    "breaks": breaks,
    "walk": walk,
    "gaussian": gaussian,
    "autoregression": autoregression,
    "long_memory": long_memory,
    "regimes": regimes,
    "linear_sde": linear_sde,
    "nonlinear_sde": nonlinear_sde,
    "chaos": chaos,
    "events": events,
    "resets": resets,
    "structural": structural,
    "growth": growth,
}
# Functions that convert a signal to counts or demand. These replace the signal with noise.
OBSERVED = {"counted": counted, "intermittent": intermittent}

SEASONS = {"calendar": 45, "harmonic": 25, "profile": 22, "daylight": 4, "linear_sde": 4}
LEVELS = {"trend": 25, "breaks": 12, "walk": 30, "gaussian": 23, "growth": 10}
PROCESSES = {
    "autoregression": 30,
    "long_memory": 15,
    "linear_sde": 20,
    "gaussian": 12,
    "regimes": 10,
    "nonlinear_sde": 8,
    "walk": 5,
}
WALKS = {"walk": 40, "autoregression": 18, "long_memory": 10, "linear_sde": 12, "gaussian": 10, "regimes": 10}
SIGNALS = {"pulses": 35, "modulated": 15, "chaos": 20, "nonlinear_sde": 20, "linear_sde": 10}
EVENTS = {"events": 45, "resets": 30, "regimes": 25}
STRUCTURAL, GROWTH = {"structural": 1}, {"growth": 75, "trend": 25}


class Recipe(NamedTuple):
    """Distribution of one kind of series.

    Args:
        weight: Weight of the kind.
        slots: For each component, the weights of its families, and the probability that a series has the component.
        clean: Fraction of series without noise.
        noise: Range of the ratio of noise to signal, which is sampled log-uniformly.
    """

    weight: float
    slots: tuple[tuple[Mapping[str, float], float], ...]
    clean: float
    noise: tuple[float, float]


RECIPES = {
    "seasonal": Recipe(
        42,
        ((SEASONS, 1), (SEASONS, 0.4), (SEASONS, 0.1), (LEVELS, 0.75), (PROCESSES, 0.3), (EVENTS, 0.12)),
        0.06, (0.01, 1.5),
    ),
    "structural": Recipe(15, ((STRUCTURAL, 1), (EVENTS, 0.06)), 0.85, (0.003, 0.1)),
    "smooth": Recipe(8, ((GROWTH, 1), (SEASONS, 0.5), (PROCESSES, 0.15)), 0.3, (0.001, 0.1)),
    "walking": Recipe(17, ((WALKS, 1), (LEVELS, 0.4), (SEASONS, 0.2)), 0.5, (0.01, 1)),
    "signal": Recipe(7, ((SIGNALS, 1), (SIGNALS, 0.15), (LEVELS, 0.3)), 0.4, (0.003, 0.3)),
    "eventful": Recipe(8, ((EVENTS, 1), (EVENTS, 0.2), (SEASONS, 0.35), (LEVELS, 0.3)), 0.2, (0.01, 0.5)),
    "counted": Recipe(6, ((SEASONS, 0.7), (LEVELS, 0.6), (PROCESSES, 0.3), (EVENTS, 0.15)), 1, (1, 1)),
    "intermittent": Recipe(3, ((SEASONS, 0.6), (LEVELS, 0.5)), 1, (1, 1)),
}  # fmt: skip
# Fraction of series whose season is multiplied by the level, and fraction of the other series whose season changes its
# size independently.
MULTIPLIED, SWELLS = 0.35, 0.25
# Fraction of series with a change of season and level, and fraction of mixtures of up to three series (TSMixup; Ansari
# et al., Chronos, 2024).
CHANGED, MIXED = 0.06, 0.08
SHORTEST_LENGTH = 64


@dataclass(frozen=True)
class Drawn:
    """A batch of sampled series.

    Args:
        times: Seconds since the epoch, `[B, N]` float64, increasing.
        values: Observed values, `[B, N]` float64. Missing values, and values before the start of a short history, are
            NaN.
        truth: Signal in the units of the values, without noise, rounding, outliers and gaps, `[B, N]` float64. For
            counts and demand, it is their mean.
        step: Nominal step in seconds, `[B]`.
        has_calendar: Whether times are dates, `[B]`.
        families: Families of the components of each series.
    """

    times: np.ndarray
    values: np.ndarray
    truth: np.ndarray
    step: np.ndarray
    has_calendar: np.ndarray
    families: tuple[tuple[str, ...], ...]


def draw(
    seed: int, count: int, length: int = 1088, *, index: int = 0, split: Split = "training", is_short: bool = False
) -> Drawn:
    """Sample a batch of series. The result depends only on the arguments.

    Args:
        seed: Seed of a run.
        count: Number of series B.
        length: Number of values N of each series.
        index: Index of the batch.
        split: Name of the split. Different splits never have the same random numbers, whatever their seeds.
        is_short: Whether the time steps are those of short series, mostly months, quarters, weeks and days.

    Raises:
        ValueError: If `seed` or `index` is negative, `count` is not positive, or `length` is too small.
    """
    if seed < 0 or index < 0 or count < 1:
        raise ValueError(f"seed and index must be >= 0, and count >= 1, got {seed}, {index} and {count}")
    if length < SHORTEST_LENGTH:
        raise ValueError(f"length must be at least {SHORTEST_LENGTH}, got {length}")
    key = (0 if split == "training" else 1,)
    rng = np.random.default_rng(np.random.SeedSequence((seed, index), spawn_key=key))
    clock = draw_clock(rng, count, length, is_short=is_short)
    recipe = choose(rng, {name: one.weight for name, one in RECIPES.items()}, count)
    signal, families = compose(rng, clock, recipe)
    values, truth = _seen(rng, clock, recipe, signal)
    disturb(rng, values)
    lose(rng, values, clock)
    names = tuple(
        (*found, name) if name in OBSERVED else found for found, name in zip(families, recipe.tolist(), strict=True)
    )
    return Drawn(clock.times, values, truth, clock.step, clock.has_calendar, names)


def compose(
    rng: np.random.Generator, clock: Clock, recipe: np.ndarray
) -> tuple[np.ndarray, tuple[tuple[str, ...], ...]]:
    """Return signals with mean 0 and variance 1, `[B, N]`, and their families.

    Args:
        rng: Random generator.
        clock: Times of the series.
        recipe: Key of RECIPES for each series, `[B]`.
    """
    seasonal, other = np.zeros((2, clock.count, clock.length))
    families: list[list[str]] = [[] for _ in range(clock.count)]
    for name, is_season, rows in _components(rng, recipe):
        component = standard(FAMILIES[name](rng, clock[rows]))
        size = np.exp(0.7 * rng.standard_normal((len(rows), 1))) * rng.choice([-1.0, 1.0, 1.0, 1.0], (len(rows), 1))
        (seasonal if is_season else other)[rows] += size * component
        for row in rows:
            families[row].append(name)
    _change(rng, seasonal, other)
    is_multiplied = rng.random(clock.count) < MULTIPLIED
    rows = np.flatnonzero(is_multiplied)
    seasonal[rows] *= np.exp(rng.uniform(0.2, 0.8, (len(rows), 1)) * np.tanh(standard(other[rows])))
    rows = np.flatnonzero(~is_multiplied & (rng.random(clock.count) < SWELLS / (1 - MULTIPLIED)))
    slow = rbf_frequencies(rng, log_uniform(rng, clock.length / 10, clock.length, len(rows)), 8)
    seasonal[rows] *= np.exp(rng.uniform(0.1, 0.7, (len(rows), 1)) * features(rng, clock.steps[rows], slow))
    return standard(seasonal + other), tuple(map(tuple, families))


def _change(rng: np.random.Generator, seasonal: np.ndarray, other: np.ndarray) -> None:
    """Change the size and phase of the season and the level of some series at a random time, in place."""
    length = seasonal.shape[1]
    for row in np.flatnonzero(rng.random(len(seasonal)) < CHANGED):
        at, later = rng.integers(length // 8, length), rng.integers(0, length // 4)
        after = np.append(seasonal[row, at + later :], seasonal[row, max(0, at - later) : at])[: length - at]
        seasonal[row, at : at + len(after)] = log_uniform(rng, 0.3, 3, ()) * after
        other[row, at:] += rng.standard_t(4)


def _components(rng: np.random.Generator, recipe: np.ndarray) -> Iterator[tuple[str, bool, np.ndarray]]:
    """Yield each family, whether the family is used as a season, and the indices of the series that contain the
    component."""
    found: dict[tuple[str, bool], list[np.ndarray]] = {}
    for name, one in RECIPES.items():
        rows = np.flatnonzero(recipe == name)
        for slot, probability in one.slots:
            chosen = rows[rng.random(len(rows)) < probability]
            family = choose(rng, slot, len(chosen))
            for each in slot:
                found.setdefault((each, slot is SEASONS), []).append(chosen[family == each])
    for (name, is_season), parts in found.items():
        # The index of a series that has two components of the same family occurs twice.
        for layer in _layers(parts):
            if len(layer):
                yield name, is_season, layer


def _layers(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Split indices, which may repeat, into arrays without repetition."""
    rows = np.concatenate(parts)
    _, first = np.unique(rows, return_index=True)
    once = np.sort(first)
    rest = np.delete(rows, once)
    return [rows[once], rest] if len(np.unique(rest)) == len(rest) else [rows[once], *_layers([rest])]


def _mixed(
    rng: np.random.Generator, values: np.ndarray, truth: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` weighted means of three random series, each scaled to variance 1, `[count, N]`. `values` and
    `truth` are the series, `[B, N]`."""
    weights = rng.dirichlet((1.5, 1.5, 1.5), count)
    both = np.zeros((2, count, values.shape[1]))
    for part in weights.T:
        which = rng.integers(0, len(values), count)
        centre, spread = values[which].mean(axis=1, keepdims=True), values[which].std(axis=1, keepdims=True)
        spread = np.where(spread > 1e-9, spread, 1.0)
        for at, of in enumerate((values, truth)):
            both[at] += part[:, None] * (of[which] - centre) / spread
    return both[0], both[1]


def standard(values: np.ndarray) -> np.ndarray:
    """Return `values` `[B, N]`, standardised to mean 0 and variance 1. Constant series become zeros."""
    centred = values - values.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-9)


def _seen(
    rng: np.random.Generator, clock: Clock, recipe: np.ndarray, signal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the observed and the true values of signals, `[B, N]` each. Depending on the recipe, noise, a link
    function and units are applied, or the values are counts or intermittent demand generated from the signal."""
    values, truth = np.empty_like(signal), np.empty_like(signal)
    rows = np.flatnonzero(~np.isin(recipe, list(OBSERVED)))
    lowest, highest = np.array([RECIPES[name].noise for name in recipe[rows]]).reshape(-1, 2).T
    size = np.exp(rng.uniform(np.log(lowest), np.log(highest)))
    size[rng.random(len(rows)) < np.array([RECIPES[name].clean for name in recipe[rows]])] = 0.0
    noisy = signal[rows] + size[:, None] * noise(rng, clock[rows], signal[rows])
    linked, clean, has_zero = link(rng, noisy, signal[rows])
    mixed = np.flatnonzero(rng.random(len(rows)) < MIXED)
    linked[mixed], clean[mixed] = _mixed(rng, linked, clean, len(mixed))
    has_zero[mixed] = False
    values[rows], truth[rows] = in_units(rng, linked, clean, has_zero)
    for name, observe in OBSERVED.items():
        rows = np.flatnonzero(recipe == name)
        if len(rows):
            values[rows], truth[rows] = observe(rng, signal[rows])
    return values, truth
