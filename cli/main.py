"""`rfa`: one command for each thing a user does.

Commands import what they need when they run, so that `rfa --help` is quick and `rfa serve` needs no torch.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from rfa.cli import bench, bundle, compile, evaluate, filter, fit, generate, gpu_check, serve, train
from rfa.cli.console import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("rfa-server"))
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Robust Filter Attention: train, export and serve models that say how sure they are."""


app.command("serve")(serve.serve)
app.command("compile")(compile.compile_kernels)
app.command("generate")(generate.generate)
app.command("filter")(filter.filter_series)
app.command("fit")(fit.fit)
app.add_typer(train.app, name="train")
app.command("export")(bundle.export)
app.command("verify")(bundle.verify)
app.command("info")(bundle.info)
app.command("keygen")(bundle.keygen)
app.command("sign")(bundle.sign)
app.add_typer(evaluate.app, name="eval")
app.add_typer(bench.app, name="bench")
app.command("gpu-check")(gpu_check.gpu_check)
