"""Family 6: prompts of many bytes, whose number of tokens is unknown before encoding."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tests.soak.attacks.catalogue import FAIR, Drive, add, asking
from tests.soak.requests import post

MOST_BYTES = 1_900_000


def long_texts(size: int = MOST_BYTES) -> dict[str, str]:
    """Return texts of so many bytes."""
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        "spaces": " " * size,
        "words": ("word " * size)[:size],
        "no spaces": "".join(rng.choice(letters) for _ in range(size)),
        "one character": "a" * size,
        "emoji": "🙂" * (size // 4),
        "joined emoji": "👩‍👩‍👧‍👦" * (size // 25),
        "random": "".join(chr(rng.randrange(0x20, 0x2FF)) for _ in range(size // 2)),
        "han": "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(size // 3)),
        "accents": "e" + "\u0301" * (size // 2),
        "lines": "\n" * (size // 2),
        "digits": "7" * size,
        "quotes": "'" * size,
        "special": "<|endoftext|>" * (size // 13),
    }


def generate(text: str, **parameters: object) -> bytes:
    """Return a request for one token after a text."""
    return post("/generate", _dump({"inputs": text, "parameters": {"max_new_tokens": 1, **parameters}}))


def _dump(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def repeating(make: Callable[[], list[bytes]], lanes: int) -> Drive:
    """Return an attack that sends some requests in turn."""
    return asking(make, lanes, "a long prompt is answered or refused", FAIR)


def texts(*names: str) -> Callable[[], list[bytes]]:
    """Return a request for each of some long texts."""
    return lambda: [generate(long_texts()[name]) for name in names]


def truncated() -> list[bytes]:
    """Return all long texts with requests for their last tokens only."""
    found = long_texts().values()
    completion = {"max_tokens": 1, "truncate_prompt_tokens": 16}
    requests = [generate(text, truncate=16) for text in found]
    return requests + [post("/v1/completions", _dump({**completion, "prompt": text})) for text in found]


def many() -> list[bytes]:
    """Return requests with many prompts, as texts and as tokens."""
    prompts: list[object] = [[text] * 256 for text in long_texts(7_000).values()]
    prompts += [[[5] * 1_000] * 256, [5] * 900_000]
    requests = [post("/v1/completions", _dump({"prompt": prompt, "max_tokens": 1})) for prompt in prompts]
    return [request for request in requests if len(request) < 2_000_000]


def at_the_limit() -> list[bytes]:
    """Return prompts slightly above and below the limit of a model."""
    requests = [generate(text) for size in (30_000, 60_000, 130_000) for text in long_texts(size).values()]
    random.Random(2).shuffle(requests)
    return requests


def stops() -> list[bytes]:
    """Return stop sequences that every text nearly contains."""
    nearly = [" " * 255 + letter for letter in "abcdefghijklmnop"]
    parameters = {"max_new_tokens": 32, "n": 16, "stop": nearly, "seed": 1}
    return [post("/generate", {"inputs": " " * 5_000, "parameters": parameters})]


WITHOUT_SPACES = ("no spaces", "one character", "digits", "quotes")
STRANGE = ("emoji", "joined emoji", "random", "han", "accents", "special")

for name, about, drive in (
    ("prompts-of-words", "1.9 MB of words, one connection.", repeating(texts("words"), 1)),
    ("prompts-of-spaces", "1.9 MB of spaces and of line ends.", repeating(texts("spaces", "lines"), 4)),
    ("prompts-without-spaces", "1.9 MB without a space.", repeating(texts(*WITHOUT_SPACES), 4)),
    ("prompts-of-strange-characters", "1.9 MB of emoji, accents, Han, and others.", repeating(texts(*STRANGE), 4)),
    ("prompts-truncated", "1.9 MB of which only the last 16 tokens count.", repeating(truncated, 4)),
    ("prompts-many", "256 prompts of 7 kB in one request, and 256 lists of tokens.", repeating(many, 4)),
    ("prompts-at-the-limit", "Prompts near the limit of the model, ten connections.", repeating(at_the_limit, 10)),
):
    add(6, name, about, drive)
add(6, "stops-long", "Sixteen stops that every text nearly meets.", repeating(stops, 20), seconds=12)
