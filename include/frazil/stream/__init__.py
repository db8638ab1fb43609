"""On the driver: the planner source, the batch, and the writer that runs them under Spark."""

from __future__ import annotations
