"""The contents of the wheel, the commands of CI, and the completeness of pinned versions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHIPPED = {"data", "runtime", "model", "fitting", "training", "export", "service", "library", "cli"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    entries = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(len(entry.specifier) == 1 and str(entry.specifier).startswith("==") for entry in entries)
    return {canonicalize_name(entry.name): str(entry.specifier)[2:] for entry in entries}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(line) for group in (PROJECT["dependencies"], *extras.values()) for line in group]


def test_every_direct_dependency_is_pinned_inside_its_range() -> None:
    pinned = pins()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"constraints.txt does not pin {name}"
        assert pinned[name] in requirement.specifier, f"{name}=={pinned[name]} is not in {requirement.specifier}"


def test_everything_that_the_dependencies_need_is_pinned() -> None:
    pinned = pins()
    installed = {canonicalize_name(found.metadata["Name"]): found for found in distributions()}
    # triton comes with the GPU extra only. Where it is absent, its dependencies are not checked.
    queue = [(canonicalize_name(r.name), frozenset(r.extras)) for r in requirements()]
    seen = set()
    while queue:
        name, extras = queue.pop()
        if (name, extras) in seen or name not in installed:
            continue
        seen.add((name, extras))
        assert name in pinned, f"constraints.txt does not pin {name}"
        for line in installed[name].requires or []:
            need = Requirement(line)
            expected = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            if need.marker is None or any(need.marker.evaluate(environment) for environment in expected):
                queue.append((canonicalize_name(need.name), frozenset(need.extras)))
    assert len(seen) > 40


def test_no_registry_is_named() -> None:
    for name in ("constraints.txt", "Makefile", "pyproject.toml", ".ci/run"):
        text = (ROOT / name).read_text()
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links[ =]/", text), name


def test_the_serving_set_has_no_training_library() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert not names & {"torch", "triton", "onnx", "onnxscript", "scipy", "matplotlib", "pytest"}


def test_the_makefile_and_the_pins_name_the_same_torch() -> None:
    assert f"TORCH := torch=={pins()['torch']}" in (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the tracked files, as for a release, and unpack it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    source = tmp_path_factory.mktemp("source")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", "out", "."]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert result.returncode == 0, result.stderr
    (built,) = (source / "out").glob("*.whl")
    assert built.stat().st_size <= 26e6
    shutil.unpack_archive(built, source / "unpacked", "zip")
    return source / "unpacked"


def test_a_wheel_has_every_layer_its_data_and_the_bundles(wheel: Path) -> None:
    assert {path.name.split("-")[0] for path in wheel.iterdir()} == {"rfa", "rfa_server"}
    assert not {"benchmarks", "tests"} & {path.name for path in (wheel / "rfa").iterdir()}
    for layer in (*SHIPPED, "bundles"):
        kinds = (".py", ".json", ".html", ".css", ".js", ".svg", ".toml", ".onnx", ".safetensors")
        files = [path.relative_to(ROOT) for path in (ROOT / layer).rglob("*") if path.suffix in kinds]
        missing = {str(file) for file in files if not (wheel / "rfa" / file).is_file()}
        assert files and not missing
    assert (wheel / "rfa" / "py.typed").is_file()


@pytest.mark.slow  # starts a server; `rfa serve` is tested by test_docs.py
def test_a_wheel_serves_from_a_folder_of_somebody_elses_modules(wheel: Path, tmp_path: Path) -> None:
    """The user's own `model.py`, `service.py` and `utils.py` lie where the command is called."""
    for name in (*SHIPPED, "utils", "benchmarks"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not yours')\n")
    (tmp_path / "series.csv").write_text("t,position\n0,0.1\n0.1,0.2\n0.2,0.3\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RFA_")}
    environment["PYTHONPATH"] = str(wheel)
    modules = "rfa.library.filtering, rfa.runtime.series.filter, rfa.service.app, rfa.library.watch.watch"
    for arguments in (["-c", f"import {modules}"], ["-m", "rfa", "inspect", "series.csv", "--json"]):
        command = [sys.executable, *arguments]
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])


def test_the_installed_command_is_this_code() -> None:
    (entry,) = [e for e in distribution("rfa-server").entry_points if e.group == "console_scripts"]
    assert (entry.name, entry.value) == ("rfa", "rfa.cli.main:app")


def test_the_changelog_knows_the_version() -> None:
    assert re.search(rf"^## {re.escape(PROJECT['version'])}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_ci_can_be_started() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], capture_output=True).returncode == 0


def test_make_refuses_an_old_python_with_the_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = subprocess.run(
        ["make", "-C", str(ROOT), "serve", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode != 0
    assert "needs Python 3.11 or newer" in result.stderr
    assert not (tmp_path / "venv").exists()
