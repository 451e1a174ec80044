"""The traffic of `tests.soak.rss_soak`: one process, many kept connections, every kind of request, every answer looked
at.

    python -m tests.soak.rss_client URL REQUESTS SEED

Prints the number of each kind and of the answers that were not as they should be, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp
import orjson
import uvloop

from tests.soak.connection import Connection, request_bytes

CONNECTIONS = 24
Kind = Callable[["Client"], Awaitable[int]]


class Client:
    """One connection's share of the traffic; a method a kind, which returns the status that it got.

    A kind counts as failed when the status is not the one of its name in `KINDS`.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self._url = url
        self._session = session
        self._rng = rng
        self._connection = Connection(url)
        self._state: str | None = None

    async def observation(self) -> int:
        """POST /filter with one observation, and an id of its own."""
        y = [self._rng.gauss(0, 1), self._rng.gauss(0, 1)]
        headers = f"X-Request-Id: {self._rng.getrandbits(64):x}\r\n"
        return await self._post("/filter", {"model": "linear", "observations": [y]}, headers)

    async def continued(self) -> int:
        """POST /filter that goes on from the state of the one before."""
        body = {
            "model": "linear",
            "observations": [[self._rng.gauss(0, 1), None]],
            "state": self._state,
            "return_state": True,
        }
        request = request_bytes("POST", "/filter", orjson.dumps(body))
        answer = await self._connection.ask(request)
        self._state = orjson.loads(answer.body).get("state")
        return answer.status

    async def sequence(self) -> int:
        """POST /filter, streamed, smoothed, or with every output; questions differ."""
        levels = [round(self._rng.uniform(0.1, 0.95), 3)]
        body = {
            "model": "linear",
            "observations": [[self._rng.gauss(0, 1), None], None, [0.5, 0.5]],
            "stream": self._rng.random() < 0.5,
            "smooth": self._rng.random() < 0.3,
            "horizon": [round(self._rng.uniform(0.1, 3), 2)],
            "samples": 2,
            "levels": levels,
        }
        return await self._post("/filter", body)

    async def text(self) -> int:
        """POST /generate of two tokens."""
        body = {
            "inputs": f"It was {self._rng.randrange(1000)}",
            "parameters": {"max_new_tokens": 2, "temperature": 0.9},
            "stream": self._rng.random() < 0.5,
        }
        return await self._post("/generate", body)

    async def health(self) -> int:
        """GET /health."""
        return (await self._connection.ask(request_bytes("GET", "/health"))).status

    async def scrape(self) -> int:
        """GET /metrics."""
        return (await self._connection.ask(request_bytes("GET", "/metrics"))).status

    async def invalid(self) -> int:
        """A field that is not as it must be."""
        wide = [self._rng.gauss(0, 1)] * self._rng.randrange(3, 9)
        return await self._post("/filter", {"model": "linear", "observations": [wide]})

    async def unknown(self) -> int:
        """A path that nobody has asked for before."""
        return (await self._connection.ask(request_bytes("GET", f"/{self._rng.getrandbits(64):x}"))).status

    async def broken(self) -> int:
        """Bytes that are no JSON."""
        body = b"{" + self._rng.randbytes(24)
        return (await self._connection.ask(request_bytes("POST", "/generate", body))).status

    async def leave(self) -> int:
        """A client that goes away with its request under way."""
        body = orjson.dumps({"inputs": "It", "parameters": {"max_new_tokens": 50}, "stream": self._rng.random() < 0.5})
        await self._connection.leave(request_bytes("POST", "/generate", body), self._rng.uniform(0, 0.005))
        return 0

    async def stream(self) -> int:
        """WS /filter/stream with a few observations; ended well, by a bad frame, or by leaving."""
        async with self._session.ws_connect(f"{self._url}/filter/stream") as socket:
            await socket.send_str('{"model": "linear"}')
            ready = orjson.loads((await socket.receive()).data)
            for _ in range(self._rng.randrange(3)):
                await socket.send_str(orjson.dumps({"y": [self._rng.gauss(0, 1), None]}).decode())
                await socket.receive()
            ending = self._rng.choice(('{"close": true}', '{"y": 1}', None))
            if ending is not None:
                await socket.send_str(ending)
                await socket.receive()
        return 101 if ready.get("ready") else 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.drop()

    async def _post(self, path: str, body: object, headers: str = "") -> int:
        return (await self._connection.ask(request_bytes("POST", path, orjson.dumps(body), headers))).status


# Kind → (share, the status that it must get).
KINDS: dict[Kind, tuple[float, int]] = {
    Client.observation: (0.66, 200),
    Client.health: (0.10, 200),
    Client.continued: (0.04, 200),
    Client.invalid: (0.05, 422),
    Client.broken: (0.03, 422),
    Client.unknown: (0.02, 404),
    Client.stream: (0.05, 101),
    Client.sequence: (0.02, 200),
    Client.text: (0.01, 200),
    Client.leave: (0.0195, 0),
    Client.scrape: (0.0005, 200),
}


async def send(url: str, requests: int, seed: int) -> Counter[str]:
    """Send so many requests over `CONNECTIONS` connections; how many of each kind, and how many went wrong."""
    tally: Counter[str] = Counter()
    left = iter(range(requests))
    kinds, weights = list(KINDS), [share for share, _ in KINDS.values()]

    async def keep_sending(number: int, session: aiohttp.ClientSession) -> None:
        rng = random.Random(f"{seed} {number}")
        client = Client(url, session, rng)
        for _ in left:
            (kind,) = rng.choices(kinds, weights)
            tally[kind.__name__] += 1
            try:
                status = await kind(client)
            except (OSError, EOFError, TimeoutError, ValueError, aiohttp.ClientError) as error:
                tally[f"failed {kind.__name__} {type(error).__name__}"] += 1
                client.close()
                continue
            if status != KINDS[kind][1]:
                tally[f"failed {kind.__name__} {status}"] += 1
        client.close()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(keep_sending(number, session) for number in range(CONNECTIONS)))
    return tally


def main() -> None:
    """Send what the arguments say."""
    url, requests, seed = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(send(url, int(requests), int(seed)))))


if __name__ == "__main__":
    main()
