"""What goes wrong before or instead of the work: one line that says what to do, an exit code, no traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rfa.cli.main import app
from rfa.training.language import Trainer
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "model": {"vocab_size": 270, "d_model": 24, "n_layers": 1, "n_heads": 2, "head_dim": 6, "n_slots": 2},
    "training": {"steps": 4, "batch": 2, "context": 16, "modes": ["attention"], "precision": "fp32"},
}


def failure(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and the one line of a command that does not do its work."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env, prog_name="rfa")
    assert result.exit_code != 0 and "Traceback" not in result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("rfa: ")
    return result.exit_code, line


@pytest.fixture
def text(tmp_path: Path) -> Path:
    sentence = "the cat sat on the mat and the dog sat on the log. " * 200
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(sentence)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return tmp_path


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("device", "reported"),
    [("cuda", "--device cuda: torch"), ("tpu", "--device must be one of auto, cpu, cuda, got 'tpu'")],
)
def test_a_device_that_is_not_there(text: Path, device: str, reported: str) -> None:
    out = text / "run"
    code, line = failure(
        "train", "lm", "--data", text, "--config", text / "tiny.json", "--out", out, "--device", device
    )
    assert code == 1 and reported in line and not out.exists()


@pytest.mark.parametrize(
    ("command", "limit", "reported"),
    [
        ("lm", 10, "is less than the longest context; it must be at least 4096"),
        ("confidence", 1023, "is less than two windows; it must be at least 1024"),
    ],
)
def test_a_limit_below_what_is_scored_at_once(text: Path, command: str, limit: int, reported: str) -> None:
    _, line = failure("eval", command, "books", "--data", text, "--limit", limit)
    assert line == f"rfa: --limit {limit} {reported}"


@pytest.mark.parametrize(
    "command",
    [
        ("serve",), ("compile",), ("info", "linear"), ("verify", "linear"), ("generate", "once"),
        ("filter", ROOT / "docs" / "oscillator.csv", "--bundle", "linear"),
        ("eval", "filter", "linear", "--data", "simulate:oscillator"), ("bench", "load", "mixed"),
    ],
)  # fmt: skip
def test_a_misspelt_setting(command: tuple[str, ...]) -> None:
    _, line = failure(*command, env={"RFA_MAX_RUNING": "4"})
    assert "RFA_MAX_RUNING is not a setting" in line and "did you mean RFA_MAX_RUNNING?" in line


def test_a_setting_that_is_no_number_is_named_as_it_was_set() -> None:
    _, line = failure("info", "linear", env={"RFA_PORT": "http"})
    assert line.startswith("rfa: port (RFA_PORT): Input should be a valid integer")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_training_that_is_stopped(
    text: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    original = Trainer.update

    def update(self: Trainer, *args: object) -> dict[str, float]:
        losses = original(self, *args)  # type: ignore[arg-type]
        if self.step == 3:
            signal.raise_signal(number)
        return losses

    monkeypatch.setattr(Trainer, "update", update)
    # What runs in the background of a shell is started with SIGINT ignored, which is respected.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = ("train", "lm", "--data", text, "--config", text / "tiny.json", "--out", text / "run", "--device", "cpu")
    try:
        found, line = failure(*command)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == code
    assert line == f"rfa: received {number.name}: stopped and saved at step 3 of 4; run the same command to continue"
    _, line = failure("export", text / "run", "--out", text / "bundle")
    assert "has not finished" in line and "to continue it" in line


def test_steps_are_of_what_is_trained(tmp_path: Path) -> None:
    _, line = failure(
        "train", "filter", "--data", "simulate:oscillator", "--config", "linear", "--steps", 9, "--out", tmp_path
    )
    assert line == "rfa: --steps requires a deep filter, but the config has the family linear; remove --steps"


def test_ctrl_c_in_any_command_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rfa.cli.bundles.find_bundle", interrupted)
    assert failure("info", "linear") == (130, "rfa: stopped by Ctrl-C")


def test_without_torch(text: Path) -> None:
    commands = [
        ["train", "lm", "--data", text, "--out", text / "run"],
        ["train", "filter", "--data", "simulate:oscillator", "--out", text / "run"],
        ["eval", "lm", "books", "--data", text],
        ["export", text, "--out", text / "bundle"],
    ]
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from typer.testing import CliRunner; from rfa.cli.main import app\n"
        f"for command in {[[str(word) for word in command] for command in commands]}:\n"
        "    found = CliRunner().invoke(app, command); print(found.exit_code, found.stderr, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == 4 * (
        "1 rfa: this command needs torch; install it with pip install 'rfa-server[train]', "
        "or set up everything with `make test`\n"
    )


@pytest.mark.parametrize(
    ("family", "gpu", "reported"),
    [
        (
            "language",
            "sm_9a",
            "--gpu must be a comma-separated list of distinct architectures from sm_80, sm_86, sm_89, sm_90",
        ),
        ("linear", "sm_80", "--gpu supports only language models"),
    ],
)
def test_kernels_that_nobody_can_compile(tmp_path: Path, family: str, gpu: str, reported: str) -> None:
    pytest.importorskip("triton")
    (tmp_path / "config.json").write_text(json.dumps({"family": family, "config": {}}))
    (tmp_path / "train.json").write_text("{}")
    code, line = failure("export", tmp_path, "--out", tmp_path / "bundle", "--gpu", gpu)
    assert code == 1 and reported in line and not (tmp_path / "bundle").exists()
