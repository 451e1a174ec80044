"""Tokens: what is in them, what opens them, that every refusal is the same. Numbers are those of the attack list."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rfa.runtime.errors import InvalidInput
from rfa.runtime.state import base64url
from rfa.runtime.state.names import Opened, StateScope
from rfa.runtime.state.tokens import CLOCK_SKEW_SECONDS, longest_token
from rfa.service.errors import STATUS, as_service_error
from tests.service.state.state_support import (
    KEY,
    LIFETIME,
    NOW,
    OTHER_KEY,
    SCOPE,
    Clock,
    key_id,
    make_tokens,
    plaintext,
    read_token,
    write_token,
)

PAYLOAD = bytes(range(256)) + b"end"
STATE = Opened(PAYLOAD, 12)
LIMIT = 1_000

ONE_ANSWER = {
    "error": {
        "message": "state: not a state that this server issued for this model and API key, or it has expired.",
        "type": "invalid_request",
        "param": "state",
        "code": "state_invalid",
    }
}


def assert_refused(token: str, scope: StateScope = SCOPE, limit: int = LIMIT, **where: object) -> None:
    """Refused with the one answer, and nothing of the reason travels along."""
    opener = make_tokens(*where.pop("keys", ()), **where)  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidInput) as caught:
        opener.open(token, scope, limit)
    answer = as_service_error(caught.value)
    assert asdict(answer.payload()) == ONE_ANSWER
    assert STATUS[type(answer)] == 422 and answer.headers() == {}
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@given(payload=st.binary(max_size=LIMIT), step=st.integers(0, 2**64 - 1))
def test_a_token_gives_back_the_state(payload: bytes, step: int) -> None:
    ours = make_tokens()
    assert ours.open(ours.seal(Opened(payload, step), SCOPE), SCOPE, LIMIT) == Opened(payload, step)


def test_the_format_is_the_documented_one() -> None:
    """A second reader and writer, from the documentation alone, agree with the service."""
    assert read_token(make_tokens().seal(STATE, SCOPE)) == plaintext(PAYLOAD, 12)
    assert make_tokens().open(write_token(plaintext(PAYLOAD, 12)), SCOPE, LIMIT) == STATE


@pytest.mark.parametrize("size", range(12))
def test_1_every_flipped_bit_of_a_token_is_refused(size: int) -> None:
    """Every bit of every character: the whole of texts that end on each residue of base64."""
    token = make_tokens().seal(Opened(PAYLOAD[:size], 1), SCOPE)
    for place in range(len(token)):
        for bit in range(7):
            assert_refused(token[:place] + chr(ord(token[place]) ^ (1 << bit)) + token[place + 1 :])


def test_2_every_truncation_and_some_extensions_are_refused() -> None:
    token = make_tokens().seal(STATE, SCOPE)
    for end in range(len(token)):
        assert_refused(token[:end])
        assert_refused(token[len(token) - end :])
    for addition in ("A", "AA", "AAAA", token, token[3:], "=", "==", "====", ".", "\n", "\0"):
        assert_refused(token + addition)


@pytest.mark.parametrize("size", range(12))
def test_3_a_token_has_one_spelling(size: int) -> None:
    token = make_tokens().seal(Opened(b"\xff" * size, 1), SCOPE)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spellings = [token[:-1] + character for character in alphabet if character != token[-1]]
    spellings += [token + "=" * count for count in (1, 2, 3, 4)]
    spellings += [token.replace("-", "+"), token.replace("_", "/"), token.lower(), token.upper()]
    for stray in ("\n", "\r\n", " ", "\t", "\0", "=", "%3D", "\u00a0", "\u200b", "\u00ad", "\ufeff", "\ud800"):
        spellings += [stray + token, token + stray, token[:9] + stray + token[9:]]
    # Digits and letters of other scripts that some readers fold to ASCII.
    spellings += [token.replace("1", "\uff11"), token.replace("1", "\u0661"), token.replace("A", "\uff21")]
    spellings += [token.translate({ord(digit): ord("0") + 0xFEE0 + int(digit) for digit in "0123456789"})]
    for spelling in spellings:
        if spelling != token:
            assert_refused(spelling)


def test_4_a_key_id_is_part_of_the_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of another key of the ring leads to that key, which never sealed this."""
    token = make_tokens(KEY, OTHER_KEY).seal(STATE, SCOPE)
    data = base64url.decode(token[3:])
    assert data[:8] == key_id(KEY)
    assert_refused("v1." + base64url.encode(key_id(OTHER_KEY) + data[8:]), keys=(KEY, OTHER_KEY))


@pytest.mark.parametrize(
    "version", ["", "v", "v1", "v2.", "v0.", "V1.", "v1.v1.", " v1.", "v1. ", "v01.", "v1,", "w1."]
)
def test_6_another_version_is_refused(version: str) -> None:
    assert_refused(version + make_tokens().seal(STATE, SCOPE)[3:])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"tenant": "tenant-b"}, id="7 another tenant"),
        pytest.param({"tenant": ""}, id="7 no tenant"),
        pytest.param({"tenant": "tenant-a "}, id="7 nearly the tenant"),
        pytest.param({"tenant": "Tenant-a"}, id="7 the tenant in capitals"),
        pytest.param({"model": "ab" * 31 + "ac"}, id="9 another bundle of the same shapes"),
        pytest.param({"kind": "lm"}, id="10 another kind of numbers"),
        pytest.param({"tenant": "tenant-aab", "model": "ab" * 31}, id="fields that join to the same text"),
        pytest.param({"tenant": SCOPE.model, "model": SCOPE.tenant}, id="fields that changed places"),
    ],
)
def test_a_token_opens_in_its_own_scope_only(other: dict[str, str]) -> None:
    elsewhere = replace(SCOPE, **other)
    assert_refused(make_tokens().seal(STATE, SCOPE), elsewhere)
    assert_refused(make_tokens().seal(STATE, elsewhere))


def test_8_another_deployment_with_the_same_keys_refuses() -> None:
    assert_refused(make_tokens(audience="staging").seal(STATE, SCOPE), audience="production")
    joined = replace(SCOPE, tenant="duction" + SCOPE.tenant)
    assert_refused(make_tokens(audience="pro").seal(STATE, joined), audience="production")


def test_a_sealed_session_is_no_token() -> None:
    """What Redis holds, copied into a request."""
    assert_refused(write_token(plaintext(PAYLOAD), purpose="session:mine"))


def test_11_a_token_is_good_until_it_expires() -> None:
    clock = Clock()
    ours = make_tokens(clock=clock)
    token = ours.seal(STATE, SCOPE)
    clock.now = NOW + LIFETIME - 1
    assert ours.open(token, SCOPE, LIMIT) == STATE
    for late in (LIFETIME, LIFETIME + 1, 10 * 365 * 86_400):
        clock.now = NOW + late
        assert_refused(token, clock=clock)


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    "times",
    [
        pytest.param({"expires": NOW}, id="expired now"),
        pytest.param({"expires": 0}, id="expired in 1970"),
        pytest.param({"issued": 0, "expires": HUGE}, id="good for ever"),
        pytest.param({"issued": NOW - LIFETIME, "expires": HUGE}, id="older than a token may be"),
        pytest.param({"issued": NOW + CLOCK_SKEW_SECONDS + 1, "expires": NOW + LIFETIME}, id="from the future"),
        pytest.param({"issued": HUGE, "expires": HUGE}, id="from the end of time"),
        pytest.param({"issued": NOW + 10, "expires": NOW - 10}, id="expired before it was made"),
        pytest.param({"issued": 2**63, "expires": 2**63}, id="negative as a signed number"),
    ],
)
def test_11_impossible_times_under_a_valid_seal_are_refused(times: dict[str, int]) -> None:
    assert_refused(write_token(plaintext(PAYLOAD, **times)))


def test_11_a_shorter_lifetime_holds_for_tokens_already_given_out() -> None:
    token = make_tokens(seconds=LIFETIME).seal(STATE, SCOPE)
    clock = Clock(NOW + 60)
    assert make_tokens(seconds=61, clock=clock).open(token, SCOPE, LIMIT) == STATE
    assert_refused(token, seconds=60, clock=clock)


@pytest.mark.parametrize("behind", [0, 1, CLOCK_SKEW_SECONDS])
def test_23_a_replica_whose_clock_is_a_little_behind_accepts(behind: int) -> None:
    token = make_tokens().seal(STATE, SCOPE)
    assert make_tokens(clock=Clock(NOW - behind)).open(token, SCOPE, LIMIT) == STATE


@pytest.mark.parametrize("jump", [3_600, -3_600, 10 * 365 * 86_400, -10 * 365 * 86_400])
def test_23_a_clock_that_jumps_refuses_and_recovers(jump: int) -> None:
    clock = Clock()
    ours = make_tokens(clock=clock)
    token = ours.seal(STATE, SCOPE)
    clock.now += jump
    assert_refused(token, clock=clock)
    # What is sealed during the jump is good by the same clock.
    assert ours.open(ours.seal(STATE, SCOPE), SCOPE, LIMIT) == STATE
    clock.now -= jump
    assert ours.open(token, SCOPE, LIMIT) == STATE


def test_12_13_14_an_old_token_is_a_fork() -> None:
    """Allowed and documented: a token is a value, two workers may go on from one and neither disturbs the other."""
    first, second = make_tokens(), make_tokens()
    old = first.seal(Opened(b"at 5", 5), SCOPE)
    newer = first.seal(Opened(b"at 6", 6), SCOPE)
    assert [worker.open(old, SCOPE, LIMIT).step for worker in (first, second, first)] == [5, 5, 5]
    left, right = first.seal(Opened(b"left", 6), SCOPE), second.seal(Opened(b"right", 6), SCOPE)
    assert {second.open(fork, SCOPE, LIMIT).payload for fork in (newer, left, right)} == {b"at 6", b"left", b"right"}


def test_15_every_splice_of_two_tokens_is_refused() -> None:
    first, second = (make_tokens().seal(Opened(payload, 1), SCOPE) for payload in (PAYLOAD, PAYLOAD[::-1]))
    for cut in range(len("v1.") + 1, len(first)):
        spliced = first[:cut] + second[cut:]
        if spliced not in (first, second):
            assert_refused(spliced)


@pytest.mark.parametrize("length", [0, len(PAYLOAD) - 1, len(PAYLOAD) + 1, 2**32 - 1])
def test_16_a_declared_length_that_differs_from_the_data_is_refused(length: int) -> None:
    assert_refused(write_token(plaintext(PAYLOAD, length=length)))


@pytest.mark.parametrize("size", [0, 1, 27])
def test_16_a_sealed_header_that_is_cut_is_refused(size: int) -> None:
    assert_refused(write_token(plaintext(b"")[:size]))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 400])
def test_18_the_size_limit_is_exact(size: int) -> None:
    ours = make_tokens()
    token = ours.seal(Opened(PAYLOAD[:1] * size, 1), SCOPE)
    assert len(token) == longest_token(size)
    assert ours.open(token, SCOPE, size).payload == PAYLOAD[:1] * size
    if size:
        assert_refused(token, limit=size - 1)


def test_18_an_oversized_text_is_refused_before_anything_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> bytes:
        raise AssertionError("the text was decoded")

    monkeypatch.setattr(base64url, "decode", unexpected)
    assert_refused("v1." + "A" * 100_000_000)
    assert_refused("v1." + "A" * (longest_token(LIMIT) - 2))
    with pytest.raises(AssertionError, match="decoded"):
        make_tokens().open("v1." + "A" * (longest_token(LIMIT) - 3), SCOPE, LIMIT)


@given(text=st.text(max_size=200))
def test_any_text_is_refused_alike(text: str) -> None:
    assert_refused(text)
    assert_refused("v1." + text)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_alike(data: bytes) -> None:
    assert_refused("v1." + base64url.encode(data))
    assert_refused("v1." + base64url.encode(key_id(KEY) + data))


def test_20_no_salt_comes_twice() -> None:
    ours = make_tokens()
    state = Opened(b"", 0)
    # Key id and salt are 24 bytes, 32 characters.
    salts = {ours.seal(state, SCOPE)[3:35] for _ in range(10_000)}
    assert len(salts) == 10_000


def test_24_no_log_line_holds_a_token_or_a_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ours = make_tokens()
    token = ours.seal(Opened(b"secret text", 1), SCOPE)
    ours.open(token, SCOPE, LIMIT)
    cases: list[Callable[[], object]] = [
        lambda: ours.open(token[:-1], SCOPE, LIMIT),
        lambda: ours.open(token, replace(SCOPE, tenant="tenant-b"), LIMIT),
        lambda: ours.open(write_token(plaintext(b"secret text", expires=0)), SCOPE, LIMIT),
        lambda: ours.open(token, SCOPE, 1),
    ]
    for case in cases:
        with pytest.raises(InvalidInput):
            case()
    # The reasons are there, for the operator; what they are about is not.
    assert len(caplog.records) == len(cases)
    for secret in (token, token[3:40], token[-40:], "secret text", "tenant"):
        assert secret not in caplog.text
