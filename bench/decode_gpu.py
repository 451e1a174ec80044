"""Decoding on a GPU: the paper-size model, one CUDA graph a step with everything in it, state in place.

A step is all layers, the vocabulary head and the draw of the next token, which the next step reads; the host only
replays the graph. Before any clock starts, the graph is given the tokens of a text and must give the distributions of
the model itself (`LanguageModel.step` on a CPU, by the tests' rule of tolerance), early and late in a stream. A
state has one size, so a late stream is one that begins at its position.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from rfa.bench.gpu import gpu_hardware, require_gpu
from rfa.bench.kernel_truth import Truth, allowances
from rfa.bench.paired import Bar, EventTimer, Timer, interleaved, quantiles, ratio
from rfa.measured import origin, write_result
from rfa.model.decoder import Decoder, SlotPool
from rfa.model.language import LanguageModel, SlotState
from rfa.training.language import LanguageRun, find_config

CONFIG = "paper"
BATCHES = (1, 8, 64, 256, 1024, 4096)
POSITIONS = (10, 1_000_000)
CHECKED_BATCH, CHECKED_TOKENS = 2, 8
ROUNDS = 20
STEPS_PER_SAMPLE = 50
TEMPERATURE = 0.8
WARM_UP = 3
MICROSECONDS_BAR, TOKENS_BAR, FLATNESS_BAR = 100.0, 1e6, 1.05


class Decoding:
    """`batch` streams of a model, from their first token.

    Args:
        model: float32, on the device to decode on.
        dtype: of the matrices.
        with_graph: capture a step and replay it; False, as on a CPU: run it.
    """

    logits: Tensor  # [batch, V], of the last step

    def __init__(self, model: LanguageModel, batch: int, dtype: torch.dtype, *, with_graph: bool) -> None:
        device = model.embedding.weight.device
        self.decoder = Decoder(model, dtype)
        state = model.init_state(batch)
        self.initial = SlotPool(*(part.detach().transpose(0, 1).contiguous() for part in state[:2]))
        self.pool = SlotPool(*(part.clone() for part in self.initial))
        self.tokens, self.positions = torch.ones(2, batch, dtype=torch.int64, device=device).unbind()
        self.rows = torch.arange(batch, device=device)
        self.noise = torch.zeros(batch, model.config.n_heads, 2 * model.config.head_dim, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if with_graph:
            self._capture()
        self.restart(0)

    @torch.no_grad()
    def _step(self) -> None:
        output = self.decoder.step(self.tokens, self.positions, self.noise, self.pool, self.rows)
        self.logits = output.logits
        # The largest of p / Exp(1) is a draw from p.
        race = torch.empty_like(self.logits).exponential_().log_()
        self.tokens.copy_(torch.sub(self.logits, race, alpha=TEMPERATURE).argmax(-1))
        self.positions.add_(1)

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def restart(self, position: int) -> None:
        """Every stream as before its first token, which will be at `position`."""
        for part, initial in zip(self.pool, self.initial, strict=True):
            part.copy_(initial)
        self.tokens.fill_(1)
        self.positions.fill_(position)

    def step(self) -> None:
        """One token of every stream."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def read(self, tokens: Tensor, position: int) -> Tensor:
        """Logits less their mean `[batch, n, V]` after each token `[batch, n]` of a text from `position` on."""
        self.restart(position)
        found = []
        for token in tokens.unbind(1):
            self.tokens.copy_(token)
            self.step()
            found.append(centred(self.logits))
        return torch.stack(found, 1)


def centred(logits: Tensor) -> Tensor:
    """Less what a softmax does not see, and what an error would hide in."""
    return logits - logits.mean(-1, keepdim=True)


@torch.no_grad()
def read_by_model(model: LanguageModel, tokens: Tensor, position: int, *, is_autocast: bool = False) -> Tensor:
    """The same by the model itself."""
    state = model.init_state(tokens.shape[0])
    state = SlotState(state.means, state.precisions, state.position + position)
    found = []
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=is_autocast):
        for token in tokens.unbind(1):
            output, state = model.step(token, state)
            found.append(centred(output.logits.float()))
    return torch.stack(found, 1)


def check_decoding(model: LanguageModel, decoding: Decoding) -> dict[str, float]:
    """Relative errors of the logits at both positions.

    Raises:
        WrongResultError: larger than twice those of the model in bfloat16, plus one rounding.
    """
    on_cpu = copy.deepcopy(model).cpu()
    batch = decoding.tokens.shape[0]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, CHECKED_TOKENS), generator=generator)
    errors: dict[str, float] = {}
    for position in POSITIONS:
        exact = {f"at {position}": read_by_model(on_cpu, tokens, position)}
        eager = {f"at {position}": read_by_model(on_cpu, tokens, position, is_autocast=True)}
        truth = Truth(exact, allowances(exact, eager, torch.bfloat16), None)
        found = decoding.read(tokens.to(decoding.tokens.device), position).cpu()
        errors |= truth.check("decoding", {f"at {position}": found})
    return errors


def run_decode_gpu() -> dict[str, Any]:
    """Measure the paper-size model; returns the document that `write_decode_gpu` stores.

    Raises:
        NoGpuError: there is no GPU.
        WrongResultError: the graph does not compute the model.
    """
    device = require_gpu()
    torch.manual_seed(0)
    model = LanguageModel(LanguageRun.from_file(find_config(CONFIG)).model).to(device)
    checked = Decoding(model, CHECKED_BATCH, torch.bfloat16, with_graph=True)
    errors = check_decoding(model, checked)
    del checked
    timer = EventTimer(repeats=STEPS_PER_SAMPLE, is_flushing=False)
    positions, flatness = _by_position(model, timer)
    batches = _by_batch(model, timer)
    best = max(row["tokens_per_second"] for row in batches)
    alone = next(row for row in batches if row["batch"] == 1)
    bars = [
        Bar("µs per token at batch 1", MICROSECONDS_BAR, 1e3 * alone["p50_ms"]),
        Bar("tokens per second at the best batch", TOKENS_BAR, best, is_minimum=True),
        Bar(f"step at position {POSITIONS[1]:,} / at {POSITIONS[0]}", FLATNESS_BAR, flatness),
    ]
    return {
        "config": CONFIG,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": "random, matrices bfloat16",
        **origin("rfa bench decode"),
        "hardware": gpu_hardware(device),
        "steps_per_sample": STEPS_PER_SAMPLE,
        "rounds": ROUNDS,
        "errors": errors,
        "positions": positions,
        "batches": batches,
        "bars": [bar.to_dict() for bar in bars],
    }


def _by_position(model: LanguageModel, timer: Timer) -> tuple[list[dict[str, Any]], float]:
    """Batch 1 early and late in a stream, and late over early."""
    cases = {}
    for position in POSITIONS:
        decoding = Decoding(model, 1, torch.bfloat16, with_graph=True)
        decoding.restart(position)
        cases[str(position)] = decoding.step
    samples = interleaved(cases, timer, rounds=ROUNDS, label="positions")
    rows = [{"position": position, **quantiles(samples[str(position)])} for position in POSITIONS]
    near, far = (samples[str(position)] for position in POSITIONS)
    return rows, ratio(far, near)


def _by_batch(model: LanguageModel, timer: Timer) -> list[dict[str, Any]]:
    rows = []
    for batch in tqdm(BATCHES, desc="batch sizes"):
        decoding = Decoding(model, batch, torch.bfloat16, with_graph=True)
        summary = quantiles(interleaved({"step": decoding.step}, timer, rounds=ROUNDS)["step"])
        rows.append({"batch": batch, **summary, "tokens_per_second": round(1e3 * batch / summary["p50_ms"])})
    return rows


def write_decode_gpu(out: Path) -> dict[str, Any]:
    """`run_decode_gpu` to a JSON file."""
    document = run_decode_gpu()
    write_result(out, document)
    return document
