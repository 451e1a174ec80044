"""Read and write runs. A run consists of the configuration in JSON, and the weights in safetensors. `rfa.model.loading`
also reads bundles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save_file
from torch import Tensor, nn

from rfa.model.deep_blocks import DeepFilterConfig
from rfa.model.deep_filter import DeepFilter
from rfa.model.language import LanguageModel
from rfa.model.linear_filter import LinearFilter
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.series.config import SeriesConfig
from rfa.runtime.text.config import LanguageModelConfig

# Configuration class and module class of each family. The family is stored in config.json and in manifests of bundles.
FAMILIES: dict[str, tuple[Any, Any]] = {
    "language": (LanguageModelConfig, LanguageModel),
    "linear": (LinearFilterConfig, LinearFilter),
    "deep": (DeepFilterConfig, DeepFilter),
    "series": (SeriesConfig, SeriesNetwork),
}
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# Prefix of the names of tensors in bundles that the module derives from its weights.
DERIVED_PREFIX = "initial."


def save_checkpoint(directory: Path, family: str, module: nn.Module) -> None:
    """Write `config.json` and `model.safetensors` of a module to `directory`, which is created if it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    document = {"family": family, "config": module.config.to_dict()}  # type: ignore[union-attr, operator]
    (directory / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    save_file(state, directory / WEIGHTS_FILE)


def load_run(run: str | Path) -> Any:
    """Load a trained model from a run directory, in evaluation mode.

    Raises:
        FileNotFoundError: If the directory is not a run.
        ValueError: If the family or a configuration key is unknown, or the weights do not match the configuration.
    """
    directory = Path(run)
    family, config = read_config(directory)
    return build_model(family, config, load((directory / WEIGHTS_FILE).read_bytes()))


def read_config(run: Path) -> tuple[str, dict[str, Any]]:
    """Read the family and the configuration of a run.

    Raises:
        FileNotFoundError: If the directory contains no config.json.
        ValueError: If config.json is not valid JSON, or does not contain a known `family` and a `config`.
    """
    path = run / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run directory, because it does not contain {CONFIG_FILE}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    fields = document if isinstance(document, dict) else {}
    family, config = fields.get("family"), fields.get("config")
    if family not in FAMILIES or not isinstance(config, dict):
        names = ", ".join(FAMILIES)
        raise ValueError(f"{path} must contain `config` and `family`, which is one of {names}")
    return family, config


def load_run_of(directory: Path, kind: type[Any], description: str, command: str) -> Any:
    """Load a run, and check the class of its model. See `load_run`.

    Args:
        directory: Run directory.
        kind: Class of the model.
        description, command: The kind in words, and as an argument of `rfa train`, for the error message.

    Raises:
        ValueError: If the run contains another kind of model.
    """
    model = load_run(directory)
    if not isinstance(model, kind):
        raise ValueError(f"{directory} is not the run of {description}; create one with `rfa train {command}`")
    return model


def build_model(family: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """Build a module in evaluation mode, and return it.

    Args:
        family: Family of the module, a key of `FAMILIES`.
        config: Configuration of the module.
        weights: Weights of the module. Tensors that the module derives from its weights are ignored.

    Raises:
        ValueError: If a configuration key is unknown, or the weights are not finite or do not match the configuration.
    """
    config_class, module_class = FAMILIES[family]
    module: nn.Module = module_class(config_class.from_dict(config))
    expected = set(module.state_dict())
    kept = {name: tensor for name, tensor in weights.items() if name in expected or not name.startswith(DERIVED_PREFIX)}
    if set(kept) != expected:
        missing, unexpected = sorted(expected - set(kept))[:5], sorted(set(kept) - expected)[:5]
        raise ValueError(f"{WEIGHTS_FILE} does not match the model: {missing} are missing, {unexpected} are unexpected")
    broken = sorted(name for name, tensor in kept.items() if not tensor.isfinite().all())
    if broken:
        raise ValueError(f"{WEIGHTS_FILE}: {broken[0]} contains a value that is not finite")
    module.load_state_dict(kept)
    return module.eval()
