"""Ways to damage a bundle, or to tamper with it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(path.name).randrange(len(data))] ^= 1
    path.write_bytes(data)


def swap_files(bundle: Path) -> None:
    one, other = bundle / "golden.json", bundle / "calibration.json"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def truncate(bundle: Path) -> None:
    path = bundle / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def edit_with_right_digests(bundle: Path) -> None:
    """The work of somebody who knows the format: other calibrated scales, and a manifest that lists them."""
    path = bundle / "golden.json"
    # The last digit of the last number that the bundle must reproduce becomes another leading one.
    text = path.read_text()
    where = max(text.rfind(f"{digit}.") for digit in "0123456789")
    text = f"{text[:where]}{(int(text[where]) + 1) % 10}{text[where + 1 :]}"
    path.write_text(text)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["golden.json"] = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "size": path.stat().st_size,
    }
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def change_a_digest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["golden.json"]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))


# What is done to the bundle, and what the one line must name.
TAMPERINGS: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "weights": (lambda bundle: flip_a_bit(bundle / "model.safetensors"), "model.safetensors"),
    "golden": (lambda bundle: flip_a_bit(bundle / "golden.json"), "golden.json"),
    "calibration": (lambda bundle: flip_a_bit(bundle / "calibration.json"), "calibration.json"),
    "swapped": (swap_files, ".json"),
    "truncated": (truncate, "model.safetensors"),
    "digest": (change_a_digest, ""),
    "extra": (lambda bundle: (bundle / "extra.pt2").touch(), "extra.pt2"),
    "missing": (lambda bundle: (bundle / "golden.json").unlink(), "golden.json"),
    "consistent": (edit_with_right_digests, ""),
}
