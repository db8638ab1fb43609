"""Makes an Airflow task the OpenLineage parent of the runs that it starts. The id comes from Airflow's own provider
(`airflow.providers.openlineage.plugins.macros.lineage_parent_id`). If the provider is not installed, frazil computes
the same id, so installing it later changes no ids.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

log = logging.getLogger(__name__)

CLUSTER_PREFIXES = ("spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
"""Prefixes of Spark properties that set environment variables of a driver in a cluster."""


def parent_id(context: Context, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the parent id; None if no backend is configured, or if a parent is already set."""
    from frazil.lineage.facts import PARENT_VARIABLE, LineageSettings  # a DAG file that is parsed needs no PyIceberg

    if environment.get(PARENT_VARIABLE) or not LineageSettings.load(environment).on:
        return None
    try:
        return _provider_parent_id(context) or _computed_parent_id(context)
    except Exception as error:  # an error of a provider or a client must not fail the task
        log.warning("cannot determine the OpenLineage id of this task, so its runs have no parent: %r", error)
        return None


@contextmanager
def submit_as_parent(context: Context, spark: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the Spark properties, including those that pass the parent to a driver in a cluster."""
    from frazil.lineage.facts import PARENT_VARIABLE

    parent = parent_id(context)
    if parent is None:
        yield spark
        return
    os.environ[PARENT_VARIABLE] = parent
    try:
        yield {**{f"{prefix}.{PARENT_VARIABLE}": parent for prefix in CLUSTER_PREFIXES}, **spark}
    finally:
        del os.environ[PARENT_VARIABLE]


def _provider_parent_id(context: Context) -> str | None:
    try:
        macros = import_module("airflow.providers.openlineage.plugins.macros")
    except ImportError:
        return None
    return str(macros.lineage_parent_id(context["ti"]))


def _computed_parent_id(context: Context) -> str:
    from openlineage.client.uuid import generate_static_uuid  # of the extra

    ti, run = context["ti"], context["dag_run"]
    namespace = (
        conf.get("openlineage", "namespace", fallback="") or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
    )
    moment: datetime = run.logical_date or run.run_after
    map_index = -1 if ti.map_index is None else ti.map_index
    data = f"{namespace}.{ti.dag_id}.{ti.task_id}.{ti.try_number}.{map_index}"
    return f"{namespace}/{ti.dag_id}.{ti.task_id}/{generate_static_uuid(moment, data.encode())}"
