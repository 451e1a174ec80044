"""The filter that a caller means, and what is said once where it is slow."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rfa.data import Key, Series, key_name
from rfa.library.locate import find_bundle
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.documents import sha256
from rfa.runtime.bundle.manifest import MANIFEST_FILE
from rfa.runtime.compiling import call_on_compile
from rfa.runtime.filters import auto
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.fitted import are_models, system_for
from rfa.runtime.filters.system import System
from rfa.runtime.messages import COMPILING

if TYPE_CHECKING:
    from rfa.runtime.bundle.bundle import Bundle
    from rfa.runtime.filters.compiled_system import SystemRuntime
    from rfa.runtime.series.filter import SeriesRuntime

# Bundles that stay open.
KEPT: Final = 4
# The bundle of the network of any series.
SERIES = "series"
# What filters a series of this key: its columns, each with those that are filtered with it.
Filters = Callable[[Key, Series], Sequence[tuple[Series, FilterRuntime]]]


@dataclass(frozen=True)
class Model:
    """A filter for some columns.

    Attributes:
        name: of a default bundle, or its folder; "auto" and "auto-joint" are no bundles.
        digest: what its states belong to.
        system: the document of a system that was given in the place of a name.
    """

    name: str
    runtime: FilterRuntime
    digest: str
    system: Mapping[str, Any] | None = None


def usual_model() -> str:
    """What filters where no model is named: the network of any series, or `auto` where its bundle is not there."""
    try:
        find_bundle(SERIES)
    except FileNotFoundError:
        return auto.NAME
    return SERIES


def find_model(model: str | Path | None, columns: int | None, system: Mapping[str, Any] | None = None) -> Model:
    """The model of this name for so many columns; None are as many as a bundle has, and one of those that take any.

    Args:
        model: None is the usual one.
        system: in the place of a name, see `rfa.runtime.filters.system`.

    Raises:
        ValueError: it takes another number of columns, or is no filter.
        FileNotFoundError: there is no such bundle.
    """
    if system is not None:
        _check_for_system(model)
        return _system_model(system, columns)
    name = usual_model() if model is None else str(model)
    size = 1 if columns is None else columns
    if size < 1:
        raise ValueError(f"columns must be at least 1, got {size}")
    if name in auto.RETIRED and not Path(name).is_dir():
        warnings.warn(auto.retirement_note(name), FutureWarning, stacklevel=3)
        name = auto.RETIRED[name]
    if name in auto.NAMES:
        return Model(name, auto.AutoRuntime.of(size, name), auto.digest(name))
    bundle = _kept_open(find_bundle(name, auto.NAMES))
    if bundle.kind == "series":
        runtime = series_runtime(bundle, size)
        return Model(name, runtime, runtime.digest)
    return _checked(Model(name, FilterRuntime(bundle), bundle.digest), columns)


def _kept_open(path: Path) -> Bundle:
    """A bundle, opened again only when its manifest, which has the hashes of all its files, is another."""
    manifest = path / MANIFEST_FILE
    return _opened(path.absolute(), sha256(manifest.read_bytes()) if manifest.is_file() else "")


@lru_cache(KEPT)
def _opened(path: Path, digest: str) -> Bundle:
    return open_bundle(path)


def series_runtime(bundle: Bundle, columns: int) -> SeriesRuntime:
    """A model of any series for so many columns.

    Raises:
        BundleError: it is not what its golden outputs were made with.
        InvalidInput: they are too many.
    """
    return _held_to_golden(bundle).sized(columns)


@lru_cache(KEPT)
def _held_to_golden(bundle: Bundle) -> SeriesRuntime:
    """A model of any series, held to the golden outputs of its bundle as servers hold it: once for a bundle, for hashes
    tell that the weights came whole, and not that they are those of the network."""
    from rfa.runtime.series.filter import hold_to_golden, open_series

    runtime = open_series(bundle)
    with call_on_compile(_tell):
        hold_to_golden(bundle, runtime)
    return runtime


def filters(model: str | Path | None, columns: int, system: Mapping[str, Any] | None = None) -> Filters:
    """What filters series: all the same, or where `system` is models of series their columns by their own.

    Raises:
        ValueError, FileNotFoundError: see `find_model`.
    """
    if are_models(system):
        _check_for_system(model)
        return own_filters(system)
    runtime = find_model(model, columns, system).runtime
    return lambda key, series: [(series, runtime)]


def own_filters(models: object) -> Callable[[Key, Series], list[tuple[Series, SystemRuntime]]]:
    """What filters every column of a series by the system that it has among models; a ValueError where it has none."""
    from rfa.runtime.filters.compiled_system import SystemRuntime

    def parts(key: Key, series: Series) -> list[tuple[Series, SystemRuntime]]:
        is_only = len(series.names) == 1
        columns = [(part, part.names[0]) for part in series.by_column()]
        return [
            (part, SystemRuntime(system_for(models, name, key_name(key), is_only=is_only))) for part, name in columns
        ]

    return parts


def _check_for_system(model: str | Path | None) -> None:
    if model is not None:
        raise ValueError("system stands in the place of model: give one of them")


def _system_model(document: Mapping[str, Any], columns: int | None) -> Model:
    from rfa.runtime.filters.compiled_system import SystemRuntime

    system = System.from_document(document)
    runtime = SystemRuntime(system)
    return _checked(Model(system.name, runtime, runtime.digest, system.document), columns)


def _checked(model: Model, columns: int | None) -> Model:
    size = model.runtime.observation_size
    if columns not in (None, size):
        raise ValueError(
            f"model {model.name!r} takes {size} columns, not {columns}: choose them with `columns`, or leave "
            f"`{'model' if model.system is None else 'system'}` out for what suits any number"
        )
    return model


@contextmanager
def notify_on_compile() -> Iterator[None]:
    """Say on stderr that something is compiled, before that takes a while."""
    with call_on_compile(_tell):
        yield


def _tell() -> None:
    sys.stderr.write(f"rfa: {COMPILING}\n")
