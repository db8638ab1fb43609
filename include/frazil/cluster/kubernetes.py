"""Controls a driver in a pod through the Kubernetes API, as the pod's service account or with a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests
import yaml
from requests.adapters import HTTPAdapter

from frazil.cluster.driver import ApiUnavailable, DriverState, DriverStatus, parse_json_object, send_request
from frazil.cluster.kubernetes_pod import CONTAINER
from frazil.errors import AccessDenied, EnvironmentUnusable

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    address: str
    """The API's URL without a trailing slash, such as `https://10.0.0.1:443`."""
    namespace: str = "default"
    token: str | None = None
    token_file: Path | None = None
    """The token's file, if any. Each session reads it, because Kubernetes replaces the token about every hour."""
    authority: Path | str | None = None
    """The certificate authority, as a file or PEM text. None uses the authorities of this host."""
    certificate: tuple[Path, Path] | None = None

    def session(self) -> requests.Session:
        """Create an authenticated session. Raises EnvironmentUnusable if the token cannot be read."""
        session = requests.Session()
        # Otherwise a CA bundle from the environment would replace the authority.
        session.trust_env = self.authority is None
        session.mount("https://", _AuthorityAdapter(self.authority))
        token = self.token
        if self.token_file:
            try:
                token = self.token_file.read_text().strip()
            except OSError as error:
                raise EnvironmentUnusable(f"cannot read the Kubernetes token: {error}") from error
        if token:
            session.headers["Authorization"] = f"Bearer {token}"
        if self.certificate:
            session.cert = (str(self.certificate[0]), str(self.certificate[1]))
        return session


class _AuthorityAdapter(HTTPAdapter):
    """Checks TLS certificates against a certificate authority from a file or from PEM text."""

    def __init__(self, authority: Path | str | None) -> None:
        self._authority = authority
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        if self._authority is not None:
            is_file = isinstance(self._authority, Path)
            file, text = (self._authority, None) if is_file else (None, str(self._authority))
            context = ssl.create_default_context(cafile=file, cadata=text)
            # By default, Python 3.13 refuses an authority without the extension "key usage", as clusters may have.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            kwargs["ssl_context"] = context
        super().init_poolmanager(*args, **kwargs)

    def cert_verify(self, conn: Any, url: str, verify: bool | str, cert: Any) -> None:
        super().cert_verify(conn, url, verify, cert)
        if self._authority is not None:
            conn.ca_certs = conn.ca_cert_dir = None  # use only the context's


def find_access(master: str, environment: Mapping[str, str], *, context: str | None = None) -> KubernetesAccess:
    """Find access by KUBECONFIG, the pod's service account, or `~/.kube/config`. Raises EnvironmentUnusable."""
    config_file = (environment.get("KUBECONFIG") or "").partition(os.pathsep)[0]
    if not config_file and environment.get("KUBERNETES_SERVICE_HOST"):
        access = read_service_account(environment)
    else:
        access = read_kubeconfig(Path(config_file or "~/.kube/config").expanduser(), context=context)
    address = master.removeprefix("k8s://").rstrip("/")
    return replace(access, address=address if "://" in address else f"https://{address}")


def read_service_account(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT_FOLDER) -> KubernetesAccess:
    """Return the access of this pod's service account. Raises EnvironmentUnusable outside of a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT") or "443"
    if not host or not (folder / "token").is_file():
        raise EnvironmentUnusable(
            f"not running in a pod with a service account (no {folder} or KUBERNETES_SERVICE_HOST): use a kubeconfig"
        )
    namespace = folder / "namespace"
    return KubernetesAccess(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        token_file=folder / "token",
        authority=folder / "ca.crt",
    )


def read_kubeconfig(file: Path, *, context: str | None = None) -> KubernetesAccess:
    """Return the access of a context in a kubeconfig, by default the current context. Raises EnvironmentUnusable."""
    try:
        config = yaml.safe_load(file.read_text())
        name = context or config["current-context"]
        chosen = _find_named(config, "contexts", name)["context"]
        cluster = _find_named(config, "clusters", chosen["cluster"])["cluster"]
        user = _find_named(config, "users", chosen["user"])["user"] if chosen.get("user") else {}
        address = cluster["server"].rstrip("/")
        data = cluster.get("certificate-authority-data")
        authority = base64.b64decode(data, validate=True).decode() if data else None
    except (OSError, yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise EnvironmentUnusable(f"cannot use the kubeconfig {file}: {type(error).__name__} {error}") from error
    for key in ("exec", "auth-provider", "client-key-data", "username"):
        if key in user:
            remedy = "create a token for a service account, and set the user's tokenFile to its file"
            text = f"the user of {name} in {file} has {key}, which frazil does not support: {remedy}"
            raise EnvironmentUnusable(text)
    if cluster.get("insecure-skip-tls-verify"):
        raise EnvironmentUnusable(
            f"the cluster of {name} in {file} has insecure-skip-tls-verify, which frazil does not support: set "
            "certificate-authority"
        )

    def path(value: str | None) -> Path | None:
        return file.parent / value if value else None

    certificate, key_file = path(user.get("client-certificate")), path(user.get("client-key"))
    return KubernetesAccess(
        address,
        namespace=chosen.get("namespace") or "default",
        token=user.get("token"),
        token_file=path(user.get("tokenFile")),
        authority=authority or path(cluster.get("certificate-authority")),
        certificate=(certificate, key_file) if certificate and key_file else None,
    )


def _find_named(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    for each in config[kind]:
        if each["name"] == name:
            return dict(each)
    raise ValueError(f"{kind} has no {name!r}")


API_NAME = "the Kubernetes API"
_WAITING_REASONS = {
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImagePull": "the image cannot be pulled",
    "InvalidImageName": "the image name is invalid",
    "CreateContainerConfigError": "a secret or config map that the pod uses is missing",
    "CreateContainerError": "the container cannot be created",
    "CrashLoopBackOff": "the container keeps crashing",
}


class DriverPod:
    """A `Driver` in a pod, which Kubernetes does not restart (`restartPolicy: Never`)."""

    def __init__(self, name: str, *, namespace: str, access: KubernetesAccess) -> None:
        self._name, self._namespace, self._access = name, namespace, access

    def create(self, pod: Mapping[str, Any]) -> None:
        """Create the pod, unless it exists. Raises AccessDenied, and EnvironmentUnusable if the API refuses the pod.
        Raises ApiUnavailable if it is unknown whether the pod exists, or if it would exceed the namespace's quota now.
        """
        response = self._request("POST", json=pod)
        if response.status_code in {200, 201, 202}:
            return
        body = parse_json_object(response, api=API_NAME)
        message = str(body.get("message"))
        if response.status_code == 409 and body.get("reason") == "AlreadyExists":
            return
        if response.status_code == 409 or "exceeded quota" in message:
            raise ApiUnavailable(f"{API_NAME} does not admit the driver's pod now: {message}")
        problem = f"cannot create the pod {self._name}: {self._describe_error_response(response, 'create')}"
        raise AccessDenied(problem) if response.status_code in {401, 403} else EnvironmentUnusable(problem)

    def status(self) -> DriverStatus:
        try:
            response = self._request("GET")
            if response.status_code in {404, 410}:
                reason = f"the pod {self._name} in the namespace {self._namespace} was deleted"
                return DriverStatus(DriverState.GONE, reason)
            if response.status_code != 200:
                return DriverStatus(DriverState.UNKNOWN, self._describe_error_response(response, "get"))
            return pod_status(parse_json_object(response, api=API_NAME))
        except ApiUnavailable as error:
            return DriverStatus(DriverState.UNKNOWN, str(error))

    def kill(self) -> None:
        try:
            response = self._request("DELETE", json={"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        except ApiUnavailable as error:
            raise EnvironmentUnusable(f"cannot delete the pod {self._name}: {error}") from error
        if response.status_code not in {200, 202, 404, 410}:
            reason = self._describe_error_response(response, "delete")
            raise AccessDenied(f"cannot delete the pod {self._name}: {reason}")

    def log(self, *, limit_bytes: int) -> str | None:
        try:
            # The API's byte limit counts from the beginning, so the last lines are requested.
            parameters = {"container": CONTAINER, "tailLines": max(1, limit_bytes // 100)}
            response = self._request("GET", "/log", params=parameters)
        except ApiUnavailable:
            return None
        return response.text[-limit_bytes:] or None if response.status_code == 200 else None

    def _request(self, method: str, part: str = "", **options: Any) -> requests.Response:
        pod = "" if method == "POST" else f"/{self._name}"
        path = f"/api/v1/namespaces/{self._namespace}/pods{pod}{part}"
        try:
            session = self._access.session()
        except EnvironmentUnusable as error:
            raise ApiUnavailable(str(error)) from error
        with session:
            return send_request(session, method, f"{self._access.address}{path}", api=API_NAME, **options)

    def _describe_error_response(self, response: requests.Response, verb: str) -> str:
        if response.status_code == 401:
            return f"{API_NAME} rejects frazil's token: it has expired, or belongs to another cluster"
        try:
            message = parse_json_object(response, api=API_NAME).get("message")
        except ApiUnavailable as error:
            return str(error)
        if response.status_code == 403:
            hint = f"if a permission is missing, add the verb {verb} for pods to the Role of frazil's service account"
            return f"{API_NAME} denies access in the namespace {self._namespace}: {message}; {hint}"
        return f"{API_NAME} answered {response.status_code}: {message or response.reason}"


def pod_status(pod: Mapping[str, Any]) -> DriverStatus:
    """Return the driver's status from a pod object. Raises ApiUnavailable for any other object."""
    status = pod.get("status")
    if pod.get("kind", "Pod") != "Pod" or not isinstance(status, dict):
        raise ApiUnavailable(f"{API_NAME} did not return a pod")
    phase = status.get("phase")
    statuses = status.get("containerStatuses") or [{}]
    container = next((each for each in statuses if each.get("name") == CONTAINER), statuses[0])
    ended = container.get("state", {}).get("terminated")
    cause = _disruption(status)
    if ended:  # other containers, such as a service mesh's proxy, may keep the pod in the phase Running
        return _terminated_status(ended, cause)
    if phase == "Succeeded":
        return DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0, cause)
    if phase == "Failed":
        reason = cause or "the pod failed; Kubernetes reports no reason"
        return DriverStatus(DriverState.FAILED, reason, cause=cause)
    if phase == "Unknown":
        return DriverStatus(DriverState.UNKNOWN, "the pod's node does not respond")
    if phase == "Running":
        deleted = pod.get("metadata", {}).get("deletionTimestamp")
        reason = "the pod is being deleted" if deleted else "the pod is running"
        return DriverStatus(DriverState.RUNNING, f"{reason}: {cause}" if cause else reason, cause=cause)
    return DriverStatus(DriverState.WAITING, _pending_reason(status, container))


def _disruption(status: Mapping[str, Any]) -> str | None:
    """Return why Kubernetes ends the pod. If its container exits with 0, only the condition says so."""
    if text := ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key)):
        return text
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason"))
    return None


def _terminated_status(ended: Mapping[str, Any], cause: str | None) -> DriverStatus:
    code, reason = ended.get("exitCode"), ended.get("reason")
    if code == 0:
        return DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0, cause)
    if cause:
        return DriverStatus(DriverState.FAILED, cause, code, cause)
    if reason == "OOMKilled":
        fix = "raise resources.driver-memory, or spark.driver.memoryOverhead"
        return DriverStatus(DriverState.FAILED, f"the container exceeded its memory limit: {fix}", code)
    message = f" ({reason})" if reason and reason != "Error" else ""
    return DriverStatus(DriverState.FAILED, f"the container exited with code {code}{message}", code)


def _pending_reason(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    waiting = container.get("state", {}).get("waiting") or {}
    if message := _WAITING_REASONS.get(waiting.get("reason", "")):
        return f"{message}: {waiting.get('message') or waiting['reason']}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node accepts the pod: {condition.get('message') or condition.get('reason')}"
    return f"the pod is pending: {waiting.get('reason') or 'not scheduled yet'}"
