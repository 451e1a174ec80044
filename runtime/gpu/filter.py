"""The network of a series bundle in torch, for long parts of a series on servers with a GPU.

All numbers are float32. Outputs equal those of the compiled network up to the order of sums, and match the bundle's
golden outputs. One call processes a chunk of rows: tokens and queries are sent to the device, and quantiles and the
columns' state are returned. Only one call runs at a time, because it takes a tenth of the time that the host needs for
its rows, and then only one chunk needs memory.

    call(T) = LAUNCHES · LAUNCH_SECONDS + L T/16 SCAN_SECONDS + T (F / DEVICE_FLOPS + bytes / COPY_BYTES)
    host(T) = T F / HOST_FLOPS                              F: floating-point operations of a token and its queries

The device is used if host(T) is at least MARGIN times call(T). The rates are conservative estimates for the slowest
supported GPU, not measurements.
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
from rfa.runtime.golden import Named
from rfa.runtime.gpu.memory import check_free_memory
from rfa.runtime.series.chunk import TOKENS, Chunk
from rfa.runtime.series.config import FEATURES, LEVELS, PATCH, SeriesConfig
from rfa.runtime.series.decoder_numba import QUERY_FEATURES
from rfa.runtime.series.device import ColumnStates
from rfa.runtime.series.session import NETWORK, QUANTILES

Array = np.ndarray
logger = logging.getLogger("rfa.engine")
# Rate of the compiled network on one core: 2.5e6 operations per row in 29 us. Time that rows take without a network is
# not included.
HOST_FLOPS: Final = 85e9
# Float32 matrix products without tensor cores, a quarter of the slowest GPU's peak (8e12).
DEVICE_FLOPS: Final = 2e12
# Maximum number of torch operators per layer and around the layers, and the cost of one operator in seconds.
LAYER_LAUNCHES, OTHER_LAUNCHES, LAUNCH_SECONDS = 60, 60, 8e-6
# Time of one token of the slot scan, which is sequential. It is twice the estimate in gpu.md.
SCAN_SECONDS: Final = 2e-6
# Bytes per second that are copied from memory that is not pinned.
COPY_BYTES: Final = 4e9
# Minimum speed-up according to this estimate, which excludes waiting and other costs.
MARGIN: Final = 2.0
# Number of queries of a row without requested forecasts.
USUAL_ASKS: Final = 3
# Maximum number of columns per chunk, and of queries of a row with that many columns at the longest horizon.
MOST_COLUMNS, MOST_ASKS = 64, 64 * (3 + 2 * 256)
# Device memory of the libraries.
WORKSPACE_BYTES: Final = 128 << 20


class TorchSeries:
    """The series network in torch. See `SeriesDevice`.

    Args:
        bundle: Bundle of kind "series".
        device: "cuda", or "cpu" for tests in Triton's interpreter.

    Raises:
        UnsupportedError: If the GPU does not have enough memory.
    """

    def __init__(self, bundle: Bundle, device: str) -> None:
        self._bundle, self.name = bundle, device
        config = SeriesConfig.from_dict(bundle.config)
        self.least_tokens = least_tokens(config)
        if torch.device(device).type == "cuda":
            check_memory(bundle, config)
            # Reserve the memory of the largest chunk, which torch's cache retains.
            torch.empty(bytes_needed(config), dtype=torch.uint8, device=device)
        weights = {name: torch.tensor(array) for name, array in bundle.weights().items()}
        network: SeriesNetwork = build_model(bundle.manifest.family, bundle.manifest.config, weights).to(device)
        self.network = PatchNetwork(network)
        self._lock = threading.Lock()
        self._has_run_out = False

    def run(self, chunk: Chunk, tokens: int, queries: int, columns: ColumnStates) -> bool:
        with self._lock:
            try:
                self._fill(chunk, tokens, queries, columns)
            except torch.OutOfMemoryError:
                self._warn_of_memory()
                return False
        kept = chunk.states[chunk.last_token >= 0], chunk.means, chunk.precisions
        return all(bool(np.isfinite(part).all()) for part in kept)

    @torch.no_grad()
    def _fill(self, chunk: Chunk, tokens: int, queries: int, columns: ColumnStates) -> None:
        arrays = chunk.tokens
        layout = self._patch_tokens(
            arrays.features[:tokens], arrays.ends[:tokens], arrays.lags[:tokens], arrays.column[:tokens],
            arrays.is_whole[:tokens], len(columns.hidden),
        )  # fmt: skip
        means, precisions = self._send(columns.means), self._send(columns.precisions)
        if tokens:
            states, means, precisions = self.network.states(layout, means, precisions)
            # Columns without a token are ignored.
            last = self._send(np.maximum(chunk.last_token, 0))
            chunk.states[:] = states[last].cpu().numpy()
        else:
            states = self._send(np.empty((0, columns.hidden.shape[1]), np.float32))
        all_states = torch.cat([states, self._send(columns.hidden)])
        of = chunk.queries.source[:queries]
        # The columns' states before the chunk follow those of the tokens.
        indices = self._send(np.where(of >= 0, of, tokens - 1 - of))
        quantiles = self.network.quantiles(all_states, indices, self._send(chunk.queries.features[:queries]))
        chunk.quantiles[:queries] = quantiles.cpu().numpy()
        chunk.means[:], chunk.precisions[:] = means.cpu().numpy(), precisions.cpu().numpy()

    def _warn_of_memory(self) -> None:
        """Log once that long parts of several series may exhaust the memory if they are processed at the same time."""
        if not self._has_run_out:
            self._has_run_out = True
            logger.warning(
                "bundle %r: the GPU does not have enough memory for a long part of a series, so the CPU processes "
                "such parts, which is slower; lower RFA_MAX_RUNNING or RFA_PROCESSES, or stop other processes that "
                "use the GPU (logged once)",
                self._bundle.name,
            )

    def hold_to_golden(self) -> int:
        return check_golden(self._bundle, {NETWORK: NetworkSession(self)})

    def answers(self, tokens: Array, lags: Array, asked: Array) -> Array:
        """Return the quantiles `[N, K, Q]` of a new stream. See `SeriesSession.run`."""
        patch = int(lags.max())
        is_whole = lags == patch
        begun = np.cumsum(is_whole) - is_whole
        with self._lock, torch.no_grad():
            layout = self._patch_tokens(
                tokens, begun * patch + lags, lags, np.zeros(len(tokens), np.int64), is_whole, 1
            )
            states, *_ = self.network.states(layout, *self.network.initial)
            of = self._send(np.repeat(np.arange(len(tokens)), asked.shape[1]))
            quantiles = self.network.quantiles(states, of, self._send(asked.reshape(-1, asked.shape[2])))
        return quantiles.reshape(*asked.shape[:2], -1).cpu().numpy()

    def _send(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.name)

    def _patch_tokens(
        self, numbers: Array, ends: Array, lags: Array, column: Array, is_whole: Array, columns: int
    ) -> PatchTokens:
        before, whole, counts = whole_patches(column, is_whole, columns)
        parts = numbers, ends, lags, column, before, whole, counts
        return PatchTokens(*map(self._send, parts))


class NetworkSession:
    """The network in the interface of a session of `rfa.runtime.bundle.golden`."""

    def __init__(self, series: TorchSeries) -> None:
        self._series = series

    def get_outputs(self) -> list[Named]:
        """Return the names of the outputs of `run`."""
        return [Named(QUANTILES)]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        return [self._series.answers(inputs["tokens"], inputs["lags"], inputs["asked"])]


def flops(config: SeriesConfig) -> tuple[float, float]:
    """Return the floating-point operations of a token and of a query. Each element of a weight matrix counts as two
    operations."""
    d, heads, width = config.d_model, config.n_heads, 2 * config.head_dim
    slots = heads * config.n_slots
    layer = d * (3 * heads * width + 2 * slots) + heads * width * d + 2 * config.mlp_ratio * d * d
    layer += 8 * slots * width  # a step of the slots
    embedding = (FEATURES + d) * config.embedding_width
    token = embedding + config.n_layers * layer + d * config.head_width
    ask = config.head_width * (QUERY_FEATURES + config.head_inner) + config.head_inner * len(LEVELS)
    return 2.0 * token, 2.0 * ask


def host_seconds(config: SeriesConfig, tokens: int) -> float:
    """Return the seconds that one CPU core needs for a number of tokens."""
    token, ask = flops(config)
    return tokens * (token + USUAL_ASKS * ask) / HOST_FLOPS


def device_seconds(config: SeriesConfig, tokens: int) -> float:
    """Return the seconds that a call of the device needs for a number of tokens."""
    token, ask = flops(config)
    launches = LAYER_LAUNCHES * config.n_layers + OTHER_LAUNCHES
    sent = 4 * (FEATURES + 8 + USUAL_ASKS * (QUERY_FEATURES + 2 + len(LEVELS)))
    each = (token + USUAL_ASKS * ask) / DEVICE_FLOPS + sent / COPY_BYTES
    return launches * LAUNCH_SECONDS + config.n_layers * tokens / PATCH * SCAN_SECONDS + tokens * each


def least_tokens(config: SeriesConfig) -> int:
    """Return the smallest number of tokens, in whole patches, for which a call of the device saves time. If there is
    none, the result exceeds the size of a chunk."""
    counts = range(PATCH, TOKENS + 1, PATCH)
    pays = (count for count in counts if host_seconds(config, count) >= MARGIN * device_seconds(config, count))
    return next(pays, TOKENS + 1)


def bytes_needed(config: SeriesConfig) -> int:
    """Return the memory in bytes that the largest chunk needs. It consists of the memory slots of the columns and of a
    work area, which is large enough both for the tokens in a layer and for the queries in the head."""
    d, heads, width = config.d_model, config.n_heads, 2 * config.head_dim
    slots = heads * config.n_slots
    state = slots * (2 * width + 1)
    tokens, asks = TOKENS + MOST_COLUMNS * (PATCH + 1), MOST_ASKS
    # Slots of a token: gathered, transported over its lag, after its step, and after every patch.
    layer_numbers = 4 * state + 12 * heads * width + 8 * slots + FEATURES + 6 * d + 2 * config.mlp_ratio * d
    head_numbers = tokens * (2 * d + 2 * config.head_width)
    head_numbers += asks * (QUERY_FEATURES + 3 * config.head_width + 2 * config.head_inner + 6 * len(LEVELS))
    return 4 * (max(tokens * layer_numbers, head_numbers) + 6 * MOST_COLUMNS * config.n_layers * state)


def check_memory(bundle: Bundle, config: SeriesConfig) -> None:
    """Check that there is enough free memory. See `check_free_memory`."""
    weights = 4 * sum(array.size for array in bundle.weights().values())
    needed = weights + bytes_needed(config) + WORKSPACE_BYTES
    check_free_memory(bundle.name, needed, " for long series", "RFA_PROCESSES")


def refusal(bundle: Bundle, device: str) -> str | None:
    """Return the reason why long parts of a series are not processed on the device, or None if the device processes
    them."""
    config = SeriesConfig.from_dict(bundle.config)
    if least_tokens(config) > TOKENS:
        return "its network is too small for the GPU: transfers would take longer than the computation"
    if config.n_slots > MAX_SLOTS or 2 * config.head_dim > MAX_WIDTH:
        return f"the kernels support up to {MAX_SLOTS} memory slots and keys with up to {MAX_WIDTH} real dimensions"
    if torch.device(device).type == "cuda" and not _has_compiler():
        return "Triton needs a C compiler to build the kernels of the memory slots, but does not find one"
    return None


def _has_compiler() -> bool:
    """Return whether Triton can find a C compiler."""
    return bool(os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc"))
