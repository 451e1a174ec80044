"""The configuration of a watch: what it takes, what errors say, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml

from rfa.library.watch.config import Config, Section
from rfa.library.watch.config_file import ConfigError, kinds_of, load_config, parse_config
from rfa.library.watch.demo import run_demo
from rfa.library.watch.init import write_config
from rfa.library.watch.rules import alert_rules, dashboard
from rfa.library.watch.selectors import labels_of, parse_selector
from tests.library.watch.fake_prometheus import fake_prometheus

GOOD = """step = "15s"
history = "2d"

[source.prometheus]
url = "http://localhost:9090/"

[sink.metrics]

[[query]]
name = "requests"
expr = 'sum by (job) (rate(http_requests_total[5m]))'
horizon = ["1h"]
alarm = {rate = "1/day", direction = "up", mute = ["sat 22:00-23:30"]}

[[query]]
name = "load"
expr = "node_load1"
type = "gauge"
tz = "Europe/Berlin"
"""
YAML = """
step: 15s
history: 2d
source: {prometheus: {url: "http://localhost:9090/"}}
sink: {metrics: {}}
query:
- name: requests
  expr: sum by (job) (rate(http_requests_total[5m]))
  horizon: [1h]
  alarm: {rate: 1/day, direction: up, mute: ["sat 22:00-23:30"]}
- {name: load, expr: node_load1, type: gauge, tz: Europe/Berlin}
"""


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    for name, text in (("a.toml", GOOD), ("a.yaml", YAML)):
        (tmp_path / name).write_text(text)
    found = load_config(tmp_path / "a.toml")
    assert found == load_config(tmp_path / "a.yaml")
    assert (found.step, found.history, found.query[0].horizon) == (15, 172_800, [3600])
    assert found.source.prometheus is not None and found.source.prometheus.url == "http://localhost:9090"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('step = "15s"', 'step = "15 apples"', 'watch.toml:1: step: must be a positive duration such as "15s"'),
        ('step = "15s"', "step = ", "watch.toml: Invalid value (at line 1"),
        ('step = "15s"', 'stop = "15s"', "watch.toml:1: stop: unknown key; the allowed keys are step, history, delay"),
        ('type = "gauge"', 'type = "guage"', "18: query[1].type: Input should be 'auto', 'gauge' or 'counter'"),
        ('"load"', '"requests"', "query: the name 'requests' is used twice"),
        ('tz = "Europe/Berlin"', 'tz = "Berlin"', "watch.toml:15: query[1]: "),
        ('tz = "Europe/Berlin"', "colour = 1", "19: query[1].colour: unknown key; the allowed keys are name, expr"),
        ('expr = "node_load1"', "", "watch.toml:15: query[1].expr: is required"),
        ('"1/day", direction', '"1/century", direction', "query[0]: alarm.rate must be a fraction of the observations"),
        ('"sat 22:00-23:30"', '"some day"', "query[0]: alarm.mute[0] must be a weekly window"),
        ("http://localhost:9090/", "localhost:9090", "watch.toml:5: source.prometheus.url: must be a URL such as"),
        ("[sink.metrics]", "[sink.metric]", "watch.toml:7: sink.metric: unknown key; the allowed keys are metrics"),
        ("[source.prometheus]\nurl", "[state]\nfile", "source: Field required"),
        ("localhost:9090/", "u:p@localhost", "url: must not contain a user; set the keys user"),
        ("localhost:9090/", "localhost:99999", "url: Port out of range 0-65535"),
        ("localhost:9090/", "local host", "url: must be a URL such as"),
        ("localhost:9090/", r"localhost\n", "url: must be a URL such as"),
        ("localhost:9090/", "localhost#part", "url: must be a URL such as"),
        ('9090/"', '9090/"\nuser = "u"', "4: source.prometheus: set both user and password_file, or neither"),
        (
            '9090/"', '9090/"\nuser = "u"\npassword_file = "p"\nbearer_token_file = "t"',
            "4: source.prometheus: set bearer_token_file or user, not both",
        ),
        ('9090/"', '9090/"\nheaders = {"X A" = "b"}', "headers.X A"),
        ('["1h"]', '["1h", "60min"]', "9: query[0]: horizon: the horizons must be different from each other"),
        ('history = "2d"', 'history = "1000000d"', "history: must be at most 10,000,000 steps"),
        ("[sink.metrics]", '[sink.metrics]\n[state]\nfile = "."', "8: state: file: '.' is a directory"),
        ("url = ", "ulr = ", "5: source.prometheus.ulr: unknown key; the allowed keys are url, bearer"),
        ("[source.prometheus]", "[sources.prometheus]", "4: sources: unknown key; the allowed keys are step, "),
        ("[[query]]\nname", "[[queries]]\nname", "9: queries: unknown key; the allowed keys are step, "),
        (GOOD[GOOD.index("[[query]]"):], '[query]\nname = "q"\n', "9: query: each query begins with [[query]] in TOML"),
        ('name = "load"', 'name = "my load"', "16: query[1].name: must be 1 to 64 letters, digits and the characters"),
        ("[sink.metrics]", '[state]\nredis = "x"', '8: state.redis: must be a URL such as "redis://127.0.0.1:6379/0"'),
        ('tz = "Europe/Berlin"', 'alarm = "1/day"', "19: query[1].alarm: must be a table such as {name = value}"),
        ('direction = "up"', 'min_deviation = "big"', "query[0]: alarm.min_deviation must be a number from 0 to"),
    ],
)  # fmt: skip
def test_errors_name_the_line_the_key_and_what_is_allowed(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD.replace(old, new, 1), "watch.toml")
    assert message.replace("Field required", "is required") in str(caught.value)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert load_config(path) == parse_config(GOOD, "a.toml")


def test_every_option_is_in_the_guide() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "watch.md").read_text()
    assert not [name for model in sections(Config) for name in model.model_fields if f"`{name}`" not in guide]


def sections(model: type[Section]) -> Iterator[type[Section]]:
    """A table and those in it."""
    yield model
    for field in model.model_fields.values():
        for kind in kinds_of(field.annotation):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from sections(kind)


def test_selectors() -> None:
    labels = labels_of({"__name__": "up", "job": "api", "path": 'a"b'})
    for text in ("up", 'up{job="api"}', '{job=~"a.*",other=""}', r'up{path="a\"b"}', 'up{job!="b", job!~"b.*",}'):
        selector = parse_selector(text)
        assert selector is not None and selector.matches(labels), text
    for text in ("down", 'up{job="b"}', 'up{job=~"a"}', 'up{other=~".+"}'):
        selector = parse_selector(text)
        assert selector is not None and not selector.matches(labels), text
    for text in ("rate(up[5m])", "up{", 'up{job=~"("}', "", "{}", "up + up", "up[5m]"):
        assert parse_selector(text) is None, text


def test_rules_and_a_dashboard_for_each_query() -> None:
    config = parse_config(GOOD, "watch.toml")
    rules = yaml.safe_load(alert_rules(config))["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [
        "RequestsUnusual", "LoadUnusual", "RfaWatchStalled", "RfaWatchDropsSeries",
    ]  # fmt: skip
    panels = dashboard(config)["panels"]
    expressions = [rule["expr"] for rule in rules] + [one["expr"] for panel in panels for one in panel["targets"]]
    for expr in expressions:
        promql_parser.parse(expr)
    assert 'rfa_forecast{query="requests"}' in expressions and json.dumps(panels)


def test_init_chooses_metrics_that_are_there() -> None:
    with fake_prometheus() as fake:
        fake.hosts = {"node_load1": ["a"], "jobs_total": ["a", "b"], "build_info": ["a"], "many": ["x"] * 999}
        text = write_config(fake.url)
        assert '\nexpr = "many"' not in text
    config = parse_config(text, "watch.toml")
    assert [(query.name, query.type) for query in config.query] == [("load", "gauge"), ("jobs_total", "counter")]


def test_init_gives_each_query_its_own_name() -> None:
    with fake_prometheus() as fake:
        fake.hosts = {"node_load1": ["a"], "load": ["a"], "a:b": ["a"], "a_b": ["a"], '{__name__="a.b"}': ["a"]}
        fake.names = ["node_load1", "load", "a:b", "a_b", "a.b"]
        config = parse_config(write_config(fake.url), "watch.toml")
    assert [(query.name, query.expr) for query in config.query] == [
        ("load", "node_load1"), ("load_2", "load"), ("a_b", "a:b"), ("a_b_2", "a_b"), ("a.b", '{__name__="a.b"}'),
    ]  # fmt: skip


def test_the_demo_finds_its_incident() -> None:
    lines: list[str] = []
    watch = run_demo(lines.append)
    assert watch.filters["requests"].alarms < 30
    assert lines[0].startswith("13:30") and all("/search" in line for line in lines)


@pytest.mark.parametrize(("ago", "step"), [((), 60), ((3.0,), 60), ((33.0, 18.0, 3.0), 15), ((130.0, 70.0, 9.0), 60)])
def test_init_takes_the_interval_of_scrapes(ago: tuple[float, ...], step: int) -> None:
    with fake_prometheus() as fake:
        fake.hosts, fake.scrapes = {"node_load1": ["a"]}, list(ago)  # also where the server has just begun
        assert f'step = "{step}s"' in write_config(fake.url)
