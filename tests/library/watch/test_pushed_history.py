"""The history of series that are pushed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rfa.library.watch import wire
from rfa.library.watch.config_file import ConfigError, parse_config
from rfa.library.watch.filters import Samples
from rfa.library.watch.selectors import labels_of
from rfa.library.watch.storage import FileStorage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.fake_prometheus import fake_prometheus
from tests.library.watch.pushing import RECEIVER, Rows, config_of, load
from tests.library.watch.running import START, STEP


def test_history_of_pushed_series_comes_from_range_queries() -> None:
    with fake_prometheus() as fake:
        fake.hosts["load"] = ["a"]
        config = config_of(RECEIVER, f'[warmup.prometheus]\nurl = "{fake.url}"')
        watch, rows = Watch(config.model_copy(update={"history": 600 * STEP, "delay": 0.0}), now=lambda: START), Rows()
        watch.sinks.append(rows)
        watch.warm_up()
        assert not rows.rows and watch.filters["q"].observations == 600
        spike = ({"__name__": "load", "host": "a"}, START + STEP, 900.0)
        watch.push(wire.read_write_request(wire.write_request([spike])))
        fake.is_down = True
        watch.warm_up()  # it has the history already
        with pytest.raises(ValueError, match=r"warmup: .* status 503"):
            Watch(config).warm_up()
    assert [(row["index"], row["alarm"]) for row in rows.rows] == [(600, True)]


def test_a_reload_reads_the_history_of_new_queries(tmp_path: Path) -> None:
    path = tmp_path / "watch.toml"
    with fake_prometheus() as fake:
        fake.hosts |= {"load": ["a"], "other": ["b"]}
        queries = '[[query]]\nname = "q"\nexpr = "load"\n'
        top = f'step = "1m"\nhistory = "600m"\ndelay = 0\n[source.{RECEIVER}\n'
        warmup = f'[warmup.prometheus]\nurl = "{fake.url}"\n'
        watch = Watch(parse_config(top + queries, "test"), now=lambda: START)
        watch.push([Samples(labels_of(load("a", 0)[0]), np.array([START]), np.array([1.0]))])
        path.write_text(top + warmup + queries + queries.replace('"q"', '"new"').replace("load", "other"))
        fake.is_down = True
        assert not watch.reload(path) and list(watch.filters) == ["q"]
        fake.is_down = False
        assert watch.reload(path)
        assert {name: one.observations for name, one in watch.filters.items()} == {"q": 1, "new": 600}
        fake.is_down = True
        assert watch.reload(path)  # it has the history already
        rows = Rows()
        watch.sinks.append(rows)
        spike = ({"__name__": "other", "host": "b"}, START + STEP, 900.0)
        watch.push(wire.read_write_request(wire.write_request([spike])))
    assert [(row["index"], row["alarm"]) for row in rows.rows] == [(600, True)]


def test_history_of_pushed_series_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    lines = [json.dumps({"labels": labels, "t": t, "value": y}) for labels, t, y in (load("a", k) for k in range(600))]
    file.write_text("\n".join(["no json", *lines, ""]))
    config = config_of("stdin]", f'[warmup]\nfile = "{file}"')
    watch, rows = Watch(config, Store(FileStorage(tmp_path / "state"))), Rows()
    watch.sinks.append(rows)
    watch.warm_up()
    assert watch._store is not None
    watch._store.close()  # as a killed process
    again = Watch(config, Store(FileStorage(tmp_path / "state")))
    again.sinks.append(rows)
    file.unlink()
    again.warm_up()
    again.push_messages(
        [lines[-1].encode(), lines[-1].replace(f"{START + 599 * STEP}", f"{START + 600 * STEP}").encode()]
    )
    assert [row["index"] for row in rows.rows] == [600]
    again.close()
    with pytest.raises(ConfigError, match="warmup: set exactly one of prometheus and file"):
        config_of("stdin]", "[warmup]")
    with pytest.raises(ConfigError, match=r"not supported with source.prometheus"):
        config_of('prometheus]\nurl = "http://127.0.0.1:9"', f'[warmup]\nfile = "{file}"')
