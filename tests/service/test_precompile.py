"""Kernels are compiled once, by processes that end before the server processes start."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from rfa.service import precompile
from rfa.service.settings import Settings

pytestmark = pytest.mark.anyio
# The helper without its models: it reports two kernels and marks them as compiled.
HELPER = """
import os
from pathlib import Path
from rfa.service import precompile

class Pool:
    def __init__(self, *_):
        pass
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def map(self, load, settings):
        os.write(1, b"\\n\\n")
        Path(os.environ["NUMBA_CACHE_DIR"], "kernel.nbi").touch()
        return []

precompile.ProcessPoolExecutor = Pool
precompile.main()
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile, "PROGRAM", (sys.executable, "-c", HELPER))
    return tmp_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with one bundle, of which only the manifest is read."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text("{}")
    return Settings(bundles=(bundle,))


def markers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("compiled-*"))


async def test_what_is_compiled_is_compiled_again_only_where_kernels_or_bundles_changed(
    cache: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rfa.server"):
        await precompile.ensure_compiled(settings)
    assert "compiled all 2 kernels" in caplog.text and len(markers(cache)) == 1
    assert precompile.is_compiled(settings)
    with monkeypatch.context() as patch:
        patch.setattr(precompile, "PROGRAM", ("/no/such/program",))
        await precompile.ensure_compiled(settings)  # the second start
    (settings.models.bundles[0] / "manifest.json").write_text("[]")
    await precompile.ensure_compiled(settings)
    assert len(markers(cache)) == 2 and precompile.is_compiled(settings)
    (cache / "kernel.nbi").unlink()
    assert not precompile.is_compiled(settings)


async def test_a_read_only_package_has_its_kernels_in_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(precompile.os, "access", lambda folder, _: home in Path(folder).parents)
    assert precompile.kernel_folder() == home / "rfa-server" == Path(os.environ["NUMBA_CACHE_DIR"])


async def test_without_a_writable_folder_nothing_is_compiled_ahead(
    cache: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precompile.os, "access", lambda *_: False)
    await precompile.ensure_compiled(settings)
    assert "set NUMBA_CACHE_DIR" in caplog.text and markers(cache) == []


async def test_a_failure_leaves_no_marker(cache: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompile, "PROGRAM", (sys.executable, "-c", "raise SystemExit(1)"))
    await precompile.ensure_compiled(settings)
    assert markers(cache) == []
