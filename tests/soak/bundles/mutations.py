"""Bundles with one changed field and a matching manifest, as made by an attacker who knows the format.

A value in one of the files gets another type, length, sign or size. Hashes, sizes and the canonical form are updated,
so that only a check of the content can reject it. The catalogue is the same in every run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rfa.runtime.bundle.documents import canonical_json, compact_json

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Case:
    """The bundle, the changed file or graph, the changed place, and the change."""

    bundle: str
    family: str
    what: str
    apply: Callable[[Path], None]


DELETED, EXTRA = "deleted", "extra"
BUNDLES = ("linear", "oscillator", "books")
# Fields for people, which no code reads.
FREE = {("metrics",), ("provenance",)}
# Number of tested mutations by file.
COUNTS = {
    "manifest.json": 50, "config": 40, "calibration.json": 45, "golden.json": 35, "tokenizer.json": 25,
    "tokenizer_config.json": 5, "decoder.safetensors": 25, "model.safetensors": 30,
}  # fmt: skip
LONG = "x" * 100_000
DEEP: Any = 0
for _ in range(200):
    DEEP = [DEEP]


def catalogue(bundles: Path, seed: int = 7) -> list[Case]:
    """Return the tested mutations: so many for each file, spread over bundles and places."""
    draw = random.Random(seed)
    chosen: list[Case] = []
    for file, count in COUNTS.items():
        offered = list(_of_file(bundles, file))
        draw.shuffle(offered)
        chosen += _spread(offered, count)
    return chosen


def _spread(offered: list[Case], count: int) -> list[Case]:
    """Return the first few, with each place once before any repeats."""
    first: dict[str, Case] = {}
    for entry in offered:
        first.setdefault(entry.what.split(" = ")[0], entry)
    fresh = {id(entry) for entry in first.values()}
    return [*first.values(), *(entry for entry in offered if id(entry) not in fresh)][:count]


def _of_file(bundles: Path, file: str) -> Iterator[Case]:
    for name in BUNDLES:
        folder = bundles / name
        if file == "config":
            yield from _of_document(name, folder / "manifest.json", ("config",))
        elif not (folder / file).exists():
            continue
        elif file.endswith(".json"):
            yield from _of_document(name, folder / file, ())
        else:
            yield from _of_arrays(name, folder / file)


# JSON.


def _of_document(bundle: str, path: Path, below: Place) -> Iterator[Case]:
    document = json.loads(path.read_text())
    kept = ("config",) if path.name == "manifest.json" and not below else None
    for place, value in _places(_at(document, below), below):
        if (kept is not None and place[:1] == kept) or any(place[: len(free)] == free for free in FREE):
            continue
        for label, wrong in _wrong(value):
            what = f"{'.'.join(map(str, place))} = {label}"
            yield Case(bundle, path.name if not below else "config", what, _setter(path.name, place, wrong))


def _places(value: Any, at: Place) -> Iterator[tuple[Place, Any]]:
    """Yield the places of values: of a list the first and the last, of a large object the first and last few."""
    if at:
        yield at, value
    if isinstance(value, dict):
        names = list(value) if len(value) <= 40 else [*list(value)[:2], *list(value)[-2:]]
        for name in names:
            yield from _places(value[name], (*at, name))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1}) if value else ():
            yield from _places(value[index], (*at, index))


def _wrong(value: Any) -> Iterator[tuple[str, Any]]:
    """Return values that are invalid in this place."""
    yield "null" if value is not None else "true", None if value is not None else True
    yield "deep", DEEP
    match value:
        case bool():
            yield from (("1", 1), ("text", str(value).lower()))
        case int():
            yield from (("text", str(value)), ("-1", -1), ("huge", 1 << 62), ("beyond 64 bits", 10**30), ("half", 0.5))
        case float():
            yield from (("text", str(value)), ("negative", -abs(value) - 1.0), ("huge", 1e300), ("list", [value]))
        case str():
            yield from (
                ("number", 7),
                ("empty", ""),
                ("path", "../../etc/passwd"),
                ("nul", "\0"),
                ("long", "x" * 100_000),
            )
        case list():
            yield from (("empty", []), ("object", {}), ("doubled", value + value), ("text", "[]"))
            if len(value) > 1:
                yield from (("shorter", value[:-1]), ("reversed", value[::-1]))
        case dict():
            yield from (("list", []), ("empty", {}), (EXTRA, {**value, "unknown": 1}))
            if value:
                yield "lacks one", {name: part for name, part in value.items() if name != next(iter(value))}


def _setter(file: str, place: Place, value: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / file
        document = json.loads(path.read_text())
        _at(document, place[:-1])[place[-1]] = copy.deepcopy(value)
        if file == "manifest.json":
            _write_manifest(folder, document)
        else:
            path.write_bytes(compact_json(document) if file == "golden.json" else canonical_json(document))
            seal(folder)

    return apply


def _at(document: Any, place: Place) -> Any:
    for part in place:
        document = document[part]
    return document


# Arrays.


def _of_arrays(bundle: str, path: Path) -> Iterator[Case]:
    arrays = safetensors.numpy.load_file(path)
    for name in sorted(arrays):
        for label, change in FORMS.items():
            if label in ("wider", "shorter", "transposed", "grown") and not arrays[name].ndim:
                continue
            yield Case(bundle, path.name, f"{name} = {label}", _array_setter(path.name, name, change))
    yield Case(bundle, path.name, "one more", _array_setter(path.name, "one.more", lambda _: np.ones(3, np.float32)))


def _first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[0] = value
        return array

    return change


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "wider": lambda array: np.concatenate([array, array], axis=-1),
    "shorter": lambda array: array[:-1],
    "grown": lambda array: np.concatenate([array, array], axis=0),
    "transposed": lambda array: np.ascontiguousarray(array[None].T),
    "double": lambda array: array.astype(np.float64 if array.dtype != np.float64 else np.float32),
    "whole": lambda array: array.astype(np.int64),
    "half": lambda array: array.astype(np.float16),
    "bytes": lambda array: array.astype(np.uint8),
    "not a number": _first(np.nan),
    "infinite": _first(-np.inf),
    "huge": _first(3e38),
    "negated": lambda array: -array - 1,
    "ten times": lambda array: array * 10 + 1,
}


def _array_setter(file: str, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        arrays = safetensors.numpy.load_file(folder / file)
        with np.errstate(all="ignore"):
            arrays[name] = np.ascontiguousarray(change(arrays.get(name, np.zeros(1, np.float32))))
        (folder / file).write_bytes(safetensors.numpy.save(arrays))
        seal(folder, arrays if file == "model.safetensors" else None)

    return apply


# Matching manifests.


def seal(folder: Path, tensors: dict[str, np.ndarray] | None = None) -> None:
    """List the current files, and the tensors of the weights if given."""
    document = json.loads((folder / "manifest.json").read_text())
    for name in document["files"]:
        data = (folder / name).read_bytes()
        document["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if tensors is not None:
        document["tensors"] = [
            {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
            for name, array in sorted(tensors.items())
        ]
    summary = json.loads((folder / "calibration.json").read_text())
    if isinstance(summary, dict) and isinstance(summary.get("summary"), dict):
        document["calibration"] = summary["summary"]
    _write_manifest(folder, document)


def _write_manifest(folder: Path, document: Any) -> None:
    if isinstance(document, dict) and "content_sha256" in document:
        stated = document["content_sha256"]
        document = {name: value for name, value in document.items() if name != "content_sha256"}
        right = hashlib.sha256(canonical_json(document)).hexdigest()
        is_hash = isinstance(stated, str) and len(stated) == len(right)
        document["content_sha256"] = right if is_hash else stated
    (folder / "manifest.json").write_bytes(canonical_json(document))
