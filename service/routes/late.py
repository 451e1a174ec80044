"""Convert the options of a request for late rows to the options of the runtime."""

from __future__ import annotations

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.late import packed_bytes, split_state
from rfa.runtime.state.tokens import longest_token
from rfa.runtime.uncertainty.interface import LateOptions
from rfa.service.errors import InvalidRequest
from rfa.service.routes.state import StateExchange
from rfa.service.schemas.fields import LONGEST_REFERENCE
from rfa.service.schemas.late import LateRequest


def late_options(late: LateRequest | None, model: FilterRuntime, exchange: StateExchange) -> LateOptions | None:
    """Return the window for late rows of a request. If the request continues a state, the window contains the rows in
    the state. Return None if the request has no window.

    Raises:
        InvalidRequest: If a state token with the window could be longer than the server accepts (`state_too_large`).
    """
    if late is None:
        return None
    largest = longest_token(model.state_bytes + packed_bytes(model))
    if exchange.is_requested and not exchange.is_durable and largest > LONGEST_REFERENCE:
        message = (
            f"late: with this window and {model.observation_size} columns, a state token may have {largest} "
            f"characters, but the limit is {LONGEST_REFERENCE}; store the state in a session, or send fewer columns"
        )
        raise InvalidRequest(message, param="late", code="state_too_large")
    opened = exchange.opened
    return LateOptions(late.length, b"" if opened is None else split_state(opened.payload, model)[1])
