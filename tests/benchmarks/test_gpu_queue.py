"""The queue of what waits for a GPU: parts, their limits, what is done is not done again; and the whole, rehearsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rfa.benchmarks.gpu_queue import queue, series
from rfa.benchmarks.gpu_queue.__main__ import main
from rfa.benchmarks.gpu_queue.cuda_tests import CUDA_TESTS, run_tests
from rfa.benchmarks.gpu_queue.parts import QUEUE, Wishes, parts
from rfa.benchmarks.gpu_queue.pieces import pack, unpack
from rfa.benchmarks.gpu_queue.queue import UNFINISHED, Part, run_queue
from rfa.fitting.interrupts import Stopped
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, name: str = "part", seconds: float = 60, least: float = 0, result: str | None = None) -> Part:
    return Part(name, (sys.executable, "-c", code), seconds, least, result=result)


def statuses(record: dict[str, Any]) -> dict[str, str]:
    return {name: found["status"] for name, found in record.items()}


def test_a_part_is_run_until_it_is_done(tmp_path: Path) -> None:
    """Once done never again; failed, stopped or left out it is tried again with the same folder."""
    ran = tmp_path / "ran"
    note = f"open({str(ran)!r}, 'a').write('x');"
    first = [
        python(note + "print('said')", "done"),
        python(note + "raise SystemExit(3)", "failed"),
        python(note + f"raise SystemExit({UNFINISHED})", "unfinished"),
        python(note, "long", least=1e9),
    ]
    record = run_queue(first, tmp_path / "out", seconds=600, commit="abc")
    assert statuses(record) == {"done": "done", "failed": "failed", "unfinished": "unfinished", "long": "left out"}
    assert record["failed"]["exit_code"] == 3 and ran.read_text() == "xxx"
    assert (tmp_path / "out" / "done.log").read_text() == "said\n"
    again = [python(note, name) for name in ("done", "failed", "unfinished", "long")]
    record = run_queue(again, tmp_path / "out", seconds=600)
    assert set(statuses(record).values()) == {"done"} and ran.read_text() == "xxxxxx"
    assert json.loads((tmp_path / "out" / "queue.json").read_text()) == record


def test_a_part_out_of_time_ends_with_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not listen, and has started another."""
    monkeypatch.setattr(queue, "GRACE_SECONDS", 0.1)
    child = tmp_path / "child"
    code = f"trap '' TERM; sleep 600 & echo $! > {child}; wait; sleep 600"
    part = Part("part", ("sh", "-c", code), seconds=0.5, least=0)
    record = run_queue([part], tmp_path, seconds=600)
    assert statuses(record) == {"part": "out of time"}

    def is_gone() -> bool:
        state = Path(f"/proc/{child.read_text().strip()}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"

    wait_until(is_gone)


def test_a_part_gets_what_is_left_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def run(part: Part, out: Path, seconds: float, environment: object) -> dict[str, Any]:
        given.append((part.name, seconds))
        return {"status": "done"}

    monkeypatch.setattr(queue, "run_part", run)
    clock = iter([0.0, 0.0, 500.0, 690.0])
    expected = [python("", name, seconds=120, least=20) for name in "abc"]
    record = run_queue(expected, tmp_path, seconds=600, clock=lambda: next(clock))
    assert given == [("a", 120), ("b", 600 - 500 - queue.GRACE_SECONDS)]
    assert statuses(record) == {"a": "done", "b": "done", "c": "left out"}


def test_results_have_the_commit_that_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no checkout; a commit that is there stays."""
    monkeypatch.setattr(queue, "git_commit", lambda: None)
    for name, own in (("a", None), ("b", "own")):
        code = f"import json; json.dump({{'commit': {own!r}}}, open({str(tmp_path / name)!r}, 'w'))"
        record = run_queue([python(code, name, result=name)], tmp_path, seconds=600, commit="sent")
        assert json.loads((tmp_path / name).read_text()) == {"commit": own or "sent"}
        assert record[name]["commit"] == "sent"


def test_a_folder_goes_through_pieces(tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    content = {"one": os.urandom(5000), "two": b""}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    assert not unpack(out, "run", tmp_path / "none")
    pack(folder, out, "run", largest=1000)
    pieces = pack(folder, out, "run", largest=4096)  # fewer: none of the earlier ones is left
    assert sorted(out.iterdir()) == pieces and max(path.stat().st_size for path in pieces) == 4096
    assert unpack(out, "run", tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == content
    pieces[1].unlink()
    with pytest.raises(ValueError, match=r"lacks pieces of run\.tar"):
        unpack(out, "run", tmp_path / "lacking")
    for path in pieces[:1]:
        path.write_bytes(b"no archive")
    for path in pieces[2:]:
        path.unlink()
    with pytest.raises(ValueError, match="damaged"):
        unpack(out, "run", tmp_path / "damaged")


def test_a_training_goes_on_from_the_pieces_of_the_last_loan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def train(run: object, folder: Path, *, begin_from: object, device: str) -> None:
        assert begin_from == "first weights"
        folder.mkdir(exist_ok=True)
        steps = folder / "steps"
        seen.append(steps.read_text() if steps.exists() else "")
        steps.write_text(f"{seen[-1]}x")
        if len(seen) < 3:
            raise Stopped(15, len(seen), 3)

    monkeypatch.setattr(series, "train_series", train)
    app = typer.Typer()
    app.command()(series.main)
    monkeypatch.setattr(series, "load_run", lambda path: "first weights")
    expected = ["--out", str(tmp_path), "--rehearse", "--from", str(tmp_path)]
    codes = [CliRunner().invoke(app, expected).exit_code for _ in range(3)]
    assert codes == [UNFINISHED, UNFINISHED, 0] and seen == ["", "x", "xx"]


def test_tests_of_all_files_run_and_one_that_fails_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"test_right.py": "assert True", "test_wrong.py": "assert 1 == 2", "test_later.py": "assert True"}
    for name, line in files.items():
        (tmp_path / name).write_text(f"def test_it():\n    {line}\n")
    paths = [str(tmp_path / name) for name in files]
    assert run_tests(paths) == 1
    said = capsys.readouterr().out
    assert said.count("1 passed") == 2 and "assert 1 == 2" in said and f"{paths[1]}: exit code 1" in said
    assert run_tests(paths[:1]) == 0


def test_every_file_of_the_gpus_tests_is_there() -> None:
    for expected in CUDA_TESTS:
        file, _, name = expected.partition("::")
        assert f"def {name or 'test_'}" in (ROOT / file).read_text()


def test_the_recipe_is_fed_by_all_cores_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "cores", lambda: 16)
    run = series.chosen_run(None, 8.0)
    assert (run.training.workers, run.training.minutes) == (15, 8.0)


def test_the_parts_fit_in_twelve_minutes_and_are_named(tmp_path: Path) -> None:
    made = parts(Wishes(tmp_path))
    assert [part.name for part in made] == [name for name in QUEUE if name != "books"]
    # Those that come before the training leave it the time that it begins with.
    before = sum(part.seconds for part in made[:2])
    assert before + queue.GRACE_SECONDS + made[2].least <= 720
    assert [part.name for part in parts(Wishes(tmp_path, books=tmp_path), ("books", "tests"))] == ["tests", "books"]
    with pytest.raises(ValueError, match=r"unknown parts \['all'\]"):
        parts(Wishes(tmp_path), ("all",))


def test_stored_kernels_are_served_without_a_compiler(tmp_path: Path) -> None:
    (given,) = parts(Wishes(tmp_path, bundle=tmp_path), ("served",))
    (compiled_here,) = parts(Wishes(tmp_path), ("served",))
    assert given.environment == {"CC": "/bin/false"} and not compiled_here.environment


@pytest.mark.slow
def test_parts_find_what_wheels_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "brought_along-1.0-py3-none-any.whl", "w") as wheel:
        folder = "brought_along-1.0.dist-info"
        wheel.writestr("brought_along.py", "WHAT = 'it'\n")
        wheel.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: brought-along\nVersion: 1.0\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{folder}/RECORD", "")
    expected = python("import brought_along, rfa; print(brought_along.WHAT, rfa.__name__)", "tests")
    monkeypatch.setattr("rfa.benchmarks.gpu_queue.__main__.parts", lambda wishes, names: [expected])
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--out", str(tmp_path / "out"), "--wheels", str(wheels)])
    assert (tmp_path / "out" / "tests.log").read_text() == "it rfa\n", result.output
    assert result.exit_code == 0


@pytest.mark.slow
def test_all_of_it_rehearsed(tmp_path: Path) -> None:
    """On a CPU at tiny sizes: every part is done, and leaves what a GPU's would."""
    command = [sys.executable, "-m", "rfa.benchmarks.gpu_queue", "--out", str(tmp_path), "--rehearse"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert found.returncode == 0, found.stdout + found.stderr + logs
    record = json.loads((tmp_path / "queue.json").read_text())
    assert statuses(record) == {name: "done" for name in QUEUE if name != "books"}
    speed = json.loads((tmp_path / "series-speed.json").read_text())
    assert speed["rows"][0]["step_ms"] > 0 and speed["drawn"][0]["series_a_second"] > 0
    served = json.loads((tmp_path / "load-text-64-gpu.json").read_text())
    assert served["device"] == "cpu" and served["scenario"] == "text-64"
    assert unpack(tmp_path, "series", tmp_path / "run") and (tmp_path / "run" / "train.json").is_file()
    assert max(path.stat().st_size for path in tmp_path.iterdir() if path.is_file()) <= 16 * 2**20
