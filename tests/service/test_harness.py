"""lm-evaluation-harness, unmodified: its model `local-completions` against a live server, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.scores import score_tokens
from tests.service.models import fake_models

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
TEXTS = [
    ("It was the best of times,", " it was the worst of times"),
    ("She looked at", " him with a smile."),
    ("He said that he would", " not"),
    ("“Well,” said he,", " “naïve — and so on”"),
]


@pytest.fixture(scope="module")
def model(books_bundle: Path) -> Any:
    from rfa.runtime.text.loading import load_on_cpu

    return load_on_cpu(open_bundle(books_bundle), "auto", 64, 24)


@pytest.fixture(scope="module")
def harness(live: Any, model: Any) -> Iterator[Any]:
    completions = pytest.importorskip("lm_eval.models.openai_completions")
    with live(fake_models(model)) as address:
        yield completions.LocalCompletionsAPI(
            base_url=f"{address}/v1/completions", model="books", batch_size=4, num_concurrent=1, max_length=512
        )


def requests(kind: str, arguments: list[Any]) -> list[Any]:
    instance: Any = pytest.importorskip("lm_eval.api.instance")
    return [instance.Instance(kind, {}, one, index) for index, one in enumerate(arguments)]


def in_process(model: Any, tokens: list[int], start: int) -> tuple[float, bool]:
    """The sum of the log probabilities from a place on, and whether those tokens are the most probable ones."""
    context = model.start("recurrent")
    logits, _ = model.logits_of(context, tokens[:-1])
    context.release()
    scores = score_tokens(logits, tokens[1:], model.confidence("recurrent").temperature, 0)
    return sum(scores.log_probability[start - 1 :].tolist()), bool((scores.rank[start - 1 :] == 1).all())


def test_likelihoods_are_those_of_the_process_to_the_last_digit(harness: Any, model: Any) -> None:
    found = harness.loglikelihood(requests("loglikelihood", TEXTS))
    for (context, continuation), result in zip(TEXTS, found, strict=True):
        tokens = model.vocabulary.encode(context + continuation)
        assert result == in_process(model, tokens, len(model.vocabulary.encode(context)))


def test_rolling_likelihoods(harness: Any, model: Any) -> None:
    texts = [" ".join(context + continuation for context, continuation in TEXTS)] * 2
    found = harness.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,) for text in texts]))
    tokens = [model.vocabulary.end_of_text, *model.vocabulary.encode(texts[0])]
    assert found == [in_process(model, tokens, 1)[0]] * 2


def test_texts_are_generated_until_a_stop(harness: Any) -> None:
    options = {"until": ["."], "max_gen_toks": 24, "temperature": 0}
    found = harness.generate_until(requests("generate_until", [(context, options) for context, _ in TEXTS]))
    assert len(found) == 4 and all(text and "." not in text for text in found)
