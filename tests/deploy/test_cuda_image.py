"""The images for GPUs on a machine without one: contents, serving on a CPU, and rejections."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rfa.benchmarks.gpu.device import NoGpuError
from tests.deploy.built import BUNDLES, MARKS, Image, ask, built, inside, keys_for, serving
from tests.waiting import PATIENCE

pytestmark = MARKS

# Missing here: a GPU, and CUDA itself if the index has torch without it.
LACKS = re.compile(r"needs (an NVIDIA GPU|torch with CUDA)")
# Triton compiles a Python module in C when a kernel first runs.
LAUNCHER = """
from triton.runtime.build import compile_module_from_src

source = '''
#include <Python.h>
static PyObject *three(PyObject *self, PyObject *none) { return PyLong_FromLong(3); }
static PyMethodDef methods[] = {{"three", three, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&definition); }
'''
print(compile_module_from_src(source, "launcher").three())
"""


@pytest.fixture(scope="module", params=["cuda", "cuda-jit"])
def target(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def image(target: str) -> Iterator[Image]:
    with built(target) as found:
        yield found


def said(image: Image, folder: Path, *command: str, **environment: str) -> tuple[int, str]:
    """Return exit code and output of a command in the image."""
    with inside(image, keys_for(image, folder), image.command(override=list(command), **environment)) as process:
        out, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, out + errors


def has(image: Image, command: str) -> bool:
    return any((image.root / folder / command).exists() for folder in ("usr/bin", "usr/local/bin", "opt/rfa/bin"))


def test_a_compiler_and_what_trains_and_measures_are_in_one_of_them(image: Image, target: str) -> None:
    is_jit = target == "cuda-jit"
    (packages,) = image.root.glob("opt/rfa/lib/python3*/site-packages")
    installed = {path.name.split("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert {"rfa_server", "torch", "triton", "numba", "onnxruntime"} <= installed
    assert "pip" not in installed and not has(image, "pip")
    assert {has(image, name) for name in ("gcc", "cc")} == {is_jit}
    assert ({"onnx", "scipy"} <= installed) == (packages / "rfa" / "benchmarks").is_dir() == is_jit
    assert not list((image.root / "opt" / "pip").glob("*")) and not list((image.root / "src").glob("*"))


def test_triton_compiles_where_a_compiler_is(image: Image, target: str, tmp_path: Path) -> None:
    code, text = said(image, tmp_path, "python", "-c", LAUNCHER)
    if target == "cuda-jit":
        assert (code, text) == (0, "3\n")
    else:
        assert code != 0 and "C compiler" in text


def test_the_check_of_a_gpu_misses_nothing_but_the_gpu(image: Image, target: str, tmp_path: Path) -> None:
    code, text = said(image, tmp_path, "rfa", "gpu-check", "--json")
    is_jit = target == "cuda-jit"
    assert code == (NoGpuError.exit_code if is_jit else 1)
    assert (LACKS if is_jit else re.compile("checkout")).search(text.splitlines()[-1]), text


def test_where_no_gpu_is_the_server_says_so(image: Image, tmp_path: Path) -> None:
    command = image.config["Entrypoint"]
    keys = {"RFA_API_KEYS_FILE": "/run/secrets/api_keys", "RFA_PORT": "0", "RFA_PROCESSES": "1"}
    code, text = said(image, tmp_path, *command, RFA_DEVICE="cuda", **keys)
    assert code != 0 and LACKS.search(text.splitlines()[-1]), text


def test_it_serves_on_the_cpu_without_rights_on_a_read_only_root(image: Image, tmp_path: Path) -> None:
    with serving(image, keys_for(image, tmp_path)) as (server, port):
        assert set(BUNDLES) <= set(ask(port, "/ready", key=None)[1]["models"])
        status, reply = ask(port, "/generate", {"inputs": "It was the", "parameters": {"max_new_tokens": 5}})
        assert (status, reply["details"]["generated_tokens"]) == (200, 5)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE) == 0
