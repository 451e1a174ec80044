"""What an operator sets, misspells and leaves out, and what the server finds out about the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rfa.service.machine import available_cores
from rfa.service.settings import ConfigurationError, Settings, check_names

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("100000 100000\n", 1),
        ("150000 100000\n", min(2, CORES)),
        ("5000 100000\n", 1),
        (f"{CORES + 7}00000 100000\n", CORES),
        ("max 100000\n", CORES),
        ("nonsense", CORES),
    ],
)
def test_a_quota_of_time_bounds_the_cores(tmp_path: Path, content: str, cores: int) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(content)
    assert available_cores(quota) == cores


def test_without_a_quota_the_affinity_says(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "absent") == CORES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RFA_MAX_STREAM", "RFA_MAX_STREAMS"),
        ("rfa_max_stream", "RFA_MAX_STREAMS"),
        ("Rfa_Api_Key", "RFA_API_KEYS"),
        ("RFA_APIKEYS_FILE", "RFA_API_KEYS_FILE"),
        ("RFA_INSECUR", "RFA_INSECURE"),
        ("RFA_KEEPALIVE_SECONDS", "RFA_KEEP_ALIVE_SECONDS"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_names({"PATH": "/bin", name: "hunter2"})
    assert f"{name} is set" in str(refused.value) and f"did you mean {meant}?" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["RFA_", "RFA_XYZZY_PLUGH", "RFA_SERVER_SERVICE_HOST"])
def test_a_name_like_no_other_is_refused_too(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is set"):
        check_names({name: "1"})


def test_every_setting_may_be_set_in_either_case_and_others_are_not_ours() -> None:
    check_names({f"RFA_{name.upper()}": "" for name in Settings.model_fields})
    check_names({f"rfa_{name}": "" for name in Settings.model_fields})
    check_names({"RFA_DEBUG": "1", "RFAX": "1", "XRFA_PORT": "1", "PATH": "/bin", "RFA": "1"})
