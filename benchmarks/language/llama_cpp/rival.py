"""A process that generates with llama.cpp. It imports `llama_cpp`, `gguf` and numpy, and is driven by lines of JSON.

    python rival.py SHAPE TYPE    SHAPE: JSON of `Shape`; TYPE: of the weights, F32, F16 or Q8_0
    out  {"parameters", "system", "version"}
    in   {"prompts": [[token, …], …], "new_tokens"}
    out  {"tokens", "seconds", "cpu_seconds", "prompt_cpu_seconds"}

The model is a Llama with random weights. All requests are decoded together in one batch (`llama_decode`), with greedy
sampling, and without a server: these are upper bounds of what a server of llama.cpp reaches on as many threads.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCALE = 0.02
# Prompts are read in pieces of this many tokens, which is the default of llama.cpp.
PIECE = 512


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of the contexts."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    hidden: int
    context: int
    streams: int


def weights(shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and random weights of a Llama whose output layer is the embedding."""
    draw = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return draw.normal(0, SCALE, (rows, columns)).astype(np.float32)

    ones = np.ones(shape.width, np.float32)
    yield "token_embd.weight", matrix(shape.vocabulary, shape.width)
    yield "output_norm.weight", ones
    for layer in range(shape.layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{name}.weight", matrix(shape.width, shape.width)
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{layer}.{name}.weight", matrix(shape.hidden, shape.width)
        yield f"blk.{layer}.ffn_down.weight", matrix(shape.width, shape.hidden)
        yield f"blk.{layer}.attn_norm.weight", ones
        yield f"blk.{layer}.ffn_norm.weight", ones


def write_model(shape: Shape, kind: str, path: Path) -> int:
    """Write the model as GGUF, and return its number of parameters."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    kind_of_matrices, parameters = gguf.GGMLQuantizationType[kind], 0
    for name, array in weights(shape):
        parameters += array.size
        used = kind_of_matrices if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(array, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return parameters


class Rival:
    """A loaded model, on one thread."""

    def __init__(self, api: Any, path: Path, shape: Shape) -> None:
        self._api, self._shape = api, shape
        chosen = api.llama_context_default_params()
        chosen.n_ctx = shape.context * shape.streams
        chosen.n_batch = chosen.n_ubatch = PIECE
        chosen.n_seq_max = shape.streams
        chosen.n_threads = chosen.n_threads_batch = 1
        chosen.no_perf = True
        loading = api.llama_model_default_params()
        # Its AMX kernels end the process on machines where the kernel does not allow AMX; without them it uses AVX-512.
        loading.use_extra_bufts = False
        # The context keeps a pointer to the model, so both must live as long as this object.
        self._model = api.llama_model_load_from_file(str(path).encode(), loading)
        self._context = api.llama_init_from_model(self._model, chosen)
        if not self._model or not self._context:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self._batch = api.llama_batch_init(max(PIECE, shape.streams), 0, 1)
        self.prompts_read = 0.0

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Return the most probable continuations, all computed in the same batches.

        `prompts_read` is the processor time at which the prompts had been read.
        """
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        rows = [
            (token, position, number, position == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        first: list[int] = []
        for start in range(0, len(rows), PIECE):
            first += self._decode(rows[start : start + PIECE])
        self.prompts_read = time.process_time()
        found = [[token] for token in first]
        for step in range(new_tokens - 1):
            places = enumerate(zip(prompts, found, strict=True))
            rows = [(own[-1], len(prompt) + step, number, True) for number, (prompt, own) in places]
            for own, token in zip(found, self._decode(rows), strict=True):
                own.append(token)
        return found

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Run one batch of tokens, positions, sequences, and whether an output is needed. Return the next tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, number, has_output) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, has_output
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, number
        if status := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        outputs = sum(row[3] for row in rows)
        if not outputs:
            return []
        pointer = self._api.llama_get_logits(self._context)
        logits = np.ctypeslib.as_array(pointer, (outputs, self._shape.vocabulary))
        if not np.isfinite(logits).all():
            raise RuntimeError("logits are not finite")
        return [int(token) for token in logits.argmax(1)]


def quiet(api: Any) -> Any:
    """Silence llama.cpp, and return the callback, which must be kept alive."""
    callback = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def main() -> None:
    """Answer the lines of standard input until it ends."""
    import llama_cpp

    shape = Shape(**json.loads(sys.argv[1]))
    silence = quiet(llama_cpp)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        parameters = write_model(shape, sys.argv[2], path)
        rival = Rival(llama_cpp, path, shape)
    system = llama_cpp.llama_print_system_info().decode().strip()
    say({"parameters": parameters, "system": system, "version": llama_cpp.__version__, "quiet": bool(silence)})
    for line in sys.stdin:
        task = json.loads(line)
        started, cpu = time.perf_counter(), time.process_time()
        found = rival.generate(task["prompts"], task["new_tokens"])
        took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        say({"tokens": sum(map(len, found)), **took, "prompt_cpu_seconds": rival.prompts_read - cpu})


def say(document: dict[str, Any]) -> None:
    """Write a line of JSON."""
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
