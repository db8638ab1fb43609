"""The files in `deploy/` and the Dockerfile are consistent with each other and with the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy"
COMPONENTS = {"api-server", "scheduler", "dag-processor", "triggerer"}
ALLOWED = {"postgres", "apache/kafka", "chrislusf/seaweedfs", "frazil"}
SERVICE_KEYS = {
    "build",
    "command",
    "configs",
    "depends_on",
    "deploy",
    "environment",
    "healthcheck",
    "image",
    "init",
    "ports",
    "restart",
    "volumes",
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "helm-values.yaml").read_text()))


def test_compose_services_use_only_declared_images_volumes_configs_and_dependencies(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        assert service["image"].partition(":")[0] in ALLOWED, name
        for needed, when in service.get("depends_on", {}).items():
            assert needed in services, name
            healthy = when["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in services[needed], f"{name} waits for {needed}"
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"], name
        for config in service.get("configs", ()):
            assert config["source"] in compose["configs"], name


def test_compose_configures_the_object_store_volumes_as_the_embedded_one_does(compose: dict[str, Any]) -> None:
    embedded = (CHECKOUT / "include/frazil/dev/object_store.py").read_text()
    sizes = [option for option in compose["services"]["object-store"]["command"] if "olume" in option]
    assert {option.partition("=")[0] for option in sizes} == {"-master.volumeSizeLimitMB", "-volume.max"}
    assert all(f'"{option}"' in embedded for option in sizes)


def test_compose_has_each_component_and_a_triggerer_for_each_queue(compose: dict[str, Any]) -> None:
    airflow = [s["command"] for s in compose["services"].values() if s.get("command", [""])[0] == "airflow"]
    assert {command[1] for command in airflow} == COMPONENTS
    queues = {tuple(command[2:]) for command in airflow if command[1] == "triggerer"}
    environment = compose["services"]["scheduler"]["environment"]
    assert queues == {(), ("--queues", "default"), ("--queues", environment["FRAZIL_WRITER_QUEUE"])}
    assert environment["AIRFLOW__TRIGGERER__QUEUES_ENABLED"] == "True"


def test_all_components_in_compose_have_the_same_environment(compose: dict[str, Any]) -> None:
    services = compose["services"]
    environments = [services[name]["environment"] for name in (*COMPONENTS, "triggerer-writers", "migrate")]
    assert all(environment == environments[0] for environment in environments)


def test_only_declarations_are_shared_between_hosts(compose: dict[str, Any], values: dict[str, Any]) -> None:
    home = re.search(r"FRAZIL_HOME=(\S+)", (CHECKOUT / "Dockerfile").read_text())
    assert home is not None
    for service in compose["services"].values():
        mounted = {volume.partition(":")[2] for volume in service.get("volumes", ())}
        assert home[1] not in mounted
    shared = [mount["mountPath"] for mount in values["dagProcessor"]["extraVolumeMounts"]]
    assert shared == [f"{home[1]}/declared"]
    assert values["triggerer"]["extraVolumes"] == [{"name": "frazil", "emptyDir": {}}]


def test_the_chart_uses_the_entry_point_and_the_user_of_the_image(values: dict[str, Any]) -> None:
    dockerfile = (CHECKOUT / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["/entrypoint"]' in dockerfile
    assert f"--uid {values['uid']} frazil" in dockerfile
    assert f"AIRFLOW_HOME={values['airflowHome']}" in dockerfile


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/compose.yaml", "deploy/helm-values.yaml"])
def test_no_deployment_file_contains_a_host_name(file: str) -> None:
    text = (CHECKOUT / file).read_text()
    assert not re.findall(r"\b[\w-]+(?:\.[\w-]+)*\.(?:com|io|org|net|dev)/", text)


def test_files_copied_by_the_dockerfile_are_included_in_the_build_context() -> None:
    sent = (CHECKOUT / ".dockerignore").read_text().split()
    for line in (CHECKOUT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
            for source in sources:
                assert (CHECKOUT / source).exists()
                assert f"!{Path(source).parts[0]}" in sent, source


def test_triggerers_have_the_service_account_whose_role_may_make_and_delete_executors(values: dict[str, Any]) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "chart/permissions.yaml").read_text()))
    found = {document["kind"]: document for document in documents}
    assert set(found) == {"ServiceAccount", "Role", "RoleBinding"}
    assert {document["metadata"]["namespace"] for document in documents} == {"frazil"}
    binding, account = found["RoleBinding"], found["ServiceAccount"]["metadata"]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "frazil-writers"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": "frazil"}]
    rights = {resource: set(rule["verbs"]) for rule in found["Role"]["rules"] for resource in rule["resources"]}
    assert rights["pods"] >= {"create", "get", "list", "watch", "delete", "deletecollection"}
    assert rights["configmaps"] >= {"create", "deletecollection"}
    assert "get" in rights["pods/log"]

    overlay = yaml.safe_load((DEPLOY / "helm-values-executors.yaml").read_text())
    assert set(overlay) <= set(values)
    assert overlay["triggerer"]["serviceAccount"] == {"create": False, "name": account["name"]}
    page = (CHECKOUT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
    assert {f"${{env:{each['name']}}}" for each in overlay["triggerer"]["env"]} == set(
        re.findall(r"\$\{env:POD_\w+}", page)
    )
