"""`rfa bench`: run the benchmarks that produced the published results. They need a checkout of the repository."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from rfa.cli.bench_load import bench_load
from rfa.cli.bench_quality import bench_quality
from rfa.cli.console import print_benchmark, print_result, print_table
from rfa.cli.options import RESULTS, BundleName, JsonFile, JsonFlag, JsonTable, PlotFile

app = typer.Typer(no_args_is_help=True, help="Measure speed and accuracy.")
AotTable = Annotated[Path, typer.Option("--out", help="JSON file to write, or to read with --check.")]


@app.command("decode")
def bench_decode(
    bundle: BundleName = "books",
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(help="Device to measure. With cuda, the model has the size used in the paper."),
    ] = "cpu",
    out: Annotated[Path | None, typer.Option(help="JSON file to write. By default, a file in results/.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure the decoding time per token. On a CPU, the time is measured on one thread, early and late in a text, and
    with a cache. On a GPU, it is measured early and late in a text, and by batch size."""
    if device == "cuda":
        from rfa.benchmarks.gpu.decode import write_decode_gpu

        print_result(write_decode_gpu(out or RESULTS / "decode_gpu.json"), as_json)
        return
    from rfa.benchmarks.language.decode import write_decode
    from rfa.cli.bundles import find_bundle

    print_result(write_decode(find_bundle(bundle), out or RESULTS / "decode.json"), as_json)


@app.command("scoring")
def bench_scoring(
    bundle: BundleName = "books", out: JsonFile = RESULTS / "scoring.json", as_json: JsonFlag = False
) -> None:
    """Measure the time to score the tokens of a prompt on one thread, compared with processing the prompt."""
    from rfa.benchmarks.language.scoring import write_scoring
    from rfa.cli.bundles import find_bundle

    print_benchmark("scoring", write_scoring(find_bundle(bundle), out), as_json)


@app.command("aot")
def bench_aot(
    out: AotTable = RESULTS / "aot.json",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Exit with status 1 if a kernel has more registers, spills or instructions than recorded in --out.",
        ),
    ] = False,
    triton: Annotated[
        Path | None,
        typer.Option(help="Directory that contains another version of Triton, installed with `pip install --target`."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile the fused kernels for five GPU architectures, and report their registers and instructions. No GPU is
    needed.

    This takes 20 minutes on two cores.
    """
    from rfa.benchmarks.kernels.aot import GrownError, compile_rows, document, grown, refused, shipped

    committed = json.loads(out.read_text()) if check else None
    result = document(compile_rows(shipped(), triton=triton), triton)
    if committed is None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    print_benchmark("aot", result, as_json)
    problems = grown(result["rows"], committed, triton) + refused(result["rows"]) if committed else []
    if problems:
        raise GrownError("; ".join(problems))


@app.command("cost")
def bench_cost(
    out: JsonFile = RESULTS / "cost.json",
    architecture: Annotated[
        list[int] | None, typer.Option(help="GPU architecture: 80, 89, 90, 100 or 120. Repeatable. The default is all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict the speed of the fused kernels on other GPUs from their machine code.

    This takes 10 minutes on two cores.
    """
    from rfa.benchmarks.cost.gpus import ARCHITECTURES
    from rfa.benchmarks.cost.report import write_cost

    if unknown := set(architecture or ()) - set(ARCHITECTURES):
        raise ValueError(f"--architecture must be one of {', '.join(map(str, ARCHITECTURES))}, got {min(unknown)}")
    if architecture and out == RESULTS / "cost.json":
        raise ValueError(
            "the committed table contains all architectures; to measure only some of them, specify another file with "
            "--out"
        )
    print_benchmark("cost", write_cost(out, architecture), as_json)


@app.command("kernel")
def bench_kernel(
    part: Annotated[
        list[str] | None,
        typer.Option(help="Benchmark to run: attention, memory, slots or training. Repeatable. The default is all."),
    ] = None,
    width: Annotated[
        list[int] | None, typer.Option(help="Number of real dimensions per head, 64 or 128. Repeatable.")
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="Sequence length, which must divide 16,384. Repeatable.")
    ] = None,
    out: JsonTable = RESULTS / "kernel.json",
    as_json: JsonFlag = False,
) -> None:
    """Check the fused kernels on a GPU, and compare their times with SDPA, FlexAttention and eager code."""
    from rfa.benchmarks.kernels.speed import run_kernel, selected

    print_benchmark("kernel", run_kernel(out, *selected(part, width, length)), as_json)


@app.command("filter")
def bench_filter(
    bundle: BundleName = "oscillator",
    streams: Annotated[int, typer.Option(min=1)] = 400,
    length: Annotated[int, typer.Option(min=2)] = 100,
    out: JsonFile = RESULTS / "filter.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure error and coverage on the oscillator with the noise settings of the paper, compared with the exact Kalman
    filter."""
    from rfa.benchmarks.filters.oscillator import write_filter
    from rfa.cli.bundles import find_bundle

    print_benchmark("filter", write_filter(find_bundle(bundle), out, streams=streams, length=length), as_json)


@app.command("afa")
def bench_afa(
    steps: Annotated[int, typer.Option(min=20, help="Number of training steps for each model.")] = 300,
    out: JsonFile = RESULTS / "afa.json",
    figures: Annotated[Path, typer.Option(help="Directory in which to save the figures.")] = Path("docs") / "figures",
    as_json: JsonFlag = False,
) -> None:
    """Train Adaptive Filter Attention on the oscillator of the paper, and compare it with the exact Kalman filter."""
    from rfa.benchmarks.papers.afa.compare import AfaPlan, write_afa
    from rfa.benchmarks.papers.afa.training import PredictorTraining

    print_benchmark("afa", write_afa(out, figures, AfaPlan(training=PredictorTraining(steps=steps))), as_json)


@app.command("filter-accuracy")
def bench_filter_accuracy(
    trials: Annotated[int, typer.Option(min=1, help="Number of streams in each scenario.")] = 500,
    steps: Annotated[int, typer.Option(min=20, help="Number of observations in each stream.")] = 1000,
    out: JsonFile = RESULTS / "filter-accuracy.json",
    plot: PlotFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure the error and calibration of the linear filter, and its delay after a jump, on simulated systems from the
    literature. --plot draws the error by noise level and the response to a jump."""
    from rfa.benchmarks.filters.accuracy import write_filter_accuracy

    document = write_filter_accuracy(out, trials=trials, steps=steps)
    if plot is not None:
        from rfa.benchmarks.filters.accuracy_plot import draw_accuracy

        draw_accuracy(document, plot)
    print_benchmark("filter-accuracy", document, as_json)


app.command("quality")(bench_quality)
app.command("load")(bench_load)


@app.command("filter-speed")
def bench_filter_speed(
    out: JsonFile = RESULTS / "filter-speed.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure the speed of the linear filter in this process, on one core, compared with public Kalman filters."""
    from rfa.benchmarks.filters.speed import write_speed

    print_benchmark("filter-speed", write_speed(out), as_json)


@app.command("forecast")
def bench_forecast(
    data: Annotated[
        Path,
        typer.Option(help="Path of ETTh1.csv. It is not part of the repository and must be downloaded.", metavar="CSV"),
    ],
    out: JsonFile = RESULTS / "forecast-etth1.json",
    plot: PlotFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Forecast ETTh1 one hour and 24 hours ahead, and compare the errors with persistence, seasonal naive and
    statsmodels. --plot draws one week of forecasts with their intervals."""
    from rfa.benchmarks.forecasting.ett import write_ett

    print_benchmark("forecast-etth1", write_ett(data, out, plot), as_json)


@app.command("series")
def bench_series(
    data: Annotated[
        Path,
        typer.Option(
            help="Directory that contains the data sets m4, ett and gift, which must be downloaded separately.",
            metavar="DIR",
        ),
    ],
    model: Annotated[list[str] | None, typer.Option(help="Model to measure. Repeatable. The default is all.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Prefix of the names of the tasks to run, such as ett1/H. Repeatable.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also measure models and tasks whose results the file already contains.")
    ] = False,
    out: JsonTable = RESULTS / "gift.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure forecasts with the protocol of GIFT-Eval, compared with seasonal naive and statsforecast."""
    from rfa.benchmarks.series.gift import write_gift

    print_benchmark("gift", write_gift(data, out, tuple(model or ()), tuple(task or ()), again=again), as_json)


@app.command("nab")
def bench_nab(
    data: Annotated[
        Path,
        typer.Option(
            help=(
                "Directory of the Numenta Anomaly Benchmark. It must contain the directory data and the file "
                "windows.json."
            ),
            exists=True,
            file_okay=False,
        ),
    ],
    bundle: BundleName = "auto",
    out: JsonFile = RESULTS / "filter-nab.json",
    as_json: JsonFlag = False,
) -> None:
    """Detect anomalies on NAB, score them with the rules of the benchmark, and compare the score with that of its
    windowed Gaussian detector."""
    from rfa.benchmarks.nab.benchmark import write_nab

    print_benchmark("filter-nab", write_nab(bundle, data, out), as_json)


@app.command("equalities")
def bench_equalities(
    url: Annotated[str, typer.Argument(help="URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1.")],
    *,
    replica: Annotated[
        str | None, typer.Option(help="URL of another server with the same model. Its results are also compared.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model in requests. The default is the server's default model.")
    ] = None,
    cases: Annotated[int, typer.Option(min=1, help="Number of random prompts to send.")] = 100,
    key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key to send to the server.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results. It is updated after every case.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check whether a server returns the same log probabilities each time it processes a text.

    A request is repeated alone and in a batch, with the whole text in the prompt (`echo`), after a restored state, and
    on the replica. The server must support `logprobs`, `echo` and `return_tokens_as_token_ids`. The exit code is 1 if
    the log probabilities differ.
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
    pairs: Annotated[int, typer.Option(min=1, help="Number of pairs per paradigm. The first pairs are used.")] = 1000,
    out: JsonFile = RESULTS / "blimp.json",
    as_json: JsonFlag = False,
) -> None:
    """Measure grammatical knowledge on pairs of sentences, compared with published results of small models."""
    from rfa.benchmarks.language.blimp import write_blimp
    from rfa.cli.bundles import find_bundle

    print_benchmark("blimp", write_blimp(data, find_bundle(bundle), pairs, out), as_json)


@app.command("events")
def bench_events(
    data: Annotated[
        Path, typer.Option(help="Directory that contains normal.txt and abnormal.txt of DeepLog.", metavar="DIR")
    ],
    bundle: BundleName = "events",
    corpus: Annotated[
        Path | None,
        typer.Option(help="Directory for the training corpus. If it is set, only the corpus is written."),
    ] = None,
    out: JsonFile = RESULTS / "events.json",
    as_json: JsonFlag = False,
) -> None:
    """Detect abnormal HDFS sessions from their events, and report F1, recall and false alarms."""
    from rfa.benchmarks.language.events import write_corpus, write_events

    if corpus is not None:
        write_corpus(data, corpus)
        return
    print_benchmark("events", write_events(data, bundle, out), as_json)


@app.command("recall")
def bench_recall(
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Setting to train. The results of other settings in the file are kept. Repeatable. The default is all "
                "settings."
            )
        ),
    ] = None,
    task: Annotated[Literal["recall", "copy"] | None, typer.Option(help="Train only on this task.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train only a few settings, which takes three minutes.")
    ] = False,
    out: JsonTable = RESULTS / "recall.json",
    plot: PlotFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure how much the states of softmax attention, RFA and memory slots can store, by training them on associative
    recall and copying. --plot draws the accuracy by number of pairs, length and distance."""
    from rfa.benchmarks.language.recall.table import QUICK, RecallPlan, write_recall

    plan = QUICK if quick else RecallPlan()
    print_benchmark("recall", write_recall(out, plot, plan, only=setting or (), task=task), as_json)
