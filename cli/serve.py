"""`rfa serve`: bundles over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rfa.cli.options import Bundles


def serve(
    bundles: Bundles = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one; default 8000.")] = None,
    device: Annotated[str | None, typer.Option(help="auto (the CPU), cpu, cuda or cuda:1.")] = None,
    text_runtime: Annotated[str | None, typer.Option(help="auto, compiled or onnx, for texts on a CPU.")] = None,
) -> None:
    """Serve bundles over HTTP until stopped. RFA_* environment variables set limits, and by default the bundles."""
    from rfa.cli.bundles import served_bundles
    from rfa.service.server import serve as run_server
    from rfa.service.settings import Settings

    options: dict[str, Any] = {"host": host, "port": port, "device": device, "text_runtime": text_runtime}
    settings = {name: value for name, value in options.items() if value is not None}
    run_server(Settings(bundles=served_bundles(bundles), **settings))
