"""Decoding of the paper-size model on a GPU with the server's step: one CUDA graph that includes sampling.

The step is first checked against `LanguageModel.step` on a CPU, early and late in a stream. Timings are of the graph
alone, on the device, and of the server's whole call, on the host. Targets are for the graph with temperature and
nucleus.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rfa.benchmarks.gpu.device import gpu_hardware, require_gpu
from rfa.benchmarks.gpu.paired import Bar, EventTimer, Timer, host_clock, interleaved, quantiles, ratio
from rfa.benchmarks.kernels.times import kernel_rows
from rfa.benchmarks.kernels.truth import Truth, allowances
from rfa.measured import origin, write_result
from rfa.model.decoder import Decoder
from rfa.model.language import LanguageModel, SlotState
from rfa.runtime.gpu.pool import DevicePool, Rows
from rfa.runtime.gpu.step import StepRunner
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws
from rfa.training.language_config import LanguageRun, find_config

CONFIG = "paper"
BATCHES = (1, 8, 64, 256, 1024, 4096)
# The kernels of a sampling step are reported for these.
PROFILED = (1, 64, 1024)
POSITIONS = (10, 1_000_000)
CHECKED_BATCH, CHECKED_TOKENS = 2, 8
ROUNDS, SERVED_ROUNDS = 20, 60
STEPS_PER_SAMPLE = 10
GREEDY, DRAWN = "greedy", "drawn"
CHOICES = {GREEDY: Choice(), DRAWN: Choice(temperature=0.8, top_p=0.95, uniform=0.5)}
MICROSECONDS_BAR, TOKENS_BAR, FLATNESS_BAR = 100.0, 1e6, 1.05


class ServedSteps:
    """`batch` streams of a float32 model on the server's step, from their first token.

    Args:
        dtype: Dtype of the matrices.
        with_graph: Replay a captured step. False runs it, as on a CPU.
    """

    def __init__(self, model: LanguageModel, batch: int, dtype: torch.dtype, *, with_graph: bool) -> None:
        state, device = model.init_state(1), model.embedding.weight.device
        means, precisions = (part.detach()[0].cpu().numpy() for part in state[:2])
        self._pool = DevicePool(means, precisions, batch, batch, str(device))
        self._runner = StepRunner(Decoder(model, dtype), self._pool, batch, with_graph=with_graph)
        self._noise = np.zeros((batch, model.config.n_heads, 2 * model.config.head_dim), dtype=np.float32)
        self.batch = batch
        self._is_filtered = False
        self.restart(0)

    def restart(self, position: int) -> None:
        """Reset every stream to before its first token, at `position`."""
        # Of the two rows of a slot, one is read and the other written.
        self._sources, self._targets = np.arange(2 * self.batch).reshape(-1, 2).T
        for part in self._pool.slots:
            part[:, : 2 * self.batch] = part[:, self._pool.initial_row, None]
        self._tokens, self._positions = np.ones(self.batch, dtype=np.int64), np.full(self.batch, position)

    def draw(self, choice: Choice) -> list[DrawnToken]:
        """Sample one token of every stream as the server does. The next call reads it."""
        draws = Draws([choice] * self.batch, np.float32(1))
        self._is_filtered = draws.are_filtered
        drawn, _ = self._runner.draw(*self._rows(), self._noise, draws)
        self._turn(np.array([row.token for row in drawn]))
        return drawn

    def replay(self) -> None:
        """Repeat the last step on the device alone."""
        self._runner.step(is_filtered=self._is_filtered)

    def read(self, tokens: Tensor, position: int) -> Tensor:
        """Return logits minus their mean `[batch, n, V]` after each token `[batch, n]` of a text from `position` on."""
        self.restart(position)
        found = []
        for token in tokens.unbind(1):
            self._tokens = token.numpy()
            found.append(centred(torch.from_numpy(self._runner.run(*self._rows(), self._noise).logits.copy())))
            self._turn(self._tokens)
        return torch.stack(found, 1)

    def _rows(self) -> tuple[Rows, Rows, Rows, Rows]:
        return self._tokens, self._positions, self._sources, self._targets

    def _turn(self, tokens: Rows) -> None:
        self._tokens, self._positions = tokens, self._positions + 1
        self._sources, self._targets = self._targets, self._sources


def centred(logits: Tensor) -> Tensor:
    """Subtract the mean, which softmax ignores and which would hide an error."""
    return logits - logits.mean(-1, keepdim=True)


@torch.no_grad()
def read_by_model(model: LanguageModel, tokens: Tensor, position: int, *, is_autocast: bool = False) -> Tensor:
    """Return the result of `ServedSteps.read` computed by the model."""
    state = model.init_state(tokens.shape[0])
    state = SlotState(state.means, state.precisions, state.position + position)
    found = []
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=is_autocast):
        for token in tokens.unbind(1):
            output, state = model.step(token, state)
            found.append(centred(output.logits.float()))
    return torch.stack(found, 1)


def check_decoding(model: LanguageModel, steps: ServedSteps) -> dict[str, float]:
    """Return relative errors of the logits at both positions."""
    on_cpu = copy.deepcopy(model).cpu()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (steps.batch, CHECKED_TOKENS), generator=generator)
    errors: dict[str, float] = {}
    for position in POSITIONS:
        exact = {f"at {position}": read_by_model(on_cpu, tokens, position)}
        eager = {f"at {position}": read_by_model(on_cpu, tokens, position, is_autocast=True)}
        truth = Truth(exact, allowances(exact, eager, torch.bfloat16), None)
        errors |= truth.check("decoding", {f"at {position}": steps.read(tokens, position)})
    return errors


Maker = Callable[[int], ServedSteps]


def measure_decoding(
    make: Maker, timer: Timer, clock: Timer, *, batches: Sequence[int] = BATCHES
) -> tuple[dict[str, Any], list[Bar]]:
    """Return rows by position, by batch and by kernel, and the bars.

    Args:
        make: Creates the streams of a batch.
        timer: Times a replay on the device.
        clock: Times a call of the server on the host.
    """
    positions, flatness = _by_position(make, timer)
    rows: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for batch in tqdm(batches, desc="batch sizes"):
        try:
            steps = make(batch)
        except torch.OutOfMemoryError:
            rows.append({"batch": batch, "failed": "the GPU's memory does not hold it"})
            continue
        rows += [_of_choice(steps, name, timer, clock) for name in CHOICES]
        if batch in PROFILED:
            kernels += [{"batch": batch, **row} for row in kernel_rows(steps.replay)]
        del steps
    bars = [bar for name in CHOICES for bar in _bars_of(name, rows)]
    bars.append(Bar(f"step at position {POSITIONS[1]:,} / at {POSITIONS[0]}", FLATNESS_BAR, flatness))
    return {"positions": positions, "batches": rows, "kernels": kernels}, bars


def _bars_of(name: str, rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return bars of the batches with one way of sampling."""
    own = [row for row in rows if row.get("choice") == name]
    alone = next(row for row in own if row["batch"] == 1)
    best = max(row["tokens_per_second"] for row in own)
    return [
        Bar(f"µs per token at batch 1, {name}", MICROSECONDS_BAR, 1e3 * alone["p50_ms"]),
        Bar(f"tokens per second at the best batch, {name}", TOKENS_BAR, best, is_minimum=True),
    ]


def _of_choice(steps: ServedSteps, name: str, timer: Timer, clock: Timer) -> dict[str, Any]:
    """Measure a batch with one way of sampling: the graph alone, and the whole call."""
    batch, choice = steps.batch, CHOICES[name]
    steps.draw(choice)
    graph = quantiles(interleaved({name: steps.replay}, timer, rounds=ROUNDS)[name])
    served = interleaved({name: lambda: steps.draw(choice)}, clock, rounds=SERVED_ROUNDS)
    whole = quantiles(served[name])
    return {
        "batch": batch, "choice": name, **graph, "tokens_per_second": round(1e3 * batch / graph["p50_ms"]),
        "served": {**whole, "tokens_per_second": round(1e3 * batch / whole["p50_ms"])},
    }  # fmt: skip


def _by_position(make: Maker, timer: Timer) -> tuple[list[dict[str, Any]], float]:
    """Measure batch 1 early and late in a stream, and their ratio."""
    cases = {}
    for position in POSITIONS:
        steps = make(1)
        steps.restart(position)
        steps.draw(CHOICES[DRAWN])
        cases[str(position)] = steps.replay
    samples = interleaved(cases, timer, rounds=ROUNDS, label="positions")
    rows = [{"position": position, **quantiles(samples[str(position)])} for position in POSITIONS]
    near, far = (samples[str(position)] for position in POSITIONS)
    return rows, ratio(far, near)


def paper_model(device: torch.device) -> LanguageModel:
    """Return the model of CONFIG with fixed random weights."""
    torch.manual_seed(0)
    return LanguageModel(LanguageRun.from_file(find_config(CONFIG)).model).to(device)


def check_paper() -> dict[str, Any]:
    """Return errors of the paper-size model, without timing."""
    model = paper_model(require_gpu())
    return {"errors": check_decoding(model, ServedSteps(model, CHECKED_BATCH, torch.bfloat16, with_graph=True))}


def measure_paper() -> dict[str, Any]:
    """Return times of the paper-size model, whose step was checked."""
    device = require_gpu()
    model = paper_model(device)
    timer = EventTimer(repeats=STEPS_PER_SAMPLE, is_flushing=False)
    found, bars = measure_decoding(
        lambda batch: ServedSteps(model, batch, torch.bfloat16, with_graph=True), timer, host_clock
    )
    return {
        "config": CONFIG,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": "random, matrices bfloat16",
        **origin("rfa bench decode"),
        "hardware": gpu_hardware(device),
        "steps_per_sample": STEPS_PER_SAMPLE,
        **found,
        "bars": [bar.to_dict() for bar in bars],
    }


def write_decode_gpu(out: Path) -> dict[str, Any]:
    """Check, measure, and write a JSON file."""
    document = check_paper() | measure_paper()
    write_result(out, document)
    return document
