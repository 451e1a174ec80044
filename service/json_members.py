"""A name twice in an object of JSON: readers differ in which of the two they take, so that it is refused.

The decoder keeps the last and tells nothing. Whether there was another is a matter of counting: what was decoded has
fewer members than the text.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import orjson

from rfa.service.errors import InvalidRequest
from rfa.service.validation import field_path

# In a longer text the name is not looked for.
SEARCHED_BYTES: Final = 65_536
# A string, and whether it names a member; nothing is tried twice.
_STRING = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*+:)?', re.DOTALL)


def check_members(text: bytes | str, document: Any, subject: str, members: int | None = None) -> None:
    """Hold a text to names that are there once in each object.

    Args:
        text: valid JSON.
        document: what it was decoded to.
        subject: what messages call it.
        members: how many the text has in all its objects, where somebody has counted.

    Raises:
        InvalidRequest: `duplicate`, with the name.
    """
    # A colon in a string counts too much, never too little: a plain document is through at once.
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
    where = f"{subject} names {param} twice" if param else f"{subject} names a member twice"
    raise InvalidRequest(f"{where} in one object; name it once.", param=param, code="duplicate")


def _named(text: bytes | str) -> list[bytes]:
    """The names in a text, quotes included."""
    encoded = text if isinstance(text, bytes) else text.encode()
    return [match[1] for match in _STRING.finditer(encoded) if match[2]]


def _names(document: Any, most: int) -> list[str]:
    """The names in a document, until there are so many; lists, which seldom hold any, last."""
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
