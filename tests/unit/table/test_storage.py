"""What frazil asks of storage, of a local folder and of an object store alike."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from s3fs.errors import translate_boto_error

from frazil.errors import AccessDenied, CommitUnavailable, SpecError
from frazil.table.local_storage import LocalStore
from frazil.table.object_storage import OPEN_MOST, _failures
from frazil.table.storage import ObjectStore, file_io_properties, open_store


@pytest.fixture(params=["plain", "uri"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder's location with and without its scheme."""
    return f"file://{tmp_path}" if request.param == "uri" else str(tmp_path)


@pytest.fixture
def store(folder: str) -> ObjectStore:
    return open_store(folder, {})


def test_the_first_put_wins_and_stays(store: ObjectStore, folder: str) -> None:
    assert store.put_if_absent(f"{folder}/a/b", b"first")
    assert not store.put_if_absent(f"{folder}/a/b", b"second")
    assert store.get(f"{folder}/a/b") == b"first"


def test_a_put_replaces_the_whole(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/x", b"a long first text")
    store.put(f"{folder}/x", b"short")
    assert store.get(f"{folder}/x") == b"short"


def test_what_is_absent_is_none(store: ObjectStore, folder: str) -> None:
    assert store.get(f"{folder}/nothing") is None
    assert store.list_files(f"{folder}/nothing") == []
    assert store.list_folders(f"{folder}/nothing") == []


def test_files_are_listed_at_any_depth_in_the_form_they_were_asked(store: ObjectStore, folder: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    store.put(f"{folder}/s/b/c/2", b"22")
    store.put(f"{folder}/s/1", b"1")
    files = store.list_files(f"{folder}/s/")
    assert [(file.path, file.bytes) for file in files] == [(f"{folder}/s/1", 1), (f"{folder}/s/b/c/2", 2)]
    assert all(before_ms - 1_000 <= file.modified_ms <= before_ms + 60_000 for file in files)


def test_a_folder_is_there_through_its_files(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/s/one/x", b"")
    store.put(f"{folder}/s/two/y/z", b"")
    store.put(f"{folder}/s/file", b"")
    assert store.list_folders(f"{folder}/s") == [f"{folder}/s/one", f"{folder}/s/two"]
    store.delete([f"{folder}/s/two/y/z"])
    assert store.list_folders(f"{folder}/s") == [f"{folder}/s/one"]


def test_deleting_what_is_gone_is_fine(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/x", b"")
    store.delete([f"{folder}/x", f"{folder}/x", f"{folder}/no/such"])
    assert store.get(f"{folder}/x") is None


def test_unfinished_files_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".journal.123.frazil-tmp").write_bytes(b"half")
    assert LocalStore().list_files(str(tmp_path)) == []
    assert LocalStore().put_if_absent(f"{tmp_path}/journal", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".journal.123.frazil-tmp", "journal"]


def test_a_put_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    for put in (LocalStore().put, LocalStore().put_if_absent):
        with pytest.raises(OSError, match="No space"):
            put(f"{tmp_path}/x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_an_object_is_durable_by_its_bytes_its_name_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    LocalStore().put_if_absent(f"{tmp_path}/new/journal", b"x")
    parent, file, folder = synced
    assert (parent, folder) == (tmp_path.name, "new")
    assert file.startswith(".journal.")
    synced.clear()
    LocalStore().sync_files([f"{tmp_path}/new/journal"])
    assert synced == ["journal", "new"]


def test_syncing_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStore().sync_files([f"{tmp_path}/nothing"])


def _put_all(start: Any, folder: str, me: int) -> list[int]:
    store = open_store(folder, {})
    start.wait()
    return [index for index in range(50) if store.put_if_absent(f"{folder}/j/{index}", str(me).encode() * 10_000)]


def test_of_many_processes_one_wins_each_path_and_its_bytes_are_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        start = manager.Barrier(4)
        with context.Pool(4) as pool:
            won = pool.starmap(_put_all, [(start, str(tmp_path), me) for me in range(4)])
    assert sorted(index for wins in won for index in wins) == list(range(50))
    for me, wins in enumerate(won):
        assert all(LocalStore().get(f"{tmp_path}/j/{index}") == str(me).encode() * 10_000 for index in wins)


def test_a_scheme_that_no_store_serves_is_told() -> None:
    with pytest.raises(SpecError, match="'ftp'"):
        open_store("ftp://host/x", {})


def test_s3_is_opened_with_pyicebergs_own_keys() -> None:
    keys = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "r"}
    files = open_store("s3a://bucket/table", keys)._files  # type: ignore[attr-defined]
    assert files.client_kwargs["endpoint_url"] == "http://127.0.0.1:1"
    assert (files.client_kwargs["aws_access_key_id"], files.client_kwargs["region_name"]) == ("k", "r")


def test_a_store_takes_the_credentials_that_its_table_was_last_loaded_with() -> None:
    vended = {"s3.endpoint": "http://127.0.0.1:1", "s3.session-token": "first", "frazil.stream.s": "marker 1"}
    store = open_store("s3://bucket/table", lambda: dict(vended))

    def token() -> str:
        return str(store._files.client_kwargs["aws_session_token"])  # type: ignore[attr-defined]

    assert token() == "first"
    client = store._files  # type: ignore[attr-defined]
    vended["frazil.stream.s"] = "marker 2"
    assert store._files is client  # type: ignore[attr-defined] # a commit changes no credential
    vended["s3.session-token"] = "second"
    assert token() == "second"


def test_clients_of_credentials_that_were_renewed_are_given_up() -> None:
    vended = {"s3.endpoint": "http://127.0.0.1:1", "s3.session-token": "0"}
    store = open_store("s3://bucket/table", lambda: dict(vended))
    clients = []
    for load in range(3 * OPEN_MOST):
        vended["s3.session-token"] = f"renewed {load}"
        clients.append(weakref.ref(store._files))  # type: ignore[attr-defined]
        assert open_store("s3://bucket/table", dict(vended))._files is clients[-1]()  # type: ignore[attr-defined]
    gc.collect()
    assert sum(client() is not None for client in clients) <= OPEN_MOST


@pytest.mark.parametrize(
    ("code", "error"),
    [("ExpiredToken", CommitUnavailable), ("TokenRefreshRequired", CommitUnavailable), ("AccessDenied", AccessDenied)],
)
def test_a_token_that_expired_is_no_refusal(code: str, error: type[Exception]) -> None:
    refused = translate_boto_error(ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject"))
    with pytest.raises(error), _failures("s3://bucket/table/x"):
        raise refused


def test_files_are_opened_with_no_more_than_opens_them() -> None:
    of_a_table = {
        "s3.session-token": "t",
        "client.region": "r",
        "uri": "http://catalog",
        "token": "oauth",
        "credential": "id:secret",
        "frazil.stream.flights": "marker",
        "write.target-file-size-bytes": "1",
    }
    assert file_io_properties(of_a_table) == {"s3.session-token": "t", "client.region": "r"}
    signed = file_io_properties(of_a_table | {"s3.signer": "S3V4RestSigner"})
    assert signed.keys() == {"s3.session-token", "client.region", "s3.signer", "uri", "token"}
    own = file_io_properties(of_a_table | {"py-io-impl": "ours.Io"})
    assert own.keys() == {*of_a_table, "py-io-impl"} - {"frazil.stream.flights"}
