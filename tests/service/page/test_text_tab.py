"""The tab of texts: what the server writes, token by token, and what else it could have written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.live import Live
from tests.service.page.visits import answer, copied, fits, printed, visit


def written(page: Any) -> list[str]:
    page.click("#text-go")
    page.locator("#text-told", has_text="The darker").wait_for()
    found: list[str] = page.locator("#text-outputs .text").first.locator(".token").all_text_contents()
    return found


def ready(page: Any) -> None:
    page.locator("#text-decode option").first.wait_for(state="attached")


def test_it_writes_what_the_server_writes(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#text?tokens=12", size="phone", scheme="dark") as page:
        ready(page)
        tokens = written(page)
        page.locator(".text").press("ArrowRight")
        said = page.locator(".text").get_attribute("aria-valuetext")
        alternatives = page.locator("#text-token tbody tr").count()
        told = page.text_content("#text-told")
        assert fits(page)
    parameters = {"max_new_tokens": 12, "temperature": 0.8, "top_p": 0.95, "seed": 7, "decode": "recurrent"}
    expected = answer(server, "generate", {"inputs": "It was the", "parameters": parameters})["details"]["tokens"]
    assert tokens == [token["text"] for token in expected]
    assert f"confidence {100 * expected[0]['confidence']:.0f} %" in said
    assert alternatives == 5
    assert "12 tokens" in told
    assert "seed 7" in told


def test_two_decoders_and_where_they_part(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#text?tokens=40&decode=both") as page:
        ready(page)
        written(page)
        texts = [page.locator(".text").nth(k).locator(".token").all_text_contents() for k in range(2)]
        told = page.text_content("#text-told")
        marked = page.locator(".token.parted").count()
        assert page.locator("#text-outputs h2").all_text_contents() == ["recurrent", "attention"]
    parted = next((k for k, pair in enumerate(zip(*texts, strict=True)) if pair[0] != pair[1]), None)
    if parted is None:
        assert "never part" in told
        assert marked == 0
    else:
        assert f"part at token {parted + 1}" in told
        assert marked == 2


def test_a_text_is_stopped_and_another_begun(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#text?tokens=1000") as page:
        ready(page)
        page.click("#text-go")
        page.locator(".token").nth(3).wait_for()
        page.click("#text-stop")
        page.locator("#text-told", has_text="stopped after").wait_for()
        assert page.locator("#text-stop").is_disabled()
        page.fill("[name=tokens]", "5")
        page.click("#text-again")
        page.locator("#text-told", has_text="5 tokens").wait_for()
        assert page.input_value("#text-seed") != "7"
        assert f"seed={page.input_value('#text-seed')}" in page.url


def test_other_latents_write_other_texts(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#text?tokens=8&latent=2") as page:
        ready(page)
        written(page)
        texts = page.locator("#text-outputs ol li").all_text_contents()
    parameters = {
        "max_new_tokens": 8, "temperature": 0.8, "top_p": 0.95, "seed": 7, "decode": "recurrent",
        "n": 3, "latent_noise": 1,
    }  # fmt: skip
    expected = answer(server, "generate", {"inputs": "It was the", "parameters": parameters})["continuations"]
    assert texts == [one["generated_text"] for one in expected[1:]]


@pytest.mark.parametrize("language", ["curl", "Python", "JavaScript"])
def test_what_it_copies_runs_and_writes_the_same(browser: Any, server: Live, language: str) -> None:
    with visit(browser, server.url, "#text?tokens=4") as page:
        ready(page)
        tokens = written(page)
        code = copied(page, "text", language)
    events = [json.loads(line.removeprefix("data: ")) for line in printed(language, code).splitlines() if line]
    assert [event["token"]["text"] for event in events] == tokens
