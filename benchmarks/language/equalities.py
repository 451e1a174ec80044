"""Five equalities of a text server, over its OpenAI-compatible API: is a token's log probability one number?

    alone      a request answered again, by itself
    batched    the same request among others
    chunked    the prompt and its continuation read at once (`echo`), instead of decoded token by token
    restored   the second half of a continuation, requested after a prompt that has the first half, and from the
               state after it where the server returns one
    replica    the same request to another server

Each is compared with a first reply: the ids of the tokens, and every digit of their log probabilities. The requests are
those of any OpenAI-compatible server that names tokens by id (`return_tokens_as_token_ids`, as vLLM does).

Nearly all of the time is spent on decoding single requests, one token at a time. With a replica, half of the cases
therefore have their first reply from it, so that both servers work at the same time. Each still has one request at a
time, except for the batched ones.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import httpx

EQUALITIES: Final = ("alone", "batched", "chunked", "restored", "replica")
# Cases that run at the same time.
COMPANY: Final = 16
PATIENCE_SECONDS: Final = 300.0
WORDS: Final = (
    "the of and to a in that it was he with as for his I you not be but had on at by which have"
    " or from this her she they all were are one we an when no their been who will would if there what so more"
)


@dataclass(frozen=True)
class Tokens:
    """Token ids and their log probabilities."""

    ids: list[int]
    logprobs: list[float | None]
    state: str | None = field(default=None, compare=False)

    def part(self, start: int, end: int | None = None) -> Tokens:
        """Return the tokens of a range."""
        return Tokens(self.ids[start:end], self.logprobs[start:end])


@dataclass
class Tally:
    """Results of the comparisons of replies that must be equal."""

    cases: int = 0
    equal: int = 0
    other_tokens: int = 0
    largest_difference: float = 0.0
    refused: str | None = None

    def add(self, found: Tokens, expected: Tokens) -> None:
        """Compare two replies."""
        self.cases += 1
        self.equal += found == expected
        self.other_tokens += found.ids != expected.ids
        if found.ids == expected.ids:
            pairs = zip(found.logprobs, expected.logprobs, strict=True)
            gaps = [abs((a or 0.0) - (b or 0.0)) for a, b in pairs]
            self.largest_difference = max([self.largest_difference, *gaps])


class RefusedError(Exception):
    """The server does not take this request."""


class Endpoint:
    """One server's /v1/completions."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: str | None) -> None:
        self._client, self._url, self._model = client, url.rstrip("/"), model
        # Held by a request that has the server to itself, and by a batch.
        self.alone = asyncio.Lock()

    async def has_states(self) -> bool:
        """Return whether the server is an rfa-server, whose completions accept `state`."""
        cards = (await self._client.get(f"{self._url}/models")).json().get("data", [])
        return any(card.get("owned_by") == "rfa-server" for card in cards)

    async def complete(
        self, prompt: str | list[int], tokens: int, *, echo: bool = False, **state: str | bool | None
    ) -> Tokens:
        """Return the most probable continuation, with `echo` after the tokens of the prompt."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "echo": echo}
        named = {"return_tokens_as_token_ids": True, **({} if self._model is None else {"model": self._model})}
        reply = await self._client.post(f"{self._url}/completions", json={**body, **named, **state})
        if reply.status_code != 200:
            raise RefusedError(f"{reply.status_code}: {reply.text[:200]}")
        choice = reply.json()["choices"][0]
        logprobs = choice["logprobs"]
        ids = [int(name.removeprefix("token_id:")) for name in logprobs["tokens"]]
        return Tokens(ids, logprobs["token_logprobs"], choice.get("state"))

    async def complete_alone(self, prompt: str | list[int], tokens: int, **options: Any) -> Tokens:
        """Return the same continuation, while the server has no other request."""
        async with self.alone:
            return await self.complete(prompt, tokens, **options)


class EqualityCase(NamedTuple):
    """A prompt and the length of its continuation."""

    prompt: str
    tokens: int

    @classmethod
    def drawn(cls, seed: int) -> EqualityCase:
        """Draw a text of 1 to 200 words and a number of 2 to 32 tokens. Few are long, because these take much time."""
        draw = random.Random(seed)
        words = draw.choices(WORDS.split(), k=int(200 ** draw.random()))
        return cls(" ".join(words), int(2 * 16.5 ** draw.random()))


async def measure(
    url: str,
    replica: str | None,
    cases: Sequence[EqualityCase],
    model: str | None = None,
    key: str | None = None,
    on_group: Callable[[dict[str, Tally]], None] = lambda _: None,
) -> dict[str, Tally]:
    """Compare the replies of a server.

    Args:
        url: Address of the API, such as http://127.0.0.1:8000/v1.
        replica: Address of another server with the same model. None omits this equality.
        on_group: Function that is called after every few cases with the comparisons so far.
    """
    tallies = {name: Tally() for name in EQUALITIES if name != "replica" or replica is not None}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS) as client:
        server = Endpoint(client, url, model)
        other = None if replica is None else Endpoint(client, replica, model)
        pairs = [(server, other), (other, server)] if other is not None else [(server, None)]
        shares = [cases[index :: len(pairs)] for index in range(len(pairs))]

        async def run(first: Endpoint, second: Endpoint | None, share: Sequence[EqualityCase]) -> None:
            has_states = await first.has_states()
            for start in range(0, len(share), COMPANY):
                await _compare(first, second, share[start : start + COMPANY], tallies, has_states)
                on_group(tallies)

        await asyncio.gather(*(run(*pair, share) for pair, share in zip(pairs, shares, strict=True)))
    return tallies


async def _compare(
    server: Endpoint,
    other: Endpoint | None,
    cases: Sequence[EqualityCase],
    tallies: dict[str, Tally],
    has_states: bool,
) -> None:
    async def add(name: str, expected: Tokens, reply: Awaitable[Tokens], start: int = 0) -> None:
        try:
            tallies[name].add((await reply).part(start), expected)
        except RefusedError as error:
            tallies[name].refused = str(error)

    expected_of = []
    for case in cases:
        ids = (await server.complete_alone(case.prompt, 1, echo=True)).ids[:-1]
        expected = await server.complete_alone(case.prompt, case.tokens)
        expected_of.append(expected)
        await add("alone", expected, server.complete_alone(case.prompt, case.tokens))
        read = server.complete_alone([*ids, *expected.ids], 1, echo=True)
        await add("chunked", expected, _without_last(read), start=len(ids))
        half = len(expected.ids) // 2
        rest = server.complete_alone([*ids, *expected.ids[:half]], len(expected.ids) - half)
        await add("restored", expected.part(half), rest)
        if has_states:
            await add("restored", expected.part(half), _from_state(server, case.prompt, half, len(expected.ids) - half))
        if other is not None:
            await add("replica", expected, other.complete_alone(case.prompt, case.tokens))
    async with server.alone:
        together = [
            add("batched", expected, server.complete(case.prompt, case.tokens))
            for case, expected in zip(cases, expected_of, strict=True)
        ]
        await asyncio.gather(*together)


async def _from_state(server: Endpoint, prompt: str, first: int, rest: int) -> Tokens:
    half = await server.complete_alone(prompt, first, return_state=True)
    return await server.complete_alone("", rest, state=half.state)


async def _without_last(reply: Awaitable[Tokens]) -> Tokens:
    return (await reply).part(0, -1)


def lines(tallies: dict[str, Tally]) -> list[str]:
    """Return a table of the result."""
    rows = [f"{'equality':<10}{'cases':>8}{'equal':>8}{'other tokens':>14}{'largest difference':>20}"]
    for name, tally in tallies.items():
        gap = f"{tally.largest_difference:.3g}"
        rows.append(f"{name:<10}{tally.cases:>8}{tally.equal:>8}{tally.other_tokens:>14}{gap:>20}")
        if tally.refused is not None:
            rows.append(f"  refused {tally.refused}")
    return rows
