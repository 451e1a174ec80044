"""The network of a series bundle in torch, for long pieces of a series on servers with a GPU.

Everything is float32, matrices too: what it gives is what the compiled network gives, within the rounding of other
orders of sums, and the golden outputs hold it to the bundle's own tolerance. A chunk of rows is one call: tokens and
asks go there, quantiles and the state of the columns come back. One call is on its way at a time, whatever the lanes of
a request: it takes a tenth of what the processor does for its rows, and so one chunk's memory is all that is needed.

    call(T) = LAUNCHES · LAUNCH_SECONDS + L T/16 SCAN_SECONDS + T (F / DEVICE_FLOPS + bytes / COPY_BYTES)
    host(T) = T F / HOST_FLOPS                              F: floating-point operations of a token and what it is asked

The least tokens that go there are those for which host(T) is MARGIN times call(T): the rates are low ones, of the
slowest GPU that the kernels run on, for nothing here was measured on a GPU.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from rfa.model.checkpoint import build_model
from rfa.model.recurrence.triton import MAX_SLOTS, MAX_WIDTH
from rfa.model.series.network import SeriesNetwork
from rfa.model.series.patches import PatchNetwork, PatchTokens, whole_patches
from rfa.runtime.bundle.bundle import Bundle, check_golden
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.golden import Named
from rfa.runtime.series.chunk import TOKENS, Chunk
from rfa.runtime.series.config import FEATURES, LEVELS, PATCH, SeriesConfig
from rfa.runtime.series.decoder_numba import QUERY_FEATURES
from rfa.runtime.series.device import ColumnStates
from rfa.runtime.series.session import NETWORK, QUANTILES

Array = np.ndarray
logger = logging.getLogger("rfa.engine")
# Of the compiled network on a core: 2.5e6 operations in 29 us of a row, measured beside rows without a network.
HOST_FLOPS: Final = 85e9
# Of products of float32 matrices without tensor cores, a quarter of what the slowest GPU (8e12) has at its best.
DEVICE_FLOPS: Final = 2e12
# Operators of torch of a layer and around them, at most, and what one costs the host and the queue.
LAYER_LAUNCHES, OTHER_LAUNCHES, LAUNCH_SECONDS = 60, 60, 8e-6
# Of one token of the scan of the slots, which waits for the one before: twice what gpu.md estimates.
SCAN_SECONDS: Final = 2e-6
# A second, from memory that is not pinned.
COPY_BYTES: Final = 4e9
# How many times faster it must be there by this estimate: for what waits beside it, and what the estimate leaves out.
MARGIN: Final = 2.0
# Asks of a plain row.
USUAL_ASKS: Final = 3
# Columns that a chunk may have, and asks of one row of so many at the longest horizon.
MOST_COLUMNS, MOST_ASKS = 64, 64 * (3 + 2 * 256)
# Of the device's memory, for the libraries.
WORKSPACE_BYTES: Final = 128 << 20


class TorchSeries:
    """See `SeriesDevice`.

    Args:
        bundle: of kind "series".
        device: "cuda", or "cpu" for tests, in Triton's interpreter.

    Raises:
        UnsupportedError: the GPU's memory does not hold it.
    """

    def __init__(self, bundle: Bundle, device: str) -> None:
        self._bundle, self.name = bundle, device
        config = SeriesConfig.from_dict(bundle.config)
        self.least_tokens = least_tokens(config)
        if torch.device(device).type == "cuda":
            check_memory(bundle, config)
            # Held from here on: torch keeps what was given back, and the largest chunk finds it.
            torch.empty(bytes_needed(config), dtype=torch.uint8, device=device)
        weights = {name: torch.tensor(array) for name, array in bundle.weights().items()}
        network: SeriesNetwork = build_model(bundle.manifest.family, bundle.manifest.config, weights).to(device)
        self.network = PatchNetwork(network)
        self._lock = threading.Lock()
        self._has_run_out = False

    def run(self, chunk: Chunk, tokens: int, queries: int, columns: ColumnStates) -> bool:
        """See `SeriesDevice`."""
        with self._lock:
            try:
                self._fill(chunk, tokens, queries, columns)
            except torch.OutOfMemoryError:
                self._tell_of_memory()
                return False
        kept = chunk.states[chunk.last_token >= 0], chunk.means, chunk.precisions
        return all(bool(np.isfinite(part).all()) for part in kept)

    @torch.no_grad()
    def _fill(self, chunk: Chunk, tokens: int, queries: int, columns: ColumnStates) -> None:
        arrays = chunk.tokens
        laid = self._laid(
            arrays.features[:tokens], arrays.ends[:tokens], arrays.lags[:tokens], arrays.column[:tokens],
            arrays.is_whole[:tokens], len(columns.hidden),
        )  # fmt: skip
        means, precisions = self._there(columns.means), self._there(columns.precisions)
        if tokens:
            states, means, precisions = self.network.states(laid, means, precisions)
            # A column without a token is not looked at there.
            last = self._there(np.maximum(chunk.last_token, 0))
            chunk.states[:] = states[last].cpu().numpy()
        else:
            states = self._there(np.empty((0, columns.hidden.shape[1]), np.float32))
        known = torch.cat([states, self._there(columns.hidden)])
        of = chunk.queries.source[:queries]
        # The state that a column had before lies behind those of the tokens.
        places = self._there(np.where(of >= 0, of, tokens - 1 - of))
        told = self.network.quantiles(known, places, self._there(chunk.queries.features[:queries]))
        chunk.quantiles[:queries] = told.cpu().numpy()
        chunk.means[:], chunk.precisions[:] = means.cpu().numpy(), precisions.cpu().numpy()

    def _tell_of_memory(self) -> None:
        """Once: where it runs out, it does so of many pieces."""
        if not self._has_run_out:
            self._has_run_out = True
            logger.warning(
                "bundle %r: the GPU's memory ran out in a long piece of a series, and the CPU computes such pieces in "
                "its place, more slowly; this is said once: lower RFA_MAX_RUNNING or RFA_PROCESSES, or end what else "
                "uses the GPU",
                self._bundle.name,
            )

    def hold_to_golden(self) -> int:
        """See `SeriesDevice`."""
        return check_golden(self._bundle, {NETWORK: NetworkSession(self)})

    def answers(self, tokens: Array, lags: Array, asked: Array) -> Array:
        """`SeriesSession.run`: quantiles `[N, K, Q]` of a stream of its own, from the first token on."""
        patch = int(lags.max())
        is_whole = lags == patch
        begun = np.cumsum(is_whole) - is_whole
        with self._lock, torch.no_grad():
            laid = self._laid(tokens, begun * patch + lags, lags, np.zeros(len(tokens), np.int64), is_whole, 1)
            states, *_ = self.network.states(laid, *self.network.initial)
            of = self._there(np.repeat(np.arange(len(tokens)), asked.shape[1]))
            told = self.network.quantiles(states, of, self._there(asked.reshape(-1, asked.shape[2])))
        return told.reshape(*asked.shape[:2], -1).cpu().numpy()

    def _there(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.name)

    def _laid(
        self, numbers: Array, ends: Array, lags: Array, column: Array, is_whole: Array, columns: int
    ) -> PatchTokens:
        before, whole, counts = whole_patches(column, is_whole, columns)
        parts = numbers, ends, lags, column, before, whole, counts
        return PatchTokens(*map(self._there, parts))


class NetworkSession:
    """See `rfa.runtime.bundle.golden.Session`."""

    def __init__(self, series: TorchSeries) -> None:
        self._series = series

    def get_outputs(self) -> list[Named]:
        """What `run` gives."""
        return [Named(QUANTILES)]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """See `SeriesSession`."""
        return [self._series.answers(inputs["tokens"], inputs["lags"], inputs["asked"])]


def flops(config: SeriesConfig) -> tuple[float, float]:
    """Floating-point operations of a token and of an ask, two for each number of a matrix."""
    d, heads, width = config.d_model, config.n_heads, 2 * config.head_dim
    slots = heads * config.n_slots
    layer = d * (3 * heads * width + 2 * slots) + heads * width * d + 2 * config.mlp_ratio * d * d
    layer += 8 * slots * width  # a step of the slots
    embedding = (FEATURES + d) * config.embedding_width
    token = embedding + config.n_layers * layer + d * config.head_width
    ask = config.head_width * (QUERY_FEATURES + config.head_inner) + config.head_inner * len(LEVELS)
    return 2.0 * token, 2.0 * ask


def host_seconds(config: SeriesConfig, tokens: int) -> float:
    """Of a core, for so many tokens of plain rows."""
    token, ask = flops(config)
    return tokens * (token + USUAL_ASKS * ask) / HOST_FLOPS


def device_seconds(config: SeriesConfig, tokens: int) -> float:
    """Of a call of the device for them."""
    token, ask = flops(config)
    launches = LAYER_LAUNCHES * config.n_layers + OTHER_LAUNCHES
    sent = 4 * (FEATURES + 8 + USUAL_ASKS * (QUERY_FEATURES + 2 + len(LEVELS)))
    each = (token + USUAL_ASKS * ask) / DEVICE_FLOPS + sent / COPY_BYTES
    return launches * LAUNCH_SECONDS + config.n_layers * tokens / PATCH * SCAN_SECONDS + tokens * each


def least_tokens(config: SeriesConfig) -> int:
    """From which on a piece goes there: the first number of whole patches that pays, by the module's estimate; beyond a
    chunk where none does."""
    counts = range(PATCH, TOKENS + 1, PATCH)
    pays = (count for count in counts if host_seconds(config, count) >= MARGIN * device_seconds(config, count))
    return next(pays, TOKENS + 1)


def bytes_needed(config: SeriesConfig) -> int:
    """Of memory, of the largest chunk: what lies there at the same time, of tokens in a layer or of asks in the head,
    and the slots of columns."""
    d, heads, width = config.d_model, config.n_heads, 2 * config.head_dim
    slots = heads * config.n_slots
    state = slots * (2 * width + 1)
    tokens, asks = TOKENS + MOST_COLUMNS * (PATCH + 1), MOST_ASKS
    # Slots that a token is read from: gathered, moved by its lag, after its step, and those after every patch.
    of_layer = 4 * state + 12 * heads * width + 8 * slots + FEATURES + 6 * d + 2 * config.mlp_ratio * d
    of_head = tokens * (2 * d + 2 * config.head_width)
    of_head += asks * (QUERY_FEATURES + 3 * config.head_width + 2 * config.head_inner + 6 * len(LEVELS))
    return 4 * (max(tokens * of_layer, of_head) + 6 * MOST_COLUMNS * config.n_layers * state)


def check_memory(bundle: Bundle, config: SeriesConfig) -> None:
    """Refuse what the device has no memory for, before any of it is taken.

    Raises:
        UnsupportedError: with what to do about it.
    """
    weights = sum(array.nbytes for array in bundle.weights().values())
    needed, free = weights + bytes_needed(config) + WORKSPACE_BYTES, torch.cuda.mem_get_info()[0]
    if needed > free:
        raise UnsupportedError(
            f"bundle {bundle.name!r} needs {needed >> 20:,} MiB of GPU memory for long series, and "
            f"{free >> 20:,} MiB are free: lower RFA_PROCESSES, end what else uses the GPU, or serve with "
            "RFA_DEVICE=cpu"
        )


def refusal(bundle: Bundle, device: str) -> str | None:
    """Why long pieces of a series are not worth a device, or cannot go there; None where they go."""
    config = SeriesConfig.from_dict(bundle.config)
    if least_tokens(config) > TOKENS:
        return "its network is so small that the way to the GPU takes longer than its numbers"
    if config.n_slots > MAX_SLOTS or 2 * config.head_dim > MAX_WIDTH:
        return f"the kernels hold up to {MAX_SLOTS} slots and keys of up to {MAX_WIDTH} reals"
    if torch.device(device).type == "cuda" and not _has_compiler():
        return "Triton finds no C compiler for the kernels of its slots"
    return None


def _has_compiler() -> bool:
    """As Triton looks for one."""
    return bool(os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc"))
