"""The `rfa` command.

Subcommands import what they need when they run. `rfa --help` is therefore fast, and `rfa serve` does not need torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from rfa.cli import (
    backtest,
    bench,
    bundle,
    compile,
    evaluate,
    events,
    filter,
    fit,
    generate,
    gpu_check,
    inspect_file,
    score,
    serve,
    train,
    watch,
)
from rfa.cli.console import CommandGroup

# Commands that read files of series and do not use data frames.
READERS = ("filter", "forecast", "detect", "plot", "backtest", "inspect", "fit")


class App(typer.Typer):
    """Command line application."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line. A command in READERS runs without pandas, whose import is slow."""
        if sys.argv[1:2] and sys.argv[1] in READERS:
            from rfa.data.without_pandas import WithoutPandas  # loads numpy

            sys.meta_path.insert(0, WithoutPandas())
        return super().__call__(*args, **kwargs)


app = App(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(version("rfa-server"))
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Robust Filter Attention: train, export and serve models with calibrated uncertainty."""


COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serve.serve,
    "compile": compile.compile_kernels,
    "generate": generate.generate,
    "forecast": filter.forecast_series,
    "detect": filter.detect_series,
    "filter": filter.filter_series,
    "plot": filter.plot_series,
    "backtest": backtest.backtest_series,
    "inspect": inspect_file.inspect_files,
    "fit": fit.fit,
    "events": events.log_events,
    "score": score.score_events,
    "export": bundle.export,
    "verify": bundle.verify,
    "info": bundle.info,
    "keygen": bundle.keygen,
    "sign": bundle.sign,
    "gpu-check": gpu_check.gpu_check,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
for name, group in {"watch": watch.app, "train": train.app, "eval": evaluate.app, "bench": bench.app}.items():
    app.add_typer(group, name=name)
