"""`rfa train lm` and `rfa train filter`: data → a run directory that `rfa export` reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rfa.cli.console import JsonFlag, print_result

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
