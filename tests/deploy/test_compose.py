"""docker-compose.yml: valid, hardened, and in agreement with the server's settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rfa.library.watch.config_file import load_config
from rfa.library.watch.rules import alert_rules, dashboard
from rfa.service.access.keys import load_keys
from rfa.service.settings import FIELDS, Settings, configured_keys
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = ("server", "server-gpu")
WATCHES = ("demo-service", "demo-watch")
DEMO = ROOT / "docs" / "deploy" / "demo"


def seconds(duration: str) -> int:
    """Convert `30s` and `2m` to seconds."""
    count, unit = int(duration[:-1]), duration[-1]
    return count * {"s": 1, "m": 60}[unit]


def server_settings(service: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings that the server of a service reads from its environment."""
    for name in [name for name in os.environ if name.startswith("RFA_")]:
        monkeypatch.delenv(name)
    for name, value in SERVICES[service]["environment"].items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_the_compose_specification_accepts_it() -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec" / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_has_least_privilege_and_a_limit(service: str) -> None:
    description = SERVICES[service]
    assert description["read_only"] is True
    assert description["cap_drop"] == ["ALL"]
    assert description["security_opt"] == ["no-new-privileges:true"]
    # Root owns new volumes. With this one capability and no network, the service can only fill them.
    is_root = description["user"].split(":")[0] == "0"
    assert is_root == (service == "secrets") == (description.get("network_mode") == "none")
    assert {"cpus", "memory", "pids"} <= set(description["deploy"]["resources"]["limits"])


@pytest.mark.parametrize("service", sorted(set(SERVICES) - set(SERVERS) - set(WATCHES)))
def test_images_of_others_are_pinned_by_tag_and_digest(service: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", SERVICES[service]["image"])


def interpolated(text: str) -> str:
    """Replace variables by their defaults, as compose does if none is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_everything_is_published_on_this_machine_only() -> None:
    published = {name: description["ports"] for name, description in SERVICES.items() if "ports" in description}
    assert {name: list(map(interpolated, lines)) for name, lines in published.items()} == {
        "server": [f"127.0.0.1:8000:{FIELDS['port'].default}"],
        "server-gpu": [f"127.0.0.1:8001:{FIELDS['port'].default}"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
        "demo-grafana": ["127.0.0.1:3001:3000"],
    }


def test_up_alone_starts_the_server_and_what_it_needs() -> None:
    profiles = {name: description.get("profiles") for name, description in SERVICES.items()}
    assert profiles == {
        "secrets": None, "server": None, "redis": None, "server-gpu": ["gpu"],
        "prometheus": ["watch"], "grafana": ["watch"], "demo-service": ["demo"], "demo-prometheus": ["demo"],
        "demo-watch": ["demo"], "demo-grafana": ["demo"],
    }  # fmt: skip
    for name, description in SERVICES.items():
        for other in description.get("depends_on", {}):  # compose starts a service only after its dependencies
            assert profiles[other] is None or profiles[other] == profiles[name]


def test_no_network_of_the_server_leads_out() -> None:
    for service in SERVERS:
        for name in SERVICES[service]["networks"]:
            network = COMPOSE["networks"][name]
            options = network.get("driver_opts", {})
            assert network.get("internal") or options == {"com.docker.network.bridge.enable_ip_masquerade": "false"}


def test_the_store_of_sessions_asks_for_a_password_that_the_server_has() -> None:
    file = SERVICES["server"]["environment"]["RFA_SESSIONS_PASSWORD_FILE"]
    assert file.startswith("/run/secrets/") and "redis-secrets:/run/secrets:ro" in SERVICES["redis"]["volumes"]
    (command,) = [part for part in SERVICES["redis"]["command"] if "requirepass" in part]
    assert f"cat {file}" in command and "redis-server -" in command
    assert f"cat {file}" in SERVICES["redis"]["healthcheck"]["test"][1]


def test_probes_have_a_port_that_is_not_published() -> None:
    prometheus = yaml.safe_load((ROOT / "docs" / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (scraped,) = prometheus["scrape_configs"][0]["dns_sd_configs"]
    for service in SERVERS:
        assert int(SERVICES[service]["environment"]["RFA_HEALTH_PORT"]) == scraped["port"]
        assert not any(f":{scraped['port']}" in line.split("}")[-1] for line in SERVICES[service]["ports"])


@pytest.mark.parametrize("service", SERVERS)
def test_the_environment_is_one_that_the_server_reads(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name for name in SERVICES[service]["environment"] if name.startswith("RFA_")}
    assert ours <= {f"RFA_{name.upper()}" for name in FIELDS}
    settings = server_settings(service, monkeypatch)
    assert settings.state.sessions.startswith("redis://redis:")
    # The limit on CPUs sets the number of processes (`rfa.service.machine`). With a GPU it is one.
    assert "RFA_PROCESSES" not in SERVICES[service]["environment"]
    assert int(interpolated(SERVICES[service]["deploy"]["resources"]["limits"]["cpus"])) == 2
    assert settings.models.processes == 1 or settings.models.device != "cuda"
    assert not settings.security.insecure


@pytest.mark.parametrize("service", SERVERS)
def test_a_server_is_given_time_and_sockets(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = server_settings(service, monkeypatch)
    assert seconds(SERVICES[service]["stop_grace_period"]) > settings.server.shutdown_grace_seconds
    assert SERVICES[service]["ulimits"]["nofile"] > settings.limits.max_connections


def made(folder: Path) -> dict[str, dict[str, str]]:
    """Run the service `secrets` in a folder. Return the files of each volume with their contents."""
    run = subprocess.run(
        ["sh", ROOT / "docs" / "deploy" / "secrets.sh", folder], capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    return {
        volume.name: {file.name: file.read_text() for file in volume.iterdir()} for volume in sorted(folder.iterdir())
    }


def mounted_secrets(service: str) -> str:
    """Return the volume of secrets of a service, without its suffix."""
    (volume,) = [line for line in SERVICES[service]["volumes"] if "/run/secrets" in line]
    assert re.fullmatch(r"\w+-secrets:/run/secrets:ro", volume)
    return volume.split("-")[0]


@pytest.mark.parametrize("service", SERVERS)
def test_the_server_takes_the_secrets_that_are_made(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secrets = made(tmp_path)
    settings = server_settings(service, monkeypatch)
    assert settings.security.api_keys is None and settings.state.state_keys is None
    files = (settings.security.api_keys_file, settings.state.state_keys_file, settings.state.sessions_password_file)
    assert all(file is not None and file.parent == Path("/run/secrets") for file in files)
    assert {file.name for file in files if file is not None} == set(secrets[mounted_secrets(service)])
    here = {
        f"{name}_file": tmp_path / "server" / name for name in ("api_keys", "state_keys")
    } | {"sessions_password_file": tmp_path / "server" / "redis_password"}  # fmt: skip
    found = settings.replace(**here)
    assert len(load_keys(found)) == 2 and len(configured_keys(found)) == 1


def test_each_service_has_the_secrets_that_it_names_and_no_other(tmp_path: Path) -> None:
    secrets = made(tmp_path)
    prometheus = yaml.safe_load((ROOT / "docs" / "deploy" / "prometheus" / "prometheus.yml").read_text())
    key = Path(prometheus["scrape_configs"][0]["authorization"]["credentials_file"])
    password = Path(SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"])
    assert key.parent == password.parent == Path("/run/secrets")
    assert set(secrets[mounted_secrets("prometheus")]) == {key.name}
    assert set(secrets[mounted_secrets("grafana")]) == {password.name}
    assert secrets[mounted_secrets("redis")] == {"redis_password": secrets["server"]["redis_password"]}
    assert secrets["prometheus"][key.name] in secrets["server"]["api_keys"].splitlines(keepends=True)
    filled = {line.split(":")[0] for line in SERVICES["secrets"]["volumes"] if line.split(":")[0] in COMPOSE["volumes"]}
    assert filled == {f"{volume}-secrets" for volume in secrets}


def test_secrets_are_long_and_no_two_alike_and_stay(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    secrets = made(first)
    words = [word for files in secrets.values() for text in files.values() for word in text.split()]
    assert all(len(word) >= 44 for word in words) and len(set(words)) == 5
    assert made(first) == secrets
    assert not set(words) & {word for files in made(other).values() for text in files.values() for word in text.split()}


def test_what_was_lost_is_made_again_and_fits_what_is_left(tmp_path: Path) -> None:
    secrets = made(tmp_path)
    (tmp_path / "prometheus" / "metrics_key").unlink()
    (tmp_path / "redis" / "redis_password").write_text("")  # as if the disk was full
    again = made(tmp_path)
    assert again["server"]["state_keys"] == secrets["server"]["state_keys"]
    assert again["server"]["api_keys"] == secrets["server"]["api_keys"] + again["prometheus"]["metrics_key"]
    assert again["redis"]["redis_password"] == again["server"]["redis_password"] != secrets["redis"]["redis_password"]


def test_what_is_mounted_from_the_checkout_is_there_and_volumes_are_named() -> None:
    for description in SERVICES.values():
        for volume in description.get("volumes", []):
            source, _, options = volume.split(":")[0], volume.split(":")[1], volume.split(":")[2:]
            if source.startswith("."):
                assert (ROOT / source).exists()
                assert options == ["ro"]
            else:
                assert source in COMPOSE["volumes"]


def test_the_demo_watches_the_metrics_of_its_service() -> None:
    config = load_config(DEMO / "watch.toml")
    scraped = yaml.safe_load((DEMO / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert targets == {"service": ["demo-service:9400"], "watch": [f"demo-watch:{config.sink.metrics.listen[-4:]}"]}
    assert SERVICES["demo-service"]["command"][-1] == "0.0.0.0:9400"
    assert "http_requests_total" in config.query[0].expr
    assert (DEMO / "rules.yml").read_text() == alert_rules(config)
    assert json.loads((DEMO / "dashboard.json").read_text()) == dashboard(config)
