"""Keys: what is refused at start, with which words, and how a ring is rotated."""

from __future__ import annotations

import base64
import traceback
from pathlib import Path

import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.state.keys import StateKeys, ephemeral_key
from rfa.runtime.state.names import Opened
from rfa.service.settings import Settings, configured_keys
from rfa.service.state.keeper import make_keeper
from tests.service.state.state_support import KEY, LIFETIME, OTHER_KEY, SCOPE, THIRD_KEY, Clock, make_tokens

STATE = Opened(b"payload", 3)


def settings(**values: object) -> Settings:
    return Settings.model_validate({"bundles": (), "processes": 1, **values})


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_the_first_key_of_the_list_is_the_first_of_the_ring() -> None:
    assert configured_keys(settings(state_keys=f"{text(KEY)}, {text(OTHER_KEY)}")) == (KEY, OTHER_KEY)


def test_a_file_holds_a_key_a_line_with_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the new one\n{text(KEY)}\n\n  {text(OTHER_KEY)}\r\n")
    assert configured_keys(settings(state_keys_file=file)) == (KEY, OTHER_KEY)


def test_both_alphabets_of_base64_are_read() -> None:
    key = b"\xfb\xef\xbe\xff\xff\xff" + KEY[:26]
    assert "+" in text(key) and "/" in text(key)
    urlsafe = base64.urlsafe_b64encode(key).decode()
    assert configured_keys(settings(state_keys=text(key))) == configured_keys(settings(state_keys=urlsafe)) == (key,)


BAD_KEYS = {
    "empty": ("", "0 bytes"),
    "short": (text(KEY[:31]), "31 bytes"),
    "long": (text(KEY + b"x"), "33 bytes"),
    "hexadecimal": (KEY.hex(), "48 bytes"),
    "number": ("1234567890123456", "12 bytes"),
    "not valid base64": ("correct horse battery staple", "not valid base64"),
    "not ASCII": ("ключ", "not valid base64"),
    "no padding": (text(KEY).rstrip("="), "not valid base64"),
    "zeros": (text(bytes(32)), "instead of random bytes"),
    "constant": (text(b"\xa7" * 32), "instead of random bytes"),
    "sequence": (text(bytes(range(32))), "instead of random bytes"),
    "pattern": (text(KEY[:16] * 2), "instead of random bytes"),
    "password": (text(b"correct horse battery staple 123"), "instead of random bytes"),
    "long password": (text(b"Tr0ub4dor&3 zyxwvq,KJHGFECBA!?#%"), "instead of random bytes"),
    "few values": (text(bytes(OTHER_KEY[byte % 8] for byte in KEY)), "instead of random bytes"),
    "hexadecimal text": (text(KEY.hex()[:32].encode()), "instead of random bytes"),
}


@pytest.mark.parametrize(
    ("name", "from_file"),
    # An empty line of a file is no key, so it is not a bad one either.
    [(name, from_file) for name in BAD_KEYS for from_file in (False, True) if BAD_KEYS[name][0] or not from_file],
)
def test_a_bad_key_stops_the_start_and_is_not_printed(name: str, from_file: bool, tmp_path: Path) -> None:
    bad, reason = BAD_KEYS[name]
    if from_file:
        source = tmp_path / "keys"
        source.write_text(f"{text(KEY)}\n{bad}\n")
        values: dict[str, object] = {"state_keys_file": source}
    else:
        values = {"state_keys": f"{text(KEY)},{bad}"}
    with pytest.raises(ValueError, match=f"key 2 .*{reason}") as caught:
        make_keeper(settings(**values))
    message = str(caught.value)
    assert "openssl rand -base64 32" in message
    assert not bad or bad not in message
    assert text(KEY) not in message
    assert not bad or bad not in "".join(traceback.format_exception(caught.value))


def test_no_key_two_sources_and_a_key_twice_stop_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(FileNotFoundError):
        make_keeper(settings(state_keys_file=file))
    file.write_text("# nothing yet\n")
    refused: list[tuple[dict[str, object], str]] = [
        ({"state_keys_file": file}, "contains no key"),
        ({"state_keys": text(KEY), "state_keys_file": file}, "not both"),
        ({"state_keys": ",".join(map(text, (KEY, OTHER_KEY, KEY)))}, "key 3 is equal to an earlier one"),
    ]
    for given, reason in refused:
        with pytest.raises(ValueError, match=reason):
            make_keeper(settings(**given))


@pytest.mark.parametrize("keys", [(), (32,), ("k" * 32,), (b"short",), (bytearray(KEY),)])
def test_a_ring_takes_nothing_but_keys(keys: tuple) -> None:
    with pytest.raises(ValueError, match=r"at least one key is required|state key 1 does not have 32 bytes"):
        StateKeys(keys)


def test_an_ephemeral_key_is_a_good_key_and_never_the_same() -> None:
    keys = [ephemeral_key() for _ in range(20)]
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert len(configured_keys(settings(state_keys=key))[0]) == 32


def test_settings_do_not_show_keys() -> None:
    shown = settings(state_keys=text(KEY))
    assert text(KEY) not in repr(shown) + str(shown) + shown.model_dump_json()


def opens(tokens: object, token: str) -> bool:
    try:
        return tokens.open(token, SCOPE, 100) == STATE  # type: ignore[attr-defined]
    except InvalidInput:
        return False


def test_the_last_phase_refuses_the_retired_key_only_after_nobody_needs_it() -> None:
    clock = Clock()
    last_old = make_tokens(KEY, OTHER_KEY, clock=clock).seal(STATE, SCOPE)
    rotated, final = make_tokens(OTHER_KEY, KEY, clock=clock), make_tokens(OTHER_KEY, clock=clock)
    assert opens(rotated, last_old) and not opens(final, last_old)
    assert opens(final, rotated.seal(STATE, SCOPE))
    clock.now += LIFETIME
    # By now the token is dead under the ring that still has its key: retiring the key took nothing from anybody.
    assert not opens(rotated, last_old)


def test_a_stream_goes_on_through_a_rotation() -> None:
    """Every step is sealed by one replica and continued by another, while the ring changes under it."""
    rings = [(KEY,), (KEY, OTHER_KEY), (OTHER_KEY, KEY), (OTHER_KEY,), (OTHER_KEY, THIRD_KEY), (THIRD_KEY, OTHER_KEY)]
    token = make_tokens(*rings[0]).seal(Opened(b"0", 0), SCOPE)
    for step, ring in enumerate(rings[1:], 1):
        tokens = make_tokens(*ring)
        state = tokens.open(token, SCOPE, 100)
        assert state == Opened(str(step - 1).encode(), step - 1)
        token = tokens.seal(Opened(str(step).encode(), step), SCOPE)
