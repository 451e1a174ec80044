"""A language bundle in torch, for servers with a GPU: the same functions as `language.LanguageRuntime` gives.

Matrices are bfloat16 on a GPU and float32 on a CPU, where the tests run; states are float32 on both, and their bytes
are those of the ONNX runtime, so that a text may go on on another kind of machine. A step is one CUDA graph per batch
size; prompts are read with the scan, a piece at a time. In attention mode streams go one by one, as on ONNX Runtime.

Only the GPU runtime imports torch and the model, and it is imported only when the server runs on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from rfa.export.bundle import Bundle
from rfa.model.checkpoint import build_model
from rfa.model.decoder import Decoder
from rfa.model.language import StepOutput as Stepped
from rfa.service.engine.text.prefill import PREFILL_TOKENS
from rfa.service.errors import Overloaded
from rfa.service.runtime.batching import Run, agreeing_sizes
from rfa.service.runtime.language import (
    CacheAdvance,
    CacheContext,
    Language,
    SlotContext,
    StepOutput,
    TurnAdvance,
)
from rfa.service.runtime.pool import StatePool
from rfa.service.runtime.torch_pool import DevicePool, Rows
from rfa.service.runtime.torch_step import StepRunner
from rfa.service.settings import ConfigurationError

Array = NDArray[np.float32]
# Of the GPU's memory, beside weights and slots: the libraries' workspaces, and the activations of a piece of a prompt.
WORKSPACE_BYTES = 512 << 20
# Kernels are compiled anew for a prompt of one token, of a multiple of 16 and of any other length.
WARM_LENGTHS = (1, 3, PREFILL_TOKENS)


class DeviceCache(CacheContext):
    """Attention context of one stream, of tensors on the device."""

    @staticmethod
    def grown(rows: torch.Tensor, capacity: int) -> torch.Tensor:
        """See `CacheContext`."""
        with _bounded_memory():
            larger = torch.zeros((*rows.shape[:2], capacity, rows.shape[3]), dtype=rows.dtype, device=rows.device)
            larger[:, :, : rows.shape[2]] = rows
        return larger


class TorchLanguageRuntime(Language):
    """A language bundle on a device of torch.

    Args:
        bundle: of kind "lm".
        device: "cuda", or "cpu" for tests: float32, no graphs.
        streams: recurrent contexts that exist at the same time, at most.
        max_rows: rows of a step, at most.
        dtype: of the matrices; None = bfloat16 on a GPU, float32 elsewhere.

    Raises:
        ValueError: when the bundle's parts do not fit each other.
        ConfigurationError: when the GPU's memory does not hold it, or its model has a window.
    """

    runtime = "torch"

    def __init__(
        self, bundle: Bundle, *, device: str, streams: int = 64, max_rows: int = 24, dtype: torch.dtype | None = None
    ) -> None:
        if bundle.language.window:
            raise ConfigurationError(
                f"RFA_DEVICE=cuda: bundle {bundle.name!r} has a window of {bundle.language.window} exact tokens, which "
                "are kept on a CPU only: serve it with RFA_DEVICE=cpu"
            )
        super().__init__(bundle)
        on_gpu = torch.device(device).type == "cuda"
        dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.rounding = _rounding(dtype, layers=self._layers)
        if on_gpu:
            self._check_memory(bundle, streams, max_rows)
        with _sufficient_memory(bundle.name):
            self._decoder = _decoder(bundle, device, dtype)
            self.pool = StatePool({}, streams)
            if "recurrent" in self.modes:
                self._hold_slots(streams, max_rows, device, with_graphs=on_gpu)
        self._warm_up()

    def _hold_slots(self, streams: int, max_rows: int, device: str, *, with_graphs: bool) -> None:
        """What recurrent streams run on."""
        self.pool = self._pool = DevicePool(
            self.initial["means"], self.initial["precisions"], streams, max_rows, device
        )
        self._lock = threading.Lock()  # of the runners
        self._runners = {
            size: StepRunner(self._decoder, self._pool, size, with_graph=with_graphs)
            for size in _candidate_sizes(max_rows)
        }
        self.batch_sizes = agreeing_sizes(self._probe(max_rows), list(self._runners))
        self._runners = {size: self._runners[size] for size in self.batch_sizes.sizes}

    def _empty_cache(self, shape: tuple[int, ...]) -> CacheContext:
        empty = torch.zeros(shape, device=self._decoder.device)
        return DeviceCache(empty, empty.clone())

    def _prefill_slots(self, context: SlotContext, tokens: Sequence[int]) -> TurnAdvance:
        return self.read_prompt(context, tokens)[1]

    @torch.no_grad()
    def read_prompt(self, context: SlotContext, tokens: Sequence[int]) -> tuple[StepOutput, TurnAdvance]:
        """A piece of a prompt in a recurrent stream; the output is that of its last token."""
        slots = self._pool.slots
        source, target = (int(rows([context.seat])[0]) for rows in (self._pool.current, self._pool.spare))
        with _bounded_memory():
            output, means, precisions = self._decoder.prefill(
                self._row(tokens), context.position, slots.means[:, source], slots.precisions[:, source]
            )
        slots.means[:, target] = means
        slots.precisions[:, target] = precisions
        return _on_host(output), TurnAdvance(context, self._pool, _all_finite(means, precisions), len(tokens))

    @torch.no_grad()
    def extend(self, context: CacheContext, tokens: Sequence[int], noise: Array) -> tuple[StepOutput, CacheAdvance]:
        """See `Language`."""
        valid = context.position
        with _bounded_memory():
            output, keys, values = self._decoder.extend(
                self._row(tokens),
                valid,
                context.keys[:, :, :valid],
                context.values[:, :, :valid],
                torch.tensor(noise, device=self._decoder.device),
            )
        return _on_host(output), CacheAdvance(context, keys, values, _all_finite(keys, values))

    def _row(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self._decoder.device)

    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[TurnAdvance]]:
        seats = [context.seat for context in contexts]
        positions = np.asarray([context.position for context in contexts], dtype=np.int64)
        with self._lock:
            result = self._runners[self.batch_sizes.padded(len(seats))].run(
                np.asarray(tokens, dtype=np.int64),
                positions,
                self._pool.current(seats),
                self._pool.spare(seats),
                noise,
            )
        advances = [
            TurnAdvance(context, self._pool, bool(finite), 1)
            for context, finite in zip(contexts, result.is_finite, strict=True)
        ]
        return StepOutput(result.logits, result.log_precision, result.latent), advances

    def _warm_up(self) -> None:
        """Compile now what the first prompts would wait for."""
        context = self.start(self.default_mode)
        for length in WARM_LENGTHS:
            self.prefill(context, [0] * length)
        context.release()

    def _probe(self, rows: int) -> Run:
        """The step on rows that all differ, for `agreeing_sizes`, in the rows of the pool that pad batches."""
        tokens, positions, noise, state = self.example(rows)
        slots, device = self._pool.slots, self._decoder.device
        start = torch.from_numpy(state["means"].swapaxes(0, 1).copy()).to(device)  # [L, rows, H, S, 4D]

        def run(chosen: Rows) -> list[Array]:
            places = self._pool.padding_rows[: len(chosen)]
            slots.means[:, places] = start[:, chosen]
            slots.precisions[:, places] = slots.precisions[:, self._pool.initial_row, None]
            result = self._runners[len(chosen)].run(tokens[chosen], positions[chosen], places, places, noise[chosen])
            after = [part[:, places].transpose(0, 1).cpu().numpy().copy() for part in slots]
            return [result.logits, result.log_precision, result.latent, *after]

        return run

    def _check_memory(self, bundle: Bundle, streams: int, max_rows: int) -> None:
        weights = sum(array.nbytes for array in bundle.weights().values())
        slots = DevicePool.bytes_needed(self.context_bytes, streams, max_rows)
        needed, free = weights + slots + WORKSPACE_BYTES, torch.cuda.mem_get_info()[0]
        if needed > free:
            raise ConfigurationError(
                f"RFA_DEVICE=cuda: bundle {self.name!r} needs {_mib(needed)} of GPU memory, {_mib(slots)} of it for "
                f"the states of {streams} streams, and {_mib(free)} are free: lower RFA_MAX_RUNNING or RFA_PROCESSES, "
                "end what else uses the GPU, or serve with RFA_DEVICE=cpu"
            )


def _decoder(bundle: Bundle, device: str, dtype: torch.dtype) -> Decoder:
    """From the bytes that were checked when the bundle was opened."""
    manifest = bundle.manifest
    weights = {name: torch.tensor(array) for name, array in bundle.weights().items()}
    return Decoder(build_model(manifest.family, manifest.config, weights).to(device), dtype)


def _rounding(dtype: torch.dtype, layers: int) -> float:
    """The most that rounded matrix factors can change a number, relative to its kind; 0 where nothing is rounded.

    Half a unit of the last place for each factor of the four products of a layer and of the head, all of one sign.
    """
    return 0.0 if dtype == torch.float32 else 2 * (4 * layers + 1) * torch.finfo(dtype).eps / 2


def _candidate_sizes(max_rows: int) -> list[int]:
    """Powers of two and the largest: a graph each, of which those are kept that agree."""
    return sorted({*(1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows), max_rows})


def _on_host(output: Stepped) -> StepOutput:
    return StepOutput(*(part.cpu().numpy() for part in output))


def _all_finite(*parts: torch.Tensor) -> bool:
    return all(bool(part.isfinite().all()) for part in parts)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """A request for which the GPU's memory does not suffice at this moment may come again."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise Overloaded("The GPU's memory is full at this moment.", retry_after_seconds=1) from None


@contextmanager
def _sufficient_memory(name: str) -> Iterator[None]:
    """Where other processes took the memory after it was looked at."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise ConfigurationError(
            f"RFA_DEVICE=cuda: the GPU's memory ran out while bundle {name!r} was loaded: lower RFA_MAX_RUNNING or "
            "RFA_PROCESSES, end what else uses the GPU, or serve with RFA_DEVICE=cpu"
        ) from None


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
