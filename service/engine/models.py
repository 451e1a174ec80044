"""The models of one process: opened, held to their golden outputs, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rfa.runtime.bundle.bundle import Bundle, BundleError, check_golden, open_bundle
from rfa.runtime.choices import Mode
from rfa.runtime.compiling import CompileTask, run_unlocked, run_with_locks
from rfa.runtime.filters import auto, compiled_system
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.golden import filter_tasks, open_filter
from rfa.runtime.outputs import GpuKernels, LongSeries
from rfa.runtime.text.language import Language
from rfa.service.bundle_version import bundle_version
from rfa.service.engine.device import LoadLanguage, language_loader, long_series_of
from rfa.service.schemas.server_replies import ModelInfo
from rfa.service.settings import Settings
from rfa.service.vetting.trust import trusted_keys

if TYPE_CHECKING:
    from rfa.runtime.series.device import SeriesDevice


# Of models of the server itself, that no bundle can have.
TAKEN = frozenset({*auto.NAMES, "system"})


@dataclass(frozen=True)
class Models:
    """Loaded models by name; the first of a kind answers requests that name none."""

    languages: Mapping[str, Language]
    filters: Mapping[str, FilterRuntime]
    facts: Sequence[ModelInfo]

    @property
    def version(self) -> str:
        """Of all of them together: equal where the same bundles are served."""
        return bundle_version(facts.digest for facts in self.facts if facts.name not in auto.NAMES)

    @property
    def kept_bytes(self) -> int:
        """Of memory, that they may come to keep from request to request beside seats."""
        return sum(model.kept_bytes for model in self.filters.values())


def load_models(settings: Settings) -> Models:
    """Open every bundle, hold it to its golden outputs (which warms its sessions up), and build its runtime.

    Raises:
        BundleError: naming the bundle and the reason; nothing is served from a set with a bad bundle.
        ConfigurationError: the device is not there.
        UnsupportedError: a bundle does not fit the device or the runtime of the settings.
    """
    load_language = language_loader(settings)
    languages: dict[str, Language] = {}
    filters: dict[str, FilterRuntime] = {name: auto.AutoRuntime.of(1, name) for name in auto.NAMES}
    opened: dict[str, tuple[Bundle, int]] = {}
    long_series: dict[str, LongSeries | None] = {}
    parts: list[CompileTask] = []
    tasks: list[CompileTask] = []
    texts: list[CompileTask] = []
    longest: list[CompileTask] = []  # to compile: one process begins with it, and another does all else meanwhile
    keys = trusted_keys(settings)
    for path in settings.bundles:
        bundle = open_bundle(path, keys)
        if bundle.name in opened or bundle.name in TAKEN:
            taken = "two bundles are" if bundle.name in opened else "a bundle is, as a model of the server itself,"
            raise BundleError(f"{taken} named {bundle.name!r}; names must differ")
        opened[bundle.name] = bundle, 0
        if bundle.kind == "lm":
            texts.append((None, partial(_load_into, languages, opened, bundle, load_language)))
        elif bundle.kind == "series":
            device, long_series[bundle.name] = long_series_of(settings, bundle)
            longest.append(_series_into(filters, bundle, opened, device))
        else:
            filters[bundle.name] = model = open_filter(bundle)  # holds the sessions that are checked
            opened[bundle.name] = bundle, check_golden(bundle)
            _, long_series[bundle.name] = long_series_of(settings, bundle)
            first, then = filter_tasks(bundle, model, partial(_count_into, opened, bundle))
            parts += first
            tasks += then
    part, rest = compiled_system.tasks()
    parts.append(part)
    tasks.append(rest)
    waiting = run_unlocked(longest)
    run_with_locks([*parts, (auto, auto.warm)])
    run_with_locks([*tasks, *texts, *waiting])
    facts = [
        *(
            ModelInfo(name, "filter", auto.digest(name), 0, "compiled", ("recurrent",), {}, {}, auto.calibration())
            for name in auto.NAMES
        ),
        *(
            _facts(bundle, values, filters[name].runtime, filters[name].modes, long_series=long_series[name])
            if name in filters
            else _facts(bundle, values, languages[name].runtime, languages[name].modes, languages[name].kernels)
            for name, (bundle, values) in opened.items()
            if name in filters or name in languages
        ),
    ]
    return Models(languages, _usual_first(filters, opened), facts)


def _usual_first(
    filters: Mapping[str, FilterRuntime], opened: Mapping[str, tuple[Bundle, int]]
) -> dict[str, FilterRuntime]:
    """In the order in which they answer requests that name none: a network of any series before `auto`."""
    networks = [name for name in filters if name in opened and opened[name][0].kind == "series"]
    return {name: filters[name] for name in [*networks, *filters]}


def _series_into(
    filters: dict[str, FilterRuntime], bundle: Bundle, opened: dict[str, tuple[Bundle, int]],
    device: SeriesDevice | None,
) -> CompileTask:  # fmt: skip
    """A model of any series; what compiles it counts its golden values."""
    from rfa.runtime.series.filter import COMPILED_MODULE, make_ready, open_series

    filters[bundle.name] = model = open_series(bundle, device)

    def run() -> None:
        opened[bundle.name] = bundle, make_ready(bundle, model)

    return COMPILED_MODULE, run


def _count_into(opened: dict[str, tuple[Bundle, int]], bundle: Bundle, count: int) -> None:
    """What is compiled counts its golden values once it runs."""
    opened[bundle.name] = bundle, count


def _load_into(
    languages: dict[str, Language], opened: dict[str, tuple[Bundle, int]], bundle: Bundle, load: LoadLanguage
) -> None:
    languages[bundle.name] = model = load(bundle)
    opened[bundle.name] = bundle, model.golden_values


def _facts(
    bundle: Bundle, golden_values: int, runtime: str, modes: tuple[Mode, ...], kernels: GpuKernels | None = None,
    long_series: LongSeries | None = None,
) -> ModelInfo:  # fmt: skip
    manifest = bundle.manifest
    return ModelInfo(
        bundle.name,
        bundle.kind,
        bundle.digest,
        golden_values,
        runtime,
        modes,
        manifest.config,
        manifest.metrics,
        manifest.calibration,
        bundle.ece_rows,
        kernels,
        long_series,
    )
