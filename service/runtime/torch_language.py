"""A language bundle in torch, for servers with a GPU: the same functions as `language.LanguageRuntime` gives.

Matrices are bfloat16 on a GPU and float32 on a CPU, where the tests run; states are float32 on both, and their bytes
are those of the ONNX runtime, so that a text may go on on another kind of machine. A step is one CUDA graph per batch
size; prompts are read many at once, a piece of each at a time, and attention streams over pages of one pool
(`rfa.model.ragged`).

Only the GPU runtime imports torch and the model, and it is imported only when the server runs on a GPU.
"""

from __future__ import annotations

import logging
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
from rfa.model.ragged import Ragged, RaggedDecoder
from rfa.service.engine.text.sampling import DrawnToken, Draws
from rfa.service.runtime.batching import Run, agreeing_sizes
from rfa.service.runtime.language import Advance, Context, Language, SlotContext, StepOutput, TurnAdvance
from rfa.service.runtime.pool import StatePool
from rfa.service.runtime.torch_draw import BYTES_PER_LOGIT, Packed, TokenDraw
from rfa.service.runtime.torch_pages import PagedAdvance, PagedContext, PagePool, bounded_memory, pages_needed, pages_of
from rfa.service.runtime.torch_pool import DevicePool, Rows
from rfa.service.runtime.torch_step import StepRunner
from rfa.service.settings import ConfigurationError

logger = logging.getLogger("rfa.engine")
Array = NDArray[np.float32]
# Of the GPU's memory, beside weights and slots: the libraries' workspaces, and the activations of a piece of a prompt.
WORKSPACE_BYTES = 512 << 20
# Of what is free beside all that, attention may have this part at most: more models may come, or the same anew.
ATTENTION_SHARE = 4
# Of a prompt by which kernels are compiled; no length makes another variant of one.
WARM_LENGTH = 3


class TorchLanguageRuntime(Language):
    """A language bundle on a device of torch.

    Args:
        bundle: of kind "lm".
        device: "cuda", or "cpu" for tests: float32, no graphs.
        streams: recurrent contexts that exist at the same time, at most.
        max_rows: rows of a step, at most.
        attention_tokens: of all attention streams together; on a GPU as many of them as its memory has room for.
        dtype: of the matrices; None = bfloat16 on a GPU, float32 elsewhere.

    Raises:
        ValueError: when the bundle's parts do not fit each other.
        ConfigurationError: when the GPU's memory does not hold it, or its model has a window.
    """

    runtime = "torch"
    # On a GPU a piece of so many takes milliseconds, as long as some steps.
    prefill_tokens = 1024

    def __init__(
        self, bundle: Bundle, *, device: str, streams: int = 64, max_rows: int = 24, attention_tokens: int = 8192,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        if bundle.language.window:
            raise ConfigurationError(
                f"RFA_DEVICE=cuda: bundle {bundle.name!r} has a window of {bundle.language.window} exact tokens, which "
                "are kept on a CPU only: serve it with RFA_DEVICE=cpu"
            )
        super().__init__(bundle)
        self.device = device
        self.prefill_rows = max_rows
        self._lock = threading.Lock()  # of the runners, and of the places that draws go through
        on_gpu = torch.device(device).type == "cuda"
        dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.rounding = _rounding(dtype, layers=self._layers)
        if on_gpu:
            self._check_memory(bundle, streams, max_rows)
        with _sufficient_memory(bundle.name):
            self._decoder = _decoder(bundle, device, dtype)
            self._ragged = RaggedDecoder(self._decoder)
            self._hold_pages(attention_tokens)
            if on_gpu:
                self._say_what_is_eager()
            self.pool = StatePool({}, streams)
            if "recurrent" in self.modes:
                self._hold_slots(streams, max_rows, device, with_graphs=on_gpu)
        self._warm_up()

    def _hold_slots(self, streams: int, max_rows: int, device: str, *, with_graphs: bool) -> None:
        """What recurrent streams run on."""
        self.pool = self._pool = DevicePool(
            self.initial["means"], self.initial["precisions"], streams, max_rows, device
        )
        self._runners = {
            size: StepRunner(self._decoder, self._pool, size, with_graph=with_graphs)
            for size in _candidate_sizes(max_rows)
        }
        self.batch_sizes = agreeing_sizes(self._probe(max_rows), list(self._runners))
        self._runners = {size: self._runners[size] for size in self.batch_sizes.sizes}

    def _hold_pages(self, tokens: int) -> None:
        """What attention streams run on, where there are any."""
        shape, dtype = (self._layers, *self.latent_shape), self._ragged.cache_dtype
        device = self._decoder.device
        count = pages_of(tokens)
        if device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0] // ATTENTION_SHARE
            count = min(count, free // PagePool.bytes_of_page(shape, dtype))
        if "attention" in self.modes and count < 1:
            raise ConfigurationError(
                f"RFA_DEVICE=cuda: no GPU memory is left for attention with bundle {self.name!r}: lower "
                "RFA_MAX_RUNNING or RFA_PROCESSES, end what else uses the GPU, or serve with RFA_DEVICE=cpu"
            )
        self.pages = PagePool(shape, count, device, dtype)
        self._draws: dict[int, tuple[Packed, TokenDraw]] = {}  # by the number of streams

    def has_room(self, room: int, streams: int, common: int) -> bool:
        """See `Language`."""
        return pages_needed(room, streams - 1, common) <= self.pages.capacity

    def _say_what_is_eager(self) -> None:
        """Nobody waits for a GPU that is driven from Python without having been told why."""
        refusals = {"attention": self._ragged.attention_refusal, "recurrent": self._ragged.scan_refusal}
        for mode in self.modes:
            if refusals[mode] is not None:
                logger.warning(
                    "bundle %r: streams go one by one, not through the fused kernels, in mode %r: %s",
                    self.name, mode, refusals[mode],
                )  # fmt: skip

    def _start_attention(self, room: int, forks: int, common: int) -> PagedContext:
        return PagedContext(self.pages, room, forks, common)

    def _prefill_slots(self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]) -> list[TurnAdvance]:
        return self.read_prompts(contexts, pieces)[1]

    @torch.no_grad()
    def read_prompts(
        self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]
    ) -> tuple[StepOutput, list[TurnAdvance]]:
        """A piece of a prompt in each of B recurrent streams; the outputs are those of their last tokens."""
        slots, device = self._pool.slots, self._decoder.device
        seats = [context.seat for context in contexts]
        sources, targets = (torch.from_numpy(rows(seats)).to(device) for rows in (self._pool.current, self._pool.spare))
        with bounded_memory():
            ragged = Ragged.of(pieces, [context.position for context in contexts], device)
            output, *after = self._ragged.prefill(ragged, slots.means[:, sources], slots.precisions[:, sources])
        finite = torch.ones(len(contexts), dtype=torch.bool, device=device)
        for part, new in zip(slots, after, strict=True):
            part.index_copy_(1, targets, new)
            finite &= new.isfinite().transpose(0, 1).flatten(1).all(1)
        advances = [
            TurnAdvance(context, self._pool, is_finite, len(piece))
            for context, is_finite, piece in zip(contexts, finite.tolist(), pieces, strict=True)
        ]
        return _on_host(output), advances

    def extend(
        self, contexts: Sequence[Context], pieces: Sequence[Sequence[int]], noise: Array
    ) -> tuple[StepOutput, list[PagedAdvance]]:
        """See `Language`."""
        streams = [context for context in contexts if isinstance(context, PagedContext)]
        output, finite = self._extend(streams, pieces, noise)
        return _on_host(output), _paged_advances(streams, pieces, finite)

    @torch.no_grad()
    def _extend(
        self, streams: Sequence[PagedContext], pieces: Sequence[Sequence[int]], noise: Array
    ) -> tuple[Stepped, torch.Tensor]:
        """On the device: outputs of the last tokens, and for each stream whether its new keys and values are finite."""
        for stream, piece in zip(streams, pieces, strict=True):
            stream.make_room(len(piece))
        pool, device = self.pages, self._decoder.device
        with bounded_memory():
            ragged = Ragged.of(pieces, [stream.position for stream in streams], device)
            output = self._ragged.extend(
                ragged, [stream.pages for stream in streams], pool.keys, pool.values, torch.tensor(noise, device=device)
            )
            written = torch.cat([
                stream.rows(stream.position, stream.position + len(piece))
                for stream, piece in zip(streams, pieces, strict=True)
            ])  # fmt: skip
            rows = torch.stack([part[:, written].isfinite() for part in (pool.keys, pool.values)])
        broken = (~rows.transpose(0, 2).flatten(1).all(1)).cumsum(0)[ragged.last]
        return output, broken.diff(prepend=broken.new_zeros(1)) == 0

    def draw(
        self, contexts: Sequence[Context], tokens: Sequence[int], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], Sequence[Advance]]:
        """See `Language`; on the device, from which the logits do not come."""
        slots = [context for context in contexts if isinstance(context, SlotContext)]
        if len(slots) < len(contexts):
            streams = [context for context in contexts if isinstance(context, PagedContext)]
            return self._draw_by_attention(streams, [[token] for token in tokens], noise, draws)
        with self._lock:
            drawn, finite = self._runner(slots).draw(*self._rows(slots, tokens), noise, draws)
        return drawn, self._advances(slots, finite)

    @torch.no_grad()
    def _draw_by_attention(
        self, streams: Sequence[PagedContext], pieces: Sequence[Sequence[int]], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], list[PagedAdvance]]:
        output, finite = self._extend(streams, pieces, noise)
        size, device = len(streams), self._decoder.device
        with self._lock:
            if size not in self._draws:
                given = Packed(TokenDraw.given_fields(size), device)
                self._draws[size] = given, TokenDraw(size, len(self.vocabulary), given, device)
            given, token_draw = self._draws[size]
            token_draw.lay(draws)
            given.send()
            order = token_draw.compute(output, finite.float(), is_ranked=draws.are_ranked)
            drawn, kept = token_draw.read(draws, output.latent, order)
        return drawn, _paged_advances(streams, pieces, kept)

    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[TurnAdvance]]:
        with self._lock:
            result = self._runner(contexts).run(*self._rows(contexts, tokens), noise)
        advances = self._advances(contexts, result.is_finite)
        return StepOutput(result.logits, result.log_precision, result.latent), advances

    def _runner(self, contexts: Sequence[SlotContext]) -> StepRunner:
        return self._runners[self.batch_sizes.padded(len(contexts))]

    def _rows(self, contexts: Sequence[SlotContext], tokens: Sequence[int]) -> tuple[Rows, Rows, Rows, Rows]:
        """Tokens, positions, rows to read and rows to write."""
        seats = [context.seat for context in contexts]
        positions = np.asarray([context.position for context in contexts], dtype=np.int64)
        return np.asarray(tokens, dtype=np.int64), positions, self._pool.current(seats), self._pool.spare(seats)

    def _advances(self, contexts: Sequence[SlotContext], is_finite: NDArray[np.bool_]) -> list[TurnAdvance]:
        return [
            TurnAdvance(context, self._pool, bool(finite), 1)
            for context, finite in zip(contexts, is_finite, strict=True)
        ]

    def _warm_up(self) -> None:
        """Compile now what the first prompts would wait for."""
        for mode in self.modes:
            context = self.start(mode)
            self.prefill([context], [[0] * WARM_LENGTH])
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
        # Of a quantum of prompts, each as long as the longest: queries, keys, values and what is read, the gates, and
        # four numbers of each slot between the kernels of the scan.
        heads, width = self.latent_shape
        prompts = 4 * max_rows * self.prefill_tokens * heads * (4 * width + 6 * bundle.language.n_slots)
        # Each size of a batch has memory of its own, and all smaller ones together as much as the largest.
        draws = 2 * max_rows * len(self.vocabulary) * BYTES_PER_LOGIT
        needed, free = weights + slots + prompts + draws + WORKSPACE_BYTES, torch.cuda.mem_get_info()[0]
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

    Half a unit of the last place for each factor of the products of a layer, its four and the two of attention, and of
    the head, all of one sign.
    """
    return 0.0 if dtype == torch.float32 else 2 * (6 * layers + 1) * torch.finfo(dtype).eps / 2


def _candidate_sizes(max_rows: int) -> list[int]:
    """Powers of two and the largest: a graph each, of which those are kept that agree."""
    return sorted({*(1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows), max_rows})


def _paged_advances(
    streams: Sequence[PagedContext], pieces: Sequence[Sequence[int]], finite: torch.Tensor | NDArray[np.bool_]
) -> list[PagedAdvance]:
    return [
        PagedAdvance(stream, len(piece), good)
        for stream, piece, good in zip(streams, pieces, finite.tolist(), strict=True)
    ]


def _on_host(output: Stepped) -> StepOutput:
    return StepOutput(*(part.cpu().numpy() for part in output))


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
