"""Figures of a GPU on the page of results: nothing while there are none, and every row and bar of a file that is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rfa.benchmarks.gpu import prompts as prompts_gpu
from rfa.benchmarks.gpu.check import Part, outcome, together
from rfa.benchmarks.gpu.decode import ServedSteps, measure_decoding
from rfa.benchmarks.kernels import attention as kernel_attention
from rfa.benchmarks.kernels import rivals as kernel_rivals
from rfa.benchmarks.kernels.attention import Case
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.benchmarks.results_page.headlines import headlines
from rfa.benchmarks.results_page.page import SHOWN, load, page
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig

CONFIG = LanguageModelConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=2, head_dim=8, n_slots=4)
GPU = {
    "device": "NVIDIA H200", "driver": "580.159.04", "cuda": "13.0", "torch": "2.11.0", "triton": "3.6.0",
    "date": "2026-11-27",
}  # fmt: skip
OTHERS = {key: document for key, document in load().items() if key != "gpu-check"}


def taking(milliseconds: float) -> Callable[[Callable[[], object]], float]:
    def timer(call: Callable[[], object]) -> float:
        call()
        return milliseconds

    return timer


def no_memory(*_: object) -> torch.Tensor:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")


def attention(given: dict[str, Case], milliseconds: float) -> dict[str, Any]:
    shape = kernel_attention.measure_shape(
        16, 64, given, taking(milliseconds), tokens=32, hidden=128, dtype=torch.float32, device="cpu", rounds=1
    )
    return together([shape])


def decoding() -> dict[str, Any]:
    def make(batch: int) -> ServedSteps:
        if batch > 4:
            raise torch.OutOfMemoryError
        return ServedSteps(LanguageModel(CONFIG), batch, torch.float32, with_graph=False)

    found, bars = measure_decoding(make, taking(0.05), taking(0.25), batches=(1, 4, 8))
    kernels = [{"batch": 1, "kernel": f"kernel {k}", "launches": 2.0, "us": 20.0 - k} for k in range(10)]
    return {**found, "kernels": kernels, "errors": {"at 10": 0.004}, "bars": [bar.to_dict() for bar in bars]}


def prompts() -> dict[str, Any]:
    rows, bars = prompts_gpu.measure_prompts(LanguageModel(CONFIG), taking(7.0))
    return {"rows": rows, "bars": [bar.to_dict() for bar in bars]}


def wrong() -> dict[str, Any]:
    raise WrongResultError("fused: out has relative error 2")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """As the benches write it: those of a GPU on a small model, on this machine's clock."""
    timed = {"p20_ms": 1.0, "p50_ms": 2.5, "p80_ms": 3.0}
    rest = [
        {"measure": "slots", "implementation": name, "config": "paper", "pass": "forward", **timed}
        for name in ("fused", "eager loop")
    ] + [
        {"measure": "training step", "implementation": "rfa", "tokens_per_second": 123_456, **timed},
        {"measure": "memory", "implementation": "flash", "length": 65_536, "peak_mib": 2048.5, **timed},
    ]
    ours, flash = Case(kernel_rivals.eager), Case(kernel_rivals.flash, is_robust=False)
    series = {"rows": [{"series": "one column", "network": "gpu", "rows_per_second": 98_765, **timed}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_attention, "_public", lambda problem, truth: (lambda: None, {"out": 0.001}))
        patch.setattr(kernel_attention, "fused", kernel_rivals.eager)
        patch.setattr(prompts_gpu, "QUANTA", {"one prompt": ([8], 0)})
        # The server's runners are slow where there is no GPU, and what they read is not shown.
        patch.setattr(prompts_gpu, "ServedPrompts", lambda *_: SimpleNamespace(read=lambda mode: None))
        parts = {
            "attention": lambda: attention({"fused": ours, "flash": flash}, 3.0),
            "attention beside flex": lambda: attention({"fused": ours, "flex": Case(no_memory)}, 4.0),
            "decoding": decoding, "prompts": prompts, "slots are right": wrong,
            "rest": lambda: {"rows": rest}, "long series": lambda: series,
        }  # fmt: skip
        found = {name: {**outcome(Part(name, 1, run)), "seconds": 2.0} for name, run in parts.items()}
    left_out = {"status": "left out", "reason": "12 s were left", "seconds": 0.0}
    return {
        "commit": "0123456789ab", "hardware": GPU, "command": "rfa gpu-check",
        "parts": {**found, "training": left_out},
    }  # fmt: skip


def test_while_there_are_no_figures_the_page_has_nothing_of_them() -> None:
    assert "Measured on a GPU" not in page(OTHERS)
    assert not any("a decode step, one text" in what for what, _, _ in headlines(OTHERS))


def test_the_page_has_every_row(document: dict[str, Any]) -> None:
    text = page({**OTHERS, "gpu-check": document})
    section = text.split("### Measured on a GPU\n")[1].split("\n### ")[0]
    for line in (
        "| slots are right | wrong | 2 | – | fused: out has relative error 2 |",
        "| training | left out | 0 | – | 12 s were left |",
        "| forward, 64 reals, 16 tokens | fused | 3 | – |",
        "| –, 64 reals, 16 tokens | flex | – | OutOfMemoryError: CUDA out of memory. |",
        "| 4 | drawn | 0.05 | 80,000 | 0.25 | 16,000 | – |",
        "| 8 | – | – | – | – | – | the GPU's memory does not hold it |",
        "| 1 | `kernel 7` | 2 | 13.0 |",
        "| one prompt, attention | 7 | 0 | 0 | 1,143 |",
        "| one column, network on gpu | 2.5 | 98,765 |",
        "| rfa | 2.5 | 123,456 |",
        "| paper, forward | eager loop | 2.5 |",
        "| flash | 2,048 | 2.5 |",
        "Commit 0123456789ab, NVIDIA H200, driver 580.159.04, CUDA 13.0, torch 2.11.0, Triton 3.6.0, 2026-11-27.  ",
    ):
        assert f"\n{line}\n" in section, line


def test_bars_are_met_missed_or_not_measured(document: dict[str, Any]) -> None:
    reported = {bar.name: (bar.actual, bar.limit, bar.verdict) for bar in SHOWN["gpu-check"].bars(document)}
    assert reported["µs per token at batch 1, greedy"] == ("50", "at most 100", "met")
    assert reported["tokens per second at the best batch, greedy"] == ("80,000", "at least 1,000,000", "**missed**")
    assert reported["forward, flex / ours, 64 reals, N = 16"] == ("–", "at least 2", "not measured")
    missed = page({**OTHERS, "gpu-check": document}).split("## Missed bars")[1].split("## Filters")[0]
    assert "| tokens per second at the best batch, greedy | 80,000 | at least 1,000,000 | [Measured on a GPU]" in missed


def test_the_table_of_the_readme_has_the_bars_that_were_measured(document: dict[str, Any]) -> None:
    rows = list(headlines({**OTHERS, "gpu-check": document}))[-3:]
    assert rows == [
        ("NVIDIA H200: a decode step, one text", "50 µs", "target: at most 100"),
        ("NVIDIA H200: decoding, many texts", "80,000 tokens per second", "target: at least 1,000,000"),
        ("NVIDIA H200: 1,024 prompt tokens, the slowest kind", "7.0 ms", "target: at most 10"),
    ]
