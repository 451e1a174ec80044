"""Copies of bundles: whole, their own, bounded, and gone when nobody needs them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rfa.runtime.bundle.documents import BundleError
from rfa.runtime.bundle.manifest import MAX_FILES
from rfa.service.bundle_version import bundle_version
from rfa.service.process.private_directory import private_directory
from rfa.service.process.snapshot import take_snapshot

PLENTY = 1 << 20


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    """Two folders of one name."""
    made = []
    for number in range(2):
        bundle = tmp_path / str(number) / "linear"
        bundle.mkdir(parents=True)
        (bundle / "manifest.json").write_bytes(b"manifest %d" % number)
        (bundle / "weights").write_bytes(os.urandom(3_000_000 if number else 10))
        made.append(bundle)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def test_a_copy_has_the_bytes_of_its_moment_and_the_version_of_the_manifests(bundles: list[Path], home: Path) -> None:
    contents = [{file.name: file.read_bytes() for file in bundle.iterdir()} for bundle in bundles]
    snapshot = take_snapshot(bundles, home, 1, 4 * PLENTY)
    for bundle in bundles:
        (bundle / "manifest.json").write_text("other")
        (bundle / "weights").unlink()
    assert [copy.name for copy in snapshot.bundles] == ["linear", "linear"]
    assert [{file.name: file.read_bytes() for file in copy.iterdir()} for copy in snapshot.bundles] == contents
    assert snapshot.size == sum(len(data) for content in contents for data in content.values())
    digests = [hashlib.sha256(content["manifest.json"]).hexdigest() for content in contents]
    assert snapshot.version == bundle_version(digests)
    snapshot.discard()
    assert not list(home.iterdir())


def add_many(bundle: Path) -> None:
    for number in range(MAX_FILES):
        (bundle / f"{number}").touch()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda bundle: (bundle / "link").symlink_to("/etc/passwd"), "link is not a regular file"),
        (lambda bundle: os.mkfifo(bundle / "pipe"), "pipe is not a regular file"),
        (lambda bundle: (bundle / "folder").mkdir(), "folder is not a regular file"),
        (lambda bundle: (bundle / "manifest.json").unlink(), "does not contain manifest.json"),
        (lambda bundle: (bundle / "large").write_bytes(bytes(PLENTY)), "RFA_MAX_BUNDLE_BYTES"),
        (lambda bundle: bundle.rename(bundle.with_name("gone")), "linear: the directory cannot be read"),
        (add_many, f"more than {MAX_FILES} files"),
    ],
)
def test_what_a_copy_would_hide_or_cost_is_refused_and_nothing_of_it_stays(
    bundles: list[Path], home: Path, spoil: Callable[[Path], object], named: str
) -> None:
    spoil(bundles[0])
    with pytest.raises(BundleError, match=named):
        take_snapshot(bundles[:1], home, 1, PLENTY)
    assert not list(home.iterdir())


def test_a_disk_without_space_is_reported_before_anything_is_written(
    bundles: list[Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rfa.service.process.snapshot.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000})()
    )
    with pytest.raises(OSError, match="not enough disk space to copy bundle 'linear'"):
        take_snapshot(bundles[1:], home, 1, 4 * PLENTY)
    assert not list(home.iterdir())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_private_directory_outlives_its_server_by_one_start_only(temporary: Path) -> None:
    (temporary / "rfa-others").mkdir()  # of something else, or of a server that is just making it
    with private_directory() as living:
        killed = temporary / "rfa-killed"
        killed.mkdir()
        (killed / "server").touch()
        (killed / "weights").touch()
        os.mkfifo(temporary / "rfa-pipe")
        with private_directory() as second:
            assert living.is_dir() and second.is_dir() and not killed.exists()
            assert second.stat().st_mode & 0o077 == 0
        assert not second.exists() and living.is_dir()
    assert {path.name for path in temporary.iterdir()} == {"rfa-others", "rfa-pipe"}


def test_no_place_for_copies_is_reported_with_what_to_do(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "missing"))
    monkeypatch.setattr("rfa.service.process.private_directory.SHARED_MEMORY", temporary / "missing")
    with pytest.raises(OSError, match="a tmpfs is sufficient"), private_directory():
        pass
    monkeypatch.setattr("rfa.service.process.private_directory.SHARED_MEMORY", temporary)
    with private_directory() as directory:
        assert directory.parent == temporary
