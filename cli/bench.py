"""`rfa bench`: the benchmarks behind the published results; they need a checkout."""

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
AotTable = Annotated[Path, typer.Option("--out", help="JSON file to write, or with --check to read.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for the pictures.", metavar="DIR")]


@app.command("decode")
def bench_decode(
    bundle: BundleName = "books",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="cuda: the paper-size model, in CUDA graphs.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="JSON file to write. Default: in results.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time of one token: on one thread, early and late, and with a cache; on a GPU, also by batch size."""
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
    check: Annotated[bool, typer.Option("--check", help="Compare; exit code 1 if a number grew.")] = False,
    triton: Annotated[Path | None, typer.Option(help="Folder of another Triton, from `pip install --target`.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile the fused kernels for five architectures without a GPU: registers, spills, instructions per score.

    Takes 20 minutes on two cores.
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
        list[int] | None, typer.Option(help="80, 89, 90, 100 or 120; repeatable. Default: all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict the speed of the fused kernels on other GPUs from their machine code.

    Takes 10 minutes on two cores.
    """
    from rfa.benchmarks.cost.gpus import ARCHITECTURES
    from rfa.benchmarks.cost.report import write_cost

    if unknown := set(architecture or ()) - set(ARCHITECTURES):
        raise ValueError(f"--architecture must be one of {', '.join(map(str, ARCHITECTURES))}, not {min(unknown)}")
    if architecture and out == RESULTS / "cost.json":
        raise ValueError("the committed table has all architectures: give --out FILE for some of them")
    _print("cost", write_cost(out, architecture), as_json)


@app.command("kernel")
def bench_kernel(
    part: Annotated[
        list[str] | None, typer.Option(help="attention, memory, slots or training; repeatable. Default: all.")
    ] = None,
    width: Annotated[list[int] | None, typer.Option(help="Real dimensions per head, 64 or 128; repeatable.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Sequence length, a divisor of 16,384; repeatable.")] = None,
    out: JsonTable = RESULTS / "kernel.json",
    as_json: JsonFlag = False,
) -> None:
    """On a GPU: check the fused kernels, and compare their times with SDPA, FlexAttention and eager code."""
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
    """The oscillator with the paper's noise: error and coverage, compared with the exact Kalman filter."""
    from rfa.benchmarks.filters.oscillator import write_filter
    from rfa.cli.bundles import find_bundle

    _print("filter", write_filter(find_bundle(bundle), out, streams=streams, length=length), as_json)


@app.command("afa")
def bench_afa(
    steps: Annotated[int, typer.Option(min=20, help="Training steps of each model.")] = 300,
    out: JsonFile = RESULTS / "afa.json",
    figures: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("docs") / "figures",
    as_json: JsonFlag = False,
) -> None:
    """Adaptive Filter Attention on the paper's oscillator, compared with the exact filter."""
    from rfa.benchmarks.papers.afa.compare import AfaPlan, write_afa
    from rfa.benchmarks.papers.afa.training import PredictorTraining

    _print("afa", write_afa(out, figures, AfaPlan(training=PredictorTraining(steps=steps))), as_json)


@app.command("filter-accuracy")
def bench_filter_accuracy(
    trials: Annotated[int, typer.Option(min=1, help="Streams per scenario.")] = 500,
    steps: Annotated[int, typer.Option(min=20, help="Observations per stream.")] = 1000,
    out: JsonFile = RESULTS / "filter-accuracy.json",
    plot: Annotated[Path | None, typer.Option(help="Figure to write: error by noise, response to a jump.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The linear filter on simulated systems of the literature: error, calibration, delay after a jump."""
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
        typer.Option(help="Folder with train, valid and test: folders of .txt files, or train.txt …", metavar="DIR"),
    ],
    runs: Annotated[Path, typer.Option(help="Folder of the runs, one folder each.", metavar="DIR", file_okay=False)],
    variants: Annotated[
        str | None,
        typer.Option(help="Names in variants.json, such as B1,M1,M2. Default: the papers' models.", metavar="NAMES"),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS")] = "0,1,2",
    config: Annotated[str, typer.Option(help="Size: small, paper, or a JSON file.")] = "small",
    lengths: Annotated[str, typer.Option(help="Windows, in training lengths.", metavar="NUMBERS")] = "1,2,4,8",
    tokens: Annotated[int, typer.Option(help="Tokens to score, a multiple of the longest window.")] = 65_536,
    workers: Annotated[int, typer.Option(min=1, help="Parallel runs, each a process with one thread.")] = 1,
    device: Device = "auto",
    evaluate_only: Annotated[bool, typer.Option("--evaluate-only", help="Score trained runs; train none.")] = False,
    speed_only: Annotated[bool, typer.Option("--speed-only", help="Only time the variants, on one thread.")] = False,
    figures: Folder = None,
    out: JsonFile = RESULTS / "quality-small.json",
    as_json: JsonFlag = False,
) -> None:
    """Train every variant of the papers on a corpus, or continue; perplexity by context length, over seeds."""
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
        typer.echo(f"not in the table: {', '.join(document['missing'])}", err=True)
    _print("quality-small", document, as_json)
    if document["failed"]:
        raise FailedRunsError("; ".join(f"{name}: {error}" for name, error in document["failed"].items()))


@app.command("load")
def bench_load(
    name: Annotated[str, typer.Argument(help="Name in the scenario file.", metavar="SCENARIO")],
    *,
    url: Annotated[
        str | None, typer.Option(help="A running server; its key in RFA_API_KEY. Default: start one for the run.")
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Process of that server, to record its memory.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of the measurement.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Seconds before it.")] = None,
    generators: Annotated[int | None, typer.Option(help="Processes that generate load.")] = None,
    text_rate: Annotated[float | None, typer.Option(help="Texts per second, Poisson.")] = None,
    text_streams: Annotated[int | None, typer.Option(help="Instead: concurrent texts.")] = None,
    filter_streams: Annotated[int | None, typer.Option(help="Live filter streams.")] = None,
    rate: Annotated[float | None, typer.Option(help="Observations per second of each live stream.")] = None,
    batch_rate: Annotated[float | None, typer.Option(help="Whole series per second, Poisson.")] = None,
    bundles: Bundles = None,
    budgets: Annotated[Path | None, typer.Option(help="Scenario file. Default: benchmarks/budgets.toml.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Figure to write: latency over time, distribution.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Send load to a server in an open loop and check every response; exit code 1 if a latency budget is missed."""
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
    """The linear filter in this process, on one core, compared with public Kalman filters."""
    from rfa.benchmarks.filters.speed import write_speed

    _print("filter-speed", write_speed(out), as_json)


@app.command("forecast")
def bench_forecast(
    data: Annotated[Path, typer.Option(help="ETTh1.csv, which is not part of this project.", metavar="CSV")],
    out: JsonFile = RESULTS / "forecast-etth1.json",
    plot: Annotated[Path | None, typer.Option(help="Figure to write: a week's forecasts with their intervals.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """ETTh1, one and 24 hours ahead: CRPS and coverage, compared with persistence, seasonal naive and statsmodels."""
    from rfa.benchmarks.forecasting.ett import write_ett

    _print("forecast-etth1", write_ett(data, out, plot), as_json)


@app.command("series")
def bench_series(
    data: Annotated[
        Path, typer.Option(help="Folder with m4 and ett, which are not part of this project.", metavar="DIR")
    ],
    model: Annotated[list[str] | None, typer.Option(help="Model to measure; repeatable. Default: all.")] = None,
    out: JsonTable = RESULTS / "gift.json",
    as_json: JsonFlag = False,
) -> None:
    """Forecasts by GIFT-Eval's protocol: series and auto, compared with seasonal naive and statsforecast."""
    from rfa.benchmarks.series.gift import write_gift

    _print("gift", write_gift(data, out, tuple(model or ())), as_json)


@app.command("nab")
def bench_nab(
    data: Annotated[
        Path, typer.Option(help="Folder of NAB, with data and windows.json.", exists=True, file_okay=False)
    ],
    bundle: BundleName = "auto",
    out: JsonFile = RESULTS / "filter-nab.json",
    as_json: JsonFlag = False,
) -> None:
    """Anomalies on NAB by its public rules, compared with its windowed Gaussian."""
    from rfa.benchmarks.nab.benchmark import write_nab

    _print("filter-nab", write_nab(bundle, data, out), as_json)


@app.command("equalities")
def bench_equalities(
    url: Annotated[str, typer.Argument(help="URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1.")],
    replica: Annotated[str | None, typer.Option(help="URL of another server of the same model.")] = None,
    model: Annotated[str | None, typer.Option(help="Model. Default: the server's.")] = None,
    cases: Annotated[int, typer.Option(min=1, help="Number of random prompts.")] = 100,
    key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key of the server.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file, written as the cases are compared.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Whether a server's log probabilities are the same alone, batched, chunked, restored and on a replica.

    Works with any server that has `logprobs`, `echo` and `return_tokens_as_token_ids`. Exit code 1 if they differ.
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
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of each paradigm, the first ones.")] = 1000,
    out: JsonFile = RESULTS / "blimp.json",
    as_json: JsonFlag = False,
) -> None:
    """Grammar by pairs of sentences, compared with the published figures of small models."""
    from rfa.benchmarks.language.blimp import write_blimp
    from rfa.cli.bundles import find_bundle

    _print("blimp", write_blimp(data, find_bundle(bundle), pairs, out), as_json)


@app.command("events")
def bench_events(
    data: Annotated[Path, typer.Option(help="Folder of DeepLog's sessions: normal.txt, abnormal.txt.", metavar="DIR")],
    bundle: BundleName = "events",
    corpus: Annotated[Path | None, typer.Option(help="Folder to write the training corpus to, and end.")] = None,
    out: JsonFile = RESULTS / "events.json",
    as_json: JsonFlag = False,
) -> None:
    """Anomalous HDFS sessions by their events: F1, recall, and alarms on normal sessions by the rate."""
    from rfa.benchmarks.language.events import write_corpus, write_events

    if corpus is not None:
        write_corpus(data, corpus)
        return
    _print("events", write_events(data, bundle, out), as_json)


@app.command("recall")
def bench_recall(
    setting: Annotated[
        list[str] | None,
        typer.Option(help="Train this setting and keep the file's other rows; repeatable. Default: all."),
    ] = None,
    task: Annotated[Literal["recall", "copy"] | None, typer.Option(help="The same for a task.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few settings, in three minutes.")] = False,
    out: JsonTable = RESULTS / "recall.json",
    plot: Annotated[Path | None, typer.Option(help="Figure to write: accuracy by pairs, length, distance.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Associative recall and copying by softmax, RFA and slots: the capacity of the state."""
    from rfa.benchmarks.papers.recall.table import QUICK, RecallPlan, write_recall

    plan = QUICK if quick else RecallPlan()
    _print("recall", write_recall(out, plot, plan, only=setting or (), task=task), as_json)


def _print(result: str, document: Mapping[str, Any], as_json: bool) -> None:
    """Print a document as in the results page, or as JSON."""
    from rfa.benchmarks.results_page.page import tables_of

    print_table(document, tables_of(result, document), as_json)
