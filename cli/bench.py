"""`rfa bench`: run the benchmarks behind the published results. They need a checkout of the repository."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rfa.cli.console import print_result, print_table
from rfa.cli.options import BundleName, Bundles, Device, JsonFile, JsonFlag, JsonTable

app = typer.Typer(no_args_is_help=True, help="Measure speed and quality.")
RESULTS = Path("results")
AotTable = Annotated[Path, typer.Option("--out", help="JSON file to write, or to read with --check.")]
Folder = Annotated[Path | None, typer.Option(help="Directory for the pictures.", metavar="DIR")]


@app.command("decode")
def bench_decode(
    bundle: BundleName = "books",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="cuda measures the paper-size model.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="JSON file to write. The default is in results.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure the time per token on one thread, early and late, and with a cache; on a GPU, also by batch size."""
    if device == "cuda":
        from rfa.benchmarks.gpu.decode import write_decode_gpu

        print_result(write_decode_gpu(out or RESULTS / "decode_gpu.json"), as_json)
        return
    from rfa.benchmarks.language.decode import write_decode
    from rfa.cli.bundles import find_bundle

    print_result(write_decode(find_bundle(bundle), out or RESULTS / "decode.json"), as_json)


@app.command("aot")
def bench_aot(
    out: AotTable = RESULTS / "aot.json",
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a number grew compared with --out.")] = False,
    triton: Annotated[Path | None, typer.Option(help="Directory of another Triton (`pip install --target`).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile the fused kernels for five architectures without a GPU, and report their registers and instructions.

    This takes 20 minutes on two cores.
    """
    from rfa.benchmarks.kernels.aot import GrownError, compile_rows, document, grown, refused, shipped

    committed = json.loads(out.read_text()) if check else None
    result = document(compile_rows(shipped(), triton=triton), triton)
    if committed is None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    _print("aot", result, as_json)
    problems = grown(result["rows"], committed, triton) + refused(result["rows"]) if committed else []
    if problems:
        raise GrownError("; ".join(problems))


@app.command("cost")
def bench_cost(
    out: JsonFile = RESULTS / "cost.json",
    architecture: Annotated[
        list[int] | None, typer.Option(help="Architecture: 80, 89, 90, 100 or 120. Repeatable. The default is all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict the speed of the fused kernels on other GPUs from their machine code.

    This takes 10 minutes on two cores.
    """
    from rfa.benchmarks.cost.gpus import ARCHITECTURES
    from rfa.benchmarks.cost.report import write_cost

    if unknown := set(architecture or ()) - set(ARCHITECTURES):
        raise ValueError(f"--architecture must be one of {', '.join(map(str, ARCHITECTURES))}, not {min(unknown)}")
    if architecture and out == RESULTS / "cost.json":
        raise ValueError(
            "the committed table has all architectures; for some of them, write to another file with --out FILE"
        )
    _print("cost", write_cost(out, architecture), as_json)


@app.command("kernel")
def bench_kernel(
    part: Annotated[
        list[str] | None,
        typer.Option(help="Part to run: attention, memory, slots or training. Repeatable. The default is all."),
    ] = None,
    width: Annotated[list[int] | None, typer.Option(help="Real dimensions per head, 64 or 128. Repeatable.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Sequence length, a divisor of 16,384. Repeatable.")] = None,
    out: JsonTable = RESULTS / "kernel.json",
    as_json: JsonFlag = False,
) -> None:
    """Check the fused kernels on a GPU, and compare their times with SDPA, FlexAttention and eager code."""
    from rfa.benchmarks.kernels.speed import run_kernel, selected

    _print("kernel", run_kernel(out, *selected(part, width, length)), as_json)


@app.command("filter")
def bench_filter(
    bundle: BundleName = "oscillator",
    streams: Annotated[int, typer.Option(min=1)] = 400,
    length: Annotated[int, typer.Option(min=2)] = 100,
    out: JsonFile = RESULTS / "filter.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure error and coverage on the oscillator with the paper's noise, compared with the exact Kalman filter."""
    from rfa.benchmarks.filters.oscillator import write_filter
    from rfa.cli.bundles import find_bundle

    _print("filter", write_filter(find_bundle(bundle), out, streams=streams, length=length), as_json)


@app.command("afa")
def bench_afa(
    steps: Annotated[int, typer.Option(min=20, help="Training steps of each model.")] = 300,
    out: JsonFile = RESULTS / "afa.json",
    figures: Annotated[Path, typer.Option(help="Directory for the pictures.")] = Path("docs") / "figures",
    as_json: JsonFlag = False,
) -> None:
    """Train Adaptive Filter Attention on the paper's oscillator, and compare it with the exact filter."""
    from rfa.benchmarks.papers.afa.compare import AfaPlan, write_afa
    from rfa.benchmarks.papers.afa.training import PredictorTraining

    _print("afa", write_afa(out, figures, AfaPlan(training=PredictorTraining(steps=steps))), as_json)


@app.command("filter-accuracy")
def bench_filter_accuracy(
    trials: Annotated[int, typer.Option(min=1, help="Number of streams per scenario.")] = 500,
    steps: Annotated[int, typer.Option(min=20, help="Number of observations per stream.")] = 1000,
    out: JsonFile = RESULTS / "filter-accuracy.json",
    plot: Annotated[Path | None, typer.Option(help="Figure of the error by noise and the response to a jump.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure error, calibration and delay after a jump of the linear filter, on simulated systems from the
    literature.
    """
    from rfa.benchmarks.filters.accuracy import write_filter_accuracy

    document = write_filter_accuracy(out, trials=trials, steps=steps)
    if plot is not None:
        from rfa.benchmarks.filters.accuracy_plot import draw_accuracy

        draw_accuracy(document, plot)
    _print("filter-accuracy", document, as_json)


@app.command("quality")
def bench_quality(
    *,
    data: Annotated[
        Path,
        typer.Option(
            help="Directory with train, valid and test, either as directories of .txt files or as train.txt and so on.",
            metavar="DIR",
        ),
    ],
    runs: Annotated[Path, typer.Option(help="Directory for the runs.", metavar="DIR", file_okay=False)],
    variants: Annotated[
        str | None,
        typer.Option(
            help="Names in variants.json, such as B1,M1,M2. The default is the models of the papers.", metavar="NAMES"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS")] = "0,1,2",
    config: Annotated[str, typer.Option(help="Model size: small, paper, or a JSON file.")] = "small",
    lengths: Annotated[str, typer.Option(help="Context windows in training lengths.", metavar="NUMBERS")] = "1,2,4,8",
    tokens: Annotated[int, typer.Option(help="Number of tokens to score.")] = 65_536,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel runs, each with one thread.")] = 1,
    device: Device = "auto",
    evaluate_only: Annotated[bool, typer.Option("--evaluate-only", help="Only score trained runs.")] = False,
    speed_only: Annotated[bool, typer.Option("--speed-only", help="Only time the variants, on one thread.")] = False,
    figures: Folder = None,
    out: JsonFile = RESULTS / "quality-small.json",
    as_json: JsonFlag = False,
) -> None:
    """Train every variant of the papers on a corpus, or continue, and report perplexity by context length."""
    from rfa.benchmarks.language.quality.runs import FailedRunsError
    from rfa.benchmarks.language.quality.scores import Scoring
    from rfa.benchmarks.language.quality.table import QualityPlan, names, numbers, write_quality, write_speed

    scoring = Scoring(numbers(lengths, "lengths"), tokens)
    selected = tuple(names(variants))
    plan = QualityPlan(data, runs, config, selected, numbers(seeds, "seeds"), scoring, device, not evaluate_only)
    document = write_speed(plan, out) if speed_only else write_quality(plan, out, workers=workers)
    if figures is not None:
        from rfa.benchmarks.language.quality.figures import draw_quality

        draw_quality(document, figures)
    if document["missing"]:
        typer.echo(f"missing in the table: {', '.join(document['missing'])}", err=True)
    _print("quality-small", document, as_json)
    if document["failed"]:
        raise FailedRunsError("; ".join(f"{name}: {error}" for name, error in document["failed"].items()))


@app.command("load")
def bench_load(
    name: Annotated[str, typer.Argument(help="Name of the scenario in the scenario file.", metavar="SCENARIO")],
    *,
    url: Annotated[
        str | None,
        typer.Option(help="URL of a running server, whose key is in RFA_API_KEY. The default is to start a server."),
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Process id of that server, to record its memory.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of the measurement in seconds.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Seconds of load before the measurement.")] = None,
    generators: Annotated[int | None, typer.Option(help="Number of processes that generate load.")] = None,
    text_rate: Annotated[float | None, typer.Option(help="Texts per second, as a Poisson process.")] = None,
    text_streams: Annotated[int | None, typer.Option(help="Concurrent texts, instead of --text-rate.")] = None,
    filter_streams: Annotated[int | None, typer.Option(help="Number of live filter streams.")] = None,
    rate: Annotated[float | None, typer.Option(help="Observations per second in each live stream.")] = None,
    batch_rate: Annotated[float | None, typer.Option(help="Whole series per second, as a Poisson process.")] = None,
    bundles: Bundles = None,
    budgets: Annotated[Path | None, typer.Option(help="Scenario file. The default is benchmarks/budgets.toml.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Figure of the latency over time and its distribution.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Send load to a server in an open loop, and check every response. Exit with 1 if a latency budget is missed."""
    from rfa.benchmarks.load.report import BudgetMissed
    from rfa.benchmarks.load.run import run_scenario
    from rfa.benchmarks.load.scenario import SCENARIO_FILE, changed, find_scenario
    from rfa.cli.bundles import served_bundles

    options = {
        "seconds": seconds, "warmup_seconds": warmup, "generators": generators, "text.rate": text_rate,
        "text.streams": text_streams, "live.streams": filter_streams, "live.rate": rate, "batch.rate": batch_rate,
    }  # fmt: skip
    changes = {name: value for name, value in options.items() if value is not None}
    scenario = changed(find_scenario(name, budgets or SCENARIO_FILE), changes)
    result, run = run_scenario(scenario, served_bundles(bundles, ignore=frozenset({"RFA_API_KEY"})), url, pid)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    if plot is not None:
        from rfa.benchmarks.load.plot import draw_run

        if run is None:
            raise ValueError(f"{scenario.name} has no latencies to draw")
        draw_run(run, plot)
    _print("load-run", result, as_json)
    if missed := [verdict["name"] for verdict in result["budgets"] if not verdict["met"]]:
        raise BudgetMissed(f"{result['scenario']} missed {', '.join(missed)}")


@app.command("filter-speed")
def bench_filter_speed(
    out: JsonFile = RESULTS / "filter-speed.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure the speed of the linear filter in this process, on one core, compared with public Kalman filters."""
    from rfa.benchmarks.filters.speed import write_speed

    _print("filter-speed", write_speed(out), as_json)


@app.command("forecast")
def bench_forecast(
    data: Annotated[Path, typer.Option(help="ETTh1.csv, which is not included.", metavar="CSV")],
    out: JsonFile = RESULTS / "forecast-etth1.json",
    plot: Annotated[Path | None, typer.Option(help="Figure of a week of forecasts with their intervals.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Forecast ETTh1 1 and 24 hours ahead, and compare with persistence, seasonal naive and statsmodels."""
    from rfa.benchmarks.forecasting.ett import write_ett

    _print("forecast-etth1", write_ett(data, out, plot), as_json)


@app.command("series")
def bench_series(
    data: Annotated[Path, typer.Option(help="Directory with m4 and ett, which are not included.", metavar="DIR")],
    model: Annotated[list[str] | None, typer.Option(help="Model to measure. Repeatable. The default is all.")] = None,
    out: JsonTable = RESULTS / "gift.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure forecasts under GIFT-Eval's protocol, compared with seasonal naive and statsforecast."""
    from rfa.benchmarks.series.gift import write_gift

    _print("gift", write_gift(data, out, tuple(model or ())), as_json)


@app.command("nab")
def bench_nab(
    data: Annotated[
        Path, typer.Option(help="Directory of NAB, with data and windows.json.", exists=True, file_okay=False)
    ],
    bundle: BundleName = "auto",
    out: JsonFile = RESULTS / "filter-nab.json",
    as_json: JsonFlag = False,
) -> None:
    """Detect anomalies on NAB under its public rules, compared with its windowed Gaussian."""
    from rfa.benchmarks.nab.benchmark import write_nab

    _print("filter-nab", write_nab(bundle, data, out), as_json)


@app.command("equalities")
def bench_equalities(
    url: Annotated[str, typer.Argument(help="URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1.")],
    replica: Annotated[str | None, typer.Option(help="URL of another server with the same model.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model. The default is the server's default.")] = None,
    cases: Annotated[int, typer.Option(min=1, help="Number of random prompts.")] = 100,
    key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key of the server.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file, written while the cases are compared.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check whether a server's log probabilities are the same alone, batched, chunked, restored and on a replica.

    This works with any server that supports `logprobs`, `echo` and `return_tokens_as_token_ids`. The exit code is 1 if
    they differ.
    """
    import asyncio
    from dataclasses import asdict

    from rfa.benchmarks.language.equalities import EqualityCase, Tally, lines, measure
    from rfa.measured import origin, write_result

    described = origin("rfa bench equalities")

    def store(tallies: Mapping[str, Tally]) -> None:
        if out is not None:
            write_result(out, {**described, "equalities": {name: asdict(tally) for name, tally in tallies.items()}})

    prompts = [EqualityCase.drawn(seed) for seed in range(cases)]
    tallies = asyncio.run(measure(url, replica, prompts, model, key, store))
    print_table({name: asdict(tally) for name, tally in tallies.items()}, lines(tallies), as_json)
    if not all(tally.cases == tally.equal > 0 for tally in tallies.values()):
        raise typer.Exit(1)


@app.command("blimp")
def bench_blimp(
    data: Annotated[Path, typer.Option(help="Checkout of github.com/alexwarstadt/blimp.", metavar="DIR")],
    bundle: BundleName = "books",
    pairs: Annotated[int, typer.Option(min=1, help="Number of pairs per paradigm, from the first on.")] = 1000,
    out: JsonFile = RESULTS / "blimp.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure grammatical knowledge on pairs of sentences, compared with published results of small models."""
    from rfa.benchmarks.language.blimp import write_blimp
    from rfa.cli.bundles import find_bundle

    _print("blimp", write_blimp(data, find_bundle(bundle), pairs, out), as_json)


@app.command("events")
def bench_events(
    data: Annotated[Path, typer.Option(help="Directory with DeepLog's normal.txt and abnormal.txt.", metavar="DIR")],
    bundle: BundleName = "events",
    corpus: Annotated[Path | None, typer.Option(help="Only write the training corpus, to this directory.")] = None,
    out: JsonFile = RESULTS / "events.json",
    as_json: JsonFlag = False,
) -> None:
    """Detect anomalous HDFS sessions from their events, and report F1, recall and false alarms."""
    from rfa.benchmarks.language.events import write_corpus, write_events

    if corpus is not None:
        write_corpus(data, corpus)
        return
    _print("events", write_events(data, bundle, out), as_json)


@app.command("recall")
def bench_recall(
    setting: Annotated[
        list[str] | None,
        typer.Option(help="Train only this setting and keep the file's other rows. Repeatable. The default is all."),
    ] = None,
    task: Annotated[Literal["recall", "copy"] | None, typer.Option(help="Only train this task.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Train a few settings, which takes three minutes.")] = False,
    out: JsonTable = RESULTS / "recall.json",
    plot: Annotated[Path | None, typer.Option(help="Figure of the accuracy by pairs, length and distance.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train softmax, RFA and slots on associative recall and copying, to measure the capacity of the state."""
    from rfa.benchmarks.papers.recall.table import QUICK, RecallPlan, write_recall

    plan = QUICK if quick else RecallPlan()
    _print("recall", write_recall(out, plot, plan, only=setting or (), task=task), as_json)


def _print(result: str, document: Mapping[str, Any], as_json: bool) -> None:
    """Print a document as on the results page, or as JSON."""
    from rfa.benchmarks.results_page.page import tables_of

    print_table(document, tables_of(result, document), as_json)
