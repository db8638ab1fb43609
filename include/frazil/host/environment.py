"""Builds the environment of a supervised writer: the settings that it needs, without Airflow's secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from frazil.host.lock import INHERITED_LOCK

PREFIXES = (
    *("FRAZIL_", "PYICEBERG_", "PYSPARK_", "SPARK_", "YARN_", "AWS_", "AZURE_", "GOOGLE_", "HADOOP_"),
    *("KRB5", "LC_", "OPENLINEAGE_", "OTEL_"),
)
"""Beginnings of the names of variables that are passed on to writers."""
NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
        *("JAVA_HOME", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
        *("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
"""Names of variables that are passed on to writers."""


def build_writer_environment(
    referenced: Collection[str], base: Mapping[str, str], *, connections: Mapping[str, str], python: str, home: str
) -> dict[str, str]:
    """Return a writer's environment: known settings of `base`, `referenced` variables, and `connections` by id."""
    passed = {
        name: value
        for name, value in base.items()
        if (name in NAMES or name in referenced or name.startswith(PREFIXES)) and name != INHERITED_LOCK
    }
    exported = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()}
    # Unbuffered, because the log is read while the writer runs.
    fixed = {"FRAZIL_HOME": home, "PYTHONUNBUFFERED": "1"}
    return {"PYSPARK_PYTHON": python, **passed, **exported, **fixed}
