"""Requests to /state/merge."""

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
    """States of several streams to merge. The streams must observe the same system with the same filter."""

    model: ModelName | None = Field(
        default=None, description="Name of the model; null selects the first filter bundle of the server."
    )
    system: System = None
    states: list[StateReference] = Field(
        min_length=2,
        max_length=MAX_MERGED,
        fail_fast=True,
        description=(
            "States to merge. Each is the `state` of a reply, `session:NAME` or `session:NAME@STEP`. Sessions are not "
            "changed."
        ),
    )
    method: MergeMethod = Field(
        default="covariance_intersection",
        description=(
            "Method with which the states are merged. `precision` adds the precisions, which requires that the states "
            "are independent given `prior`. `covariance_intersection` is never overconfident, even if the states share "
            "information."
        ),
    )
    prior: StateReference | None = Field(
        default=None,
        description=(
            "Earlier state from which all states continue. The method `precision` counts its information only once."
        ),
    )
    t: Time | None = Field(
        default=None, description="Time of the merged state; null selects the latest time of the states."
    )
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    return_state: ReturnState = True

    @model_validator(mode="after")
    def check_prior(self) -> Self:
        """Check that `prior` is only set with the method "precision", and that not both `system` and `model` are
        set."""
        check_system(self.system, self.model)
        if self.prior is not None and self.method != "precision":
            raise FieldError("prior", 'prior requires the method "precision"', "needs_precision")
        return self
