"""`rfa bench`: the benchmarks behind the README's figures; they need a checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rfa.cli.bundle import BundleName
from rfa.cli.console import JsonFlag, print_result, print_table

app = typer.Typer(no_args_is_help=True, help="Measure speed and quality.")
RESULTS = Path("results")
AotTable = Annotated[Path, typer.Option("--out", help="JSON file to write, or with --check to read.")]


@app.command("decode")
def bench_decode(
    bundle: BundleName = "books",
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="cuda: the paper-size model instead, in CUDA graphs.")
    ] = "cpu",
    out: Annotated[Path | None, typer.Option(help="JSON file to write; default in results.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Cost of one token: on one thread, early and late, and over a cache; on a GPU, over batch sizes too."""
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
    check: Annotated[bool, typer.Option("--check", help="Compare with that file; exit code 1 on growth.")] = False,
    triton: Annotated[Path | None, typer.Option(help="Folder of another Triton, from `pip install --target`.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile the fused kernels for five architectures, without a GPU: registers, spills, instructions per score.

    Twenty minutes on two cores.
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
    out: Annotated[Path, typer.Option("--out", help="JSON file to write.")] = RESULTS / "cost.json",
    architecture: Annotated[
        list[int] | None, typer.Option(help="80, 89, 90, 100 or 120; repeat for more. Default: all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict the speed of the fused kernels on other GPUs from their machine code.

    Ten minutes on two cores.
    """
    from rfa.benchmarks.cost.gpus import ARCHITECTURES
    from rfa.benchmarks.cost.report import write_cost

    if unknown := set(architecture or ()) - set(ARCHITECTURES):
        raise ValueError(f"--architecture takes {', '.join(map(str, ARCHITECTURES))}, not {min(unknown)}")
    if architecture and out == RESULTS / "cost.json":
        raise ValueError("the committed table has all architectures: give --out FILE for some of them")
    _print("cost", write_cost(out, architecture), as_json)


@app.command("kernel")
def bench_kernel(
    part: Annotated[
        list[str] | None, typer.Option(help="attention, memory, slots or training; repeat for more. Default: all.")
    ] = None,
    width: Annotated[list[int] | None, typer.Option(help="Reals of a head, 64 or 128; repeatable.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Tokens of a sequence, dividing 16,384; repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="JSON file to write, or to add to.")] = RESULTS / "kernel.json",
    as_json: JsonFlag = False,
) -> None:
    """On a GPU: check the fused kernels, then time them beside SDPA, FlexAttention and the eager code."""
    from rfa.benchmarks.kernels.speed import run_kernel, selected

    _print("kernel", run_kernel(out, *selected(part, width, length)), as_json)


@app.command("filter")
def bench_filter(
    bundle: BundleName = "oscillator",
    streams: Annotated[int, typer.Option(min=1)] = 400,
    length: Annotated[int, typer.Option(min=2)] = 100,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "filter.json",
    as_json: JsonFlag = False,
) -> None:
    """The oscillator at the paper's noise settings: error and coverage beside the exact Kalman filter."""
    from rfa.benchmarks.filters.oscillator import write_filter
    from rfa.cli.bundles import find_bundle

    _print("filter", write_filter(find_bundle(bundle), out, streams=streams, length=length), as_json)


@app.command("afa")
def bench_afa(
    steps: Annotated[int, typer.Option(min=20, help="Training steps of each model.")] = 300,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "afa.json",
    figures: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("docs") / "figures",
    as_json: JsonFlag = False,
) -> None:
    """Adaptive Filter Attention on the paper's oscillator: trained from measurements, beside the exact filter."""
    from rfa.benchmarks.papers.afa.compare import AfaPlan, write_afa
    from rfa.benchmarks.papers.afa.training import PredictorTraining

    _print("afa", write_afa(out, figures, AfaPlan(training=PredictorTraining(steps=steps))), as_json)


@app.command("filter-accuracy")
def bench_filter_accuracy(
    trials: Annotated[int, typer.Option(min=1, help="Streams per scenario.")] = 500,
    steps: Annotated[int, typer.Option(min=20, help="Observations per stream.")] = 1000,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "filter-accuracy.json",
    plot: Annotated[Path | None, typer.Option(help="Figure to write: error by noise, a jump followed.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The linear filter on the literature's simulated systems: error, calibration, and delay after a jump."""
    from rfa.benchmarks.filters.accuracy import write_filter_accuracy

    document = write_filter_accuracy(out, trials=trials, steps=steps)
    if plot is not None:
        from rfa.benchmarks.filters.accuracy_plot import draw_accuracy

        draw_accuracy(document, plot)
    _print("filter-accuracy", document, as_json)


@app.command("quality")
def bench_quality(
    data: Annotated[
        Path,
        typer.Option(help="Folder with train, valid and test: folders of .txt files, or train.txt …", metavar="DIR"),
    ],
    runs: Annotated[Path, typer.Option(help="Folder of the runs, one folder each.", metavar="DIR", file_okay=False)],
    variants: Annotated[
        str | None,
        typer.Option(help="Names in variants.json, as B1,M1,M2; default: the models of the papers.", metavar="NAMES"),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS")] = "0,1,2",
    config: Annotated[str, typer.Option(help="Size: small, paper, or a JSON file.")] = "small",
    lengths: Annotated[str, typer.Option(help="Windows, in training lengths.", metavar="NUMBERS")] = "1,2,4,8",
    tokens: Annotated[int, typer.Option(help="Tokens to score, a multiple of the longest window.")] = 65_536,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, a process with one thread each.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    evaluate_only: Annotated[
        bool, typer.Option("--evaluate-only", help="Train nothing; score what is trained.")
    ] = False,
    speed_only: Annotated[bool, typer.Option("--speed-only", help="Only time the variants, on one thread.")] = False,
    figures: Annotated[Path | None, typer.Option(help="Folder for the pictures.", metavar="DIR")] = None,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "quality-small.json",
    as_json: JsonFlag = False,
) -> None:
    """Train every variant of the papers on a corpus, or continue it; perplexity by context length, over seeds."""
    from rfa.benchmarks.language.quality.runs import FailedRunsError
    from rfa.benchmarks.language.quality.scores import Scoring
    from rfa.benchmarks.language.quality.table import (
        QualityPlan,
        names,
        numbers,
        write_quality,
        write_speed,
    )

    scoring = Scoring(numbers(lengths, "lengths"), tokens)
    wanted = tuple(names(variants))
    plan = QualityPlan(data, runs, config, wanted, numbers(seeds, "seeds"), scoring, device, not evaluate_only)
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
    scenario: Annotated[str, typer.Argument(help="Name in the scenario file.", metavar="SCENARIO")],
    url: Annotated[
        str | None, typer.Option(help="A running server; its key in RFA_API_KEY. Default: start one for the run.")
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Process of that server, to watch its memory.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of the measured part.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Seconds before it.")] = None,
    generators: Annotated[int | None, typer.Option(help="Processes that offer the load.")] = None,
    text_rate: Annotated[float | None, typer.Option(help="Texts a second, Poisson.")] = None,
    text_streams: Annotated[int | None, typer.Option(help="Texts at a time instead.")] = None,
    filter_streams: Annotated[int | None, typer.Option(help="Live filter streams.")] = None,
    rate: Annotated[float | None, typer.Option(help="Observations a second of each live stream.")] = None,
    batch_rate: Annotated[float | None, typer.Option(help="Whole series a second, Poisson.")] = None,
    bundles: Annotated[
        list[Path] | None, typer.Option("--bundle", help="Bundle that the server serves; repeat for more.")
    ] = None,
    budgets: Annotated[Path | None, typer.Option(help="Scenario file; default benchmarks/budgets.toml.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Figure to write: latency over time, distribution.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Offer load to a server in an open loop and check every answer; exit code 1 when a latency budget is missed."""
    from rfa.benchmarks.load.report import BudgetMissed
    from rfa.benchmarks.load.run import run_scenario
    from rfa.benchmarks.load.scenario import SCENARIO_FILE, changed, find_scenario
    from rfa.cli.bundles import served_bundles

    given = {
        "seconds": seconds,
        "warmup_seconds": warmup,
        "generators": generators,
        "text.rate": text_rate,
        "text.streams": text_streams,
        "live.streams": filter_streams,
        "live.rate": rate,
        "batch.rate": batch_rate,
    }
    wanted = changed(
        find_scenario(scenario, budgets or SCENARIO_FILE),
        {name: value for name, value in given.items() if value is not None},
    )
    result, run = run_scenario(wanted, served_bundles(bundles, own=frozenset({"RFA_API_KEY"})), url, pid)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    if plot is not None:
        from rfa.benchmarks.load.plot import draw_run

        if run is None:
            raise ValueError(f"{wanted.name} has no latencies to draw")
        draw_run(run, plot)
    _print("load-run", result, as_json)
    if missed := [verdict["name"] for verdict in result["budgets"] if not verdict["met"]]:
        raise BudgetMissed(f"{result['scenario']} missed {', '.join(missed)}")


@app.command("filter-speed")
def bench_filter_speed(
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "filter-speed.json",
    as_json: JsonFlag = False,
) -> None:
    """The linear filter in process, on one core, beside the public Kalman filters."""
    from rfa.benchmarks.filters.speed import write_speed

    _print("filter-speed", write_speed(out), as_json)


@app.command("forecast")
def bench_forecast(
    data: Annotated[Path, typer.Option(help="ETTh1.csv, which does not come with the project.", metavar="CSV")],
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "forecast-etth1.json",
    plot: Annotated[Path | None, typer.Option(help="Figure to write: a week's forecasts with their intervals.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """ETTh1, one and 24 hours ahead: CRPS and coverage beside persistence, seasonal naive and statsmodels."""
    from rfa.benchmarks.forecasting.ett import write_ett

    _print("forecast-etth1", write_ett(data, out, plot), as_json)


@app.command("series")
def bench_series(
    data: Annotated[
        Path, typer.Option(help="Folder with m4 and ett, which do not come with the project.", metavar="DIR")
    ],
    model: Annotated[
        list[str] | None, typer.Option(help="This one alone; repeat for more. Default: all that are measured.")
    ] = None,
    out: Annotated[Path, typer.Option(help="JSON file to write, or to add to.")] = RESULTS / "gift.json",
    as_json: JsonFlag = False,
) -> None:
    """Forecasts by GIFT-Eval's protocol: the network of any series and auto beside seasonal naive and statsforecast."""
    from rfa.benchmarks.series.gift import write_gift

    _print("gift", write_gift(data, out, tuple(model or ())), as_json)


@app.command("nab")
def bench_nab(
    data: Annotated[
        Path, typer.Option(help="Folder of NAB, with data and windows.json.", exists=True, file_okay=False)
    ],
    bundle: BundleName = "auto",
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS / "filter-nab.json",
    as_json: JsonFlag = False,
) -> None:
    """Anomalies on NAB's series by its public rules, beside its windowed Gaussian."""
    from rfa.benchmarks.nab.benchmark import write_nab

    _print("filter-nab", write_nab(bundle, data, out), as_json)


@app.command("recall")
def bench_recall(
    setting: Annotated[
        list[str] | None,
        typer.Option(help="Train this setting alone and keep the other rows of the file; repeatable. Default: all."),
    ] = None,
    task: Annotated[Literal["recall", "copy"] | None, typer.Option(help="The same for one task.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few pairs and settings, in three minutes.")] = False,
    out: Annotated[Path, typer.Option(help="JSON file to write, or to add to.")] = RESULTS / "recall.json",
    plot: Annotated[Path | None, typer.Option(help="Figure to write: accuracy by pairs, length, distance.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Associative recall and copying by softmax, RFA and the slots: where the state's capacity ends."""
    from rfa.benchmarks.papers.recall.table import QUICK, RecallPlan, write_recall

    plan = QUICK if quick else RecallPlan()
    _print("recall", write_recall(out, plot, plan, only=setting or (), task=task), as_json)


def _print(result: str, document: Mapping[str, Any], as_json: bool) -> None:
    """A document as its section of the results page shows it, or as JSON."""
    from rfa.benchmarks.results_page.page import tables_of

    print_table(document, tables_of(result, document), as_json)
