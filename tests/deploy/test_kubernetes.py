"""The Kubernetes manifests: valid, least privilege, and in agreement with the server's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rfa.service.settings import Settings

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml") if path.stem != "kustomization"
}
DEPLOYMENT = MANIFESTS["deployment"]["spec"]
POD = DEPLOYMENT["template"]["spec"]
LABELS = DEPLOYMENT["template"]["metadata"]["labels"]
(SERVER,) = POD["containers"]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the server reads from the environment of its container."""
    for variable in SERVER["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    return Settings()


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_api_accepts_the_manifest(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validator.validate(json.loads(json.dumps(MANIFESTS[name])), validator.latest_version(), strict=True)


def test_the_kustomization_lists_every_manifest() -> None:
    assert {Path(file).stem for file in KUSTOMIZATION["resources"]} == set(MANIFESTS)


def test_every_selector_means_the_pods_of_the_deployment() -> None:
    assert DEPLOYMENT["selector"]["matchLabels"] == LABELS
    assert MANIFESTS["service"]["spec"]["selector"] == LABELS
    assert MANIFESTS["poddisruptionbudget"]["spec"]["selector"]["matchLabels"] == LABELS
    assert MANIFESTS["networkpolicy"]["spec"]["podSelector"]["matchLabels"] == LABELS
    target = MANIFESTS["horizontalpodautoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", MANIFESTS["deployment"]["metadata"]["name"])


def test_ports_agree_with_the_server(settings: Settings) -> None:
    port, health = SERVER["ports"]
    assert (port["containerPort"], health["containerPort"]) == (settings.port, settings.health_port)
    assert [entry["targetPort"] for entry in MANIFESTS["service"]["spec"]["ports"]] == [port["name"]]
    clients, monitoring = MANIFESTS["networkpolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in (clients, monitoring)] == [port["name"], health["name"]]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert SERVER[name]["httpGet"]["port"] == health["name"]


def test_prometheus_finds_the_pods_and_has_a_key() -> None:
    monitor = yaml.safe_load((FOLDER / "monitoring" / "podmonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"] == LABELS
    assert monitor["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == SERVER["ports"][1]["name"]
    assert endpoint["authorization"]["credentials"]["name"] == POD["volumes"][0]["secret"]["secretName"]
    (relabeling,) = endpoint["relabelings"]
    rules = (FOLDER.parent / "prometheus" / "rules.yml").read_text()
    assert f'job="{relabeling["replacement"]}"' in rules


def test_the_environment_is_one_that_the_server_reads(settings: Settings) -> None:
    ours = {variable["name"] for variable in SERVER["env"] if variable["name"].startswith("RFA_")}
    assert ours <= {f"RFA_{name.upper()}" for name in Settings.model_fields}
    assert settings.processes == int(SERVER["resources"]["requests"]["cpu"])
    assert not settings.insecure


def test_a_pod_is_killed_only_after_it_has_drained(settings: Settings) -> None:
    pause = SERVER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] > pause + settings.shutdown_grace_seconds


def test_probes_ask_the_right_question() -> None:
    paths = {name: SERVER[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    # A busy server that misses some probes is not killed for it.
    liveness = SERVER["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


def test_the_pod_has_least_privilege() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    assert SERVER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_keys_come_from_a_mounted_secret(settings: Settings) -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {Path(mount["mountPath"]): volumes[mount["name"]] for mount in SERVER["volumeMounts"]}
    for path in (settings.api_keys_file, settings.state_keys_file):
        assert path is not None
        assert "secret" in mounts[path.parent]
    assert "emptyDir" in mounts[Path("/tmp")]


def test_the_pods_user_is_the_images_user() -> None:
    dockerfile = (FOLDER.parents[2] / "Dockerfile").read_text()
    security = POD["securityContext"]
    assert f"\nUSER {security['runAsUser']}:{security['runAsGroup']}\n" in dockerfile


def test_nothing_leaves_the_pod() -> None:
    policy = MANIFESTS["networkpolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
