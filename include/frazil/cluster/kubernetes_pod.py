"""Builds a driver's pod, without Spark. The driver is the pod's Python; its JVM requests the executors' pods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from frazil.cluster.driver import PYTHON_OVERHEAD_MIB, ClusterDriver
from frazil.errors import SpecError

CONTAINER = "spark-kubernetes-driver"
"""Spark's name for the driver's container. An admission controller may add others."""
POD_NAME, POD_IP = "FRAZIL_POD_NAME", "FRAZIL_POD_IP"
"""Variables in the driver's pod, with the pod's name and address."""
IN_CLUSTER_MASTER = "k8s://https://kubernetes.default.svc"
"""The API's address from inside any pod. `resources.master` may be for hosts outside the cluster."""
PROPERTIES = ("spark.kubernetes.", "spark.pyspark.", "spark.driver.memory")
"""Prefixes of properties that this module uses. The driver resolves references in all others."""
_KUBERNETES_PREFIX = "spark.kubernetes."
_DRIVER_PREFIX = f"{_KUBERNETES_PREFIX}driver."
_TEMPLATE_PROPERTY = f"{_DRIVER_PREFIX}podTemplateFile"
_VOLUMES_PREFIX = f"{_DRIVER_PREFIX}volumes."
_SUPPORTED_PREFIXES = tuple(
    f"{_DRIVER_PREFIX}{each}"
    for each in (
        *("container.image", "request.cores", "limit.cores", "podTemplateFile"),
        *("label.", "annotation.", "node.selector.", "secretKeyRef.", "secrets.", "volumes."),
        # The driver's JVM reads these for its executors.
        *("ownPersistentVolumeClaim", "reusePersistentVolumeClaim", "waitToReusePersistentVolumeClaim"),
    )
)


def pod_name(driver: ClusterDriver) -> str:
    """Return the name of the driver's pod. It is unique to a launch, so Kubernetes refuses a second submission."""
    slug = re.sub(r"[^a-z0-9]+", "-", driver.application.lower()).strip("-")
    end = f"-{driver.launch_id[:12]}-driver"
    return f"frazil-{slug}"[: 63 - len(end)].rstrip("-") + end


def build_pod(driver: ClusterDriver, *, namespace: str) -> dict[str, Any]:
    """Return the pod object to create: the declared template with the driver's container. Raises SpecError."""
    spark = driver.resources.spark
    pod = _read_template(driver)
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    containers = spec.setdefault("containers", [])
    container = next((each for each in containers if each.get("name") == CONTAINER), None)
    if container is None:
        container = {"name": CONTAINER}
        containers.insert(0, container)
    _check_variables_and_properties(driver, container)
    metadata |= {"name": pod_name(driver), "namespace": namespace}
    metadata["labels"] = {
        **metadata.get("labels", {}),
        **_strip_prefix(spark, f"{_DRIVER_PREFIX}label."),
        "spark-role": "driver",
        "frazil-launch": driver.launch_id,
    }
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        **_strip_prefix(spark, f"{_DRIVER_PREFIX}annotation."),
        "frazil-stream": driver.application,
    }
    spec["restartPolicy"] = "Never"  # the supervisor decides whether a writer is restarted
    if account := _first_value(spark, "authenticate.driver.serviceAccountName", "authenticate.serviceAccountName"):
        spec["serviceAccountName"] = account
    general = _strip_prefix(spark, f"{_KUBERNETES_PREFIX}node.selector.")
    if selector := general | _strip_prefix(spark, f"{_DRIVER_PREFIX}node.selector."):
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **selector}
    if secrets := spark.get(f"{_KUBERNETES_PREFIX}container.image.pullSecrets"):
        spec["imagePullSecrets"] = [{"name": name.strip()} for name in secrets.split(",")]
    if image := _first_value(spark, "driver.container.image", "container.image"):
        container["image"] = image
    container["imagePullPolicy"] = spark.get(f"{_KUBERNETES_PREFIX}container.image.pullPolicy", "IfNotPresent")
    python = spark.get("spark.pyspark.driver.python", spark.get("spark.pyspark.python", "python3"))
    container["command"] = [python, "-m", f"frazil.spark_apps.{Path(driver.program).stem}"]
    container["args"] = list(driver.arguments)
    container["env"] = [*container.get("env", ()), *_build_variables(spark)]
    container["resources"] = _build_resources(driver, container.get("resources", {}))
    for name, source, mount in _build_volumes(spark):
        spec.setdefault("volumes", []).append({"name": name, **source})
        container.setdefault("volumeMounts", []).append({"name": name, **mount})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _check_variables_and_properties(driver: ClusterDriver, template: Mapping[str, Any]) -> None:
    spark, stream = driver.resources.spark, driver.application
    secrets = f"{_DRIVER_PREFIX}secretKeyRef."
    declared = {each.get("name") for each in template.get("env", ())}
    exposed = sorted(name for name in driver.environment if f"{secrets}{name}" not in spark and name not in declared)
    if exposed and "envFrom" not in template:
        raise SpecError(
            f"stream {stream} needs {', '.join(exposed)} in its driver's pod: set the secret and key of each in "
            f"resources.spark, as {secrets}{exposed[0]}: secret:key"
        )
    for key in spark:
        if key.startswith(_DRIVER_PREFIX) and not key.startswith(_SUPPORTED_PREFIXES):
            raise SpecError(
                f"stream {stream}: frazil creates the driver's pod and does not support resources.spark.{key}: set it "
                f"in a pod template, and name the template in resources.spark.{_TEMPLATE_PROPERTY}"
            )


def _read_template(driver: ClusterDriver) -> dict[str, Any]:
    file = driver.resources.spark.get(_TEMPLATE_PROPERTY)
    if file is None:
        return {}
    try:
        template = yaml.safe_load(Path(file.removeprefix("file://")).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"stream {driver.application}: cannot read the pod template {file}: {error}") from error
    if not isinstance(template, dict):
        raise SpecError(f"stream {driver.application}: the pod template {file} is not a pod object")
    return template


def _build_resources(driver: ClusterDriver, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container's resources. Memory is always limited, the CPU only if the declaration limits it."""
    spark, declared = driver.resources.spark, driver.resources
    overhead = _to_mebibytes(spark.get("spark.driver.memoryOverhead", f"{PYTHON_OVERHEAD_MIB}m"), driver)
    heap = _to_mebibytes(spark.get("spark.driver.memory", f"{max(1, declared.driver_memory // 2**20)}m"), driver)
    memory = {"memory": f"{heap + overhead}Mi"}
    limit = spark.get(f"{_DRIVER_PREFIX}limit.cores")
    return {
        **template,
        "requests": {**template.get("requests", {}), **memory, "cpu": spark.get(f"{_DRIVER_PREFIX}request.cores", "1")},
        "limits": {**template.get("limits", {}), **memory, **({"cpu": limit} if limit else {})},
    }


def _to_mebibytes(text: str, driver: ClusterDriver) -> int:
    """Convert a size in Spark's notation, such as `2g`, to MiB. A number without a unit is in MiB."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if match is None:
        problem = f"{text!r} in resources.spark is not a size. Write a size such as 2g"
        raise SpecError(problem, stream=driver.application)
    factor = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2}[match[2]]
    return max(1, int(int(match[1]) * factor))


def _build_variables(spark: Mapping[str, str]) -> list[dict[str, Any]]:
    values = {"PYTHONUNBUFFERED": "1", **_strip_prefix(spark, f"{_KUBERNETES_PREFIX}driverEnv.")}
    fields = {POD_NAME: "metadata.name", POD_IP: "status.podIP"}
    secret_keys = _strip_prefix(spark, f"{_DRIVER_PREFIX}secretKeyRef.")
    secrets = {name: where.partition(":") for name, where in secret_keys.items()}
    sources = {name: {"fieldRef": {"fieldPath": path}} for name, path in fields.items()}
    sources |= {name: {"secretKeyRef": {"name": secret, "key": key}} for name, (secret, _, key) in secrets.items()}
    plain: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    return plain + [{"name": name, "valueFrom": source} for name, source in sources.items()]


def _build_volumes(spark: Mapping[str, str]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    volumes: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (f"{name}-secret", {"secret": {"secretName": name}}, {"mountPath": path})
        for name, path in _strip_prefix(spark, f"{_DRIVER_PREFIX}secrets.").items()
    ]
    declared: dict[tuple[str, str], dict[str, str]] = {}
    for key, value in _strip_prefix(spark, _VOLUMES_PREFIX).items():
        kind, _, setting = key.partition(".")
        name, _, option = setting.partition(".")
        if kind not in {"hostPath", "emptyDir", "persistentVolumeClaim", "nfs"} or not option:
            raise SpecError(
                f"frazil does not support resources.spark.{_VOLUMES_PREFIX}{key}: set the volume in a pod template, "
                f"and name the template in resources.spark.{_TEMPLATE_PROPERTY}"
            )
        declared.setdefault((kind, name), {})[option] = value
    for (kind, name), options in declared.items():
        source = _strip_prefix(options, "options.")
        mount = {"mountPath": options.get("mount.path", ""), "readOnly": options.get("mount.readOnly") == "true"}
        if path := options.get("mount.subPath"):
            mount["subPath"] = path
        volumes.append((name, {kind: source}, mount))
    return volumes


def _strip_prefix(spark: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in spark.items() if key.startswith(prefix)}


def _first_value(spark: Mapping[str, str], *keys: str) -> str | None:
    return next((spark[f"{_KUBERNETES_PREFIX}{key}"] for key in keys if f"{_KUBERNETES_PREFIX}{key}" in spark), None)
