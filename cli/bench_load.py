"""`rfa bench load`: send load to a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rfa.cli.console import print_benchmark
from rfa.cli.options import Bundles, JsonFlag, PlotFile, add_options

# For each option: the entry of the scenario that it replaces, its type and its help text.
ENTRIES: Final = {
    "seconds": ("seconds", float, "Duration of the measurement in seconds."),
    "warmup": ("warmup_seconds", float, "Duration of the warm-up load in seconds, before the measurement starts."),
    "generators": ("generators", int, "Number of processes that send requests."),
    "text_rate": ("text.rate", float, "Mean number of text requests per second, sent as a Poisson process."),
    "text_streams": ("text.streams", int, "Number of concurrent text requests, instead of --text-rate."),
    "filter_streams": ("live.streams", int, "Number of live filter streams."),
    "rate": ("live.rate", float, "Number of observations per second in each live filter stream."),
    "batch_rate": (
        "batch.rate", float, "Mean number of requests per second that filter a whole series, sent as a Poisson process."
    ),
}  # fmt: skip


def _changes(values: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the scenario that the options replace."""
    return {"changes": {ENTRIES[name][0]: value for name, value in values.items() if value is not None}}


@add_options(
    {name: (kind | None, None, typer.Option(help=text)) for name, (_, kind, text) in ENTRIES.items()},
    ("changes",),
    _changes,
)
def bench_load(
    name: Annotated[str, typer.Argument(help="Name of a scenario in the scenario file.", metavar="SCENARIO")],
    *,
    url: Annotated[
        str | None,
        typer.Option(
            help=(
                "URL of a running server. The environment variable RFA_API_KEY contains its API key. By default, the "
                "command starts a server."
            )
        ),
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Process id of the running server, whose memory is recorded.")] = None,
    bundles: Bundles = None,
    budgets: Annotated[
        Path | None, typer.Option(help="TOML file with the scenarios. The default is benchmarks/budgets.toml.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    plot: PlotFile = None,
    as_json: JsonFlag = False,
    changes: dict[str, Any],
) -> None:
    """Send load to a server in an open loop, and check every response. The exit status is 1 if a latency budget is
    exceeded. --plot draws the latency over time and its distribution."""
    from rfa.benchmarks.load.report import BudgetMissed
    from rfa.benchmarks.load.run import run_scenario
    from rfa.benchmarks.load.scenario import SCENARIO_FILE, changed, find_scenario
    from rfa.cli.bundles import served_bundles

    scenario = changed(find_scenario(name, budgets or SCENARIO_FILE), changes)
    result, run = run_scenario(scenario, served_bundles(bundles, ignore=frozenset({"RFA_API_KEY"})), url, pid)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    if plot is not None:
        from rfa.benchmarks.load.plot import draw_run

        if run is None:
            raise ValueError(f"--plot requires latencies, but the scenario {scenario.name} measures none")
        draw_run(run, plot)
    print_benchmark("load-run", result, as_json)
    if missed := [verdict["name"] for verdict in result["budgets"] if not verdict["met"]]:
        raise BudgetMissed(f"the scenario {result['scenario']} did not meet these budgets: {', '.join(missed)}")
