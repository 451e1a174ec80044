"""The service over the default bundles: what it says must hold for the models that are shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.bundle.onnx_runtime import ort
from rfa.runtime.text.language import LanguageRuntime
from rfa.service.engine.models import load_models
from rfa.service.schemas.filter_replies import FilterReply
from rfa.service.schemas.server_replies import Info
from rfa.service.schemas.text_replies import GenerateReply
from rfa.service.settings import Settings
from tests.service.live import serving
from tests.service.replies import read

PROMPT = "It was the"
TIMES = [0.0, 0.1, 0.25, 0.25, 0.9, 1.0, 2.5]
OBSERVATIONS = [[1.0, 0.2], None, [0.7, None], [0.6, 0.5], [None, None], [40.0, -40.0], [0.1, 0.3]]


async def generate(client: httpx.AsyncClient, inputs: str = PROMPT, **parameters: Any) -> GenerateReply:
    response = await client.post("/generate", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return read(GenerateReply, response.content)


@pytest.mark.anyio
async def test_ready_with_all_default_bundles(bundles: Path) -> None:
    paths = Settings().models.bundles
    assert {path.name for path in paths} >= {"books", "linear", "oscillator"}
    assert all(path.parent == bundles for path in paths)
    async with serving(*(path.name for path in paths)) as client:
        assert set((await client.get("/ready")).json()["models"]) >= {"books", "linear", "oscillator"}
        info = read(Info, (await client.get("/info")).content)
    assert [model.name for model in info.models if not model.golden_values] == [
        "auto",
        "auto-joint",
        "default",
    ]  # of which nothing was trained
    assert all(len(model.digest) == 64 and model.calibration for model in info.models)
    # What is stated of confidence was checked where there is one: at most 1,024 held-out tokens are kept.
    rows = {model.name: model.ece_rows for model in info.models if model.kind == "lm"}
    assert rows == {"books": 1024, "events": 1022}
    assert {model.ece_rows for model in info.models if model.kind == "filter"} == {0}


@pytest.mark.parametrize(
    "name", ["oscillator", pytest.param("books", marks=pytest.mark.slow)]
)  # seconds for its graphs
def test_what_is_served_was_held_to_the_golden_outputs(
    bundles: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is opened once: a session of the same graph that nobody looked at would be another."""
    made: list[object] = []

    class Watched(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.runs = 0
            made.append(self)

        def run(self, *arguments: Any, **options: Any) -> Any:
            self.runs += 1
            return super().run(*arguments, **options)

    monkeypatch.setattr(ort, "InferenceSession", Watched)
    models = load_models(Settings(bundles=(bundles / name,), text_runtime="onnx", max_batch_rows=2))
    if name == "books":
        texts = models.languages[name]
        assert isinstance(texts, LanguageRuntime)
        served = [texts._step, texts._prefill, texts.attention]
    else:
        graphs: Any = models.filters[name].steps
        served = [graphs._step, graphs._attend, graphs._forecast]
    assert {id(session) for session in served} == {id(session) for session in made}
    assert all(session.runs for session in served)


@pytest.mark.anyio
@pytest.mark.parametrize("decode", ["recurrent", "attention"])
async def test_text_is_repeatable_and_details_hold_together(books_bundle: Path, decode: str) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.8, "top_p": 0.95, "seed": 7, "top_n_tokens": 5}
    asked["decode"] = decode
    async with serving("books") as client:
        first, again = await generate(client, **asked), await generate(client, **asked)
        other = await generate(client, **{**asked, "seed": 8})
    assert first.details is not None and first.details.top_tokens is not None
    assert first.generated_text == again.generated_text != other.generated_text
    tokens = first.details.tokens
    assert "".join(token.text for token in tokens) == first.generated_text
    assert all(0 < token.confidence < 1 and token.logprob < 0 for token in tokens)
    for token, top in zip(tokens, first.details.top_tokens, strict=True):  # type: ignore[arg-type]
        assert [item.logprob for item in top] == sorted((item.logprob for item in top), reverse=True)
        assert token.logprob <= top[0].logprob
        assert sum(np.exp(item.logprob) for item in top) <= 1 + 1e-9


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "mode"), [("linear", "recurrent"), ("oscillator", "recurrent"), ("oscillator", "attention")]
)
async def test_filter_streams_equal_the_whole(bundles: Path, name: str, mode: str) -> None:
    body = {
        "times": TIMES, "observations": OBSERVATIONS, "horizon": [0.1, 0.5], "samples": 3, "seed": 7, "mode": mode,
        "model": name, "noise": [None, 1.0, 2.0, 1.0, 1.0, 1.0, 0.5],
    }  # fmt: skip
    async with serving(name) as client:
        plain = await client.post("/filter", json=body)
        stream = await client.post("/filter", json={**body, "stream": True})
    reply = read(FilterReply, plain.content)
    *steps, done = [json.loads(line) for line in stream.text.splitlines()]
    assert steps == json.loads(plain.content)["steps"]
    assert done["done"] and done["log_likelihood"] == pytest.approx(reply.log_likelihood, rel=1e-6)
    outlier, missing = reply.steps[5], reply.steps[1]
    assert outlier.anomaly == pytest.approx(1 - 0.1 / 3)  # as rare as may be after two scores
    assert outlier.weight is not None and outlier.weight < 0.2
    assert missing.weight is missing.innovation is missing.nis is missing.anomaly is None
    assert reply.steps[2].innovation is not None and reply.steps[2].innovation[1] is None
    for step in reply.steps:
        for component, (low, high) in enumerate(step.interval["0.9"]):
            inner_low, inner_high = step.interval["0.5"][component]
            assert low < inner_low < step.mean[component] < inner_high < high
        assert [point.t for point in step.forecast] == [pytest.approx(step.t + ahead) for ahead in (0.1, 0.5)]
        assert np.shape(step.samples) == (3, 2)
