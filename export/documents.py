"""JSON documents of a bundle: objects with exactly the declared fields, of exactly the declared types."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rfa.export.manifest import BundleError, parse_json


class Strict(BaseModel):
    """Exactly these fields, of exactly these types; numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Document = TypeVar("Document", bound=BaseModel)
Probability = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def json_object(data: bytes, file: str) -> dict[str, Any]:
    """A strict JSON object.

    Raises:
        BundleError: anything else.
    """
    document = parse_json(data, file)
    if not isinstance(document, dict):
        raise BundleError(f"{file}: must be an object")
    return document


def read_document(kind: type[Document], document: object, where: str) -> Document:
    """A document of this kind.

    Args:
        where: the file, or the part of one, for the message.

    Raises:
        BundleError: names the first field that is wrong and what was expected, and no content.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])[:120]
        raise BundleError(f"{where}: {place + ': ' if place else ''}{first['msg'][:200]}") from None


def ascending(values: list[float], *, is_strict: bool) -> bool:
    """Whether each is larger than the one before, or at least as large."""
    return all(one < two if is_strict else one <= two for one, two in pairwise(values))
