"""What a request runs on: a model by name, the system that it contains, or a model with known covariates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rfa.service.engine.system_cache import ServedSystem
from rfa.service.schemas.server_replies import Kind

# The name of a model, None for the default model, or the system of a request.
ResolvedChoice = str | None | ServedSystem


class WithCovariates(NamedTuple):
    """A model together with its number of known covariates."""

    choice: ResolvedChoice
    covariates: int


ModelChoice = ResolvedChoice | WithCovariates


@dataclass(frozen=True)
class StateKind:
    """The model that a state belongs to, and the maximum size of its states."""

    digest: str
    kind: Kind
    max_bytes: int
