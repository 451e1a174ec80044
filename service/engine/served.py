"""Models with the stages that run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Self

from rfa.runtime.choices import Mode
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.service.engine.filter.merging import MergeStage
from rfa.service.engine.filter.stages import FilterStage, SequenceStage
from rfa.service.engine.models import Models
from rfa.service.engine.text.decode import DecodeStage
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.options import PromptLimits
from rfa.service.engine.text.prefill import PrefillStage
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings

# Numbers of columns, beside those that models are loaded with, whose places wait for the next request.
MOST_SIZES: Final = 8


def prompt_limits(settings: Settings) -> PromptLimits:
    """What prompts are held to."""
    return PromptLimits(settings.max_prompt_tokens, settings.max_attention_tokens)


class FilterPlace(NamedTuple):
    """Where jobs of a filter run: one observation after the other, with a look at the whole, and merges of beliefs."""

    filtering: FilterStage
    sequences: SequenceStage
    merging: MergeStage

    @classmethod
    def of(cls, model: FilterRuntime, settings: Settings, metrics: Metrics) -> Self:
        """A place with a seat for every live stream, and for every request those of the series it has at work."""
        pool_slots = settings.max_running * settings.series_threads + settings.max_streams
        pool = StatePool(model.state_fields, pool_slots)
        return cls(FilterStage(model, pool, metrics), SequenceStage(model, metrics), MergeStage(model, metrics))


@dataclass(frozen=True)
class Served:
    """Models with the stages that run them; replaced as a whole when bundles are loaded anew."""

    models: Models
    digests: Mapping[str, str]
    prefill: Mapping[tuple[str, Mode], tuple[PrefillStage, PrefillStage]]  # of short prompts, of long ones
    pools: dict[str, StatePool]
    make: Callable[[FilterRuntime], FilterPlace]
    places: dict[tuple[str, int], FilterPlace] = field(default_factory=dict)

    def place(self, model: FilterRuntime) -> FilterPlace:
        """Where a filter's jobs run; of one that takes any number of columns, made with the first of that number and
        kept while it is at work, and for the next one, as those of the `MOST_SIZES` used last are."""
        key = model.name, model.observation_size
        if key in self.places:
            self.places[key] = self.places.pop(key)  # the last
        else:
            self.places[key] = made = self.make(model)
            self.pools[self._pool_name(key)] = made.filtering.pool
            self._trim(key)
        return self.places[key]

    def _trim(self, newest: tuple[str, int]) -> None:
        """Give up idle places, those not used for longest, of other numbers of columns than models are loaded with."""
        others = [key for key in self.places if not self._is_loaded(key)]
        idle = [key for key in others if key != newest and not self.places[key].filtering.pool.in_use]
        for key in idle[: max(0, len(others) - MOST_SIZES)]:
            del self.places[key], self.pools[self._pool_name(key)]

    def _pool_name(self, key: tuple[str, int]) -> str:
        return key[0] if self._is_loaded(key) else f"{key[0]} of {key[1]}"

    def _is_loaded(self, key: tuple[str, int]) -> bool:
        return any((model.name, model.observation_size) == key for model in self.models.filters.values())

    @classmethod
    def build(cls, models: Models, settings: Settings, metrics: Metrics, drift: DriftMeter) -> Served:
        limits = prompt_limits(settings)
        prefill: dict[tuple[str, Mode], tuple[PrefillStage, PrefillStage]] = {}
        for name, model in models.languages.items():
            for mode in model.modes:
                decode = DecodeStage(model, mode, settings.max_batch_rows, metrics, drift)
                prefill[name, mode] = PrefillStage(model, limits, decode), PrefillStage(model, limits, decode)
        served = cls(
            models,
            {facts.name: facts.digest for facts in models.facts},
            prefill,
            {name: model.pool for name, model in models.languages.items() if "recurrent" in model.modes},
            partial(FilterPlace.of, settings=settings, metrics=metrics),
        )
        for one in models.filters.values():
            served.place(one)
        return served


@dataclass(frozen=True)
class Staged:
    """What is served next, and whether it is time."""

    served: Served
    is_due: Callable[[], bool]
