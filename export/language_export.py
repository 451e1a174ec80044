"""Export a trained language model as a bundle. It contains weights, graphs, tokenizer, calibration and golden cases."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer

from rfa.export.golden_recording import Earlier, Filled, GoldenRecorder, Source, Stored
from rfa.export.language_calibration import calibrate_language
from rfa.export.language_graphs import carried_state, language_graphs
from rfa.export.writing import write_bundle
from rfa.measured import git_commit
from rfa.model.checkpoint import load_run_of
from rfa.model.decoder_constants import decoder_constants
from rfa.model.language import LanguageModel
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, Graph, open_session
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.bundle.held_out import WINDOW
from rfa.runtime.text.config import LanguageModelConfig

GOLDEN_PROMPT = "It was the best of times, it was the"
GOLDEN_TOKENS = 8
RECORD_FILE = "train.json"
VALIDATION_FILE = Path("corpus") / "valid.npy"
TOKENIZER_FILE = "tokenizer.json"
# Entries of the training record that the manifest repeats.
METRICS = ("validation_loss", "bytes_per_token", "tokens", "parameters")
LIBRARIES = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy", "safetensors")
TRAINING = ("config", "seconds", "data", "commit", "versions", "device")
# Name of the entry with the hash of the weights from which the training started. It is absent if they were random.
EARLIER = "from"


def export_language(
    run: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    window: int = WINDOW,
    architectures: Sequence[int] = (),
) -> Bundle:
    """Export the run directory of a language model (`rfa train lm`) as a bundle, and return the bundle.

    The calibration uses the run's validation tokens (`corpus/valid.npy`).

    Args:
        run: Run directory.
        out: Directory of the bundle.
        name: Name of the bundle. By default, the name of the directory `out`.
        window: Context length of the calibration in tokens.
        architectures: GPU architectures to compile kernels for, such as 80 and 90.

    Raises:
        FileNotFoundError: If a file of the run is missing.
        ValueError: If the run is not a language model, or bundles do not support the model.
        KernelCompilationError: If a kernel does not compile, or no kernel supports this model.
    """
    source, target = Path(run), Path(out)
    model: LanguageModel = load_run_of(source, LanguageModel, "a language model", "lm")
    kernels = _compiled_kernels(model, architectures)
    record = json.loads((source / RECORD_FILE).read_text())
    tokenizer_bytes = (source / TOKENIZER_FILE).read_bytes()
    tokenizer = Tokenizer.from_str(tokenizer_bytes.decode())
    validation = np.load(source / VALIDATION_FILE, mmap_mode="r", allow_pickle=False)
    weights, graphs = bundle_weights(model), language_graphs(model)
    family = LanguageConfig.model_validate(model.config.to_dict())
    constants = {CONSTANTS_FILE: constants_file(model)} if family.has_constants else {}
    tokenizer_files = {TOKENIZER_FILE: tokenizer_bytes, "tokenizer_config.json": tokenizer_config(tokenizer)}
    return write_bundle(
        target,
        name=name or target.name,
        kind="lm",
        family="language",
        config=model.config.to_dict(),
        weights=weights,
        graphs=graphs,
        calibration=calibrate_language(model, validation, window=window),
        golden=language_golden(graphs, weights, model.config, tokenizer.encode(GOLDEN_PROMPT).ids),
        metrics={key: record[key] for key in METRICS},
        provenance=_provenance(record),
        state=family.state(),
        extra_files={**tokenizer_files, **constants, **kernels},
    )


def _provenance(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of the training, and the library versions and the commit of the working tree at the export. The
    text of the commit says whether the working tree has changes. The commit is None outside a checkout."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    return {
        "training": {key: record[key] for key in (*TRAINING, *({EARLIER} & record.keys()))},
        "export": {"commit": git_commit(), "versions": versions},
    }


def _compiled_kernels(model: LanguageModel, architectures: Sequence[int]) -> dict[str, bytes]:
    if not architectures:
        return {}
    from rfa.export.kernel_compile import kernel_files

    return kernel_files(model.config, architectures)


def constants_file(model: LanguageModel) -> bytes:
    """Return the content of decoder.safetensors, which stores the constrained parameters for the compiled decoder."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in decoder_constants(model).items()}
    return bytes(safetensors.numpy.save(arrays))


def bundle_weights(model: LanguageModel) -> dict[str, np.ndarray]:
    """Return the tensors of the model and, if it has memory slots, the state before the first token (`initial.*`)."""
    weights = {key: tensor.detach().numpy() for key, tensor in model.state_dict().items()}
    if "recurrent" not in model.config.modes:
        return weights
    start = model.init_state(1)
    return weights | {f"initial.{name}": part[0].detach().numpy() for name, part in carried_state(start).items()}


def tokenizer_config(tokenizer: Tokenizer) -> bytes:
    """Return the content of tokenizer_config.json for the class PreTrainedTokenizerFast of transformers."""
    special = sorted(entry.content for entry in tokenizer.get_added_tokens_decoder().values() if entry.special)
    end = {role: special[0] for role in ("bos_token", "eos_token") if special}
    document = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # The value that transformers writes for "no limit".
        "model_max_length": int(1e30),
        "clean_up_tokenization_spaces": False,
        **end,
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def language_golden(
    graphs: Mapping[str, Graph], weights: Mapping[str, np.ndarray], config: LanguageModelConfig, prompt: list[int]
) -> dict[str, Any]:
    """Record and return golden cases: a prompt and its greedy continuation in each mode, and a step with latent noise.

    For a model with K > 1 passes, the last cases have fewer passes. They come last because some runtimes support only K
    passes, and check only the cases before them.

    Args:
        graphs: Mapping from names to graphs.
        weights: Mapping from names to tensors of model.safetensors.
        config: Configuration of the model.
        prompt: Tokens of the prompt.
    """
    recorder = GoldenRecorder({key: open_session(graph, weights) for key, graph in graphs.items()}, weights)
    latent = 1, config.n_heads, 2 * config.head_dim
    continuation = {}
    if "recurrent" in config.modes:
        carried = [name.removeprefix("initial.") for name in weights if name.startswith("initial.")]
        start: dict[str, Source] = {name: Stored(f"initial.{name}") for name in carried}
        passes: dict[str, Source] = {"passes": _row(config.inner)} if config.takes_passes else {}
        continuation["recurrent"] = _recurrent_cases(recorder, prompt, latent, start, passes)
    continuation["attention"] = _attention_cases(recorder, prompt, latent, config.n_layers)
    if config.takes_passes:
        for fewer in range(1, config.inner):
            inputs = {"passes": _row(fewer), "position": _row(0), **start}
            recorder.run("prefill", {"tokens": _row(prompt), "length": _row(len(prompt)), **inputs}, argmax=("logits",))
            recorder.run("step", {"token": _row(prompt[0]), "noise": Filled(latent), **inputs})
    return recorder.document(prompt=prompt, continuation=continuation)


def _recurrent_cases(
    recorder: GoldenRecorder,
    prompt: list[int],
    latent: tuple[int, int, int],
    initial: dict[str, Source],
    passes: dict[str, Source],
) -> list[int]:
    silent, loud = Filled(latent), Filled(latent, 0.5)
    start: dict[str, Source] = {"position": _row(0), **passes, **initial}
    last = recorder.run("prefill", {"tokens": _row(prompt), "length": _row(len(prompt)), **start}, argmax=("logits",))
    recorder.run("step", {"token": _row(prompt[0]), "noise": loud, **start})
    tokens: list[int] = []
    for i in range(GOLDEN_TOKENS):
        tokens.append(int(last.outputs["logits"].argmax()))
        state: dict[str, Source] = {name: Earlier(last.case, f"next_{name}") for name in initial}
        inputs = {"token": _row(tokens[-1]), "position": _row(len(prompt) + i), "noise": silent, **passes, **state}
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
