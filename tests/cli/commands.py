"""Run the `rfa` command the way a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from rfa.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "oscillator.csv"


def rfa(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env, prog_name="rfa")
    return result.exit_code, result.stdout, result.stderr


def rfa_json(*arguments: object) -> dict:
    code, out, err = rfa(*arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])
