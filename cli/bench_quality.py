"""`rfa bench quality`: train and score the language models of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rfa.cli.console import print_benchmark
from rfa.cli.options import RESULTS, Device, Folder, JsonFile, JsonFlag

Corpus = Annotated[
    Path,
    typer.Option(
        help=(
            "Directory that contains the splits train, valid and test. Each is a directory of .txt files, or a file "
            "such as train.txt."
        ),
        metavar="DIR",
    ),
]
Runs = Annotated[Path, typer.Option(help="Directory in which to save the runs.", metavar="DIR", file_okay=False)]
Variants = Annotated[
    str | None,
    typer.Option(
        help=(
            "Names of models in variants.json, separated by commas, such as B1,M1,M2. The default is all models "
            "of the papers."
        ),
        metavar="NAMES",
    ),
]
Seeds = Annotated[str, typer.Option(metavar="NUMBERS")]
ModelSize = Annotated[str, typer.Option(help="Model size: small, paper, or the path of a JSON file.")]
Lengths = Annotated[
    str,
    typer.Option(help="Lengths of the context windows, as multiples of the training length.", metavar="NUMBERS"),
]
Tokens = Annotated[int, typer.Option(help="Number of tokens to score.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs to train in parallel, each with one thread.")]
EvaluateOnly = Annotated[bool, typer.Option("--evaluate-only", help="Score only the runs that are already trained.")]
SpeedOnly = Annotated[bool, typer.Option("--speed-only", help="Measure only the speed of the variants, on one thread.")]


def bench_quality(
    *,
    data: Corpus,
    runs: Runs,
    variants: Variants = None,
    seeds: Seeds = "0,1,2",
    config: ModelSize = "small",
    lengths: Lengths = "1,2,4,8",
    tokens: Tokens = 65_536,
    workers: Workers = 1,
    device: Device = "auto",
    evaluate_only: EvaluateOnly = False,
    speed_only: SpeedOnly = False,
    figures: Folder = None,
    out: JsonFile = RESULTS / "quality-small.json",
    as_json: JsonFlag = False,
) -> None:
    """Train every variant of the papers on a corpus, or continue the training, and report the perplexity by context
    length."""
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
        typer.echo(f"the table has no rows for: {', '.join(document['missing'])}", err=True)
    print_benchmark("quality-small", document, as_json)
    if document["failed"]:
        raise FailedRunsError("; ".join(f"{name}: {error}" for name, error in document["failed"].items()))
