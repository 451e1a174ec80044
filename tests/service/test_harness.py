"""lm-evaluation-harness, unmodified: its model `local-completions` against a live server, where it is installed."""

from __future__ import annotations

import json
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


QUESTIONS: list[dict[str, Any]] = [
    {"question": "It was the best of", "choices": ["times", "the horse"], "answer": 0},
    {"question": "She looked at", "choices": ["of", "him", "“naïve”"], "answer": 1},
    {"question": "He said that he would", "choices": ["be", "and"], "answer": 1},
]


def test_multiple_choice(harness: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, tasks = pytest.importorskip("datasets"), pytest.importorskip("lm_eval.api.task")
    evaluator = pytest.importorskip("lm_eval.evaluator")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    config = {
        "task": "questions",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    }
    task = tasks.ConfigurableTask(config=config)
    found = evaluator.evaluate(lm=harness, task_dict={"questions": task}, bootstrap_iters=0)
    expected = []
    for question in QUESTIONS:
        prompt = model.vocabulary.encode(question["question"])
        texts = [f"{question['question']} {choice}" for choice in question["choices"]]
        expected.append([in_process(model, model.vocabulary.encode(text), len(prompt)) for text in texts])
    samples = sorted(found["samples"]["questions"], key=lambda sample: int(sample["doc_id"]))
    assert [[tuple(one) for one in sample["filtered_resps"]] for sample in samples] == expected
    best = [max(range(len(one)), key=lambda index: one[index][0]) for one in expected]
    right = [choice == question["answer"] for choice, question in zip(best, QUESTIONS, strict=True)]
    assert 0 < sum(right) < len(right)
    assert found["results"]["questions"]["acc,none"] == pytest.approx(sum(right) / len(right), rel=1e-12)
