"""The clients of a scenario and their expected answers."""

from __future__ import annotations

import base64
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfa.benchmarks.load.check import SeriesTruth, TextTruth
from rfa.benchmarks.load.scenario import TextLoad
from rfa.benchmarks.load.truth import FilterQuestion, open_models, series_truths, text_truths
from tests.soak.faults.findings import Findings
from tests.soak.faults.redis_process import RedisProcess
from tests.soak.faults.server import Server
from tests.soak.faults.streams import Keeping, StreamClient, StreamPlan
from tests.soak.faults.texts import TextClient

ROOT = Path(__file__).resolve().parents[3]
BUNDLES = tuple(ROOT / "bundles" / name for name in ("linear", "oscillator", "books"))
FILTERS = ("linear", "oscillator")
SERIES_PER_FILTER = 4
SERIES_STEPS = 300
TEXTS = TextLoad(prompt_tokens=16, new_tokens=96, model="books", temperature=0.8)
TEXT_CASES = 4


@dataclass(frozen=True)
class Truths:
    """Expected answers of the models."""

    series: dict[str, list[SeriesTruth]]
    texts: list[TextTruth]


def find_truths(bundles: Sequence[Path] = BUNDLES, *, steps: int = SERIES_STEPS, texts: int = TEXT_CASES) -> Truths:
    """Compute the expected answers from the bundles."""
    models = open_models(bundles)
    question = FilterQuestion(samples=StreamPlan("", "token").samples)
    return Truths(
        {
            name: series_truths(runtime, question, range(SERIES_PER_FILTER), steps, _silent)
            for name, runtime in models.filters.items()
        },
        text_truths(models, TEXTS, range(texts), _silent) if texts else [],
    )


def stream_clients(
    count: int,
    keepings: Sequence[Keeping],
    url: Callable[[], str],
    truths: Truths,
    findings: Findings,
    pause: float = StreamPlan.pause,
) -> list[StreamClient]:
    """Return clients that keep their states in these ways, and use every filter and series, in turn."""
    names = list(truths.series)
    clients = []
    for number in range(count):
        keeping, turn = keepings[number % len(keepings)], number // len(keepings)
        model = names[turn % len(names)]
        series = truths.series[model]
        truth = series[turn // len(names) % len(series)]
        clients.append(StreamClient(number, url, truth, StreamPlan(model, keeping, pause=pause), findings))
    return clients


def text_clients(count: int, url: Callable[[], str], truths: Truths, findings: Findings) -> list[TextClient]:
    """Return clients that use every text in turn."""
    return [TextClient(number, url, truths.texts[number % len(truths.texts)], findings) for number in range(count)]


@contextmanager
def server_beside_redis(processes: int, *, with_texts: bool, **settings: Any) -> Iterator[Server]:
    """Yield a server of all bundles or of the filters, not yet started, with sessions in a separate Redis."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, RedisProcess(Path(name)) as redis:
        yield Server(
            Path(name),
            bundles=as_setting(BUNDLES if with_texts else BUNDLES[: len(FILTERS)]),
            processes=processes,
            state_keys=state_key(),
            sessions=redis.url,
            **settings,
        )


def state_key() -> str:
    """Return a key that seals states, in the format of the settings. A restarted server needs the same key."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def as_setting(bundles: Sequence[Path]) -> str:
    """Return the setting `bundles`."""
    return ":".join(map(str, bundles))


def _silent(done: int) -> None:
    pass
