"""Two versions of a bundle that give other numbers, and ways to break one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rfa.benchmarks.load.check import SeriesTruth
from rfa.benchmarks.load.truth import FilterQuestion, open_models, series_truths
from tests.soak.bundles.mutations import seal
from tests.soak.faults.cast import ROOT

NAME = "linear"
STEPS = 120
# Of the variance of the state: every answer has it.
FACTOR = 1.5


def make_versions(folder: Path) -> dict[str, Path]:
    """The bundle of this repository, and the same with wider intervals."""
    versions = {name: folder / name / NAME for name in ("first", "second")}
    for path in versions.values():
        shutil.copytree(ROOT / "bundles" / NAME, path)
    _widen(versions["second"])
    return versions


def _widen(bundle: Path) -> None:
    path = bundle / "calibration.json"
    calibration = json.loads(path.read_text())
    calibration["recurrent"]["state"]["variance_scale"] *= FACTOR
    # A bundle whose manifest says of it what the file does not is refused.
    calibration["summary"]["variance_scale"]["recurrent"] = calibration["recurrent"]["state"]["variance_scale"]
    path.write_text(json.dumps(calibration, sort_keys=True))
    seal(bundle)


def truths_of(versions: Mapping[str, Path]) -> dict[str, SeriesTruth]:
    """What each version says of one series, alone.

    Raises:
        ValueError: the versions cannot be told apart by every one of their answers.
    """
    question = FilterQuestion()
    truths = {
        version: series_truths(open_models([path]).filters[NAME], question, [7], STEPS, lambda done: None)[0]
        for version, path in versions.items()
    }
    first, second = (truth.digests for truth in truths.values())
    size = len(first) // STEPS
    if any(first[at : at + size] == second[at : at + size] for at in range(0, len(first), size)):
        raise ValueError("the two versions give the same answer somewhere")
    return truths


def publish(source: Path, target: Path) -> None:
    """Put a version where the server looks, in place of what is there, with no care for who reads it meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _swap_files(bundle: Path) -> None:
    one, other = bundle / "golden.json", bundle / "calibration.json"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def _change_a_digest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["golden.json"]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))


def _change_golden(bundle: Path) -> None:
    """The work of somebody who knows the format: the hashes are right again."""
    path = bundle / "golden.json"
    text = path.read_text()
    at = max(text.rfind(f"{digit}.") for digit in "0123456789")
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")
    seal(bundle)


def _replace_by_pipe(bundle: Path) -> None:
    (bundle / "golden.json").unlink()
    os.mkfifo(bundle / "golden.json")


BREAKAGES: Mapping[str, Callable[[Path], object]] = {
    "weights": lambda bundle: _flip_a_bit(bundle / "model.safetensors"),
    "golden": lambda bundle: _flip_a_bit(bundle / "golden.json"),
    "calibration": lambda bundle: _flip_a_bit(bundle / "calibration.json"),
    "swapped": _swap_files,
    "digest": _change_a_digest,
    "extra": lambda bundle: (bundle / "extra.pt2").touch(),
    "missing": lambda bundle: (bundle / "golden.json").unlink(),
    "consistent": _change_golden,
    "gone": shutil.rmtree,
    "empty manifest": lambda bundle: (bundle / "manifest.json").write_bytes(b""),
    "pipe": _replace_by_pipe,
    "link": lambda bundle: (bundle / "notes").symlink_to("/etc/hostname"),
    "half": lambda bundle: [file.unlink() for file in sorted(bundle.iterdir())[::2]],
}
