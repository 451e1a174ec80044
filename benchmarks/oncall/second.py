"""A second set of labelled series: common kinds of monitoring data, with other generators than in `incidents.py`.

The set was fixed before the rules of alarms were run on it. Parameters are drawn at random. `KINDS` are incidents with
a sharp beginning; `SLOW` ones grow, or are told by the time of day alone. A slow one begins where it is four standard
deviations of the noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rfa.benchmarks.oncall.ordinary import Job
from rfa.benchmarks.oncall.parts import Array, Clock, Series, labelled

SEED = 4_190_873
NUMBERS = (0, 1, 2)


class Scene:
    """A clock and random parts of a series: a day by random harmonics, and noise that is a moving average."""

    def __init__(self, kind: str, number: int, steps: tuple[int, ...] = (1, 5, 10)) -> None:
        self.rng = np.random.default_rng([SEED, number, *map(ord, kind)])
        minutes = steps[number]
        self.minutes, self.days = minutes, {1: 9, 2: 12, 5: 16, 10: 22, 15: 24}[minutes]
        self.clock = Clock(minutes, self.days, ("2026-02-09", "2026-06-15", "2026-09-02")[number])
        self.day, self.hour = self.days - 2, float(self.rng.uniform(0.5, 22))
        self.name = f"{kind.replace(' ', '_')}_{number}"
        self.kind = kind

    def draw(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def rhythm(self, depth: float) -> Array:
        """Return a factor with mean 1, two harmonics of the day, and lower values on weekends."""
        phase = 2 * np.pi * (self.clock.hours - self.draw(13, 17)) / 24
        wave = np.cos(phase) + self.draw(0.1, 0.3) * np.cos(2 * phase + self.draw(0, 6))
        found: Array = (1 + depth * wave / 1.2) * np.where(self.clock.weekdays >= 5, 1 - 0.3 * depth, 1.0)
        return found

    def noise(self, rows: int = 4, tails: str = "normal") -> Array:
        """Return noise with standard deviation 1: a weighted mean of past shocks, and as much independent noise."""
        kinds: dict[str, Callable[[int], Array]] = {
            "normal": self.rng.standard_normal,
            "skewed": lambda n: self.rng.gamma(3, 1, n) / np.sqrt(3) - np.sqrt(3),
            "heavy": lambda n: self.rng.standard_normal(n) * np.where(self.rng.random(n) < 0.03, 3.0, 0.9),
        }
        shocks = kinds[tails]
        weights = np.linspace(1, 0, rows, endpoint=False)
        smooth = np.convolve(shocks(len(self.clock) + rows), weights / np.linalg.norm(weights))[rows : -rows + 1]
        found: Array = (smooth[: len(self.clock)] + shocks(len(self.clock))) / np.sqrt(2)
        return found

    @property
    def begin(self) -> int:
        return self.clock.row(self.day, self.hour)

    def rows(self, minutes: float) -> int:
        """Return the number of rows in so many minutes, at least three."""
        return max(3, round(minutes / self.minutes))

    def label(self, values: Array, begin: int, end: int, within: int = 3, digits: int = 2) -> Series:
        rows = begin, min(end, len(self.clock))
        return labelled(self.name, self.kind, self.clock, values, rows, within=within, digits=digits)

    def changed(self, values: Array, rows: int, change: Callable[[Array], Array], within: int = 3) -> Series:
        """Change the rows of the incident, and return the series."""
        part = slice(self.begin, self.begin + rows)
        values[part] = change(values[part])
        return self.label(values, self.begin, self.begin + rows, within)

    def load(self) -> Array:
        level, spread = self.draw(50, 3000), self.draw(0.03, 0.06)
        return np.round(np.maximum(level * self.rhythm(self.draw(0.3, 0.6)) * (1 + spread * self.noise()), 0))

    def latency(self) -> Array:
        """Return latencies in milliseconds, which are skewed and grow with the load."""
        noise = self.draw(0.06, 0.1) * self.noise(tails="skewed")
        found: Array = self.draw(20, 400) * self.rhythm(0.15) * np.exp(noise)
        return found

    def cpu(self) -> Array:
        found: Array = np.clip(
            self.draw(25, 45) * self.rhythm(0.4) + self.draw(2, 3) * self.noise(tails="heavy"), 0, 98
        )
        return found

    def celsius(self) -> Array:
        return np.round(self.draw(5, 30) + 2 * self.rhythm(0.5) + 0.3 * self.noise(12), 2)


def _shift(scene: Scene) -> Series:
    unit, sign = scene.draw(0.5, 4), float(scene.rng.choice([-1, 1]))
    values = unit * (20 + 5 * scene.rhythm(0.4) + scene.noise(tails="heavy"))
    return scene.changed(values, len(values), lambda x: x + 6 * sign * unit)


def _queue(scene: Scene) -> Series:
    jobs = scene.rng.poisson(scene.draw(8, 40) * scene.rhythm(0.3)).astype(float)
    each = scene.draw(0.6, 1.0) * jobs.mean()
    return scene.changed(jobs, scene.rows(120), lambda x: x + np.round(each * np.arange(1, len(x) + 1)))


def _disk(scene: Scene) -> Series:
    steps = scene.rng.exponential(0.01, len(scene.clock))
    steps[scene.begin : scene.begin + scene.rows(180)] *= 12
    values = 30 + np.cumsum(steps)
    return scene.label(values, scene.begin, scene.begin + scene.rows(180), digits=3)


def _pump(scene: Scene) -> Series:
    cycle = int(scene.rng.integers(12, 31))
    phase = np.arange(len(scene.clock)) % cycle / cycle
    pressure = scene.draw(2, 5) + 3 * np.minimum(1, 6 * phase) * np.exp(-3 * np.maximum(phase - 0.3, 0))
    values, begin = pressure + 0.08 * scene.noise(2), scene.begin - scene.begin % cycle
    values[begin : begin + 2 * cycle] = pressure.min() + 0.08 * scene.rng.standard_normal(2 * cycle)
    return scene.label(values, begin, begin + 2 * cycle, 3 * cycle)


def _errors(scene: Scene) -> Series:
    values = scene.rng.poisson(scene.draw(0.01, 0.08), len(scene.clock)).astype(float)
    burst = scene.draw(4, 8)
    return scene.changed(values, scene.rows(25), lambda x: 2 + scene.rng.poisson(burst, len(x)))


def _silence(scene: Scene) -> Series:
    rows = scene.rows(60)
    return scene.changed(scene.load(), rows, lambda x: np.full(len(x), np.nan), rows + 1)


def _noisy(scene: Scene) -> Series:
    noise = 0.3 * 5 * scene.noise(2)
    part = noise[scene.begin : scene.begin + scene.rows(180)]
    return scene.changed(scene.celsius(), len(part), lambda x: x + part, 10)


# Fifteen kinds with a sharp beginning.
KINDS: dict[str, Callable[[Scene], Series]] = {
    "spike": lambda s: s.changed(s.load(), 1, lambda x: np.round(s.draw(2, 3) * x + 10)),
    "outage": lambda s: s.changed(s.load(), s.rows(40), lambda x: 0 * x),
    "load +50 %": lambda s: s.changed(s.load(), s.rows(60), lambda x: np.round(1.5 * x)),
    "load -60 %": lambda s: s.changed(s.load(), s.rows(120), lambda x: np.round(0.4 * x)),
    "latency x 4": lambda s: s.changed(s.latency(), s.rows(20), lambda x: 4 * x),
    "latency +60 %": lambda s: s.changed(s.latency(), s.rows(45), lambda x: 1.6 * x),
    "processor at 99 %": lambda s: s.changed(s.cpu(), s.rows(120), lambda x: 99 + 0 * x),
    "level shift": _shift,
    "queue": _queue,
    "disk": _disk,
    "pump misses cycles": _pump,
    "burst of errors": _errors,
    "stuck sensor": lambda s: s.changed(s.celsius(), s.rows(240), lambda x: np.full(len(x), x[0]), 10),
    "no data": _silence,
    "noisy sensor": _noisy,
}


def _leak(scene: Scene) -> Series:
    """Simulate memory that grows by half in some hours. The incident begins where it is 4 deviations higher."""
    level, noise = scene.draw(500, 8000), scene.draw(0.006, 0.012)
    values, hours = level * (1 + 0.05 * (scene.rhythm(0.5) - 1) + noise * scene.noise(8)), scene.draw(10, 24)
    growth = 0.5 * level * np.maximum(np.arange(len(values)) - scene.begin, 0) * scene.minutes / 60 / hours
    end = scene.begin + round(hours * 60 / scene.minutes)
    growth[end:] = 0
    begin = int(np.flatnonzero(growth > 4 * noise * level)[0])
    return scene.label(values + growth, begin, end)


def _holiday(scene: Scene) -> Series:
    """Simulate a weekday with the values of a weekend, in series with half of the load on weekends."""
    hours, weekdays = scene.clock.hours, scene.clock.weekdays
    work = np.clip(np.sin(np.pi * (hours - scene.draw(6, 8)) / 12), 0, 1)
    level, share, noise = scene.draw(100, 2000), scene.draw(0.2, 0.5), scene.draw(0.03, 0.05)
    day = next(day for day in range(scene.days - 3, 0, -1) if weekdays[scene.clock.row(day, 0)] < 5)
    is_off, rows = weekdays >= 5, slice(scene.clock.row(day, 0), scene.clock.row(day + 1, 0))
    usual = level * (0.2 + np.where(is_off, share, 1) * work)
    mean = usual.copy()
    mean[rows] = level * (0.2 + share * work[rows])
    values = np.round(mean * (1 + noise * scene.noise()))
    differs = rows.start + np.flatnonzero(usual[rows] - mean[rows] > 4 * noise * usual[rows])
    return scene.label(values, int(differs[0]), int(differs[-1]) + 1)


def _with_jobs(scene: Scene, job: Job, missed: int | None) -> tuple[Array, list[tuple[int, int]]]:
    """Return processor time with a job, and the rows of its occurrences."""
    values, occurrences = scene.cpu(), []
    for day in range(scene.days):
        if int(scene.clock.weekdays[scene.clock.row(day, 0)]) not in job.weekdays:
            continue
        begin = scene.clock.row(day, job.hour) + int(scene.rng.integers(-job.early_late, job.early_late + 1))
        end = begin + job.rows + int(scene.rng.integers(-job.shorter_longer, job.shorter_longer + 1))
        size = 0.0 if day == missed else (job.size or 0.0) * (1 + job.growth * day) * scene.draw(0.9, 1.1)
        values[begin:end] += size * (1 + 0.05 * scene.rng.standard_normal(len(values[begin:end])))
        occurrences.append((begin, min(end, len(values)) - 1))
    return values, occurrences


def _missed_job(scene: Scene) -> Series:
    job = Job(scene.minutes, scene.days, scene.draw(0.5, 5), 0, scene.rows(30), 0, scene.draw(35, 50))
    values, _ = _with_jobs(scene, job, scene.day)
    begin = scene.clock.row(scene.day, job.hour)
    return scene.label(values, begin, begin + job.rows)


def _night_drop(scene: Scene) -> Series:
    """Simulate values that are 45 % lower for two hours of a night, when the load is lowest."""
    scene.hour = scene.draw(0.5, 4)
    return scene.changed(scene.load(), scene.rows(120), lambda x: np.round(0.55 * x))


def _cycle(scene: Scene) -> Series:
    """Simulate three cycles that begin with a pause. Cycles vary by 3 %."""
    usual, values, row = int(scene.rng.integers(24, 49)), np.empty(len(scene.clock)), 0
    odd: list[int] = []
    while row < len(values):
        period = max(8, round(usual * (1 + 0.03 * scene.rng.standard_normal())))
        phase = np.arange(period) / period
        is_odd = row >= scene.begin and len(odd) < 3
        shape = np.sin(np.pi * np.clip((phase - 0.4) / 0.6 if is_odd else phase / 0.6, 0, 1)) ** 2
        values[row : row + period] = shape[: len(values) - row]
        odd += [row] if is_odd else []
        row += period
    return scene.label(10 * values + 0.3 * scene.noise(2), odd[0], odd[-1] + usual, 3 * usual)


# Kinds that grow, or are told by the time of day alone.
SLOW: dict[str, Callable[[Scene], Series]] = {
    "memory leak": _leak,
    "weekday as weekend": _holiday,
    "missed job": _missed_job,
    "night drop": _night_drop,
    "cycle of another shape": _cycle,
}
# Jobs: minutes of a row, days, hour, rows early or late, rows, rows shorter or longer, size, weekdays, daily growth.
WORKDAYS = (0, 1, 2, 3, 4)
JOBS = {
    "half_hour": Job(5, 16, 2.2, 1, 6, 1, 40),
    "hour": Job(1, 9, 3.5, 4, 60, 5, 35),
    "workdays": Job(5, 16, 21.5, 1, 5, 1, 45, WORKDAYS),
    "growing": Job(10, 22, 1.0, 1, 4, 1, 35, growth=0.025),
    "short": Job(10, 22, 4.0, 1, 1, 0, 50),
    "sundays": Job(10, 22, 6.0, 1, 6, 1, 45, (6,)),
}


def with_job(name: str) -> Series:
    """Return a series of processor time with a job."""
    job = JOBS[name]
    scene = Scene(f"job {name}", {1: 0, 5: 1, 10: 2}[job.minutes])
    values, rows = _with_jobs(scene, job, None)
    times = tuple((int(scene.clock.times[begin]), int(scene.clock.times[end])) for begin, end in rows)
    return labelled(scene.name, "job", scene.clock, values, digits=1, occurrences=times)


def incident(kind: str, number: int) -> Series:
    """Return the series of a kind."""
    make = KINDS.get(kind) or SLOW[kind]
    return make(Scene(kind, number, (1, 5, 15) if kind in ("queue", "memory leak") else (1, 5, 10)))


def clean(number: int) -> Series:
    """Load, latency and processor time without an incident."""
    scene = Scene("clean", number)
    values = (scene.load, scene.latency, scene.cpu)[number]()
    return labelled(scene.name, "clean", scene.clock, values, digits=2)
