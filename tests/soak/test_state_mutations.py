"""Altered state tokens are rejected, and deliberately weak sealers are detected.

Genuine tokens under both keys of a ring are changed in every way of `MUTATIONS` and sent in their own scope. Unchanged
tokens are sent in scopes that differ in one field. Tokens are parsed and built from the documented format, without the
decoder of the service. A seed determines all choices; the tokens differ in every run.
"""

from __future__ import annotations

import base64
import itertools
import random
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from rfa.runtime.state import base64url, tokens
from rfa.runtime.state.keys import KEY_BYTES, StateKeys
from rfa.runtime.state.names import Opened, StateScope
from rfa.runtime.state.sealer import Sealer
from rfa.runtime.state.tokens import Tokens
from rfa.service.errors import NAMED, InvalidRequest, as_service_error

PAYLOAD_SIZES = (0, 1, 64, 400, 401, 402)
TOKENS_PER_SIZE = 8
PREFIX = "v1."
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# Byte offsets of the format: key id, salt, header (issued, expires, step, length), payload, tag.
KEY_ID, SALT, HEADER, TAG = 8, 16, 28, 16
# Characters that lenient readers skip or confuse: white space, NUL, a soft hyphen, a fullwidth digit, a surrogate.
STRAY = ("\n", " ", "\t", "\r", "=", "%", ".", "\0", "\u00ad", "\uff11", "\udc80")

Mutation = Callable[[random.Random, list[str]], str]


@dataclass(frozen=True)
class Lock:
    """The scope in which a token is sent, and the scope to which it must belong."""

    tokens: Tokens
    scope: StateScope


@dataclass(frozen=True)
class Target:
    """Genuine tokens, the scope in which they open, and scopes in which none of them may open."""

    lock: Lock
    wrong_locks: tuple[Lock, ...]
    genuine: list[str]

    @property
    def longest(self) -> int:
        """Return the payload bound within which every genuine token opens."""
        return max(PAYLOAD_SIZES)


def make_target(sealer: type[Sealer] = Sealer, token_class: type[Tokens] = Tokens) -> Target:
    """Create tokens of every size under two keys, with the service's classes or weakened ones."""
    old, new = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
    scope = StateScope(model="5e" * 32, kind="filter", tenant="tenant-a")

    def lock(audience: str = "rfa", scope: StateScope = scope, keys: tuple[bytes, ...] = (new, old)) -> Lock:
        return Lock(token_class(sealer(StateKeys(keys), audience), 3_600), scope)

    genuine = [
        lock(keys=(key,)).tokens.seal(Opened(secrets.token_bytes(size), step), scope)
        for key in (old, new)
        for size in PAYLOAD_SIZES
        for step in range(TOKENS_PER_SIZE)
    ]
    wrong = (
        lock(audience="rfb"),
        lock(audience="rf", scope=replace(scope, tenant="atenant-a")),
        lock(scope=replace(scope, tenant="tenant-b")),
        lock(scope=replace(scope, tenant="")),
        lock(scope=replace(scope, model="5f" + scope.model[2:])),
        lock(scope=replace(scope, kind="lm")),
        lock(keys=(secrets.token_bytes(KEY_BYTES),)),
    )
    return Target(lock(), wrong, genuine)


def _bytes(token: str) -> bytearray:
    body = token.removeprefix(PREFIX)
    return bytearray(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


def _text(data: bytes | bytearray) -> str:
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def flip_bits(rng: random.Random, genuine: list[str]) -> str:
    """Flip one to three bits of the sealed bytes."""
    data = _bytes(rng.choice(genuine))
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return _text(data)


def change_character(rng: random.Random, genuine: list[str]) -> str:
    """Replace one character of the text by one of the alphabet or one that differs by a bit."""
    token = rng.choice(genuine)
    place = rng.randrange(len(token))
    other = rng.choice(ALPHABET) if rng.random() < 0.5 else chr(ord(token[place]) ^ (1 << rng.randrange(8)))
    return token[:place] + other + token[place + 1 :]


def truncate(rng: random.Random, genuine: list[str]) -> str:
    """Remove text or bytes at either end or in the middle."""
    token = rng.choice(genuine)
    if rng.random() < 0.3:
        data = _bytes(token)
        return _text(data[: rng.randrange(len(data))])
    start = rng.randrange(len(token))
    stop = rng.choice((len(token), start + 1, rng.randint(start + 1, len(token))))
    return token[:start] + token[stop:]


def extend(rng: random.Random, genuine: list[str]) -> str:
    """Append text or bytes, or repeat a part."""
    token = rng.choice(genuine)
    match rng.randrange(3):
        case 0:
            return token + "".join(rng.choices(ALPHABET, k=rng.randint(1, 64)))
        case 1:
            return _text(_bytes(token) + rng.randbytes(rng.randint(1, 64)))
        case _:
            start = rng.randrange(len(token))
            stop = rng.randint(start + 1, len(token))
            return token[:stop] + token[start:]


def _segments(data: bytearray) -> list[bytearray]:
    cuts = [0, KEY_ID, KEY_ID + SALT, KEY_ID + SALT + HEADER, len(data) - TAG, len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(cuts)]


def swap_segments(rng: random.Random, genuine: list[str]) -> str:
    """Replace some of key id, salt, header, payload and tag by those of another token."""
    first, second = (_segments(_bytes(token)) for token in rng.sample(genuine, 2))
    taken = rng.randrange(1, 31)
    return _text(b"".join(second[i] if taken >> i & 1 else first[i] for i in range(5)))


def splice(rng: random.Random, genuine: list[str]) -> str:
    """Join the head of one token's text and the tail of another's."""
    first, second = rng.sample(genuine, 2)
    return first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :]


def swap_blocks(rng: random.Random, genuine: list[str]) -> str:
    """Swap two cipher blocks of a token."""
    data = _bytes(rng.choice(genuine))
    start = KEY_ID + SALT
    first, second = (start + 16 * rng.randrange((len(data) - start) // 16) for _ in range(2))
    data[first : first + 16], data[second : second + 16] = data[second : second + 16], data[first : first + 16]
    return _text(data)


def respell(rng: random.Random, genuine: list[str]) -> str:
    """Spell the same bytes in another way that lenient base64 readers accept."""
    token = rng.choice(genuine)
    body = token.removeprefix(PREFIX)
    match rng.randrange(4):
        case 0:
            return PREFIX + body.replace("-", "+").replace("_", "/")
        case 1:
            return token + "=" * rng.randint(1, 4)
        case 2:
            # Unless the text is full groups of four, some bits of the last character belong to no byte.
            low = {2: 16, 3: 4}.get(len(body) % 4, 1)
            last = ALPHABET.index(body[-1])
            return token[:-1] + ALPHABET[last - last % low + rng.randrange(low)]
        case _:
            place = rng.randint(0, len(token))
            return token[:place] + rng.choice(STRAY) * rng.randint(1, 4) + token[place:]


def change_key_id(rng: random.Random, genuine: list[str]) -> str:
    """Use the key id of the other key of the ring, or an unknown one."""
    token, other = rng.sample(genuine, 2)
    key_id = _bytes(other)[:KEY_ID] if rng.random() < 0.5 else rng.randbytes(KEY_ID)
    return _text(key_id + _bytes(token)[KEY_ID:])


def change_version(rng: random.Random, genuine: list[str]) -> str:
    """Use another prefix, or none."""
    prefix = rng.choice(("", "v1", "v2.", "v0.", "V1.", "v1..", ".", "v1.v1.", " v1.", "v01.", "v1:", "session:"))
    return prefix + rng.choice(genuine).removeprefix(PREFIX)


def invent(rng: random.Random, genuine: list[str]) -> str:
    """Send random bytes under a genuine key id."""
    data = _bytes(rng.choice(genuine))
    return _text(data[:KEY_ID] + rng.choice((rng.randbytes, bytes))(len(data) - KEY_ID))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    change_character,
    truncate,
    extend,
    swap_segments,
    splice,
    swap_blocks,
    respell,
    change_key_id,
    change_version,
    invent,
)
OTHER_SCOPE = "other_scope"


@dataclass
class Tally:
    """Counts of the mutants."""

    offered: Counter[str]
    accepted: Counter[str]
    answers: set[str]


def offer(lock: Lock, token: str, max_bytes: int) -> str | None:
    """Return the error that a client would receive, or None if the token was accepted.

    Raises:
        Exception: Any exception of the service that is not a rejection, which would be a 500.
    """
    try:
        lock.tokens.open(token, lock.scope, max_bytes)
    except NAMED as error:
        return orjson.dumps(as_service_error(error).payload()).decode()
    return None


def attack(target: Target, count: int, seed: int) -> Tally:
    """Send `count` mutants.

    Raises:
        AssertionError: A genuine token was rejected, so that rejections prove nothing.
    """
    for token in target.genuine:
        if (refusal := offer(target.lock, token, target.longest)) is not None:
            raise AssertionError(f"a genuine token was refused: {refusal}")
    rng = random.Random(seed)
    existing = set(target.genuine)
    tally = Tally(Counter(), Counter(), set())
    while tally.offered.total() < count:
        kind = rng.randrange(len(MUTATIONS) + 1)
        if kind < len(MUTATIONS):
            name, lock, token = MUTATIONS[kind].__name__, target.lock, MUTATIONS[kind](rng, target.genuine)
            if token in existing:
                continue  # the mutation restored the genuine token
        else:
            name, lock, token = OTHER_SCOPE, rng.choice(target.wrong_locks), rng.choice(target.genuine)
        refusal = offer(lock, token, target.longest)
        tally.offered[name] += 1
        if refusal is None:
            tally.accepted[name] += 1
        else:
            tally.answers.add(refusal)
    return tally


COUNT = 20_000


def test_no_altered_token_opens_and_every_kind_was_tried() -> None:
    tally = attack(make_target(), COUNT, seed=1)
    assert tally.accepted.total() == 0
    assert set(tally.offered) == {mutation.__name__ for mutation in MUTATIONS} | {OTHER_SCOPE}
    assert min(tally.offered.values()) > COUNT / 50
    # The reply does not reveal the error.
    assert len(tally.answers) == 1


class TagUnchecked(Sealer):
    """Decrypt as GCM does, without checking the tag."""

    def _decrypt(self, subkey: bytes, nonce: bytes, ciphertext: bytes, binding: bytes) -> bytes:
        return Cipher(AES(subkey), CTR(nonce + b"\0\0\0\2")).decryptor().update(ciphertext[:-16])


class ScopeUnbound(Sealer):
    """Seal without the scope."""

    def _binding(self, key_id: bytes, scope: object, purpose: str) -> bytes:
        return b""


class AudienceRunsIntoTenant(Sealer):
    """Join the fields of the binding without their lengths."""

    def _binding(self, key_id: bytes, scope: object, purpose: str) -> bytes:
        return f"{self._audience}{scope.tenant}{scope.model}{scope.kind}{purpose}".encode()  # type: ignore[attr-defined]


class AudienceForgotten(Sealer):
    """Leave one field out of the binding."""

    def __init__(self, ring: object, audience: str) -> None:
        super().__init__(ring, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sealer", "kinds"),
    [
        (TagUnchecked, {"swap_segments", "flip_bits"}),
        (ScopeUnbound, {OTHER_SCOPE}),
        (AudienceRunsIntoTenant, {OTHER_SCOPE}),
        (AudienceForgotten, {OTHER_SCOPE}),
    ],
)
def test_a_weak_sealer_is_caught(sealer: type[Sealer], kinds: set[str]) -> None:
    accepted = attack(make_target(sealer), COUNT, seed=1).accepted
    assert kinds <= set(accepted)


def test_a_lenient_reader_of_base64_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(text: str) -> bytes:
        return base64.urlsafe_b64decode(text + "===")

    monkeypatch.setattr(base64url, "decode", lenient)
    accepted = attack(make_target(), COUNT, seed=1).accepted
    assert set(accepted) >= {"respell"}


def test_an_answer_that_tells_the_reason_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Talkative(Tokens):
        def open(self, token: str, scope: object, max_bytes: int) -> object:  # type: ignore[override]
            try:
                return self._open(token, scope, max_bytes)  # type: ignore[arg-type]
            except tokens.SealBroken as reason:
                raise InvalidRequest(str(reason)) from None

    assert len(attack(make_target(token_class=Talkative), COUNT, seed=1).answers) > 1


def test_a_sealer_whose_own_tokens_do_not_open_proves_nothing() -> None:
    class Deaf(Sealer):
        def _decrypt(self, subkey: bytes, nonce: bytes, ciphertext: bytes, binding: bytes) -> bytes:
            raise tokens.SealBroken("always")

    with pytest.raises(AssertionError, match="genuine token was refused"):
        attack(make_target(Deaf), 10, seed=1)
