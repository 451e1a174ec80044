"""`rfa watch`: filter the series of a metrics store as they arrive."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rfa.library.watch.config import Config

ConfigFile = Annotated[
    Path, typer.Argument(help="TOML or YAML configuration file, described in the guide to rfa watch.", metavar="CONFIG")
]


class _RunByDefault(TyperGroup):
    """Command group that runs the command `run` if the command line names no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help=(
        "Filter the series of a Prometheus server as they arrive, and export anomaly scores and alarms. Start it with "
        "rfa watch CONFIG."
    ),
)


@app.command("run", hidden=True)
def run(
    config: ConfigFile,
    *,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the configuration file and the connection to the source, then exit."),
    ] = False,
) -> None:
    """Watch series until stopped. SIGHUP reloads the configuration. An invalid configuration is reported, and the
    current one remains in use."""
    from rfa.library.watch.config_file import load_config

    options = load_config(config)
    if dry_run:
        _check(options)
        return
    stop, hangup = threading.Event(), threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: hangup.set())
    from rfa.library.watch.routes import serve
    from rfa.library.watch.store import open_store
    from rfa.library.watch.watch import Watch
    from rfa.runtime.state.keys import read_keys

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="rfa: %(message)s")
    store = None
    if options.state is not None:
        file = os.environ.get("RFA_STATE_KEYS_FILE")
        keys = read_keys(os.environ.get("RFA_STATE_KEYS"), Path(file) if file else None)
        store = open_store(options.state, keys)
    watch = Watch(options, store)
    watch.warm_up()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    for server in serve(watch):
        host, port = server.server_address[:2]
        typer.echo(f"rfa: serving {', '.join(server.paths)} on http://{host!s}:{port}", err=True)
    watch.run(stop, hangup, config)


@app.command()
def init(
    url: Annotated[str, typer.Argument(help="URL of a Prometheus or VictoriaMetrics server.", metavar="URL")],
    *,
    out: Annotated[Path, typer.Option(help="Configuration file to write. It must not exist yet.")] = Path("watch.toml"),
) -> None:
    """Write a configuration for some of the metrics of a running server."""
    from rfa.library.watch.init import write_config

    if out.exists():
        raise ValueError(f"{out} already exists; specify another file with --out")
    out.write_text(write_config(url), encoding="utf-8")
    typer.echo(f"{out} written; start watching with `rfa watch {out}`")


@app.command()
def demo(
    *,
    target: Annotated[
        str | None,
        typer.Option(help="Serve the metrics of the simulated service in real time at HOST:PORT, and do nothing else."),
    ] = None,
) -> None:
    """Watch a simulated service with an incident. Three simulated hours take a few seconds."""
    from rfa.library.watch.demo import DemoTarget, run_demo

    if target is not None:
        from rfa.library.watch.http_server import HttpServer

        with HttpServer(target, DemoTarget().routes()) as server:
            typer.echo(f"rfa: metrics on http://{':'.join(map(str, server.server_address[:2]))}/metrics", err=True)
            signal.sigwait([signal.SIGINT, signal.SIGTERM])
        return
    watch = run_demo(typer.echo)
    one = watch.filters["requests"]
    typer.echo(f"{one.observations} observations of {len(one.labels)} series, {one.alarms} alarms")


@app.command()
def rules(config: ConfigFile) -> None:
    """Print alert rules for Prometheus."""
    from rfa.library.watch.config_file import load_config
    from rfa.library.watch.rules import alert_rules

    typer.echo(alert_rules(load_config(config)), nl=False)


@app.command()
def dashboard(config: ConfigFile) -> None:
    """Print a dashboard for Grafana as JSON."""
    import json

    from rfa.library.watch.config_file import load_config
    from rfa.library.watch.rules import dashboard as dashboard_of

    typer.echo(json.dumps(dashboard_of(load_config(config)), indent=1))


def _check(options: Config) -> None:
    """Print each query, with the number of its series and the memory of their states."""
    import time

    from rfa.library.models import find_model
    from rfa.library.watch.prometheus import Prometheus, SourceError

    if (
        options.state is not None
        and options.state.file is not None
        and not options.state.file.absolute().parent.is_dir()
    ):
        raise ValueError(
            f"state.file: the directory of {options.state.file} does not exist; create it, or specify another directory"
        )
    source = Prometheus(options.source.prometheus) if options.source.prometheus is not None else None
    for query in options.query:
        size = find_model(query.model, 1).runtime.state_bytes
        try:
            series = "" if source is None else f"{source.count(query.expr, time.time())} series now, "
        except SourceError as error:
            raise ValueError(f"query {query.name!r}: {error}") from None
        memory = query.series_limit * size / 1e6
        typer.echo(f"{query.name}: {series}at most {query.series_limit}, using {memory:.1f} MB of state, {query.model}")
