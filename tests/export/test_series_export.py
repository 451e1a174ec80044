"""Bundles of the network of series: what is written is what was trained, and nothing else is taken for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

import rfa
from rfa.cli.main import app
from rfa.export import series_export
from rfa.export.comparison import compare_with_torch
from rfa.export.series_export import export_series
from rfa.library.models import find_model
from rfa.model.checkpoint import load_run
from rfa.model.loading import load_model
from rfa.runtime.bundle.bundle import BundleError, check_golden, open_bundle
from rfa.runtime.bundle.documents import canonical_json, sha256
from rfa.runtime.series.decoder_numba import SeriesDecoder
from rfa.runtime.series.filter import SeriesRuntime
from rfa.runtime.series.session import NETWORK, SeriesSession
from rfa.runtime.text.product_numba import PANEL
from tests.small_series import exported, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("series")


def sessions(bundle):
    return {NETWORK: SeriesSession(SeriesDecoder.of(bundle.weights()))}


def test_a_bundle_is_the_run_and_gives_its_golden_outputs(folder: Path) -> None:
    bundle = exported(folder)
    assert (bundle.kind, bundle.manifest.family, bundle.manifest.graphs) == ("series", "series", {})
    run = load_run(folder / "small-run").state_dict()
    assert {name: array.shape for name, array in bundle.weights().items()} == {
        n: tuple(t.shape) for n, t in run.items()
    }
    in_float32 = {name for name, tensor in run.items() if tensor.ndim != 2 or name.endswith(("slot_log_mu", "_raw"))}
    for name, array in bundle.weights().items():
        expected = run[name] if name in in_float32 else run[name].to(torch.float16)
        assert array.dtype == expected.numpy().dtype and np.array_equal(array, expected.numpy())
    assert check_golden(bundle, sessions(bundle)) > 0
    assert load_model(bundle.path).config == load_run(folder / "small-run").config


def test_the_network_of_a_bundle_is_in_float16(folder: Path) -> None:
    weights = SeriesDecoder.of(exported(folder).weights()).weights
    panels = [array for part in weights[:3] for array in part if array.dtype == np.uint16]
    assert len(panels) == 11 and {array.shape[-1] for array in panels} == {PANEL}


def test_a_bundle_in_float32_is_not_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a bundle that an earlier version exported."""
    monkeypatch.setattr(series_export, "round_matrices", dict)
    bundle = export_series(saved(tmp_path / "run"), tmp_path / "bundle")
    assert {array.dtype for array in bundle.weights().values()} == {np.dtype(np.float32)}
    assert check_golden(bundle, sessions(bundle)) > 0
    (comparison,) = compare_with_torch(bundle)
    assert 0 < comparison.error < 1e-4


def test_a_matrix_beyond_float16_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    weights = safetensors.numpy.load_file(run / "model.safetensors")
    weights["head.inner.weight"][1, 2] = -65520
    safetensors.numpy.save_file(weights, run / "model.safetensors")
    with pytest.raises(ValueError, match=r"head\.inner\.weight contains a number above 65504"):
        export_series(run, tmp_path / "bundle")


def test_verify_compares_with_torch(folder: Path) -> None:
    (comparison,) = compare_with_torch(exported(folder))
    assert comparison.what == "stream: quantiles" and 0 < comparison.error < 1e-4


def rewritten(bundle, target: Path, **contents: bytes) -> Path:
    """The bundle with other files, and a manifest that fits them."""
    shutil.copytree(bundle.path, target)
    document = json.loads((target / "manifest.json").read_text())
    document.pop("content_sha256")
    for name, data in contents.items():
        file = name.replace("_", ".")
        (target / file).write_bytes(data)
        document["files"][file] = {"size": len(data), "sha256": sha256(data)}
    document["content_sha256"] = sha256(canonical_json(document))
    (target / "manifest.json").write_bytes(canonical_json(document))
    return target


def test_other_weights_do_not_give_the_golden_outputs(folder: Path, tmp_path: Path) -> None:
    bundle = exported(folder)
    weights = {name: array.copy() for name, array in bundle.weights().items()}
    weights["head.out.bias"] += 0.01
    other = open_bundle(rewritten(bundle, tmp_path / "other", model_safetensors=safetensors.numpy.save(weights)))
    with pytest.raises(BundleError, match=r"golden\.json: case 0"):
        check_golden(other, sessions(other))
    assert len(rfa.forecast(np.arange(9.0), 2, model=bundle.path)) == 2
    with pytest.raises(BundleError, match=r"golden\.json: case 0"):
        rfa.forecast(np.arange(9.0), 2, model=other.path)
    (tmp_path / "rows.csv").write_text("y\n1\n2\n4\n")
    result = CliRunner().invoke(app, ["filter", str(tmp_path / "rows.csv"), "--bundle", str(other.path)])
    assert result.exit_code and "golden.json: case 0" in result.stderr


def test_a_bundle_that_was_replaced_is_opened_again(folder: Path, tmp_path: Path) -> None:
    bundle, path = exported(folder), tmp_path / "bundle"
    shutil.copytree(bundle.path, path)
    found = find_model(path, 1)
    one, two = found.runtime, find_model(path, 2).runtime
    assert isinstance(one, SeriesRuntime) and isinstance(two, SeriesRuntime) and one.decoder is two.decoder
    shutil.rmtree(path)
    rewritten(bundle, path, golden_json=json.dumps(bundle.golden, indent=1).encode())
    assert find_model(path, 1).digest != found.digest


@pytest.mark.parametrize("change", ["missing", "shape", "infinite"])
def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path, change: str) -> None:
    bundle = exported(folder)
    weights = {name: array.copy() for name, array in bundle.weights().items()}
    if change == "missing":
        del weights["head.follow.bias"]
    elif change == "shape":
        weights["head.follow.bias"] = np.zeros(3, np.float32)
    else:
        weights["blocks.0.mixer.key.weight"][0, 0] = np.inf
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        open_bundle(rewritten(bundle, tmp_path / "other", model_safetensors=safetensors.numpy.save(weights)))


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a run"):
        export_series(tmp_path, tmp_path / "out")


@pytest.mark.slow  # verify starts an interpreter with torch; test_cli.py runs these commands, too
def test_the_commands_export_verify_and_describe(tmp_path: Path) -> None:
    run, out = saved(tmp_path / "run"), tmp_path / "mine"
    cli = CliRunner()
    for command in (["export", str(run), "--out", str(out)], ["verify", str(out)], ["info", str(out)]):
        result = cli.invoke(app, [*command, "--json"])
        assert result.exit_code == 0, result.output
        if command[0] == "verify":
            report = json.loads(result.stdout.splitlines()[-1])
            assert report["passed"] and report["golden_values"] > 0
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["kind"] == "series" and document["graphs"] == {}
