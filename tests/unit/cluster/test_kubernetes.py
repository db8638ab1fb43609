"""A driver in a pod, with written (not recorded) responses of the Kubernetes API v1."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.cluster.driver import ApiUnavailable, DriverState
from frazil.cluster.kubernetes import DriverPod, KubernetesAccess, find_access, read_kubeconfig, read_service_account
from frazil.cluster.kubernetes_pod import CONTAINER
from frazil.errors import AccessDenied, EnvironmentUnusable
from tests.secured_kafka import Authority

from .conftest import Answer, Api

PATH = "/api/v1/namespaces/frazil/pods/p"


def pod(phase: str, *, container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": "mesh", "state": {"running": {}}}, {"name": CONTAINER, "state": container or {}}]
    found = {"phase": phase, **({"containerStatuses": containers} if container else {}), **status}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "status": found}


def driver(api: Api, **access: Any) -> DriverPod:
    return DriverPod("p", namespace="frazil", access=KubernetesAccess(api.address, **access))


def failure(status: int, reason: str) -> Answer:
    return Answer(status, {"kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": status})


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}
DISRUPTION = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
    "message": "The node was low on resource: memory.",
}


@pytest.mark.parametrize(
    ("body", "state", "code", "says"),
    [
        (pod("Pending"), DriverState.WAITING, None, "not scheduled yet"),
        (pod("Pending", conditions=[UNSCHEDULABLE]), DriverState.WAITING, None, "no node accepts the pod: 0/3 nodes"),
        (pod("Pending", container={"waiting": {"reason": "ContainerCreating"}}), DriverState.WAITING, None, "Creating"),
        (
            pod("Pending", container={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}}),
            DriverState.WAITING,
            None,
            "the image cannot be pulled: Back-off pulling x",
        ),
        (
            pod("Pending", container={"waiting": {"reason": "CreateContainerConfigError"}}),
            DriverState.WAITING,
            None,
            "a secret or config map that the pod uses is missing",
        ),
        (pod("Running", container={"running": {"startedAt": "x"}}), DriverState.RUNNING, None, "the pod is running"),
        (pod("Running", container={"terminated": {"exitCode": 13}}), DriverState.FAILED, 13, "with code 13"),
        (pod("Succeeded", container={"terminated": {"exitCode": 0}}), DriverState.SUCCEEDED, 0, "ended normally"),
        (pod("Succeeded"), DriverState.SUCCEEDED, 0, "ended normally"),
        (
            pod("Failed", container={"terminated": {"exitCode": 11, "reason": "Error"}}),
            DriverState.FAILED,
            11,
            "the container exited with code 11",
        ),
        (
            pod("Failed", container={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            DriverState.FAILED,
            137,
            "exceeded its memory limit: raise resources.driver-memory",
        ),
        (pod("Failed", reason="Evicted", message="low on disk"), DriverState.FAILED, None, "Evicted: low on disk"),
        (
            pod("Failed", container={"terminated": {"exitCode": 137}}, reason="Evicted", message="low on memory"),
            DriverState.FAILED,
            137,
            "Evicted: low on memory",
        ),
        (
            pod("Failed", container={"terminated": {"exitCode": 0}}, reason="Evicted", message="low on memory"),
            DriverState.SUCCEEDED,
            0,
            "the driver ended normally",
        ),
        (pod("Failed"), DriverState.FAILED, None, "reports no reason"),
        (pod("Unknown"), DriverState.UNKNOWN, None, "the pod's node does not respond"),
        ({"kind": "Status"}, DriverState.UNKNOWN, None, "did not return a pod"),
        ({"hello": 1}, DriverState.UNKNOWN, None, "did not return a pod"),
    ],
)
def test_each_pod_state_maps_to_the_expected_driver_state(
    api: Api, body: dict[str, Any], state: DriverState, code: int | None, says: str
) -> None:
    api.answers["GET", PATH] = Answer(body=body)
    found = driver(api).status()
    assert (found.state, found.exit_code) == (state, code)
    assert says in found.reason


def test_a_pod_that_is_being_deleted_still_runs(api: Api) -> None:
    body = pod("Running", container={"running": {}})
    body["metadata"]["deletionTimestamp"] = "2026-11-22T22:54:42Z"
    api.answers["GET", PATH] = Answer(body=body)
    assert driver(api).status() == driver(api).status()
    assert (driver(api).status().state, driver(api).status().reason) == (
        DriverState.RUNNING,
        "the pod is being deleted",
    )


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (pod("Failed", reason="Evicted", message="low on disk"), "Evicted: low on disk"),
        (
            pod("Failed", container={"terminated": {"exitCode": 0}}, reason="Evicted", message="low on memory"),
            "Evicted: low on memory",
        ),
        # Kubelet drops an eviction's reason if the container exits with 0.
        (pod("Succeeded", container={"terminated": {"exitCode": 0}}, conditions=[DISRUPTION]), DISRUPTION["message"]),
        (pod("Failed", container={"terminated": {"exitCode": 143}}, conditions=[DISRUPTION]), DISRUPTION["message"]),
        (pod("Running", container={"running": {}}, conditions=[DISRUPTION]), DISRUPTION["message"]),
        (pod("Running", container={"running": {}}), None),
        (pod("Failed", container={"terminated": {"exitCode": 1}}, conditions=[UNSCHEDULABLE]), None),
    ],
)
def test_the_reported_cause_is_the_reason_why_kubernetes_ended_the_pod(
    api: Api, body: dict[str, Any], cause: str | None
) -> None:
    api.answers["GET", PATH] = Answer(body=body)
    assert driver(api).status().cause == cause


@pytest.mark.parametrize("status", [404, 410])
def test_a_pod_that_was_deleted_is_gone(api: Api, status: int) -> None:
    api.answers["GET", PATH] = failure(status, "gone")
    found = driver(api).status()
    assert (found.state, found.exit_code) == (DriverState.GONE, None)
    assert "the pod p in the namespace frazil was deleted" in found.reason
    api.answers["DELETE", PATH] = failure(status, "gone")
    driver(api).kill()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (failure(401, "Unauthorized"), "rejects frazil's token: it has expired, or belongs to another cluster"),
        (failure(403, "Forbidden"), "add the verb get for pods to the Role of frazil's service account"),
        (failure(400, "bad"), "the Kubernetes API answered 400: bad"),
        (failure(429, "slow down"), "answered 429"),
        (failure(500, "etcd"), "answered 500"),
        (Answer(200, "<html>Log in</html>"), "instead of JSON"),
    ],
)
def test_an_unusable_answer_of_the_cluster_api_means_unknown_and_never_ended(
    api: Api, answer: Answer, says: str
) -> None:
    api.answers["GET", PATH] = answer
    found = driver(api).status()
    assert found.state is DriverState.UNKNOWN
    assert says in found.reason


def test_kill_deletes_the_pod_at_once_and_names_the_missing_permission(api: Api) -> None:
    api.answers["DELETE", PATH] = Answer(200, pod("Running"))
    driver(api, token="t").kill()
    method, path, headers, body = api.requested[0]
    assert (method, path, headers["Authorization"]) == ("DELETE", PATH, "Bearer t")
    assert body["gracePeriodSeconds"] == 0
    api.answers["DELETE", PATH] = failure(403, "Forbidden")
    with pytest.raises(
        AccessDenied,
        match=r"cannot delete the pod p: .* add the verb delete for pods to the Role of frazil's service account",
    ):
        driver(api).kill()
    api.answers["DELETE", PATH] = failure(500, "etcd")
    with pytest.raises(EnvironmentUnusable, match="cannot delete the pod p: the Kubernetes API answered 500"):
        driver(api).kill()


def test_the_log_is_the_end_of_the_drivers_container(api: Api) -> None:
    assert driver(api).log(limit_bytes=100) is None
    api.answers["GET", f"{PATH}/log"] = Answer(body="one\ntwo\nthree\n")
    assert driver(api).log(limit_bytes=6) == "three\n"
    assert api.requested[-1][1] == f"{PATH}/log?container={CONTAINER}&tailLines=1"
    api.answers["GET", f"{PATH}/log"] = failure(400, "container is waiting to start")
    assert driver(api).log(limit_bytes=100) is None


def test_a_pod_uses_its_own_service_account_and_reads_the_token_for_each_request(api: Api, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match="not running in a pod with a service account"):
        read_service_account({}, tmp_path)
    for name, text in {"token": "one\n", "namespace": "frazil", "ca.crt": "x"}.items():
        (tmp_path / name).write_text(text)
    found = read_service_account({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (found.address, found.namespace) == ("https://[fd00::1]:443", "frazil")
    assert found.authority == tmp_path / "ca.crt"
    asking = driver(api, token_file=tmp_path / "token")
    for token in ("one", "two"):
        (tmp_path / "token").write_text(token)
        asking.status()
        assert api.requested[-1][2]["Authorization"] == f"Bearer {token}"
    (tmp_path / "token").unlink()
    assert "cannot read the Kubernetes token" in asking.status().reason


def kubeconfig(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    found = {
        "current-context": "lake",
        "contexts": [{"name": "lake", "context": {"cluster": "c", "user": "u", "namespace": "frazil"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://k8s:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(found))
    return file


def test_a_kubeconfig_gives_the_api_address_and_credentials(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    file = kubeconfig(tmp_path, cluster={"certificate-authority-data": data}, user={"token": "t"})
    found = read_kubeconfig(file)
    assert (found.address, found.namespace, found.token) == ("https://k8s:6443", "frazil", "t")
    assert found.authority == "PEM"
    user = {"tokenFile": "/run/token", "client-certificate": "c.pem", "client-key": "k.pem"}
    found = read_kubeconfig(kubeconfig(tmp_path, cluster={"certificate-authority": "ca.pem"}, user=user))
    assert (found.token_file, found.authority) == (Path("/run/token"), tmp_path / "ca.pem")
    assert found.certificate == (tmp_path / "c.pem", tmp_path / "k.pem")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"user": {"exec": {"command": "aws"}}}, "has exec, which frazil does not support: create a token"),
        ({"user": {"client-key-data": "x"}}, "has client-key-data"),
        (
            {"cluster": {"insecure-skip-tls-verify": True}},
            "has insecure-skip-tls-verify, which frazil does not support: set certificate-authority",
        ),
        ({"cluster": {"server": None}}, "cannot use the kubeconfig"),
        ({"cluster": {"certificate-authority-data": "%"}}, "cannot use the kubeconfig"),
    ],
)
def test_a_kubeconfig_that_frazil_cannot_use_is_refused(tmp_path: Path, parts: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvironmentUnusable, match=says):
        read_kubeconfig(kubeconfig(tmp_path, **parts))


@pytest.mark.parametrize("text", ["", "- a", "current-context: x", "{", "current-context: x\ncontexts: []"])
def test_an_invalid_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(EnvironmentUnusable, match="cannot use the kubeconfig"):
        read_kubeconfig(tmp_path / "config")


def test_the_api_is_trusted_by_the_named_authority_and_by_no_other(apis: Any, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(ours.issue("api"))
    api = apis(secure)
    api.answers["GET", PATH] = Answer(body=pod("Running"))
    for authority in (ours.certificate, ours.certificate.read_text()):
        assert driver(api, authority=authority).status().state is DriverState.RUNNING
    for wrong in (None, others.certificate, others.certificate.read_text()):
        found = driver(api, authority=wrong).status()
        assert found.state is DriverState.UNKNOWN
        assert "the certificate of the Kubernetes API is not trusted" in found.reason


def test_an_authority_without_key_usage_is_trusted_for_valid_certificates_of_the_host(
    apis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13's flag VERIFY_X509_STRICT is cleared. The host and the dates are still verified."""

    def strict(**arguments: Any) -> ssl.SSLContext:
        context = default(**arguments)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    default = ssl.create_default_context
    monkeypatch.setattr("frazil.cluster.kubernetes.ssl.create_default_context", strict)
    ours = Authority(tmp_path / "ours", strict=False)
    issued = [ours.issue("other", host="api.example"), ours.issue("expired", valid_days=-1), ours.issue("api")]
    states = []
    for certificate in issued:
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secure.load_cert_chain(certificate)
        api = apis(secure)
        api.answers["GET", PATH] = Answer(body=pod("Running"))
        states.append(driver(api, authority=ours.certificate).status().state)
    assert states == [DriverState.UNKNOWN, DriverState.UNKNOWN, DriverState.RUNNING]


PODS = "/api/v1/namespaces/frazil/pods"


def test_a_pod_is_created_once(api: Api) -> None:
    body = {"kind": "Pod", "metadata": {"name": "p"}}
    api.answers["POST", PODS] = Answer(201, body)
    driver(api, token="t").create(body)
    method, path, headers, sent = api.requested[0]
    assert (method, path, headers["Authorization"], sent) == ("POST", PODS, "Bearer t", body)
    api.answers["POST", PODS] = failure(409, "AlreadyExists")
    driver(api).create(body)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (
            failure(403, "pods p is forbidden: exceeded quota: none"),
            ApiUnavailable,
            "does not admit the driver's pod now",
        ),
        (failure(409, "Conflict"), ApiUnavailable, "does not admit the driver's pod now: Conflict"),
        (failure(500, "etcd"), ApiUnavailable, "answered 500"),
        (
            failure(403, "pods is forbidden"),
            AccessDenied,
            "pods is forbidden; if a permission is missing, add the verb create for pods to the Role of",
        ),
        (failure(401, "Unauthorized"), AccessDenied, "rejects frazil's token"),
        (
            failure(404, "namespaces frazil not found"),
            EnvironmentUnusable,
            "cannot create the pod p: .* frazil not found",
        ),
        (
            failure(422, "spec.containers: Required value"),
            EnvironmentUnusable,
            "answered 422: spec.containers: Required",
        ),
    ],
)
def test_a_rejected_pod_is_reported_with_the_reason(
    api: Api, answer: Answer, error: type[Exception], says: str
) -> None:
    api.answers["POST", PODS] = answer
    with pytest.raises(error, match=says):
        driver(api).create({})


def test_the_kubernetes_api_address_comes_from_the_declared_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kubeconfig(tmp_path, user={"tokenFile": "token"})
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for master, address in {"k8s://h:6443": "https://h:6443", "k8s://http://h/": "http://h"}.items():
        found = find_access(master, {"KUBECONFIG": f"{file}:other", **in_pod})
        assert (found.address, found.token_file) == (address, tmp_path / "token")
    with pytest.raises(EnvironmentUnusable, match="not running in a pod with a service account"):
        find_access("k8s://h", in_pod)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(EnvironmentUnusable, match=r"cannot use the kubeconfig .*\.kube/config"):
        find_access("k8s://h", {})
