"""Settings of all tests: fixed seeds, one thread, and uninitialised memory filled with NaN."""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import random
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Set before numpy and torch read them.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "agg")
# Triton runs kernels in its interpreter without a GPU, and reads this variable when a kernel is defined.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.selection import LONG, mark_slow, position

ROOT = Path(__file__).resolve().parent.parent

HAS_GPU = torch.cuda.is_available()
torch.set_num_threads(1)
# Exclude the millions of objects of torch's exporter from garbage collection.
gc.set_threshold(100_000, 50, 50)
# Every HTTP client loads all certificate authorities, which takes 30 ms; the tests use 127.0.0.1.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
# Fixed examples, so that failures are reproducible. No deadline, because workers share cores.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("repeatable"), max_examples=40)
settings.load_profile("repeatable")
# Constants drawn from loaded modules would make examples depend on other tests.
providers._get_local_constants = lambda: providers._local_constants


def _filled(make):
    """Return `make` (a torch constructor of uninitialised memory) with its result filled with NaN or the largest
    integer.
    """

    def filled(*args, **kwargs):
        out = make(*args, **kwargs)
        if out.device.type == "meta" or torch.compiler.is_compiling():
            return out
        memory = out.detach()  # also for a leaf that requires a gradient
        if out.is_floating_point() or out.is_complex():
            memory.fill_(float("nan"))
        else:
            memory.fill_(True if out.dtype is torch.bool else torch.iinfo(out.dtype).max)
        return out

    return filled


COMPILED_AHEAD: list[subprocess.Popen[bytes]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--functions-off",
        choices=["up", "down", "either"],
        help="run the kernels as on a processor whose functions are one ulp off, and whose sums go backwards",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples of each property in `make test`. A test that names their number keeps it."""
    if is_quick(config):
        settings.load_profile("quick")


def is_quick(config: pytest.Config) -> bool:
    """Return whether this is `make test`."""
    return bool(config.getoption("markexpr") == "not slow")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile before the workers collect the tests, because each would wait for the compiler."""
    if session.config.getoption("numprocesses", None):
        command = [sys.executable, "-m", "tests.ahead"]
        COMPILED_AHEAD.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without tests for `make test`, which would cost each worker seconds."""
    place = str(collection_path.relative_to(ROOT)) + ("/" if collection_path.is_dir() else "")
    return True if is_quick(config) and place in LONG else None


# Before pytest deselects slow tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_slow(items)
    items.sort(key=lambda item: position(item.nodeid.partition("::")[0]))


def pytest_sessionfinish() -> None:
    for process in COMPILED_AHEAD:
        process.wait()


def pytest_collection_finish(session: pytest.Session) -> None:
    """At this point the tests of kernels have imported Triton, if any were collected."""
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        from tests.interpreter import put_off, quicken

        quicken()
        if direction := session.config.getoption("functions_off"):
            put_off(direction)


@pytest.fixture(scope="module", autouse=True)
def what_stays_is_frozen() -> None:
    """Freeze imported objects, because many tests call the garbage collector, which would traverse them for 0.3 s each
    time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialised memory with NaN, so that reading it fails."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _filled(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, _filled(getattr(torch.Tensor, name)))


@pytest.fixture(params=[*(pytest.param(side, marks=pytest.mark.slow) for side in ("up", "down")), "either"])
def functions_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels as on a processor with functions one ulp off and reversed sums of products."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("a GPU's functions are its own")
    from tests.interpreter import put_off

    put_off(request.param, monkeypatch.setattr)


@pytest.fixture
def on_the_gpu() -> Iterator[None]:
    """Create new tensors on the GPU, if there is one."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Start every test from the same random state."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries under test may use the global generator
    if HAS_GPU:
        torch.manual_seed(0)
    else:  # until CUDA starts, every call of `manual_seed` formats and keeps a stack trace
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def bundle_cache() -> Path:
    """A folder of bundles made by these sources, shared by all workers and by later runs of the same sources."""
    files = [file for name in ("export", "model", "runtime") for file in (ROOT / name).rglob("*.py")]
    sources = hashlib.sha256(torch.__version__.encode())
    for file in sorted([*files, *(ROOT / "tests").glob("small_*.py"), ROOT / "constraints.txt"]):
        sources.update(file.read_bytes())
    folder = ROOT / "build" / "test-bundles" / sources.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    folder.touch()
    for other in folder.parent.iterdir():
        if other.stat().st_mtime < time.time() - 86_400:  # no other run uses it
            shutil.rmtree(other, ignore_errors=True)
    return folder


@pytest.fixture(scope="session")
def attention_bundle(bundle_cache: Path) -> Path:
    """A small untrained language model without slots."""
    from tests.small_language import ATTENTION_ONLY, exported

    return exported(bundle_cache, "attention", {**ATTENTION_ONLY, "n_layers": 1}).path


@pytest.fixture(scope="session")
def window_bundle(bundle_cache: Path) -> Path:
    """A small untrained language model with slots and a window."""
    from tests.small_language import exported

    return exported(bundle_cache, "window", {"window": 4, "n_layers": 1}).path


@pytest.fixture(scope="session")
def passes_bundle(bundle_cache: Path) -> Path:
    """A small untrained language model with up to three reweighting passes."""
    from tests.small_language import PASSES, exported

    return exported(bundle_cache, "passes", PASSES).path


@pytest.fixture(scope="session")
def bundles() -> Path:
    """The folder of the default bundles."""
    return ROOT / "bundles"


@pytest.fixture(scope="session")
def linear_bundle(bundles: Path) -> Path:
    """The analytic filter of the 2-D oscillator."""
    return bundles / "linear"


@pytest.fixture(scope="session")
def oscillator_bundle(bundles: Path) -> Path:
    """The trained filter of the 2-D oscillator."""
    return bundles / "oscillator"


@pytest.fixture(scope="session")
def books_bundle(bundles: Path) -> Path:
    """The language model trained on novels."""
    return bundles / "books"
