"""Two versions of a bundle that give other numbers, and ways to break one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rfa.benchmarks.load.check import SeriesTruth
from rfa.benchmarks.load.truth import FilterQuestion, open_models, series_truths
from rfa.runtime.bundle.documents import sha256
from rfa.runtime.bundle.manifest import FileSpec, decode_manifest, encode_manifest
from tests.soak.faults.cast import ROOT
from tests.soak.faults.tampering import TAMPERINGS

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
    manifest = decode_manifest((bundle / "manifest.json").read_bytes())
    data = path.read_bytes()
    files = {**manifest.files, path.name: FileSpec(len(data), sha256(data))}
    manifest = dataclasses.replace(manifest, files=files, calibration=calibration["summary"])
    (bundle / "manifest.json").write_bytes(encode_manifest(manifest))


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


def _replace_by_pipe(bundle: Path) -> None:
    (bundle / "golden.json").unlink()
    os.mkfifo(bundle / "golden.json")


# What a bad bundle looks like: all of the ways that the tests of faults have, and those that only a copy can meet.
BREAKAGES: Mapping[str, Callable[[Path], object]] = {
    **{name: tamper for name, (tamper, _) in TAMPERINGS.items()},
    "gone": shutil.rmtree,
    "empty manifest": lambda bundle: (bundle / "manifest.json").write_bytes(b""),
    "pipe": _replace_by_pipe,
    "link": lambda bundle: (bundle / "notes").symlink_to("/etc/hostname"),
    "half": lambda bundle: [file.unlink() for file in sorted(bundle.iterdir())[::2]],
}
