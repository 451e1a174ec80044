"""Scenarios of load and their budgets, read from TOML; see budgets.toml.

`METRIC_PERCENTILE_ms` bounds a latency from above, `max_…` another quantity; `min_…` bounds from below. Wrong replies
are never within budget.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from rfa.benchmarks.load.histogram import PERCENTILES

SCENARIO_FILE = Path(__file__).resolve().parent.parent / "budgets.toml"
METRICS = ("ttft", "itl", "text", "observation", "batch", "rejection", "lateness")
_LATENCY = re.compile(rf"^({'|'.join(METRICS)})_({'|'.join([*PERCENTILES, 'max'])})_ms$")
# Budgets other than latencies, by the kind of scenario that can measure them.
MEASURES: dict[str, frozenset[str]] = {
    "load": frozenset({"max_errors", "max_rss_growth", "min_goodput", "min_tokens_per_second"}),
    "overload": frozenset({"max_errors", "max_rss_growth", "max_admitted_slowdown"}),
    "idle-sessions": frozenset({"max_memory_error"}),
}
Kind = Literal["load", "overload", "idle-sessions"]
Arrivals = Literal["periodic", "poisson"]
Latency = Literal["ttft_ms", "itl_ms", "observation_ms", "batch_ms"]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
# Unknown entries and other types are errors; numbers are finite.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ScenarioError(ValueError):
    """A scenario file, or an option that replaces a part of it, is invalid."""


@dataclass(frozen=True, config=STRICT)
class TextLoad:
    """POST /generate, streamed: `streams` at a time (closed loop), or `rate` per second (Poisson)."""

    streams: Count = 0
    rate: Amount = 0.0
    prompt_tokens: Count = 128
    new_tokens: Count = 64
    cases: Count = 32
    temperature: Amount = 0.8
    model: str | None = None


@dataclass(frozen=True, config=STRICT)
class LiveLoad:
    """WS /filter/stream: `streams` connections with `rate` observations per second each."""

    streams: Count = 0
    rate: Positive = 10.0
    arrivals: Arrivals = "periodic"
    series: Count = 64
    levels: tuple[float, ...] = (0.9,)
    horizon: tuple[float, ...] = ()
    samples: Count = 0
    model: str | None = None


@dataclass(frozen=True, config=STRICT)
class BatchLoad:
    """POST /filter with whole series: `rate` requests per second (Poisson)."""

    rate: Amount = 0.0
    length: Count = 50
    series: Count = 16
    samples: Count = 0
    model: str | None = None


@dataclass(frozen=True, config=STRICT)
class OverloadPlan:
    """Measure the capacity with `streams` closed loops, then offer `base` and `factor` times that rate."""

    streams: Count = 64
    calibration_seconds: Amount = 10.0
    base: Amount = 0.8
    factor: Amount = 5.0


@dataclass(frozen=True, config=STRICT)
class Scenario:
    """A scenario with its name, loads and budgets."""

    name: str
    about: str = ""
    kind: Kind = "load"
    seconds: Positive = 60.0
    warmup_seconds: Amount = 5.0
    generators: Annotated[int, Field(gt=0)] = 2
    text: TextLoad = field(default_factory=TextLoad)
    live: LiveLoad = field(default_factory=LiveLoad)
    batch: BatchLoad = field(default_factory=BatchLoad)
    overload: OverloadPlan = field(default_factory=OverloadPlan)
    sessions: Annotated[int, Field(gt=0)] = 200_000
    server: Mapping[str, str | int | float] = field(default_factory=dict)
    goodput: Mapping[Latency, Positive] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.text.streams and self.text.rate:
            raise ValueError("text: give streams or rate, not both")
        if self.kind == "load" and not (self.text.streams or self.text.rate or self.live.streams or self.batch.rate):
            raise ValueError("it offers nothing: set text, live or batch")
        measures = MEASURES[self.kind]
        for name in self.budget:
            if name not in measures and latency_budget(name) is None:
                raise ValueError(
                    f"budget.{name}: known are METRIC_PERCENTILE_ms with METRIC one of {', '.join(METRICS)} "
                    f"and PERCENTILE one of {', '.join([*PERCENTILES, 'max'])}; {', '.join(sorted(measures))}"
                )
        return self


_SCENARIO = TypeAdapter(Scenario)


def latency_budget(name: str) -> tuple[str, str] | None:
    """Return the metric and percentile that a budget bounds, or None if it bounds another quantity."""
    match = _LATENCY.match(name)
    return (match[1], match[2]) if match else None


def read_scenarios(path: Path = SCENARIO_FILE) -> dict[str, Scenario]:
    """Return the scenarios of a file by name."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: scenario_from(name, table) for name, table in document.items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path.name}: not TOML: {error}") from None
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}: {error}") from None


def find_scenario(name: str, path: Path = SCENARIO_FILE) -> Scenario:
    """Return one scenario of a file."""
    scenarios = read_scenarios(path)
    if name not in scenarios:
        raise ScenarioError(f"no scenario {name!r} in {path.name}; it has {', '.join(scenarios)}")
    return scenarios[name]


def changed(scenario: Scenario, options: Mapping[str, Any]) -> Scenario:
    """Return the scenario with replaced entries, such as `seconds` or `live.rate`. A text has a rate or streams."""
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
    """Drop the latency budgets of loads that are turned off, because nothing measures them."""
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
    """Create a scenario from its table."""
    if not isinstance(table, Mapping):
        raise ScenarioError(f"{name}: must be a table")
    try:
        # JSON converts lists to tuples and tables to loads, as in a generator.
        return _SCENARIO.validate_json(json.dumps({**table, "name": name}, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in (name, *first["loc"]))
        raise ScenarioError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None


def to_table(value: Scenario) -> dict[str, Any]:
    """Return the scenario as JSON-ready dictionaries. The inverse of `scenario_from`, except for the name."""
    table = _without_none(dataclasses.asdict(value))
    del table["name"]
    return table


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value as TOML can express it: without null, and with lists."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in table.items()
        if value is not None
    }
