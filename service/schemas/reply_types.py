"""Types of reply fields that several replies share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

import numpy as np
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from rfa.runtime.blocks import Blocks
from rfa.service.schemas.base import says


@dataclass(frozen=True)
class Json:
    """Annotation that sets the JSON type of a value. If `kind` is None, the JSON type is a list of the item type of the
    annotated sequence."""

    kind: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kind = self.kind
        if kind is None:
            (item,) = get_args(get_args(source)[0])
            kind = list[item]  # type: ignore[valid-type]
        return handler.generate_schema(kind)


Item = TypeVar("Item")
Many = Annotated[Sequence[Item] | Blocks, Json()]
Rows = Annotated[np.ndarray, Json(list[list[float]])]
Probability = Annotated[float, Field(ge=0, le=1)]
State = Annotated[
    str | None,
    Field(
        description=(
            "State after the last step: a state token, or `session:NAME@STEP` for a session; null unless requested."
        )
    ),
]
QueueTime = Annotated[float, says("Time in the queue in milliseconds.")]
TokenTexts = Annotated[Many[str], says("Text of the token, or `bytes:\\x..` if its bytes are not complete characters.")]
NextText = Annotated[str, says("Next part of the text.")]
ServerName = Annotated[str, says("Name of the server software.")]
RequestName = Annotated[str, says("Name of the model in requests.")]
SupportedPasses = Annotated[
    tuple[int, int], says("Smallest and largest supported value of `passes`; the default is the largest.")
]
