"""When Airflow's own processes gave their last sign of life, as its database has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.jobs.job import Job
from sqlalchemy import func, select

from frazil.operations.silence import Beat

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

COMPONENTS = {"SchedulerJob": "scheduler", "DagProcessorJob": "dag-processor", "TriggererJob": "triggerer"}


def last_beats(session: Session) -> dict[str, Beat]:
    """By component; one that has never run is not there."""
    query = (
        select(Job.job_type, Job.state, func.max(Job.latest_heartbeat))
        .where(Job.job_type.in_(COMPONENTS))
        .group_by(Job.job_type, Job.state)
    )
    found: dict[str, Beat] = {}
    for kind, state, at in session.execute(query):
        if at is None:
            continue
        component = COMPONENTS[str(kind)]
        beat = Beat(int(at.timestamp() * 1000), runs=state == "running")
        found[component] = max(found.get(component, beat), beat, key=lambda one: (one.runs, one.at_ms))
    return found
