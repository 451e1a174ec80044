"""What an operator sets, misspells and leaves out, and what the server finds out about the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rfa.cli.console import explain
from rfa.service.machine import available_cores
from rfa.service.settings import FIELDS, RETIRED, ConfigurationError, Settings, check_names

CORES = len(os.sched_getaffinity(0))


def kernel(folder: Path, own: str, files: dict[str, str]) -> dict[str, Path]:
    """The kernel's two folders, as `available_cores` reads them: the groups of this process, and files of groups."""
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_text(own)
    for name, content in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(content)
    return {"proc": folder / "proc", "cgroups": folder / "groups"}


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("100000 100000\n", 1),
        ("150000 100000\n", min(2, CORES)),
        ("5000 100000\n", 1),
        (f"{CORES + 7}00000 100000\n", CORES),
        ("max 100000\n", CORES),
        ("nonsense", CORES),
        ("0 0\n", CORES),
    ],
)
def test_a_quota_of_time_bounds_the_cores(tmp_path: Path, content: str, cores: int) -> None:
    assert available_cores(**kernel(tmp_path, "0::/\n", {"cpu.max": content})) == cores


@pytest.mark.parametrize(
    ("own", "files"),
    [
        # A service of systemd has its own group, below the one that it shares with others.
        ("0::/system.slice/rfa.service\n", {"system.slice/rfa.service/cpu.max": "100000 100000"}),
        ("0::/rfa.slice/a.scope\n", {"rfa.slice/cpu.max": "50000 50000", "rfa.slice/a.scope/cpu.max": "max 50000"}),
        # In a container of version 1 the path is the host's, and only the container's group is mounted.
        ("4:cpu,cpuacct:/docker/abc\n", {"cpu/cpu.cfs_quota_us": "90000", "cpu/cpu.cfs_period_us": "100000"}),
    ],
)
def test_a_quota_is_found_in_every_group_around_the_process(tmp_path: Path, own: str, files: dict[str, str]) -> None:
    assert available_cores(**kernel(tmp_path, own, files)) == 1


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {}),
        ("0::/a\n", {"b/cpu.max": "100000 100000"}),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}),
        ("4:memory:/\n", {"cpu/cpu.cfs_quota_us": "90000", "cpu/cpu.cfs_period_us": "100000"}),
    ],
)
def test_without_a_quota_the_affinity_says(tmp_path: Path, own: str, files: dict[str, str]) -> None:
    assert available_cores(**kernel(tmp_path, own, files)) == CORES
    assert available_cores(tmp_path / "absent", tmp_path / "absent") == CORES


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
    message = str(refused.value)
    assert f"environment variable {name} is not" in message and f"did you mean {meant}?" in message
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["RFA_", "RFA_XYZZY_PLUGH", "RFA_SERVER_SERVICE_HOST"])
def test_a_name_like_no_other_is_refused_too(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is not a setting"):
        check_names({name: "1"})


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_name_is_refused_with_the_setting_that_replaces_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is no longer supported; .* {RETIRED[name]}") as refused:
        check_names({name: "12345"})
    assert "12345" not in str(refused.value)


@pytest.mark.parametrize("value", ["", "on", "redis", "redis://", "http://a", "memory\n"])
def test_an_invalid_value_of_sessions_is_refused_with_the_valid_ones(value: str) -> None:
    with pytest.raises(ValueError, match="sessions") as error:
        Settings(bundles=(), sessions=value)
    said = "sessions (RFA_SESSIONS): must be off, memory or the URL of a Redis server, such as redis://host:6379/0 or rediss://host:6379/0"
    assert explain(error.value) == said


def test_every_setting_may_be_set_in_either_case_and_others_are_not_ours() -> None:
    check_names({f"RFA_{name.upper()}": "" for name in FIELDS})
    check_names({f"rfa_{name}": "" for name in FIELDS})
    check_names({"RFA_DEBUG": "1", "RFAX": "1", "XRFA_PORT": "1", "PATH": "/bin", "RFA": "1"})
