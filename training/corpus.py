"""Converts text directories to tokens, with a byte-level BPE trained on the training split, and memory-mapped token
files.

A corpus directory has `train`, `valid` and `test`, each as a directory of `.txt` files or as one `.txt` file. Files of
whole numbers are sequences of events (`sequences.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from rfa.data.csv_text import decode_text
from rfa.training.sequences import END_OF_TEXT, are_sequences, event_tokenizer, lines_of

SPLITS = ("train", "valid", "test")
# Number of characters that are encoded at a time, to bound memory.
PIECE_CHARACTERS = 1 << 16


def split_files(folder: Path, split: str) -> list[Path]:
    """Return the sorted text files of one split.

    Raises:
        FileNotFoundError: If the directory has no such split.
    """
    directory, single = folder / split, folder / f"{split}.txt"
    files = sorted(directory.glob("*.txt")) if directory.is_dir() else [single] if single.is_file() else []
    if not files:
        raise FileNotFoundError(f"{folder} has no {split}/*.txt and no {split}.txt")
    return files


def train_tokenizer(files: list[Path], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE, which can encode any text and decode any tokens to bytes.

    For sequences, the numbers in the files determine the size instead of `vocab_size`.
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
    if all(_is_utf8(file) for file in files):
        tokenizer.train([str(file) for file in files], trainer)
    else:
        lines = (line for file in files for line in read_text(file).splitlines(keepends=True))
        tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def read_text(file: Path) -> str:
    """Return the text of a file in any encoding, with its line ends.

    Raises:
        ValueError: If the file is not text. The message names the file.
    """
    content = file.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        try:
            return decode_text(content)[0]
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None


def _is_utf8(file: Path) -> bool:
    try:
        file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _pieces(text: str) -> Iterator[str]:
    """Split a text at line breaks that are followed by text. No token spans such a line break."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE_CHARACTERS)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end


def encode_files(tokenizer: Tokenizer, files: list[Path]) -> np.ndarray:
    """Return the token ids of all files as uint16 (uint32 for large vocabularies), with an end-of-text token after each
    file.

    Sequences begin with end-of-text, and each sequence is followed by one.
    """
    kind = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    end = tokenizer.token_to_id(END_OF_TEXT)
    parts: list[np.ndarray] = []
    if are_sequences(files):
        lines = chain.from_iterable(map(lines_of, files))
        return np.concatenate([[end], *([*tokenizer.encode(line).ids, end] for line in lines)]).astype(kind)
    for file in tqdm(files, desc="tokenise", unit="file"):
        encodings = tokenizer.encode_batch(list(_pieces(read_text(file))), add_special_tokens=False)
        parts.extend(np.array(encoding.ids, kind) for encoding in encodings)
        parts.append(np.array([end], kind))
    return np.concatenate(parts)


def file_hashes(files: list[Path]) -> dict[str, str]:
    """Return the SHA-256 digests by file name."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@dataclass(frozen=True)
class Corpus:
    """Tokenised splits on disk.

    `bytes_per_token` of each split converts nats per token to bits per byte.
    """

    directory: Path
    tokenizer: Tokenizer
    bytes_per_token: dict[str, float]

    def tokens(self, split: str) -> np.ndarray:
        """Return the memory-mapped token ids of one split."""
        return np.load(self.directory / f"{split}.npy", mmap_mode="r", allow_pickle=False)


def prepare_corpus(folder: Path, directory: Path, vocab_size: int) -> Corpus:
    """Train the tokenizer, and tokenise the training and validation splits into `directory`. Existing files that match
    are reused.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {split: split_files(folder, split) for split in ("train", "valid")}
    request = {"vocab_size": vocab_size, "files": {split: file_hashes(paths) for split, paths in files.items()}}
    record = directory / "corpus.json"
    if record.is_file() and (stored := json.loads(record.read_text()))["request"] == request:
        return Corpus(directory, Tokenizer.from_file(str(directory / "tokenizer.json")), stored["bytes_per_token"])
    tokenizer = train_tokenizer(files["train"], vocab_size)
    tokenizer.save(str(directory / "tokenizer.json"))
    bytes_per_token = {}
    for split, paths in files.items():
        tokens = encode_files(tokenizer, paths)
        np.save(directory / f"{split}.npy", tokens, allow_pickle=False)
        bytes_per_token[split] = sum(path.stat().st_size for path in paths) / len(tokens)
    record.write_text(json.dumps({"request": request, "bytes_per_token": bytes_per_token}, indent=2) + "\n")
    return Corpus(directory, tokenizer, bytes_per_token)


class Blocks:
    """Shuffled windows of `context` tokens. Seed and epoch determine the offset and the order of each epoch.

    The windows of a step depend only on the step, so a resumed run reads the same windows.
    """

    def __init__(self, tokens: np.ndarray, context: int, batch: int, seed: int) -> None:
        if len(tokens) < context + 2:
            raise ValueError(f"the training split has {len(tokens)} tokens, but context {context} needs {context + 2}")
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed
        # One window fewer than fit, because of the offset.
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
