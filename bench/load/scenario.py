"""Scenarios: what is offered, for how long, and what it must keep to. Read from TOML; see budgets.toml.

A budget `METRIC_PERCENTILE_ms` bounds a latency from above, `max_…` another quantity; `min_…` bounds from below. Wrong
answers are never within budget.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from rfa.bench.load.histogram import PERCENTILES

SCENARIO_FILE = Path(__file__).resolve().parent.parent / "budgets.toml"
METRICS = ("ttft", "itl", "text", "observation", "batch", "rejection", "lateness")
_LATENCY = re.compile(rf"^({'|'.join(METRICS)})_({'|'.join([*PERCENTILES, 'max'])})_ms$")
# Budgets that are not latencies, by the kind of scenario that can measure them.
MEASURES: dict[str, frozenset[str]] = {
    "load": frozenset({"max_errors", "max_rss_growth", "min_goodput", "min_tokens_per_second"}),
    "overload": frozenset({"max_errors", "max_rss_growth", "max_admitted_slowdown"}),
    "overhead": frozenset({"max_overhead_us_per_token", "min_server_share"}),
    "idle-sessions": frozenset({"max_memory_error"}),
}
Kind = Literal["load", "overload", "overhead", "idle-sessions"]
Arrivals = Literal["periodic", "poisson"]


class ScenarioError(ValueError):
    """A scenario file, or an option that replaces a part of it, that says something impossible."""


@dataclass(frozen=True)
class TextLoad:
    """POST /generate, streamed: `streams` at a time (closed loop), or `rate` a second (Poisson)."""

    streams: int = 0
    rate: float = 0.0
    prompt_tokens: int = 128
    new_tokens: int = 64
    cases: int = 32
    temperature: float = 0.8
    model: str | None = None


@dataclass(frozen=True)
class LiveLoad:
    """WS /filter/stream: `streams` connections, `rate` observations a second on each."""

    streams: int = 0
    rate: float = 10.0
    arrivals: Arrivals = "periodic"
    series: int = 64
    levels: tuple[float, ...] = (0.9,)
    horizon: tuple[float, ...] = ()
    samples: int = 0
    model: str | None = None


@dataclass(frozen=True)
class BatchLoad:
    """POST /filter with whole series, `rate` requests a second (Poisson)."""

    rate: float = 0.0
    length: int = 50
    series: int = 16
    samples: int = 0
    model: str | None = None


@dataclass(frozen=True)
class OverloadPlan:
    """Capacity is found with `streams` closed loops; then `base` and `factor` times it are offered."""

    streams: int = 64
    calibration_seconds: float = 10.0
    base: float = 0.8
    factor: float = 5.0


@dataclass(frozen=True)
class Scenario:
    """One named scenario."""

    name: str
    about: str = ""
    kind: Kind = "load"
    seconds: float = 60.0
    warmup_seconds: float = 5.0
    generators: int = 2
    text: TextLoad = field(default_factory=TextLoad)
    live: LiveLoad = field(default_factory=LiveLoad)
    batch: BatchLoad = field(default_factory=BatchLoad)
    overload: OverloadPlan = field(default_factory=OverloadPlan)
    sessions: int = 200_000
    rounds: int = 5
    server: Mapping[str, str | int | float] = field(default_factory=dict)
    goodput: Mapping[str, float] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("seconds", "generators", "rounds", "sessions"):
            _require(getattr(self, name) > 0, f"{self.name}.{name} must be positive")
        _require(self.warmup_seconds >= 0, f"{self.name}.warmup_seconds must not be negative")
        for part in ("text", "live", "batch"):
            load = getattr(self, part)
            for option in dataclasses.fields(load):
                value = getattr(load, option.name)
                if isinstance(value, int | float):
                    _require(value >= 0, f"{self.name}.{part}.{option.name} must not be negative")
        _require(not (self.text.streams and self.text.rate), f"{self.name}.text: give streams or rate, not both")
        _require(self.live.rate > 0, f"{self.name}.live.rate must be positive")
        offers = self.text.streams or self.text.rate or self.live.streams or self.batch.rate
        _require(bool(offers) or self.kind != "load", f"{self.name} offers nothing: set text, live or batch")
        for name, limit in self.goodput.items():
            known = ("ttft_ms", "itl_ms", "observation_ms", "batch_ms")
            _require(name in known, f"{self.name}.goodput.{name}: known are {', '.join(known)}")
            _require(limit > 0, f"{self.name}.goodput.{name} must be positive")
        for name in self.budget:
            measures = MEASURES[self.kind]
            _require(
                name in measures or latency_budget(name) is not None,
                f"{self.name}.budget.{name}: known are METRIC_PERCENTILE_ms with METRIC one of {', '.join(METRICS)} "
                f"and PERCENTILE one of {', '.join([*PERCENTILES, 'max'])}; {', '.join(sorted(measures))}",
            )


def latency_budget(name: str) -> tuple[str, str] | None:
    """Metric and percentile that a budget bounds; None when it bounds something else."""
    match = _LATENCY.match(name)
    return (match[1], match[2]) if match else None


def read_scenarios(path: Path = SCENARIO_FILE) -> dict[str, Scenario]:
    """The scenarios of a file, by name.

    Raises:
        ScenarioError: naming the file and the entry.
        OSError: the file cannot be read.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: scenario_from(name, table) for name, table in document.items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path.name}: not TOML: {error}") from None
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}: {error}") from None


def find_scenario(name: str, path: Path = SCENARIO_FILE) -> Scenario:
    """One scenario of a file.

    Raises:
        ScenarioError: there is none of the name; lists those that there are.
    """
    scenarios = read_scenarios(path)
    if name not in scenarios:
        raise ScenarioError(f"no scenario {name!r} in {path.name}; it has {', '.join(scenarios)}")
    return scenarios[name]


def changed(scenario: Scenario, options: Mapping[str, Any]) -> Scenario:
    """A scenario with some entries replaced, named like `seconds` or `live.rate`.

    Texts come at a rate or so many at a time: giving one takes the other away.

    Raises:
        ScenarioError: the result is impossible.
    """
    table = to_table(scenario)
    if "text.rate" in options or "text.streams" in options:
        table["text"] |= {"rate": 0.0, "streams": 0}
    for path, value in options.items():
        *parents, name = path.split(".")
        target = table
        for parent in parents:
            target = target[parent]
        target[name] = value
    return _without_idle_budgets(scenario_from(scenario.name, table))


def _without_idle_budgets(scenario: Scenario) -> Scenario:
    """Without the latency budgets of loads that are turned off: nothing would be measured for them."""
    offered = {
        "text": scenario.text.streams or scenario.text.rate or scenario.kind != "load",
        "live": scenario.live.streams,
        "batch": scenario.batch.rate,
    }
    owner = {"ttft": "text", "itl": "text", "text": "text", "observation": "live", "batch": "batch"}
    kept = {
        name: limit
        for name, limit in scenario.budget.items()
        if (bound := latency_budget(name)) is None or bound[0] not in owner or offered[owner[bound[0]]]
    }
    return dataclasses.replace(scenario, budget=kept)


def scenario_from(name: str, table: Any) -> Scenario:
    """One scenario from its table.

    Raises:
        ScenarioError: naming the entry.
    """
    return _build(Scenario, {"name": name, **_table(table, name)}, name)


def to_table(value: Scenario) -> dict[str, Any]:
    """A scenario as JSON-ready dictionaries: the inverse of `scenario_from`, but for the name."""
    table = _without_none(dataclasses.asdict(value))
    del table["name"]
    return table


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """As TOML has it: no null, and lists."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in table.items()
        if value is not None
    }


def _build(kind: type, table: Mapping[str, Any], path: str) -> Any:
    hints = get_type_hints(kind)
    unknown = sorted(set(table) - set(hints))
    _require(not unknown, f"{path}.{''.join(unknown[:1])} is unknown; known are {', '.join(hints)}")
    return kind(**{key: _convert(hints[key], value, f"{path}.{key}") for key, value in table.items()})


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, _table(value, path), path)
    if hint in (Kind, Arrivals):
        _require(value in get_args(hint), f"{path} must be one of {', '.join(get_args(hint))}")
        return value
    if hint == tuple[float, ...]:
        _require(isinstance(value, list | tuple) and all(map(_is_number, value)), f"{path} must be a list of numbers")
        return tuple(float(item) for item in value)
    if hint is float:
        _require(_is_number(value), f"{path} must be a number")
        return float(value)
    if hint is int:
        _require(isinstance(value, int) and not isinstance(value, bool), f"{path} must be a whole number")
        return value
    if hint in (str, str | None):
        _require(isinstance(value, str), f"{path} must be a string")
        return value
    return _mapping(hint, value, path)


def _mapping(hint: Any, value: Any, path: str) -> Mapping[str, Any]:
    numbers_only = hint == Mapping[str, float]
    for key, item in _table(value, path).items():
        _require(
            _is_number(item) or (isinstance(item, str) and not numbers_only),
            f"{path}.{key} must be a number" + ("" if numbers_only else " or a string"),
        )
    return dict(value)


def _table(value: Any, path: str) -> Mapping[str, Any]:
    _require(isinstance(value, Mapping), f"{path} must be a table")
    return dict(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(is_right: bool, message: str) -> None:
    if not is_right:
        raise ScenarioError(message)
