"""`rfa fit`: a model of each series of a file, which `rfa filter --system` takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.console import JsonFlag, print_result

if TYPE_CHECKING:
    from rfa.data import Key, Series

# Lines of models that are shown, and of series that failed.
SHOWN = 8


def fit(
    data: Annotated[
        str, typer.Argument(help="A file as `rfa filter` reads it, or - for standard input.", metavar="FILE")
    ],
    out: Annotated[Path, typer.Option("--out", help="Write the models there: a .json file.")],
    by: Annotated[
        list[str] | None,
        typer.Option(help="A column that tells series apart; repeatable. Each is fitted by itself."),
    ] = None,
    time: Annotated[str | None, typer.Option(help="The column of times.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column to fit; repeatable. All that hold numbers unless given.")
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Sheet of a workbook; the first unless given.")] = None,
    zone: Annotated[
        str,
        typer.Option("--tz", help="Where the clock hung whose times name no zone, and whose days and weeks count."),
    ] = "UTC",
    country: Annotated[
        str | None, typer.Option(help="Whose holidays are days of their own: US, or DE-BY for a part of a country.")
    ] = None,
    holiday: Annotated[
        list[str] | None, typer.Option(help="Another such day, as 2026-12-24; repeatable.", metavar="DATE")
    ] = None,
    time_format: Annotated[
        str | None, typer.Option(help="How times are written, such as '%d.%m.%Y %H:%M' (as strptime has it).")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help="Only rows from then on, such as 2024-03-31.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only rows before then.")] = None,
    every: Annotated[
        str | None, typer.Option(help="Put each series on a regular clock, such as 5min or 1d, by means.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file of how to fit: seasons, max_harmonics, max_free_modes, iterations.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Fit level, trend, seasons and a calendar to each series; no torch, no export.

    Every column is a series. Ctrl-C and SIGTERM keep what is finished, and the same command goes on. `rfa filter FILE
    --system MODELS` uses the models. Series that fail alone are named, and the exit code is 1.
    """
    import json

    from tqdm import tqdm

    from rfa.cli.filter_output import DOCUMENT, check_output
    from rfa.data import key_name, load_table, read_frame
    from rfa.data.wide import melt_wide
    from rfa.fitting.fit import fit_to
    from rfa.fitting.structural import SHARES, StructuralConfig

    check_output("--out", out, (DOCUMENT,), [data])
    chosen = StructuralConfig.from_dict({} if config is None else json.loads(config.read_text(encoding="utf-8")))
    failed: dict[str, str] = {}
    series = read_frame(
        melt_wide(load_table(data, sheet=sheet), by or []),
        time=time, columns=column or [], by=by or [], zone=zone, time_format=time_format, start=start, end=end,
        every=every, refused=lambda key, error: failed.update({key_name(key): str(error)}),
    )  # fmt: skip
    _say_notes(series)
    count = sum(len(one.names) for one in series.values())
    with tqdm(total=count, disable=None, bar_format=SHARES) as bar:

        def advance(line: str, share: float) -> None:
            bar.set_postfix_str(line, refresh=False)
            bar.update(share)

        models = fit_to(out, series, zone=zone, country=country, holidays=holiday or [], config=chosen, report=advance)
    failed |= models.failed
    for name, reason in list(failed.items())[:SHOWN]:
        typer.echo(f"failed: {name}: {reason}", err=True)
    found = {
        name: told["structure"] + (", calendar" if "calendar" in models[name] else "")
        for name, told in list(models.fits.items())[:SHOWN]
    }
    print_result({"models": str(out), "series": len(models), "failed": len(failed), "found": found}, as_json)
    if failed:
        raise typer.Exit(1)


def _say_notes(series: dict[Key, Series]) -> None:
    """What was decided while reading, each once."""
    notes = dict.fromkeys(note for one in series.values() for note in one.notes)
    for note in list(notes)[:SHOWN]:
        typer.echo(note, err=True)
