"""A trained language model → the graphs of its bundle: the first two where it has slots.

    step       one token in every stream, recurrent: the state goes in and comes out
    prefill    a piece of a prompt, recurrent: projections and read-out over all its tokens at once, the slots in a Scan
    attention  new tokens over a cache of keys and values; only their own rows come out, the caller stores them

Interfaces: README.md beside this file. Phases are formed in float64 inside the graphs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from tqdm import tqdm

from rfa.export.decoder_constants import constants_file
from rfa.export.golden_recording import Earlier, Filled, GoldenRecorder, Source, Stored
from rfa.export.language_calibration import calibrate_language
from rfa.export.onnx_graphs import export_graph
from rfa.export.provenance import export_provenance
from rfa.export.writing import write_bundle
from rfa.model.attention.reference import windowed_attention
from rfa.model.checkpoint import load_run
from rfa.model.language import Cache, LanguageModel, SlotState, State, StepOutput
from rfa.model.layers import Block, RobustMixer
from rfa.model.mixing import MixerOutput
from rfa.model.recurrence.slots_reference import SlotInputs, SlotReadout, slot_read, slot_step
from rfa.model.recurrence.window import joined
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, Graph, open_session
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.bundle.held_out import WINDOW
from rfa.runtime.text.config import LanguageModelConfig

ATTENTION_OUTPUTS = ("logits", "log_precision", "latent", "new_keys", "new_values")

# Sizes while tracing: all different, none 1, else the tracer takes a dimension for a constant.
TRACE_BATCH, TRACE_LENGTH, TRACE_CAPACITY = 2, 3, 5
GOLDEN_PROMPT = "It was the best of times, it was the"
GOLDEN_TOKENS = 8
RECORD_FILE = "train.json"
VALIDATION_FILE = Path("corpus") / "valid.npy"
TOKENIZER_FILE = "tokenizer.json"


class StepGraph(nn.Module):
    """`LanguageModel.step` on flat tensors; with a window, `PrefillGraph` of one token."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        noise: Tensor,
        means: Tensor,
        precisions: Tensor,
        ring: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        if ring is not None:
            before = _State(means, precisions, ring)
            return _read_tokens(self.model, token[:, None], torch.ones_like(token), position, before, noise)
        output, after = self.model.step(token, SlotState(means, precisions, position), noise)
        return (*output, after.means, after.precisions)


class PrefillGraph(nn.Module):
    """`LanguageModel.prefill` for rows of different length: token by token only where it must be, in the slots' update.

    The means after every token come out of the scan, so the read-out is one batched operation over all tokens, and the
    state of a row is what it was after its last valid token, bit for bit, whatever padding follows.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        length: Tensor,
        position: Tensor,
        means: Tensor,
        precisions: Tensor,
        ring: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        return _read_tokens(self.model, tokens, length, position, _State(means, precisions, ring), None)


class AttentionGraph(nn.Module):
    """`LanguageModel.extend` on flat tensors."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, position: Tensor, keys: Tensor, values: Tensor, noise: Tensor
    ) -> tuple[Tensor, ...]:
        output, new_keys, new_values = self.model.extend(tokens, Cache(keys, values, position), noise)
        return (*output, new_keys, new_values)


class _State(NamedTuple):
    """Of a model or of a layer of it."""

    means: Tensor
    precisions: Tensor
    ring: Tensor | None

    def of(self, layer: int) -> _State:
        """The part of a layer."""
        ring = None if self.ring is None else self.ring[:, layer]
        return _State(self.means[:, layer], self.precisions[:, layer], ring)


def _read_tokens(
    model: LanguageModel, tokens: Tensor, length: Tensor, position: Tensor, state: _State, noise: Tensor | None
) -> tuple[Tensor, ...]:
    """Tokens `[B, N]` of which `length` `[B]` are valid: the output of the last of them, and the state after it."""
    rows, last = torch.arange(tokens.shape[0]), length - 1
    positions = position[:, None] + torch.arange(tokens.shape[1])
    x = model._embed(tokens)
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    after: list[list[Tensor]] = []
    for i, block in enumerate(blocks):
        sample = noise[:, None] if noise is not None and block is blocks[-1] else None
        mixed, m, p, seen = _scan_layer(block, x, positions, state.of(i), sample)
        x = block.finish(x, mixed.out, "recurrent")
        parts = [m[rows, last], p[rows, last]]
        if seen is not None:
            # The last W tokens up to the last valid one, which are the ring's own where there are fewer.
            parts.append(seen[rows[:, None], length[:, None] + torch.arange(model.config.window)])
        after.append(parts)
    final = MixerOutput(*(part[rows, last] for part in mixed))
    output: StepOutput = model._step_output(x[rows, last], final, "recurrent")
    return (*output, *(torch.stack(parts, 1) for parts in zip(*after, strict=True)))


def _scan_layer(
    block: Block, x: Tensor, positions: Tensor, state: _State, noise: Tensor | None
) -> tuple[MixerOutput, Tensor, Tensor, Tensor | None]:
    """The mixer of one layer over `[B, N, d]`: its output, the slots after every token, `[B, N, H, S, …]`, and with a
    window the ring with the tokens behind it, `[B, W + N, H, 4D + 2S]`."""
    mixer, x = block.mixer, block.mixer_norm(x, "recurrent")
    if not isinstance(mixer, RobustMixer):
        raise ValueError(f"a {mixer.config.mixer} model has no recurrent twin")
    dynamics = mixer.dynamics()
    phase = mixer.phase(positions)
    tokens = mixer.slot_inputs(x, mixer.rotated(x, phase, "recurrent"), dynamics)
    parameters, window = mixer.slot_parameters(dynamics), mixer.config.window
    entering, seen, lag = tokens, None, None
    if state.ring is not None:
        seen = torch.cat([state.ring, torch.cat(tokens[1:], dim=-1)], dim=1)
        width, slots = tokens.k.shape[-1], mixer.config.n_slots
        recent = SlotInputs(tokens.q, *seen.split([width, width, slots, slots], dim=-1))
        entering, lag = SlotInputs(tokens.q, *(part[:, :-window] for part in recent[1:])), mixer.slot_lag()

    def update(before: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        # The read-out of the step is not returned, so the exporter drops it.
        _, m, p = slot_step(
            SlotInputs(*token),
            before[0],
            before[1],
            parameters,
            inner=mixer.config.inner,
            innovation=mixer.config.innovation,
        )
        return [m, p], [m.clone(), p.clone()]

    start = [part.clone(memory_format=torch.contiguous_format) for part in (state.means, state.precisions)]
    by_time = [part.transpose(0, 1).contiguous() for part in entering]
    _, (m, p) = scan(update, start, by_time, dim=0)
    m, p = m.transpose(0, 1), p.transpose(0, 1)
    flat = slot_read(tokens.q.flatten(0, 1), m.flatten(0, 1), p.flatten(0, 1), parameters, lag)
    readout = SlotReadout(*(part.unflatten(0, positions.shape) for part in flat))
    if seen is not None:
        is_token = recent.measurement[:, 1:, 0, 0] > 0
        near = windowed_attention(
            tokens.q, recent.k[:, 1:], recent.v[:, 1:], dynamics, window=window, is_token=is_token
        )
        readout = joined(readout, near)
    mixed = mixer.finish(readout.out, x, phase, readout.precision, noise, dynamics.gamma2, "recurrent")
    return mixed, m, p, seen


Interface = tuple[dict[str, Tensor], tuple[str, ...], dict[str, dict[int, str]]]


def step_interface(model: LanguageModel) -> Interface:
    """Example inputs, outputs and varying dims of the step."""
    state, config = model.init_state(TRACE_BATCH), model.config
    inputs = {
        "token": torch.zeros(TRACE_BATCH, dtype=torch.int64),
        "position": state.position,
        "noise": torch.zeros(TRACE_BATCH, config.n_heads, 2 * config.head_dim),
        **_carried(state),
    }
    return inputs, _recurrent_outputs(state), {name: {0: "batch"} for name in inputs}


def prefill_interface(model: LanguageModel) -> Interface:
    """The same of the prefill."""
    state = model.init_state(TRACE_BATCH)
    inputs = {
        "tokens": torch.zeros(TRACE_BATCH, TRACE_LENGTH, dtype=torch.int64),
        "length": torch.full((TRACE_BATCH,), TRACE_LENGTH),
        "position": state.position,
        **_carried(state),
    }
    dynamic = {name: {0: "batch"} for name in inputs}
    dynamic["tokens"][1] = "length"
    return inputs, _recurrent_outputs(state), dynamic


def _carried(state: State) -> dict[str, Tensor]:
    """What a recurrent graph takes and gives of a state, in order: all but the position, which the caller knows."""
    return {name: part.contiguous() for name, part in state._asdict().items() if name != "position"}


def _recurrent_outputs(state: State) -> tuple[str, ...]:
    return (*StepOutput._fields, *(f"next_{name}" for name in _carried(state)))


def attention_interface(model: LanguageModel) -> Interface:
    """The same of the attention."""
    cache, config = model.init_cache(TRACE_BATCH, TRACE_CAPACITY), model.config
    inputs = {
        "tokens": torch.zeros(TRACE_BATCH, TRACE_LENGTH, dtype=torch.int64),
        "position": cache.position,
        "keys": cache.keys,
        "values": cache.values,
        "noise": torch.zeros(TRACE_BATCH, config.n_heads, 2 * config.head_dim),
    }
    dynamic = {name: {0: "batch"} for name in inputs}
    dynamic["tokens"][1] = "length"
    dynamic["keys"][3] = dynamic["values"][3] = "capacity"
    return inputs, ATTENTION_OUTPUTS, dynamic


def refusal(config: LanguageModelConfig) -> str | None:
    """Why a bundle cannot hold a model, or None."""
    if config.mixer != "rfa":
        return f"bundles are of Robust Filter Attention; the mixer {config.mixer!r} is what experiments compare it with"
    return None


def language_graphs(model: LanguageModel) -> dict[str, Graph]:
    """The graphs of the modes that a model has.

    Raises:
        ValueError: a bundle cannot hold the model.
    """
    reason = refusal(model.config)
    if reason is not None:
        raise ValueError(f"a bundle cannot hold this model: {reason}")
    model = model.eval().requires_grad_(False)
    parts: dict[str, tuple[nn.Module, Interface]] = {"attention": (AttentionGraph(model), attention_interface(model))}
    if "recurrent" in model.config.modes:
        parts["step"] = StepGraph(model), step_interface(model)
        parts["prefill"] = PrefillGraph(model), prefill_interface(model)
    graphs = {}
    for name, (module, (inputs, outputs, dynamic)) in tqdm(parts.items(), desc="export", unit="graph", leave=False):
        graphs[name] = export_graph(module, inputs, outputs, dynamic=dynamic, prefix="model.")
    return graphs


def export_language(
    run: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    window: int = WINDOW,
    architectures: Sequence[int] = (),
) -> Bundle:
    """Export the run directory of a language model (`rfa train lm`) as a bundle.

    Calibration uses the run's own validation tokens (`corpus/valid.npy`).

    Args:
        name: of the bundle; default the folder's name.
        window: context length of the calibration.
        architectures: of GPUs that kernels are compiled for: 80, 90.

    Raises:
        FileNotFoundError: the run lacks a file that training writes.
        ValueError: the run is no language model, or one that a bundle cannot hold.
        KernelCompilationError: kernels were asked for, and there are none.
    """
    source, target = Path(run), Path(out)
    model = load_run(source)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"{source} is not the run of a language model")
    kernels = {}
    if architectures:
        from rfa.export.kernel_compile import kernel_files

        kernels = kernel_files(model.config, architectures)
    record = json.loads((source / RECORD_FILE).read_text())
    tokenizer_bytes = (source / TOKENIZER_FILE).read_bytes()
    tokenizer = Tokenizer.from_str(tokenizer_bytes.decode())
    weights = bundle_weights(model)
    graphs = language_graphs(model)
    family = LanguageConfig.model_validate(model.config.to_dict())
    constants = {CONSTANTS_FILE: constants_file(model)} if family.has_constants else {}
    return write_bundle(
        target,
        name=name or target.name,
        kind="lm",
        family="language",
        config=model.config.to_dict(),
        weights=weights,
        graphs=graphs,
        calibration=calibrate_language(
            model, np.load(source / VALIDATION_FILE, mmap_mode="r", allow_pickle=False), window=window
        ),
        golden=language_golden(graphs, weights, model.config, tokenizer.encode(GOLDEN_PROMPT).ids),
        metrics={key: record[key] for key in ("validation_loss", "bytes_per_token", "tokens", "parameters")},
        provenance={
            "training": {key: record[key] for key in ("config", "seconds", "data", "commit", "versions", "device")},
            "export": export_provenance(),
        },
        state=family.state(),
        extra_files={
            TOKENIZER_FILE: tokenizer_bytes,
            "tokenizer_config.json": tokenizer_config(tokenizer),
            **constants,
            **kernels,
        },
    )


def bundle_weights(model: LanguageModel) -> dict[str, np.ndarray]:
    """The model's tensors, and the state of a stream before its first token (`initial.*`) where it has one."""
    weights = {key: tensor.detach().numpy() for key, tensor in model.state_dict().items()}
    if "recurrent" not in model.config.modes:
        return weights
    start = model.init_state(1)
    return weights | {f"initial.{name}": part[0].detach().numpy() for name, part in _carried(start).items()}


def tokenizer_config(tokenizer: Tokenizer) -> bytes:
    """tokenizer_config.json for transformers' PreTrainedTokenizerFast."""
    special = sorted(entry.content for entry in tokenizer.get_added_tokens_decoder().values() if entry.special)
    end = {role: special[0] for role in ("bos_token", "eos_token") if special}
    document = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Neither mode has a longest context; this is what transformers writes for "no limit".
        "model_max_length": int(1e30),
        "clean_up_tokenization_spaces": False,
        **end,
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def language_golden(
    graphs: Mapping[str, Graph], weights: Mapping[str, np.ndarray], config: LanguageModelConfig, prompt: list[int]
) -> dict[str, Any]:
    """A prompt and its greedy continuation in each mode, with a sampled latent; over a filled cache, one step."""
    recorder = GoldenRecorder({key: open_session(graph, weights) for key, graph in graphs.items()}, weights)
    latent = 1, config.n_heads, 2 * config.head_dim
    continuation = {}
    if "recurrent" in config.modes:
        carried = [name.removeprefix("initial.") for name in weights if name.startswith("initial.")]
        continuation["recurrent"] = _recurrent_cases(recorder, prompt, latent, carried)
    continuation["attention"] = _attention_cases(recorder, prompt, latent, config.n_layers)
    return recorder.document(prompt=prompt, continuation=continuation)


def _recurrent_cases(
    recorder: GoldenRecorder, prompt: list[int], latent: tuple[int, int, int], carried: list[str]
) -> list[int]:
    silent, loud = Filled(latent), Filled(latent, 0.5)
    start: dict[str, Source] = {"position": _row(0), **{name: Stored(f"initial.{name}") for name in carried}}
    last = recorder.run("prefill", {"tokens": _row(prompt), "length": _row(len(prompt)), **start}, argmax=("logits",))
    recorder.run("step", {"token": _row(prompt[0]), "noise": loud, **start})
    tokens: list[int] = []
    for i in range(GOLDEN_TOKENS):
        tokens.append(int(last.outputs["logits"].argmax()))
        state: dict[str, Source] = {name: Earlier(last.case, f"next_{name}") for name in carried}
        inputs = {"token": _row(tokens[-1]), "position": _row(len(prompt) + i), "noise": silent, **state}
        last = recorder.run("step", inputs, argmax=("logits",))
    return tokens


def _attention_cases(
    recorder: GoldenRecorder, prompt: list[int], latent: tuple[int, int, int], layers: int
) -> list[int]:
    one, heads, width = latent
    silent, empty = Filled(latent), Filled((one, layers, heads, 1, width))
    tokens: list[int] = []
    nothing: dict[str, Source] = {"position": _row(0), "keys": empty, "values": empty, "noise": silent}
    first = last = recorder.run("attention", {"tokens": _row(prompt), **nothing}, argmax=("logits",))
    for _ in range(GOLDEN_TOKENS):
        tokens.append(int(last.outputs["logits"].argmax()))
        last = recorder.run("attention", {"tokens": _row(prompt + tokens), **nothing}, argmax=("logits",))
    cache: dict[str, Source] = {"keys": Earlier(first.case, "new_keys"), "values": Earlier(first.case, "new_values")}
    inputs = {"tokens": _row([tokens[0]]), "position": _row(len(prompt)), **cache, "noise": Filled(latent, 0.5)}
    recorder.run("attention", inputs, argmax=("logits",))
    return tokens


def _row(values: int | list[int]) -> np.ndarray:
    return np.array([values], np.int64)
