"""Difficult sequences of observations, with the answers of an unshared filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.state import FilterState
from rfa.service.encoding import dumps

Observation = list[float | None] | None
# Levels, horizon and samples requested for each observation.
QUESTIONS: tuple[tuple[tuple[float, ...], tuple[float, ...], int], ...] = (
    ((0.9,), (), 0),
    ((0.5, 0.77, 0.9), (0.1, 0.5, 3.0), 0),
    ((0.9,), tuple(round(0.1 * lead, 1) for lead in range(1, 20)), 0),
    ((0.5,), (0.2,), 3),
)


@dataclass(frozen=True)
class Course:
    """A sequence of observations and the options of each."""

    times: list[float]
    observations: list[Observation]
    noise: list[float]
    levels: tuple[float, ...]
    horizon: tuple[float, ...]
    samples: int
    seed: int

    @property
    def size(self) -> int:
        """Return the number of components of an observation."""
        return max(len(observation or ()) for observation in self.observations)


@dataclass(frozen=True)
class Truth:
    """Results of a course on an unshared filter.

    Attributes:
        filter: Name of the requested filter.
        steps: Answers as JSON. Equal bytes mean equal numbers to the last bit.
        states: The states before each observation and after the last.
    """

    filter: str
    course: Course
    steps: list[bytes]
    states: list[FilterState]


def make_course(rng: np.random.Generator, length: int, size: int) -> Course:
    """Return a course with irregular times, outliers, missing observations or components, and varying noise."""
    levels, horizon, samples = QUESTIONS[rng.integers(len(QUESTIONS))]
    observations: list[Observation] = []
    for _ in range(length):
        y: list[float | None] = [float(x) for x in rng.normal(size=size) * (30 if rng.random() < 0.1 else 1)]
        if rng.random() < 0.15:
            y[rng.integers(size)] = None
        observations.append(None if rng.random() < 0.1 else y)
    return Course(
        times=np.cumsum(rng.exponential(0.2, length)).tolist(),
        observations=observations,
        noise=[1.0 if rng.random() < 0.7 else float(rng.uniform(0.1, 5)) for _ in range(length)],
        levels=levels,
        horizon=horizon,
        samples=samples,
        seed=int(rng.integers(2**53)),
    )


def truth_of(runtime: FilterRuntime, course: Course) -> Truth:
    """Compute the answers, one observation after another, on a runtime without other users."""
    state = runtime.start(course.seed)
    steps, states = [], [state]
    for t, y, noise in zip(course.times, course.observations, course.noise, strict=True):
        found = runtime.filter(
            [t],
            [y],
            noise=[noise],
            levels=course.levels,
            horizon=course.horizon,
            samples=course.samples,
            seed=course.seed,
            state=state,
        )
        state = found.state
        steps.append(as_sent(found.steps[0]))
        states.append(state)
    return Truth(runtime.name, course, steps, states)


def as_sent(step: Any) -> bytes:
    """Return an answer as a client receives it."""
    return dumps(step)
