"""Tokens per second of the variants, which alternate in one process.

Fresh weights, random tokens, batch and context of the size config; "forward" is float32 without gradients, "training"
is forward and backward in the training's precision, without the optimiser.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rfa.benchmarks.gpu.paired import interleaved, ratio
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import Mode
from rfa.training.language import cross_entropy
from rfa.training.language_config import LanguageRun, TrainingConfig

ROUNDS = 7


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def _forward(model: LanguageModel, inputs: Tensor, mode: Mode) -> Callable[[], object]:
    def call() -> None:
        model.eval()
        model.mode = mode
        with torch.no_grad():
            # Reading the sum waits for the GPU.
            float(model(inputs, with_precision=False).logits.sum())

    return call


def _training(
    model: LanguageModel, inputs: Tensor, targets: Tensor, mode: Mode, config: TrainingConfig
) -> Callable[[], object]:
    def call() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            loss = cross_entropy(model, inputs, targets, mode)
        loss.backward()
        float(model.embedding.weight.grad.sum())  # type: ignore[union-attr]

    return call


def measure_speed(
    runs: Mapping[str, LanguageRun], device: torch.device, *, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """Measure tokens per second of every variant in every trained mode, relative to the first variant."""
    calls: dict[tuple[str, str, str], Callable[[], object]] = {}
    for name, run in runs.items():
        torch.manual_seed(0)
        model, config = LanguageModel(run.model).to(device), run.training
        ids = torch.randint(run.model.vocab_size, (config.batch, config.context + 1), device=device)
        if config.compile:
            model.compile_attention()
        for mode in config.modes or run.model.modes:
            calls[name, mode, "forward"] = _forward(model, ids[:, :-1], mode)
            calls[name, mode, "training"] = _training(model, ids[:, :-1], ids[:, 1:], mode, config)
    named = {" ".join(key): call for key, call in calls.items()}
    samples = dict(zip(calls, interleaved(named, _milliseconds, rounds=rounds, warmups=1).values(), strict=True))
    rows = []
    for (name, of, which), times in samples.items():
        config = runs[name].training
        reference = next(other for (_, _, part), other in samples.items() if part == which)
        rows.append(
            {
                "variant": name,
                "mode": of,
                "pass": which,
                "tokens_per_second": round(1e3 * config.batch * config.context / float(torch.tensor(times).median())),
                "over_first": round(1 / ratio(times, reference), 3),
            }
        )
    return rows
