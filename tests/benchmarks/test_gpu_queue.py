"""The queue of what waits for a GPU: parts, their limits, what is done is not done again; and the whole, rehearsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rfa.benchmarks.gpu_queue import queue
from rfa.benchmarks.gpu_queue.parts import QUEUE
from rfa.benchmarks.gpu_queue.pieces import pack, unpack
from rfa.benchmarks.gpu_queue.queue import UNFINISHED, Part, run_queue
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
