"""The drift of the two decoders: the KL of hand-made distributions, of a bundle prefix by prefix, and its bounds."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.contexts import StepOutput
from rfa.runtime.text.loading import load_on_cpu
from rfa.service.engine.text.drift import MAX_PROMPT, MAX_TOKENS, DriftSample, DriftTally, drift_sample, drift_steps
from tests.runtime.text.exact import read_on
from tests.service.models import FakeLanguage, Seen, SeenMore, fake_models
from tests.waiting import until

pytestmark = pytest.mark.anyio
BUNDLES = Path(__file__).parents[2] / "bundles"
SURE = {"recurrent": 0.9, "attention": 0.6}


@dataclass
class ModalSeen(Seen):
    """A context that knows its mode, and whoever counts the contexts that are not given back."""

    mode: str = ""
    open: Any = None

    def fork(self) -> ModalSeen:
        self.open.append(1)
        return ModalSeen(self.tokens, self.noise, False, self.mode, self.open)

    def release(self) -> None:
        super().release()
        self.open.pop()


class Modal(FakeLanguage):
    """Two modes that recite the same, one surer than the other; `held` stops whoever reads in the other mode."""

    def __init__(self, held: threading.Semaphore | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self.open: list[int] = []
        self.by_mode = {mode: FakeLanguage(sureness=sure, **fields) for mode, sure in SURE.items()}
        self.by_mode["attention"].gate = held

    def start(
        self, mode: str, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
    ) -> ModalSeen:
        self.open.append(1)
        return ModalSeen(mode=mode, open=self.open)

    def unpack(self, data: bytes, passes: int | None = None) -> ModalSeen:
        seen = super().unpack(data)
        self.open.append(1)
        return ModalSeen(seen.tokens, seen.noise, mode="recurrent", open=self.open)

    def step(
        self, contexts: Sequence[Any], tokens: Sequence[int], noise: np.ndarray
    ) -> tuple[StepOutput, list[SeenMore]]:
        return self.by_mode[contexts[0].mode].step(contexts, tokens, noise)


def counted(client: Any, name: str) -> float:
    registry = client.app.state.metrics.registry
    labels = {"model_name": "recite", "decode": "recurrent"}
    return registry.get_sample_value(f"rfa_decoder_drift_{name}_total", labels) or 0.0


async def generate(client: httpx.AsyncClient, inputs: str = "say |", **more: Any) -> Any:
    parameters = {"max_new_tokens": 5, "do_sample": False}
    response = await client.post("/generate", json={"inputs": inputs, "parameters": parameters, **more})
    assert response.status_code == 200, response.text
    return response.json()


async def test_every_so_many_texts_one_is_held_against_the_other_mode(connect: Any) -> None:
    """The divergence is that of the two distributions; contexts are given back."""
    model = Modal()
    async with connect(fake_models(model), drift_every=3) as client:
        for _ in range(2):
            await generate(client)
        assert client.app.state.engine._drift._thread is None
        await generate(client)
        await until(lambda: counted(client, "tokens") == 5)
        await until(lambda: not model.open)
        p, q = SURE["recurrent"], SURE["attention"]
        nats = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
        # The fake's logits are float32.
        assert counted(client, "nats") == pytest.approx(5 * nats, rel=1e-5)
        assert counted(client, "agreed_tokens") == 5
        text = (await client.get("/metrics")).text
    assert 'rfa_decoder_drift_tokens_total{decode="recurrent",model_name="recite"} 5.0' in text


async def test_requests_do_not_wait_for_it_and_one_is_taken_at_a_time(connect: Any) -> None:
    held = threading.Semaphore(0)
    model = Modal(held)
    async with connect(fake_models(model), drift_every=1) as client:
        first = await generate(client)
        for _ in range(4):
            assert (await generate(client))["generated_text"] == first["generated_text"]
        assert counted(client, "tokens") == 0
        assert len([thread for thread in threading.enumerate() if thread.name == "rfa-drift"]) == 1
        held.release(5)
        await until(lambda: counted(client, "tokens") == 5)
        await until(lambda: not model.open)
        held.release(1000)
        assert counted(client, "tokens") == 5  # those that came in between were not kept


async def test_a_model_that_breaks_down_is_counted_nowhere(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Modal()
    model.by_mode["attention"].poison = "say"
    async with connect(fake_models(model), drift_every=1) as client:
        await generate(client)
        await until(lambda: "could not compare the decoding modes for a text" in caplog.text)
        await until(lambda: not model.open)
        assert counted(client, "tokens") == 0
        assert (await generate(client))["generated_text"]


def finished(**change: Any) -> Any:
    """As much of a finished job as is looked at."""
    given: dict[str, Any] = {"prompt": [1, 2, 3], "ids": [4, 5], "modes": ("attention", "recurrent")}
    given |= {"resumed": None, "runtime": "onnx", **change}
    events = [SimpleNamespace(token=SimpleNamespace(id=token)) for token in given["ids"]]
    return SimpleNamespace(
        model=SimpleNamespace(modes=given["modes"], runtime=given["runtime"]), mode="recurrent",
        options=SimpleNamespace(resumed=given["resumed"], passes=None), prompt=given["prompt"],
        streams=[SimpleNamespace(events=events)],
    )  # fmt: skip


def test_what_is_read_again_is_bounded() -> None:
    sample = drift_sample(finished())
    assert sample is not None
    assert (sample.mode, sample.other, sample.prompt, sample.tokens) == ("recurrent", "attention", (1, 2), (3, 4))
    long = drift_sample(finished(prompt=[7] * MAX_PROMPT, ids=list(range(1000))))
    assert long is not None
    assert (len(long.prompt), long.tokens) == (MAX_PROMPT - 1, (7, *range(MAX_TOKENS - 1)))
    for change in (
        {"prompt": [7] * (MAX_PROMPT + 1)}, {"ids": []}, {"modes": ("recurrent",)}, {"resumed": object()},
        {"runtime": "torch"},
    ):  # fmt: skip
        assert drift_sample(finished(**change)) is None


@pytest.mark.parametrize("runtime", ["compiled", pytest.param("onnx", marks=pytest.mark.slow)])  # twice as long
def test_the_divergence_of_a_bundle_is_that_of_its_prefixes(runtime: Any) -> None:
    """Each prefix is read from its beginning, in each mode; softmax and KL are spelt out in float64."""
    model = load_on_cpu(open_bundle(BUNDLES / "books"), runtime, 4, 2)
    ids = model.vocabulary.encode("It was the best of times, it was the worst of times, it was the age")
    prompt, tokens = ids[:9], ids[9:]
    sample = DriftSample(model, "recurrent", "attention", tuple(prompt), tuple(tokens))
    tally = DriftTally()
    assert sum(1 for _ in drift_steps(sample, tally)) == 2 + len(tokens)
    assert model.pool.in_use == 0
    nats, agreed = 0.0, 0
    for end in range(len(prompt) + 1, len(ids) + 1):
        found = []
        for mode in ("recurrent", "attention"):
            context = model.start(mode)  # type: ignore[arg-type]
            read_on(model, context, ids[: end - 1]).commit()
            output, _ = model.step([context], [ids[end - 1]], np.zeros((1, *model.latent_shape), np.float32))
            context.release()
            logits = output.logits[0].astype(np.float64)
            weights = np.exp(logits - logits.max())
            found.append(weights / weights.sum())
        p, q = found
        nats += float((p * np.log(p / q)).sum())
        agreed += int(np.argmax(p) == np.argmax(q))
    assert tally.tokens == len(tokens)
    assert nats > 0.01 * len(tokens)
    # Logits up to some tens in float32, read in other pieces: 1e-4 of each log probability at most.
    assert abs(tally.nats - nats) <= 2e-4 * len(tokens)
    assert tally.agreed == agreed
