"""docker-compose.yml: valid, hardened, and in agreement with the server's settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rfa.service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = ("server", "server-gpu")
# Where an image of ours has its own health check: the Dockerfile says it.
HEALTH_CHECKED_BY_IMAGE = set(SERVERS)


def seconds(duration: str) -> int:
    """`30s` and `2m` as seconds."""
    count, unit = int(duration[:-1]), duration[-1]
    return count * {"s": 1, "m": 60}[unit]


def server_settings(service: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the server of a service reads from its environment."""
    for name, value in SERVICES[service]["environment"].items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_the_compose_specification_accepts_it() -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec" / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


def test_its_schema_refuses_what_compose_refuses() -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec" / "compose-spec.json").read_text())
    with pytest.raises(jsonschema.ValidationError, match="helthcheck"):
        jsonschema.validate({"services": {"server": {"image": "x", "helthcheck": {}}}}, schema)


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_has_least_privilege_and_a_limit(service: str) -> None:
    description = SERVICES[service]
    assert description["read_only"] is True
    assert description["cap_drop"] == ["ALL"]
    assert description["security_opt"] == ["no-new-privileges:true"]
    assert description["user"].split(":")[0] != "0"
    assert {"cpus", "memory", "pids"} <= set(description["deploy"]["resources"]["limits"])


@pytest.mark.parametrize("service", sorted(set(SERVICES) - set(SERVERS)))
def test_images_of_others_are_pinned_by_tag_and_digest(service: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", SERVICES[service]["image"])


def test_only_the_server_is_published_and_only_on_this_machine() -> None:
    published = {name: description["ports"] for name, description in SERVICES.items() if "ports" in description}
    assert set(published) == set(SERVERS)
    port = Settings.model_fields["port"].default
    for (line,) in published.values():
        assert re.fullmatch(rf"127\.0\.0\.1:\$\{{\w+:-\d+\}}:{port}", line)


def test_no_network_of_the_server_leads_out() -> None:
    for service in SERVERS:
        for name in SERVICES[service]["networks"]:
            network = COMPOSE["networks"][name]
            options = network.get("driver_opts", {})
            assert network.get("internal") or options == {"com.docker.network.bridge.enable_ip_masquerade": "false"}


def test_the_store_of_sessions_asks_for_a_password_that_the_server_has() -> None:
    file = SERVICES["server"]["environment"]["RFA_SESSIONS_PASSWORD_FILE"]
    assert Path(file).name in SERVICES["redis"]["secrets"]
    (command,) = [part for part in SERVICES["redis"]["command"] if "requirepass" in part]
    assert f"cat {file}" in command and "redis-server -" in command
    assert f"cat {file}" in SERVICES["redis"]["healthcheck"]["test"][1]


def test_probes_have_a_port_that_is_not_published() -> None:
    prometheus = yaml.safe_load((ROOT / "docs" / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (scraped,) = prometheus["scrape_configs"][0]["dns_sd_configs"]
    for service in SERVERS:
        assert int(SERVICES[service]["environment"]["RFA_HEALTH_PORT"]) == scraped["port"]
        assert not any(f":{scraped['port']}" in line.split("}")[-1] for line in SERVICES[service]["ports"])


def test_the_store_of_sessions_is_reached_by_the_server_only() -> None:
    assert COMPOSE["networks"]["state"] == {"internal": True}
    members = {name for name, description in SERVICES.items() if "state" in description["networks"]}
    assert members == {"redis", *SERVERS}
    assert SERVICES["redis"]["networks"] == ["state"]


def test_a_service_that_waits_for_health_waits_for_one_that_has_a_check() -> None:
    waits = [
        (name, other, condition["condition"])
        for name, description in SERVICES.items()
        for other, condition in description.get("depends_on", {}).items()
    ]
    assert {(name, other) for name, other, _ in waits} >= {("server", "redis"), ("grafana", "prometheus")}
    for _, other, condition in waits:
        assert condition == "service_healthy"
        assert "healthcheck" in SERVICES[other] or other in HEALTH_CHECKED_BY_IMAGE


@pytest.mark.parametrize("service", SERVERS)
def test_the_environment_is_one_that_the_server_reads(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name for name in SERVICES[service]["environment"] if name.startswith("RFA_")}
    assert ours <= {f"RFA_{name.upper()}" for name in Settings.model_fields}
    settings = server_settings(service, monkeypatch)
    assert settings.sessions.startswith("redis://redis:")
    cpus = int(SERVICES[service]["deploy"]["resources"]["limits"]["cpus"])
    assert settings.processes == (1 if settings.device == "cuda" else cpus)
    assert not settings.insecure


@pytest.mark.parametrize("service", SERVERS)
def test_a_server_is_given_time_and_sockets(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = server_settings(service, monkeypatch)
    assert seconds(SERVICES[service]["stop_grace_period"]) > settings.shutdown_grace_seconds
    assert SERVICES[service]["ulimits"]["nofile"] > settings.max_connections


@pytest.mark.parametrize("service", SERVERS)
def test_keys_come_as_files(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = server_settings(service, monkeypatch)
    mounted = {Path("/run/secrets") / name for name in SERVICES[service]["secrets"]}
    assert {settings.api_keys_file, settings.state_keys_file, settings.sessions_password_file} == mounted
    assert settings.api_keys is None
    assert settings.state_keys is None


def test_prometheus_has_a_key_of_its_own() -> None:
    prometheus = yaml.safe_load((ROOT / "docs" / "deploy" / "prometheus" / "prometheus.yml").read_text())
    key = Path(prometheus["scrape_configs"][0]["authorization"]["credentials_file"])
    assert SERVICES["prometheus"]["secrets"] == [key.name]
    assert key.parent == Path("/run/secrets")


def test_secrets_are_files_that_git_and_the_build_leave_out() -> None:
    folders = {Path(secret["file"]).parent for secret in COMPOSE["secrets"].values()}
    assert folders == {Path("secrets")}
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "!secrets" not in (ROOT / ".dockerignore").read_text().splitlines()
    used = {name for description in SERVICES.values() for name in description.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])


def test_the_gpu_is_reserved_in_a_profile_of_its_own_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    (device,) = SERVICES["server-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert server_settings("server-gpu", monkeypatch).device == "cuda"
    assert device["capabilities"] == ["gpu"]
    assert SERVICES["server-gpu"]["profiles"] == ["gpu"]
    assert all("profiles" not in description for name, description in SERVICES.items() if name != "server-gpu")


def test_what_is_mounted_from_the_checkout_is_there_and_volumes_are_named() -> None:
    for description in SERVICES.values():
        for volume in description.get("volumes", []):
            source, _, options = volume.split(":")[0], volume.split(":")[1], volume.split(":")[2:]
            if source.startswith("."):
                assert (ROOT / source).is_dir()
                assert options == ["ro"]
            else:
                assert source in COMPOSE["volumes"]
