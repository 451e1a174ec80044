"""Dashboard and alerts only use metrics and labels that the server exports."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rfa.service.app import create_app
from rfa.service.settings import Settings
from tests.service.live import running
from tests.service.models import FakeLanguage, fake_models
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "rfa-server.json").read_text())
KUBERNETES = DEPLOY / "kubernetes"
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
# Labels that Prometheus adds to every series (the last two in Kubernetes), and series that it makes itself.
ADDED_LABELS = {"job", "instance", "namespace", "pod"}
MADE_BY_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate", "severity"}}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def expressions() -> list[tuple[str, str]]:
    """Return the place of each query, and the query with Grafana's variables replaced by values of their kind."""
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    annotations = [(item["name"], item["expr"]) for item in DASHBOARD["annotations"]["list"]]
    alerts = [(rule["alert"], rule["expr"]) for rule in RULES]
    return [
        (where, text.replace("$__rate_interval", "5m").replace("$model", ".*"))
        for where, text in (*panels, *annotations, *alerts, *asked_by_the_autoscaler())
    ]


def scaled_by() -> list[str]:
    """Return the metrics that the autoscaler of GPU servers requests from the cluster."""
    scaler = yaml.safe_load((KUBERNETES / "gpu" / "horizontalpodautoscaler.yaml").read_text())
    return [entry["pods"]["metric"]["name"] for entry in scaler["spec"]["metrics"]]


def asked_by_the_autoscaler() -> list[tuple[str, str]]:
    """Return the queries of the adapter to Prometheus for each metric."""
    (rule,) = yaml.safe_load((KUBERNETES / "monitoring" / "adapter-rules.yaml").read_text())["rules"]["custom"]
    filled = rule["metricsQuery"].replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'namespace="rfa"')
    return [(name, filled.replace("<<.Series>>", name)) for name in scaled_by()]


def selectors(text: str) -> list[promql_parser.VectorSelector]:
    """Return every vector selector of a query."""
    found: list[promql_parser.VectorSelector] = []

    def collect(node: Any) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        for child in ("lhs", "rhs", "expr", "param"):
            if getattr(node, child, None) is not None:
                collect(getattr(node, child))
        for argument in getattr(node, "args", ()):
            collect(argument)

    collect(promql_parser.parse(text))
    return found


async def scrape() -> str:
    """Return /metrics of a server that has answered, failed and rejected requests."""
    models = fake_models(FakeLanguage(poison="poison"))
    app = create_app(Settings(bundles=(), processes=1), load=lambda _: models)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for text in ("say |", "poison |"):
                await client.post("/generate", json={"inputs": text, "parameters": {"max_new_tokens": 3}})
            await client.post("/filter", json={"observations": [[0.0, 0.0]]})
            app.state.metrics.admission_rejections.labels("queue_full").inc()
            return (await client.get("/metrics")).text


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return labels by name of series. A series without counts has its name and no labels."""
    labels: dict[str, set[str]] = defaultdict(set)
    with running(bundles=(ROOT / "bundles" / "linear",)) as server:
        served = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).raise_for_status().text
    for text in (asyncio.run(scrape()), served):
        for family in text_string_to_metric_families(text):
            for suffix in SUFFIXES.get(family.type, ()):
                labels[family.name + suffix] |= set()
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
    return dict(labels)


def existing_labels(exported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the labels of every series that Prometheus has or will have of this server."""
    return {name: labels | ADDED_LABELS for name, labels in exported.items()} | MADE_BY_PROMETHEUS


@pytest.mark.parametrize(("where", "text"), expressions())
def test_a_query_asks_for_what_is_exported(where: str, text: str, exported: dict[str, set[str]]) -> None:
    existing = existing_labels(exported)
    asked = selectors(text)
    assert asked
    for selector in asked:
        assert selector.name in existing, f"{where}: there is no metric {selector.name}"
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= existing[selector.name], f"{where}: {selector.name} labels: {sorted(existing[selector.name])}"


@pytest.mark.parametrize(("where", "text"), expressions())
def test_a_sum_keeps_labels_that_its_series_have(where: str, text: str, exported: dict[str, set[str]]) -> None:
    existing = existing_labels(exported)
    kept = {label.strip() for group in re.findall(r"\bby ?\(([^)]*)\)", text) for label in group.split(",")}
    for selector in selectors(text):
        assert kept <= existing[selector.name], f"{where}: {selector.name} labels: {sorted(existing[selector.name])}"


def test_the_adapter_finds_the_series_that_the_autoscaler_asks_for() -> None:
    (rule,) = yaml.safe_load((KUBERNETES / "monitoring" / "adapter-rules.yaml").read_text())["rules"]["custom"]
    (selector,) = selectors(rule["seriesQuery"])
    (name,) = [matcher.value for matcher in selector.matchers.matchers if matcher.name == "__name__"]
    assert len(scaled_by()) == 2
    assert all(re.fullmatch(name, metric) for metric in scaled_by())
    assert set(rule["resources"]["overrides"]) <= ADDED_LABELS


def test_every_alert_says_how_bad_it_is_and_is_shown_to_fire() -> None:
    cases = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())["tests"]
    fires = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case.get("exp_alerts")}
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
    assert fires == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_promtool_sees_every_alert_fire() -> None:
    command = ["promtool", "test", "rules", "rules_test.yml"]
    run = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_scrapes_the_services_of_the_compose_file() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (job,) = prometheus["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert job["job_name"] == "rfa"  # the dashboard and the alerts select this job
    assert set(discovery["names"]) == {name for name in services if name.startswith("server")}
    assert {discovery["port"]} == {int(services[name]["environment"]["RFA_HEALTH_PORT"]) for name in discovery["names"]}
    assert all("watch" in services[name]["networks"] for name in (*discovery["names"], "prometheus"))


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "rfa-server.yml").read_text())["providers"]
    assert provider["options"]["path"] == mounts["./docs/deploy/grafana/dashboards"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
