"""Replies, held to their declarations."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter

Reply = TypeVar("Reply")


@cache
def _adapter(kind: type[Reply]) -> TypeAdapter[Reply]:
    return TypeAdapter(kind)


def read(kind: type[Reply], data: bytes | str) -> Reply:
    """The JSON of a reply; refuses whatever the declaration does not say."""
    return _adapter(kind).validate_json(data)  # type: ignore[arg-type]
