"""`rfa train lm`, `rfa train filter` and `rfa train series`: data → a run directory that `rfa export` reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.console import JsonFlag, print_result

if TYPE_CHECKING:
    from rfa.model.series.network import SeriesNetwork

# Of a series of one's own from its first value on: two years of 5-minute values.
MOST_CELLS = 1 << 18

app = typer.Typer(no_args_is_help=True, help="Train a model from data.")
Steps = Annotated[
    int | None, typer.Option(min=1, help="Instead of the config's; with more than a finished run has, it goes on.")
]
Out = Annotated[Path, typer.Option("--out", help="Run directory to write.", metavar="RUN", file_okay=False)]


@app.command("lm")
def train_lm(
    data: Annotated[
        Path,
        typer.Option(
            help="Folder with train and valid: folders of .txt files, or train.txt and valid.txt.", metavar="DIR"
        ),
    ],
    out: Out,
    config: Annotated[
        str, typer.Option(help="Name of a packaged config (small, books, paper), or a JSON file.")
    ] = "small",
    variant: Annotated[
        str | None, typer.Option(help="A model of the papers at that size, by its name: B1, M2, M2.4, slots, …")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the config's.")] = None,
    steps: Steps = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Train a language model; a run directory with progress is resumed. Ctrl-C and SIGTERM save the step under way."""
    from rfa.training.language import train_language

    record = train_language(config, data, out, variant=variant, seed=seed, steps=steps, device=device)
    shown = ("config_name", "parameters", "tokens", "seconds", "validation_loss")
    print_result({"run": str(out), **{name: record[name] for name in shown}}, as_json)


@app.command("filter")
def train_filter(
    data: Annotated[
        str, typer.Option(help="A file as rfa filter reads it, or simulate:oscillator.", metavar="FILE|simulate:NAME")
    ],
    out: Out,
    config: Annotated[
        str | None,
        typer.Option(
            help="Name of a packaged config (structural, oscillator, linear), or a JSON file; default: a deep filter."
        ),
    ] = None,
    steps: Steps = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a filter on recorded series, or on a simulated system; structural fits level, trend and seasons. A run
    with progress is resumed; Ctrl-C and SIGTERM save the step under way."""
    from rfa.training.filter import RECORD_FILE, FilterRun
    from rfa.training.filter import train_filter as train
    from rfa.training.language import find_config

    run = FilterRun.from_file(find_config(config)) if config else FilterRun.from_dict({"family": "deep"})
    if steps is not None:
        if run.family != "deep":
            raise ValueError(f"--steps is of a deep filter: a {run.family} one takes none")
        run = replace(run, training=replace(run.training, steps=steps))
    model = train(run, data, out)
    if run.family == "structural":
        record = json.loads((out / RECORD_FILE).read_text())
        columns = {column["name"]: column["structure"] for column in record["columns"]}
        print_result({"run": str(out), "family": run.family, "states": model.state_size, "columns": columns}, as_json)
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print_result({"run": str(out), "family": run.family, "parameters": parameters}, as_json)


@app.command("series")
def train_series(
    out: Out,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A file as rfa filter reads it, to train on beside synthetic series; repeat for more. Default: "
            "synthetic series alone.",
            metavar="FILE",
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", help="Bundle or run whose weights are the first ones; new: drawn ones. Default: with --data the "
            "bundle series, else new.", metavar="BUNDLE|RUN|new",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="Name of a packaged config (series, series_tune, series_v2), or a JSON file; default: by --data."
        ),
    ] = None,
    steps: Steps = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Of training, in all: instead of the steps they end the run, and rates go by them."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Instead of the config's: other synthetic series.")] = None,
    copy_to: Annotated[
        Path | None, typer.Option(help="Folder that gets each checkpoint as well; --out may name it to go on from it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:  # fmt: skip
    """Train the network of any series: on synthetic ones for hours, or from the shipped weights on one's own for
    minutes. A run with progress is resumed; Ctrl-C and SIGTERM save the step under way."""
    from rfa.data import load_table, read_frame, usual_step
    from rfa.training.language import find_config
    from rfa.training.series_batches import cells_of
    from rfa.training.series_network import SeriesRun
    from rfa.training.series_network import train_series as train

    run = SeriesRun.from_file(find_config(config or ("series_tune" if data else "series")))
    source = begin or ("series" if data else "new")
    network = None if source == "new" else _series_network(source)
    if network is not None:
        run = replace(run, model=network.config)
    if steps is not None:
        run = replace(run, training=replace(run.training, steps=steps))
    if minutes is not None:
        run = replace(run, training=replace(run.training, minutes=minutes))
    if seed is not None:
        run = replace(run, training=replace(run.training, seed=seed))
    own = []
    for file in data or ():
        for series in read_frame(load_table(file)).values():
            step = usual_step(series) or 1.0
            for column in range(len(series.names)):
                found = cells_of(series.times, series.values[:, column], step, MOST_CELLS, has_calendar=False)
                own += [] if found is None else [found]
    files = [Path(file) for file in data or ()]
    record = train(run, out, begin_from=network, own=own, files=files, device=device, copy_to=copy_to)
    print_result({"run": str(out), **{name: record[name] for name in ("parameters", "series", "seconds")}}, as_json)


def _series_network(source: str) -> SeriesNetwork:
    """The network of a bundle or a run.

    Raises:
        ValueError: it is another model.
    """
    from rfa.cli.bundles import find_bundle
    from rfa.model.checkpoint import CONFIG_FILE
    from rfa.model.loading import load_model
    from rfa.model.series.network import SeriesNetwork as Network

    path = Path(source)
    model = load_model(path if (path / CONFIG_FILE).is_file() else find_bundle(source))
    if not isinstance(model, Network):
        raise ValueError(f"--from {source} is no network of series")
    return model
