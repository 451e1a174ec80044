"""Requests of /state/merge."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rfa.runtime.choices import MergeMethod
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import ModelName, ReturnState, StateReference
from rfa.service.schemas.filter_fields import Horizons, Levels, System, Time
from rfa.service.schemas.filter_requests import check_system

MAX_MERGED = 8


class MergeRequest(Request):
    """States to merge, from several streams that observe the same system with the same filter."""

    model: ModelName | None = Field(
        default=None, description="name of the model; null selects the server's first filter bundle"
    )
    system: System = None
    states: list[StateReference] = Field(
        min_length=2,
        max_length=MAX_MERGED,
        fail_fast=True,
        description=(
            "states to merge: the `state` of a reply, `session:NAME` or `session:NAME@STEP`. The stored states are "
            "not changed"
        ),
    )
    method: MergeMethod = Field(
        default="covariance_intersection",
        description=(
            "method to merge the states. Use `precision` for states that are independent given `prior`. "
            "`covariance_intersection` is never overconfident, even if the states share information"
        ),
    )
    prior: StateReference | None = Field(
        default=None,
        description=(
            "earlier state that all states continue from. The method `precision` then counts its information only once"
        ),
    )
    t: Time | None = Field(
        default=None, description="time of the merged state; null uses the latest time of the states"
    )
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    return_state: ReturnState = True

    @model_validator(mode="after")
    def check_prior(self) -> Self:
        """Check that a prior is given only with the method "precision"."""
        check_system(self.system, self.model)
        if self.prior is not None and self.method != "precision":
            raise FieldError("prior", 'prior requires the method "precision"', "needs_precision")
        return self
