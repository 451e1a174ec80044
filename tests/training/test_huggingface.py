"""Corpora of Hugging Face `datasets`: saved ones are read without the package, others are converted by it."""

import gzip
import importlib.util
import json

import numpy as np
import pyarrow as pa
import pytest

from rfa.training.corpus import END_OF_TEXT, prepare_corpus, split_files, trained_splits
from rfa.training.documents import documents

TEXTS = ["It was the best of times, it was the worst of times.", "Naïve café — 東京", "two\nlines"]


def texts_of(files):
    return ["".join(document) for file in files for document in documents(file)]


def save_rows(file, rows, metadata=None):
    table = pa.table({"text": rows}).replace_schema_metadata(metadata)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def saved_split(folder, shards):
    """A split as `save_to_disk` writes it, and a cached result of `map` beside it."""
    folder.mkdir(parents=True)
    for name, rows in shards.items():
        save_rows(folder / name, rows)
    save_rows(folder / "cache-0123456789abcdef.arrow", ["not data"])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in shards]}))
    return folder


def test_saved_datasets_are_their_data_files(tmp_path):
    saved_split(
        tmp_path / "both/train", {"data-00000-of-00002.arrow": TEXTS[:1], "data-00001-of-00002.arrow": TEXTS[1:]}
    )
    saved_split(tmp_path / "both/validation", {"data-00000-of-00001.arrow": ["z"]})
    assert trained_splits(tmp_path / "both") == ("train", "valid")
    assert texts_of(split_files(tmp_path / "both", "train")) == TEXTS
    assert texts_of(split_files(tmp_path / "both", "valid")) == ["z"]
    one = saved_split(tmp_path / "one", {"data-00000-of-00001.arrow": TEXTS})
    assert trained_splits(one) == ("train",) and texts_of(split_files(one, "train")) == TEXTS
    (one / "state.json").write_text("{}")
    with pytest.raises(ValueError, match=r"one/state\.json is not the description of a dataset"):
        split_files(one, "train")


def test_values_of_mixed_types_are_refused(tmp_path):
    features = json.dumps({"info": {"features": {"text": {"decode": True, "_type": "Json"}}}})
    save_rows(tmp_path / "a.arrow", ['"a"', "5"], {"huggingface": features})
    with pytest.raises(ValueError, match=r"a\.arrow: field 'text' must contain strings, but its type is Json"):
        texts_of([tmp_path / "a.arrow"])
    save_rows(tmp_path / "b.arrow", ["a", None])
    with pytest.raises(ValueError, match=r"b\.arrow: row 2: field 'text' is not a string"):
        texts_of([tmp_path / "b.arrow"])


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("text\na\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"to read train\.csv, install the package datasets: pip install datasets"):
        split_files(tmp_path, "train")


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    found = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return found


def rows_of(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.mark.slow
def test_the_package_converts_what_is_not_read_here(datasets, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(rows_of(TEXTS * 20).encode()))
    assert trained_splits(folder) == ("train",)
    (folder / "validation.jsonl.gz").write_bytes(gzip.compress(rows_of(["z"]).encode()))
    assert trained_splits(folder) == ("train", "valid")
    corpus = prepare_corpus(folder, tmp_path / "out", 280)
    train, end = corpus.tokens("train"), corpus.tokenizer.token_to_id(END_OF_TEXT)
    first = train[: np.flatnonzero(train == end)[0]]
    assert np.count_nonzero(train == end) == 60 and corpus.tokenizer.decode(first.tolist()) == TEXTS[0]
    assert corpus.tokenizer.decode(corpus.tokens("valid")[:-1].tolist()) == "z"
    with pytest.raises(FileNotFoundError, match="no test"):
        split_files(folder, "test")


@pytest.mark.slow
def test_a_file_that_the_package_cannot_read_is_named(datasets, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train-0.csv").write_text("text,id\na,1\n")
    (folder / "train-1.csv").write_text("text,id\na,1\nb,2,3,4\n")
    with pytest.raises(ValueError, match=r"corpus/train-1\.csv: .*line 3"):
        split_files(folder, "train")


@pytest.mark.slow
def test_a_dataset_saved_by_the_package(datasets, tmp_path):
    rows = datasets.Dataset.from_dict({"text": TEXTS}).shuffle(seed=1)
    datasets.DatasetDict(train=rows, test=rows.select([1])).save_to_disk(
        tmp_path / "saved", num_shards={"train": 2, "test": 1}
    )
    datasets.load_from_disk(tmp_path / "saved")["train"].map(lambda row: {"text": row["text"] * 2})
    assert len(list((tmp_path / "saved/train").glob("*.arrow"))) == 3
    assert texts_of(split_files(tmp_path / "saved", "train")) == rows["text"][:]
    assert texts_of(split_files(tmp_path / "saved", "test")) == [rows["text"][1]]
