"""`rfa fit`: fit a model to each series of a file. `rfa filter --system` uses the models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.console import print_result
from rfa.cli.filter_options import Sources
from rfa.cli.options import FileOptions, JsonFlag, reads_files

if TYPE_CHECKING:
    from rfa.data import Key, Series
    from rfa.fitting.fit import Models

# Maximum number of models, failed series and notes that are printed.
SHOWN = 8

Out = Annotated[Path, typer.Option("--out", help="JSON file in which to save the models.")]
Country = Annotated[
    str | None, typer.Option(help="Country whose public holidays get their own daily pattern, such as US or DE-BY.")
]
Holidays = Annotated[
    list[str] | None,
    typer.Option(help="Date of an additional holiday, such as 2026-12-24. Repeatable.", metavar="DATE"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="JSON file with options of the fit: seasons, max_harmonics, max_free_modes and iterations."),
]


@dataclass(frozen=True)
class FitOptions:
    """Options of `rfa fit` that determine how models are fitted."""

    country: Country = None
    holiday: Holidays = None
    config: ConfigFile = None


@reads_files
def fit(
    data: Sources,
    *,
    out: Out,
    options: FitOptions,
    as_json: JsonFlag = False,
    files: FileOptions,
) -> None:
    """Fit a model with level, trend, seasons and a calendar to each column of each series. This does not need torch.

    Models of several files are named FILE / COLUMN. `rfa filter FILE --system MODELS` uses the models. On Ctrl-C or
    SIGTERM, completed models are saved, and running the same command again continues. If a series fails, its error is
    printed, and the exit code is 1.
    """
    from rfa.cli.filter_output import DOCUMENT, check_output

    check_output("--out", out, (DOCUMENT,), data)
    series, failed = _read(data, files)
    notes = dict.fromkeys(note for one in series.values() for note in one.notes)
    for note in list(notes)[:SHOWN]:
        typer.echo(note, err=True)
    models = _fit(series, out, options, files.zone)
    failed |= models.failed
    for name, reason in list(failed.items())[:SHOWN]:
        typer.echo(f"failed: {name}: {reason}", err=True)
    found = {
        name: fitted["structure"] + (", calendar" if "calendar" in models[name] else "")
        for name, fitted in list(models.fits.items())[:SHOWN]
    }
    print_result({"models": str(out), "series": len(models), "failed": len(failed), "found": found}, as_json)
    if failed:
        raise typer.Exit(1)


def _read(names: list[str], files: FileOptions) -> tuple[dict[Key, Series], dict[str, str]]:
    """Read the series of all files. Return the series, and the error messages of series that cannot be read."""
    from rfa.data import key_name, read_all
    from rfa.data.series import with_file
    from rfa.data.source import display_names

    found: dict[Key, Series] = {}
    failed: dict[str, str] = {}
    for file, name in zip(names, display_names(names), strict=True):
        prefix = (name,) if len(names) > 1 else ()
        refused: dict[Key, str] = {}
        try:
            series = read_all(files.load(file), files.reading, partial(_note_failure, refused)).series
        except ValueError as error:
            if not prefix:
                raise
            refused, series = {(): str(error)}, {}
        failed |= {key_name((*prefix, *key)): reason for key, reason in refused.items()}
        found |= with_file(name, series) if prefix else series
    if not found:
        raise ValueError(f"no series could be read; the first error is: {next(iter(failed.values()))}")
    return found, failed


def _note_failure(failed: dict[Key, str], key: Key, error: ValueError) -> None:
    failed[key] = str(error)


def _fit(series: dict[Key, Series], out: Path, options: FitOptions, zone: str) -> Models:
    """Fit the models while showing a progress bar, and return them."""
    from rfa.fitting.column_models import StructuralConfig
    from rfa.fitting.fit import fit_to
    from rfa.library.fitting import show_progress

    path, holidays = options.config, options.holiday or []
    config = StructuralConfig.from_dict({} if path is None else json.loads(path.read_text(encoding="utf-8")))
    with show_progress(series) as report:
        return fit_to(out, series, zone=zone, country=options.country, holidays=holidays, config=config, report=report)
