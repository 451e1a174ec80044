"""`rfa bench`: what the README's figures are made with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.bundle import BundleName
from cli.console import JsonFlag, print_json, print_result

app = typer.Typer(no_args_is_help=True, help="Measure speed and quality.")
RESULTS = Path("bench") / "results"


@app.command("decode")
def bench_decode(
    bundle: BundleName = "books",
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "decode.json",
    as_json: JsonFlag = False,
) -> None:
    """Cost of one token on one thread: the recurrence early and late in a stream, the cache short and long."""
    from bench.decode import write_decode
    from cli.locate import find_bundle

    document = write_decode(find_bundle(bundle), out)
    print_result(document, as_json)


@app.command("filter")
def bench_filter(
    bundle: BundleName = "oscillator",
    streams: Annotated[int, typer.Option(min=1)] = 400,
    length: Annotated[int, typer.Option(min=2)] = 100,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "filter.json",
    as_json: JsonFlag = False,
) -> None:
    """The oscillator at the paper's noise settings: error and coverage beside the exact Kalman filter."""
    from bench.filter_eval import markdown, write_filter
    from cli.locate import find_bundle

    document = write_filter(find_bundle(bundle), out, streams=streams, length=length)
    if as_json:
        print_json(document)
    else:
        typer.echo(markdown(document["rows"]))
