"""Family 6: prompts that are long in bytes before anyone knows how many tokens they are."""

from __future__ import annotations

import json
import random

from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import Stage, post

ROOM = 1_900_000
FAIR = frozenset({200, 413, 422, 429, 503})


def long_texts(room: int = ROOM) -> dict[str, str]:
    """Texts of so many bytes."""
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        "spaces": " " * room,
        "words": ("word " * room)[:room],
        "no spaces": "".join(rng.choice(letters) for _ in range(room)),
        "one character": "a" * room,
        "emoji": "🙂" * (room // 4),
        "joined emoji": "👩‍👩‍👧‍👦" * (room // 25),
        "random": "".join(chr(rng.randrange(0x20, 0x2FF)) for _ in range(room // 2)),
        "han": "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(room // 3)),
        "accents": "e" + "\u0301" * (room // 2),
        "lines": "\n" * (room // 2),
        "digits": "7" * room,
        "quotes": "'" * room,
        "special": "<|endoftext|>" * (room // 13),
    }


def repeat(stage: Stage, requests: list[bytes], lanes: int) -> None:
    """Ask these in turn on some connections."""
    stage.begin()
    stage.keep_asking(lanes, requests, "a long prompt is answered or refused", FAIR)


def generate(text: str, **parameters: object) -> bytes:
    """A request for one token after a text."""
    return post("/generate", _dump({"inputs": text, "parameters": {"max_new_tokens": 1, **parameters}}))


def _dump(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


@attack(6)
def prompts_of_words(stage: Stage) -> None:
    """1.9 MB of words, one connection."""
    repeat(stage, [generate(long_texts()["words"])], 1)


@attack(6)
def prompts_of_spaces(stage: Stage) -> None:
    """1.9 MB of spaces and of line ends, four connections."""
    texts = long_texts()
    repeat(stage, [generate(texts["spaces"]), generate(texts["lines"])], 4)


@attack(6)
def prompts_without_spaces(stage: Stage) -> None:
    """1.9 MB without a space: letters, one character, digits, quotes; four connections."""
    texts = long_texts()
    repeat(stage, [generate(texts[name]) for name in ("no spaces", "one character", "digits", "quotes")], 4)


@attack(6)
def prompts_of_strange_characters(stage: Stage) -> None:
    """1.9 MB of emoji, accents, Han, random characters and special tokens; four connections."""
    texts = long_texts()
    names = ("emoji", "joined emoji", "random", "han", "accents", "special")
    repeat(stage, [generate(texts[name]) for name in names], 4)


@attack(6)
def prompts_truncated(stage: Stage) -> None:
    """The same with `truncate`: only the last tokens count, yet all of the text is given."""
    texts = long_texts()
    requests = [generate(text, truncate=16) for text in texts.values()]
    completion = {"max_tokens": 1, "truncate_prompt_tokens": 16}
    requests += [post("/v1/completions", _dump({**completion, "prompt": text})) for text in texts.values()]
    repeat(stage, requests, 4)


@attack(6)
def prompts_many(stage: Stage) -> None:
    """256 prompts of 7 kB each in one request, and 256 lists of tokens; four connections."""
    texts = long_texts(7_000)
    requests = [post("/v1/completions", _dump({"prompt": [text] * 256, "max_tokens": 1})) for text in texts.values()]
    requests.append(post("/v1/completions", _dump({"prompt": [[5] * 1_000] * 256, "max_tokens": 1})))
    requests.append(post("/v1/completions", _dump({"prompt": [5] * 900_000, "max_tokens": 1})))
    repeat(stage, [request for request in requests if len(request) < 2_000_000], 4)


@attack(6)
def prompts_at_the_limit(stage: Stage) -> None:
    """Prompts a little above and below what a model takes, ten connections."""
    requests = [generate(text) for room in (30_000, 60_000, 130_000) for text in long_texts(room).values()]
    random.Random(2).shuffle(requests)
    repeat(stage, requests, 10)


@attack(6, seconds=12)
def stops_long(stage: Stage) -> None:
    """Sixteen stops of 256 characters, nearly met by every text, twenty connections."""
    stops = [" " * 255 + letter for letter in "abcdefghijklmnop"]
    parameters = {"max_new_tokens": 32, "n": 16, "stop": stops, "seed": 1}
    request = post("/generate", {"inputs": " " * 5_000, "parameters": parameters})
    repeat(stage, [request], 20)
