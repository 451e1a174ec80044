"""Build the stages that process the requests to each model."""

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
from rfa.service.engine.text.prefix_cache import EntryCache, PrefixCache
from rfa.service.metrics import Metrics
from rfa.service.setting_groups import LimitSettings
from rfa.service.settings import Settings

# Maximum number of cached stages for numbers of columns other than those of the loaded models.
MAX_SIZES: Final = 8


def prompt_limits(limits: LimitSettings) -> PromptLimits:
    """Return the limits on prompts from the settings `limits`."""
    return PromptLimits(limits.max_prompt_tokens, limits.max_attention_tokens, limits.max_reply_numbers)


class FilterStages(NamedTuple):
    """Stages of one filter: for recurrent jobs, for whole sequences, and for merging states."""

    filtering: FilterStage
    sequences: SequenceStage
    merging: MergeStage

    @classmethod
    def build(cls, model: FilterRuntime, settings: Settings, metrics: Metrics) -> Self:
        """Build the stages. There is one pool slot for each live stream, and one for each series that requests may
        filter at the same time."""
        pool_slots = settings.limits.max_running * settings.models.series_threads + settings.limits.max_streams
        pool = StatePool(model.state_fields, pool_slots)
        return cls(FilterStage(model, pool, metrics), SequenceStage(model, metrics), MergeStage(model, metrics))


@dataclass(frozen=True)
class Served:
    """Models with the stages that process their requests. A reload replaces the whole object.

    Attributes:
        models: Loaded models.
        digests: Mapping from names of models to digests.
        prefill: First stages of a language model in each mode, for short and for long prompts.
        pools: Pool of each model that has one.
        make: Function that builds the stages of a filter.
        stages: Stages of filters. The keys are name, number of components, and number of columns with known future
            values.
    """

    models: Models
    digests: Mapping[str, str]
    prefill: Mapping[tuple[str, Mode], tuple[PrefillStage, PrefillStage]]
    pools: dict[str, StatePool]
    make: Callable[[FilterRuntime], FilterStages]
    stages: dict[tuple[str, int, int], FilterStages] = field(default_factory=dict)

    def get_stages(self, model: FilterRuntime) -> FilterStages:
        """Return the stages of a filter.

        A filter that accepts any number of columns has separate stages for each number. The stages for a number are
        cached while they are in use. Up to `MAX_SIZES` stages that are not in use are cached as well.
        """
        key = model.name, model.observation_size, model.covariates
        if key in self.stages:
            self.stages[key] = self.stages.pop(key)  # moves it to the end
        else:
            self.stages[key] = made = self.make(model)
            self.pools[self._pool_name(key)] = made.filtering.pool
            self._evict(key)
        return self.stages[key]

    def _evict(self, newest: tuple[str, int, int]) -> None:
        others = [key for key in self.stages if not self._is_loaded(key)]
        idle = [key for key in others if key != newest and not self.stages[key].filtering.pool.in_use]
        for key in idle[: max(0, len(others) - MAX_SIZES)]:
            del self.stages[key], self.pools[self._pool_name(key)]

    def _pool_name(self, key: tuple[str, int, int]) -> str:
        name = key[0] if self._is_loaded(key) else f"{key[0]} of {key[1]}"
        return f"{name} with {key[2]}" if key[2] else name

    def _is_loaded(self, key: tuple[str, int, int]) -> bool:
        return any(
            (model.name, model.observation_size, model.covariates) == key for model in self.models.filters.values()
        )

    @classmethod
    def build(cls, models: Models, settings: Settings, metrics: Metrics, drift: DriftMeter) -> Served:
        limits = prompt_limits(settings.limits)
        prefill: dict[tuple[str, Mode], tuple[PrefillStage, PrefillStage]] = {}
        digests = {facts.name: facts.digest for facts in models.facts}
        entries = EntryCache(settings.limits.prefix_cache_bytes)
        for name, model in models.languages.items():
            cache = PrefixCache(entries, model, digests.get(name, ""))
            for mode in model.modes:
                decode = DecodeStage(model, mode, settings.models.max_batch_rows, metrics, drift)
                short, long = (PrefillStage(model, limits, decode, cache) for _ in range(2))
                prefill[name, mode] = short, long
        served = cls(
            models,
            digests,
            prefill,
            {name: model.pool for name, model in models.languages.items() if "recurrent" in model.modes},
            partial(FilterStages.build, settings=settings, metrics=metrics),
        )
        for one in models.filters.values():
            served.get_stages(one)
        return served
