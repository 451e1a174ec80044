"""Convert the state of a stream to a state token and back. A state token is text that a server also returns and
accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rfa.library.models import Model
from rfa.runtime.filters.late import packed_bytes
from rfa.runtime.state.keys import StateKeys, decode_key
from rfa.runtime.state.names import Opened, StateScope, tenant_of_key
from rfa.runtime.state.sealer import Sealer
from rfa.runtime.state.tokens import Tokens

TOKEN_SECONDS: Final = 86_400


@dataclass(frozen=True)
class TokenAccess:
    """Seals and opens state tokens.

    Args:
        keys: RFA_STATE_KEYS of the server. Tokens are sealed with the first key.
        api_key: API key of the requests, if the server requires one.
        audience: RFA_STATE_AUDIENCE of the server.
        seconds: Lifetime of a token, in seconds.
    """

    keys: str
    api_key: str | None
    audience: str
    seconds: int

    def seal(self, model: Model, payload: bytes, count: int) -> str:
        """Return a token for a packed stream of `count` observations.

        Raises:
            ValueError: If a key is invalid.
        """
        return self._tokens().seal(Opened(payload, count), self._scope(model))

    def open(self, model: Model, token: str) -> bytes:
        """Return the packed stream that a state token contains.

        Raises:
            ValueError: If a key is invalid, or if the token has expired or does not belong to these keys or to this
                model.
        """
        most = model.runtime.state_bytes + packed_bytes(model.runtime)
        return self._tokens().open(token, self._scope(model), most).payload

    def _tokens(self) -> Tokens:
        keys = [decode_key(text.strip(), f"key {number}") for number, text in enumerate(self.keys.split(","), 1)]
        return Tokens(Sealer(StateKeys(keys), self.audience), self.seconds)

    def _scope(self, model: Model) -> StateScope:
        return StateScope(model.digest, "filter", "" if self.api_key is None else tenant_of_key(self.api_key))
