"""Load the models of a server process, and check that they reproduce their golden outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rfa.runtime.bundle.bundle import Bundle, BundleError, check_golden, open_bundle
from rfa.runtime.compiling import CompileTask, run_with_locks
from rfa.runtime.filters import auto, compiled_system
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.golden import filter_tasks, open_filter
from rfa.runtime.outputs import GpuKernels, LongSeries
from rfa.runtime.series.filter import MIXTURE, SeriesRuntime, calibration
from rfa.runtime.text.language import Language
from rfa.runtime.uncertainty import scoring
from rfa.service.bundle_checks.trusted_keys import trusted_keys
from rfa.service.bundle_version import bundle_version
from rfa.service.engine.device import language_loader, long_series_of
from rfa.service.errors import NotFound
from rfa.service.schemas.chat_template import CHAT_TEMPLATE
from rfa.service.schemas.server_replies import ModelInfo
from rfa.service.settings import Settings

# Names of built-in models.
RESERVED_NAMES = frozenset({*auto.NAMES, MIXTURE, "system"})


@dataclass(frozen=True)
class Models:
    """Loaded models by name. The first language model and the first filter are the defaults.

    Attributes:
        languages: Mapping from names to language models.
        filters: Mapping from names to filters.
        facts: Description of each model in the reply to /info.
    """

    languages: Mapping[str, Language]
    filters: Mapping[str, FilterRuntime]
    facts: Sequence[ModelInfo]

    @property
    def version(self) -> str:
        """Version of the set of loaded bundles."""
        return bundle_version(facts.digest for facts in self.facts if facts.name not in RESERVED_NAMES)

    @property
    def kept_bytes(self) -> int:
        """Memory in bytes that filters may keep between requests, without pool slots."""
        return sum(model.kept_bytes for model in self.filters.values())

    def reserved_bytes(self, settings: Settings) -> int:
        """Return the memory in bytes that is not available for requests: `kept_bytes` and, if there is a language
        model, the maximum size of the prefix cache."""
        return self.kept_bytes + (settings.limits.prefix_cache_bytes if self.languages else 0)


def find_model(models: Mapping[str, Any], name: str | None, kind: str) -> Any:
    """Return the model of the given name, or the first model if the name is None.

    Raises:
        NotFound: If there is no such model. The message contains `kind`, the kind of model that was requested.
    """
    if not models:
        raise NotFound(f"This server has no {kind}.", param="model", code="model_not_found")
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        choices = ", ".join(repr(choices) for choices in models)
        raise NotFound(
            f"model must be the name of a {kind} on this server: {choices}.", param="model", code="model_not_found"
        )
    return models[name]


def load_models(settings: Settings) -> Models:
    """Open every bundle, reproduce its golden outputs, and build its runtime.

    Raises:
        BundleError: If a bundle is invalid. The message names the bundle and the reason.
        ConfigurationError: If the device is missing.
        UnsupportedError: If the device or the runtime in the settings does not support a bundle.
    """
    loader = _Loader(settings)
    keys = trusted_keys(settings.security)
    for path in settings.models.bundles:
        # Compiled code replaces most graphs. The supervisor has checked all graphs in a subprocess.
        loader.add(open_bundle(path, keys, with_graphs=False))
    return loader.finish()


class _Loader:
    """Collects the bundles and the tasks that compile and check them, and then runs the tasks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._load_language = language_loader(settings)
        self._languages: dict[str, Language] = {}
        self._filters: dict[str, FilterRuntime] = {name: auto.AutoRuntime.of(1, name) for name in auto.NAMES}
        self._bundles: dict[str, Bundle] = {}
        self._golden_values: dict[str, int] = {}
        self._long_series: dict[str, LongSeries | None] = {}
        self._first: list[CompileTask] = []
        self._then: list[CompileTask] = []
        self._texts: list[CompileTask] = []
        self._series: list[CompileTask] = []

    def add(self, bundle: Bundle) -> None:
        """Add the tasks for loading a bundle."""
        name = bundle.name
        if name in self._bundles or name in RESERVED_NAMES:
            taken = (
                "two bundles have the name" if name in self._bundles else "a bundle has the name of a built-in model,"
            )
            raise BundleError(f"{taken} {name!r}; export a bundle with another name")
        self._bundles[name], self._golden_values[name] = bundle, 0
        if bundle.kind == "lm":
            self._texts.append((None, partial(self._add_language, bundle)))
        elif bundle.kind == "filter":
            self._filters[name] = model = open_filter(bundle)  # uses the sessions that `check_golden` checks
            self._golden_values[name] = check_golden(bundle)
            _, self._long_series[name] = long_series_of(self._settings, bundle)
            first, then = filter_tasks(bundle, model, partial(self._golden_values.__setitem__, name))
            self._first += first
            self._then += then
        else:
            self._add_series(bundle)

    def _add_language(self, bundle: Bundle) -> None:
        self._languages[bundle.name] = model = self._load_language(bundle)
        self._golden_values[bundle.name] = model.golden_values

    def _add_series(self, bundle: Bundle) -> None:
        from rfa.runtime.series.filter import compile_tasks, open_series

        device, self._long_series[bundle.name] = long_series_of(self._settings, bundle)
        self._filters[bundle.name] = model = open_series(bundle, device)
        first, then = compile_tasks(bundle, model, partial(self._golden_values.__setitem__, bundle.name))
        self._first += first
        self._series += then

    def finish(self) -> Models:
        """Run all tasks, and return the loaded models."""
        first, then = compiled_system.tasks()
        # Two processes share the tasks. Starting with the slowest ones minimises the total time.
        run_with_locks([(scoring, auto.compile_scoring), *self._first, first])
        run_with_locks([*self._series, (auto, auto.warm), *self._texts, *self._then, then])
        # The first filter is the default: the mixture if there is a series network, and otherwise `auto`.
        networks = {name: model for name, model in self._filters.items() if isinstance(model, SeriesRuntime)}
        mixtures = [network.mixed() for network in list(networks.values())[:1]]
        filters = {**{mixture.name: mixture for mixture in mixtures}, **networks, **self._filters}
        facts = [
            ModelInfo(name, "filter", auto.digest(name), 0, "compiled", ("recurrent",), {}, {}, auto.calibration())
            for name in auto.NAMES
        ]
        facts += [
            ModelInfo(MIXTURE, "filter", mixture.digest, 0, "compiled", ("recurrent",), {}, {}, calibration())
            for mixture in mixtures
        ]
        facts += [self._facts(name) for name in self._bundles if name in filters or name in self._languages]
        return Models(self._languages, filters, facts)

    def _facts(self, name: str) -> ModelInfo:
        bundle, count = self._bundles[name], self._golden_values[name]
        if (language := self._languages.get(name)) is not None:
            return model_info(bundle, count, language, language.kernels)
        return model_info(bundle, count, self._filters[name], long_series=self._long_series[name])


def model_info(
    bundle: Bundle,
    golden_values: int,
    model: Language | FilterRuntime,
    kernels: GpuKernels | None = None,
    long_series: LongSeries | None = None,
) -> ModelInfo:
    """Return the description of a model in the reply to /info.

    Args:
        golden_values: Number of golden outputs that the model reproduced.
        kernels: Description of the GPU kernels of a language model.
        long_series: Description of the device for long series of a filter.
    """
    manifest = bundle.manifest
    return ModelInfo(
        bundle.name,
        bundle.kind,
        bundle.digest,
        golden_values,
        model.runtime,
        model.modes,
        manifest.config,
        manifest.metrics,
        manifest.calibration,
        bundle.ece_rows,
        kernels,
        long_series,
        CHAT_TEMPLATE if bundle.kind == "lm" else None,
        (model.passes.least, model.passes.most),
    )
