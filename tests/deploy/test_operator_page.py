"""docs/deploy/README.md agrees with the files beside it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from rfa.service.settings import FIELDS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PAGE = (DEPLOY / "README.md").read_text()


def test_every_setting_it_names_exists() -> None:
    named = set(re.findall(r"\bRFA_[A-Z_]+", PAGE))
    assert len(named) > 5
    of_compose = set(re.findall(r"\$\{(RFA_[A-Z_]+):-", (ROOT / "docker-compose.yml").read_text()))
    assert named <= {f"RFA_{name.upper()}" for name in FIELDS} | of_compose


def test_it_explains_every_alert_and_no_other() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    assert set(re.findall(r"\bRfa[A-Z]\w+", PAGE)) == {rule["alert"] for rule in rules}


def test_every_file_it_names_is_there() -> None:
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+(?:/|\.(?:py|sh|yml|yaml|json)))`", PAGE)
    made_by_the_reader = {"docker-compose.override.yml"}
    missing = [
        path
        for path in named
        if path not in made_by_the_reader and not (ROOT / path).exists() and not (DEPLOY / path).exists()
    ]
    assert len(named) > 8
    assert not missing


def test_the_compose_file_gives_the_same_commands() -> None:
    commands = re.findall(r"^    (docker compose [^#|]*?)(?:  +.*)?$", PAGE, flags=re.MULTILINE)
    header = (ROOT / "docker-compose.yml").read_text().split("\nname:")[0]
    assert len(commands) >= 3
    assert all(f"#   {command}" in header for command in commands)
