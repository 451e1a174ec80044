"""How a request selects its model: by name, by the system that it contains, or with columns whose future values are
known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rfa.service.engine.system_cache import ServedSystem
from rfa.service.schemas.server_replies import Kind

# The name of a model, None for the default model, or the system of a request.
ResolvedChoice = str | None | ServedSystem


class WithCovariates(NamedTuple):
    """A model, and the number of columns whose future values are known."""

    choice: ResolvedChoice
    covariates: int


ModelChoice = ResolvedChoice | WithCovariates


@dataclass(frozen=True)
class StateKind:
    """The model to which a state belongs, and the maximum size of its states."""

    digest: str
    kind: Kind
    max_bytes: int
