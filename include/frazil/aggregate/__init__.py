"""Daily aggregations: declared, run in Spark for a day that is complete, and run again when it is reopened."""

from __future__ import annotations
