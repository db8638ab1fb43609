"""The pod that frazil creates for a driver."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from frazil.cluster.driver import ClusterDriver
from frazil.cluster.kubernetes_pod import CONTAINER, POD_IP, POD_NAME, build_pod, pod_name
from frazil.errors import SpecError
from frazil.spec.resources import Resources

LAUNCH = "0123456789abcdef0123456789abcdef"
IMAGE = {"spark.kubernetes.container.image": "frazil:1"}
DRIVER = "spark.kubernetes.driver."


def driver(spark: dict[str, str], *, name: str = "ticks", environment: dict[str, str] | None = None) -> ClusterDriver:
    resources = Resources.model_validate({"master": "k8s://h", "spark": spark})
    return ClusterDriver(
        name, LAUNCH, "/x/drive_stream.py", ("ticks", "--driver", LAUNCH), resources, environment or {}
    )


def pod(spark: dict[str, str], **declared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod, and the driver's container in it."""
    found = build_pod(driver({**IMAGE, **spark}, **declared), namespace="lake")
    return found, next(each for each in found["spec"]["containers"] if each["name"] == CONTAINER)


def test_a_pod_runs_the_driver_once_and_knows_its_own_name_and_address() -> None:
    found, container = pod({"spark.kubernetes.authenticate.driver.serviceAccountName": "writers"})
    assert (found["apiVersion"], found["kind"]) == ("v1", "Pod")
    assert found["metadata"] == {
        "name": "frazil-ticks-0123456789ab-driver",
        "namespace": "lake",
        "labels": {"spark-role": "driver", "frazil-launch": LAUNCH},
        "annotations": {"frazil-stream": "ticks"},
    }
    assert (found["spec"]["restartPolicy"], found["spec"]["serviceAccountName"]) == ("Never", "writers")
    assert (container["image"], container["imagePullPolicy"]) == ("frazil:1", "IfNotPresent")
    assert container["command"] == ["python3", "-m", "frazil.spark_apps.drive_stream"]
    assert container["args"] == ["ticks", "--driver", LAUNCH]
    assert container["resources"] == {"requests": {"memory": "2048Mi", "cpu": "1"}, "limits": {"memory": "2048Mi"}}
    fields = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"] if "valueFrom" in each
    }
    assert fields == {POD_NAME: "metadata.name", POD_IP: "status.podIP"}


def test_a_pod_has_the_settings_that_the_spark_properties_declare() -> None:
    found, container = pod(
        {
            f"{DRIVER}container.image": "driver:1",
            f"{DRIVER}request.cores": "0.5",
            f"{DRIVER}limit.cores": "2",
            "spark.driver.memory": "3g",
            "spark.driver.memoryOverhead": "512",
            f"{DRIVER}label.team": "lake",
            f"{DRIVER}annotation.note": "n",
            "spark.kubernetes.node.selector.zone": "a",
            f"{DRIVER}node.selector.disk": "ssd",
            "spark.kubernetes.container.image.pullPolicy": "Always",
            "spark.kubernetes.container.image.pullSecrets": "one, two",
            "spark.pyspark.python": "/opt/python",
            "spark.kubernetes.driverEnv.TZ": "UTC",
            f"{DRIVER}secretKeyRef.KAFKA_PASSWORD": "kafka:password",
            f"{DRIVER}secrets.tls": "/etc/tls",
            f"{DRIVER}volumes.hostPath.data.mount.path": "/data",
            f"{DRIVER}volumes.hostPath.data.mount.readOnly": "true",
            f"{DRIVER}volumes.hostPath.data.options.path": "/host",
            f"{DRIVER}volumes.emptyDir.scratch.mount.path": "/scratch",
            f"{DRIVER}volumes.emptyDir.scratch.mount.subPath": "x",
            f"{DRIVER}volumes.emptyDir.scratch.options.sizeLimit": "1Gi",
            f"{DRIVER}ownPersistentVolumeClaim": "true",
        },
        environment={"KAFKA_PASSWORD": "hush"},
    )
    assert "hush" not in str(found)
    assert (container["image"], container["imagePullPolicy"]) == ("driver:1", "Always")
    assert container["command"][0] == "/opt/python"
    assert container["resources"]["requests"] == {"memory": "3584Mi", "cpu": "0.5"}
    assert container["resources"]["limits"] == {"memory": "3584Mi", "cpu": "2"}
    assert found["metadata"]["labels"]["team"] == "lake"
    assert found["metadata"]["annotations"]["note"] == "n"
    assert found["spec"]["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert found["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert {"name": "TZ", "value": "UTC"} in container["env"]
    password = {"secretKeyRef": {"name": "kafka", "key": "password"}}
    assert {"name": "KAFKA_PASSWORD", "valueFrom": password} in container["env"]
    assert found["spec"]["volumes"] == [
        {"name": "tls-secret", "secret": {"secretName": "tls"}},
        {"name": "data", "hostPath": {"path": "/host"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    assert container["volumeMounts"] == [
        {"name": "tls-secret", "mountPath": "/etc/tls"},
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "scratch", "mountPath": "/scratch", "readOnly": False, "subPath": "x"},
    ]


def test_a_pod_template_supplies_all_other_settings(tmp_path: Path) -> None:
    template = {
        "metadata": {"labels": {"team": "lake"}},
        "spec": {
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {"name": "mesh", "image": "mesh:1"},
                {
                    "name": CONTAINER,
                    "envFrom": [{"secretRef": {"name": "catalog"}}],
                    "resources": {"limits": {"gpu": 1}},
                },
            ],
        },
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(template))
    named = {f"{DRIVER}podTemplateFile": str(file)}
    # Variables may come from the secrets of envFrom, whose keys frazil cannot read.
    found, container = pod(named, environment={"KAFKA_PASSWORD": "hush"})
    assert found["metadata"]["labels"] == {"team": "lake", "spark-role": "driver", "frazil-launch": LAUNCH}
    assert found["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert [each["image"] for each in found["spec"]["containers"]] == ["mesh:1", "frazil:1"]
    assert container["envFrom"] == [{"secretRef": {"name": "catalog"}}]
    assert container["resources"]["limits"] == {"gpu": 1, "memory": "2048Mi"}
    file.write_text("- a")
    with pytest.raises(SpecError, match=r"the pod template .*pod\.yaml is not a pod object"):
        pod(named)
    file.unlink()
    with pytest.raises(SpecError, match=r"cannot read the pod template .*pod\.yaml"):
        pod(named)


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        ({f"{DRIVER}scheduler.name": "x"}, "does not support resources.spark.spark.kubernetes.driver.scheduler.name"),
        ({f"{DRIVER}pod.name": "x"}, "does not support resources.spark.spark.kubernetes.driver.pod.name"),
        ({f"{DRIVER}volumes.csi.x.mount.path": "/x"}, "set the volume in a pod template"),
        ({"spark.driver.memory": "much"}, "'much' in resources.spark is not a size"),
    ],
)
def test_a_pod_that_frazil_cannot_make_as_declared_is_refused(spark: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        pod(spark)


def test_a_pod_contains_no_secret_in_plain_text() -> None:
    with pytest.raises(SpecError, match=r"needs KAFKA_PASSWORD .* as spark\.kubernetes\.driver\.secretKeyRef\.KAFKA_"):
        pod({}, environment={"KAFKA_PASSWORD": "hush"})


@given(st.text(min_size=1))
def test_any_stream_has_a_pod_name_that_kubernetes_accepts(name: str) -> None:
    found = pod_name(driver({}, name=name))
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", found), found
