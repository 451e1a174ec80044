"""The `rfa` command, run the way a user runs it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from rfa.cli.main import app
from rfa.export.comparison import Comparison
from tests.cli.commands import EXAMPLE, ROOT, rfa, rfa_json
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    "command",
    [
        "serve", "compile", "generate", "forecast", "detect", "filter", "plot", "inspect", "fit", "export",
        "verify", "info", "keygen", "sign", "train lm",
        "train filter", "eval lm", "eval filter", "eval confidence",
        "bench afa", "bench aot", "bench cost", "bench decode", "bench filter", "bench filter-accuracy",
        "bench filter-speed", "bench forecast", "bench kernel", "bench nab", "bench quality", "bench recall",
    ],
)  # fmt: skip
def test_every_command_explains_itself(command: str) -> None:
    code, out, _ = rfa(*command.split(), "--help")
    assert code == 0
    assert f"Usage: rfa {command}" in out


@pytest.mark.timeout(700)
def test_compile_reports_when_all_kernels_are_ready() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rfa", "compile", "--bundle", "bundles/linear"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=5 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0 and "Compiled the kernels in" in done.stderr, done.stderr


def test_help_and_serve_load_no_numerical_library() -> None:
    check = (
        "import sys, runpy\n"
        "sys.argv = ['rfa', '--help']\n"
        "try:\n    runpy.run_module('rfa', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "loaded = {'torch', 'numpy', 'onnxruntime', 'fastapi', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr


def test_info_tells_what_the_bundle_is(linear_bundle: Path) -> None:
    document = rfa_json("info", linear_bundle)
    manifest = json.loads((linear_bundle / "manifest.json").read_text())
    assert document["kind"] == "filter"
    assert document["config"] == manifest["config"]
    assert document["bytes"] == sum(
        path.stat().st_size for path in linear_bundle.iterdir() if path.name != "manifest.json"
    )
    code, out, _ = rfa("info", "linear")
    assert code == 0
    assert document["digest"] in out


def test_verify_refuses_a_bundle_with_one_flipped_bit(linear_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(linear_bundle, tmp_path / "copy"))
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    code, out, err = rfa("verify", copy)
    assert code != 0 and out == ""
    assert err.startswith("rfa: ") and err.count("\n") == 1


def test_a_bundle_is_signed_and_verified_by_its_key(
    linear_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each comparison starts an interpreter with torch; tests/export/test_verify.py compares.
    monkeypatch.setattr("rfa.export.verify._in_fresh_process", lambda _: (Comparison("step: mean", 0.0, 1e-5),))
    mine = Path(shutil.copytree(linear_bundle, tmp_path / "mine"))
    keys, others = (rfa_json("keygen", "--out", tmp_path / name) for name in ("signing", "other"))
    code, _, err = rfa("verify", mine, "--trusted-key", keys["public_key"])
    assert code == 1 and "manifest.json.minisig: the file is missing" in err
    signed = rfa_json("sign", mine, "--key", keys["secret_key"])
    assert signed["digest"] == rfa_json("info", linear_bundle)["digest"]
    # A key by its file, and as the text that RFA_TRUSTED_KEYS takes.
    trusted = ("--trusted-key", others["RFA_TRUSTED_KEYS"], "--trusted-key", keys["public_key"])
    report = rfa_json("verify", mine, *trusted)
    assert report["passed"] and report["golden_values"] > 0 and len(report["comparisons"]) == 1
    code, _, err = rfa("verify", mine, "--trusted-key", others["public_key"])
    assert code == 1 and "a key that is not trusted" in err
    assert Path(keys["secret_key"]).read_text() not in json.dumps([keys, signed])


def test_a_filter_is_scored_on_the_last_fifth_of_a_series(linear_bundle: Path) -> None:
    score = rfa_json("eval", "filter", linear_bundle, "--data", EXAMPLE)
    rows = list(csv.DictReader(EXAMPLE.read_text().splitlines()))[160:]
    assert score["observed"] == sum(row[name] != "" for row in rows for name in ("x", "y"))
    assert score["forecast_rmse"] < score["naive_rmse"]
    assert score["coverage"]["0.5"] < score["coverage"]["0.95"]


def test_a_language_model_goes_from_a_corpus_to_a_score(tmp_path: Path) -> None:
    words = np.random.default_rng(0).choice(["the", "filter", "saw", "a", "quiet", "river", "and", "waited"], 12_000)
    for split, part in (("train", words[:4000]), ("valid", words[4000:6000]), ("test", words[6000:])):
        (tmp_path / f"{split}.txt").write_text(" ".join(part))
    model = {"vocab_size": 270, "d_model": 16, "n_layers": 1, "n_heads": 2, "head_dim": 4, "n_slots": 2, "inner": 2}
    training = {
        "steps": 2, "batch": 2, "context": 32, "validate_every": 2, "precision": "fp32", "vary_passes": True
    }  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps({"model": model, "training": training}))
    run = tmp_path / "run"
    trained = rfa_json("train", "lm", "--data", tmp_path, "--config", tmp_path / "tiny.json", "--out", run)
    assert trained["tokens"] == 2 * 2 * 32
    assert (run / "metrics.png").stat().st_size > 1000
    scores = rfa_json("eval", "lm", run, "--data", tmp_path, "--limit", 4096)
    assert {(row["mode"], row["length"]) for row in scores} == {
        (mode, length) for mode in ("attention", "recurrent") for length in (256, 1024, 4096)
    }
    # Two steps teach nothing: about as good as a guess among 300 tokens.
    assert all(250 < row["perplexity"] < 350 for row in scores)
    compared = rfa_json("eval", "lm", run, "--data", tmp_path, "--limit", 4096, "--passes")
    assert [row["passes"] for row in compared] == [1, 2]
    assert compared[1]["score"] == scores[-1] != compared[0]["score"]
    lines = rfa("eval", "lm", run, "--data", tmp_path, "--limit", 4096, "--passes")[1].splitlines()
    assert lines[-2].split()[:2] == ["1", f"{compared[0]['score']['perplexity']:.2f}"]


@pytest.mark.slow
def test_a_filter_goes_from_a_series_to_a_bundle(tmp_path: Path) -> None:
    run, bundle = tmp_path / "run", tmp_path / "mine"
    trained = rfa_json("train", "filter", "--data", EXAMPLE, "--config", "linear", "--out", run)
    assert trained["family"] == "linear"
    exported = rfa_json("export", run, "--out", bundle)
    assert exported["name"] == "mine"
    assert rfa_json("verify", bundle)["digest"] == exported["digest"]
    assert len(rfa_json("filter", EXAMPLE, "--bundle", bundle)["steps"]) == 200


def test_generate_continues_a_text_as_seed_and_passes_say(books_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("generate", "It was the", "--bundle", books_bundle, "--max-new-tokens", 12)
    document = rfa_json(*arguments, "--seed", 7)
    assert len(document["tokens"]) == 12
    assert "".join(token["text"] for token in document["tokens"]) == document["generated_text"]
    assert all(0 <= token["confidence"] <= 1 for token in document["tokens"])
    pieces: list[str] = []
    echo = typer.echo
    monkeypatch.setattr("typer.echo", lambda text="", **options: (pieces.append(text), echo(text, **options)))
    code, out, err = rfa(*arguments, "--seed", 7, "--passes", 3)
    assert code == 0, err
    assert out == f"It was the{document['generated_text']}\n"
    assert pieces == ["It was the", *(token["text"] for token in document["tokens"]), ""]
    assert rfa_json(*arguments, "--seed", 7, "--passes", 1)["tokens"] != document["tokens"]
    assert rfa_json(*arguments, "--seed", 8)["generated_text"] != document["generated_text"]
    code, _, err = rfa(*arguments, "--passes", 4)
    assert code == 1 and "--passes of model 'books' must be between 1 and 3" in err


@pytest.mark.slow  # starts a process; the test above has the pieces that are printed
def test_generate_writes_tokens_as_they_come(books_bundle: Path) -> None:
    command = [sys.executable, "-m", "rfa", "generate", "It was the", "--bundle", books_bundle]
    with subprocess.Popen(
        [*map(str, command), "--max-new-tokens", "2000", "--seed", "7"], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 4096)
        assert process.poll() is None, "the text came only when all of it was there"
        process.kill()
    assert first.startswith(b"It was the")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("verify", "nowhere"), "no bundle is called 'nowhere'"),
        (("info", EXAMPLE.parent / "deploy" / "prometheus"), "manifest.json"),
        (("filter", "nowhere.csv"), "nowhere.csv"),
        (("filter", EXAMPLE, "--out", "table.xlsx"), "--out must end in .csv, .parquet, .arrow, .jsonl or .json"),
        (("filter", EXAMPLE, "--horizon", "soon"), "--horizon"),
        (("export", EXAMPLE.parent, "--out", "x"), "is not a run directory"),
        (("train", "filter", "--data", "simulate:weather", "--out", "{tmp}"), "simulate:oscillator"),
        (("train", "lm", "--data", EXAMPLE.parent, "--config", "huge", "--out", "{tmp}"), "no config 'huge'"),
        (("eval", "filter", "linear", "--data", "simulate:weather"), "simulate:oscillator"),
        (("eval", "lm", "linear", "--data", EXAMPLE.parent), "linear is not a language model"),
        (("eval", "confidence", "linear", "--data", EXAMPLE.parent), "linear is not a language model"),
        (("generate", "It was", "--bundle", "linear"), "has no language model"),
        (("filter", EXAMPLE, "--bundle", "books"), "is of kind 'lm', not a filter"),
        (("serve", "--port", "70000"), "port"),
        (("frobnicate",), "No such command"),
        (("verify",), "Missing argument"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple) else None,
)
def test_a_failure_is_one_line_that_names_the_reason(
    arguments: tuple[object, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFA_DEBUG", raising=False)
    code, out, err = rfa(*(str(argument).replace("{tmp}", str(tmp_path / "run")) for argument in arguments))
    assert code != 0
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("rfa: ")
    assert reason in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"drift": [[1.0]]}', "must contain `config` and `family`"),
        ("[1", "config.json: Expecting"),
        ("[1]", "family"),
    ],
)
def test_a_run_with_another_config_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content)
    code, _, err = rfa("export", tmp_path, "--out", tmp_path / "bundle")
    assert code == 1
    assert reason in err and "config.json" in err and "unexpected" not in err


def test_a_series_that_does_not_fit_the_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("t,level\n0,1\n1,2\n")
    code, _, err = rfa("filter", tmp_path / "one.csv", "--bundle", "linear")
    assert code == 1
    assert "the file has 1 value columns (level), but bundle 'linear' accepts 2" in err


def test_rfa_debug_shows_where_it_failed() -> None:
    result = CliRunner().invoke(app, ["verify", "nowhere"], env={"RFA_DEBUG": "1"})
    assert isinstance(result.exception, FileNotFoundError)


def test_a_missing_extra_is_named_with_its_remedy() -> None:
    from rfa.benchmarks.gpu.device import NoGpuError
    from rfa.cli.console import explain

    assert explain(NoGpuError("no GPU here")) == "no GPU here"
    assert "rfa-server[train]" in explain(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert "rfa-server[plot]" in explain(ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"))
    assert "needs a checkout" in explain(ModuleNotFoundError("No module named 'rfa.benchmarks'", name="rfa.benchmarks"))
    assert "unexpected ModuleNotFoundError" in explain(ModuleNotFoundError("No module named 'zzz'", name="zzz"))


def test_a_bundle_is_found_by_name_beside_the_others(linear_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rfa.cli.bundles import find_bundle, served_bundles

    monkeypatch.setenv("RFA_BUNDLES", str(linear_bundle))
    assert served_bundles() == (linear_bundle,)
    assert find_bundle("linear") == linear_bundle
    with pytest.raises(FileNotFoundError, match=r"one of linear$"):
        find_bundle("oscillator")
    with pytest.raises(FileNotFoundError, match=r"one of auto, linear; did you mean linear\?$"):
        find_bundle("liner", ("auto",))


def test_a_misspelt_name_is_answered_with_similar_names() -> None:
    code, _, err = rfa("filter", EXAMPLE, "--bundle", "serie")
    assert code == 1 and "auto, auto-joint, " in err and err.rstrip().endswith("did you mean series?")


def test_what_a_file_has_too_much_of_is_said_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("t," + ",".join(f"c{k}" for k in range(80)) + "\n" + "1" + ",2" * 80 + "\n")
    for bundle in ("series", "auto"):
        code, _, err = rfa("filter", tmp_path / "wide.csv", "--bundle", bundle)
        assert code == 1 and "up to 64 columns" in err and "--column" in err
    (tmp_path / "large.csv").write_text("t,y\n1,2\n2,1e15\n")
    code, _, err = rfa("filter", tmp_path / "large.csv", "--bundle", "auto")
    assert code == 1 and "row 3, column 'y': values must be at most 1e+12 in absolute value, got 1e+15" in err
    code, _, err = rfa("filter", EXAMPLE, "--horizon", "3mo")
    assert code == 1 and "if rows are months, specify a number of rows" in err


def test_a_folder_that_is_called_like_a_model_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rfa.cli.bundles import find_bundle

    monkeypatch.chdir(tmp_path)
    (tmp_path / "series").mkdir()
    assert find_bundle("series").name == "series" and find_bundle("series").resolve().parent != tmp_path
    (tmp_path / "own").mkdir()
    assert find_bundle("own") == Path("own")
