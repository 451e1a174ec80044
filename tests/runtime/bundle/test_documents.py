"""Documents of a bundle that do not fit are refused by file and field, before anything computes with them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rfa.runtime.bundle.bundle import BundleError, check_golden, open_bundle
from rfa.runtime.bundle.calibration_document import FilterCalibration, LanguageCalibration
from rfa.runtime.bundle.documents import canonical_json, read_document
from rfa.runtime.bundle.golden import check_golden_document
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.bundle.tokenizer_document import check_tokenizer
from tests.soak.bundles.mutations import Case, catalogue

Change = Callable[[Any], object]


@cache
def text_of(bundle: str, file: str) -> str:
    return (BUNDLE_ROOT / bundle / file).read_text()


def changed(bundle: str, file: str, change: Change) -> Any:
    document = json.loads(text_of(bundle, file))
    change(document)
    return document


def put(*path: Any) -> Change:
    """Set what stands at a path to the last argument."""

    def change(document: Any) -> None:
        for part in path[:-2]:
            document = document[part]
        document[path[-2]] = path[-1]

    return change


FILTER: list[tuple[Change, str]] = [
    (
        put("recurrent", "levels", [0.5, 0.8, 0.9]),
        "recurrent: .*multipliers must be in ascending order, with one for each level",
    ),
    (put("recurrent", "levels", [0.5, 0.9, 0.8, 0.95]), "recurrent: .*levels must be in ascending order"),
    (put("recurrent", "levels", 3, 1.0), r"recurrent\.levels\.3: .*less than 1"),
    (put("attention", "state", "variance_scale", -1.0), r"attention\.state\.variance_scale"),
    (put("attention", "state", "variance_scale", "1"), r"attention\.state\.variance_scale"),
    (put("attention", "forecast", "horizons", 0, 0.0), r"attention\.forecast\.horizons\.0"),
    (put("attention", "forecast", "multipliers", 1, [1.0]), "attention: .*one for each level"),
    (put("attention", "forecast", "variance_scale", [1.0]), "same length"),
    (put("recurrent", "anomaly", "tail_scale", 0.0), r"recurrent\.anomaly\.tail_scale"),
    (put("recurrent", "anomaly", "quantiles", 0, 1e9), "ascend"),
    (put("recurrent", "anomaly", "shares", 11, 1.0), r"recurrent\.anomaly\.shares\.11"),
    (put("recurrent", "confidence", "inside", 0, 1.5), r"recurrent\.confidence\.inside\.0"),
    (put("recurrent", "confidence", "surprise", []), r"recurrent\.confidence\.surprise"),
    (put("recurrent", "state", "variance_scale", 1.25), "summary must contain the variance_scale of each mode"),
    (put("recurrent", "more", 1), r"recurrent\.more"),
    (lambda document: document.pop("recurrent"), "recurrent"),
]


@pytest.mark.parametrize(("change", "reason"), FILTER)
def test_a_calibration_of_a_filter_that_does_not_fit_is_refused(change: Change, reason: str) -> None:
    with pytest.raises(BundleError, match=rf"^calibration\.json: .*{reason}"):
        read_document(FilterCalibration, changed("oscillator", "calibration.json", change), "calibration.json")


LANGUAGE: list[tuple[Change, str]] = [
    (put("temperature", "recurrent", 0.0), r"temperature\.recurrent"),
    (put("temperature", "recurrent", 1.5), "the values of temperature.recurrent in modes and in summary must be equal"),
    (put("temperature", "sampled", 1.5), r"temperature\.sampled"),
    (put("modes", "attention", "top", "count", [1]), "same length"),
    (put("summary", "ece_top", "attention", 0.5), "ece_top.attention in modes and in summary"),
    (lambda document: document["modes"]["attention"]["top"]["accuracy"].reverse(), "ece must equal the value"),
    (put("data", "window", 10**30), r"data\.window"),
    (put("modes", "attention", "rows", None), r"modes\.attention\.rows must contain 1024 rows"),
    (put("data", "rows", None), r"modes\.attention\.rows must contain 0 rows"),
    (put("data", "rows", "every", 32), r"modes\.attention\.rows must contain 2048 rows"),
    (put("data", "rows", "every", 96), "a multiple of every"),
    (put("data", "rows", "every", 0), r"data\.rows\.every"),
    (lambda document: document["data"]["rows"]["tokens"][1].pop(), "equal lengths"),
    (lambda document: document["modes"]["recurrent"]["rows"]["confidence"].pop(), "same length"),
    (put("modes", "recurrent", "rows", "right", "2" * 1024), r"rows\.right"),
    (put("modes", "recurrent", "rows", "confidence", 7, 1.5), r"rows\.confidence\.7"),
]


@pytest.mark.parametrize(("change", "reason"), LANGUAGE)
def test_a_calibration_of_a_language_model_that_does_not_fit_is_refused(change: Change, reason: str) -> None:
    with pytest.raises(BundleError, match=rf"^calibration\.json: .*{reason}"):
        read_document(LanguageCalibration, changed("books", "calibration.json", change), "calibration.json")


def _one_more(document: Any) -> None:
    document["model"]["vocab"]["zz"] = 4096
    document["model"]["merges"].append(["z", "z"])


TOKENIZER: list[tuple[Change, str]] = [
    (put("model", "type", "Unigram"), r"model\.type"),
    (put("model", "dropout", 0.5), r"model\.dropout"),
    (put("model", "vocab", "!", 4096), "ids must be"),
    (put("model", "vocab", "!", -1), r"model\.vocab"),
    (put("model", "vocab", "!", 2), "ids must be"),
    (put("model", "vocab", "word and more", 4096), "consist of byte characters"),
    (put("model", "vocab", "abcdefghi", 4096), "or the result of a merge"),
    (_one_more, "4097 tokens, but the model has 4096"),
    (put("model", "merges", 0, ["nobody", "knows"]), "each merge must join"),
    (put("model", "merges", 0, ["a"]), r"model\.merges\.0"),
    (put("model", "merges", 0, 7), r"model\.merges"),
    (lambda document: document["model"]["merges"].pop(), "or the result of a merge"),
    (put("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}),
     "pre_tokenizer"),
    (put("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}), "normalizer"),
    (put("post_processor", {"type": "TemplateProcessing"}), "post_processor"),
    (put("truncation", {"max_length": 1}), "truncation"),
    (put("decoder", None), "decoder"),
    (put("added_tokens", 0, "id", 5), "two ids"),
    (put("added_tokens", 0, "content", ""), r"added_tokens\.0\.content"),
    (lambda document: document["added_tokens"].append(document["added_tokens"][0]), "must be unique"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), TOKENIZER)
def test_a_tokenizer_that_does_not_fit_is_refused(change: Change, reason: str) -> None:
    data = json.dumps(changed("books", "tokenizer.json", change)).encode()
    with pytest.raises(BundleError, match=rf"^tokenizer\.json: .*{reason}"):
        check_tokenizer(data, text_of("books", "tokenizer_config.json").encode(), 4096)


@pytest.mark.parametrize(
    "change", [put("eos_token", "!"), put("tokenizer_class", "Evil"), put("auto_map", {}), put("model_max_length", 0)]
)
def test_a_configuration_of_the_tokenizer_that_does_not_fit_is_refused(change: Change) -> None:
    config = json.dumps(changed("books", "tokenizer_config.json", change)).encode()
    with pytest.raises(BundleError, match=r"^tokenizer_config\.json: "):
        check_tokenizer(text_of("books", "tokenizer.json").encode(), config, 4096)


GOLDEN: list[tuple[Change, str]] = [
    (put("cases", []), "cases"),
    (put("cases", 0, "absolute", 1e9), r"cases\.0\.absolute"),
    (put("cases", 0, "relative", 0.5), r"cases\.0\.relative"),
    (put("cases", 0, "graph", "other"), "case 0: the case runs graph"),
    (put("cases", 0, "outputs", {}), "case 0: the outputs do not match"),
    (put("cases", 0, "outputs", "logits", "values", []), "indices, values and shape do not match"),
    (put("cases", 0, "outputs", "logits", "values", 0, 1e300), r"cases\.0\.outputs\.logits\.values\.0"),
    (put("cases", 0, "outputs", "logits", "indices", 0, 10**6), "indices, values and shape do not match"),
    (put("cases", 0, "inputs", "tokens", "values", 0, 4096), "case 0: tokens contains a token"),
    (put("cases", 0, "inputs", "tokens", "values", 0, -1), "case 0: tokens contains a token"),
    (
        put("cases", 0, "inputs", "tokens", {"dtype": "int64", "shape": [1, 4], "fill": 1}),
        "case 0: tokens contains a token",
    ),
    (
        put("cases", 0, "inputs", "means", {"dtype": "float32", "shape": [1 << 20, 1 << 20], "fill": 0}),
        r"cases\.0\.inputs\.means",
    ),
    (put("cases", 0, "inputs", "means", {"dtype": "float32", "shape": [1, 4, 4, 8, 128], "fill": 0}), "means is"),
    (put("cases", 0, "inputs", "means", {"tensor": "nobody"}), "tensor 'nobody', which is not in the bundle"),
    (put("cases", 0, "inputs", "means", {"case": 0, "output": "next_means"}), "this case is not earlier"),
    (put("cases", 0, "inputs", "means", {"case": 200, "output": "next_means"}), "this case is not earlier"),
    (lambda document: document["cases"][0]["inputs"].pop("means"), "case 0: the inputs do not match"),
    (
        lambda document: document.update(cases=[case for case in document["cases"] if case["graph"] != "attention"]),
        "no case uses the graph 'attention'",
    ),
]


@pytest.mark.parametrize(("change", "reason"), GOLDEN)
def test_golden_cases_that_show_nothing_are_refused(change: Change, reason: str) -> None:
    manifest = open_books().manifest
    document = copy.deepcopy(changed("books", "golden.json", change))
    tensors = {spec.name: spec for spec in manifest.tensors}
    with pytest.raises(BundleError, match=rf"^golden\.json: .*{reason}"):
        check_golden_document(document, manifest.graphs, tensors, 4096)


@cache
def open_books() -> Any:
    return open_bundle(BUNDLE_ROOT / "books")


def test_a_reason_shows_no_content() -> None:
    document = changed("books", "calibration.json", put("method", "secret" * 100))
    with pytest.raises(BundleError) as refusal:
        read_document(LanguageCalibration, document, "calibration.json")
    assert "secret" not in str(refusal.value) and len(str(refusal.value)) < 400


CATALOGUE = catalogue(BUNDLE_ROOT, seed=11)
MUTATIONS: list[Any] = [entry for entry in CATALOGUE if entry.bundle == "linear"][::2]
# Golden outputs of the other bundles take a second each.
MUTATIONS += [pytest.param(entry, marks=pytest.mark.slow) for entry in CATALOGUE if entry.bundle != "linear"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda entry: f"{entry.bundle} {entry.family} {entry.what}")
def test_a_bundle_mutated_by_field_ends_in_a_refusal_or_is_the_same(tmp_path: Path, mutation: Case) -> None:
    """Never in another error; and what is accepted is another in what nobody computes with."""
    original = open_bundle(BUNDLE_ROOT / mutation.bundle)
    path = Path(shutil.copytree(original.path, tmp_path / mutation.bundle))
    mutation.apply(path)
    try:
        bundle = open_bundle(path)
        check_golden(bundle)
    except BundleError as error:
        assert len(str(error)) < 1000
        return
    assert canonical_json(bundle.config) == canonical_json(original.config)
    assert bundle.weights().keys() == original.weights().keys()
