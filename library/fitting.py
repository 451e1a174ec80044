"""Fit structural models to recorded data, with `rfa.fit`. It needs `rfa-server[fit]`, but not torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rfa.data import Key, Series, key_name
from rfa.data.series import with_file
from rfa.fitting.column_models import SHARES, StructuralConfig
from rfa.fitting.fit import fit_series, fit_to
from rfa.library.models import notify_on_compile
from rfa.library.reading import describe_failures, read
from rfa.library.several_files import named_sources
from rfa.runtime.filters.fitted import Models


def fit(
    data: Any,
    *,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    tz: str = "UTC",
    country: str | None = None,
    holidays: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    time_format: str | None = None,
    strict: bool = False,
    missing: Sequence[str | float] | str | float = (),
) -> Models:
    """Fit a structural model (level, trend, cycles, seasons and a calendar) to every column of every series, like the
    command `rfa fit`.

    Args:
        tz: Time zone of times without a time zone, and of the days of calendars.
        country: Country whose holidays get their own daily pattern, such as "US", or "DE-BY" for a part of a country.
        holidays: Further holidays, such as "2026-12-24".
        config: Options of the fit: `seasons`, `max_harmonics`, `max_free_modes` and `iterations`. See the guide to
            training.
        out: JSON file in which to save the models. Completed series are saved next to it. If the call is interrupted,
            repeat it to continue.
        data, time, columns, by, time_format, strict, missing: See `rfa.filter`. The models of several files
            are named "file / column" or "file / key / column".

    Returns:
        The models by the names of their series, which are the column, the key, or "key / column" for several columns of
        many series. Pass all of them as `system` to `rfa.filter`, `forecast` or `detect`, or one of them to `Stream`.
        `fits` contains details of each fit, and `failed` the errors of series that could not be fitted.

    Raises:
        ValueError: If nothing could be fitted, or an argument, column or row is invalid. The message names it and says
            what to do.
    """
    structure = StructuralConfig.from_dict(dict(config or {}))
    how: dict[str, Any] = {"zone": tz, "country": country, "holidays": holidays, "config": structure}
    series, failed = _read(data, time, columns, by, tz, time_format, strict=strict, missing=missing)
    with notify_on_compile(), show_progress(series) as report:
        found = (fit_series if out is None else partial(fit_to, Path(out)))(series, report=report, **how)
    found.failed.update(failed)
    if left_out := describe_failures(found.failed):
        warnings.warn(f"some data is left out: {left_out}", UserWarning, stacklevel=2)
    return found


@contextmanager
def show_progress(series: Mapping[Key, Series]) -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar. The function that is returned describes the current step, and advances the bar by the
    fraction of a column."""
    total = sum(len(one.names) for one in series.values())
    with tqdm(total=total, disable=None, bar_format=SHARES) as bar:

        def advance(line: str, share: float) -> None:
            bar.set_postfix_str(line, refresh=False)
            bar.update(share)

        yield advance


def _read(data: Any, *how: Any, **options: Any) -> tuple[dict[Key, Series], dict[str, str]]:
    """Read the series of a data frame or of files. Return the series, and the errors of those that cannot be read."""
    sources = named_sources(data)
    if sources is None:
        table = read(data, *how, **options)
        return dict(table.series), {key_name(key): reason for key, reason in table.failed.items()}
    series: dict[Key, Series] = {}
    failed: dict[str, str] = {}
    for name, source in sources.items():
        try:
            table = read(source, *how, **options)
        except ValueError as error:
            failed[name] = str(error)
            continue
        series |= with_file(name, table.series)
        failed |= {key_name((name, *key)): reason for key, reason in table.failed.items()}
    if not series:
        raise ValueError(describe_failures(failed, "file"))
    return series, failed
