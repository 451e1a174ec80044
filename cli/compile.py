"""`rfa compile`: machine code before the first start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compile_kernels(
    bundles: Annotated[
        list[Path] | None,
        typer.Option("--bundle", help="As of `rfa serve`. Default: every bundle of the project.", metavar="DIR"),
    ] = None,
) -> None:
    """Compile what bundles run, as the first start of `rfa serve` would; kept on disk, for this processor."""
    from rfa.library.locate import served_bundles
    from rfa.runtime.compiling import HAS_COMPILER
    from rfa.service.ahead import compile_ahead
    from rfa.service.settings import Settings

    if not HAS_COMPILER:
        raise ValueError("numba is not installed, or turned off: there is nothing to compile (see rfa-server[fast])")
    typer.echo("Compiling what is not compiled yet for this processor: up to a minute, once.", err=True)
    seconds = compile_ahead(Settings(bundles=served_bundles(bundles)))
    typer.echo(f"Kernels are ready after {seconds:.0f} s.", err=True)
