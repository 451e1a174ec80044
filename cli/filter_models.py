"""Load the filters that --model and --system select."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfa.data import Key, Series
    from rfa.library.models import Filters
    from rfa.runtime.filters.compiled_system import SystemRuntime


def load_filter(bundle: str | None) -> Filters:
    """Load a model, and return its filters.

    Args:
        bundle: Name of a built-in model or of a bundle, or a bundle directory. If it is None, the default model is
            used.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If the model cannot be loaded.
    """
    from rfa.library.models import mixture_runtime, series_runtime, usual_model
    from rfa.runtime.filters.auto import NAMES, RETIRED, AutoRuntime, retirement_note
    from rfa.runtime.series.filter import MIXTURE

    name = usual_model() if bundle in (None, MIXTURE) else bundle
    if name in RETIRED and not Path(name).is_dir():
        sys.stderr.write(f"{retirement_note(name)}\n")
        name = RETIRED[name]
    if name in NAMES:
        return lambda key, series: [(series, AutoRuntime.of(len(series.names), name))]
    if name == MIXTURE:
        return lambda key, series: [(series, mixture_runtime(len(series.names)))]
    from rfa.cli.bundles import find_bundle
    from rfa.runtime.bundle.bundle import open_bundle
    from rfa.runtime.filters.filter import FilterRuntime

    opened = open_bundle(find_bundle(name, (*NAMES, MIXTURE)))
    if opened.kind == "series":
        model = series_runtime(opened, 1)
        return lambda key, series: [(series, model.sized(len(series.names)))]
    runtime = FilterRuntime(opened)
    return lambda key, series: [(series, runtime)]


def load_system(path: Path) -> Filters:
    """Load the systems in a JSON file, and return their filters. The file contains one system, or fitted models by the
    names of series and columns.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file is not a JSON document, or does not contain valid systems.
    """
    from rfa.library.models import own_filters
    from rfa.runtime.filters.compiled_system import SystemRuntime
    from rfa.runtime.filters.fitted import are_models
    from rfa.runtime.filters.system import InvalidSystem, System

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not a JSON document: {error}") from None
    own = own_filters(document) if are_models(document) else None

    def filters(key: Key, series: Series) -> list[tuple[Series, SystemRuntime]]:
        try:
            found = [(series, SystemRuntime(System.from_document(document)))] if own is None else own(key, series)
        except InvalidSystem as error:
            raise ValueError(f"{path.name}: {error}") from None
        if not series.is_dated and any(runtime.calendar is not None for _, runtime in found):
            raise ValueError(
                f"{path.name} uses a calendar, but the times in the file are not dates; specify the date column "
                "with --time"
            )
        return found

    return filters
