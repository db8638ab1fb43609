"""The embedded object store and PostgreSQL restart with their folders' data, and listen only on loopback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import create_engine, text

from frazil.dev import object_store, process
from frazil.dev.object_store import EmbeddedObjectStore
from frazil.dev.postgres import EmbeddedPostgres
from frazil.errors import EnvironmentUnusable


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedObjectStore]:
    """A store that these tests may kill, next to the session's."""
    with EmbeddedObjectStore(tmp_path_factory.mktemp("own-object-store")) as own:
        yield own


def rest(store: EmbeddedObjectStore) -> Catalog:
    return load_catalog("rest", **store.rest_catalog())


def listeners(server: process.Server | None) -> set[str]:
    assert server is not None
    return {c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == psutil.CONN_LISTEN}


def test_a_killed_object_store_comes_back_with_its_objects_and_namespaces(store: EmbeddedObjectStore) -> None:
    assert listeners(store.server()) == {"127.0.0.1"}
    store.client().put_object(Bucket="warehouse", Key="survivor", Body=b"here")
    rest(store).create_namespace("survivor")
    store.kill()
    assert store.server() is None
    again = EmbeddedObjectStore(store.folder).start()
    assert again.endpoint == store.endpoint
    assert again.client().get_object(Bucket="warehouse", Key="survivor")["Body"].read() == b"here"
    assert ("survivor",) in rest(again).list_namespaces()


def test_a_second_start_on_the_folder_uses_the_store_that_runs(store: EmbeddedObjectStore) -> None:
    first = store.server()
    assert first is not None
    assert EmbeddedObjectStore(store.folder).start().server() == first
    with pytest.raises(EnvironmentUnusable, match="runs on ports other than"):
        EmbeddedObjectStore(store.folder, port=process.choose_free_port()).start()


def test_the_object_store_accepts_objects_although_the_disk_cannot_hold_all_full_size_volumes(
    store: EmbeddedObjectStore,
) -> None:
    s3, free = store.client(), shutil.disk_usage(store.folder).free
    for number in range(min(free // (7 * 2**30) + 2, 20)):  # seven volumes of 1 GiB each
        s3.create_bucket(Bucket=f"bucket-{number}")
        s3.put_object(Bucket=f"bucket-{number}", Key="key", Body=b"value")


def test_a_port_in_use_by_the_object_store_is_reported(store: EmbeddedObjectStore, tmp_path: Path) -> None:
    port = int(store.endpoint.rpartition(":")[2])
    with pytest.raises(EnvironmentUnusable, match=rf"port {port}, .* is taken by weed .*--object-store-port"):
        EmbeddedObjectStore(tmp_path, port=port).start()


def test_a_store_that_exits_during_its_start_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weed = tmp_path / "weed"
    weed.write_text(
        "#!/bin/sh\necho 'F1124 11:57:52.689578 s3.go:588 bind: address already in use\ngoroutine 1 [running]:'"
    )
    weed.chmod(0o700)
    monkeypatch.setattr(object_store, "_find_weed", lambda: weed)
    with pytest.raises(EnvironmentUnusable, match=r"ended while it started: s3.go:588 bind: address already in use$"):
        EmbeddedObjectStore(tmp_path / "store").start()


def test_postgres_comes_back_after_a_kill_and_ends_in_spite_of_a_client(postgres: EmbeddedPostgres) -> None:
    assert listeners(postgres.server()) == {"127.0.0.1"}
    engine = create_engine(postgres.uri)
    try:
        with engine.begin() as connection:
            connection.execute(text("create table survivor (x int)"))
        postgres.kill()
        again = EmbeddedPostgres(postgres.folder, data=postgres.data).start()
        engine.dispose()
        with engine.connect() as connection:
            assert connection.execute(text("select count(*) from survivor")).scalar() == 0
            server = again.server()
            assert server is not None
            again.stop()
            assert again.server() is None
            assert not process.is_alive(server)
            connection.invalidate()
    finally:
        engine.dispose()
        postgres.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to start PostgreSQL as another user")
def test_data_that_the_other_user_cannot_reach_are_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(EnvironmentUnusable, match="refuses to run as root"):
        EmbeddedPostgres(tmp_path / "postgres").start()
