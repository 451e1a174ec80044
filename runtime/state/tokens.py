"""State tokens. A token is a sealed state as text, which a client sends back to any replica with the same keys.

    token = "v1." + base64url(sealed), unpadded
    sealed plaintext = issued | expires | step | length (little-endian u64, u64, u64, u32; seconds since 1970) | payload

Only canonical base64url is accepted, so each token has only one valid encoding. The client receives the same error for
every invalid token.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable

from rfa.runtime.errors import invalid_state
from rfa.runtime.state import base64url
from rfa.runtime.state.names import Opened, StateScope
from rfa.runtime.state.sealer import OVERHEAD_BYTES, SealBroken, Sealer

PREFIX = "v1."
# Seconds by which the clock of the issuing replica may be ahead. Expiry is checked with the reader's clock.
CLOCK_SKEW_SECONDS = 60
_HEADER = struct.Struct("<QQQI")
_PURPOSE = "token"

logger = logging.getLogger("rfa.state")


def longest_token(max_bytes: int) -> int:
    """Return the length of a token whose payload has `max_bytes` bytes."""
    sealed = OVERHEAD_BYTES + _HEADER.size + max_bytes
    return len(PREFIX) + (4 * sealed + 2) // 3


class Tokens:
    """Issues and opens state tokens.

    Args:
        sealer: Object that seals with the keys and the audience.
        seconds: Lifetime of a token in seconds.
        clock: Function that returns seconds since 1970. The clocks of replicas must agree within `CLOCK_SKEW_SECONDS`.
    """

    def __init__(self, sealer: Sealer, seconds: int, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._seconds = seconds
        self._clock = clock

    def seal(self, state: Opened, scope: StateScope) -> str:
        """Encrypt a state. Return a token, which is valid for the `seconds` of this object."""
        issued = int(self._clock())
        header = _HEADER.pack(issued, issued + self._seconds, state.step, len(state.payload))
        return PREFIX + base64url.encode(self._sealer.seal(header + state.payload, scope, _PURPOSE))

    def open(self, token: str, scope: StateScope, max_bytes: int) -> Opened:
        """Return the state that a token contains. The token must have been issued for an equal scope and must not have
        expired.

        Raises:
            InvalidInput: If the token is invalid (code `state_invalid`, with a constant message).
        """
        try:
            return self._open(token, scope, max_bytes)
        except SealBroken as reason:
            logger.debug("state token rejected: %s", reason)
        raise invalid_state()

    def _open(self, token: str, scope: StateScope, max_bytes: int) -> Opened:
        # Check the length first, so that an oversized text is not decoded.
        if len(token) > longest_token(max_bytes):
            raise SealBroken("it is longer than any state of this model")
        if not token.startswith(PREFIX):
            raise SealBroken("it does not begin with a known version")
        try:
            sealed = base64url.decode(token[len(PREFIX) :])
        except ValueError:
            raise SealBroken("it is not canonical base64url") from None
        plaintext = self._sealer.open(sealed, scope, _PURPOSE)
        if len(plaintext) < _HEADER.size:
            raise SealBroken("its content is shorter than the header")
        issued, expires, step, length = _HEADER.unpack_from(plaintext)
        self._check_times(issued, expires)
        payload = plaintext[_HEADER.size :]
        if len(payload) != length:
            raise SealBroken("its length differs from the length in its header")
        return Opened(payload, step)

    def _check_times(self, issued: int, expires: int) -> None:
        now = self._clock()
        if issued > now + CLOCK_SKEW_SECONDS:
            raise SealBroken("it was issued in the future")
        # Check the age too, so that a shorter `state_seconds` applies to existing tokens.
        if now >= expires or now - issued >= self._seconds:
            raise SealBroken("it has expired")
