"""What all declarations share: strict types, every field bounded, unknown fields refused."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_UNKNOWN = 16


class FieldError(ValueError):
    """A rule between fields is broken; carries the field that the client should change."""

    def __init__(self, param: str, message: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


class Request(BaseModel):
    """Lists stop at their first fault (`fail_fast`), and few of many unknown fields are looked at: a list of a hundred
    thousand complaints, of which one is told, took seconds and gigabytes."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def leave_out_most_unknown_fields(cls, document: Any) -> Any:
        """The document, with the first `MOST_UNKNOWN` of its unknown fields; each of them refuses it."""
        if type(document) is not dict or len(document) <= MOST_UNKNOWN:
            return document
        unknown = [name for name in document if name not in cls.model_fields]
        left_out = set(unknown[MOST_UNKNOWN:])
        return {name: value for name, value in document.items() if name not in left_out} if left_out else document


def says(description: str, **bounds: Any) -> Any:
    """Annotation of a reply's field: what OpenAPI says of it."""
    return Field(description=description, **bounds)


def _describe(schema: dict[str, Any], kind: type[Reply]) -> None:
    schema["description"] = inspect.getdoc(kind)
    if kind.always is not None:
        schema["required"] = list(kind.always)


class Reply:
    """Base of replies: dataclasses that orjson encodes as they are; OpenAPI and the tests read them through pydantic.

    One that has slots is nobody's base: orjson would leave them out.

    Attributes:
        always: the fields that are in every one where a request chooses among them; None where none may.
    """

    __slots__ = ()
    always: ClassVar[tuple[str, ...] | None] = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, json_schema_extra=_describe
    )
