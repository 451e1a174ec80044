"""Training speed of the series network: steps per second by size, batch and tokens, and series drawn per second."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from rfa.benchmarks.gpu_queue.parts import cores
from rfa.benchmarks.gpu_queue.series import RECIPE, REHEARSED
from rfa.measured import origin, write_result
from rfa.runtime.series.config import SeriesConfig
from rfa.training.device import choose_device
from rfa.training.language_config import find_config
from rfa.training.series_batches import SeriesBatch, feed, synthetic_batch, to_device
from rfa.training.series_config import SeriesRun
from rfa.training.series_network import SeriesTrainer, train_series

RESULT = "series-speed.json"
DRAWN = 64  # series of a generated batch; larger batches repeat them
WARM_UP, LEAST_STEPS = 4, 10
TIMED_SECONDS = 0.7


@dataclass(frozen=True)
class Case:
    """A timed case: width and layers, series per step, tokens of each, and whether it is compiled."""

    d_model: int
    layers: int
    batch: int
    tokens: int
    is_compiled: bool = False


SIZES = ((128, 3), (192, 4), (256, 4), (256, 6))
SHAPES = ((256, 128), (512, 128), (128, 128), (256, 256))
CASES = (
    *(Case(*size, *SHAPES[0]) for size in SIZES),
    Case(192, 4, *SHAPES[0], is_compiled=True),
    *(Case(*size, *shape) for shape in SHAPES[1:] for size in SIZES),
    Case(256, 6, *SHAPES[1], is_compiled=True),
)


def repeated(batch: SeriesBatch, count: int) -> SeriesBatch:
    """Return a batch of `count` series that repeats these."""

    def grown(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(-(-count // len(x)), *(1,) * (x.dim() - 1))[:count]

    tokens, ends, asked, targets, weights = batch
    return SeriesBatch(grown(tokens), grown(ends), type(asked)(*map(grown, asked)), grown(targets), grown(weights))


def usual_batch(tokens: int) -> SeriesBatch:
    """Return the first batch with the given number of tokens per series. Some have fewer or more."""
    batches = (synthetic_batch(0, DRAWN, tokens, index) for index in itertools.count())
    return next(batch for batch in batches if batch.ends.shape[1] == tokens)


def measure(run: SeriesRun, drawn: SeriesBatch, device: torch.device) -> dict[str, Any]:
    """Return steps per second on one repeated batch, without its transfer, and the fraction of a step's time on the
    device."""
    config = run.training
    batch = to_device(repeated(drawn, config.batch), device)
    with tempfile.TemporaryDirectory() as place:
        trainer = SeriesTrainer(run, Path(place), device=device)
        started = time.perf_counter()
        losses = [trainer.update(batch) for _ in range(WARM_UP)]
        _wait(device)
        found: dict[str, Any] = {"warm_up_seconds": round(time.perf_counter() - started, 2)}
        started, steps = time.perf_counter(), 0
        while steps < LEAST_STEPS or time.perf_counter() - started < TIMED_SECONDS:
            losses.append(trainer.update(batch))
            steps += 1
            if steps % LEAST_STEPS == 0:
                _wait(device)
        _wait(device)
        seconds = (time.perf_counter() - started) / steps
        if device.type == "cuda":
            found |= {
                "device_ms": round(_device_seconds(trainer, batch) * 1e3, 2),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            }
    kept = torch.stack(losses).tolist()
    return found | {
        "step_ms": round(1e3 * seconds, 2),
        "series_a_second": round(config.batch / seconds, 1),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "first_loss": round(kept[0], 4),
        "last_loss": round(kept[-1], 4),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_seconds(trainer: SeriesTrainer, batch: SeriesBatch) -> float:
    """Return the GPU time of a step in seconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        trainer.update(batch)
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6


def drawn_a_second(workers: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Return the number of series that processes generate as tokens per second."""
    batches = feed(0, DRAWN, tokens, workers=workers)
    for _ in range(max(workers, 1)):
        next(batches)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        count += len(next(batches).ends)
    return {"workers": workers, "tokens": tokens, "series_a_second": round(count / (time.perf_counter() - started), 1)}


def trained(run: SeriesRun, device: torch.device, seconds: float) -> dict[str, Any]:
    """Train for this many seconds as a user would, with worker processes."""
    run = replace(run, training=replace(run.training, minutes=seconds / 60, validate_every=10**9))
    with tempfile.TemporaryDirectory() as place:
        started = time.perf_counter()
        record = train_series(run, Path(place), device=device.type)
        whole = time.perf_counter() - started
    return {
        "batch": run.training.batch, "workers": run.training.workers, "steps": record["series"] // run.training.batch,
        "series_a_second": round(record["series"] / record["seconds"], 1), "validation": record["validation"],
        "seconds_beside": round(whole - record["seconds"], 1),
    }  # fmt: skip


def rows(cases: tuple[Case, ...], device: torch.device) -> Iterator[dict[str, Any]]:
    """Return a row for each case. A failed case has the reason."""
    base = SeriesRun.from_file(find_config(RECIPE))
    for case in cases:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = replace(base.model, d_model=case.d_model, n_layers=case.layers)
        training = replace(base.training, batch=case.batch, tokens=case.tokens, compile=case.is_compiled)
        try:
            found = measure(SeriesRun(model, training), usual_batch(case.tokens), device)
        except Exception as error:  # the other cases can still run
            found = {"reason": f"{type(error).__name__}: {error}"[:400]}
        yield {**vars(case), **found}


def main(
    out: Annotated[Path, typer.Option(file_okay=False)],
    seconds: Annotated[float, typer.Option()] = 60.0,
    rehearse: Annotated[bool, typer.Option("--rehearse")] = False,
) -> None:
    begun, device = time.monotonic(), choose_device("cpu" if rehearse else "auto")
    document = {**origin("python -m rfa.benchmarks.gpu_queue --part series-speed"), "drawn": [], "rows": []}
    if device.type == "cuda":
        from rfa.benchmarks.gpu.device import gpu_hardware

        document["hardware"] = {**document["hardware"], **gpu_hardware(device)}
    cases = CASES
    if rehearse:
        model: SeriesConfig = REHEARSED.model
        cases = (Case(model.d_model, model.n_layers, REHEARSED.training.batch, REHEARSED.training.tokens),)
    workers, tokens = (1, REHEARSED.training.tokens) if rehearse else (cores(), 128)
    base = REHEARSED if rehearse else SeriesRun.from_file(find_config(RECIPE))
    # Kernels for the CPU are compiled once, before processes start.
    synthetic_batch(0, 1, tokens)
    document["drawn"] = [drawn_a_second(workers, tokens, 0.1 if rehearse else 5.0)]
    run = base if rehearse else replace(base, training=replace(base.training, workers=cores() - 1))
    document["trained"] = trained(run, device, 0.1 if rehearse else 10.0)
    print(document["drawn"], document["trained"], flush=True)
    for row in tqdm(rows(cases, device), total=len(cases)):
        document["rows"].append(row)
        write_result(out / RESULT, document)
        print(row, flush=True)
        if time.monotonic() - begun > seconds:
            break


if __name__ == "__main__":
    typer.run(main)
