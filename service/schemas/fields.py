"""Fields that several requests share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from rfa.runtime.uncertainty.input import LARGEST_SEED
from rfa.service.neutral import OneOf

MAX_ITEMS = 1_000_000
ModelName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
TEXT_MODEL: Final = "Name of the model; null selects the first language model of the server."
TextModel = Annotated[ModelName | None, Field(description=TEXT_MODEL)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
# Number of tokens in a request.
TokenCount = Annotated[int, Field(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
SEED = "Random seed. If it is null, a seed is chosen at random. The reply contains the seed."

LONGEST_REFERENCE = 2_000_000
StateReference = Annotated[str, Field(min_length=1, max_length=LONGEST_REFERENCE)]
InitialState = Annotated[
    StateReference | None,
    Field(
        description=(
            "State to continue from: the `state` of an earlier reply, or `session:NAME` for a session on the server. "
            "A session is updated by the request."
        )
    ),
]
NewSession = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^session:[A-Za-z0-9_-]{1,64}$")]
ReturnState = Annotated[
    bool | NewSession,
    OneOf("true, false, or `session:NAME` with a NAME of 1 to 64 letters, digits, _ and -"),
    Field(
        description=(
            "Whether to return the new state. If this is true, the reply contains the state. If it is "
            "`session:NAME`, the state is stored on the server in a new session with this name."
        )
    ),
]
