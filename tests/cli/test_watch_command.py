"""`rfa watch`: a process against a server, and its metrics. tests/library/watch/test_kills.py has restarts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rfa.cli.main import app
from tests.library.watch.fake_prometheus import fake_prometheus
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path, url: str, *, extra: str = "") -> Path:
    path = folder / "watch.toml"
    path.write_text(
        f'step = "1s"\nhistory = "30s"\ndelay = 0\n[source.prometheus]\nurl = "{url}"\n'
        f'[sink.metrics]\nlisten = "127.0.0.1:0"\n[sink.stdout]\n[state]\nfile = "{folder / "state"}"\n'
        f'[[query]]\nname = "q"\nexpr = "up"\n{extra}'
    )
    return path


def lines(out: Path) -> list[str]:
    return out.read_text().splitlines() if out.exists() else []


def test_a_process_has_metrics_and_ends_with_a_signal(tmp_path: Path) -> None:
    out, log = tmp_path / "rows", tmp_path / "log"
    with fake_prometheus() as fake, out.open("wb") as rows, log.open("wb") as messages:
        path = written(tmp_path, fake.url)
        command = [sys.executable, "-m", "rfa", "watch", str(path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=rows, stderr=messages)
        try:
            wait_until(lambda: len(lines(out)) >= 3)
            (address,) = (word for word in log.read_text().split() if word.startswith("http://"))
            with urllib.request.urlopen(f"{address}/metrics", timeout=PATIENCE) as reply:
                text = reply.read().decode()
            path.write_text("step = 1")
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: "the configuration was not reloaded" in log.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert "rfa_score{" in text and 'rfa_watch_series{query="q"} 3' in text
    assert {json.loads(line)["index"] for line in lines(out)} >= {30}


def test_dry_run_counts_series_and_says_what_is_wrong(tmp_path: Path) -> None:
    with fake_prometheus() as fake:
        path = written(tmp_path, fake.url)
        result = CliRunner().invoke(app, ["watch", str(path), "--dry-run"])
        assert result.exit_code == 0, result.output
        assert result.output == "q: 3 series now, at most 1000, using 46.3 MB of state, auto\n"
        fake.is_down = True
        result = CliRunner().invoke(app, ["watch", "--dry-run", str(path)])
        assert result.exit_code == 1 and "status 503" in result.output
    path = written(tmp_path, "http://127.0.0.1:9", extra="level = 2\n")
    result = CliRunner().invoke(app, ["watch", str(path)])
    assert result.exit_code == 1
    assert f"{path}:14: query[0].level: Input should be less than 1" in result.output


@pytest.mark.parametrize("arguments", [["watch"], ["watch", "--help"]])
def test_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert "rfa watch CONFIG" in result.output


def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["watch", *arguments])
        assert result.exit_code == 1
        return result.stderr

    with fake_prometheus() as fake:
        path = written(tmp_path, fake.url)
        fake.is_down = True
        assert error(str(path), "--dry-run").startswith(f"rfa: query 'q': {fake.url}: status 503")
        path.write_text(path.read_text().replace(str(tmp_path / "state"), str(tmp_path / "none" / "state")))
        assert error(str(path), "--dry-run").startswith("rfa: state.file: the directory of ")
    path.write_bytes(b"\xff")
    assert error(str(path)) == f"rfa: {path} is not UTF-8 text\n"
    assert error("init", "server").startswith("rfa: url: must be a URL such as")


def test_without_a_command_the_help_is_shown() -> None:
    result = CliRunner().invoke(app, ["watch"])
    assert result.exit_code == 2 and "\n  dashboard  Print a dashboard for Grafana as JSON.\n" in result.stderr
