"""The CPU image, really built by buildah and run as by an orchestrator: no rights, a read-only root, keys from a file.

Asked for by `IMAGE_TEST`, because it needs root, buildah, a package index and half a minute: 1 builds on the base that
the Dockerfile names; anything else is a base to take instead, for example the one that docs/deploy/debian_base.sh makes
where no registry can be reached. `IMAGE_TEST_PIP_CONF` and `IMAGE_TEST_CA` are files that pip needs for an index of
your own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
BUNDLES = sorted(manifest.parent.name for manifest in (ROOT / "bundles").glob("*/manifest.json"))
BASE = os.environ.get("IMAGE_TEST", "")
BUILDAH = ("buildah", "--storage-driver", "vfs")
IMAGE = "localhost/rfa-server-test"
KEY = "a-key-of-this-test-and-of-nothing-else"

pytestmark = [
    pytest.mark.skipif(not BASE, reason="IMAGE_TEST is not set: see the docstring"),
    pytest.mark.skipif(bool(BASE) and shutil.which("buildah") is None, reason="buildah is not installed"),
    pytest.mark.timeout(1_200),
]

# Puts the files of the image under a root of their own that nothing can write to, as Kubernetes and compose do, and
# becomes the server there: the same process id all along.
ENTER = """
root=$1 secrets=$2; shift 2
mount --bind "$root" "$root"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$secrets" "$root/run"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""
UNPRIVILEGED = ("--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")


def buildah(*arguments: str) -> str:
    """Standard output of a buildah command that must succeed."""
    run = subprocess.run([*BUILDAH, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1_000)
    assert run.returncode == 0, run.stderr[-4_000:]
    return run.stdout.strip()


@dataclass(frozen=True)
class Image:
    """A built image and its files."""

    config: dict[str, Any]
    root: Path

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(path.lstat().st_size for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def command(self, *arguments: str, wanted: list[str] | None = None, **environment: str) -> list[str]:
        """The image's entry point with arguments, or the `wanted` command instead, as its user."""
        user, group = self.config["User"].split(":")
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        identity = ("setpriv", f"--reuid={user}", f"--regid={group}", *UNPRIVILEGED)
        run = wanted or [*self.config["Entrypoint"], *arguments]
        place = ("env", "--ignore-environment", f"--chdir={self.config['WorkingDir']}", *variables)
        return [*identity, *place, *run]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    options = ["--isolation", "chroot", "--format", "docker", "--target", "cpu", "--tag", IMAGE]
    if BASE != "1":
        options += ["--build-arg", f"BASE={BASE}"]
    if "IMAGE_TEST_PIP_CONF" in os.environ:
        options += ["--secret", f"id=pip,src={os.environ['IMAGE_TEST_PIP_CONF']}"]
    if "IMAGE_TEST_CA" in os.environ:
        options += ["--volume", f"{os.environ['IMAGE_TEST_CA']}:/etc/ssl/certs/ca-certificates.crt:ro"]
    buildah("bud", *options, ".")
    description = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]
    container = buildah("from", "--pull-never", IMAGE)
    try:
        yield Image(description["config"], Path(buildah("mount", container)))
    finally:
        buildah("rm", container)
        buildah("rmi", IMAGE)


@pytest.fixture
def secrets(tmp_path: Path, image: Image) -> Path:
    """What is mounted at /run: the secrets, readable by the image's user only."""
    folder = tmp_path / "run" / "secrets"
    folder.mkdir(parents=True)
    file = folder / "api_keys"
    file.write_text(KEY + "\n")
    user, group = map(int, image.config["User"].split(":"))
    os.chown(file, user, group)
    file.chmod(0o400)
    return folder.parent


@contextmanager
def inside(image: Image, secrets: Path, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that runs inside the image, the process being the command's own; killed if it is still there after."""
    shell = ["unshare", "--mount", "--propagation=private", "sh", "-ec", ENTER, "sh", str(image.root), str(secrets)]
    with subprocess.Popen([*shell, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def kernels(folder: Path) -> dict[str, bytes]:
    """The files that numba keeps there, of which there must be some: an index that is renewed has other bytes."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.nb?")}
    assert found
    return found


def ask(port: int, path: str, body: dict[str, Any] | None = None, key: str | None = KEY) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", content, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask_in_arrow(port: int) -> int:
    """Rows of the answer to a series of two observations as an Arrow stream."""
    kind = "application/vnd.apache.arrow.stream"
    table, sink = pa.table({"t": [0.0, 1.0], "y": [1.0, 0.7]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    headers = {"Content-Type": kind, "Accept": kind, "Authorization": f"Bearer {KEY}"}
    url, content = f"http://127.0.0.1:{port}/filter?model=metrics", sink.getvalue().to_pybytes()
    with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=PATIENCE) as answer:
        return int(pa.ipc.open_stream(answer.read()).read_all().num_rows)


@contextmanager
def serving(image: Image, secrets: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of the image on a free port of this machine, ready by the image's own health check."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment: dict[str, Any] = {
        "RFA_API_KEYS_FILE": "/run/secrets/api_keys",
        "RFA_PROCESSES": "2",
        "RFA_PORT": str(port),
    }
    # The last --host counts: a test listens for this machine only.
    with inside(image, secrets, image.command("--host", "127.0.0.1", **environment)) as server:
        wait_until(lambda: server.poll() is not None or is_healthy(image, secrets, port))
        assert server.poll() is None, server.communicate()
        yield server, port


def is_healthy(image: Image, secrets: Path, port: int) -> bool:
    """What the image's own health check says."""
    check = image.config["Healthcheck"]["Test"][1:]
    with inside(image, secrets, image.command(wanted=check, RFA_PORT=str(port))) as process:
        return process.wait(timeout=PATIENCE) == 0


def test_the_image_says_how_to_run_it(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Entrypoint"] == ["/srv/rfa/start.sh"]
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Healthcheck"]["Test"][0] == "CMD"
    assert "8000/tcp" in image.config["ExposedPorts"]


def test_the_image_holds_what_serves_and_nothing_else(image: Image) -> None:
    (packages,) = image.root.glob("opt/rfa/lib/python3*/site-packages")
    installed = {path.name.split("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert {"rfa_server", "onnxruntime", "numba", "uvicorn"} <= installed
    assert not installed & {"torch", "triton", "onnx", "scipy", "pip", "setuptools", "pytest", "huggingface_hub"}
    assert not list(packages.rglob("tests"))
    assert not (image.root / "opt" / "pip").exists()
    assert not (image.root / "src").exists()
    assert not (image.root / "etc" / "pip.conf").exists()
    assert image.size < 720_000_000  # Arrow and LLVM are half of it


def test_it_refuses_the_network_without_a_key(image: Image, secrets: Path) -> None:
    with inside(image, secrets, image.command(RFA_PORT="0", RFA_PROCESSES="1")) as server:
        _, errors = server.communicate(timeout=PATIENCE)
    assert server.returncode != 0
    assert "RFA_API_KEYS_FILE" in errors


def test_it_serves_without_rights_on_a_read_only_root_and_leaves_when_told(image: Image, secrets: Path) -> None:
    with serving(image, secrets) as (server, port):
        assert ask(port, "/health", key=None) == (200, {"status": "alive"})
        assert ask(port, "/ready", key=None)[1]["models"] == BUNDLES
        told = {model["name"]: model["runtime"] for model in ask(port, "/info")[1]["models"]}
        assert sorted(told) == BUNDLES
        assert told["books"] == told["linear"] == told["metrics"] == "compiled"
        observations = {"model": "linear", "observations": [[1.0, 0.2], None, [0.7, 0.1]]}
        assert ask(port, "/filter", observations, key=None)[0] == 401
        status, reply = ask(port, "/filter", observations)
        assert status == 200
        assert [step["index"] for step in reply["steps"]] == [0, 1, 2]
        assert ask_in_arrow(port) == 2
        status, reply = ask(port, "/generate", {"inputs": "It was the", "parameters": {"max_new_tokens": 5}})
        assert status == 200
        assert reply["details"]["generated_tokens"] == 5
        identity = Path(f"/proc/{server.pid}/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in identity)
        assert facts["Uid"].split() == ["10001"] * 4
        assert facts["CapBnd"].strip() == facts["CapEff"].strip() == "0" * 16
        kept = kernels(Path(f"/proc/{server.pid}/root") / "tmp" / "kernels")
        assert kept == kernels(image.root / "opt" / "rfa" / "kernels"), "something was compiled at the start"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE) == 0
