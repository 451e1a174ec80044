"""Selects and builds the corpus that the bundle `books` is trained on.

    python -m rfa.benchmarks.language.books.build --clones CLONES --held-out BOOKS --out CORPUS

CLONES holds a git clone of every repository in SOURCES, as OWNER+NAME. BOOKS has the directories `train`, `valid` and
`test`, which are copied. No book shares text with its `valid` and `test`. `--select` writes `manifest.json` anew. The
corpus is built from the manifest, and every text must have the hash recorded there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tqdm import tqdm

from rfa.benchmarks.language.books.clean import Book, clean
from rfa.benchmarks.language.books.overlap import shingles

MANIFEST = Path(__file__).parent / "manifest.json"
# Authors of prose; folders of the first source. Translators have folders, too.
AUTHORS = (
    "Alcott, Louisa May", "Austen, Jane", "Balzac, Honoré de", "Barrie, J. M. (James Matthew)", "Blackwood, Algernon",
    "Brontë, Charlotte", "Bunin, Ivan Alekseevich", "Burnett, Frances Hodgson", "Chekhov, Anton Pavlovich",
    "Chesterton, G. K. (Gilbert Keith)", "Collins, Wilkie", "Conrad, Joseph", "Dickens, Charles",
    "Dostoyevsky, Fyodor", "Doyle, Arthur Conan", "Dumas, Alexandre", "Garnett, Constance", "Hapgood, Isabel Florence",
    "Hardy, Thomas", "Hawthorne, Nathaniel", "Hugo, Victor", "Irving, Washington", "James, Henry", "Kipling, Rudyard",
    "London, Jack", "Maude, Louise", "Maupassant, Guy de", "Melville, Herman", "Montgomery, L. M. (Lucy Maud)",
    "Nesbit, E. (Edith)", "Poe, Edgar Allan", "Scott, Walter", "Shelley, Mary Wollstonecraft",
    "Stevenson, Robert Louis", "Stoker, Bram", "Tolstoy, Leo, graf", "Trollope, Anthony", "Twain, Mark",
    "Verne, Jules", "Wells, H. G. (Herbert George)", "Wharton, Edith", "Wilde, Oscar",
    "Wodehouse, P. G. (Pelham Grenville)", "Zola, Émile",
)  # fmt: skip
NOVELS, GUTENBERG = "computationalstylistics/100_english_novels", "rcdm-uga/Gutenberg_Text"
SOURCES = {
    NOVELS: "143e601875d70e195f2cc5ebd8b034609271194d",
    GUTENBERG: "a0b16d35a9851168ce9ac649851c17b7ab08d48e",
}
LICENCE = "public domain in the USA: published before 1929, or released as such by Project Gutenberg"
LAST_YEAR = 1928
# Bytes. Files smaller than LEAST_BYTES are left out.
MOST_OF_AUTHOR, LEAST_BYTES = 2_000_000, 150_000
HELD_OUT_TITLES = re.compile(r"crime and punishment|sherlock holmes|tale of two cities", re.I)
COMMON = re.compile(r"\b(?:the|and|of|to|a|in|that|he|was|it)\b")
# Limits for prose in English: the fraction of common words, and the median characters of a line.
LEAST_COMMON, LEAST_LINE = 0.17, 50
# Characters in the middle of a book that these limits are applied to.
SAMPLE = 60_000
# Limits for sampled shingles in common with earlier books (a fraction), and with held-out books (a number).
MOST_SEEN, MOST_HELD_OUT = 0.1, 2


class Blob(NamedTuple):
    source: str
    path: str
    id: str
    size: int


def clone_of(clones: Path, source: str) -> Path:
    """Return the git directory of a repository's clone."""
    folder = clones / source.replace("/", "+")
    return next(path for path in (folder / "repo", folder / ".git", folder) if (path / "HEAD").is_file())


def git(clone: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=True).stdout


def candidates(clones: Path) -> list[Blob]:
    """Return the files of all sources that may be books, the largest first, so that volumes precede their parts."""
    found = []
    for source, commit in SOURCES.items():
        listing = git(clone_of(clones, source), "ls-tree", "-r", "-l", "-z", commit).decode()
        for line in filter(None, listing.split("\0")):
            (_, kind, blob, size), path = (parts := line.split("\t"))[0].split(), parts[1]
            if kind == "blob" and size.isdecimal() and path.endswith(".txt") and int(size) >= LEAST_BYTES:
                found.append(Blob(source, path, blob, int(size)))
    return sorted(filter(_is_wanted, found), key=lambda blob: (blob.source != NOVELS, -blob.size, blob.path))


def _is_wanted(blob: Blob) -> bool:
    if blob.source == NOVELS:
        return blob.path.startswith("corpus/") and int(blob.path[-8:-4]) <= LAST_YEAR
    return blob.path.split("/")[0] in AUTHORS and not HELD_OUT_TITLES.search(blob.path)


def is_english_prose(text: str) -> bool:
    """Return whether a text has the words of English and the lines of prose, not of verse or a play."""
    part = text[len(text) // 2 :][:SAMPLE].lower()
    words = len(re.findall(r"[a-z]+", part))
    lines = [len(line) for line in part.splitlines() if line.strip()]
    return len(COMMON.findall(part)) > LEAST_COMMON * words > 0 and median(lines) >= LEAST_LINE


class Selection:
    """The shingles of the books accepted so far and of the held-out books, and the bytes of each author."""

    def __init__(self, held_out: Path) -> None:
        self.seen = _all_shingles(held_out, "train")
        self.held_out = _all_shingles(held_out, "valid") | _all_shingles(held_out, "test")
        self.by_author: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def has_space(self, blob: Blob) -> bool:
        return self.by_author[author_of(blob)] + blob.size <= MOST_OF_AUTHOR

    def refusal(self, blob: Blob, book: Book | None) -> str | None:
        """Return why a book is left out, or None after accepting it."""
        if book is None:
            return "copyright or mark-up"
        if book.language not in ("", "English") or not is_english_prose(book.text):
            return "not English prose"
        if HELD_OUT_TITLES.search(book.title):
            return "held-out title"
        found = shingles(book.text)
        if len(found & self.held_out) > MOST_HELD_OUT:
            return "shares text with held-out books"
        if len(found & self.seen) > MOST_SEEN * len(found):
            return "duplicate"
        self.by_author[author_of(blob)] += blob.size
        self.seen |= found
        return None


def _all_shingles(folder: Path, part: str) -> set[int]:
    return set().union(*(shingles(path.read_text()) for path in (folder / part).glob("*.txt")))


def author_of(blob: Blob) -> str:
    """Return the last name in a path."""
    return re.split(r"[_,]", Path(blob.path).name if blob.source == NOVELS else blob.path)[0]


def entry(blob: Blob, book: Book) -> dict[str, Any]:
    text = book.text.encode()
    digest = hashlib.sha256(text).hexdigest()
    stem = Path(blob.path).stem if blob.source == NOVELS else f"{blob.path.split('/')[0].split(',')[0]}_{book.title}"
    return {
        "split": "valid" if digest[0] == "0" else "train",
        "file": re.sub(r"\W+", "_", stem).strip("_")[:60] + f"_{blob.id[:6]}.txt",
        "title": book.title or Path(blob.path).stem.replace("_", ", "),
        "author": book.author or author_of(blob),
        "source": blob.source,
        "path": blob.path,
        "blob": blob.id,
        "bytes": len(text),
        "sha256": digest,
    }


def select(clones: Path, held_out: Path) -> dict[str, Any]:
    """Choose the books, and return the manifest. One book in sixteen is for validation."""
    selection, books = Selection(held_out), []
    for blob in tqdm(candidates(clones), desc="select", unit="file"):
        if not selection.has_space(blob):
            selection.refused["enough of the author"] += 1
            continue
        book = clean(git(clone_of(clones, blob.source), "cat-file", "blob", blob.id))
        if (reason := selection.refusal(blob, book)) is not None:
            selection.refused[reason] += 1
        elif book is not None:
            books.append(entry(blob, book))
    return document(books, selection)


def document(books: list[dict[str, Any]], selection: Selection) -> dict[str, Any]:
    """Return the manifest of the selected books."""
    return {
        "licence": LICENCE,
        "commits": SOURCES,
        "bytes": sum(book["bytes"] for book in books),
        "left_out": dict(selection.refused),
        "books": sorted(books, key=lambda book: str(book["file"])),
    }


def texts(manifest: dict[str, Any], clones: Path) -> Iterator[tuple[str, str]]:
    """Yield the relative path and the text of every book of the manifest.

    Raises:
        ValueError: If a text has another hash than recorded.
    """
    for book in tqdm(manifest["books"], desc="build", unit="file"):
        found = clean(git(clone_of(clones, book["source"]), "cat-file", "blob", book["blob"]))
        if found is None or hashlib.sha256(found.text.encode()).hexdigest() != book["sha256"]:
            raise ValueError(f"{book['path']}: the text differs from the manifest's; was clean.py changed?")
        yield f"{book['split']}/{book['file']}", found.text


def build(manifest: dict[str, Any], clones: Path, held_out: Path, out: Path) -> None:
    """Write the corpus: the books of the manifest, and those of `held_out`, of which `train` is cleaned, too."""
    for split in ("train", "valid", "test"):
        (out / split).mkdir(parents=True, exist_ok=True)
        for path in (held_out / split).glob("*.txt"):
            content = path.read_bytes()
            cleaned = clean(content) if split == "train" else None
            (out / split / path.name).write_bytes(content if cleaned is None else cleaned.text.encode())
    for name, text in texts(manifest, clones):
        (out / name).write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path, required=True, help="directory with a clone of every repository")
    parser.add_argument("--held-out", type=Path, required=True, help="directory with train, valid and test")
    parser.add_argument("--out", type=Path, required=True, help="directory of the corpus")
    parser.add_argument("--select", action="store_true", help="write the manifest anew")
    options = parser.parse_args()
    if options.select:
        MANIFEST.write_text(json.dumps(select(options.clones, options.held_out), indent=1, ensure_ascii=False) + "\n")
    manifest = json.loads(MANIFEST.read_text())
    build(manifest, options.clones, options.held_out, options.out)
    print(f"{len(manifest['books'])} books, {manifest['bytes'] / 1e6:.1f} MB, beside those of {options.held_out}")


if __name__ == "__main__":
    main()
