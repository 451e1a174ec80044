"""The Ray Serve deployment on a real Ray. `RAY_PYTHON` names an interpreter that has Ray."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from rfa.runtime.filters.auto import NAMES
from tests.bytecode import with_bytecode
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
BUNDLES = [manifest.parent.name for manifest in (ROOT / "bundles").glob("*/manifest.json")]
MODELS = {*BUNDLES, *NAMES, "default"}
PYTHON = os.environ.get("RAY_PYTHON", sys.executable)


def has_ray() -> bool:
    """Return whether that interpreter finds Ray, without importing it."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"
    return subprocess.run([PYTHON, "-c", code], timeout=PATIENCE).returncode == 0


pytestmark = pytest.mark.skipif(
    not has_ray(), reason="ray is not installed: pip install 'ray[serve]', or set RAY_PYTHON"
)


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """Return the environment of a node for replicas, with changes. Ray keeps its files in `folder`."""
    kept = {name: value for name, value in with_bytecode(folder / "bytecode").items() if not name.startswith("RFA_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: beside other work the proxy gets no CPU in its 60 s to start
        "RFA_STATE_KEYS": base64.b64encode(sha256(b"a key of this test").digest()).decode(),
        "RFA_INSECURE": "true",
        **changes,
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_replicas_answer_like_the_server(tmp_path: Path) -> None:
    command = [PYTHON, str(Path(__file__).parent / "ray_visit.py")]
    run = subprocess.run(command, env=environment(tmp_path), cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    answers = json.loads(run.stdout.splitlines()[-1])
    whole, *joined = answers.pop("resumed")
    assert len(joined) == 11
    assert set(joined) == {whole}  # any replica continues from a state of any other
    assert {status for status, _ in answers.values()} == {200}
    ready = json.loads(answers["/ready"][1])
    assert (ready["status"], set(ready["models"])) == ("ready", MODELS)
    assert [step["index"] for step in json.loads(answers["/filter"][1])["steps"]] == [0, 1, 2]
    text = json.loads(answers["/generate"][1])["generated_text"]
    events = [line for line in answers["/generate stream"][1].splitlines() if line]
    assert len(events) == 6
    assert json.loads(events[-1].removeprefix("data: "))["generated_text"] == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RFA_STATE_KEYS": ""}, "RFA_STATE_KEYS_FILE"),
        ({"RFA_INSECURE": "false"}, "RFA_API_KEYS_FILE"),
        ({"RFA_SESSIONS": "memory"}, "RFA_SESSIONS=memory"),
    ],
)
def test_what_replicas_must_share_is_asked_for_before_they_start(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    variables = {name: value for name, value in environment(tmp_path, **changes).items() if value}
    code = "from rfa.service.deploy_ray import shared_settings; shared_settings()"
    run = subprocess.run([PYTHON, "-c", code], env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode != 0
    assert message in run.stderr.splitlines()[-1]
