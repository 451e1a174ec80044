"""Strict readers of the JSON documents of a bundle. They accept exactly the declared fields and types."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

STRICT: Final = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class BundleError(ValueError):
    """Raised if a bundle is invalid. The message names the file and the reason."""


class Strict(BaseModel):
    """Base class of documents. They accept exactly their fields and types, and only finite numbers."""

    model_config = STRICT


Part = TypeVar("Part")
Document = TypeVar("Document", bound=BaseModel)
Probability = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def parse_json(data: bytes, file: str) -> Any:
    """Parse strict JSON, and return its value.

    Args:
        data: JSON text in UTF-8.
        file: Name of the file, for error messages.

    Raises:
        BundleError: If the text is not valid JSON, or contains NaN, Infinity, a number outside the range of float64, or
            a duplicate key.
    """

    def reject(constant: str) -> float:
        raise ValueError(f"the document contains {constant}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("the document contains a duplicate key")
        return found

    def finite(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("the document contains a number outside the range of float64")
        return value

    try:
        text = data.decode("utf-8")
        return json.loads(text, parse_constant=reject, parse_float=finite, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: the file is not strict JSON: {error}") from None


def canonical_json(document: Any) -> bytes:
    """Return the canonical encoding of a JSON document.

    Raises:
        ValueError: If a number is not finite.
    """
    text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False)
    return (text + "\n").encode("ascii")


def compact_json(document: Any) -> bytes:
    """Return the encoding of a JSON document without white space. It is used for long lists of numbers."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def sha256(data: bytes) -> str:
    """Return the SHA-256 digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def json_object(data: bytes, file: str) -> dict[str, Any]:
    """Parse strict JSON whose value is an object, and return the object.

    Raises:
        BundleError: If the text is not a JSON object.
    """
    document = parse_json(data, file)
    if not isinstance(document, dict):
        raise BundleError(f"{file}: the file must contain a JSON object")
    return document


def read_document(kind: type[Document], document: object, where: str) -> Document:
    """Validate a document against the fields and types of a class, and return an instance of the class.

    Args:
        kind: Class of the document.
        document: Parsed JSON.
        where: Name of the file, or of a part of the file, for error messages.

    Raises:
        BundleError: If a field is invalid. The message names the first invalid field and what was expected, but not its
            content.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _bundle_error(error, where) from None


def read_json(kind: TypeAdapter[Part], data: bytes, where: str) -> Part:
    """Validate JSON against the fields and types of a dataclass, and return an instance of the dataclass.

    Raises:
        BundleError: If the JSON or a field is invalid. See `read_document`.
    """
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        raise _bundle_error(error, where) from None


def _bundle_error(error: ValidationError, where: str) -> BundleError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part)[:40] for part in first["loc"])[:120]
    # For dataclasses, pydantic reports unknown fields as unexpected arguments.
    is_unknown = first["type"] == "unexpected_keyword_argument"
    expected = "Extra inputs are not permitted" if is_unknown else first["msg"][:200]
    return BundleError(f"{where}: {field + ': ' if field else ''}{expected}")


def ascending(values: list[float], *, is_strict: bool) -> bool:
    """Return whether the values are in ascending order. If `is_strict` is false, equal neighbours are permitted."""
    return all(one < two if is_strict else one <= two for one, two in pairwise(values))
