"""`rfa fit`: fit a model to each series of a file. `rfa filter --system` uses the models."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.console import print_result
from rfa.cli.filter_options import Sources
from rfa.cli.options import JsonFlag, reads_files

if TYPE_CHECKING:
    from rfa.data import Key, ReadOptions, Series
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


@reads_files
def fit(
    data: Sources,
    *,
    out: Out,
    country: Country = None,
    holiday: Holidays = None,
    config: ConfigFile = None,
    as_json: JsonFlag = False,
    reading: ReadOptions,
    source: dict[str, str | None],
) -> None:
    """Fit a model with level, trend, seasons and a calendar to each column of each series. This does not need torch.

    Models of several files are named FILE / COLUMN. `rfa filter FILE --system MODELS` uses the models. On Ctrl-C or
    SIGTERM, completed models are saved, and running the same command again continues. If a series fails, its error is
    printed, and the exit code is 1.
    """
    from rfa.cli.filter_output import DOCUMENT, check_output

    check_output("--out", out, (DOCUMENT,), data)
    series, failed = _read(data, reading, source)
    notes = dict.fromkeys(note for one in series.values() for note in one.notes)
    for note in list(notes)[:SHOWN]:
        typer.echo(note, err=True)
    models = _fit(series, out, config, zone=reading.zone, country=country, holidays=holiday or [])
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


def _read(
    files: list[str], reading: ReadOptions, source: dict[str, str | None]
) -> tuple[dict[Key, Series], dict[str, str]]:
    """Read the series of all files. Return the series, and the error messages of series that cannot be read."""
    from rfa.data import key_name, load_table, read_all
    from rfa.data.series import with_file
    from rfa.data.source import display_names

    found: dict[Key, Series] = {}
    failed: dict[str, str] = {}
    for file, name in zip(files, display_names(files), strict=True):
        prefix = (name,) if len(files) > 1 else ()
        refused: dict[Key, str] = {}
        try:
            table = load_table(file, **source)
            series = read_all(table, reading, partial(_note_failure, refused)).series
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


def _fit(
    series: dict[Key, Series], out: Path, config: Path | None, *, zone: str, country: str | None, holidays: list[str]
) -> Models:
    """Fit the models while showing a progress bar."""
    from tqdm import tqdm

    from rfa.fitting.column_models import SHARES, StructuralConfig
    from rfa.fitting.fit import fit_to

    parsed = StructuralConfig.from_dict({} if config is None else json.loads(config.read_text(encoding="utf-8")))
    count = sum(len(one.names) for one in series.values())
    with tqdm(total=count, disable=None, bar_format=SHARES) as bar:

        def advance(line: str, share: float) -> None:
            bar.set_postfix_str(line, refresh=False)
            bar.update(share)

        return fit_to(out, series, zone=zone, country=country, holidays=holidays, config=parsed, report=advance)
