"""`rfa eval`: evaluate a bundle on test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.console import print_result, print_table
from rfa.cli.options import BundleName, JsonFlag, TestFolder

if TYPE_CHECKING:
    from rfa.training.evaluate.language import PassesScore

app = typer.Typer(no_args_is_help=True, help="Evaluate a bundle on test data.")


@app.command("lm")
def eval_lm(
    bundle: BundleName,
    data: TestFolder,
    limit: Annotated[int | None, typer.Option(help="Maximum number of tokens to score.")] = None,
    passes: Annotated[
        bool,
        typer.Option(
            "--passes",
            help="Compare different numbers of reweighting passes in recurrent mode, with contexts of 4,096 tokens.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Report perplexity and bits per byte in both modes, with contexts of 256, 1,024 and 4,096 tokens."""
    from rfa.training.corpus import split_files
    from rfa.training.evaluate.language import evaluate_model, evaluate_passes

    if passes:
        compared = evaluate_passes(_language_bundle(bundle), split_files(data, "test"), limit=limit)
        print_table([asdict(row) for row in compared], _passes_lines(compared), as_json)
        return
    scores = evaluate_model(_language_bundle(bundle), split_files(data, "test"), limit=limit)
    lines = [f"{'mode':<10} {'context':>7} {'perplexity':>10} {'bits/byte':>9} {'tokens':>9}"]
    for row in scores:
        figures = f"{row.perplexity:>10.2f} {row.bits_per_byte:>9.4f} {row.tokens:>9}"
        lines.append(f"{row.mode:<10} {row.length:>7} {figures}")
    print_table([asdict(score) for score in scores], lines, as_json)


@app.command("confidence")
def eval_confidence(
    bundle: BundleName,
    data: TestFolder,
    limit: Annotated[int, typer.Option(help="Maximum number of tokens to score.")] = 131_072,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for a figure with a reliability diagram.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure the calibration of the token confidence in both modes."""
    from rfa.measured import write_result
    from rfa.training.evaluate.confidence import report, table

    document = report(_language_bundle(bundle), data, limit=limit)
    if out is not None:
        write_result(out, document)
    if plot is not None:
        from rfa.training.evaluate.confidence_plot import draw_reliability

        draw_reliability(document, plot)
    print_table(document, table(document), as_json)


@app.command("filter")
def eval_filter(
    bundle: BundleName,
    data: Annotated[
        str,
        typer.Option(help="File to filter, or simulate:oscillator for simulated data. Only the last fifth is scored."),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Report the errors of one-step forecasts and of repeating the last value, the likelihood, and the coverage of the
    intervals."""
    from rfa.cli.bundles import find_bundle
    from rfa.training.evaluate.filter import score_filter

    print_result(score_filter(find_bundle(bundle), data), as_json)


def _passes_lines(rows: Sequence[PassesScore]) -> list[str]:
    lines = [f"{'passes':>6} {'perplexity':>10} {'bits/byte':>9} {'prompt µs':>9} {'step µs':>9}"]
    for row in rows:
        costs = " ".join(f"{'–' if cost is None else format(cost, '.1f'):>9}" for cost in (row.prompt_us, row.step_us))
        lines.append(f"{row.passes:>6} {row.score.perplexity:>10.2f} {row.score.bits_per_byte:>9.4f} {costs}")
    return lines


def _language_bundle(name: str) -> Path:
    from rfa.cli.bundles import find_bundle

    path = find_bundle(name)
    if not (path / "tokenizer.json").is_file():
        raise ValueError(f"{path.name} is not a language model, because it has no tokenizer.json")
    return path
