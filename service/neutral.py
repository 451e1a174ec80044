"""Fields of other servers' requests, read the way their clients send them.

A field that this server cannot honour is accepted at the values that change nothing, and refused by name at others: a
client that always sends its defaults works, and nobody gets less than what was asked for without being told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Only:
    """Annotation of a field that takes these values and no others: `Annotated[Any, Only(None, 1)]`.

    Two of them are never equal: Python caches `Annotated[...]`, and 0.0 == False would make one field of two.
    """

    def __init__(self, *values: Any) -> None:
        self.values = values

    def check(self, value: Any) -> Any:
        """The value itself.

        Raises:
            PydanticCustomError: `not_supported`, for another value.
        """
        # In JSON 1 and 1.0 are one number, and neither is `true`.
        if any(isinstance(value, bool) == isinstance(own, bool) and value == own for own in self.values):
            return value
        named = " or ".join(orjson.dumps(own).decode() for own in self.values)
        raise PydanticCustomError("not_supported", "Not supported here; must be {named}", {"named": named})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.values)}


@dataclass(frozen=True, eq=False)
class NullIs:
    """Annotation of a field where null stands for the default, as a client that writes all fields sends it."""

    default: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def replace_null(value: Any) -> Any:
            return self.default if value is None else value

        return core_schema.no_info_before_validator_function(replace_null, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "null"}]}


@dataclass(frozen=True)
class OneOf:
    """Annotation of a union that answers a misfit once, in words, instead of once per member."""

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def try_all(value: Any, members: Callable[[Any], Any]) -> Any:
            try:
                return members(value)
            except ValueError:
                raise PydanticCustomError("no_member", "Must be {expected}", {"expected": self.expected}) from None

        return core_schema.no_info_wrap_validator_function(try_all, handler(source))
