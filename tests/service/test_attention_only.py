"""A language bundle without slots: attention over a cache on every runtime, and no word of a recurrence."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rfa.model.loading import load_model
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.text.language import Language, LanguageRuntime
from rfa.runtime.text.loading import load_on_cpu
from rfa.service.engine.models import Models, load_models
from rfa.service.engine.request_size import generation_request_bytes
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.settings import Settings
from tests.runtime.text.exact import EPS, ExactModel, begun, largest_errors, prompt_of, stepped
from tests.service.conftest import Connect


@pytest.fixture(scope="module")
def bundle(attention_bundle: Path) -> Bundle:
    return open_bundle(attention_bundle)


@pytest.fixture(scope="module", params=["onnx", "torch"])
def runtime(request: pytest.FixtureRequest, bundle: Bundle) -> Any:
    if request.param == "torch":
        return TorchLanguageRuntime(bundle, device="cpu", streams=2, max_rows=2)
    return LanguageRuntime(bundle, streams=2, max_rows=2)


@pytest.fixture(scope="module")
def models(attention_bundle: Path) -> Models:
    return load_models(settings_of(attention_bundle))


def settings_of(path: Path, **given: Any) -> Settings:
    return Settings(bundles=(path,), processes=1, workers=1, **given)


def test_outputs_are_as_good_as_those_of_the_model(
    runtime: Language, attention_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token over the cache, beside the model in float32, both against the model in float64."""
    tokens, read = prompt_of(runtime), 8
    noise = 0.5 * np.random.default_rng(0).standard_normal((1, *runtime.latent_shape)).astype(np.float32)
    exact = ExactModel(attention_bundle, monkeypatch).outputs(tokens, read, 0, "attention", noise)
    model = load_model(attention_bundle)
    with torch.no_grad():
        rows = [torch.tensor([tokens[: end + 1]]) for end in range(read, len(tokens))]
        plain = [model.extend(row, model.init_cache(1, 0), torch.from_numpy(noise))[0] for row in rows]
    allowed = largest_errors(plain, exact)
    found = largest_errors(stepped(runtime, begun(runtime, tokens[:read], "attention"), tokens[read:], noise), exact)
    assert all(found[name] <= 2 * allowed[name] + EPS for name in found), (found, allowed)


def test_compiled_code_is_refused_by_name_and_replaced_aloud(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnsupportedError, match=r"RFA_TEXT_RUNTIME=compiled .* it has no memory slots"):
        load_on_cpu(bundle, "compiled", 2, 1)
    with caplog.at_level(logging.INFO, logger="rfa.engine"):
        assert isinstance(load_on_cpu(bundle, "auto", 2, 1), LanguageRuntime)
    assert "uses ONNX Runtime instead of the compiled runtime: it has no memory slots" in caplog.text


# What the server says of it.


@pytest.mark.anyio
async def test_texts_are_decoded_in_attention_unless_the_recurrence_is_named(connect: Connect, models: Models) -> None:
    body = {"inputs": "It was the", "parameters": {"max_new_tokens": 12, "seed": 3, "temperature": 0.9}}
    async with connect(models) as client:
        silent = (await client.post("/generate", json=body)).json()
        parameters = {**body["parameters"], "decode": "attention"}  # type: ignore[dict-item]
        named = (await client.post("/generate", json={**body, "parameters": parameters})).json()
        assert silent["generated_text"] == named["generated_text"]
        assert silent["details"]["tokens"] == named["details"]["tokens"]
        assert silent["state"] is None
        completion = {"prompt": "It was the", "max_tokens": 12, "seed": 3, "temperature": 0.9}
        reply = (await client.post("/v1/completions", json=completion)).json()
        assert reply["choices"][0]["text"] == silent["generated_text"]


REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/generate", {"inputs": "a", "parameters": {"decode": "recurrent"}}, "parameters.decode", "no_such_mode"),
    ("/v1/completions", {"prompt": "a", "decode": "recurrent"}, "decode", "no_such_mode"),
    ("/generate", {"inputs": "a", "return_state": True}, "return_state", "no_state"),
    ("/generate", {"inputs": "a", "state": "AAAA"}, "state", "no_state"),
    ("/generate", {"inputs": "a", "return_state": "session:s"}, "return_state", "no_state"),
    ("/generate", {"inputs": "a" * 40, "parameters": {"max_new_tokens": 20}}, "parameters.max_new_tokens",
     "context_too_long"),
]  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize(("path", "body", "param", "code"), REFUSALS)
async def test_what_needs_slots_is_refused_by_name(
    connect: Connect, models: Models, path: str, body: dict[str, Any], param: str, code: str
) -> None:
    async with connect(models, max_attention_tokens=40) as client:
        reply = await client.post(path, json=body)
    error = reply.json()["error"]
    assert reply.status_code == 422, error
    assert (error["param"], error["code"]) == (param, code), error


@pytest.mark.anyio
async def test_the_server_says_how_it_decodes(connect: Connect, models: Models) -> None:
    async with connect(models) as client:
        reported = (await client.get("/info")).json()["models"][-1]
        (card,) = (await client.get("/v1/models")).json()["data"]
        metrics = (await client.get("/metrics")).text
    assert reported["modes"] == card["modes"] == ["attention"]
    assert set(reported["calibration"]["temperature"]) == {"attention"}
    assert re.findall(r'rfa_state_slots\{model_name="(.*)"\}', metrics) == ["auto", "auto-joint"]


def test_a_request_is_charged_with_its_cache_whether_it_names_the_mode_or_not(models: Models) -> None:
    (model,) = models.languages.values()
    silent, named = (
        generation_request_bytes(model, GenerateOptions(prompt="a" * 100, max_new_tokens=600, seed=0, mode=mode), 256)
        for mode in (None, "attention")
    )
    # A token of the prompt has at most four bytes: 400 + 600 tokens, in a power of two.
    assert silent == named >= 1024 * 2 * 2 * 2 * 12 * 4
