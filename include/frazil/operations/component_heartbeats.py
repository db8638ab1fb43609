"""Finds Airflow components without a recent heartbeat, and describes what they block. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frazil.timetext import format_elapsed, format_utc

MAX_HEARTBEAT_AGE_MS = 60_000
EFFECTS = {
    "scheduler": "no run or task starts, so nothing is measured, maintained or signalled, and your actions wait",
    "triggerer": "writers continue unsupervised: a writer that ends is not restarted, and a pause or resume waits",
    "dag-processor": "new streams and changed DAG files do not reach Airflow",
}
"""The effect on frazil as long as no process of a component runs."""


@dataclass(frozen=True, slots=True)
class ComponentHeartbeat:
    at_ms: int
    runs: bool = True
    """False after an orderly shutdown."""


@dataclass(frozen=True, slots=True)
class MissingComponent:
    component: str
    words: str
    """The component and when it was last seen, as the beginning of a sentence."""
    start: str

    def sentence(self, alerts_at_ms: int | None = None) -> str:
        """Return a message about the effect and the fix. `alerts_at_ms` is the time when alerts were last measured."""
        as_of = (
            f" Alerts are as of {format_utc(alerts_at_ms)}." if alerts_at_ms and self.component == "scheduler" else ""
        )
        return f"{self.words}: {EFFECTS[self.component]}.{as_of} Start it: `{self.start}`"


def find_missing(
    heartbeats: Mapping[str, ComponentHeartbeat], *, now_ms: int, dev: bool = False
) -> tuple[MissingComponent, ...]:
    """Return the components without a recent heartbeat. `dev` is set in the Airflow of `frazil dev up --airflow`."""
    return tuple(
        MissingComponent(
            component,
            f"Airflow's {component} {_last_seen(heartbeats.get(component), now_ms)}",
            "frazil dev up --airflow" if dev else f"airflow {component}",
        )
        for component in EFFECTS
        if not ((last := heartbeats.get(component)) and last.runs and now_ms - last.at_ms <= MAX_HEARTBEAT_AGE_MS)
    )


def _last_seen(heartbeat: ComponentHeartbeat | None, now_ms: int) -> str:
    if heartbeat is None:
        return "has never run"
    if not heartbeat.runs:
        return f"was stopped {format_elapsed(now_ms - heartbeat.at_ms)} ago"
    return f"has sent no heartbeat for {format_elapsed(now_ms - heartbeat.at_ms)}"
