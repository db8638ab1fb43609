"""Checks everything to which declared streams refer: files, Kafka, catalogs, storage, and the clocks of these services.

This machine's clock is compared with the clocks of the services. The writer's clock decides when windows become
complete. The storage's clock decides when objects count as abandoned. Servers refuse signed requests with a wrong time.
An HTTP server sends its time in each response (the `Date` header, in whole seconds). A database sends its time when
queried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests

from frazil import clock
from frazil.doctor.connections import Connections
from frazil.doctor.finding import Finding, State
from frazil.errors import FrazilError
from frazil.spec.conflicts import conflicts
from frazil.spec.formats import registry_of
from frazil.spec.load import load_stream, stream_files
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve
from frazil.spec.units import counted
from frazil.timetext import ago

SHOWN = 5
"""If more than twice this number of streams work, only their count is shown, not a line for each."""


def declarations(folder: Path) -> tuple[dict[Path, StreamSpec], list[Finding]]:
    """Return the valid streams of a folder by file, and the findings: one per error, or one for all valid streams."""
    streams: dict[Path, StreamSpec] = {}
    errors: list[str] = []
    for path in stream_files(folder) if folder.is_dir() else ():
        try:
            streams[path] = load_stream(path)
        except FrazilError as error:
            errors += str(error).splitlines()
    errors += conflicts(streams)
    if not streams and not errors:
        none = Finding(
            "declarations", State.SKIPPED, f"{folder} declares no stream",
            "name the folder with --streams or FRAZIL_STREAMS",
        )  # fmt: skip
        return streams, [none]
    found = [Finding("declarations", State.WRONG, error) for error in errors]
    valid = [Finding("declarations", State.OK, f"{counted(len(streams), 'valid stream')} in {folder}")]
    return streams, found or valid


def connections(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    """Check that all services of the streams respond and permit what a writer does, like `frazil validate
    --connect`.
    """
    if not streams:
        yield Finding("connections", State.SKIPPED, "no stream is declared here")
        return
    found = Connections.of(streams)
    if len(found.good) > 2 * SHOWN:
        yield Finding("connections", State.OK, f"{counted(len(streams), 'stream')}: all that answers works")
    else:
        for good in found.good:
            yield Finding("connections", State.OK, good)
    for fault in found.faults:
        yield Finding("connections", State.WRONG, fault.said, fault.fix)
    yield from _stopped(streams)


def _stopped(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    """Report streams that cannot run until an operator acts: a table is missing, or a writer ended with such an
    error.
    """
    from frazil.status.stream import stream_state  # noqa: PLC0415 - PyIceberg is slow to load

    for path, spec in streams.items():
        state = stream_state(spec, now_ms=clock.now_ms(), in_full=False)
        if state.missing is not None or state.needs_operator:
            yield Finding("connections", State.WRONG, f"{path}: {state.state}: {state.sentence}")


def clocks_of(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    """Compare this machine's clock with the clocks of registries, REST catalogs, object stores and PostgreSQL."""
    from frazil.table.catalogs import catalog_config  # noqa: PLC0415 - PyIceberg is slow to load

    addresses: set[str] = set()
    databases: dict[str, Callable[[], int]] = {}
    for catalog in {spec.table.catalog for spec in streams.values()}:
        try:
            config = catalog_config(catalog)
        except FrazilError:
            continue  # the check of connections says so
        uri = config.properties.get("uri", "")
        addresses |= {one for one in (uri, config.properties.get("s3.endpoint", "")) if one.startswith("http")}
        if uri.startswith("postgresql"):
            databases[config.name] = _time_of(uri)
    return clocks(addresses | _registries(streams), databases)


def _registries(streams: Mapping[Path, StreamSpec]) -> set[str]:
    found = set()
    for spec in streams.values():
        registry = registry_of(spec.source.format)
        if registry is not None:
            try:
                found.add(resolve(registry.url, os.environ))
            except FrazilError:
                continue  # a missing variable: the check of connections says so
    return found


def _time_of(uri: str) -> Callable[[], int]:
    def ask() -> int:
        from sqlalchemy import create_engine, text  # noqa: PLC0415 - only where a catalog is a database

        engine = create_engine(uri, connect_args={"connect_timeout": 5})
        try:
            with engine.connect() as connection:
                seconds = connection.execute(text("select extract(epoch from clock_timestamp())")).scalar_one()
        finally:
            engine.dispose()
        return int(float(seconds) * 1000)

    return ask


WARN_MS = 5_000
WRONG_MS = 60_000
TIMEOUT_S = 5.0
_HEADER_MS = 1_000
"""Precision of the `Date` header, in milliseconds; it has whole seconds."""
_FIX = "let NTP (chrony, systemd-timesyncd) set the clock of both machines"
_FIX_SILENCE = "let the server answer, then run `frazil doctor` again"


@dataclass(frozen=True, slots=True)
class ServerTime:
    """A server's time, and our time before and after it was read. All times are milliseconds since 1970, UTC."""

    before_ms: int
    theirs_ms: int
    after_ms: int
    precision_ms: int = 0
    """The server's true time may be later than `theirs_ms` by up to this many milliseconds."""

    @property
    def apart_ms(self) -> int:
        """Minimum difference between the clocks in milliseconds: positive if the server's clock is ahead; 0 if they may
        agree.
        """
        if self.theirs_ms > self.after_ms:
            return self.theirs_ms - self.after_ms
        return min(0, self.theirs_ms + self.precision_ms - self.before_ms)


def evaluate(server: str, answer: ServerTime) -> Finding:
    """Return the finding for a server's time. Pure."""
    apart = answer.apart_ms
    if abs(apart) < WARN_MS:
        return Finding("clock", State.OK, f"{server} has the same time")
    state = State.WRONG if abs(apart) >= WRONG_MS else State.WARNING
    return Finding("clock", state, f"{server} is {ago(abs(apart))} {'ahead of' if apart > 0 else 'behind'} us", _FIX)


def clocks(addresses: Iterable[str], databases: Mapping[str, Callable[[], int]]) -> Iterator[Finding]:
    """Compare our clock with the clocks of HTTP servers and databases.

    `addresses` are the servers' URLs; `databases` maps the names of catalogs to functions that return the database's
    time in milliseconds. A server whose time is unknown gets a warning, because its clock may be wrong.
    """
    servers: dict[str, Callable[[], ServerTime]] = {
        urlsplit(address).netloc: partial(_ask_http, address) for address in sorted(set(addresses))
    }
    servers |= {f"the database of catalog {name!r}": partial(_ask_database, ask) for name, ask in databases.items()}
    for server, ask in servers.items():
        try:
            answer = ask()
        except Exception as error:  # whatever the driver raises
            why = str(error) if isinstance(error, _Untimed) else type(error).__name__
            yield Finding("clock", State.WARNING, f"the clock of {server} is not compared: {why}", _FIX_SILENCE)
        else:
            yield evaluate(server, answer)
    if not servers:
        yield Finding("clock", State.SKIPPED, "not compared: no remote service tells its time")


class _Untimed(ValueError):
    """Raised if a response has no time."""


def _ask_database(ask: Callable[[], int]) -> ServerTime:
    before = clock.now_ms()
    return ServerTime(before, ask(), clock.now_ms())


def _ask_http(address: str) -> ServerTime:
    """Return the server's time. Even a response that refuses the request has a time."""
    before = clock.now_ms()
    answer = requests.head(address, timeout=TIMEOUT_S, allow_redirects=False)
    try:
        theirs = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError):
        raise _Untimed("its answer has no time") from None
    return ServerTime(before, int(theirs.timestamp() * 1000), clock.now_ms(), _HEADER_MS)
