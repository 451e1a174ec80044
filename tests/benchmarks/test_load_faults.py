"""The load generator against servers with one planted fault each: the checker must name it, and find nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rfa.benchmarks.load.generator import BATCH_LEVELS, Generator, Share, Truths, longest_live
from rfa.benchmarks.load.scenario import BatchLoad, LiveLoad, Scenario, TextLoad
from rfa.benchmarks.load.truth import FilterQuestion, open_models, series_truths, text_truths
from tests.benchmarks.load_servers import FakeServer, change_a_digit, drop, repeat, serving
from tests.service.models import FakeLanguage, fake_models

LIVE = Scenario("live", seconds=0.5, warmup_seconds=0.0, live=LiveLoad(streams=3, rate=30, series=1, samples=1))
BATCH = Scenario("batch", seconds=0.3, warmup_seconds=0.0, batch=BatchLoad(rate=30, length=6, series=2))
TEXT = Scenario(
    "text",
    seconds=0.4,
    warmup_seconds=0.0,
    text=TextLoad(rate=25, prompt_tokens=4, new_tokens=6, cases=8, temperature=1.0, model="recite"),
)


@pytest.fixture(scope="module")
def filters(linear_bundle):
    return open_models([linear_bundle])


@pytest.fixture(scope="module")
def texts():
    # Unsure of its script, so that sampled texts differ.
    return fake_models(FakeLanguage(sureness=0.3))


@pytest.fixture(scope="module")
def truths(filters, texts):
    runtime = filters.filters["linear"]
    silent: Any = lambda done: None  # noqa: E731
    return Truths(
        text_truths(texts, TEXT.text, range(TEXT.text.cases), silent),
        series_truths(runtime, FilterQuestion(samples=1), range(1), longest_live(LIVE), silent),
        series_truths(runtime, FilterQuestion(BATCH_LEVELS), range(2), BATCH.batch.length, silent),
    )


def offer(scenario: Scenario, server: FakeServer, truths: Truths) -> dict[str, Any]:
    """What a generator in this process tallies."""

    async def run() -> dict[str, Any]:
        async with serving(server) as url:
            generator = Generator(scenario, url, Share(), truths)
            await generator.connect()
            return await generator.run(time.monotonic())

    return asyncio.run(run())["tally"]


def test_right_live_answers_are_right(filters, truths):
    tally = offer(LIVE, FakeServer(filters), truths)
    assert tally["wrong"] == tally["errors"] == {}
    counts = tally["counts"]
    assert counts["observation.sent"] == 45
    assert counts["observation.right"] == counts["observation.answered"] == counts["observation.good"] == 45


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (change_a_digit, {"numbers": 1}),
        (drop, {"order": 1}),
        (repeat, {"order": 1}),
        (lambda step: [{**step, "index": step["index"] - 1}], {"order": 2}),  # and the next one is ahead
        (lambda step: [{**step, "samples": []}], {"numbers": 1}),
        (lambda step: [{**step, "t": step["t"] + 1e-6}], {"time": 1}),
    ],
)
def test_a_wrong_reply_of_a_stream_is_found(filters, truths, fault, kinds):
    wrong = offer(LIVE, FakeServer(filters, fault=fault), truths)["wrong"]
    assert {name: wrong.get(name) for name in kinds} == kinds
    # A missing or surplus reply also shows in the count; nothing else is found.
    assert set(wrong) <= {*kinds, "order", "count"}


@pytest.mark.parametrize(
    ("ending", "kind"),
    [({"steps": 1}, "count"), ({"log_likelihood": 1.0}, "likelihood"), ({"log_likelihood": None}, "likelihood")],
)
def test_a_wrong_summary_of_a_stream_is_found(filters, truths, ending, kind):
    assert offer(LIVE, FakeServer(filters, ending=ending), truths)["wrong"] == {kind: 3}


def test_right_series_are_right(filters, truths):
    tally = offer(BATCH, FakeServer(filters), truths)
    assert tally["wrong"] == tally["errors"] == {}
    assert tally["counts"]["batch.right"] == tally["counts"]["batch.sent"] > 0


@pytest.mark.parametrize(("fault", "kind"), [(change_a_digit, "numbers"), (drop, "order"), (repeat, "order")])
def test_a_wrong_step_of_a_series_is_found(filters, truths, fault, kind):
    tally = offer(BATCH, FakeServer(filters, fault=fault), truths)
    assert tally["wrong"][kind] > 0
    assert "batch.right" not in tally["counts"]


def test_right_texts_are_right(texts, truths):
    tally = offer(TEXT, FakeServer(texts), truths)
    assert tally["wrong"] == tally["errors"] == {}
    assert tally["counts"]["text.right"] == tally["counts"]["text.sent"] > 0
    assert set(tally["histograms"]) == {"lateness", "ttft", "itl", "text"}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (lambda event: [{**event, "token": {**event["token"], "id": event["token"]["id"] + 1}}], "token"),
        (lambda event: [{**event, "token": {**event["token"], "logprob": 2 * event["token"]["logprob"]}}], "token"),
        (drop, "order"),
        (repeat, "order"),
    ],
)
def test_a_wrong_token_is_found(texts, truths, fault, kind):
    tally = offer(TEXT, FakeServer(texts, text_fault=fault), truths)
    assert tally["wrong"][kind] > 0
    assert "text.right" not in tally["counts"]


def test_refusals_are_counted_and_timed_apart_from_errors(texts, truths):
    refused = offer(TEXT, FakeServer(texts, status=429), truths)
    assert refused["errors"] == refused["wrong"] == {}
    assert refused["counts"]["text.rejected"] == refused["counts"]["text.sent"] > 0
    assert set(refused["histograms"]) == {"lateness", "rejection"}
    failed = offer(TEXT, FakeServer(texts, status=500), truths)
    assert set(failed["errors"]) == {"text status 500 planted"}
