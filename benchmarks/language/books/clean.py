"""Cleans Project Gutenberg's plain text: cuts its header, footer and notices, and removes mark-up."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

START = re.compile(
    r"^\W{0,3}\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG.*$|^\*?END\W? ?THE SMALL PRINT.*$", re.M | re.I
)
END = re.compile(r"^\W{0,3}(?:\*\*\* ?)?END OF (?:TH\w+ )?PROJECT GUTENBERG.*$", re.M | re.I)
COPYRIGHTED = re.compile(r"This is a COPYRIGHTED Project Gutenberg|copyrighted (work|by)|all rights reserved", re.I)
# Words of paragraphs that are the transcribers', not the author's, and the beginnings of such paragraphs.
NOTICES = (
    "gutenberg", " etext", " e-text", "transcriber", "proofread", "internet archive", "http://", "https://", "www.",
    "html version", "this ebook", "this e-book", "this electronic",
)  # fmt: skip
CREDITS = (
    "transcribed ",
    "produced by",
    "prepared by",
    "scanned by",
    "digitized by",
    "typed by",
    "e-book produced",
    "ebook produced",
)
CAPTION = re.compile(
    r"\[(?:Illustration|ILLUSTRATION|Frontispiece|Footnote|Sidenote)[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]"
)
TAG = re.compile(r"</?[a-zA-Z][^<>\n]{0,80}>")
ENTITY = re.compile(r"&(?:[a-z]{2,8}|#\d{2,5}|#x[0-9a-f]{2,5});", re.I)
SPACES = re.compile(r"[ \t]+$", re.M)
BLANK_LINES = re.compile(r"\n{4,}")
FIELD = re.compile(r"^(Title|Author|Language|Translator): *(.+(?:\n +\S.*)*)", re.M)


class Book(NamedTuple):
    """The text of a book, and the fields of its header (empty strings if missing)."""

    text: str
    title: str
    author: str
    language: str


def decode(content: bytes) -> str:
    """Return text from UTF-8 or Windows-1252, with \\n at the end of lines."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")


def cut_notices(text: str) -> str:
    """Return the text between Project Gutenberg's header and footer, or all of it if there are none."""
    head = 0
    for match in START.finditer(text[: len(text) // 4 + 30_000]):
        head = match.end()
    if (tail := END.search(text, head)) is not None:
        text = text[: tail.start()]
    return text[head:]


def _is_notice(paragraph: str) -> bool:
    return any(word in paragraph for word in NOTICES) or paragraph.lstrip(" \n[*_").startswith(CREDITS)


def clean(content: bytes) -> Book | None:
    """Return a book without header, footer, notices, footnotes, captions and mark-up.

    None stands for a text that is under copyright, or has a table of tags instead of stray ones.
    """
    raw = decode(content)
    head = raw[:12_000]
    fields = {name: " ".join(value.split()) for name, value in reversed(FIELD.findall(head))}
    if COPYRIGHTED.search(head.split("*** START")[0]):
        return None
    text = cut_notices(raw)
    if len(TAG.findall(text)) > 200:
        return None
    text = CAPTION.sub("", text)
    text = ENTITY.sub(lambda entity: html.unescape(entity[0]), TAG.sub("", text))
    paragraphs = (part for part in re.split(r"\n[ \t]*\n", text) if not _is_notice(part.lower()))
    text = BLANK_LINES.sub("\n\n\n", SPACES.sub("", "\n\n".join(paragraphs)))
    return Book(text.strip("\n") + "\n", fields.get("Title", ""), fields.get("Author", ""), fields.get("Language", ""))
