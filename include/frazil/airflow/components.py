"""Reads the last heartbeats of Airflow's own processes from Airflow's database."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.jobs.job import Job
from sqlalchemy import func, select

from frazil.home import dev_airflow_home
from frazil.operations.page_actions import ComponentHeartbeat, MissingComponent, find_missing

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

COMPONENTS = {"SchedulerJob": "scheduler", "DagProcessorJob": "dag-processor", "TriggererJob": "triggerer"}


def silent_components(heartbeats: Mapping[str, ComponentHeartbeat], *, at_ms: int) -> tuple[MissingComponent, ...]:
    home = os.environ.get("AIRFLOW_HOME")
    return find_missing(heartbeats, now_ms=at_ms, dev=home is not None and Path(home).absolute() == dev_airflow_home())


def last_heartbeats(session: Session) -> dict[str, ComponentHeartbeat]:
    query = (
        select(Job.job_type, Job.state, func.max(Job.latest_heartbeat))
        .where(Job.job_type.in_(COMPONENTS))
        .group_by(Job.job_type, Job.state)
    )
    found: dict[str, ComponentHeartbeat] = {}
    for kind, state, at in session.execute(query):
        if at is None:
            continue
        component = COMPONENTS[str(kind)]
        heartbeat = ComponentHeartbeat(int(at.timestamp() * 1000), should_run=state == "running")
        found[component] = max(found.get(component, heartbeat), heartbeat, key=lambda one: (one.should_run, one.at_ms))
    return found
