"""`rfa compile`: compile the kernels before the first start of the server."""

from __future__ import annotations

import typer

from rfa.cli.options import Bundles


def compile_kernels(bundles: Bundles = None) -> None:
    """Compile and store the CPU kernels that `rfa serve` needs."""
    from rfa.cli.bundles import served_bundles
    from rfa.service.precompile import compile_ahead
    from rfa.service.settings import Settings

    typer.echo("Compiling kernels, which takes about a minute the first time.", err=True)
    seconds = compile_ahead(Settings(bundles=served_bundles(bundles)))
    typer.echo(f"Compiled the kernels in {seconds:.0f} s.", err=True)
