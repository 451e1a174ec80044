"""`rfa export --format transformers`: the exported code against the model, and in transformers if installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from rfa.cli.main import app
from rfa.export.transformers_export import check_supported, export_transformers
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.text.config import MODES, LanguageModelConfig, Mode

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
TOKENS = torch.randint(0, 300, (2, 37), generator=torch.Generator().manual_seed(0))


class _Pretrained:
    """What the file uses of a configuration of transformers."""

    def __init__(self, **others: Any) -> None:
        self.others = others


class _PretrainedModel(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def post_init(self) -> None:
        pass


class _Output:
    def __init_subclass__(cls) -> None:
        pass


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The exported file, imported with stand-ins for the base classes of transformers."""
    stub, utils = ModuleType("transformers"), ModuleType("transformers.utils")
    bases = {"GenerationMixin": type("GenerationMixin", (), {}), "PretrainedConfig": _Pretrained}
    stub.__dict__.update(bases, PreTrainedModel=_PretrainedModel)
    utils.__dict__["ModelOutput"] = _Output
    monkeypatch.setitem(sys.modules, "transformers", stub)
    monkeypatch.setitem(sys.modules, "transformers.utils", utils)
    monkeypatch.delitem(sys.modules, "rfa.export.transformers_model", raising=False)
    module = import_module("rfa.export.transformers_model")
    monkeypatch.delitem(sys.modules, "rfa.export.transformers_model")
    return module


def drawn(**changes: Any) -> LanguageModel:
    """A small model with weights that are all away from their start."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 300, "d_model": 32, "n_layers": 2, "n_heads": 2, "head_dim": 8, "n_slots": 4}
    model = LanguageModel(LanguageModelConfig.from_dict({**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def exported(code: ModuleType, model: LanguageModel, mode: Mode) -> Any:
    config = code.RfaConfig(rfa=model.config.to_dict(), mode=mode)
    ported = code.RfaForCausalLM(config)
    ported.load_state_dict(model.state_dict())
    model.mode = mode
    return ported.eval()


CASES = {
    "usual": {},
    "own": {"own_readout": True, "output_gate": True, "learned_decay": True},
    "three passes": {"inner": 3, "innovation": "value"},
    "plain slots": {"robust_slots": False, "frequencies": "full"},
    "no rotation": {"frequencies": "none", "zero_decay_fraction": 1.0},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_file_computes_the_model(code: ModuleType, changes: dict[str, Any], mode: Mode) -> None:
    model = drawn(**changes)
    ported = exported(code, model, mode)
    with torch.no_grad():
        torch.testing.assert_close(ported(TOKENS).logits, model(TOKENS).logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ported.double()(TOKENS).logits, model.double()(TOKENS).logits, atol=1e-6, rtol=1e-6)


def test_the_gaussian_kernel_is_exported(code: ModuleType) -> None:
    model = drawn(kernel="gaussian", n_slots=0)
    ported = exported(code, model, "attention")
    with torch.no_grad():
        torch.testing.assert_close(ported(TOKENS).logits, model(TOKENS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_state_goes_on_and_padding_changes_nothing(code: ModuleType, mode: Mode) -> None:
    ported = exported(code, drawn(), mode)
    with torch.no_grad():
        whole = ported(TOKENS).logits
        first = ported(TOKENS[:, :20])
        rest = ported(TOKENS[:, 20:], state=first.state).logits
        torch.testing.assert_close(rest, whole[:, 20:], atol=1e-5, rtol=1e-5)
        padded = torch.cat([torch.zeros(2, 5, dtype=torch.int64), TOKENS], 1)
        mask = (torch.arange(42) >= 5).long().expand(2, -1)
        torch.testing.assert_close(ported(padded, mask).logits[:, 5:], whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"), [({"window": 8}, "window 0"), ({"prior": "additive", "n_slots": 0}, "prior 'lyapunov'")]
)
def test_other_models_are_refused(changes: dict[str, Any], message: str) -> None:
    config = dataclasses.replace(drawn().config, **changes)
    with pytest.raises(ValueError, match=message):
        check_supported(config)


def test_the_command_writes_a_folder(language_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    options = ["export", str(language_run), "--out", str(out), "--format", "transformers"]
    assert CliRunner().invoke(app, options, catch_exceptions=False).exit_code == 0
    config = json.loads((out / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_rfa.RfaForCausalLM"
    assert (out / "tokenizer.json").read_bytes() == (language_run / "tokenizer.json").read_bytes()
    assert set(load_file(out / "model.safetensors")) == set(load_model(language_run).state_dict())
    (tmp_path / "other").write_text("something else")
    with pytest.raises(ValueError, match="choose another directory"):
        export_transformers(language_run, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="transformers is not installed")
def test_transformers_loads_and_generates(language_bundle: Bundle, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export_transformers(language_bundle.path, tmp_path / "hf")
    ported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    own = load_model(language_bundle.path)
    ids = tokenizer("It was the best of times", return_tensors="pt").input_ids
    for mode in MODES:
        ported.config.mode = own.mode = mode
        with torch.no_grad():
            torch.testing.assert_close(ported(ids).logits, own(ids).logits, atol=1e-5, rtol=1e-5)
        made = ported.generate(ids, max_new_tokens=8, do_sample=False)
        assert torch.equal(made, ported.generate(ids, max_new_tokens=8, do_sample=False, use_cache=False))
        texts = ["It was the best of times", "Two"]
        tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
        batch = ported.generate(
            **tokenizer(texts, return_tensors="pt", padding=True), max_new_tokens=8, do_sample=False
        )
        assert torch.equal(batch[:1, -8:], made[:, -8:])
