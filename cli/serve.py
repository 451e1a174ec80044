"""`rfa serve`: serve bundles over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rfa.cli.options import Bundles


def serve(
    bundles: Bundles = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. The default is 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. The default is 8000; 0 chooses a free port.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device: auto (the same as cpu), cpu, cuda, or a numbered GPU such as cuda:1.")
    ] = None,
    text_runtime: Annotated[
        str | None, typer.Option(help="Runtime for language models on a CPU: auto, compiled or onnx.")
    ] = None,
) -> None:
    """Serve bundles over HTTP until stopped. Environment variables RFA_* set limits and the default bundles."""
    from rfa.cli.bundles import served_bundles
    from rfa.service.server import serve as run_server
    from rfa.service.settings import Settings

    options: dict[str, Any] = {"host": host, "port": port, "device": device, "text_runtime": text_runtime}
    settings = {name: value for name, value in options.items() if value is not None}
    run_server(Settings(bundles=served_bundles(bundles), **settings))
