"""`load_model` takes a bundle that `open_bundle` opens, and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rfa import load_model
from rfa.runtime.bundle.bundle import BundleError, open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT

FILES = sorted(path.name for path in (BUNDLE_ROOT / "linear").iterdir())


@pytest.mark.parametrize("file", FILES)
def test_a_bundle_with_a_bit_turned_in_any_file_is_refused(tmp_path: Path, file: str) -> None:
    bundle = Path(shutil.copytree(BUNDLE_ROOT / "linear", tmp_path / "linear"))
    data = bytearray((bundle / file).read_bytes())
    data[len(data) // 2] ^= 16
    (bundle / file).write_bytes(bytes(data))
    with pytest.raises(BundleError):
        load_model(bundle)


def test_a_folder_of_neither_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["linear", "oscillator", "books"])
def test_the_default_bundles_are_loaded(name: str) -> None:
    assert load_model(BUNDLE_ROOT / name).config.to_dict().keys() >= open_bundle(BUNDLE_ROOT / name).config.keys()
