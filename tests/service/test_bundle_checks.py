"""Bundle checks have limits: whatever a bundle does, one short reason comes back in time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from rfa.runtime.bundle.bundle import BundleError, open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.service.bundle_checks import subprocess_check
from rfa.service.bundle_checks.subprocess_check import MAX_REASON, CheckedBundle, check_bundles
from tests.soak.bundles.mutations import seal
from tests.soak.bundles.trial_graphs import FOR_THE_TRIAL
from tests.waiting import PATIENCE, until

PLANTED = (sys.executable, "-P", "-m", "tests.service.planted_check")


def check(paths: Sequence[Path], **limits: Any) -> tuple[CheckedBundle, ...]:
    return asyncio.run(check_bundles(paths, **limits))


@pytest.mark.parametrize(
    "names",
    [("oscillator",), pytest.param(("linear", "books"), marks=pytest.mark.slow)],  # seconds of golden outputs
)
def test_good_bundles_are_named_with_what_was_checked(names: tuple[str, ...]) -> None:
    paths = [BUNDLE_ROOT / name for name in names]
    found = check(paths)
    bundles = [open_bundle(path) for path in paths]
    assert [(one.name, one.kind, one.digest) for one in found] == [
        (bundle.name, bundle.kind, bundle.digest) for bundle in bundles
    ]
    assert found[-1].golden_values > 0


def colder(document: Any) -> None:
    for part in (document["temperature"], document["summary"]["temperature"]):
        part["recurrent"] /= 2
    document["modes"]["recurrent"]["temperature"] /= 2


def better(document: Any) -> None:
    """The error of a model that is right 30 % more often than this one."""
    top = document["modes"]["recurrent"]["top"]
    top["accuracy"] = [min(1.0, share + 0.3) for share in top["accuracy"]]
    gaps = zip(top["count"], top["accuracy"], top["confidence"], strict=True)
    top["ece"] = sum(count * abs(share - sure) for count, share, sure in gaps) / sum(top["count"])
    document["summary"]["ece_top"]["recurrent"] = top["ece"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(colder, r"recurrent\.rows: row \d: the stated confidence is", marks=pytest.mark.slow),
        (better, "outside the range that chance allows"),
    ],
)
def test_a_bundle_whose_calibration_error_does_not_hold_is_refused(
    tmp_path: Path, change: Callable[[Any], None], reason: str
) -> None:
    """Though every hash is that of its file, and every number is the same wherever it stands."""
    copy = Path(shutil.copytree(BUNDLE_ROOT / "books", tmp_path / "mine"))
    document = json.loads((copy / "calibration.json").read_text())
    change(document)
    (copy / "calibration.json").write_text(json.dumps(document))
    seal(copy)
    with pytest.raises(BundleError, match=rf"^mine: calibration\.json: .*{reason}"):
        check([copy])


def test_a_damaged_bundle_is_refused_by_folder_file_and_reason(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(BUNDLE_ROOT / "linear", tmp_path / "mine"))
    (copy / "golden.json").write_bytes((copy / "golden.json").read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"^mine: golden\.json: .*truncated") as refusal:
        check([copy])
    assert str(tmp_path) not in str(refusal.value)


MISBEHAVIOUR = {
    "sleeping": r"the check did not finish within 1 s",
    "greedy": r"needs more than 512 MiB",
    "crashing": r"was killed by SIGSEGV",
    "curious": r"ValueError: sees \[\] and \[\]",
    "endless": r"the check did not finish within 1 s|exceeded its limit of processor time",
    "writing": r"OSError: .*File too large",
    "hoarding": r"OSError: .*Too many open files",
    "printing": r"ValueError: said enough",
    "leaving": r"exited with code 7",
}
GRAPHS = {
    "wrong, rows see each other": r"a case failed when it was repeated in a batch: case \d, step\.\w+ differs",
    "memory, outer products of the batch": r"a case failed when it was repeated in a batch: step failed to run",
    "memory, stretched constant": r"step\.onnx: ONNX Runtime cannot load the graph|golden\.json: step failed to run",
    "endless, a Scan over millions": r"the check did not finish within 5 s|exceeded its limit of processor time",
}


def first(count: int, cases: dict[str, str]) -> list[Any]:
    """The first cases run in `make test`: each starts an interpreter."""
    return [
        pytest.param(name, reason, marks=() if k < count else pytest.mark.slow)
        for k, (name, reason) in enumerate(cases.items())
    ]


@pytest.mark.parametrize(("what", "reason"), first(4, MISBEHAVIOUR))
def test_a_bundle_that_misbehaves_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, reason: str
) -> None:
    monkeypatch.setattr(subprocess_check, "PROGRAM", PLANTED)
    monkeypatch.setenv("RFA_API_KEYS", "a key that is nothing to a bundle")
    (tmp_path / what).mkdir()
    seconds = 1 if "1 s" in reason else PATIENCE
    with pytest.raises(BundleError, match=f"^{what}: .*({reason})"):
        check([tmp_path / what], seconds=seconds, memory_bytes=512 << 20)


def test_a_reason_is_one_short_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_check, "PROGRAM", PLANTED)
    (tmp_path / "talkative").mkdir()
    with pytest.raises(BundleError) as refusal:
        check([tmp_path / "talkative"])
    assert len(str(refusal.value)) <= MAX_REASON + len("talkative: ") and "\n" not in str(refusal.value)


def test_a_check_that_is_cancelled_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_check, "PROGRAM", PLANTED)
    (tmp_path / "sleeping").mkdir()
    started: list[asyncio.subprocess.Process] = []

    async def cancel() -> None:
        create = asyncio.create_subprocess_exec

        async def noted(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
            started.append(await create(*arguments, **options))
            return started[-1]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
        task = asyncio.create_task(check_bundles([tmp_path / "sleeping"]))
        await until(lambda: started)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


@pytest.mark.parametrize(("graph", "reason"), first(1, GRAPHS))
def test_a_graph_that_gives_its_golden_outputs_and_no_more_is_refused(tmp_path: Path, graph: str, reason: str) -> None:
    """What the reader of graphs cannot know: one row is as it should be, or nothing comes at all."""
    copy = Path(shutil.copytree(BUNDLE_ROOT / "oscillator", tmp_path / "oscillator"))
    data = (copy / "step.onnx").read_bytes()
    (copy / "step.onnx").write_bytes(FOR_THE_TRIAL[graph](onnx.ModelProto.FromString(data)))
    seal(copy)
    seconds = 5 if "5 s" in reason else PATIENCE
    with pytest.raises(BundleError, match=f"^oscillator: .*({reason})"):
        check([copy], seconds=seconds, memory_bytes=1 << 30)


def test_nothing_is_imported_once_a_bundle_is_looked_at(tmp_path: Path) -> None:
    """A module that comes late is a file that is opened, and where it was never compiled one that is written."""
    bad = Path(shutil.copytree(BUNDLE_ROOT / "linear", tmp_path / "bad"))
    manifest = json.loads((bad / "manifest.json").read_text()) | {"state": 1}
    (bad / "manifest.json").write_text(json.dumps(manifest))
    seal(bad)
    code = (
        "import sys; from pathlib import Path; import rfa.service.bundle_checks.child as child\n"
        "before = set(sys.modules)\n"
        "answers = [child._check(Path(name), (), 1 << 30) for name in sys.argv[1:]]\n"
        "print([answer.get('refused', '') for answer in answers], sorted(set(sys.modules) - before))\n"
    )
    command = [sys.executable, "-c", code, *(str(BUNDLE_ROOT / name) for name in ("linear", "series")), str(bad)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert re.fullmatch(r"\['', '', 'manifest.json: state: .+'\] \[\]\n", result.stdout), result.stdout
