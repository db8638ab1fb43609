"""The S3 file systems of tables write small objects in one request, and otherwise keep their configuration."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.table.catalogs import CatalogConfig, _open

CONFIGURED = {"type": "in-memory", "warehouse": "s3://b/w", "s3.endpoint": "http://127.0.0.1:1", "s3.region": "eu"}
KEYS = {"s3.access-key-id": "key", "s3.secret-access-key": "secret"}


def settings(properties: dict[str, str]) -> dict[str, Any]:
    """Settings of the file system that the catalog's tables are written with."""
    io: Any = _open(CatalogConfig("lake", properties))._load_file_io(properties, "s3://b/w/t")
    found: dict[str, Any] = io.fs_by_scheme("s3", "b").__reduce__()[1][0]
    return found


def test_small_objects_are_written_at_once_with_the_configured_endpoint_and_keys() -> None:
    found = settings({**CONFIGURED, **KEYS})
    assert found["allow_delayed_open"] is True
    assert (found["endpoint_override"], found["region"]) == ("http://127.0.0.1:1", "eu")
    assert (found["access_key"], found["secret_key"]) == ("key", "secret")


def test_credentials_of_the_environment_are_not_copied_because_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert settings(CONFIGURED)["access_key"] is None


def test_a_retry_strategy_of_the_users_own_is_kept() -> None:
    strategy = {"s3.retry-strategy-impl": "pyarrow.fs.AwsDefaultS3RetryStrategy"}
    assert settings({**CONFIGURED, **KEYS, **strategy})["allow_delayed_open"] is False
