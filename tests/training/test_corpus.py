"""Tokens are faithful to the text, and the order of windows is a function of (seed, step) alone."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rfa.training.corpus import (
    END_OF_TEXT,
    Blocks,
    encode_files,
    file_hashes,
    prepare_corpus,
    split_files,
    train_tokenizer,
)
from rfa.training.documents import documents

TEXT = "It was the best of times, it was the worst of times.\n\nNaïve café — 東京 🙂\r\n\ttabs  and   spaces\n" * 40


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data/train").mkdir(parents=True)
    (tmp_path / "data/train/a.txt").write_text(TEXT, encoding="utf-8", newline="")
    (tmp_path / "data/train/b.txt").write_text(TEXT[::-1], encoding="utf-8", newline="")
    (tmp_path / "data/valid.txt").write_text(TEXT[:500], encoding="utf-8", newline="")
    return tmp_path / "data"


def test_round_trip_is_exact(folder):
    files = split_files(folder, "train")
    tokenizer = train_tokenizer(files, 300)
    tokens = encode_files(tokenizer, files)
    end = tokenizer.token_to_id(END_OF_TEXT)
    first, second = np.split(tokens, np.flatnonzero(tokens == end)[:-1] + 1)
    assert tokenizer.decode(first[:-1].tolist()) == TEXT
    assert tokenizer.decode(second[:-1].tolist()) == TEXT[::-1]


def test_a_file_in_another_encoding_is_read_and_one_that_is_no_text_is_named(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("Müller fährt über die Brücke.\n".encode("latin-1") * 40)
    tokenizer = train_tokenizer([file], 300)
    assert tokenizer.decode(encode_files(tokenizer, [file])[:-1].tolist()) == "Müller fährt über die Brücke.\n" * 40
    file.write_bytes(bytes(range(256)) * 8)
    with pytest.raises(ValueError, match=r"a\.txt: "):
        encode_files(tokenizer, [file])


def test_cutting_does_not_change_the_tokens(folder, monkeypatch):
    files = split_files(folder, "train")
    tokenizer = train_tokenizer(files, 300)
    whole = encode_files(tokenizer, files)
    monkeypatch.setattr("rfa.training.documents.PIECE_CHARACTERS", 64)
    pieces = encode_files(tokenizer, files)
    assert tokenizer.decode(pieces.tolist()) == tokenizer.decode(whole.tolist())
    assert len(pieces) <= 1.02 * len(whole)


def test_prepared_corpus_is_reused_until_the_data_change(folder, tmp_path):
    corpus = prepare_corpus(folder, tmp_path / "out", 300)
    before = len(corpus.tokens("valid"))
    stamp = (tmp_path / "out/train.npy").stat().st_mtime_ns
    assert corpus.bytes_per_token["valid"] == pytest.approx(len(TEXT[:500].encode()) / len(corpus.tokens("valid")))
    prepare_corpus(folder, tmp_path / "out", 300)
    assert (tmp_path / "out/train.npy").stat().st_mtime_ns == stamp
    (folder / "valid.txt").write_text("something else " * 20)
    assert len(prepare_corpus(folder, tmp_path / "out", 300).tokens("valid")) != before


def test_missing_split_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no train"):
        split_files(tmp_path, "train")


def test_blocks_depend_on_seed_and_step_only():
    tokens = np.arange(1000, dtype=np.uint16)
    first = Blocks(tokens, 16, 4, seed=3)
    rows = [first[step] for step in range(40)]
    again = Blocks(tokens, 16, 4, seed=3)
    for step in (39, 0, 17):
        assert all(np.array_equal(a, b) for a, b in zip(again[step], rows[step], strict=True))
    inputs, targets = rows[0]
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert not np.array_equal(Blocks(tokens, 16, 4, seed=4)[0][0], inputs)


def test_an_epoch_covers_every_window_once():
    tokens = np.arange(16 * 21 + 1, dtype=np.uint16)
    blocks = Blocks(tokens, 16, 4, seed=0)
    starts = np.concatenate([blocks[step][0][:, 0] for step in range(5)])
    assert len(set((starts - starts.min()).tolist())) == 20
    assert set(((starts - starts.min()) % 16).tolist()) == {0}


def test_too_little_text_is_refused():
    with pytest.raises(ValueError, match="context 64 requires at least 66"):
        Blocks(np.arange(50), 64, 1, 0)


ROWS = ["Naïve café", "two\nlines — 東京", "a " * 3000]


def write_rows(folder, kind):
    """A file of rows in one of the formats."""
    file = folder / f"rows.{kind}"
    table = pa.table({"id": range(len(ROWS)), "body": ROWS})
    if kind == "jsonl":
        file.write_text("\n\n".join(json.dumps({"body": row, "id": 1}) for row in ROWS), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(table, file, row_group_size=2)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_rows_are_documents(tmp_path, monkeypatch, kind):
    file = write_rows(tmp_path, kind)
    monkeypatch.setattr("rfa.training.documents.CHUNK_BYTES", 100)
    monkeypatch.setattr("rfa.training.documents.ROWS", 2)
    assert ["".join(document) for document in documents(file, "body")] == ROWS
    tokenizer = train_tokenizer([file], 280, "body")
    tokens = encode_files(tokenizer, [file], "body")
    assert np.count_nonzero(tokens == tokenizer.token_to_id(END_OF_TEXT)) == 3
    with pytest.raises(ValueError, match=rf"rows\.{kind}: .*'text' among .*body.*--field"):
        list(documents(file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": ', "line 2 is not JSON"),
        (b'{"text": "a"}\n\n[1]\n', "line 3 is not a JSON object"),
        (b'{"text": 5}\n', "line 1: field 'text' is not a string"),
        (b'{"text": "a"}\n\xff\0\n', "line 2: "),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"rows\.jsonl: {message}"):
        list(documents(file))


def test_a_file_that_is_no_table_is_named(tmp_path):
    for kind in ("parquet", "arrow"):
        file = tmp_path / f"rows.{kind}"
        file.write_bytes(b"no table at all")
        with pytest.raises(ValueError, match=rf"rows\.{kind}: "):
            list(documents(file))


def test_text_is_read_in_chunks(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text(TEXT, encoding="utf-8", newline="")
    whole = [list(document) for document in documents(file)]
    monkeypatch.setattr("rfa.training.documents.CHUNK_BYTES", 7)
    monkeypatch.setattr("rfa.training.documents.PIECE_CHARACTERS", 50)
    (pieces,) = [list(document) for document in documents(file)]
    assert "".join(pieces) == "".join(*whole) == TEXT
    assert len(pieces) > 20 and all(piece.startswith("\n") for piece in pieces[1:])


def test_splits_of_hugging_face_datasets_are_found(tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/{name}.parquet").touch()
    assert [file.name[:11] for file in split_files(tmp_path, "train")] == ["train-00000", "train-00001"]
    assert [file.name[:10] for file in split_files(tmp_path, "valid")] == ["validation"]
    with pytest.raises(FileNotFoundError, match="no test"):
        split_files(tmp_path, "test")


def test_files_of_one_name_have_a_hash_each(tmp_path):
    files = [tmp_path / name for name in ("train/a.txt", "valid/a.txt", "valid/b.txt")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(file))
    hashes = file_hashes(files)
    assert list(hashes) == ["train/a.txt", "valid/a.txt", "b.txt"] and len(set(hashes.values())) == 3


def test_one_file_or_folder_holds_out_its_last_tokens(tmp_path):
    (tmp_path / "notes").mkdir()
    file = tmp_path / "notes/a.md.txt"
    file.write_text(TEXT, encoding="utf-8", newline="")
    parts = []
    for data in (file, file.parent):
        corpus = prepare_corpus(data, tmp_path / data.name / "out", 300) if data.is_dir() else None
        corpus = corpus or prepare_corpus(data, tmp_path / "out", 300)
        train, valid = corpus.tokens("train"), corpus.tokens("valid")
        assert len(valid) == (len(train) + len(valid)) // 20
        parts.append(np.concatenate([train, valid]))
        assert np.array_equal(parts[-1], encode_files(corpus.tokenizer, [file]))
        assert corpus.bytes_per_token["train"] == pytest.approx(len(TEXT.encode()) / len(parts[-1]))
    assert np.array_equal(*parts)
