"""/v1/chat/completions with OpenAI's client: a dialogue is the text that the template makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from rfa.service.schemas.chat import ChatCompletion
from rfa.service.schemas.chat_template import CHAT_TEMPLATE, dialogue
from tests.lazy import LazyModule
from tests.service.models import FakeLanguage, fake_models
from tests.service.replies import read
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

SCRIPT = "the quick brown fox\nUser: and"
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "say "}, {"type": "text", "text": "|"}]},
]
TEXT = "System: Be brief.\nUser: say |\nAssistant:"


@pytest.fixture(scope="module")
def address(live: Any) -> Iterator[str]:
    # Between the `|` and the answer stand 11 characters of the template.
    with live(fake_models(FakeLanguage(script="-" * 11 + SCRIPT))) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0, timeout=PATIENCE) as client:
        yield client


def create(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "recite", "messages": MESSAGES, "temperature": 0, **options})


def test_the_answer_ends_where_the_next_turn_begins(client: openai.OpenAI) -> None:
    reply = create(client)
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("the quick brown fox", "stop")
    assert reply.usage.prompt_tokens == len(TEXT)
    text = client.completions.create(model="recite", prompt=TEXT, temperature=0, max_tokens=40, stop="\nUser:")
    assert text.choices[0].text == choice.message.content
    assert create(client, max_completion_tokens=3, max_tokens=9).choices[0].message.content == "the"
    assert create(client, stop="qu").choices[0].message.content == "the "


def test_a_stream_joins_to_the_reply(client: openai.OpenAI) -> None:
    options = {"n": 2, "temperature": 3.0, "seed": 4, "max_tokens": 9}
    plain = create(client, **options)
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}, **options))
    for choice in plain.choices:
        own = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.delta.content for one in own) == choice.message.content
        assert [one.delta.role for one in own] == ["assistant", *[None] * (len(own) - 1)]
        assert own[-1].finish_reason == choice.finish_reason
    assert chunks[-1].usage == plain.usage and chunks[-1].choices == []


def test_logprobs(client: openai.OpenAI) -> None:
    content = create(client, logprobs=True, top_logprobs=2, max_tokens=3).choices[0].logprobs.content
    assert [one.token for one in content] == list("the")
    assert [one.bytes for one in content] == [[ord(letter)] for letter in "the"]
    assert all(one.top_logprobs[0].logprob == one.logprob and len(one.top_logprobs) == 2 for one in content)


def test_the_template_is_stated_and_gives_the_text(address: str) -> None:
    jinja2 = pytest.importorskip("jinja2")
    messages = [
        {"role": role, "content": f"of {role}"} for role in ("developer", "system", "user", "assistant", "user")
    ]
    made = jinja2.Template(CHAT_TEMPLATE, keep_trailing_newline=True).render(messages=messages)
    assert made == dialogue((one["role"], one["content"]) for one in messages)
    assert httpx.get(f"{address}/tokenizer_info").json()["chat_template"] == CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"messages": []}, "messages", "too_short"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "literal_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "no_member"),
        ({"top_logprobs": 2}, "top_logprobs", "needs_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not_supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not_supported"),
        ({"max_tokens": 5000}, "max_completion_tokens", "too_large"),
        ({"messages": [{"role": "user", "content": "b" * 20_000}]}, "messages", "prompt_too_long"),
    ],
)
def test_what_is_refused(client: openai.OpenAI, options: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refusal:
        create(client, **options)
    assert (refusal.value.param, refusal.value.code) == (param, code)


def test_the_reply_is_the_documented_one(address: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "logprobs": True, "user": "someone", "tools": []}
    reply = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert read(ChatCompletion, reply.content).object == "chat.completion"
