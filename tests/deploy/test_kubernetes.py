"""The Kubernetes manifests, for CPUs and GPUs: valid, least privilege, and in agreement with the server's settings."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import typer.testing
import yaml

from rfa.cli.main import app
from rfa.model.attention.validation import FUSED_CAPABILITY
from rfa.service.settings import FIELDS, Settings

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "kubernetes"
DOCKERFILE = (FOLDER.parents[2] / "Dockerfile").read_text()
# The GPU resource of NVIDIA's device plugin.
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Deployed:
    """A folder for `kubectl apply --kustomize`, and the settings of its server."""

    folder: Path

    @cached_property
    def kustomization(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / "kustomization.yaml").read_text())

    @cached_property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """Return the manifests by file name."""
        files = [path for path in self.folder.glob("*.yaml") if path.stem != "kustomization"]
        return {path.stem: yaml.safe_load(path.read_text()) for path in files}

    @property
    def deployment(self) -> dict[str, Any]:
        return self.manifests["deployment"]["spec"]

    @property
    def pod(self) -> dict[str, Any]:
        return self.deployment["template"]["spec"]

    @property
    def labels(self) -> dict[str, str]:
        return self.deployment["template"]["metadata"]["labels"]

    @property
    def server(self) -> dict[str, Any]:
        (server,) = self.pod["containers"]
        return server

    def settings(self, monkeypatch: pytest.MonkeyPatch) -> Settings:
        """Return the settings that the server reads from the environment of its container."""
        for name in [name for name in os.environ if name.startswith("RFA_")]:
            monkeypatch.delenv(name)
        for variable in self.server["env"]:
            monkeypatch.setenv(variable["name"], variable["value"])
        return Settings()


ON_CPU, ON_GPU = Deployed(FOLDER), Deployed(FOLDER / "gpu")
JOB: dict[str, Any] = yaml.safe_load((FOLDER / "gpu" / "check" / "job.yaml").read_text())
JOB_POD = JOB["spec"]["template"]["spec"]
(CHECK,) = JOB_POD["containers"]
BOTH = pytest.mark.parametrize("deployed", [ON_CPU, ON_GPU], ids=["cpu", "gpu"])
ALL_MANIFESTS = {
    **ON_CPU.manifests,
    **{f"gpu/{name}": manifest for name, manifest in ON_GPU.manifests.items()},
    "gpu/check/job": JOB,
}


@pytest.mark.parametrize("name", ALL_MANIFESTS)
def test_the_api_accepts_the_manifest(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validator.validate(json.loads(json.dumps(ALL_MANIFESTS[name])), validator.latest_version(), strict=True)


@BOTH
def test_the_kustomization_lists_every_manifest(deployed: Deployed) -> None:
    assert {Path(file).stem for file in deployed.kustomization["resources"]} == set(deployed.manifests)
    (label,) = deployed.kustomization["labels"]
    assert label["pairs"] == deployed.labels


@BOTH
def test_every_selector_means_the_pods_of_the_deployment(deployed: Deployed) -> None:
    manifests, labels = deployed.manifests, deployed.labels
    assert deployed.deployment["selector"]["matchLabels"] == labels
    assert manifests["service"]["spec"]["selector"] == labels
    assert manifests["poddisruptionbudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["networkpolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (spread,) = deployed.pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    target = manifests["horizontalpodautoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", manifests["deployment"]["metadata"]["name"])
    assert deployed.pod["serviceAccountName"] == manifests["serviceaccount"]["metadata"]["name"]


@pytest.mark.parametrize("name", ["service", "serviceaccount", "networkpolicy", "poddisruptionbudget"])
def test_what_no_gpu_changes_is_the_same_under_another_name(name: str) -> None:
    on_cpu, on_gpu = ((deployed.folder / f"{name}.yaml").read_text() for deployed in (ON_CPU, ON_GPU))
    assert on_gpu == re.sub(r"\brfa-server\b", "rfa-server-gpu", on_cpu)


@BOTH
def test_ports_agree_with_the_server(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, server = deployed.settings(monkeypatch), deployed.server
    port, health = server["ports"]
    assert (port["containerPort"], health["containerPort"]) == (settings.server.port, settings.server.health_port)
    assert [entry["targetPort"] for entry in deployed.manifests["service"]["spec"]["ports"]] == [port["name"]]
    clients, monitoring = deployed.manifests["networkpolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in (clients, monitoring)] == [port["name"], health["name"]]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[name]["httpGet"]["port"] == health["name"]


@BOTH
def test_prometheus_finds_the_pods_and_has_a_key(deployed: Deployed) -> None:
    monitor = yaml.safe_load((FOLDER / "monitoring" / "podmonitor.yaml").read_text())
    (choice,) = monitor["spec"]["selector"]["matchExpressions"]
    assert choice["operator"] == "In" and deployed.labels[choice["key"]] in choice["values"]
    assert monitor["metadata"]["namespace"] == deployed.kustomization["namespace"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == deployed.server["ports"][1]["name"]
    assert endpoint["authorization"]["credentials"]["name"] == deployed.pod["volumes"][0]["secret"]["secretName"]
    (relabeling,) = endpoint["relabelings"]
    rules = (FOLDER.parent / "prometheus" / "rules.yml").read_text()
    assert f'job="{relabeling["replacement"]}"' in rules


@BOTH
def test_the_environment_is_one_that_the_server_reads(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {variable["name"] for variable in deployed.server["env"] if variable["name"].startswith("RFA_")}
    assert ours <= {f"RFA_{name.upper()}" for name in FIELDS}
    assert not deployed.settings(monkeypatch).security.insecure


def test_a_process_has_a_core_or_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, on_gpu = (deployed.settings(monkeypatch) for deployed in (ON_CPU, ON_GPU))
    assert on_cpu.models.device != "cuda" and on_gpu.models.device == "cuda"
    assert on_cpu.models.processes == int(ON_CPU.server["resources"]["requests"]["cpu"])
    assert on_gpu.models.processes == int(ON_GPU.server["resources"]["limits"][GPU])


@BOTH
def test_a_pod_is_killed_only_after_it_has_drained(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    pause = deployed.server["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = deployed.settings(monkeypatch).server.shutdown_grace_seconds
    assert deployed.pod["terminationGracePeriodSeconds"] > pause + grace


def seconds_of(probe: dict[str, Any]) -> int:
    """Return the time for which a container may fail the probe before it is killed."""
    return probe["periodSeconds"] * probe["failureThreshold"]


@BOTH
def test_probes_ask_the_right_question(deployed: Deployed) -> None:
    server = deployed.server
    paths = {name: server[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    # A busy server that misses some probes is not killed.
    assert seconds_of(server["livenessProbe"]) >= 60


PODS = pytest.mark.parametrize(
    ("pod", "container"),
    [(ON_CPU.pod, ON_CPU.server), (ON_GPU.pod, ON_GPU.server), (JOB_POD, CHECK)],
    ids=["cpu", "gpu", "check"],
)


@PODS
def test_the_pod_has_least_privilege(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = pod["securityContext"]
    assert f"\nUSER {user['runAsUser']}:{user['runAsGroup']}\n" in DOCKERFILE


def written(pod: dict[str, Any], container: dict[str, Any]) -> dict[Path, dict[str, Any]]:
    """Return volumes by mount path."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {Path(mount["mountPath"]): volumes[mount["name"]] for mount in container["volumeMounts"]}


@PODS
def test_what_can_be_written_is_bounded(pod: dict[str, Any], container: dict[str, Any]) -> None:
    unit = {"Mi": 2**20, "Gi": 2**30}
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in written(pod, container).values() if "emptyDir" in volume]
    storage = container["resources"]["limits"]["ephemeral-storage"]
    bytes_of = [int(size[:-2]) * unit[size[-2:]] for size in (storage, *sizes)]
    assert "emptyDir" in written(pod, container)[Path("/tmp")]
    assert bytes_of[0] > sum(bytes_of[1:])


@BOTH
def test_keys_come_from_a_mounted_secret(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, mounts = deployed.settings(monkeypatch), written(deployed.pod, deployed.server)
    for path in (settings.security.api_keys_file, settings.state.state_keys_file):
        assert path is not None
        assert "secret" in mounts[path.parent]


@BOTH
def test_nothing_leaves_the_pod(deployed: Deployed) -> None:
    policy = deployed.manifests["networkpolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []


@pytest.mark.parametrize(("pod", "container"), [(ON_GPU.pod, ON_GPU.server), (JOB_POD, CHECK)], ids=["gpu", "check"])
def test_what_needs_a_gpu_is_let_in_where_one_is(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert container["resources"]["limits"][GPU] == "1"
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["nodeSelector"] == {f"{GPU}.present": "true"}
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    least = str(FUSED_CAPABILITY[0] - 1)
    assert term["matchExpressions"] == [{"key": f"{GPU}.compute.major", "operator": "Gt", "values": [least]}]
    # Stored kernels need no compiler; until every bundle has them, this image has one.
    assert container["image"] == "rfa-server:cuda-jit" and " AS cuda-jit\n" in DOCKERFILE


def test_the_check_is_given_the_time_and_the_arguments_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from rfa.benchmarks.gpu import check as gpu_check

    asked: list[Path] = []

    def run(out: Path, *, seconds: float) -> dict[str, Any]:
        assert seconds == gpu_check.LONGEST
        asked.append(out)
        return {"parts": {"slots": {"status": "done", "seconds": 1.0}}}

    monkeypatch.setattr(gpu_check, "run_gpu_check", run)
    assert CHECK["command"][0] == "rfa"
    said = typer.testing.CliRunner().invoke(app, CHECK["command"][1:])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output.splitlines()[-1])["parts"]  # the output of `kubectl logs`
    assert "emptyDir" in written(JOB_POD, CHECK)[(Path(CHECK["workingDir"]) / asked[0]).parent]
    assert JOB["spec"]["activeDeadlineSeconds"] > gpu_check.LONGEST
    assert (JOB["spec"]["backoffLimit"], JOB_POD["restartPolicy"]) == (0, "Never")
