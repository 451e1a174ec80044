"""The CPU image, if requested: `tests/deploy/built.py` builds and runs it."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.deploy.built import BUNDLES, KEY, MARKS, Image, ask, built, inside, keys_for, serving
from tests.waiting import PATIENCE

pytestmark = MARKS


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built("cpu") as found:
        yield found


@pytest.fixture
def secrets(tmp_path: Path, image: Image) -> Path:
    return keys_for(image, tmp_path)


def kernels(folder: Path) -> dict[str, bytes]:
    """Return the cached files of numba. There must be some. A renewed index has other bytes."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.nb?")}
    assert found
    return found


def ask_in_arrow(port: int) -> int:
    """Return the rows of the answer to a series of two observations as an Arrow stream."""
    kind = "application/vnd.apache.arrow.stream"
    table, sink = pa.table({"t": [0.0, 1.0], "y": [1.0, 0.7]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    headers = {"Content-Type": kind, "Accept": kind, "Authorization": f"Bearer {KEY}"}
    url, content = f"http://127.0.0.1:{port}/filter?model=metrics", sink.getvalue().to_pybytes()
    with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=PATIENCE) as answer:
        return int(pa.ipc.open_stream(answer.read()).read_all().num_rows)


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
    assert image.size < 750_000_000  # Arrow and LLVM are half of it


def test_it_refuses_the_network_without_a_key(image: Image, secrets: Path) -> None:
    with inside(image, secrets, image.command(RFA_PORT="0", RFA_PROCESSES="1")) as server:
        _, errors = server.communicate(timeout=PATIENCE)
    assert server.returncode != 0
    assert "RFA_API_KEYS_FILE" in errors


def test_it_serves_without_rights_on_a_read_only_root_and_ends_on_sigterm(image: Image, secrets: Path) -> None:
    with serving(image, secrets) as (server, port):
        assert ask(port, "/health", key=None) == (200, {"status": "alive"})
        assert set(BUNDLES) <= set(ask(port, "/ready", key=None)[1]["models"])
        reported = {model["name"]: model["runtime"] for model in ask(port, "/info")[1]["models"]}
        assert set(BUNDLES) <= set(reported)
        assert reported["books"] == reported["linear"] == "compiled"
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
