"""Convert texts to tokens, which are stored in memory-mapped files. The tokenizer is a byte-level BPE that is trained
on the training split.

A corpus is a directory that contains the splits `train`, `valid` and `test`. Each is a directory of files, or consists
of the files with its name, such as `train.jsonl` or `train-00000-of-00004.parquet`. `validation` may replace `valid`. A
single file, or a directory of files without these names, is a training split. The last twentieth of its tokens is used
for validation. `documents.py` lists the formats of files, and `huggingface.py` reads Hugging Face datasets. Files of
integers are sequences of events (`sequences.py`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from rfa.training.documents import FIELD, SUFFIXES, documents, is_plain, is_utf8
from rfa.training.huggingface import converted_files, is_convertible, saved_files
from rfa.training.sequences import END_OF_TEXT, are_sequences, event_tokenizer, lines_of

SPLITS = ("train", "valid", "test")
# Other names of a split.
NAMES = {"valid": ("valid", "validation")}
# If a corpus has one split, 1 / HELD_OUT of its tokens are used for validation.
HELD_OUT = 20
# Number of pieces of text that are encoded at a time.
PIECES = 64


def split_files(data: Path, split: str) -> list[Path]:
    """Return the sorted files of one split. If the files of a corpus are not divided into splits, they are its training
    split.

    Raises:
        FileNotFoundError: If the split does not exist.
        ValueError: If Hugging Face `datasets` is needed to read the corpus, and is missing or fails.
    """
    files = _named_files(data, split)
    if not files and needs_conversion(data):
        files = converted_files(data).get(split, [])
    elif not files and split == "train":
        files = [data] if data.is_file() else _files_in(data) if has_one_split(data) else []
    if not files:
        raise FileNotFoundError(f"{data} has no {split}/*.txt and no {split}.txt, .jsonl, .parquet or .arrow")
    return files


def has_one_split(data: Path) -> bool:
    """Return whether a corpus is one file, or a directory whose files are not named after splits."""
    return data.is_file() or (data.is_dir() and not any(_named_files(data, split) for split in SPLITS))


def needs_conversion(data: Path) -> bool:
    """Return whether a corpus contains only files that Hugging Face `datasets` must read."""
    return has_one_split(data) and is_convertible(data) and not _files_in(data)


def trained_splits(data: Path) -> tuple[str, ...]:
    """Return the names of the splits whose files are read for training and validation."""
    is_one = "valid" not in converted_files(data) if needs_conversion(data) else has_one_split(data)
    return ("train",) if is_one else ("train", "valid")


def _named_files(data: Path, split: str) -> list[Path]:
    names = NAMES.get(split, (split,))
    if saved := [path for name in names for path in saved_files(data / name) or ()]:
        return saved
    for pattern in ("{}/*", "{}.*", "{}-*", "data/{}-*"):
        if files := _readable(path for name in names for path in data.glob(pattern.format(name))):
            return files
    return []


def _files_in(directory: Path) -> list[Path]:
    saved = saved_files(directory)
    return _readable(directory.iterdir()) if saved is None else saved


def _readable(paths: Iterator[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())


def train_tokenizer(files: list[Path], vocab_size: int, field: str = FIELD) -> Tokenizer:
    """Train and return a byte-level BPE, which can encode any text and decode any tokens to bytes.

    For files of event sequences, `vocab_size` is ignored. The vocabulary then consists of the integers in the files.
    """
    if are_sequences(files):
        return event_tokenizer(files)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if all(is_plain(file) and is_utf8(file) for file in files):
        tokenizer.train([str(file) for file in files], trainer)
    else:
        texts = (piece for file in files for document in documents(file, field) for piece in document)
        lines = (line for text in texts for line in text.splitlines(keepends=True))
        tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def encode_files(tokenizer: Tokenizer, files: list[Path], field: str = FIELD) -> np.ndarray:
    """Return the token ids of all files, with an end-of-text token after each document. Their type is uint16, or uint32
    for large vocabularies.

    For files of event sequences (one per line), the result also begins with an end-of-text token.
    """
    return np.concatenate([tokens for tokens, _ in _encoded(tokenizer, files, field)])


def _encoded(tokenizer: Tokenizer, files: list[Path], field: str) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the tokens of files in parts, each with the number of bytes of its text."""
    kind = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    end = tokenizer.token_to_id(END_OF_TEXT)
    if are_sequences(files):
        lines = chain.from_iterable(map(lines_of, files))
        tokens = np.concatenate([[end], *([*tokenizer.encode(line).ids, end] for line in lines)]).astype(kind)
        yield tokens, sum(path.stat().st_size for path in files)
        return
    for file in tqdm(files, desc="tokenise", unit="file"):
        # None marks the end of a document.
        texts = (piece for document in documents(file, field) for piece in chain(document, (None,)))
        while group := tuple(islice(texts, PIECES)):
            encodings = iter(tokenizer.encode_batch([text for text in group if text], add_special_tokens=False))
            ids = [[end] if text is None else next(encodings).ids for text in group]
            size = sum(len(text.encode()) for text in group if text)
            yield np.array(list(chain.from_iterable(ids)), kind), size


def file_hashes(files: list[Path]) -> dict[str, str]:
    """Return a mapping from file names to SHA-256 hashes. Names that occur more than once are preceded by the name of
    the directory.
    """
    names = Counter(file.name for file in files)
    found = {}
    for file in files:
        with file.open("rb") as stream:
            name = file.name if names[file.name] == 1 else f"{file.parent.name}/{file.name}"
            found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


@dataclass(frozen=True)
class Corpus:
    """Tokenised splits on disk.

    Attributes:
        directory: Directory of the token files.
        tokenizer: Tokenizer of the corpus.
        bytes_per_token: Mean number of bytes per token of each split. It is used to convert nats per token to bits per
            byte.
    """

    directory: Path
    tokenizer: Tokenizer
    bytes_per_token: dict[str, float]

    def tokens(self, split: str) -> np.ndarray:
        """Return the memory-mapped token ids of one split."""
        return np.load(self.directory / f"{split}.npy", mmap_mode="r", allow_pickle=False)


def prepare_corpus(
    folder: Path, directory: Path, vocab_size: int, field: str = FIELD, tokenizer: Tokenizer | None = None
) -> Corpus:
    """Tokenise the training and validation splits of a corpus, and return the tokenised corpus. Files that an earlier
    call wrote to `directory` for the same data and options are reused.

    Args:
        folder: Directory or file of the corpus.
        directory: Directory for the token files.
        vocab_size: Size of the vocabulary, if a tokenizer is trained.
        field: Field of the text in JSONL, Parquet and Arrow files.
        tokenizer: Tokenizer to use. If None, it is trained on the training split.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {split: split_files(folder, split) for split in trained_splits(folder)}
    request = {"vocab_size": vocab_size, "files": {split: file_hashes(paths) for split, paths in files.items()}}
    if field != FIELD:
        request["field"] = field
    if tokenizer is not None:
        request["tokenizer"] = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    record = directory / "corpus.json"
    if record.is_file() and (stored := json.loads(record.read_text()))["request"] == request:
        return Corpus(directory, Tokenizer.from_file(str(directory / "tokenizer.json")), stored["bytes_per_token"])
    tokenizer = tokenizer or train_tokenizer(files["train"], vocab_size, field)
    tokenizer.save(str(directory / "tokenizer.json"))
    bytes_per_token = {}
    for split, paths in files.items():
        bytes_per_token[split] = _write_tokens(directory / f"{split}.npy", tokenizer, paths, field)
    if "valid" not in files:
        bytes_per_token["valid"] = bytes_per_token["train"]
        _hold_out(directory)
    record.write_text(json.dumps({"request": request, "bytes_per_token": bytes_per_token}, indent=2) + "\n")
    return Corpus(directory, tokenizer, bytes_per_token)


def _write_tokens(path: Path, tokenizer: Tokenizer, files: list[Path], field: str) -> float:
    """Write the tokens of files part by part. Return the number of text bytes per token."""
    body, count, size = path.with_suffix(".part"), 0, 0
    with body.open("wb") as stream:
        for tokens, text_bytes in _encoded(tokenizer, files, field):
            stream.write(tokens.tobytes())
            count, size, kind = count + len(tokens), size + text_bytes, tokens.dtype
    if not count:
        raise ValueError(f"{', '.join(map(str, files))}: the files contain no text")
    with path.open("wb") as stream, body.open("rb") as tokens_file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(stream, header)
        shutil.copyfileobj(tokens_file, stream)
    body.unlink()
    return size / count


def _hold_out(directory: Path) -> None:
    """Move the last tokens of the training split to the validation split."""
    tokens = np.load(directory / "train.npy", mmap_mode="r", allow_pickle=False)
    first = len(tokens) - len(tokens) // HELD_OUT
    np.save(directory / "valid.npy", tokens[first:], allow_pickle=False)
    np.save(directory / "rest.npy", tokens[:first], allow_pickle=False)
    (directory / "rest.npy").replace(directory / "train.npy")


class Blocks:
    """Shuffled windows of `context` tokens. The seed and the number of the epoch determine the offset and the order of
    the windows.

    The windows of a step depend only on the step, so a resumed run reads the same windows.
    """

    def __init__(self, tokens: np.ndarray, context: int, batch: int, seed: int) -> None:
        if len(tokens) < context + 2:
            raise ValueError(
                f"the training split has {len(tokens)} tokens, but context {context} requires at least {context + 2}"
            )
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed
        # An epoch has one window less than the text contains, because its windows start at an offset.
        self._per_epoch = max(1, (len(tokens) - 1) // context - 1)
        self._epoch, self._order, self._offset = -1, np.empty(0, np.int64), 0

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            spare = len(self._tokens) - 1 - self._per_epoch * self._context
            self._offset = int(generator.integers(min(spare, self._context) + 1))
            self._order = generator.permutation(self._per_epoch)
            self._epoch = epoch

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of a step, `[batch, context]` int64."""
        rows = []
        for i in range(step * self._batch, (step + 1) * self._batch):
            epoch, index = divmod(i, self._per_epoch)
            self._enter(epoch)
            start = self._offset + int(self._order[index]) * self._context
            rows.append(np.asarray(self._tokens[start : start + self._context + 1], np.int64))
        window = np.stack(rows)
        return window[:, :-1], window[:, 1:]
