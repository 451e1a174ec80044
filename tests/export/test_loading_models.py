"""`load_model` refuses a bundle that `open_bundle` refuses: both are given the same damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rfa import load_model
from rfa.export.bundle import BundleError, open_bundle
from rfa.service.settings import BUNDLE_ROOT

FILES = sorted(path.name for path in (BUNDLE_ROOT / "linear").iterdir())


def _flip_first(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def _flip_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(bytes(data))


def _flip_last(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 2]))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _remove(path: Path) -> None:
    path.unlink()


def _add(path: Path) -> None:
    (path.parent / f"{path.name}.more").write_bytes(b"")


@pytest.mark.parametrize("damage", [_flip_first, _flip_middle, _flip_last, _truncate, _lengthen, _link, _remove, _add])
@pytest.mark.parametrize("file", FILES)
def test_what_one_refuses_the_other_refuses(tmp_path: Path, file: str, damage) -> None:
    bundle = Path(shutil.copytree(BUNDLE_ROOT / "linear", tmp_path / "linear"))
    damage(bundle / file)
    with pytest.raises(BundleError):
        open_bundle(bundle)
    with pytest.raises((ValueError, FileNotFoundError)):
        load_model(bundle)


@pytest.mark.parametrize("name", ["linear", "metrics", "oscillator", "books"])
def test_the_default_bundles_are_loaded(name: str) -> None:
    assert load_model(BUNDLE_ROOT / name).config.to_dict().keys() >= open_bundle(BUNDLE_ROOT / name).config.keys()
