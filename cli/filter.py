"""`rfa filter`: the states behind a recorded series, as a table, a JSON document, a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rfa.cli.console import JsonFlag, print_json

if TYPE_CHECKING:
    from rfa.service.runtime.filter import FilterRuntime
    from rfa.service.runtime.filter_sequence import FilteredSequence
    from rfa.service.schemas.replies import FilterStepReply, SmoothedStep
    from rfa.training.series import Series

DEFAULT_BUNDLE, METRIC_BUNDLE = "oscillator", "metrics"
OUTLIER = 0.999
LEVELS = (0.5, 0.9)
WIDE = "0.9"


def run_filter(
    runtime: FilterRuntime, series: Series, horizon: list[float], *, smooth: bool = False, lag: int | None = None
) -> FilteredSequence:
    """Filter a series, with a progress bar.

    Args:
        smooth: also the states given all rows, or those up to `lag` rows later.

    Raises:
        ValueError: the series has another number of columns than the bundle takes.
    """
    from tqdm import tqdm

    from rfa.service.engine.filter.model import FilterOptions
    from rfa.service.runtime.filter_sequence import FilteredSequence

    if series.values.shape[1] != runtime.observation_size:
        raise ValueError(
            f"the CSV has {series.values.shape[1]} columns of values ({', '.join(series.names)}), "
            f"bundle {runtime.name!r} takes {runtime.observation_size}; "
            "`rfa train filter --data CSV` makes a filter that fits"
        )
    rows = [[None if math.isnan(value) else float(value) for value in row] for row in series.values]
    options = FilterOptions(
        [float(t) for t in series.times], rows, None, LEVELS, tuple(horizon), smooth=smooth, lag=lag
    )
    with tqdm(total=len(rows) * (3 if smooth else 1), unit="row", disable=None, leave=False) as bar:
        return FilteredSequence.collect(runtime.work(options), bar.update)


def learned(series: Series, steps: list[FilterStepReply]) -> list[FilterStepReply]:
    """The steps with `anomaly` by what this series has shown so far, not by what the bundle was calibrated on."""
    from rfa.export.normal import anomalies

    scores = anomalies([step.nis for step in steps], series.values)
    return [
        step if step.anomaly is None else replace(step, anomaly=float(score))
        for step, score in zip(steps, scores, strict=True)
    ]


def flagged(steps: list[FilterStepReply], threshold: float) -> list[int]:
    """Rows (from 0) whose anomaly score reaches the threshold."""
    return [i for i, step in enumerate(steps) if step.anomaly is not None and step.anomaly >= threshold]


def as_table(
    series: Series, steps: list[FilterStepReply], outliers: list[int], smoothed: list[SmoothedStep] | None = None
) -> str:
    """CSV: time, per component the observation, mean, std and 0.9 interval, the row's scores, the forecasts, and the
    smoothed states."""
    header = ["t"]
    for name in series.names:
        header += [name, f"{name}_mean", f"{name}_std", f"{name}_low90", f"{name}_high90"]
    header += ["weight", "nis", "anomaly", "confidence", "outlier"]
    # Of a forecast only its lead is the same in every row.
    leads = [point.t - steps[0].t for point in steps[0].forecast]
    for lead in leads:
        for name in series.names:
            header += [f"{name}_ahead{lead:g}_{part}" for part in ("mean", "std", "low90", "high90")]
    if smoothed is not None:
        header += [f"{name}_smooth_{part}" for name in series.names for part in ("mean", "std")]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    hits = set(outliers)
    for i, step in enumerate(steps):
        row: list[Any] = [step.t]
        for k, value in enumerate(series.values[i]):
            row += ["" if math.isnan(value) else float(value), step.mean[k], step.std[k], *step.interval[WIDE][k]]
        row += ["" if x is None else x for x in (step.weight, step.nis, step.anomaly, step.confidence)]
        row.append(int(i in hits))
        for point in step.forecast:
            for k in range(len(series.names)):
                row += [point.mean[k], point.std[k], *point.interval[WIDE][k]]
        if smoothed is not None:
            for pair in zip(smoothed[i].mean, smoothed[i].std, strict=True):
                row += pair
        writer.writerow(row)
    return buffer.getvalue()


def filter_series(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV with a header; a column time, t, timestamp or date is the clock, empty cells are missing.",
            exists=True,
            dir_okay=False,
        ),
    ],
    bundle: Annotated[
        str | None,
        typer.Option(
            help=f"Bundle folder, or the name of a default bundle; {DEFAULT_BUNDLE} unless given, "
            f"or {METRIC_BUNDLE} for the anomalies of one column."
        ),
    ] = None,
    horizon: Annotated[list[float] | None, typer.Option(min=1e-9, help="Forecast so far ahead; repeatable.")] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Also the states given all rows, earlier and later.")
    ] = False,
    lag: Annotated[
        int | None,
        typer.Option(
            min=0, help="Smooth by so many later rows only, as one can who filters live and may wait for them."
        ),
    ] = None,
    anomalies: Annotated[
        bool,
        typer.Option(
            "--anomalies",
            help="Score every row by what the series has shown so far, one setting for any series: by level and "
            "surprise, quiet after an alarm.",
        ),
    ] = False,
    flag: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help=f"Anomaly score from which a row is an outlier; {OUTLIER}, or stricter with --anomalies."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw estimate, bands and outliers into this image.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table there: .csv, or .json for everything.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the states behind a recorded series; without --out, --plot or --json the table goes to stdout."""
    from rfa.cli.locate import find_bundle
    from rfa.export.bundle import open_bundle
    from rfa.export.normal import THRESHOLD
    from rfa.service.runtime.filter import FilterRuntime
    from rfa.training.series import load_csv

    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out must end in .csv or .json, got {out.name!r}")
    series = load_csv(data)
    if bundle is None:
        bundle = METRIC_BUNDLE if anomalies and len(series.names) == 1 else DEFAULT_BUNDLE
    runtime = FilterRuntime(open_bundle(find_bundle(bundle)))
    result = run_filter(runtime, series, horizon or [], smooth=smooth or lag is not None, lag=lag)
    steps, smoothed = result.steps, result.smoothed
    if anomalies:
        steps = learned(series, steps)
    threshold = flag if flag is not None else THRESHOLD if anomalies else OUTLIER
    outliers = flagged(steps, threshold)
    document = {
        "model": runtime.name,
        "columns": list(series.names),
        "steps": [
            {**vars(step), "forecast": [asdict(point) for point in step.forecast], "samples": step.samples.tolist()}
            for step in steps
        ],
        "smoothed": None if smoothed is None else [asdict(state) for state in smoothed],
        "log_likelihood": result.log_likelihood,
        "threshold": threshold,
        "outliers": outliers,
    }
    if out is not None:
        out.write_text(
            json.dumps(document, allow_nan=False) + "\n"
            if out.suffix == ".json"
            else as_table(series, steps, outliers, smoothed)
        )
    if plot is not None:
        from rfa.cli.plot import draw_series

        draw_series(series, steps, outliers, plot, title=f"{data.name} · {runtime.name}")
    if as_json:
        print_json(document)
    elif out is None and plot is None:
        typer.echo(as_table(series, steps, outliers, smoothed), nl=False)
    else:
        typer.echo(
            f"{len(steps)} rows, {len(outliers)} outliers, log-likelihood {result.log_likelihood:.6g}"
            + "".join(f" → {path}" for path in (out, plot) if path is not None)
        )
