"""A real Kubernetes node. Its images mount the programs and libraries of this machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import yaml

from frazil.dev.process import LOOPBACK, choose_free_port
from frazil.home import cache_folder
from frazil.spark.java import require_java

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
BINARIES = "FRAZIL_KUBERNETES"
"""The variable with the folder of Kubernetes's binaries."""
HOST, NODE = "10.89.0.1", "10.89.0.2"
"""Addresses of this machine and of the node. Pods can connect to servers on the first one."""
NAMESPACE, ACCOUNT = "frazil", "frazil-writers"
IMAGE = "localhost/frazil:1"
TOKEN = ("create", "token", ACCOUNT, "--namespace", NAMESPACE, "--duration", "24h")
PROGRAMS = ("containerd", "runc", "iptables", "ip", "openssl", "nsenter", "unshare")


def what_is_missing(*programs: str) -> str | None:
    """Return why this machine cannot run a node with these programs; None if it can."""
    if os.geteuid():
        return "a Kubernetes node needs root"
    folder = os.environ.get(BINARIES)
    if not folder or not (Path(folder) / "kubelet").is_file():
        return f"set {BINARIES} to a folder with the binaries of Kubernetes 1.34 (see tests/kubernetes/node.sh)"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    missing += [name for name in programs if not (Path(folder) / name).is_file()]
    return f"a Kubernetes node needs {', '.join(missing)}" if missing else None


class Node:
    """One node. All of its files are in `folder`, and `down` ends all of its processes."""

    master = f"k8s://https://{NODE}:6443"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def up(self) -> None:
        self._script("up")
        pause, image = self.folder / "pause.tar", self.folder / "image.tar"
        program = (Path(os.environ[BINARIES]) / "pause").read_bytes()
        make_image(pause, "localhost/pause:1", {"pause": program}, {}, entrypoint=["/pause"])
        java, spark = str(require_java().resolve().parents[1]), str(Path(pyspark.__file__).parent)
        files = {
            "opt/entrypoint.sh": (HERE / "entrypoint.sh").read_bytes(),
            "etc/passwd": b"root:x:0:0::/tmp:/bin/bash\n",
            "etc/nsswitch.conf": b"hosts: files dns\n",
        }
        links = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
        environment = {"JAVA_HOME": java, "SPARK_HOME": spark, "HOME": "/tmp"}
        make_image(image, IMAGE, files, links, entrypoint=["/opt/entrypoint.sh"], environment=environment)
        for each in (pause, image):
            self.load(each)
        self.kubectl("create", "namespace", NAMESPACE)
        self.kubectl("apply", "--filename", str(CHECKOUT / "deploy/chart/permissions.yaml"))

    def load(self, archive: Path) -> None:
        """Make the image of a docker archive available to pods."""
        self._script("load", str(archive))

    def restart(self) -> None:
        """End all processes of the node at once, and start it again."""
        self._script("restart")

    def set_memory_reserve(self, available: str) -> None:
        """Make kubelet evict pods while less memory than `available` is available, such as `50%`, once it restarts."""
        file = self.folder / "kubelet.yaml"
        found = yaml.safe_load(file.read_text())
        found["evictionSoft"]["memory.available"] = available  # the hard threshold would shrink the node, too
        file.write_text(yaml.safe_dump(found))

    def down(self) -> None:
        self._script("down")

    def kubeconfig(self, file: Path) -> Path:
        """Write a kubeconfig for the service account of `deploy/`. It names the file with the account's token."""
        found = yaml.safe_load((self.folder / "admin.conf").read_text())
        file.with_suffix(".token").write_text(self.kubectl(*TOKEN))
        found["users"][0]["user"] = {"tokenFile": file.with_suffix(".token").name}
        file.write_text(yaml.safe_dump(found))
        return file

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._run("kubectl", *arguments, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        return self._run("helm", *arguments)

    def _run(self, program: str, *arguments: str, stdin: str | None = None) -> str:
        command = [f"{os.environ[BINARIES]}/{program}", "--kubeconfig", str(self.folder / "admin.conf"), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of drivers or of executors."""
        words = ("get", "pods", "--namespace", NAMESPACE, "--selector", f"spark-role={role}", "--output", "json")
        return list(json.loads(self.kubectl(*words))["items"])

    def _script(self, *arguments: str) -> None:
        with (self.folder.parent / "node.log").open("a") as log:
            done = subprocess.run(
                [str(HERE / "node.sh"), *arguments],
                env={**os.environ, "STATE": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=300,
                check=False,
            )
        assert done.returncode == 0, (self.folder.parent / "node.log").read_text()


def pod_mounts(folder: Path) -> dict[str, Path]:
    """Return folders that pods mount at the same paths, by volume name. Only `run` and `cache` are writable."""
    return {
        "run": folder,
        "usr": Path("/usr"),
        "java": Path("/etc/java-17-openjdk"),
        "base": Path(sys.base_prefix),
        "venv": Path(sys.prefix).resolve(),
        "checkout": CHECKOUT,
        "cache": cache_folder().parent,
    }


def pod_environment() -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(cache_folder().parent), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def broker_settings(port: int, pods: int) -> dict[str, str]:
    """Return the settings of a broker that listens on `port` of loopback, and for pods on `pods` of HOST."""
    controller = choose_free_port()
    listeners = f"PLAINTEXT://{LOOPBACK}:{port},PODS://{HOST}:{pods}"
    return {
        "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PODS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


def catalog_variables(folder: Path) -> dict[str, str]:
    """Return the variables of a catalog that is a file of `folder`, which pods mount."""
    return {
        "PYICEBERG_CATALOG__DEFAULT__TYPE": "sql",
        "PYICEBERG_CATALOG__DEFAULT__URI": f"sqlite:///{folder}/catalog.db",
        "PYICEBERG_CATALOG__DEFAULT__WAREHOUSE": f"file://{folder}/warehouse",
    }


def resources(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a stream's `resources` with these Spark properties: its driver and executors are pods."""
    return {
        "master": Node.master,
        "deploy-mode": "cluster",
        "cores": 2,
        "driver-memory": "512MiB",
        "spark": dict(properties),
    }


def spark_properties(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return properties for pods that mount `folder`, this Python and this checkout at the same paths as here."""
    found = {
        "spark.kubernetes.namespace": NAMESPACE,
        "spark.kubernetes.container.image": IMAGE,
        "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
        "spark.kubernetes.driver.request.cores": "0.2",  # two cores hold them all
        "spark.kubernetes.executor.request.cores": "0.2",
        "spark.pyspark.python": sys.executable,
        "spark.kubernetes.allocation.batch.delay": "1s",
    }
    environment = pod_environment() | dict(environment)
    for who in ("driver", "executor"):
        for name, path in pod_mounts(folder).items():
            key = f"spark.kubernetes.{who}.volumes.hostPath.{name}"
            found |= {f"{key}.mount.path": str(path), f"{key}.options.path": str(path)}
            found |= {f"{key}.mount.readOnly": str(name not in {"run", "cache"}).lower()}
    found |= {f"spark.kubernetes.driverEnv.{name}": value for name, value in environment.items()}
    return found | {f"spark.executorEnv.{name}": value for name, value in environment.items()}


def make_image(  # noqa: PLR0913 - what an image is made of
    out: Path,
    name: str,
    files: Mapping[str, bytes],
    links: Mapping[str, str],
    *,
    entrypoint: list[str],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Write a Docker archive with one layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(temporary)
        for path, target in links.items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for path, data in files.items():
            _add(tar, path, data)
    data = layer.getvalue()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(0)),
        "config": {
            "Entrypoint": entrypoint,
            "Env": ["PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in (environment or {}).items())],
            "WorkingDir": "/tmp",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
    }
    with tarfile.open(out, "w") as tar:
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        _add(tar, "layer.tar", data)


def _add(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), 0o755
    tar.addfile(member, io.BytesIO(data))
