"""Keys of the server that these tests ask."""

from rfa.runtime.state.keys import ephemeral_key

STATE_KEY = ephemeral_key()
API_KEY = "a-key-of-these-tests-0123456789"
