"""`rfa train lm`, `rfa train filter` and `rfa train series`: train a model on data, and write a run directory for `rfa
export`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rfa.cli.console import print_result
from rfa.cli.options import Device, JsonFlag

if TYPE_CHECKING:
    from rfa.model.series.network import SeriesNetwork
    from rfa.training.series_batches import Cells

# Number of values of a user's series that are used for training, from the first on. This is two years at 5-minute
# steps.
MAX_CELLS = 1 << 18

app = typer.Typer(no_args_is_help=True, help="Train a model from data.")
Steps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            "Number of training steps. It replaces the value in the config. A larger number continues a finished run."
        ),
    ),
]
Seed = Annotated[int | None, typer.Option(help="Random seed. It replaces the value in the config.")]
Out = Annotated[Path, typer.Option("--out", help="Directory in which to save the run.", metavar="RUN", file_okay=False)]
Corpus = Annotated[
    Path,
    typer.Option(
        help=(
            "Training data: a directory that contains train and valid, each a directory of files or a single file. A "
            "single file or a directory of files is split automatically. Formats are text, JSONL, Parquet and Arrow. "
            "Files of integers contain one sequence of events per line."
        ),
        metavar="PATH",
        exists=True,
    ),
]
TextField = Annotated[
    str, typer.Option("--field", help="Name of the field with the text in JSONL, Parquet and Arrow files.")
]
LanguageConfig = Annotated[
    str, typer.Option(help="Name of a packaged config (small, books, paper, events), or the path of a JSON file.")
]
Variant = Annotated[
    str | None,
    typer.Option(help="Model of the papers to train, with the size given by the config: B1, M2, M2.4, slots, …"),
]
SeriesFiles = Annotated[
    list[str] | None,
    typer.Option(
        help=(
            "File of series to train on, in addition to synthetic series. It is read like the input of rfa "
            "filter. Repeatable."
        ),
        metavar="FILE",
    ),
]
StartFrom = Annotated[
    str | None,
    typer.Option(
        "--from",
        help=(
            "Run or bundle with the initial weights. By default, training starts from `series` if --data is set, and "
            "from random weights otherwise. The network of --config may be wider."
        ),
        metavar="BUNDLE|RUN|new",
    ),
]
SeriesConfig = Annotated[
    str | None,
    typer.Option(
        help=(
            "Name of a packaged config (series, series_tune, series_gpu), or the path of a JSON file. The default is "
            "series_tune if --data is set, and series otherwise."
        )
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Training time in minutes, instead of a number of steps. The learning rate schedule is scaled to it."
    ),
]
CopyTo = Annotated[
    Path | None,
    typer.Option(
        help="Directory for copies of the checkpoints. To continue a run from its copy, use this directory as --out."
    ),
]


@app.command("lm")
def train_lm(
    *,
    data: Corpus,
    out: Out,
    config: LanguageConfig = "small",
    variant: Variant = None,
    seed: Seed = None,
    steps: Steps = None,
    minutes: Minutes = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Run or bundle with the initial weights and the tokenizer.", metavar="BUNDLE|RUN"),
    ] = None,
    device: Device = "auto",
    field: TextField = "text",
    as_json: JsonFlag = False,
) -> None:
    """Train a language model, or continue the run in --out. On Ctrl-C or SIGTERM, the current step is saved."""
    from rfa.training.language import train_language

    record = train_language(
        config, data, out, variant=variant, seed=seed, steps=steps, device=device, field=field, minutes=minutes,
        begin_from=None if begin is None else _run_or_bundle(begin),
    )  # fmt: skip
    shown = ("config_name", "parameters", "tokens", "seconds", "validation_loss")
    print_result({"run": str(out), **{name: record[name] for name in shown}}, as_json)


@app.command("filter")
def train_filter(
    data: Annotated[
        str,
        typer.Option(
            help="File of series, read like the input of rfa filter, or simulate:oscillator for simulated data.",
            metavar="FILE|simulate:NAME",
        ),
    ],
    out: Out,
    config: Annotated[
        str | None,
        typer.Option(
            help=(
                "Name of a packaged config (structural, oscillator, linear), or the path of a JSON file. The default "
                "is a deep filter."
            )
        ),
    ] = None,
    steps: Steps = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a filter on recorded series or a simulated system, or continue the run in --out.

    The config `structural` fits a model with level, trend and seasons. On Ctrl-C or SIGTERM, the current step is saved.
    """
    from rfa.training.filter import RECORD_FILE, FilterRun
    from rfa.training.filter import train_filter as train
    from rfa.training.language_config import find_config

    run = FilterRun.from_file(find_config(config)) if config else FilterRun.from_dict({"family": "deep"})
    if steps is not None:
        if run.family != "deep":
            raise ValueError(
                f"--steps requires a deep filter, but the config has the family {run.family}; remove --steps"
            )
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
    *,
    out: Out,
    data: SeriesFiles = None,
    begin: StartFrom = None,
    config: SeriesConfig = None,
    steps: Steps = None,
    minutes: Minutes = None,
    device: Device = "auto",
    seed: Seed = None,
    copy_to: CopyTo = None,
    as_json: JsonFlag = False,
) -> None:
    """Train the series network, either on synthetic series for hours, or from the included weights on your own series
    for minutes.

    An existing run in --out is continued. On Ctrl-C or SIGTERM, the current step is saved.
    """
    from rfa.training.language_config import find_config
    from rfa.training.series_config import SeriesRun
    from rfa.training.series_network import train_series as train
    from rfa.training.wider_series import is_wider, widened

    run = SeriesRun.from_file(find_config(config or ("series_tune" if data else "series")))
    source = begin or ("series" if data else "new")
    network = None if source == "new" else _series_network(source)
    if network is not None and config and is_wider(run.model, network.config):
        network = widened(network, run.model)
    elif network is not None:
        run = replace(run, model=network.config)
    changes = {"steps": steps, "minutes": minutes, "seed": seed}
    changed: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    run = replace(run, training=replace(run.training, **changed))
    files = [Path(file) for file in data or ()]
    record = train(
        run, out, begin_from=network, own=_read_cells(data or ()), files=files, device=device, copy_to=copy_to
    )
    print_result({"run": str(out), **{name: record[name] for name in ("parameters", "series", "seconds")}}, as_json)


def _read_cells(files: Sequence[str]) -> list[Cells]:
    """Return the columns of all series in the files, as training data. Columns that cannot be used are left out."""
    from rfa.data import load_table, read_frame, usual_step
    from rfa.training.series_batches import cells_of

    found = [
        cells_of(series.times, values, usual_step(series) or 1.0, MAX_CELLS, has_calendar=False)
        for file in files
        for series in read_frame(load_table(file)).values()
        for values in series.values.T
    ]
    return [cells for cells in found if cells is not None]


def _run_or_bundle(source: str) -> Path:
    """Return the directory of a run, or of a bundle by name or path."""
    from rfa.cli.bundles import find_bundle
    from rfa.model.checkpoint import CONFIG_FILE

    return Path(source) if (Path(source) / CONFIG_FILE).is_file() else find_bundle(source)


def _series_network(source: str) -> SeriesNetwork:
    """Load the series network of a bundle or a run."""
    from rfa.model.loading import load_model
    from rfa.model.series.network import SeriesNetwork as Network

    model = load_model(_run_or_bundle(source))
    if not isinstance(model, Network):
        raise ValueError(f"--from {source} is not a series network; specify a bundle or run of a series network")
    return model
