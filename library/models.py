"""Find the filter for the model name, bundle or linear system that a caller passes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rfa.data import Key, Series, key_name, usual_step
from rfa.library.locate import find_bundle
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.bundle.documents import sha256
from rfa.runtime.bundle.manifest import MANIFEST_FILE
from rfa.runtime.compiling import call_on_compile
from rfa.runtime.filters import auto
from rfa.runtime.filters.compiled_system import SystemRuntime
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.fitted import are_models, system_for
from rfa.runtime.filters.system import System
from rfa.runtime.messages import COMPILING
from rfa.runtime.series.covariates import CovariateInputs
from rfa.runtime.series.filter import MIXTURE, SeriesRuntime, hold_to_golden, open_series

# Maximum number of bundles that stay open.
MOST_OPEN: Final = 4
# Name of the bundle with the series network.
SERIES = "series"
# A function of the key and a series that returns its filters, each with the columns of the series that it filters.
Filters = Callable[[Key, Series], Sequence[tuple[Series, FilterRuntime]]]


@dataclass(frozen=True)
class Model:
    """A filter for a fixed number of columns.

    Attributes:
        name: "default", the name of a default bundle, its directory, "auto" or "auto-joint".
        runtime: Filter that computes the outputs.
        digest: Digest of the bundle. A state can only be continued by a model with the same digest.
        system: Description of the linear system as JSON types. None if the model was specified by its name.
    """

    name: str
    runtime: FilterRuntime
    digest: str
    system: Mapping[str, Any] | None = None


def usual_model() -> str:
    """Return the name of the default model, which is the mixture that contains the series network. If the bundle of the
    network is missing, return "auto"."""
    try:
        find_bundle(SERIES)
    except FileNotFoundError:
        return auto.NAME
    return MIXTURE


def find_model(
    model: str | Path | None, columns: int | None, system: Mapping[str, Any] | None = None, known: int = 0
) -> Model:
    """Return the model of the given name for a number of columns.

    Args:
        model: Name of the model. None selects the default.
        columns: Number of columns. If None, it is the number in the bundle's manifest, or 1 if the bundle accepts any
            number.
        system: Linear system to use instead of a named model. See `rfa.runtime.filters.system`.
        known: Number of additional columns whose future values are known.

    Raises:
        ValueError: If the model requires another number of columns, is not a filter, or does not support columns whose
            future values are known.
        FileNotFoundError: If the bundle does not exist.
    """
    found = _find_model(model, columns, system)
    return replace(found, runtime=found.runtime.with_covariates(known)) if known else found


def _find_model(model: str | Path | None, columns: int | None, system: Mapping[str, Any] | None = None) -> Model:
    """Return the model of the given name for a number of columns. See `find_model`."""
    if system is not None:
        _check_for_system(model)
        return _system_model(system, columns)
    name = usual_model() if model in (None, MIXTURE) else str(model)
    size = 1 if columns is None else columns
    if size < 1:
        raise ValueError(f"columns must be at least 1, got {size}")
    if name in auto.RETIRED and not Path(name).is_dir():
        warnings.warn(auto.retirement_note(name), FutureWarning, stacklevel=4)
        name = auto.RETIRED[name]
    if name in auto.NAMES:
        return Model(name, auto.AutoRuntime.of(size, name), auto.digest(name))
    if name == MIXTURE:
        mixture = mixture_runtime(size)
        return Model(name, mixture, mixture.digest)
    bundle = _open(find_bundle(name, (*auto.NAMES, MIXTURE)))
    if bundle.kind == "series":
        runtime = series_runtime(bundle, size)
        return Model(name, runtime, runtime.digest)
    return _checked(Model(name, FilterRuntime(bundle), bundle.digest), columns)


def _open(path: Path) -> Bundle:
    """Open a bundle. The opened bundle is cached until its manifest, which contains all file hashes, changes."""
    manifest = path / MANIFEST_FILE
    return _opened(path.absolute(), sha256(manifest.read_bytes()) if manifest.is_file() else "")


@lru_cache(MOST_OPEN)
def _opened(path: Path, digest: str) -> Bundle:
    return open_bundle(path)


def series_runtime(bundle: Bundle, columns: int) -> SeriesRuntime:
    """Load the series network for a number of columns.

    Raises:
        BundleError: If the network does not reproduce its golden outputs.
        ValueError: If there are too many columns.
    """
    return _checked_network(bundle).sized(columns)


def mixture_runtime(columns: int) -> SeriesRuntime:
    """Load the default model, which is a mixture, for a number of columns.

    Raises:
        BundleError: If the network does not reproduce its golden outputs.
        ValueError: If there are too many columns.
        FileNotFoundError: If the bundle of the network does not exist.
    """
    return _mixture(_open(find_bundle(SERIES))).sized(columns)


@lru_cache(MOST_OPEN)
def _mixture(bundle: Bundle) -> SeriesRuntime:
    return _checked_network(bundle).mixed()


@lru_cache(MOST_OPEN)
def _checked_network(bundle: Bundle) -> SeriesRuntime:
    """Load the series network and check it against the golden outputs of its bundle. Each bundle is checked once per
    process."""
    runtime = open_series(bundle)
    with call_on_compile(_report_compilation):
        hold_to_golden(bundle, runtime)
    return runtime


def check_mixture(runtime: FilterRuntime, option: str) -> None:
    """Check that a model is a mixture, because only forecasts of a mixture contain weights.

    Raises:
        ValueError: If the model is not a mixture. The message names `option`.
    """
    if not runtime.experts:
        raise ValueError(
            f"{option} requires a model that combines several forecasts, such as 'default', got {runtime.name!r}"
        )


def filters(model: str | Path | None, columns: int, system: Mapping[str, Any] | None = None) -> Filters:
    """Return a function that selects the filters of a series.

    If `system` contains fitted models, the function returns a separate filter for each column. Otherwise, it returns
    the same filter for all series.

    Raises:
        ValueError: If `model` or `system` is invalid, or both are set.
        FileNotFoundError: If the bundle does not exist.
    """
    if are_models(system):
        _check_for_system(model)
        return with_covariates(own_filters(system))
    runtime = find_model(model, columns, system).runtime
    return with_covariates(lambda key, series: [(series, runtime)])


def with_covariates(filters_of: Filters) -> Filters:
    """Wrap `filters_of` so that the filters of a series accept its columns whose future values are known.

    The returned function raises an InvalidInput if a filter does not support such columns.
    """

    def parts(key: Key, series: Series) -> Sequence[tuple[Series, FilterRuntime]]:
        found = filters_of(key, series)
        if series.covariates is None:
            return found
        return [(part, runtime.with_covariates(len(series.covariates.names))) for part, runtime in found]

    return parts


def covariate_inputs(series: Series, horizon: Sequence[float]) -> CovariateInputs | None:
    """Return the values of the known columns of a series, at its rows and at the given horizons. Return None if the
    series has no known columns."""
    covariates = series.covariates
    if covariates is None:
        return None
    return CovariateInputs(covariates.times, covariates.values, tuple(horizon), usual_step(series) or 1.0)


def own_filters(models: object) -> Callable[[Key, Series], list[tuple[Series, SystemRuntime]]]:
    """Return a function that splits a series into columns. For each column, it returns the filter for its system in
    `models`, and raises a ValueError if there is none."""

    def parts(key: Key, series: Series) -> list[tuple[Series, SystemRuntime]]:
        is_only = len(series.names) == 1
        columns = [(part, part.names[0]) for part in series.by_column()]
        return [
            (part, SystemRuntime(system_for(models, name, key_name(key), is_only=is_only))) for part, name in columns
        ]

    return parts


def _check_for_system(model: str | Path | None) -> None:
    if model is not None:
        raise ValueError("system and model cannot be combined; pass only one of them")


def _system_model(document: Mapping[str, Any], columns: int | None) -> Model:
    system = System.from_document(document)
    runtime = SystemRuntime(system)
    return _checked(Model(system.name, runtime, runtime.digest, system.document), columns)


def _checked(model: Model, columns: int | None) -> Model:
    size = model.runtime.observation_size
    if columns not in (None, size):
        raise ValueError(
            f"model {model.name!r} expects {size} columns, got {columns}; select columns with `columns`, or leave out "
            f"`{'model' if model.system is None else 'system'}` to use a model for any number of columns"
        )
    return model


@contextmanager
def notify_on_compile() -> Iterator[None]:
    """Write a message to stderr before the first compilation inside this block, because compiling takes some time."""
    with call_on_compile(_report_compilation):
        yield


def _report_compilation() -> None:
    sys.stderr.write(f"rfa: {COMPILING}\n")
