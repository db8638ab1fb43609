"""The resources of a writer: this host, or a Spark cluster."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from frazil.spec.values import Bytes, Model, Properties, YamlForm

LOCAL = "local[*]"
_STANDALONE = re.compile(r"spark://[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*")


def _master(value: str) -> str:
    if value == LOCAL or _STANDALONE.fullmatch(value):
        return value
    if value.startswith("local"):
        raise ValueError(f"is not {LOCAL}; resources.cores says how many tasks run at once on this host")
    if value.startswith(("yarn", "k8s:")):
        raise ValueError(f"is not supported for writers; write {LOCAL}, or spark://host:port of a standalone cluster")
    raise ValueError(f"is no master; write {LOCAL} for this host, or spark://host:port of a standalone cluster")


class Resources(Model):
    """What the writer may use: of this host, or of a Spark cluster."""

    master: Annotated[str, AfterValidator(_master), YamlForm("`local[*]` or `spark://host:port`")] = Field(
        default=LOCAL,
        description="Where tasks run. `local[*]`: in the writer's process on this host, `cores` at once. "
        "`spark://host:port[,host:port]`: on a standalone cluster; the driver stays on this host.",
    )
    cores: int = Field(default=2, gt=0, description="Tasks that run at once: on a cluster, of all executors together.")
    driver_memory: Bytes = Field(default=1 * 2**30, description="Heap of the driver's JVM.")
    executor_cores: int = Field(
        default=1, gt=0, description="On a cluster: tasks that one executor runs at once; `cores` is a multiple of it."
    )
    executor_memory: Bytes = Field(
        default=512 * 2**20,
        description="On a cluster: heap of an executor's JVM. Records are in its Python processes, beside the heap.",
    )
    package: str | None = Field(
        default=None,
        min_length=1,
        description="On a cluster: a path or URL of the archive that `frazil package` made, which executors unpack. "
        "If left out, frazil is installed on the workers' hosts, at the path of the driver's Python.",
    )
    spark: Properties = Field(default_factory=dict, description="Further Spark properties.")

    @property
    def on_cluster(self) -> bool:
        """Whether executors are processes of their own, perhaps on other hosts."""
        return self.master != LOCAL
