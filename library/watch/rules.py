"""Create alert rules for Prometheus and a dashboard for Grafana, for the queries of a configuration."""

from __future__ import annotations

import json
from typing import Any

from rfa.library.watch.config import Config, Query
from rfa.library.watch.prometheus import LONGEST_DELAY

# A watch is considered stalled if it has not read a new step for this number of steps.
STALLED_STEPS = 5


def alert_rules(config: Config) -> str:
    """Return the alert rules as YAML."""
    lines = ["groups:", "- name: rfa-watch", "  rules:"]
    for query in config.query:
        lines += [
            f"  - alert: {_camel(query.name)}Unusual",
            f"    expr: rfa_incident{{query={json.dumps(query.name)}}} == 1",
            "    labels:",
            "      severity: warning",
            "    annotations:",
            f"      summary: {query.name} is unusual",
            f"      description: {_description(query)}",
        ]
    stalled = STALLED_STEPS * config.step + (LONGEST_DELAY if config.delay is None else config.delay)
    lines += [
        "  - alert: RfaWatchStalled",
        f"    expr: time() - rfa_watch_last_step_seconds > {stalled:g}",
        "    labels:",
        "      severity: warning",
        "    annotations:",
        "      summary: rfa watch has not read a step of query {{ $labels.query }} recently",
        "  - alert: RfaWatchDropsSeries",
        '    expr: increase(rfa_watch_dropped_total{reason="limit"}[15m]) > 0',
        "    labels:",
        "      severity: warning",
        "    annotations:",
        "      summary: query {{ $labels.query }} has more series than its series_limit",
    ]
    return "\n".join(lines) + "\n"


def _description(query: Query) -> str:
    text = f"{query.expr} raised an alarm. The alarm rate of each series is {query.alarm['rate']}. The interval of each"
    return json.dumps(f"{text} value is in rfa_lower and rfa_upper.")


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.replace(".", "_").replace("-", "_").split("_"))


def dashboard(config: Config) -> dict[str, Any]:
    """Return the dashboard as JSON. For each query, it shows the values with their intervals, and the scores."""
    panels = []
    for row, query in enumerate(config.query):
        chosen = f"{{query={json.dumps(query.name)}}}"
        value = query.expr if query.type != "counter" else f"rate({query.expr}[{max(4 * config.step, 60):g}s])"
        series = [(value, "value"), (f"rfa_mean{chosen}", "expected")]
        series += [(f"rfa_lower{chosen}", "lower"), (f"rfa_upper{chosen}", "upper")]
        series += [(f"rfa_forecast{chosen}", "forecast {{horizon}}")] if query.horizon else []
        panels.append(_panel(2 * row + 1, query.name, series, x=0, y=8 * row, width=16))
        scores = [(f"rfa_score{chosen}", "score"), (f"rfa_incident{chosen}", "incident")]
        panels.append(_panel(2 * row + 2, f"{query.name}: scores", scores, x=16, y=8 * row, width=8))
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "rfa watch",
        "uid": "rfa-watch",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": panels,
    }


def _panel(number: int, title: str, series: list[tuple[str, str]], *, x: int, y: int, width: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + k), "expr": expr, "legendFormat": f"{name} {{{{instance}}}}", "datasource": source}
        for k, (expr, name) in enumerate(series)
    ]
    place = {"x": x, "y": y, "w": width, "h": 8}
    return {
        "id": number, "type": "timeseries", "title": title, "datasource": source, "gridPos": place, "targets": targets
    }  # fmt: skip
