"""Run nginx in front of the server, on 127.0.0.1, in a temporary directory."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from tests.soak.faults.server import free_port
from tests.waiting import PATIENCE, wait_until

Through = Literal["direct", "nginx", "nginx-common"]
THROUGH = get_args(Through)
# The documented file, and the usual configuration.
SITES = {
    "nginx": Path(__file__).resolve().parents[3] / "docs" / "deploy" / "nginx.conf",
    "nginx-common": Path(__file__).with_name("nginx_common.conf"),
}
MAIN = """
{user}
daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_header_timeout 5s;
    client_body_timeout 5s;
    # What the proxy read: an answer with another id than this came to the wrong request.
    add_header X-Asked $http_x_request_id always;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


class NginxError(RuntimeError):
    """nginx is missing or does not start."""


@contextmanager
def proxied(through: Through, port: int) -> Iterator[int]:
    """Yield the port of the server, or of an nginx in front of it until the block ends.

    Raises:
        NginxError: It is not installed, or does not listen; with its log.
    """
    if through == "direct":
        yield port
        return
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise NginxError("nginx is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = free_port()
        _configure(folder, SITES[through].read_text(), own, port)
        process = subprocess.Popen(
            [program, "-p", name, "-c", str(folder / "nginx.conf")], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_until_listening(own, process, folder)
            yield own
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _configure(folder: Path, site: str, own: int, port: int) -> None:
    """Write a site with other ports and short timeouts, and its surroundings."""
    for expected, given in ((r"listen 80;", f"listen 127.0.0.1:{own};"), (r"127\.0\.0\.1:8000;", f"127.0.0.1:{port};")):
        site, count = re.subn(expected, given, site)
        if count != 1:
            raise NginxError(f"{expected} stands {count} times in the configuration")
    site = re.sub(r"(client_(?:header|body)_timeout) \d+s;", r"\1 5s;", site)
    is_root = os.geteuid() == 0
    folder.chmod(0o755)
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user="user nobody nogroup;" if is_root else ""))


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    wait_until(lambda: process.poll() is not None or _listens(port))
    if process.poll() is not None:
        log = folder / "error.log"
        raise NginxError(f"nginx does not listen: {log.read_text()[-1_000:] if log.is_file() else ''}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
