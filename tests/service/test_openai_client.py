"""OpenAI's unmodified client against a live server: texts, streams, usage, refusals and retries as it expects them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from rfa.service.schemas.openai import Completion as CompletionReply
from rfa.service.schemas.openai import CompletionChunk, CompletionRequest, ModelList
from tests.lazy import LazyModule
from tests.service.models import FakeLanguage, byte_vocabulary, fake_models, slow_down
from tests.service.replies import read
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    import openai
    from openai.types import Completion
else:
    openai = LazyModule("openai")

SCRIPT = "the quick brown fox"
# What `vllm bench serve` sends besides the model and the prompt.
BENCHMARK: dict[str, Any] = {
    "temperature": 0.0,
    "repetition_penalty": 1.0,
    "max_tokens": 8,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# Values without effect of fields of OpenAI, of vLLM and of ours.
NEUTRAL: dict[str, Any] = {
    "best_of": 1, "suffix": "", "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "someone",
    "repetition_penalty": 1.0, "min_p": 0, "min_tokens": 0, "stop_token_ids": [], "ignore_eos": False, "typical_p": 1,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "add_special_tokens": True,
    "use_beam_search": False, "length_penalty": 1, "early_stopping": False, "include_stop_str_in_output": False,
    "bad_words": [], "allowed_token_ids": None, "priority": 0, "response_format": {"type": "text"},
    "return_tokens_as_token_ids": False,
}  # fmt: skip


def client_of(address: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{address}/v1", **{"api_key": "any", "max_retries": 0, "timeout": PATIENCE, **options}
    )


@pytest.fixture(scope="module")
def address(live: Any) -> Iterator[str]:
    with live(fake_models(FakeLanguage(poison="bad"))) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with client_of(address) as client:
        yield client


@pytest.fixture(scope="module")
def unsure(live: Any) -> Iterator[openai.OpenAI]:
    """A model whose samples differ from its most probable text."""
    with live(fake_models(FakeLanguage(sureness=0.3))) as address, client_of(address) as client:
        yield client


def create(client: openai.OpenAI, prompt: Any = "say |", **options: Any) -> Completion:
    return client.completions.create(**{"model": "recite", "prompt": prompt, "temperature": 0, **options})


def streamed(client: openai.OpenAI, prompt: Any = "say |", **options: Any) -> openai.Stream[Completion]:
    asked = {"model": "recite", "prompt": prompt, "temperature": 0, **options}
    return client.completions.create(**asked, stream=True)


def texts(completion: Completion) -> list[str]:
    assert [choice.index for choice in completion.choices] == list(range(len(completion.choices)))
    return [choice.text for choice in completion.choices]


def test_models(client: openai.OpenAI, address: str) -> None:
    assert [model.id for model in client.models.list()] == ["recite"]
    assert client.models.retrieve("recite").to_dict() == {
        "id": "recite", "object": "model", "created": 0, "owned_by": "rfa-server", "digest": "0" * 64,
        "modes": ["attention", "recurrent"], "passes": [1, 1],
    }  # fmt: skip
    read(ModelList, httpx.get(f"{address}/v1/models", timeout=PATIENCE).content)
    for other in ("nope", "mean", "some/where"):  # `mean` is a filter
        with pytest.raises(openai.NotFoundError) as missing:
            client.models.retrieve(other)
        assert missing.value.code == "model_not_found"


def test_a_text_to_its_end(client: openai.OpenAI) -> None:
    completion = create(client, max_tokens=40)
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == (SCRIPT, "stop", 0, None)
    assert choice.ended_by == "eos_token"  # type: ignore[attr-defined]
    assert (completion.object, completion.model) == ("text_completion", "recite")
    assert completion.system_fingerprint is not None and completion.system_fingerprint.endswith("0" * 12)
    assert completion.usage is not None
    assert completion.usage.to_dict() == {
        "prompt_tokens": 5, "completion_tokens": len(SCRIPT) + 1, "total_tokens": 5 + len(SCRIPT) + 1,
    }  # fmt: skip


def test_sixteen_tokens_unless_reported(client: openai.OpenAI) -> None:
    (choice,) = create(client).choices
    assert (choice.text, choice.finish_reason) == (SCRIPT[:16], "length")


@pytest.mark.parametrize("stop", ["ck b", ["quiet", "ck b"]])
def test_stop_sequences(client: openai.OpenAI, stop: Any) -> None:
    (choice,) = create(client, stop=stop).choices
    assert (choice.text, choice.finish_reason) == ("the qui", "stop")
    assert choice.ended_by == "stop_sequence"  # type: ignore[attr-defined]


def test_a_null_prompt_and_an_empty_one_begin_a_document(client: openai.OpenAI) -> None:
    for prompt in (None, "", [""]):
        completion = create(client, prompt, max_tokens=3)
        assert completion.choices[0].text == "ttt"
        assert completion.usage is not None and completion.usage.prompt_tokens == 1


def test_a_prompt_in_tokens_is_the_prompt_in_text(client: openai.OpenAI) -> None:
    vocabulary = byte_vocabulary()
    expected: dict[str, Any] = {"max_tokens": 4, "echo": True}
    one, other = vocabulary.encode("né |"), vocabulary.encode("|")
    assert texts(create(client, one, **expected)) == texts(create(client, "né |", **expected)) == ["né |the "]
    assert texts(create(client, [one, other], **expected)) == ["né |the ", "|the "]
    joined = gathered(list(streamed(client, [one, other], **expected)))
    assert [joined[index]["text"] for index in (0, 1)] == ["né |the ", "|the "]
    alone = create(client, [vocabulary.end_of_text], max_tokens=3)
    assert alone.choices[0].text == "ttt"
    assert alone.usage is not None and alone.usage.prompt_tokens == 1


def test_prompts_and_choices_come_in_order_and_do_not_depend_on_each_other(unsure: openai.OpenAI) -> None:
    expected: dict[str, Any] = {"temperature": 1.0, "n": 3, "seed": 5, "max_tokens": 8}
    prompts = ["say |", "x", "say |", "go |"]
    together = create(unsure, prompts, **expected)
    alone = [create(unsure, prompt, **expected) for prompt in prompts]
    assert texts(together) == [text for completion in alone for text in texts(completion)]
    assert len(set(texts(alone[0]))) == 3
    drawn = create(unsure, ["say |", "say |"], temperature=1.0)  # each with a seed of its own, which it tells
    assert drawn.choices[0].text != drawn.choices[1].text
    for choice in drawn.choices:
        again = create(unsure, temperature=1.0, seed=choice.seed)  # type: ignore[attr-defined]
        assert again.choices[0].text == choice.text
    assert together.usage is not None and together.usage.to_dict() == {
        "prompt_tokens": 5 + 1 + 5 + 4, "completion_tokens": 12 * 8, "total_tokens": 15 + 96,
    }  # fmt: skip


def gathered(chunks: list[Completion]) -> dict[int, dict[str, Any]]:
    """The pieces of every choice joined."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        read(CompletionChunk, chunk.to_json())
        for choice in chunk.choices:
            nothing: dict[str, Any] = {"text": "", "finish_reason": None, "logprobs": {}, "latents": []}
            joined = choices.setdefault(choice.index, nothing)
            assert joined["finish_reason"] is None, "a piece after the last piece"
            joined["text"] += choice.text
            joined["finish_reason"] = choice.finish_reason
            for name, values in (choice.logprobs.to_dict() if choice.logprobs else {}).items():
                joined["logprobs"].setdefault(name, []).extend(values)
            joined["latents"].extend(choice.latents or ())  # type: ignore[attr-defined]
    return choices


def test_the_stream_says_what_the_plain_reply_says(unsure: openai.OpenAI) -> None:
    expected: dict[str, Any] = {
        "prompt": ["say |", "x", "né €|"], "n": 2, "seed": 11, "temperature": 1.0, "logprobs": 2, "max_tokens": 12,
        "stop": ["k", "o", "the"], "extra_body": {"latent_noise": 1.0, "return_latents": True},
    }  # fmt: skip
    plain = create(unsure, **expected)
    read(CompletionReply, plain.to_json())
    body = {name: value for name, value in expected.items() if name != "extra_body"} | expected["extra_body"]
    url = f"{unsure.base_url}completions"
    raw = httpx.post(url, json={**body, "stream": True}, timeout=PATIENCE).text.split("\n\n")
    assert raw.index("data: [DONE]") == len(raw) - 2 and all(line.startswith("data: ") for line in raw[:-1])
    chunks = list(streamed(unsure, **expected, stream_options={"include_usage": True}))
    assert {chunk.id for chunk in chunks} == {chunks[0].id} != {plain.id}
    joined = gathered(chunks)
    for choice in plain.choices:
        assert choice.logprobs is not None
        assert joined.pop(choice.index) == {
            "text": choice.text, "finish_reason": choice.finish_reason, "logprobs": choice.logprobs.to_dict(),
            "latents": choice.latents,  # type: ignore[attr-defined]
        }  # fmt: skip
        assert len(choice.latents) == len(choice.logprobs.tokens or ())  # type: ignore[attr-defined]
    assert joined == {}
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].choices, chunks[-1].usage) == ([], plain.usage)


def test_usage_in_a_stream_is_asked_for(client: openai.OpenAI) -> None:
    assert [chunk.usage for chunk in streamed(client, max_tokens=3)] == [None] * 3
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(streamed(client, max_tokens=3, stream_options=options))
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [6, 7, 8, 8]


def test_latent_samples_are_those_of_generate(unsure: openai.OpenAI) -> None:
    expected: dict[str, Any] = {"temperature": 1.0, "n": 3, "seed": 5, "latent_noise": 1.0, "return_latents": True}
    asked = {"inputs": "say |", "parameters": {**expected, "max_new_tokens": 6}}
    reply = httpx.post(f"{unsure.base_url}".replace("/v1/", "/generate"), json=asked, timeout=PATIENCE).json()
    ours = {name: expected.pop(name) for name in ("latent_noise", "return_latents")}
    choices = create(unsure, max_tokens=6, **expected, extra_body=ours).choices
    for choice, continuation in zip(choices, reply["continuations"], strict=True):
        assert choice.text == continuation["generated_text"]
        assert choice.latents == continuation["details"]["latents"]  # type: ignore[attr-defined]
    found = {str(choice.latents) for choice in choices}  # type: ignore[attr-defined]
    assert len(found) == 3, "each continuation has samples of its own"


def test_logprobs_are_those_of_the_tokens(live: Any) -> None:
    with live(fake_models(FakeLanguage(script="né €"))) as address, client_of(address) as client:
        records = create(client, logprobs=1, max_tokens=40).choices[0].logprobs
    assert records is not None
    names = ["n", "bytes:\\xc3", "bytes:\\xa9", " ", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "<|endoftext|>"]
    sure = math.log(0.9)
    assert records.tokens == names
    assert records.token_logprobs == pytest.approx([sure] * 8, abs=1e-6)
    assert records.top_logprobs == [{name: pytest.approx(sure, abs=1e-6)} for name in names]
    assert records.text_offset == [0, 1, 1, 2, 3, 3, 3, 4]
    # Ours, one per token.
    assert records.confidence == pytest.approx([0.9] * 8, abs=1e-6)  # type: ignore[attr-defined]
    assert len(set(records.token_ids)) == 8  # type: ignore[attr-defined]


def test_our_own_fields(live: Any) -> None:
    model = FakeLanguage(script="x" * 500)
    slow_down(model, "step", 0.01)
    with live(fake_models(model)) as address, client_of(address) as client:
        (late,) = create(client, max_tokens=500, extra_body={"deadline_ms": 100}).choices
        cut = create(client, "say |", max_tokens=2, extra_body={"truncate_prompt_tokens": 2, "decode": "attention"})
        noisy = create(client, max_tokens=2, seed=1, extra_body={"latent_noise": 0.5})
    assert (late.finish_reason, late.ended_by) == ("length", "deadline")  # type: ignore[attr-defined]
    assert len(late.text) < 500
    assert cut.usage is not None and cut.usage.prompt_tokens == 2
    assert noisy.choices[0].text == "xx"


def test_values_that_change_nothing_are_taken(unsure: openai.OpenAI) -> None:
    plain, neutral = (
        create(unsure, max_tokens=20, temperature=1.3, seed=5, logprobs=2, extra_body=extra) for extra in ({}, NEUTRAL)
    )
    assert plain.choices == neutral.choices
    nullable = set(CompletionRequest.model_fields) - {"temperature", "latent_noise"}
    body = {**dict.fromkeys(nullable), "prompt": "say |", "temperature": 0}
    reply = httpx.post(f"{unsure.base_url}completions", json=body, timeout=PATIENCE).json()
    assert reply["choices"][0]["text"] == SCRIPT[:16]


def test_a_benchmark_of_vllm_is_answered(address: str) -> None:
    body = {"model": "recite", "prompt": "say |", **BENCHMARK}
    reply = httpx.post(f"{address}/v1/completions", json=body, timeout=PATIENCE)
    *_, usage, done = [line[6:] for line in reply.text.split("\n\n") if line]
    assert (reply.status_code, json.loads(usage)["usage"]["completion_tokens"], done) == (200, 8, "[DONE]")


def test_penalties_and_biases_change_the_choice_and_not_the_probabilities(client: openai.OpenAI) -> None:
    (t,) = byte_vocabulary().encode("t")
    no_end = {"0": -100.0}
    plain = create(client, max_tokens=2, logprobs=0).choices[0]
    away = create(client, max_tokens=2, logprobs=0, logit_bias={**no_end, str(t): -100}).choices[0]
    assert (plain.text, away.text) == ("th", "!h")
    assert plain.logprobs is not None and away.logprobs is not None
    assert plain.logprobs.token_logprobs[1] == away.logprobs.token_logprobs[1]  # type: ignore[index]
    # Without a `|` the model says its first letter forever: log 0.9 = -0.1, all others -7.8.
    assert create(client, prompt="x", max_tokens=4).choices[0].text == "tttt"
    once = {"presence_penalty": 2, "logit_bias": {**no_end, str(t): -6.5}}
    assert create(client, prompt="x", max_tokens=3, **once).choices[0].text == 't!"'
    often = {"frequency_penalty": 2, "logit_bias": no_end}
    assert create(client, prompt="x", max_tokens=6, **often).choices[0].text == 'tttt!"'
    repeated = {"logit_bias": no_end, "extra_body": {"repetition_penalty": 100}}
    assert create(client, prompt="xt", max_tokens=2, **repeated).choices[0].text == '!"'


def test_the_end_of_text_can_be_put_off(client: openai.OpenAI) -> None:
    (end,) = {byte_vocabulary().end_of_text}
    assert create(client, max_tokens=40).choices[0].text == SCRIPT
    later = create(client, max_tokens=40, extra_body={"min_tokens": 25}).choices[0]
    ignored = create(client, max_tokens=40, logprobs=0, extra_body={"ignore_eos": True}).choices[0]
    assert later.text.startswith(SCRIPT) and len(later.text) >= 25
    assert ignored.finish_reason == "length" and ignored.text == SCRIPT
    assert ignored.logprobs.token_ids[-1] == end  # type: ignore[union-attr]
    u = byte_vocabulary().encode("u")
    stopped = create(client, max_tokens=40, extra_body={"stop_token_ids": u}).choices[0]
    assert (stopped.text, stopped.finish_reason) == ("the qu", "stop")


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"suffix": "end"}, "suffix", "not_supported"),
    ({"presence_penalty": 2.5}, "presence_penalty", "less_than_equal"),
    ({"frequency_penalty": -3}, "frequency_penalty", "greater_than_equal"),
    ({"logit_bias": {"50256": -100}}, "logit_bias", "unknown_token"),
    ({"extra_body": {"stop_token_ids": [257]}}, "stop_token_ids", "unknown_token"),
    ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty", "greater_than_equal"),
    ({"extra_body": {"use_beam_search": True}}, "use_beam_search", "not_supported"),
    ({"best_of": 3}, "best_of", "not_supported"),
    ({"prompt": [1, 257]}, "prompt", "unknown_token"),
    ({"prompt": [[1, 2], [257]]}, "prompt[1]", "unknown_token"),
    ({"prompt": [-1]}, "prompt", "no_member"),
    ({"prompt": ["a", [1]]}, "prompt", "no_member"),
    ({"prompt": [[]]}, "prompt", "no_member"),
    ({"prompt": []}, "prompt", "no_member"),
    ({"stop": ["x"] * 17}, "stop", "no_member"),
    ({"logprobs": 6}, "logprobs", "less_than_equal"),
    ({"max_tokens": -1}, "max_tokens", "greater_than_equal"),
    ({"max_tokens": 5000}, "max_tokens", "too_large"),
    ({"prompt": ["x"] * 128, "max_tokens": 4000}, "max_tokens", "reply_too_large"),
    ({"prompt": ["x"] * 65, "n": 2}, "n", "too_large"),
    ({"prompt": ["a", "b" * 20_000]}, "prompt[1]", "prompt_too_long"),
    ({"prompt": "b" * 20_000}, "prompt", "prompt_too_long"),
    ({"max_tokens": 4096, "prompt": "ab", "extra_body": {"decode": "attention"}}, "max_tokens", "context_too_long"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options", "needs_stream"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation",
     "not_supported"),
    ({"extra_body": {"hurry": True}}, "hurry", "extra_forbidden"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "param", "code"), REFUSALS, ids=[f"{r[1]}-{r[2]}" for r in REFUSALS])
def test_what_is_not_served_is_refused_by_name(
    client: openai.OpenAI, options: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refusal:
        create(client, **options)
    error = refusal.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request")
    assert param in error.message and "inputs" not in error.message and "parameters" not in error.message


def test_an_unknown_model(client: openai.OpenAI) -> None:
    for name in ("gpt-3.5-turbo-instruct", "some/where", "mean"):
        with pytest.raises(openai.NotFoundError) as missing:
            create(client, model=name)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


def test_the_shipped_model_says_what_generate_says(live: Any, books_bundle: Path) -> None:
    prompts = ["It was the", "She looked at him and"]
    with live(bundles=(books_bundle,)) as address, client_of(address) as client:
        sampling = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
        completion = create(client, prompts, model="books", max_tokens=12, logprobs=3, **sampling)
        joined = gathered(list(streamed(client, prompts, model="books", max_tokens=12, **sampling)))
        parameters = {"max_new_tokens": 12, "do_sample": True, **sampling}
        bodies = [{"inputs": prompt, "parameters": parameters} for prompt in prompts]
        replies = [httpx.post(f"{address}/generate", json=body, timeout=PATIENCE).json() for body in bodies]
    for choice, reply in itertools.zip_longest(completion.choices, replies):
        tokens = reply["details"]["tokens"]
        assert choice.text == reply["generated_text"] == joined[choice.index]["text"]
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [token["logprob"] for token in tokens]
        assert choice.logprobs.confidence == [token["confidence"] for token in tokens]
        assert choice.logprobs.text_offset is not None
        for token, offset in zip(tokens, choice.logprobs.text_offset, strict=True):
            assert choice.text[offset:].startswith(token["text"])
