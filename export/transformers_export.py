"""Export a language model to a directory that transformers loads with AutoModelForCausalLM.from_pretrained(…)."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer

from rfa.export.language_export import TOKENIZER_FILE, tokenizer_config
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.text.config import ABLATIONS, EXTENSIONS, LanguageModelConfig

SOURCE = Path(__file__).parent / "transformers_model.py"
MODULE = "modeling_rfa"
CONFIG_FILE = "config.json"


def export_transformers(source: str | Path, out: str | Path) -> dict[str, Any]:
    """Write the language model of a run or a bundle in the format of transformers. Its logits equal those of
    `load_model` within 1e-5.

    Args:
        source: Run or bundle.
        out: Directory to write.

    Returns:
        The content of config.json.

    Raises:
        FileNotFoundError: If `source` is neither a run nor a bundle.
        ValueError: If `source` is not a language model, the format does not support the model, or `out` contains other
            files.
    """
    model, target = load_model(source), Path(out)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"--format transformers supports only language models, but {source} is not one")
    if target.exists() and any(target.iterdir()) and not (target / f"{MODULE}.py").is_file():
        raise ValueError(f"--out {target} contains other files; choose another directory")
    check_supported(model.config)
    text = (Path(source) / TOKENIZER_FILE).read_bytes()
    tokenizer = Tokenizer.from_str(text.decode())
    target.mkdir(parents=True, exist_ok=True)
    document = config_document(model.config, tokenizer)
    (target / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")
    (target / TOKENIZER_FILE).write_bytes(text)
    (target / "tokenizer_config.json").write_bytes(tokenizer_config(tokenizer))
    shutil.copyfile(SOURCE, target / f"{MODULE}.py")
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return document


def check_supported(config: LanguageModelConfig) -> None:
    """Check that the exported format supports the configuration of a model.

    Raises:
        ValueError: If the mixer is not RFA, or the model has an ablation, an extension or a window.
    """
    usual = {"mixer": "rfa", "window": 0, **ABLATIONS, **EXTENSIONS}
    usual.pop("kernel")
    for name, value in usual.items():
        if getattr(config, name) != value:
            raise ValueError(f"--format transformers supports only {name} {value!r}, got {getattr(config, name)!r}")


def config_document(config: LanguageModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of config.json for transformers."""
    special = [entry for entry in sorted(tokenizer.get_added_tokens_decoder().items()) if entry[1].special]
    end = {name: special[0][0] for name in ("bos_token_id", "eos_token_id") if special}
    absent = {"mixer_options", *EXTENSIONS}
    return {
        "model_type": "rfa",
        "architectures": ["RfaForCausalLM"],
        "auto_map": {"AutoConfig": f"{MODULE}.RfaConfig", "AutoModelForCausalLM": f"{MODULE}.RfaForCausalLM"},
        "dtype": "float32",
        "mode": config.modes[-1],
        "rfa": {field.name: getattr(config, field.name) for field in fields(config) if field.name not in absent},
        **end,
    }
