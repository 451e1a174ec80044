"""The tab of texts: what the server writes, token by token, and what else it could have written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.live import Live
from tests.service.page.visits import LANGUAGES, SCHEMES, answer, copied, fits, printed, visit


def written(page: Any) -> list[str]:
    page.click("#text-go")
    page.locator("#text-told", has_text="A stronger").wait_for()
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
        outputs = page.text_content("#text-told")
        assert fits(page)
    parameters = {"max_new_tokens": 12, "temperature": 0.8, "top_p": 0.95, "seed": 7, "decode": "recurrent"}
    expected = answer(server, "generate", {"inputs": "It was the", "parameters": parameters})["details"]["tokens"]
    assert tokens == [token["text"] for token in expected]
    assert f"confidence {100 * expected[0]['confidence']:.0f} %" in said
    assert alternatives == 5
    assert "12 tokens" in outputs
    assert "seed 7" in outputs


def test_two_decoders_and_where_they_part(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#text?tokens=40&decode=both") as page:
        ready(page)
        written(page)
        texts = [page.locator(".text").nth(k).locator(".token").all_text_contents() for k in range(2)]
        outputs = page.text_content("#text-told")
        marked = page.locator(".token.parted").count()
        assert page.locator("#text-outputs h2").all_text_contents() == ["recurrent", "attention"]
    parted = next((k for k, pair in enumerate(zip(*texts, strict=True)) if pair[0] != pair[1]), None)
    if parted is None:
        assert "are equal" in outputs
        assert marked == 0
    else:
        assert f"differ from token {parted + 1} on" in outputs
        assert marked == 2


# Red, green and blue of the ground of a text, and of each token on it.
GROUNDS = """() => {
  const painted = colour => {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.fillStyle = getComputedStyle(document.querySelector(".text")).backgroundColor;
    pen.fillRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const tokens = [...document.querySelectorAll(".token")].map(token => getComputedStyle(token).backgroundColor);
  return ["transparent", ...tokens].map(painted);
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_token_stands_out_the_more_the_surer_the_model_was(browser: Any, server: Live, scheme: str) -> None:
    confidences = [0.1, 0.9, 0.5]
    body = as_events([1, 2, 3], True, confidences)
    with visit(browser, server.url, "#text", scheme=scheme) as page:
        ready(page)
        page.route("**/generate", lambda route: route.fulfill(content_type="text/event-stream", body=body))
        page.click("#text-go")
        page.locator("#text-told", has_text="A stronger colour is a higher confidence").wait_for()
        ground, *tokens = page.evaluate(GROUNDS)
    strength = [sum(abs(a - b) for a, b in zip(token, ground, strict=True)) for token in tokens]
    assert sorted(range(3), key=strength.__getitem__) == sorted(range(3), key=confidences.__getitem__)


def as_events(tokens: list[int], is_whole: bool, confidences: list[float] | None = None) -> str:
    """A streamed answer of such tokens, which ends as the server ends it or breaks off."""
    events: list[dict[str, Any]] = [
        {"token": {"id": token, "text": f" {token}", "logprob": -1.0, "confidence": confidence}}
        for token, confidence in zip(tokens, confidences or [0.5] * len(tokens), strict=True)
    ]
    if is_whole:
        events.append({"details": {"seed": 7, "timings": {"tokens_per_second": 5}}})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


def test_a_text_that_breaks_off_says_so_and_nothing_of_where_it_parts(browser: Any, server: Live) -> None:
    def answered(route: Any) -> None:
        is_whole = route.request.post_data_json["parameters"]["decode"] == "attention"
        body = as_events([1, 2, 3, 4, 5] if is_whole else [1, 2, 3], is_whole)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    with visit(browser, server.url, "#text?decode=both") as page:
        ready(page)
        page.route("**/generate", answered)
        page.click("#text-go")
        page.locator("#text-error", has_text="was lost").wait_for()
        page.locator("#text-told", has_text="are equal so far").wait_for()
        assert page.locator(".token.parted").count() == 0


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


def test_what_it_copies_runs_and_writes_the_same(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#text?tokens=4") as page:
        ready(page)
        tokens = written(page)
        codes = {language: copied(page, "text", language) for language in LANGUAGES}
    for language, code in codes.items():
        assert tokens_of(printed(language, code)) == tokens, language


def tokens_of(events: str) -> list[str]:
    """Of a stream of events, as a program wrote it."""
    return [json.loads(line.removeprefix("data: "))["token"]["text"] for line in events.splitlines() if line]
