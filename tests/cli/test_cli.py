"""The `rfa` command, run the way a user runs it."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rfa.cli.filter_run import parse_lead
from rfa.cli.main import app
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "oscillator.csv"
EXAMPLE_OUTLIERS = [61, 97, 133]
EXAMPLE_GAP = range(110, 122)


def rfa(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env, prog_name="rfa")
    return result.exit_code, result.stdout, result.stderr


def rfa_json(*arguments: object) -> dict:
    code, out, err = rfa(*arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


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
    for victim in sorted(linear_bundle.iterdir()):
        copy = tmp_path / f"without_{victim.name}"
        copy.mkdir()
        for path in linear_bundle.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        (copy / victim.name).write_bytes(data)
        code, out, err = rfa("verify", copy)
        assert code != 0, f"a bit of {victim.name} was flipped and nothing noticed"
        assert out == ""
        assert err.startswith("rfa: ")
        assert err.count("\n") == 1


def test_a_bundle_is_signed_and_verified_by_its_key(linear_bundle: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(linear_bundle, tmp_path / "mine"))
    keys, others = (rfa_json("keygen", "--out", tmp_path / name) for name in ("signing", "other"))
    code, _, err = rfa("verify", mine, "--trusted-key", keys["public_key"])
    assert code == 1 and "manifest.json.minisig: the file is missing" in err
    signed = rfa_json("sign", mine, "--key", keys["secret_key"])
    assert signed["digest"] == rfa_json("info", linear_bundle)["digest"]
    # A key by its file, and as the text that RFA_TRUSTED_KEYS takes.
    trusted = ("--trusted-key", others["RFA_TRUSTED_KEYS"], "--trusted-key", keys["public_key"])
    report = rfa_json("verify", mine, *trusted)
    assert report["passed"] and report["golden_values"] > 0 and len(report["comparisons"]) > 1
    for key in (others["public_key"], others["RFA_TRUSTED_KEYS"]):
        code, _, err = rfa("verify", mine, "--trusted-key", key)
        assert code == 1 and "a key that is not trusted" in err
    assert Path(keys["secret_key"]).read_text() not in json.dumps([keys, signed])


def test_filter_gives_a_row_per_row_and_finds_the_outliers(linear_bundle: Path) -> None:
    code, out, err = rfa("filter", EXAMPLE, "--bundle", linear_bundle, "--lead", 0.5)
    assert code == 0, err
    given = list(csv.DictReader(EXAMPLE.read_text().splitlines()))
    table = list(csv.DictReader(out.splitlines()))
    assert [row["t"] for row in table] == [row["t"] for row in given]
    assert [i for i, row in enumerate(table) if row["outlier"] == "1"] == EXAMPLE_OUTLIERS
    for row, source in zip(table, given, strict=True):
        for name in ("x", "y"):
            assert row[name] == "" if source[name] == "" else float(row[name]) == float(source[name])
            assert float(row[f"{name}_low90"]) < float(row[f"{name}_mean"]) < float(row[f"{name}_high90"])
            assert float(row[f"{name}_ahead0.5_std"]) > float(row[f"{name}_std"])
    widths = [float(row["x_std"]) for row in table]
    assert widths[109:122] == sorted(set(widths[109:122])), "uncertainty grows where nothing is measured"
    assert all(table[i]["anomaly"] == "" for i in EXAMPLE_GAP)


def test_filter_gives_the_numbers_of_the_runtime(linear_bundle: Path) -> None:
    from rfa.cli import filter_run as command
    from rfa.data import load_series
    from rfa.runtime.bundle.bundle import open_bundle
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.service.encoding import dumps

    runtime, series = FilterRuntime(open_bundle(linear_bundle)), load_series(EXAMPLE)
    found = command.run_filter(runtime, series, [0.5])
    observations = [[None if np.isnan(v) else float(v) for v in row] for row in series.values]
    whole = runtime.filter(list(map(float, series.times)), observations, levels=command.LEVELS, horizon=[0.5])
    assert dumps(found.steps) == dumps(whole.steps) and found.smoothed is None
    assert found.log_likelihood == whole.log_likelihood


def test_filter_smooths_by_all_rows_or_by_so_many_later_ones(linear_bundle: Path) -> None:
    def columns(*options: object) -> dict[str, np.ndarray]:
        code, out, err = rfa("filter", EXAMPLE, "--bundle", linear_bundle, "--digits", "full", *options)
        assert code == 0, err
        table = list(csv.DictReader(out.splitlines()))
        return {name: np.array([float(row[name]) for row in table]) for name in table[0] if name.startswith("x_")}

    plain, smooth, none, some = columns(), columns("--smooth"), columns("--lag", 0), columns("--lag", 6)
    assert not any("smooth" in name for name in plain)
    mean, std = smooth["x_smooth_mean"], smooth["x_smooth_std"]
    # The last row has no later one; before it, what came later helps, most of all where nothing was measured.
    assert mean[-1] == pytest.approx(smooth["x_mean"][-1], abs=1e-5) and (std <= smooth["x_std"] * (1 + 1e-4)).all()
    assert (std[EXAMPLE_GAP] < 0.9 * smooth["x_std"][EXAMPLE_GAP]).all()
    assert np.allclose(none["x_smooth_mean"], plain["x_mean"], atol=1e-5)
    assert (std - 1e-4 <= some["x_smooth_std"]).all() and (some["x_smooth_std"] <= none["x_smooth_std"] + 1e-4).all()
    assert np.allclose(some["x_smooth_mean"][-7:], mean[-7:]) and not np.allclose(some["x_smooth_mean"][:-7], mean[:-7])
    document = rfa_json("filter", EXAMPLE, "--bundle", linear_bundle, "--lag", 6)
    assert [state["mean"][0] for state in document["smoothed"]] == list(some["x_smooth_mean"])


def test_filter_draws_the_series(linear_bundle: Path, tmp_path: Path) -> None:
    from matplotlib import image

    picture, table = tmp_path / "out.png", tmp_path / "all.json"
    code, out, err = rfa("filter", EXAMPLE, "--bundle", linear_bundle, "--plot", picture, "--out", table)
    assert code == 0, err
    assert re.match(r"200 rows, 3 outliers, 90 % intervals contained \d\d\.\d % one step ahead, log-likelihood ", out)
    pixels = image.imread(picture)[..., :3]
    assert min(pixels.shape[:2]) > 300
    blue = (pixels[..., 2] > pixels[..., 0] + 0.3).mean()
    red = (pixels[..., 0] > pixels[..., 2] + 0.5).mean()
    assert blue > 0.003, "no estimate is drawn"
    assert red > 1e-5, "no outlier is drawn"
    document = json.loads(table.read_text())
    assert document["outliers"] == EXAMPLE_OUTLIERS
    assert document["columns"] == ["x", "y"]
    assert len(document["steps"]) == 200


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


def test_generate_continues_a_text_as_its_seed_says(books_bundle: Path) -> None:
    arguments = ("generate", "It was the", "--bundle", books_bundle, "--max-new-tokens", 12)
    document = rfa_json(*arguments, "--seed", 7)
    assert len(document["tokens"]) == 12
    assert "".join(token["text"] for token in document["tokens"]) == document["generated_text"]
    assert all(0 <= token["confidence"] <= 1 for token in document["tokens"])
    code, out, err = rfa(*arguments, "--seed", 7)
    assert code == 0, err
    assert out == f"It was the{document['generated_text']}\n"
    assert rfa_json(*arguments, "--seed", 8)["generated_text"] != document["generated_text"]


def test_generate_has_the_passes_of_the_option(passes_bundle: Path) -> None:
    arguments = ("generate", "It was the", "--bundle", passes_bundle, "--max-new-tokens", 3, "--seed", 7)
    found = [rfa_json(*arguments, *option)["tokens"] for option in ((), ("--passes", 3), ("--passes", 1))]
    assert found[0] == found[1] != found[2]
    code, _, err = rfa(*arguments, "--passes", 4)
    assert code == 1 and "--passes of model 'passes' must be from 1 to 3" in err


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
    command = [sys.executable, "-m", "rfa", "verify", "nowhere"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "RFA_DEBUG": "1"}
    )
    assert result.returncode != 0
    assert "Traceback" in result.stderr


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
    assert code == 1 and "a number of rows such as 24 (also of months)" in err


def test_a_folder_that_is_called_like_a_model_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rfa.cli.bundles import find_bundle

    monkeypatch.chdir(tmp_path)
    (tmp_path / "series").mkdir()
    assert find_bundle("series").name == "series" and find_bundle("series").resolve().parent != tmp_path
    (tmp_path / "own").mkdir()
    assert find_bundle("own") == Path("own")


def test_alarms_come_at_the_rate_that_is_asked_for(tmp_path: Path) -> None:
    """As a share of the rows, and by the day, which is the same share of rows a minute apart."""
    generator = np.random.default_rng(3)
    values = 1e6 * (50 + generator.standard_normal(600))
    values[500] += 2e7
    rows = "\n".join(f"{60 * i},{value:.9g}" for i, value in enumerate(values))
    (tmp_path / "metric.csv").write_text(f"t,value\n{rows}\n")
    document = rfa_json("filter", tmp_path / "metric.csv", "--alarm", "0.002", "--quiet", 20)
    assert document["model"] == "default" and 500 in document["outliers"]
    alarms, flags = document["alarms"], [step["alarm"] for step in document["steps"]]
    assert flags[500] is True and 1 <= flags.count(True) == alarms["raised"] <= 6
    assert alarms["observations"] == 600 and alarms["expected"] == pytest.approx(1.2, rel=2e-3)
    out = tmp_path / "out.csv"
    code, said, _ = rfa("filter", tmp_path / "metric.csv", "--alarm", "2.88/day", "--quiet", 20, "--out", out)
    assert code == 0 and f"{alarms['raised']} alarms of 1.2 expected" in said
    table = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["alarm"] == "1" for row in table] == flags


@pytest.mark.parametrize("rate", ["0", "0.6", "nan", "often", "1/year", "0/day"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    code, _, err = rfa("filter", EXAMPLE, "--alarm", rate)
    assert code == 1 and "--alarm must be a share of the observations" in err


def test_a_rate_above_half_of_the_rows_is_refused(tmp_path: Path) -> None:
    """Every day of daily rows would be all of them, in silence."""
    days = "".join(f"2024-01-{day + 1:02},{day % 7}\n" for day in range(30))
    (tmp_path / "daily.csv").write_text("date,sold\n" + days)
    code, _, err = rfa("filter", tmp_path / "daily.csv", "--bundle", "auto", "--alarm", "1/day")
    assert (
        code == 1
        and "--alarm requests an alarm for more than half of the rows of daily.csv, which are 86,400 s apart" in err
    )
    code, _, err = rfa("filter", tmp_path / "daily.csv", "--bundle", "auto", "--alarm", "3/week")
    assert code == 0 and "alarms of" in err


def test_a_flag_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    code, _, err = rfa("filter", EXAMPLE, "--quiet", 5)
    assert code == 1 and "--quiet requires an alarm rate" in err
    (tmp_path / "bare.csv").write_text("value\n1\n2\n3\n")
    code, _, err = rfa("filter", tmp_path / "bare.csv", "--alarm", "1/day")
    assert code == 1 and "bare.csv has no time column" in err


def sensor_file(path: Path) -> Path:
    """A room's sensors, as no bundle of a system describes them."""
    rng = np.random.default_rng(1)
    rows = [
        f"2024-03-{1 + k // 144:02d} {k % 144 // 6:02d}:{k % 6 * 10:02d},"
        f"{21 + math.sin(k / 23) + 0.1 * rng.normal():.2f},"
        f"{50 + 3 * math.cos(k / 23) + 0.5 * rng.normal():.1f}"
        for k in range(600)
    ]
    path.write_text("date,temperature,humidity\n" + "\n".join(rows) + "\n")
    return path


def test_a_system_runs_only_by_its_name_and_says_where_it_does_not_fit(tmp_path: Path) -> None:
    path = sensor_file(tmp_path / "room.csv")
    code, _, err = rfa("filter", path, "--bundle", "oscillator")
    assert code == 0 and "outliers for 'oscillator'" in err and "does not describe this series" in err
    document = rfa_json("filter", path, "--bundle", "oscillator")
    assert document["warnings"] and any("taken as UTC" in note for note in document["notes"])


def test_any_columns_are_filtered_and_their_estimates_are_near_them(tmp_path: Path) -> None:
    document = rfa_json("filter", sensor_file(tmp_path / "room.csv"))
    assert document["model"] == "default" and document["warnings"] == []
    for temperature, humidity in (step["mean"] for step in document["steps"][20:]):
        assert abs(temperature - 21) < 2 and abs(humidity - 50) < 20


def test_a_number_of_rows_is_a_lead_of_a_dated_file(tmp_path: Path) -> None:
    document = rfa_json("filter", sensor_file(tmp_path / "room.csv"), "--lead", "12")
    step = document["steps"][50]
    assert step["forecast"][0]["t"] - step["t"] == 7200


def test_dates_stay_dates_in_table_and_picture(tmp_path: Path) -> None:
    path, table, picture = sensor_file(tmp_path / "room.csv"), tmp_path / "out.csv", tmp_path / "out.svg"
    options = ("--column", "humidity", "--from", "2024-03-02", "--to", "2024-03-03", "--lead", "2h")
    code, _, err = rfa("filter", path, *options, "--out", table, "--plot", picture)
    assert code == 0, err
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["date"] for row in rows[:2]] == ["2024-03-02 00:00", "2024-03-02 00:10"] and len(rows) == 144
    assert all(float(row["humidity_ahead2h_mean"]) for row in rows)
    assert ("UTC" in picture.read_text() and "Mar" in picture.read_text()) or "03-02" in picture.read_text()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.5", 0.5),
        ("30min", 1800),
        ("6h", 21600),
        ("1.5 d", 129600),
        ("1e-3", 1e-3),
        ("2 days", 172_800),
        ("1 week", 604_800),
        ("90 seconds", 90),
        ("1 hour", 3600),
    ],
)
def test_a_lead_has_units(text: str, seconds: float) -> None:
    assert parse_lead(text, 1.0) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "6 fortnights", "nan", "inf", "1e999", ""])
def test_what_is_no_lead_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--lead must be"):
        parse_lead(text, 1.0)


def test_a_series_comes_from_standard_input() -> None:
    text = "ts;Temp °C;Status\n01.03.2024 00:00;21,5;ok\n01.03.2024 00:10;21,6;ok\n14.03.2024 00:20;;Fehler\n"
    found = CliRunner().invoke(app, ["filter", "-", "--tz", "Europe/Berlin"], input=text.encode())
    assert found.exit_code == 0, found.stderr
    rows = list(csv.DictReader(found.stdout.splitlines()))
    assert [row["ts"] for row in rows] == ["01.03.2024 00:00", "01.03.2024 00:10", "14.03.2024 00:20"]
    assert [row["Status"] for row in rows] == ["ok", "ok", "Fehler"]
    assert [row["Temp °C"] for row in rows] == ["21.5", "21.6", ""] and "'Status'" in found.stderr


def test_what_is_well_covered_is_not_doubted(tmp_path: Path) -> None:
    values = 100 + np.cumsum(np.random.default_rng(3).normal(size=4000))
    (tmp_path / "walk.csv").write_text("value\n" + "\n".join(map(str, values)) + "\n")
    document = rfa_json("filter", tmp_path / "walk.csv", "--lead", "12")
    assert document["warnings"] == []
    (parse_lead,) = document["calibration"]["leads"]
    assert (parse_lead["steps"], parse_lead["scored"]) == (12, 3987) and abs(parse_lead["coverage"]["0.9"] - 0.9) < 0.03


def test_a_constant_is_no_reason_for_a_warning(tmp_path: Path) -> None:
    (tmp_path / "still.csv").write_text("value\n" + "21.5\n" * 600)
    still, out_file = tmp_path / "still.csv", tmp_path / "out.csv"
    code, out, err = rfa("filter", still, "--bundle", "auto", "--lead", "12", "--out", out_file)
    assert code == 0 and "90 % intervals contained 100.0 % one step ahead, 100.0 % 12 steps ahead, " in out
    assert "warning" not in err
