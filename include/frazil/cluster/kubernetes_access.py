"""The address and credentials of the Kubernetes API, from the pod's own service account or from a kubeconfig."""

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

from frazil.errors import EnvironmentUnusable

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder in every pod with its service account's token, authority and namespace."""


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    address: str
    """The API's URL without a trailing slash, such as `https://10.0.0.1:443`."""
    namespace: str = "default"
    token: str | None = None
    token_file: Path | None = None
    """The token's file, if any. Each session reads it, because Kubernetes replaces the token about every hour."""
    authority: Path | str | None = None
    """The certificate authority, as a file or as PEM text; None for the authorities that this host trusts."""
    certificate: tuple[Path, Path] | None = None
    """The files with the client's certificate and its key."""

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
    named = (environment.get("KUBECONFIG") or "").partition(os.pathsep)[0]
    if not named and environment.get("KUBERNETES_SERVICE_HOST"):
        access = read_service_account(environment)
    else:
        access = read_kubeconfig(Path(named or "~/.kube/config").expanduser(), context=context)
    address = master.removeprefix("k8s://").rstrip("/")
    return replace(access, address=address if "://" in address else f"https://{address}")


def read_service_account(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT_FOLDER) -> KubernetesAccess:
    """Return the access of this pod's service account. Raises EnvironmentUnusable outside of a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
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
            raise EnvironmentUnusable(
                f"the user of {name} in {file} has {key}, which frazil does not support: {remedy}"
            )
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
    """Return the entry with this name from one of the kubeconfig's lists. Raises ValueError."""
    for each in config[kind]:
        if each["name"] == name:
            return dict(each)
    raise ValueError(f"{kind} has no {name!r}")
