"""Signed bundles: only those by a trusted key are read, and the form is that of minisign."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rfa.runtime.bundle import bundle_files
from rfa.runtime.bundle.bundle import BundleError, open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from rfa.runtime.bundle.signing import (
    KeyFormatError,
    PublicKey,
    SecretKey,
    parse_public_keys,
    sign_bundle,
    verify_signature,
    write_keys,
)
from rfa.service.bundle_checks.subprocess_check import check_bundles
from rfa.service.bundle_checks.trusted_keys import trusted_keys, with_trusted_keys
from rfa.service.engine.models import load_models
from rfa.service.setting_groups import SecuritySettings
from rfa.service.settings import ConfigurationError, Settings
from tests.waiting import PATIENCE

# Made by minisign 0.11 from a key of its own, which nobody has any more.
MINISIGN = Path(__file__).parent / "minisign"
MESSAGE, SIGNATURE = (MINISIGN / "message.txt").read_bytes(), (MINISIGN / "message.txt.minisig").read_bytes()
KEYS = parse_public_keys((MINISIGN / "minisign.pub").read_text())
KEY, OTHER_KEY = SecretKey(b"\1" * 8, b"\2" * 32), SecretKey(b"\3" * 8, b"\4" * 32)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(BUNDLE_ROOT / "linear", tmp_path / "linear"))
    sign_bundle(copy, open_bundle(copy).digest, KEY)
    return copy


# The form of minisign.


def test_what_minisign_signed_is_verified() -> None:
    assert verify_signature(MESSAGE, SIGNATURE, KEYS) == "a trusted comment"
    assert str(KEYS[0]) == (MINISIGN / "minisign.pub").read_text().splitlines()[1]


def test_a_signature_of_the_older_form_is_refused() -> None:
    with pytest.raises(BundleError, match="not an ED signature"):
        verify_signature(MESSAGE, (MINISIGN / "legacy.minisig").read_bytes(), KEYS)


def test_every_flipped_bit_of_what_is_signed_is_refused() -> None:
    first_comment = SIGNATURE.index(b"\n")
    for position in range(len(SIGNATURE)):
        damaged = bytearray(SIGNATURE)
        damaged[position] ^= 1 << position % 7
        if len(b"untrusted comment: ") <= position < first_comment:
            continue  # signed by nobody
        with pytest.raises(BundleError, match=SIGNATURE_FILE):
            verify_signature(MESSAGE, bytes(damaged), KEYS)
    for position in range(len(MESSAGE)):
        with pytest.raises(BundleError, match="the signature does not match the manifest"):
            verify_signature(MESSAGE[:position] + MESSAGE[position + 1 :], SIGNATURE, KEYS)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data + b"\n",
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data[: data.index(b"trusted comment: a")],
        lambda data: data + data,
        lambda data: b"\xff\xfe" + data,
        lambda data: data.replace(b"RUT", b" RUT"),
        lambda data: data.replace(b"dlrCw==", b"dlrCx=="),  # the same bytes, not the one form of them
    ],
)
def test_what_is_no_signature_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BundleError, match=SIGNATURE_FILE):
        verify_signature(MESSAGE, change(SIGNATURE), KEYS)


@pytest.mark.parametrize("text", ["", "RWQ", "RX" + "A" * 54, "nonsense", "# only a comment", "RWQ=, ", "ÿ" * 56])
def test_what_is_no_public_key_is_refused_unseen(text: str) -> None:
    with pytest.raises(KeyFormatError) as refusal:
        parse_public_keys(text)
    assert not text or text not in str(refusal.value)


def test_lists_of_keys_are_read_by_lines_and_commas() -> None:
    text = f"untrusted comment: minisign public key\n{KEY.public} # of the first\n\n{OTHER_KEY.public},{KEYS[0]}\n"
    assert parse_public_keys(text) == (KEY.public, OTHER_KEY.public, *KEYS)


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_minisign_verifies_what_we_sign_and_signs_with_our_keys(tmp_path: Path) -> None:
    def minisign(*arguments: str) -> None:
        subprocess.run(["minisign", *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)

    paths = write_keys(tmp_path / "ours")
    (tmp_path / "manifest.json").write_bytes(MESSAGE)
    secret = SecretKey.parse(paths.key.read_text())
    (tmp_path / "manifest.json.minisig").write_bytes(secret.sign(MESSAGE, "a comment"))
    minisign("-V", "-H", "-m", "manifest.json", "-p", "ours.pub")
    minisign("-S", "-s", "ours.key", "-m", "manifest.json", "-t", "another comment")
    signature = (tmp_path / "manifest.json.minisig").read_bytes()
    assert verify_signature(MESSAGE, signature, parse_public_keys(paths.pub.read_text())) == "another comment"


# Keys.


def test_a_secret_key_is_for_its_owner_and_survives_its_file(tmp_path: Path) -> None:
    paths = write_keys(tmp_path / "signing")
    assert stat.S_IMODE(paths.key.stat().st_mode) == 0o600
    secret = SecretKey.parse(paths.key.read_text())
    assert parse_public_keys(paths.pub.read_text()) == (secret.public,)
    with pytest.raises(FileExistsError):
        write_keys(tmp_path / "signing")


def test_a_protected_or_broken_secret_key_is_refused_unseen() -> None:
    protected = KEY.text().replace("RWQAAEIy", "RWRTY0Iy")
    with pytest.raises(KeyFormatError, match="is protected by a password"):
        SecretKey.parse(protected)
    with pytest.raises(KeyFormatError, match="halves") as refusal:
        SecretKey.parse(SecretKey(KEY.key_id, KEY.seed).text().replace("AgICAgIC", "AgICAgID", 1))
    assert "AgIC" not in str(refusal.value)


# Bundles.


def test_only_bundles_that_a_trusted_key_signed_are_opened(bundle: Path) -> None:
    with pytest.raises(BundleError, match="a key that is not trusted"):
        open_bundle(bundle, [OTHER_KEY.public])
    with pytest.raises(BundleError, match="the signature does not match the manifest"):
        open_bundle(bundle, [PublicKey(KEY.key_id, OTHER_KEY.public.key)])
    with pytest.raises(BundleError, match=rf"{SIGNATURE_FILE}: the file is missing"):
        open_bundle(BUNDLE_ROOT / "linear", [KEY.public])
    shutil.copy(bundle / SIGNATURE_FILE, bundle.parent / SIGNATURE_FILE)
    other = Path(shutil.copytree(BUNDLE_ROOT / "oscillator", bundle.parent / "oscillator"))
    shutil.copy(bundle / SIGNATURE_FILE, other / SIGNATURE_FILE)
    with pytest.raises(BundleError, match="the signature does not match the manifest"):
        open_bundle(other, [KEY.public])


def test_nothing_else_is_read_of_a_bundle_that_is_not_trusted(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = os.open

    def noted(path: str | Path, *arguments: int) -> int:
        read.append(Path(path).name)
        return real(path, *arguments)

    monkeypatch.setattr(bundle_files.os, "open", noted)
    monkeypatch.setattr(bundle_files, "decode_manifest", lambda data: pytest.fail("the manifest was read"))
    with pytest.raises(BundleError, match="not trusted"):
        open_bundle(bundle, [OTHER_KEY.public])
    assert read == [MANIFEST_FILE, SIGNATURE_FILE]


# The server.


def test_a_server_trusts_the_keys_of_both_settings(tmp_path: Path) -> None:
    (tmp_path / "keys.pub").write_text(f"untrusted comment: ours\n{KEY.public}\n")
    given = Settings(bundles=(), trusted_keys=str(OTHER_KEY.public), trusted_keys_file=tmp_path / "keys.pub")
    assert trusted_keys(given.security) == (OTHER_KEY.public, KEY.public)
    assert trusted_keys(SecuritySettings()) == ()
    # Its processes are told the keys, and read no file.
    with_keys = with_trusted_keys(given)
    (tmp_path / "keys.pub").unlink()
    assert trusted_keys(with_keys.security) == (OTHER_KEY.public, KEY.public)
    assert with_trusted_keys(Settings(bundles=())) == Settings(bundles=())


@pytest.mark.parametrize("value", ["", "nonsense", ","])
def test_a_setting_without_a_key_is_no_setting_without_a_guard(tmp_path: Path, value: str) -> None:
    (tmp_path / "keys.pub").write_text(value)
    with pytest.raises(ConfigurationError, match="RFA_TRUSTED_KEYS: "):
        trusted_keys(SecuritySettings(trusted_keys=value))
    with pytest.raises(ConfigurationError, match="RFA_TRUSTED_KEYS_FILE: "):
        trusted_keys(SecuritySettings(trusted_keys_file=tmp_path / "keys.pub"))
    with pytest.raises(ConfigurationError, match="RFA_TRUSTED_KEYS_FILE: "):
        trusted_keys(SecuritySettings(trusted_keys_file=tmp_path / "none.pub"))


def test_a_server_with_trusted_keys_loads_and_vets_only_signed_bundles(bundle: Path) -> None:
    def settings(key: SecretKey) -> Settings:
        return Settings(bundles=(bundle,), trusted_keys=str(key.public))

    assert load_models(settings(KEY)).filters.keys() == {"auto", "auto-joint", "linear"}
    with pytest.raises(BundleError, match="not trusted"):
        load_models(settings(OTHER_KEY))
    (found,) = asyncio.run(check_bundles([bundle], trusted_keys=[str(KEY.public)]))
    assert found.name == "linear"
    with pytest.raises(BundleError, match=r"^linear: .*not trusted"):
        asyncio.run(check_bundles([bundle], trusted_keys=[str(OTHER_KEY.public)]))
