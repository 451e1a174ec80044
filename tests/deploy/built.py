"""An image of the Dockerfile, really built by buildah and run as by an orchestrator: no rights, a read-only root, keys
from a file.

Asked for by `IMAGE_TEST`, because it needs root, buildah and a package index, and takes minutes: 1 builds on the bases
that the Dockerfile names; anything else is a base to take in the place of both, for example the one that
docs/deploy/debian_base.sh makes where no registry can be reached: what CUDA's base has is missing then, and torch's
wheels bring the rest, or are built without CUDA. `IMAGE_TEST_PIP_CONF` and `IMAGE_TEST_CA` are files that pip needs for
an index of your own, `IMAGE_TEST_WHEELS` folders, with colons between them, that these name.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
BUNDLES = sorted(manifest.parent.name for manifest in (ROOT / "bundles").glob("*/manifest.json"))
BASE = os.environ.get("IMAGE_TEST", "")
BUILDAH = ("buildah", "--storage-driver", "vfs")
KEY = "a-key-of-this-test-and-of-nothing-else"

MARKS = [
    pytest.mark.skipif(not BASE, reason="IMAGE_TEST is not set: see tests/deploy/built.py"),
    pytest.mark.skipif(bool(BASE) and shutil.which("buildah") is None, reason="buildah is not installed"),
    pytest.mark.timeout(2_400),
]

# Mounts the files of the image read-only, as Kubernetes and compose do, and becomes the server there with the same
# process id.
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
    """Return the standard output of a buildah command that must succeed."""
    run = subprocess.run([*BUILDAH, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=2_000)
    assert run.returncode == 0, run.stderr[-4_000:]
    return run.stdout.strip()


@dataclass(frozen=True)
class Image:
    """A built image and its files."""

    config: dict[str, Any]
    root: Path

    @property
    def size(self) -> int:
        """Return the bytes of all its files."""
        return sum(path.lstat().st_size for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def command(self, *arguments: str, override: list[str] | None = None, **environment: str) -> list[str]:
        """Return the entry point of the image with arguments, or the `override` command, as its user."""
        user, group = self.config["User"].split(":")
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        identity = ("setpriv", f"--reuid={user}", f"--regid={group}", *UNPRIVILEGED)
        run = override or [*self.config["Entrypoint"], *arguments]
        place = ("env", "--ignore-environment", f"--chdir={self.config['WorkingDir']}", *variables)
        return [*identity, *place, *run]


@contextmanager
def built(target: str) -> Iterator[Image]:
    """Build the image of a target. It is removed at the end."""
    name = f"localhost/rfa-server-test-{target}"
    options = ["--isolation", "chroot", "--format", "docker", "--target", target, "--tag", name]
    if BASE != "1":
        options += ["--build-arg", f"BASE={BASE}", "--build-arg", f"CUDA_BASE={BASE}"]
    if "IMAGE_TEST_PIP_CONF" in os.environ:
        options += ["--secret", f"id=pip,src={os.environ['IMAGE_TEST_PIP_CONF']}"]
    if "IMAGE_TEST_CA" in os.environ:
        options += ["--volume", f"{os.environ['IMAGE_TEST_CA']}:/etc/ssl/certs/ca-certificates.crt:ro"]
    for folder in filter(None, os.environ.get("IMAGE_TEST_WHEELS", "").split(":")):
        options += ["--volume", f"{folder}:{folder}:ro"]
    buildah("bud", *options, ".")
    description = json.loads(buildah("inspect", "--type", "image", name))["Docker"]
    container = buildah("from", "--pull-never", name)
    try:
        yield Image(description["config"], Path(buildah("mount", container)))
    finally:
        buildah("rm", container)
        buildah("rmi", name)


def keys_for(image: Image, folder: Path) -> Path:
    """Return the contents of /run: the secrets, readable by the image's user only."""
    secrets = folder / "run" / "secrets"
    secrets.mkdir(parents=True)
    file = secrets / "api_keys"
    file.write_text(KEY + "\n")
    user, group = map(int, image.config["User"].split(":"))
    os.chown(file, user, group)
    file.chmod(0o400)
    return secrets.parent


@contextmanager
def inside(image: Image, secrets: Path, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield a running command inside the image. It is killed at the end of the block."""
    shell = ["unshare", "--mount", "--propagation=private", "sh", "-ec", ENTER, "sh", str(image.root), str(secrets)]
    with subprocess.Popen([*shell, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(port: int, path: str, body: dict[str, Any] | None = None, key: str | None = KEY) -> tuple[int, Any]:
    """Return status and JSON of an answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", content, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@contextmanager
def serving(image: Image, secrets: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server of the image on a free local port, until its own health check passes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment: dict[str, Any] = {
        "RFA_API_KEYS_FILE": "/run/secrets/api_keys",
        "RFA_PROCESSES": "2",
        "RFA_PORT": str(port),
    }
    # The last --host counts: a test listens on this machine only.
    with inside(image, secrets, image.command("--host", "127.0.0.1", **environment)) as server:
        wait_until(lambda: server.poll() is not None or is_healthy(image, secrets, port))
        assert server.poll() is None, server.communicate()
        yield server, port


def is_healthy(image: Image, secrets: Path, port: int) -> bool:
    """Return the result of the image's own health check."""
    check = image.config["Healthcheck"]["Test"][1:]
    with inside(image, secrets, image.command(override=check, RFA_PORT=str(port))) as process:
        return process.wait(timeout=PATIENCE) == 0
