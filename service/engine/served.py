"""Models with the stages that run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rfa.service.engine.filter.merging import MergeStage
from rfa.service.engine.filter.stages import FilterStage, SequenceStage
from rfa.service.engine.models import Models
from rfa.service.engine.text.decode import DecodeStage
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.options import PromptLimits
from rfa.service.engine.text.prefill import PrefillStage
from rfa.service.metrics import Metrics
from rfa.service.runtime.pool import StatePool
from rfa.service.schemas.base import Mode
from rfa.service.settings import Settings


def prompt_limits(settings: Settings) -> PromptLimits:
    """What prompts are held to."""
    return PromptLimits(settings.max_prompt_tokens, settings.max_attention_tokens)


@dataclass(frozen=True)
class Served:
    """Models with the stages that run them; replaced as a whole when bundles are loaded anew."""

    models: Models
    digests: Mapping[str, str]
    prefill: Mapping[tuple[str, Mode], tuple[PrefillStage, PrefillStage]]  # of short prompts, of long ones
    filtering: Mapping[str, FilterStage]
    sequences: Mapping[str, SequenceStage]
    merging: Mapping[str, MergeStage]
    pools: Mapping[str, StatePool]

    @classmethod
    def build(cls, models: Models, settings: Settings, metrics: Metrics, drift: DriftMeter) -> Served:
        limits = prompt_limits(settings)
        seats = settings.max_running + settings.max_streams
        pools = {name: StatePool(model.state_fields, seats) for name, model in models.filters.items()}
        prefill: dict[tuple[str, Mode], tuple[PrefillStage, PrefillStage]] = {}
        for name, model in models.languages.items():
            for mode in model.modes:
                decode = DecodeStage(model, mode, settings.max_batch_rows, metrics, drift)
                prefill[name, mode] = PrefillStage(limits, decode), PrefillStage(limits, decode)
        return cls(
            models,
            {facts.name: facts.digest for facts in models.facts},
            prefill,
            {name: FilterStage(model, pools[name], metrics) for name, model in models.filters.items()},
            {name: SequenceStage(model, metrics) for name, model in models.filters.items()},
            {name: MergeStage(model, metrics) for name, model in models.filters.items()},
            {**pools, **{name: model.pool for name, model in models.languages.items() if "recurrent" in model.modes}},
        )


@dataclass(frozen=True)
class Staged:
    """What is served next, and whether it is time."""

    served: Served
    is_due: Callable[[], bool]
