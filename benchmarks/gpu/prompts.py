"""Prompts on a GPU as they are served: pieces of many requests at once, in both modes, at the paper's size.

Prompts of several lengths are first checked against the model on a CPU. Then the server's runners process a quantum of
1,024 tokens: of one prompt, of sixteen, and after a context. Times are on the host; device times are listed too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from rfa.benchmarks.gpu.decode import CONFIG, centred, paper_model
from rfa.benchmarks.gpu.device import gpu_hardware, require_gpu
from rfa.benchmarks.gpu.paired import Bar, Timer, host_clock, interleaved, quantiles
from rfa.benchmarks.kernels.times import kernel_rows
from rfa.benchmarks.kernels.truth import Truth, WrongResultError, allowances
from rfa.measured import origin
from rfa.model.attention.pages import PAGE_KEYS
from rfa.model.decoder import Decoder
from rfa.model.language import LanguageModel
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import Ragged
from rfa.runtime.gpu.graph import GraphMemory
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.gpu.pages import PagePool
from rfa.runtime.gpu.pool import DevicePool
from rfa.runtime.gpu.prompts import PagedPromptRunner, SlotPromptRunner
from rfa.runtime.text.config import Mode
from rfa.service.settings import FIELDS

CHECKED: Final = (1, 63, 64, 65, 300)
# Tokens of each prompt of a quantum, and number of earlier tokens.
QUANTA: Final = {"one prompt": ([1024], 0), "sixteen prompts": ([64] * 16, 0), "behind 3,072 tokens": ([1024], 3072)}
# Size of the largest piece, and maximum number of streams in one, with the server's defaults.
TOKENS: Final = TorchLanguageRuntime.prefill_tokens
STREAMS: Final = FIELDS["max_batch_rows"].get_default(call_default_factory=True, validated_data={"device": "cuda"})
MODES: Final[tuple[Mode, ...]] = ("attention", "recurrent")
ROUNDS: Final = 20
MILLISECONDS_BAR: Final = 10.0


class Prompts:
    """Streams of a float32 model that read up to `counts` tokens each, with matrices in `dtype`."""

    def __init__(self, model: LanguageModel, dtype: torch.dtype, counts: Sequence[int]) -> None:
        decoder = Decoder(model, dtype)
        self._device, config = decoder.device, model.config
        self._ragged = RaggedDecoder(decoder)
        self.refusals: dict[Mode, str | None] = {
            "attention": self._ragged.attention_refusal, "recurrent": self._ragged.scan_refusal
        }  # fmt: skip
        state = model.init_state(len(counts))
        self._slots = [part.detach().transpose(0, 1).contiguous() for part in state[:2]]
        held = [-(-count // PAGE_KEYS) for count in counts]
        self._pages = [list(range(sum(held[:row]), sum(held[: row + 1]))) for row in range(len(held))]
        shape = config.n_layers, sum(held) * PAGE_KEYS, config.n_heads, 2 * config.head_dim
        # Earlier keys are all equal, because time does not depend on them.
        self._keys, self._values = (
            torch.ones(shape, dtype=self._ragged.cache_dtype, device=self._device) for _ in range(2)
        )
        self._noise = torch.zeros(len(counts), config.n_heads, 2 * config.head_dim, device=self._device)

    @torch.no_grad()
    def read(self, tokens: Sequence[Sequence[int]], begins: Sequence[int], mode: Mode) -> Tensor:
        """Return logits minus their mean `[S, V]` after the last token of each stream."""
        ragged = Ragged.of(tokens, begins, self._device)
        if mode == "attention":
            output = self._ragged.extend(ragged, self._pages, self._keys, self._values, self._noise)
        else:
            output = self._ragged.prefill(ragged, *self._slots)[0]
        return centred(output.logits)


class ServedPrompts:
    """Runners of a quantum as on a server, for streams of `counts` tokens after `behind` earlier ones."""

    def __init__(self, model: LanguageModel, dtype: torch.dtype, counts: Sequence[int], behind: int) -> None:
        decoder = Decoder(model, dtype)
        device, config = decoder.device, model.config
        ragged, workspace = RaggedDecoder(decoder), GraphMemory() if device.type == "cuda" else None
        # Pages of each stream, and of the longest. Earlier keys are zeros, because time does not depend on them.
        held = [-(-(count + behind) // PAGE_KEYS) for count in counts]
        self._pages = [
            np.arange(end - own, end, dtype=np.int32) for own, end in zip(held, np.cumsum(held), strict=True)
        ]
        streams = 1 if len(counts) == 1 else STREAMS
        shape = config.n_layers, config.n_heads, 2 * config.head_dim
        pages = PagePool(shape, sum(held), device, ragged.cache_dtype)
        means, precisions = (part.detach()[0].cpu().numpy() for part in model.init_state(1)[:2])
        slots = DevicePool(means, precisions, len(counts), streams, str(device))
        self._paged = PagedPromptRunner(ragged, pages, TOKENS, streams, max(held), workspace)
        self._slotted = SlotPromptRunner(ragged, slots, TOKENS, streams, workspace)
        self._slot_rows = np.arange(len(counts)), np.arange(len(counts)) + len(counts)
        self._tokens, self._begins = tokens_of(counts, config.vocab_size), [behind] * len(counts)
        self._device = device

    def read(self, mode: Mode) -> None:
        """Process a quantum and return its results on the host."""
        ragged = Ragged.of(self._tokens, self._begins, self._device)
        if mode == "attention":
            finite = self._paged.read(ragged, self._pages)
        else:
            finite = self._slotted.read(ragged, *self._slot_rows)
        if not finite.all():
            raise WrongResultError(f"prompts in mode {mode} leave what is not finite")


def tokens_of(counts: Sequence[int], size: int) -> list[list[int]]:
    """Return prompts of these lengths."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(size, (count,), generator=draw).tolist() for count in counts]


@torch.no_grad()
def read_by_model(model: LanguageModel, tokens: Sequence[Sequence[int]], mode: Mode, *, is_autocast: bool) -> Tensor:
    """Return the result of `Prompts.read` computed by the model, one prompt after the other."""
    found = []
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        for prompt in tokens:
            row = torch.tensor([prompt])
            if mode == "attention":
                output = model.extend(row, model.init_cache(1, 0))[0]
            else:
                output = model.prefill(row, model.init_state(1))[0]
            found.append(centred(output.logits.float()))
    return torch.cat(found)


def check_prompts(model: LanguageModel, dtype: torch.dtype) -> dict[str, float]:
    """Return the relative errors of the logits of prompts on the GPU, by mode. The reference is the model on a CPU."""
    on_cpu = copy.deepcopy(model).cpu()
    prompts, tokens = Prompts(model, dtype, CHECKED), tokens_of(CHECKED, model.config.vocab_size)
    errors: dict[str, float] = {}
    for mode, refusal in prompts.refusals.items():
        if refusal is not None and model.embedding.weight.is_cuda:
            raise WrongResultError(f"prompts in mode {mode} go one by one: {refusal}")
        exact, eager = (
            {str(mode): read_by_model(on_cpu, tokens, mode, is_autocast=is_autocast)} for is_autocast in (False, True)
        )
        truth = Truth(exact, allowances(exact, eager, torch.bfloat16), None)
        errors |= truth.check("prompts", {mode: prompts.read(tokens, [0] * len(tokens), mode).cpu()})
    return errors


def measure_prompts(model: LanguageModel, timer: Timer) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Measure the time of each quantum in each mode. Return the rows, and the target for the slowest quantum."""
    rows: list[dict[str, Any]] = []
    for name, (counts, behind) in QUANTA.items():
        prompts = ServedPrompts(model, torch.bfloat16, counts, behind)
        cases: dict[str, Callable[[], object]] = {mode: partial(prompts.read, mode) for mode in MODES}
        samples = interleaved(cases, timer, rounds=ROUNDS, label=name)
        for mode in MODES:
            summary = quantiles(samples[mode])
            speed = round(1e3 * sum(counts) / summary["p50_ms"])
            kernels = kernel_rows(cases[mode])
            rows.append({
                "mode": mode, "quantum": name, **summary, "tokens_per_second": speed,
                "device_ms": round(sum(row["us"] for row in kernels) / 1e3, 5),
                "launches": sum(row["launches"] for row in kernels), "kernels": kernels,
            })  # fmt: skip
    slowest = max(row["p50_ms"] for row in rows)
    return rows, [Bar("ms of a quantum of 1,024 tokens of prompts, at most", MILLISECONDS_BAR, slowest)]


def check_paper_prompts() -> dict[str, Any]:
    """Return errors of the paper-size model, without timing."""
    return {"errors": check_prompts(paper_model(require_gpu()), torch.bfloat16)}


def measure_paper_prompts() -> dict[str, Any]:
    """Return times of the paper-size model, after the check."""
    device = require_gpu()
    rows, bars = measure_prompts(paper_model(device), host_clock)
    return {
        "config": CONFIG,
        **origin("rfa gpu-check"),
        "hardware": gpu_hardware(device),
        "rows": rows,
        "bars": [bar.to_dict() for bar in bars],
    }
