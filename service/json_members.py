"""Reject JSON objects in which a name occurs twice, because parsers differ in which value they use.

The decoder keeps the last value. A repeated name is detected by comparing the number of members in the text with that
in the decoded document.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import orjson

from rfa.service.errors import InvalidRequest
from rfa.service.validation import field_path

# In longer texts, the error does not contain the repeated name, because finding it would take too long.
SEARCHED_BYTES: Final = 65_536
# A string, and the colon after it if it is the name of a member. The pattern is possessive, so it does not backtrack.
_STRING = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*+:)?', re.DOTALL)


def check_members(text: bytes | str, document: Any, subject: str, members: int | None = None) -> None:
    """Check that no object of a JSON text has two members with the same name.

    Args:
        text: Valid JSON.
        document: Decoded value of the text.
        subject: Name of the text in error messages.
        members: Number of members of all objects in the text. If None, they are counted.

    Raises:
        InvalidRequest: If an object has two members with the same name (`duplicate`).
    """
    # Colons in strings can only make the count too large. Most documents have members only at the top level, and are
    # accepted here.
    count = (text.count(b":") if isinstance(text, bytes) else text.count(":")) if members is None else members
    if count == (len(document) if type(document) is dict else 0):
        return
    names = _names(document, count)
    if members is None:
        count = len(_named(text))
    if len(names) == count:
        return
    short = len(text) <= SEARCHED_BYTES
    twice = Counter(map(orjson.loads, _named(text))) - Counter(names) if short else Counter[str]()
    param = field_path((next(iter(twice)),)) if twice else None
    where = f"{subject} contains {param} twice" if param else f"{subject} contains a member twice"
    raise InvalidRequest(f"{where} in one object; remove one of them.", param=param, code="duplicate")


def _named(text: bytes | str) -> list[bytes]:
    """Return the names of all members in a text, including their quotes."""
    encoded = text if isinstance(text, bytes) else text.encode()
    return [match[1] for match in _STRING.finditer(encoded) if match[2]]


def _names(document: Any, most: int) -> list[str]:
    """Return the names of all members in a document. The search ends when `most` names are found. Objects are searched
    before lists, because lists rarely contain objects."""
    names: list[str] = []
    objects: list[Any] = [document]
    lists: list[Any] = []
    while (objects or lists) and len(names) < most:
        found = objects.pop() if objects else lists.pop()
        if type(found) is dict:
            names += found
            found = found.values()
        elif type(found) is not list:
            continue
        objects += [child for child in found if type(child) is dict]
        lists += [child for child in found if type(child) is list]
    return names
