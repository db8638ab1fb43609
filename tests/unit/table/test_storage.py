"""The storage operations that frazil needs, on a local folder and on an object store."""

from __future__ import annotations

import errno
import gc
import os
import re
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from s3fs.errors import translate_boto_error

from frazil.errors import AccessDenied, CommitUnavailable, SpecError, StorageUnavailable
from frazil.table.object_storage import MAX_CACHED_FILE_IOS, MAX_KEYS_PER_REQUEST, FsspecStore, _translate_errors
from frazil.table.object_store import ObjectStore, file_io_properties
from frazil.table.storage import LocalStore, open_store
from frazil.table.storage_errors import is_storage_failure, translate_local_failures, translate_staging_failure


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


def test_a_put_replaces_the_whole_object(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/x", b"a long first text")
    store.put(f"{folder}/x", b"short")
    assert store.get(f"{folder}/x") == b"short"


def test_a_missing_object_reads_as_none(store: ObjectStore, folder: str) -> None:
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


def test_a_folder_exists_while_it_contains_files(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/s/one/x", b"")
    store.put(f"{folder}/s/two/y/z", b"")
    store.put(f"{folder}/s/file", b"")
    assert store.list_folders(f"{folder}/s") == [f"{folder}/s/one", f"{folder}/s/two"]
    store.delete([f"{folder}/s/two/y/z"])
    assert store.list_folders(f"{folder}/s") == [f"{folder}/s/one"]


def test_deleting_a_missing_object_is_not_an_error(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/x", b"")
    store.delete([f"{folder}/x", f"{folder}/x", f"{folder}/no/such"])
    assert store.get(f"{folder}/x") is None


def test_a_file_that_cannot_be_deleted_is_reported_and_all_others_are_deleted(store: ObjectStore, folder: str) -> None:
    for name in ("a", "b/inside", "c", "d/inside"):
        store.put(f"{folder}/{name}", b"")
    with pytest.raises(OSError, match=r"/b.*; 1 more files could not be deleted, including .*/d"):
        store.delete(f"{folder}/{name}" for name in "abcd")
    assert [file.path for file in store.list_files(folder)] == [f"{folder}/b/inside", f"{folder}/d/inside"]


class FakeS3:
    """The part of s3fs that deletion needs, with scripted responses of S3."""

    def __init__(self, refused: dict[str, str] | None = None, *, batches: bool = True) -> None:
        self.refused, self.batches = refused or {}, batches
        self.requests: list[list[str]] = []

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        return bucket, key, None

    def call_s3(self, method: str, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 - boto's
        assert (method, Bucket, Delete["Quiet"]) == ("delete_objects", "lake", True)
        if not self.batches:
            raise translate_boto_error(ClientError({"Error": {"Code": "NotImplemented", "Message": "no"}}, method))
        keys = [each["Key"] for each in Delete["Objects"]]
        assert len(keys) <= MAX_KEYS_PER_REQUEST
        self.requests.append(keys)
        return {"Errors": [{"Key": k, "Code": self.refused[k], "Message": "no"} for k in keys if k in self.refused]}

    def rm_file(self, path: str) -> None:
        key = self.split_path(path)[1]
        self.requests.append([key])
        if key in self.refused:
            raise translate_boto_error(
                ClientError({"Error": {"Code": self.refused[key], "Message": "no"}}, "DeleteObject")
            )


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeS3], ObjectStore]:
    def on(files: FakeS3) -> ObjectStore:
        monkeypatch.setattr(FsspecStore, "_file_system", property(lambda _: files))
        return open_store("s3://lake/table", {})

    return on


def test_s3_objects_are_deleted_once_in_requests_of_a_thousand_keys(s3: Callable[[FakeS3], ObjectStore]) -> None:
    files = FakeS3(refused={"7": "NoSuchKey"})
    s3(files).delete(f"s3://lake/{n % 2_500}" for n in range(5_000))
    assert [len(request) for request in files.requests] == [1_000, 1_000, 500]
    assert {key for request in files.requests for key in request} == {str(n) for n in range(2_500)}


@pytest.mark.parametrize("batches", [True, False])
def test_errors_of_single_s3_keys_are_reported(s3: Callable[[FakeS3], ObjectStore], batches: bool) -> None:
    files = FakeS3(refused={"2": "AccessDenied", "4": "InternalError"}, batches=batches)
    left = s3(files).delete_each(f"s3://lake/{n}" for n in range(6))
    assert {path: type(error) for path, error in left.items()} == {"s3://lake/2": AccessDenied, "s3://lake/4": OSError}
    with pytest.raises(AccessDenied, match=r"s3://lake/2.*1 more files"):
        s3(files).delete(f"s3://lake/{n}" for n in range(6))


def test_a_store_without_batch_deletes_gets_one_batch_request_and_then_single_deletes(
    s3: Callable[[FakeS3], ObjectStore],
) -> None:
    files = FakeS3(batches=False)
    store = s3(files)
    store.delete(["s3://lake/1", "s3://lake/2"])
    files.batches = True
    store.delete(["s3://lake/3", "s3://lake/4"])
    assert files.requests == [["1"], ["2"], ["3"], ["4"]]


def test_when_the_object_store_is_down_no_pending_object_is_reported_as_deleted(
    s3: Callable[[FakeS3], ObjectStore],
) -> None:
    files = FakeS3()

    def down(*_: Any, **__: Any) -> Any:
        files.requests.append([])
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    files.call_s3 = down  # type: ignore[method-assign]
    left = s3(files).delete_each(f"s3://lake/{n}" for n in range(3_000))
    assert len(left) == 3_000
    assert {type(error) for error in left.values()} == {StorageUnavailable}
    assert len(files.requests) == 1


def test_temporary_files_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".journal.123.frazil-tmp").write_bytes(b"half")
    assert LocalStore().list_files(str(tmp_path)) == []
    assert LocalStore().put_if_absent(f"{tmp_path}/journal", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".journal.123.frazil-tmp", "journal"]


def test_a_put_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    for put in (LocalStore().put, LocalStore().put_if_absent):
        with pytest.raises(StorageUnavailable, match=f"the disk of {tmp_path}/x is full: .*No space left on device"):
            put(f"{tmp_path}/x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_writing_an_object_syncs_its_data_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_syncing_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStore().sync_files([f"{tmp_path}/nothing"])


def test_a_scheme_that_no_store_serves_is_reported() -> None:
    with pytest.raises(SpecError, match="'ftp'"):
        open_store("ftp://host/x", {})


def test_s3_is_opened_with_pyicebergs_own_keys() -> None:
    keys = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "r"}
    files = open_store("s3a://bucket/table", keys)._file_system  # type: ignore[attr-defined]
    assert files.client_kwargs["endpoint_url"] == "http://127.0.0.1:1"
    assert (files.client_kwargs["aws_access_key_id"], files.client_kwargs["region_name"]) == ("k", "r")


def test_a_store_uses_the_credentials_from_the_last_load_of_its_table() -> None:
    vended = {"s3.endpoint": "http://127.0.0.1:1", "s3.session-token": "first", "frazil.stream.s": "marker 1"}
    store = open_store("s3://bucket/table", lambda: dict(vended))

    def token() -> str:
        return str(store._file_system.client_kwargs["aws_session_token"])  # type: ignore[attr-defined]

    assert token() == "first"
    client = store._file_system  # type: ignore[attr-defined]
    vended["frazil.stream.s"] = "marker 2"
    assert store._file_system is client  # type: ignore[attr-defined] # a commit changes no credential
    vended["s3.session-token"] = "second"
    assert token() == "second"


def test_clients_with_outdated_credentials_are_discarded_after_a_renewal() -> None:
    vended = {"s3.endpoint": "http://127.0.0.1:1", "s3.session-token": "0"}
    store = open_store("s3://bucket/table", lambda: dict(vended))
    clients = []
    for load in range(3 * MAX_CACHED_FILE_IOS):
        vended["s3.session-token"] = f"renewed {load}"
        clients.append(weakref.ref(store._file_system))  # type: ignore[attr-defined]
        assert open_store("s3://bucket/table", dict(vended))._file_system is clients[-1]()  # type: ignore[attr-defined]
    gc.collect()
    assert sum(client() is not None for client in clients) <= MAX_CACHED_FILE_IOS


@pytest.mark.parametrize(
    ("code", "error"),
    [("ExpiredToken", CommitUnavailable), ("TokenRefreshRequired", CommitUnavailable), ("AccessDenied", AccessDenied)],
)
def test_an_expired_token_is_not_reported_as_access_denied(code: str, error: type[Exception]) -> None:
    refused = translate_boto_error(ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject"))
    with pytest.raises(error), _translate_errors("s3://bucket/table/x"):
        raise refused


def test_files_are_opened_with_only_the_properties_needed_to_open_them() -> None:
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


def test_a_full_disk_of_a_local_warehouse_is_reported() -> None:
    full = translate_staging_failure("file:///lake/silo/data", OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(full, CommitUnavailable)
    assert str(full).startswith("the disk of file:///lake/silo/data is full: ")
    assert translate_staging_failure("file:///lake/silo/data", OSError(errno.EINVAL, "broken")) is None


def test_an_object_store_that_fails_has_a_remedy() -> None:
    found = translate_staging_failure("s3://lake/t", OSError(errno.EIO, "broken"))
    assert isinstance(found, StorageUnavailable)
    assert "the object store fails" in found.reason
    assert found.remedy.startswith("Check the store's state")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EROFS, "is read-only"),
        (errno.EIO, "fails"),
        (errno.ESTALE, "cannot be reached"),
        (errno.ENODEV, "cannot be reached"),
        (errno.ENOTCONN, "cannot be reached"),
    ],
)
def test_a_fault_of_a_disk_is_an_outage_of_the_storage_that_the_writer_waits_for(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(code, os.strerror(code), "/lake/t/data/a.parquet")
    found = translate_staging_failure("/lake/t", error)
    assert isinstance(found, StorageUnavailable)
    assert str(found).startswith(f"the disk of /lake/t/data/a.parquet {words}: [Errno {code}] ")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    for write in (LocalStore().put, LocalStore().put_if_absent):
        with pytest.raises(StorageUnavailable, match=f"the disk of {tmp_path}/x {words}: "):
            write(f"{tmp_path}/x", b"")
    with pytest.raises(StorageUnavailable, match=f"the disk of {tmp_path} {words}: "):
        LocalStore().sync_files([str(tmp_path)])
    assert (is_storage_failure(error), is_storage_failure(ConnectionRefusedError(111, "refused"))) == (True, False)


def test_an_error_that_names_a_file_is_reported_with_the_name_of_this_file() -> None:
    with (
        pytest.raises(AccessDenied, match=r"^/keys/shop\.pem: the file system"),
        translate_local_failures("/runs/shop"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied", "/keys/shop.pem")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_local_folder_that_refuses_data_files_is_reported_as_denied(code: int) -> None:
    found = translate_staging_failure("/lake/t", OSError(code, f"Cannot create directory: {os.strerror(code)}"))
    assert isinstance(found, AccessDenied)
    assert re.fullmatch(r"/lake/t: the file system refuses access \(.*\); grant this user access", str(found))


def test_a_full_disk_of_an_executor_is_not_reported_as_an_object_store_outage() -> None:
    assert translate_staging_failure("s3://lake/t", OSError(errno.ENOSPC, "No space left on device")) is None
    assert isinstance(translate_staging_failure("s3://lake/t", OSError("a part could not be sent")), CommitUnavailable)


def test_gcs_is_used_without_asking_for_the_kind_of_the_bucket() -> None:
    # The question goes to a gRPC service of Google: an emulator, or a proxy in between, would not answer it.
    store = FsspecStore("gs://bucket/table", {"gcs.oauth2.token": "anon", "gcs.project-id": "project"})
    assert type(store._file_system).__module__ == "gcsfs.core"
