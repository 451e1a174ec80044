"""Requests of /state/merge."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rfa.runtime.choices import MergeMethod
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import ModelName, ReturnState, StateReference
from rfa.service.schemas.filter_requests import Horizons, Levels, System, Time, check_system

MAX_MERGED = 8


class MergeRequest(Request):
    """States of several streams of one filter that observe the same system."""

    model: ModelName | None = Field(default=None, description="null: the server's first filter bundle")
    system: System = None
    states: list[StateReference] = Field(
        min_length=2,
        max_length=MAX_MERGED,
        fail_fast=True,
        description="each a `state` of a reply, `session:NAME` or `session:NAME@STEP`; they do not change",
    )
    method: MergeMethod = Field(
        default="covariance_intersection",
        description="`precision`: for states that are independent given `prior`. `covariance_intersection`: never "
        "overconfident, whatever they have in common",
    )
    prior: StateReference | None = Field(
        default=None, description="with `precision`: the common earlier state of all of them, which is counted once"
    )
    t: Time | None = Field(default=None, description="time of the merged state; null: the latest time of the states")
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    return_state: ReturnState = True

    @model_validator(mode="after")
    def check_prior(self) -> Self:
        """Only the precision method has a prior."""
        check_system(self.system, self.model)
        if self.prior is not None and self.method != "precision":
            raise FieldError("prior", 'prior is of method "precision" only', "needs_precision")
        return self
