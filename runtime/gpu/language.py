"""Run the language model of a bundle in torch, for servers with a GPU. The interface is that of
`language.LanguageRuntime`.

Matrices are bfloat16 on a GPU and float32 on a CPU, where the tests run. States are float32 on both, with the layout of
the ONNX runtime, so a text can continue on another kind of machine. A step is one CUDA graph per batch size. Prompts
are read in pieces, many at once, also with graphs. Attention streams use pages of one pool (`rfa.model.ragged`).

Of the text runtimes, only this one imports torch and the model. A server without a GPU does not import it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rfa.model.checkpoint import build_model
from rfa.model.decoder import Decoder
from rfa.model.language import StepOutput as ModelOutput
from rfa.model.packed import sent
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import Ragged
from rfa.runtime.batching import BatchSizes, Run, agreeing_sizes
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.gpu.attention import PagedStepRunner
from rfa.runtime.gpu.draw import BYTES_PER_LOGIT, draw_by_options
from rfa.runtime.gpu.graph import GraphMemory
from rfa.runtime.gpu.memory import check_free_memory, mib, sufficient_memory
from rfa.runtime.gpu.pages import PagedAdvance, PagedContext, PagePool, bounded_memory, pages_needed, pages_of
from rfa.runtime.gpu.pool import DevicePool, Rows
from rfa.runtime.gpu.prompts import PagedPromptRunner, PromptRunners, SlotPromptRunner
from rfa.runtime.gpu.step import StepRunner
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.text.contexts import Advance, BufferedAdvance, Context, SlotContext, StepOutput
from rfa.runtime.text.language import Language
from rfa.runtime.text.sampling import DrawnToken, Draws

logger = logging.getLogger("rfa.engine")
Array = NDArray[np.float32]
# GPU memory in bytes in addition to weights and slots: workspaces of libraries, and activations of a piece of a prompt.
WORKSPACE_BYTES = 512 << 20
# Attention uses at most 1 / ATTENTION_SHARE of the remaining memory, because other models may be loaded.
ATTENTION_SHARE = 4
# Number of tokens of the prompt that compiles the kernels, whose variants do not depend on the length.
WARM_LENGTH = 3


class TorchLanguageRuntime(Language):
    """The language model of a bundle on a torch device.

    Args:
        bundle: Bundle of kind "lm".
        device: "cuda", or "cpu" for tests in float32 and without graphs.
        streams: Maximum number of recurrent contexts that exist at the same time.
        max_rows: Maximum number of rows per step.
        attention_tokens: Maximum number of tokens of all attention streams together, limited by the GPU's memory.
        longest_attention: Maximum number of tokens of one attention stream. By default, attention_tokens.
        dtype: Dtype of the matrices. By default, bfloat16 on a GPU and float32 elsewhere.

    Raises:
        ValueError: If parts of the bundle do not match each other.
        UnsupportedError: If the GPU does not have enough memory, or the model has a feature that is supported only on a
            CPU.
    """

    runtime = "torch"
    # A piece of this length takes milliseconds on a GPU, as long as some steps.
    prefill_tokens = 1024

    def __init__(
        self, bundle: Bundle, *, device: str, streams: int = 64, max_rows: int = 24, attention_tokens: int = 8192,
        longest_attention: int | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        if (part := bundle.language.gpu_refusal) is not None:
            raise UnsupportedError(
                f"bundle {bundle.name!r} uses {part}, which is supported only on a CPU; serve it with RFA_DEVICE=cpu"
            )
        super().__init__(bundle)
        # The kernels and graphs use the same number of passes for all streams.
        self.passes = PassesRange(self.passes.most, self.passes.most)
        self.device = device
        self.prefill_rows = max_rows
        self._lock = threading.Lock()  # guards the runners and their buffers
        on_gpu = torch.device(device).type == "cuda"
        dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.rounding = _rounding(dtype, layers=self._layers)
        longest = min(longest_attention or attention_tokens, attention_tokens)
        if on_gpu:
            self._check_memory(bundle, streams, max_rows, longest)
        with sufficient_memory(bundle.name):
            self._decoder = _decoder(bundle, device, dtype)
            self._ragged = RaggedDecoder(self._decoder)
            self._create_pages(attention_tokens)
            # All graphs use the same memory, because one lock guards them.
            self._graph_memory = GraphMemory() if on_gpu else None
            self._create_attention_runners(max_rows, longest)
            if on_gpu:
                self._warn_of_eager_modes()
            self.pool = StatePool({}, streams)
            if "recurrent" in self.modes:
                self._create_slot_runners(streams, max_rows, device, with_graphs=on_gpu)
            self._create_prompt_runners(max_rows)
        self._warm_up()

    def _create_slot_runners(self, streams: int, max_rows: int, device: str, *, with_graphs: bool) -> None:
        """Create the pool and the runners of recurrent streams."""
        self.pool = self._pool = DevicePool(
            self.initial["means"], self.initial["precisions"], streams, max_rows, device
        )
        self._runners = {
            size: StepRunner(self._decoder, self._pool, size, with_graph=with_graphs)
            for size in _candidate_sizes(max_rows)
        }
        self.batch_sizes = agreeing_sizes(self._probe(max_rows), list(self._runners), max_rows)
        self._runners = {size: self._runners[size] for size in self.batch_sizes.sizes}

    def _create_pages(self, tokens: int) -> None:
        """Create the pages of attention streams."""
        shape, dtype = (self._layers, *self.latent_shape), self._ragged.cache_dtype
        device = self._decoder.device
        count = pages_of(tokens)
        if device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0] // ATTENTION_SHARE
            count = min(count, free // PagePool.bytes_of_page(shape, dtype) - 1)
        if "attention" in self.modes and count < 1:
            raise UnsupportedError(
                f"the GPU has no memory left for attention with bundle {self.name!r}; lower RFA_MAX_RUNNING or "
                "RFA_PROCESSES, stop other processes that use the GPU, or serve with RFA_DEVICE=cpu"
            )
        self.pages = PagePool(shape, count, device, dtype)

    def _create_attention_runners(self, max_rows: int, longest: int) -> None:
        """Create the runners for different numbers of rows. The largest is created first, because the others use its
        memory."""
        has_kernels = "attention" in self.modes and self._ragged.attention_refusal is None
        self._longest_pages = min(pages_of(longest), self.pages.capacity)
        sizes = _candidate_sizes(max_rows) if has_kernels else []
        self._attention_runners = {size: self._make_attention_runner(size) for size in reversed(sizes)}
        self._attention_sizes = BatchSizes(sizes)

    def _make_attention_runner(self, size: int) -> PagedStepRunner:
        memory = self._graph_memory if self._ragged.attention_refusal is None else None
        return PagedStepRunner(self._ragged, self.pages, size, self._longest_pages, len(self.vocabulary), memory)

    def _create_prompt_runners(self, max_rows: int) -> None:
        """Create the graphs for prompts in the modes that the kernels support."""
        self._paged_prompts: PromptRunners[PagedPromptRunner] | None = None
        self._slot_prompts: PromptRunners[SlotPromptRunner] | None = None
        if self._graph_memory is None:
            return
        if "recurrent" in self.modes and self._ragged.scan_refusal is None:
            self._slot_prompts = PromptRunners(
                lambda tokens, rows: SlotPromptRunner(self._ragged, self._pool, tokens, rows, self._graph_memory),
                self.prefill_tokens, max_rows,
            )  # fmt: skip
        if "attention" in self.modes and self._ragged.attention_refusal is None:
            self._paged_prompts = PromptRunners(
                lambda tokens, rows: PagedPromptRunner(
                    self._ragged, self.pages, tokens, rows, self._longest_pages, self._graph_memory
                ),
                self.prefill_tokens, max_rows,
            )  # fmt: skip

    def fits(self, capacity: int, streams: int, common: int) -> bool:
        return pages_needed(capacity, streams - 1, common) <= self.pages.capacity

    def _warn_of_eager_modes(self) -> None:
        """Log why a mode does not use the fused kernels."""
        refusals = {"attention": self._ragged.attention_refusal, "recurrent": self._ragged.scan_refusal}
        for mode in self.modes:
            if refusals[mode] is not None:
                logger.warning(
                    "bundle %r: streams are processed one by one instead of by the fused kernels in mode %r: %s",
                    self.name, mode, refusals[mode],
                )  # fmt: skip

    def _start_attention(self, capacity: int, forks: int, common: int) -> PagedContext:
        return PagedContext(self.pages, capacity, forks, common)

    def prefill(self, contexts: Sequence[Context], pieces: Sequence[Sequence[int]]) -> Sequence[Advance]:
        """Process a chunk of the prompt of each stream, and return the updates of the contexts. The outputs are not
        copied to the host. See `Language`."""
        streams = [context for context in contexts if isinstance(context, PagedContext)]
        if not streams:
            return super().prefill(contexts, pieces)
        if self._paged_prompts is None:
            return self._extend(streams, pieces, np.zeros((len(streams), *self.latent_shape), dtype=np.float32))[1]
        for stream, piece in zip(streams, pieces, strict=True):
            stream.reserve(len(piece))
        ragged = Ragged.of(pieces, [stream.position for stream in streams], self._decoder.device)
        with self._lock, bounded_memory():
            finite = self._paged_prompts.of(ragged).read(ragged, [stream.table() for stream in streams])
        return _paged_advances(streams, ragged.counts, finite)

    def _prefill_slots(self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]) -> list[BufferedAdvance]:
        if self._slot_prompts is None:
            return self._read(contexts, pieces)[1]
        ragged = Ragged.of(pieces, [context.position for context in contexts], self._decoder.device)
        with self._lock, bounded_memory():
            finite = self._slot_prompts.of(ragged).read(ragged, *self._pool_rows(contexts))
        return self._advances(contexts, finite, ragged.counts)

    def read_prompts(
        self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]
    ) -> tuple[StepOutput, list[BufferedAdvance]]:
        """Process a chunk of the prompt of each of B recurrent streams. Return the outputs of their last tokens, and
        the updates of the contexts."""
        output, advances = self._read(contexts, pieces)
        return _on_host(output), advances

    @torch.no_grad()
    def _read(
        self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]
    ) -> tuple[ModelOutput, list[BufferedAdvance]]:
        slots, device = self._pool.slots, self._decoder.device
        pool_slots = [context.slot for context in contexts]
        sources, targets = sent(
            np.stack([self._pool.current_rows(pool_slots), self._pool.next_rows(pool_slots)]), device
        )
        with bounded_memory():
            ragged = Ragged.of(pieces, [context.position for context in contexts], device)
            output, *after = self._ragged.prefill(ragged, slots.means[:, sources], slots.precisions[:, sources])
        finite = []
        for part, new in zip(slots, after, strict=True):
            part.index_copy_(1, targets, new)
            finite.append(new.isfinite().transpose(0, 1).flatten(1).all(1))
        return output, self._advances(contexts, torch.stack(finite).all(0).cpu().numpy(), ragged.counts)

    def extend(
        self, contexts: Sequence[Context], pieces: Sequence[Sequence[int]], noise: Array
    ) -> tuple[StepOutput, list[PagedAdvance]]:
        streams = [context for context in contexts if isinstance(context, PagedContext)]
        output, advances = self._extend(streams, pieces, noise)
        return _on_host(output), advances

    @torch.no_grad()
    def _extend(
        self, streams: Sequence[PagedContext], pieces: Sequence[Sequence[int]], noise: Array
    ) -> tuple[ModelOutput, list[PagedAdvance]]:
        """Process tokens of attention streams. Return the outputs of the last tokens, which are on the device, and the
        updates of the contexts."""
        for stream, piece in zip(streams, pieces, strict=True):
            stream.reserve(len(piece))
        device = self._decoder.device
        with bounded_memory():
            ragged = Ragged.of(pieces, [stream.position for stream in streams], device)
            pages = [stream.table() for stream in streams]
            output, finite = self._ragged.extend_and_check(ragged, pages, *self.pages.rows, sent(noise, device))
        return output, _paged_advances(streams, list(map(len, pieces)), finite.bool().cpu().numpy())

    def draw(
        self, contexts: Sequence[Context], tokens: Sequence[int], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], Sequence[Advance]]:
        """Process one token of each stream, and sample the next tokens. Return the sampled tokens, and the updates of
        the contexts.

        Logits are copied to the host only for rows whose options the kernels do not support. See `Language`.
        """
        if any(choice.needs_host for choice in draws.choices):
            return draw_by_options(self.draw, super().draw, contexts, tokens, noise, draws)
        slots = [context for context in contexts if isinstance(context, SlotContext)]
        if len(slots) < len(contexts):
            streams = [context for context in contexts if isinstance(context, PagedContext)]
            return self._draw_by_attention(streams, tokens, noise, draws)
        with self._lock:
            drawn, finite = self._runner(slots).draw(*self._rows(slots, tokens), noise, draws)
        return drawn, self._advances(slots, finite, [1] * len(slots))

    @torch.no_grad()
    def _draw_by_attention(
        self, streams: Sequence[PagedContext], tokens: Sequence[int], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], list[PagedAdvance]]:
        for stream in streams:
            stream.reserve(1)
        with self._lock, bounded_memory():
            drawn, kept = self._attention_runner(len(streams)).draw(streams, tokens, noise, draws)
        return drawn, _paged_advances(streams, [1] * len(streams), kept)

    def _attention_runner(self, rows: int) -> PagedStepRunner:
        """Return a runner for a number of rows, which may add padding. If the kernels do not support the model, the
        runner has exactly `rows` rows and is created on demand."""
        if self._ragged.attention_refusal is None:
            return self._attention_runners[self._attention_sizes.padded(rows)]
        if rows not in self._attention_runners:
            self._attention_runners[rows] = self._make_attention_runner(rows)
        return self._attention_runners[rows]

    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[BufferedAdvance]]:
        with self._lock:
            result = self._runner(contexts).run(*self._rows(contexts, tokens), noise)
        advances = self._advances(contexts, result.is_finite, [1] * len(contexts))
        return StepOutput(result.logits, result.log_precision, result.latent), advances

    def _runner(self, contexts: Sequence[SlotContext]) -> StepRunner:
        return self._runners[self.batch_sizes.padded(len(contexts))]

    def _rows(self, contexts: Sequence[SlotContext], tokens: Sequence[int]) -> tuple[Rows, Rows, Rows, Rows]:
        """Return the tokens, the positions, the rows to read and the rows to write."""
        positions = np.asarray([context.position for context in contexts], dtype=np.int64)
        return np.asarray(tokens, dtype=np.int64), positions, *self._pool_rows(contexts)

    def _pool_rows(self, contexts: Sequence[SlotContext]) -> tuple[Rows, Rows]:
        """Return the rows to read and the rows to write."""
        pool_slots = [context.slot for context in contexts]
        return self._pool.current_rows(pool_slots), self._pool.next_rows(pool_slots)

    def _advances(
        self, contexts: Sequence[SlotContext], is_finite: NDArray[np.bool_], counts: Sequence[int]
    ) -> list[BufferedAdvance]:
        return [
            BufferedAdvance(context, self._pool, count, finite=bool(finite))
            for context, finite, count in zip(contexts, is_finite, counts, strict=True)
        ]

    def _warm_up(self) -> None:
        """Compile the kernels before the first prompts."""
        for mode in self.modes:
            context = self.start(mode)
            self.prefill([context], [[0] * WARM_LENGTH])
            context.release()

    def _probe(self, rows: int) -> Run:
        """Return a function for `agreeing_sizes`, which runs the step on distinct rows. It uses the padding rows of the
        pool."""
        tokens, positions, noise, state = self.example(rows)
        slots, device = self._pool.slots, self._decoder.device
        start = torch.from_numpy(state["means"].swapaxes(0, 1).copy()).to(device)  # [L, rows, H, S, 4D]

        def run(chosen: Rows) -> list[Array]:
            rows = self._pool.padding_rows[: len(chosen)]
            slots.means[:, rows] = start[:, chosen]
            # A copy, because torch refuses to assign a view of the same tensor, which it notices for one layer only.
            slots.precisions[:, rows] = slots.precisions[:, self._pool.initial_row, None].clone()
            result = self._runners[len(chosen)].run(tokens[chosen], positions[chosen], rows, rows, noise[chosen])
            after = [part[:, rows].transpose(0, 1).cpu().numpy().copy() for part in slots]
            return [result.logits, result.log_precision, result.latent, *after]

        return run

    def _check_memory(self, bundle: Bundle, streams: int, max_rows: int, longest: int) -> None:
        weights = sum(array.nbytes for array in bundle.weights().values())
        slots = DevicePool.bytes_needed(self.context_bytes, streams, max_rows)
        # Memory of prompts that are processed at once, all of the maximum length. It contains queries, keys, values,
        # outputs, gates, and four numbers per slot between the kernels of the scan.
        heads, width = self.latent_shape
        # The factor 2 is for the warm-up of a graph and for its replays.
        prompts = 2 * 4 * max_rows * self.prefill_tokens * heads * (4 * width + 6 * bundle.language.n_slots)
        # Each batch size has its own memory. All smaller ones together need as much as the largest one.
        draws = len(self.modes) * 2 * max_rows * len(self.vocabulary) * BYTES_PER_LOGIT
        steps = 0
        if "attention" in self.modes:
            steps = PagedStepRunner.bytes_needed((self._layers, *self.latent_shape), max_rows, longest)
        needed = weights + slots + prompts + draws + steps + WORKSPACE_BYTES
        use = f", {mib(slots)} of it for the states of {streams} streams"
        check_free_memory(bundle.name, needed, use, "RFA_MAX_RUNNING or RFA_PROCESSES")


def _decoder(bundle: Bundle, device: str, dtype: torch.dtype) -> Decoder:
    """Return the decoder of a bundle."""
    manifest = bundle.manifest
    weights = {name: torch.tensor(array) for name, array in bundle.weights().items()}
    return Decoder(build_model(manifest.family, manifest.config, weights).to(device), dtype)


def _rounding(dtype: torch.dtype, layers: int) -> float:
    """Return the largest relative change of an output that rounded matrix factors cause. It is 0 for float32.

    Each factor contributes half a unit in the last place with equal sign. The factors are those of a layer's products
    (four, and two for attention) and of the head.
    """
    return 0.0 if dtype == torch.float32 else 2 * (6 * layers + 1) * torch.finfo(dtype).eps / 2


def _candidate_sizes(max_rows: int) -> list[int]:
    """Return the powers of two below the largest size, and that size. `agreeing_sizes` selects from them."""
    return sorted({*(1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows), max_rows})


def _paged_advances(
    streams: Sequence[PagedContext], counts: Sequence[int], finite: NDArray[np.bool_]
) -> list[PagedAdvance]:
    return [
        PagedAdvance(stream, count, finite=bool(good))
        for stream, count, good in zip(streams, counts, finite, strict=True)
    ]


def _on_host(output: ModelOutput) -> StepOutput:
    return StepOutput(*(part.cpu().numpy() for part in output))
