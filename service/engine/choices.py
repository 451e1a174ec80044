"""Ways in which a request selects its model: by name, or by the system that it contains. In both cases, the series may
have columns whose future values are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rfa.service.engine.system_cache import ServedSystem
from rfa.service.schemas.server_replies import Kind

# The name of a model, None for the default model, or the system that a request contains.
ResolvedChoice = str | None | ServedSystem


class WithCovariates(NamedTuple):
    """A model for series with columns whose future values are known, and the number of these columns."""

    choice: ResolvedChoice
    covariates: int


ModelChoice = ResolvedChoice | WithCovariates


@dataclass(frozen=True)
class StateKind:
    """Identity of the model to which a state belongs, and the size of its states.

    Attributes:
        digest: Digest of the model.
        kind: Kind of the model.
        max_bytes: Maximum size of a packed state of the model.
    """

    digest: str
    kind: Kind
    max_bytes: int
