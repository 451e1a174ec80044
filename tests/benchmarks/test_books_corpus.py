"""The corpus of `books`: cleaning, duplicates, held-out books, and the manifest."""

import json
import subprocess
from pathlib import Path

import pytest

from rfa.benchmarks.language.books import build
from rfa.benchmarks.language.books.clean import clean
from rfa.benchmarks.language.books.overlap import SAMPLED, shingles

# Every 50 characters have a number, so that only the same sentences share shingles.
SENTENCE = "It was the {0}th day of that winter and {0} men of the {1}th house had a letter in the {1}th hand of {2}.\n"
HEADER = """The Project Gutenberg EBook of The Lamp, by Ann Author

Title: The Lamp
       A Story

Author: Ann Author

Language: English

*** START OF THIS PROJECT GUTENBERG EBOOK THE LAMP ***

Produced by Some Volunteer.

"""
FOOTER = "\n\nEnd of the Project Gutenberg EBook of The Lamp, by Ann Author\n\nwww.gutenberg.org has all of it.\n"


def story(first: int, lines: int = 4000) -> str:
    return "".join(SENTENCE.format(i, 7_000_000 + i, 3_000_000 + i) for i in range(first, first + lines))


def test_only_the_authors_words_remain():
    body = "CHAPTER I\n\nShe said <i>no</i> &amp; left on this pretext.\n\n[Illustration: The lamp]\n\nHe [sic] sat.\n"
    book = clean((HEADER + body + FOOTER).replace("\n", "\r\n").encode())
    assert book is not None
    assert book.text == "CHAPTER I\n\nShe said no & left on this pretext.\n\n\nHe [sic] sat.\n"
    assert (book.title, book.author, book.language) == ("The Lamp A Story", "Ann Author", "English")
    assert clean("“Café”, naïve\n".encode("cp1252")) == ("“Café”, naïve\n", "", "", "")
    assert clean(b"This is a COPYRIGHTED Project Gutenberg eBook\n" + HEADER.encode()) is None
    assert clean(b"<p>word</p>\n" * 101) is None


def test_shared_text_is_found_in_other_lines_and_letters():
    text = story(0)
    found = shingles(text)
    assert len(found) == pytest.approx(len(text) / SAMPLED, rel=0.2)  # 5 standard deviations of a random sample
    assert shingles(text.upper().replace("\n", "\n\n  ")) == found
    assert len(shingles(text[1000:]) & found) > 0.98 * len(found)
    assert not found & shingles("".join(f"{word}{i} " for i in range(9000) for word in ("tea", "ship")))


@pytest.fixture
def clones(tmp_path, monkeypatch):
    folder = tmp_path / "clones/some+books"
    author = folder / "Austen, Jane"
    author.mkdir(parents=True)
    texts = {"One": story(0), "Again": story(20), "Other": story(90_000), "Held": story(50_000) + story(200_000)}
    for name, text in texts.items():
        (author / f"{name}.txt").write_text(HEADER.replace("The Lamp", name) + text + FOOTER)
    (author / "Verse.txt").write_text(HEADER + "the rose and\nthe hill of it\n" * 9000)
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m")):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    commit = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.setattr(build, "SOURCES", {"some/books": commit.stdout.strip()})
    return tmp_path / "clones"


def test_books_are_selected_and_built(clones, tmp_path):
    held_out = tmp_path / "books"
    for split, text in {"train": "a <i>b</i>\n", "valid": "c\n", "test": story(50_000)}.items():
        (held_out / split).mkdir(parents=True)
        (held_out / split / f"{split}.txt").write_text(text)
    manifest = build.select(clones, held_out)
    # Longer files come first, so the numbers of `Other` decide nothing, and `Again` repeats `One`, or the reverse.
    titles = {book["title"] for book in manifest["books"]}
    assert "Other A Story" in titles and len(titles & {"One A Story", "Again A Story"}) == 1 and len(titles) == 2
    assert manifest["left_out"] == {
        "shares text with held-out books": 1, "duplicate": 1, "not English prose": 1,
    }  # fmt: skip
    build.build(manifest, clones, held_out, tmp_path / "out")
    assert (tmp_path / "out/train/train.txt").read_text() == "a b\n"
    written = {path.name: path.read_text() for path in (tmp_path / "out").glob("*/Austen*.txt")}
    assert len(written) == 2 and story(90_000) in written.values()
    manifest["books"][0]["sha256"] = "0"
    with pytest.raises(ValueError, match="the text differs from the manifest's"):
        build.build(manifest, clones, held_out, tmp_path / "out")


def test_the_manifest_names_every_book_and_no_held_out_one():
    manifest = json.loads(build.MANIFEST.read_text())
    books = manifest["books"]
    assert manifest["bytes"] == sum(book["bytes"] for book in books) > 60e6
    assert set(manifest["commits"]) == {book["source"] for book in books} and manifest["licence"]
    assert len({book["file"] for book in books}) == len({book["blob"] for book in books}) == len(books)
    assert {book["split"] for book in books} == {"train", "valid"}
    for book in books:
        assert not build.HELD_OUT_TITLES.search(book["title"]), book["title"]
        assert Path(book["file"]).suffix == ".txt" and book["author"]
