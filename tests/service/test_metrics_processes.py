"""The metrics of several processes in one answer: valid, complete, and never waiting for a process that hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rfa.service.exposition import Exposition, merge
from rfa.service.metrics import Metrics

pytestmark = pytest.mark.anyio


def metrics_of(engine: int, tokens: int) -> Metrics:
    metrics = Metrics()
    metrics.engine = engine
    metrics.generation_tokens.labels('a "model"\n').inc(tokens)
    metrics.time_to_first_token.labels("m").observe(0.003)
    metrics.watch("num_requests_running", "Requests.", lambda: float(engine))
    return metrics


async def joined(stack: AsyncExitStack, directory: Path, count: int, processes: int) -> list[Exposition]:
    expositions = [Exposition(metrics_of(index, 10 * (index + 1))) for index in range(count)]
    for index, exposition in enumerate(expositions):
        await exposition.join(directory, index, processes)
        stack.callback(exposition.leave)
    return expositions


def samples(text: str, name: str) -> dict[str, float]:
    """Value by engine."""
    return {
        sample.labels["engine"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def check_valid(text: str) -> None:
    """What Prometheus requires of a whole: each family described once and in one piece, each series once."""
    lines = text.splitlines()
    described = [tuple(line.split()[1:3]) for line in lines if line.startswith("# ")]
    assert max(Counter(described).values()) == 1
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert max(Counter(series).values()) == 1
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(families) == len(set(families))


async def test_any_process_answers_for_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        expositions = await joined(stack, tmp_path, 3, 3)
        for exposition in expositions:
            text = (await exposition.render()).decode()
            check_valid(text)
            assert samples(text, "rfa_generation_tokens_total") == {"0": 10.0, "1": 20.0, "2": 30.0}
            assert samples(text, "rfa_num_requests_running") == {"0": 0.0, "1": 1.0, "2": 2.0}
            assert samples(text, "rfa_time_to_first_token_seconds_count") == {"0": 1.0, "1": 1.0, "2": 1.0}
            assert samples(text, "rfa_metrics_siblings_unanswered_total") == {"0": 0.0, "1": 0.0, "2": 0.0}


async def test_a_process_that_is_gone_or_hangs_is_left_out_and_counted(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side gives up
        writer.close()

    async with AsyncExitStack() as stack:
        first, second = await joined(stack, tmp_path, 2, 4)
        hanging = await asyncio.start_unix_server(hang, path=str(tmp_path / "2"))
        stack.callback(hanging.close)
        text = (await first.render()).decode()
        check_valid(text)
        assert samples(text, "rfa_generation_tokens_total") == {"0": 10.0, "1": 20.0}
        assert samples(text, "rfa_metrics_siblings_unanswered_total") == {"0": 2.0, "1": 0.0}
        second.leave()
        assert set(samples((await first.render()).decode(), "rfa_generation_tokens_total")) == {"0"}


async def test_a_process_takes_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "1").touch()  # a socket that nobody removed
    async with AsyncExitStack() as stack:
        first, _ = await joined(stack, tmp_path, 2, 2)
        assert set(samples((await first.render()).decode(), "rfa_generation_tokens_total")) == {"0", "1"}


def test_a_process_alone_has_no_engine_label() -> None:
    metrics = Metrics()
    metrics.generation_tokens.labels("m").inc()
    text = metrics.render().decode()
    assert 'rfa_generation_tokens_total{model_name="m"} 1.0' in text and "engine" not in text.replace("rfa_engine", "")


def test_a_merge_of_one_changes_nothing() -> None:
    text = metrics_of(0, 5).render().decode()
    assert merge([text]) == text
    check_valid(merge([text, metrics_of(1, 5).render().decode()]))
