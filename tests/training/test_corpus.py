"""Tokens are faithful to the text, and the order of windows is a function of (seed, step) alone."""

import numpy as np
import pytest

from rfa.training.corpus import END_OF_TEXT, Blocks, encode_files, prepare_corpus, split_files, train_tokenizer

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
    monkeypatch.setattr("rfa.training.corpus.PIECE_CHARACTERS", 64)
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
    with pytest.raises(ValueError, match="context 64 needs 66"):
        Blocks(np.arange(50), 64, 1, 0)
