"""Log files: lines of a kind have one template, and are counted by time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rfa.cli.main import app
from rfa.data import load_table
from rfa.data.log_lines import OTHERS, read_log
from rfa.data.log_templates import MOST_TEMPLATES, Templates

LINES = [
    "INFO web: GET /item/{0} from 10.0.0.{0} took {0}.5 ms",
    "WARN cache: key {0} expired after {0} s",
    "ERROR db: connection lost to 10.1.1.{0}:5432",
]
TIMES = {
    "iso": "2026-03-01 00:0{minute}:{second:02d},125 {line}",
    "zone": "[2026-03-01T01:0{minute}:{second:02d}.5+01:00] {line}",
    "short": "260301 000{minute}{second:02d} 148 {line}",
    "web": '10.0.0.{second} - - [01/Mar/2026:00:0{minute}:{second:02d} +0000] "GET /a HTTP/1.1" 200 {second}',
}


def log(form: str) -> str:
    stamped = [(minute, second) for minute in range(5) for second in range(0, 60, 2)]
    lines = [
        TIMES[form].format(minute=minute, second=second, line=LINES[second % 3 if minute < 4 else 0].format(second))
        for minute, second in stamped
    ]
    return "\n".join(lines) + "\n  at module.function(file:12)\n"


@pytest.mark.parametrize("form", ["iso", "zone", "short"])
def test_lines_are_counted_by_template_and_time(form: str, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text(log(form))
    table = load_table(path)
    names = list(table.columns)
    assert names[0] == "time" and len(names) == 4 and len(table) == 30
    assert table.columns["time"].to_pylist()[:2] == ["2026-03-01T00:00:00+00:00", "2026-03-01T00:00:10+00:00"]
    counts = {name: table.columns[name].to_pylist() for name in names[1:]}
    errors = next(name for name in names if "ERROR db: connection lost to <*>" in name)
    assert sum(map(sum, counts.values())) == 150 and sum(counts[errors][24:]) == 0 < sum(counts[errors][:24])
    assert table.notes == ("150 log lines of 3 kinds, counted in steps of 10 s",)


def test_lines_of_web_servers_and_of_syslog() -> None:
    web = log("web")
    found = read_log(web + "\n" + web.splitlines()[0])
    assert found is not None and list(found.columns[0]) == ["time", '"GET /a HTTP/<*>" <*> <*>']
    syslog = "".join(f"Mar {day:>2} 12:00:01 host cron[{day}]: job {day} done\n" for day in range(1, 29) if day != 9)
    found = read_log(syslog)
    assert found is not None and found.columns[0]["host cron[<*>]: job <*> done"] == [1] * 8 + [0] + [1] * 19


def test_counts_that_never_change_are_not_read() -> None:
    """What varies is the number in each line, and the file is refused."""
    assert read_log("".join(f"Mar  1 12:{m:02}:00 host app[7]: took {100 + m} ms\n" for m in range(30))) is None


@pytest.mark.parametrize(
    "text",
    [
        "time,value\n2026-03-01 00:00:00,1\n2026-03-01 00:01:00,2\n",
        "2026-03-01 00:00:00 1.5 2\n2026-03-01 00:01:00 2.5 3\n",
        "2026-03-01 00:00:00,INFORMAL,2\n" * 5,
        "",
    ],
)
def test_tables_are_no_logs(text: str) -> None:
    assert read_log(text) is None


def test_a_template_keeps_the_words_that_its_lines_share() -> None:
    templates = Templates()
    numbers = [templates.number(line) for line in ("user bob logged in", "user eve logged in", "user bob left at 5")]
    assert numbers == [1, 1, 2] and templates.texts == ["user <*> logged in", "user bob left at <*>"]
    again = Templates(templates.texts)
    assert again.number("user ann logged in") == 1 and again.texts == templates.texts
    assert templates.number("") == 0


def test_templates_are_bounded() -> None:
    templates = Templates()
    for index in range(3 * MOST_TEMPLATES):
        templates.number(f"w{'x' * (index % 50)} a{'y' * (index // 50)} c{'z' * (index // 50)}")
    assert len(templates.texts) <= MOST_TEMPLATES
    lines = "".join(f"2026-03-01 00:00:0{i % 9} INFO {chr(97 + i % 26) * (i % 19 + 1)} {'b' * i}\n" for i in range(90))
    found = read_log(lines)
    assert found is not None and OTHERS in found.columns[0]


def test_counts_are_observations_for_a_watch(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("".join(f"2026-03-01 00:0{minute}:00 INFO {word} {minute}\n" for minute, word in enumerate("aabb")))
    result = CliRunner().invoke(app, ["events", str(path), "--counts", "2min"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["labels"]["event"], row["value"]) for row in rows] == [
        ("new", 1), ("1", 2), ("new", 1), ("1", 0), ("2", 2)
    ]  # fmt: skip
    assert [row["t"] - rows[0]["t"] for row in rows] == [0, 0, 120, 120, 120]
    assert rows[1]["labels"] == {"__name__": "log_lines", "event": "1", "template": "INFO a <*>"}
    result = CliRunner().invoke(app, ["events", str(path), "--counts", "soon"])
    assert result.exit_code == 1 and "--counts must be a duration" in result.output


def test_sessions_of_a_log_are_sequences_of_events(tmp_path: Path) -> None:
    path, templates = tmp_path / "hdfs.log", tmp_path / "templates.json"
    lines = ["INFO got block blk_1", "INFO got block blk_-2", "INFO sent blk_1 to disk", "INFO idle"]
    path.write_text("".join(f"081109 20361{second} {line}\n" for second, line in enumerate(lines)))
    command = ["events", str(path), "--session", r"blk_-?\d+", "--templates", str(templates)]
    assert CliRunner().invoke(app, command).stdout == "1 2\n1\n"
    assert json.loads(templates.read_text()) == ["INFO got block blk_<*>", "INFO sent blk_<*> to disk"]
    path.write_text("081109 203620 INFO lost blk_3 now\n081109 203621 INFO sent blk_3 to disk\n")
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert document["sessions"] == {"blk_3": [3, 2]}
    templates.write_text("{}")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "was not written by this command" in result.output
