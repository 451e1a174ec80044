"""The mutation attack: nothing opens, and sealers that are weak in one way are caught."""

from __future__ import annotations

import base64
import json
import sys

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from rfa.runtime.state import base64url, tokens
from rfa.runtime.state.sealer import Sealer
from rfa.runtime.state.tokens import Tokens
from rfa.service.errors import InvalidRequest
from tests.soak import state_mutations
from tests.soak.state_mutations import MUTATIONS, OTHER_SCOPE, attack, make_target

COUNT = 20_000


def test_no_altered_token_opens_and_every_kind_was_tried() -> None:
    tally = attack(make_target(), COUNT, seed=1)
    assert tally.accepted.total() == 0
    assert set(tally.offered) == {mutation.__name__ for mutation in MUTATIONS} | {OTHER_SCOPE}
    assert min(tally.offered.values()) > COUNT / 50
    # What was wrong cannot be told from the answer.
    assert len(tally.answers) == 1


class TagUnchecked(Sealer):
    """Decrypts as GCM does and believes what comes out."""

    def _decrypt(self, subkey: bytes, nonce: bytes, ciphertext: bytes, binding: bytes) -> bytes:
        return Cipher(AES(subkey), CTR(nonce + b"\0\0\0\2")).decryptor().update(ciphertext[:-16])


class ScopeUnbound(Sealer):
    """Seals without saying for whom."""

    def _binding(self, key_id: bytes, scope: object, purpose: str) -> bytes:
        return b""


class AudienceRunsIntoTenant(Sealer):
    """Joins the fields of the binding without their lengths."""

    def _binding(self, key_id: bytes, scope: object, purpose: str) -> bytes:
        return f"{self._audience}{scope.tenant}{scope.model}{scope.kind}{purpose}".encode()  # type: ignore[attr-defined]


class AudienceForgotten(Sealer):
    """Leaves one field out of the binding."""

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

    assert len(attack(make_target(tokens=Talkative), COUNT, seed=1).answers) > 1


def test_a_sealer_whose_own_tokens_do_not_open_proves_nothing() -> None:
    class Deaf(Sealer):
        def _decrypt(self, subkey: bytes, nonce: bytes, ciphertext: bytes, binding: bytes) -> bytes:
            raise tokens.SealBroken("always")

    with pytest.raises(AssertionError, match="genuine token was refused"):
        attack(make_target(Deaf), 10, seed=1)


@pytest.mark.parametrize(("sealer", "code"), [(Sealer, 0), (TagUnchecked, 1)])
def test_the_command_stores_the_counts_and_fails_on_an_accepted_token(
    sealer: type[Sealer], code: int, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state_mutations, "make_target", lambda: make_target(sealer))
    out = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["state_mutations", "--count", "2000", "--out", str(out)])
    assert state_mutations.main() == code
    document = json.loads(out.read_text())
    assert document["count"] == 2000 == sum(document["offered_by_kind"].values())
    assert (document["accepted"] > 0) == bool(code)
    assert "2000 offered" in capsys.readouterr().out


def test_the_committed_result_is_the_documented_one() -> None:
    document = json.loads(state_mutations.RESULT.read_text())
    assert (document["count"], document["accepted"], document["distinct_answers"]) == (1_000_000, 0, 1)
    assert "0 of 10⁶ are accepted" in (state_mutations.RESULT.parents[1] / "docs" / "STATE.md").read_text()
