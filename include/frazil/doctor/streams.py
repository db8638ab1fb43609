"""Checks all that declared streams refer to: files, Kafka, catalogs, storage, and the clocks of these services. The
writer's clock decides when windows are complete. The storage's clock decides when objects count as abandoned. Servers
refuse signed requests with a wrong time.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests

from frazil import clock
from frazil.doctor import CheckState, Finding
from frazil.doctor.connections import Connections
from frazil.errors import FrazilError
from frazil.spec.conflicts import find_conflicts
from frazil.spec.formats import registry_of
from frazil.spec.load import list_stream_files, load_stream
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve
from frazil.spec.units import format_count
from frazil.status.fixes import Service
from frazil.status.state import StreamState
from frazil.table.parallel import run_in_parallel
from frazil.timetext import format_elapsed

MAX_LISTED_CONNECTIONS = 10


def load_declarations(folder: Path) -> tuple[dict[Path, StreamSpec], list[Finding]]:
    streams: dict[Path, StreamSpec] = {}
    errors: list[str] = []
    for path in list_stream_files(folder) if folder.is_dir() else ():
        try:
            streams[path] = load_stream(path)
        except FrazilError as error:
            errors += str(error).splitlines()
    errors += find_conflicts(streams)
    if not streams and not errors:
        empty = Finding(
            "declarations", CheckState.SKIPPED, f"{folder} declares no stream",
            "name the folder with --streams or FRAZIL_STREAMS",
        )  # fmt: skip
        return streams, [empty]
    failures = [Finding("declarations", CheckState.WRONG, error) for error in errors]
    valid = [Finding("declarations", CheckState.OK, f"{format_count(len(streams), 'valid stream')} in {folder}")]
    return streams, failures or valid


def check_connections(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    """Check that the streams' services respond and permit what a writer does, as `frazil validate --connect` does."""
    if not streams:
        yield Finding("connections", CheckState.SKIPPED, "no stream is declared here")
        return
    checked = Connections.check(streams.values())
    good = checked.good
    if len(good) > MAX_LISTED_CONNECTIONS:
        quantity = "all other" if checked.faults else "all"
        good = [f"{quantity} connections of {format_count(len(streams), 'stream')} work"]
    yield from (Finding("connections", CheckState.OK, sentence) for sentence in good)
    yield from (Finding("connections", CheckState.WARNING, warning) for warning in checked.warnings)
    for problem in (fault.problem for fault in checked.faults):
        yield Finding("connections", CheckState.WRONG, problem.headline, problem.remedy)
    from frazil.status.stream import read_stream_state  # PyIceberg is slow to load

    def read(spec: StreamSpec) -> StreamState:
        in_full = not checked.fails(spec, Service.SOURCE)
        return read_stream_state(spec, now_ms=clock.now_ms(), in_full=in_full, catalogs=checked.services)

    failures, specs = defaultdict[str, list[str]](list), [*streams.values()]
    # Both run in parallel: a table whose storage hangs does not make its catalog count as silent for the other streams.
    for spec, state in zip(specs, run_in_parallel(read, specs), strict=True):
        is_known = (state.table_exists is None or state.missing) and checked.fails(spec, Service.TABLE)
        if state.needs_operator and not is_known:
            failures[f"{state.state}: {state.sentence}"].append(spec.name)
    yield from (
        Finding("connections", CheckState.WRONG, f"{', '.join(streams)}: {problem}")
        for problem, streams in failures.items()
    )


def check_stream_clocks(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    from frazil.table.catalogs import catalog_config  # PyIceberg is slow to load

    addresses: set[str] = set()
    databases: dict[str, Callable[[], int]] = {}
    for catalog in {spec.table.catalog for spec in streams.values()}:
        try:
            config = catalog_config(catalog)
        except FrazilError:
            continue  # the check of connections reports it
        uri = config.properties.get("uri", "")
        addresses |= {
            address for address in (uri, config.properties.get("s3.endpoint", "")) if address.startswith("http")
        }
        if uri.startswith("postgresql"):
            databases[config.name] = partial(_read_database_ms, uri)
    return compare_clocks(addresses | _registry_addresses(streams), databases)


def _registry_addresses(streams: Mapping[Path, StreamSpec]) -> set[str]:
    addresses = set()
    for spec in streams.values():
        registry = registry_of(spec.source.format)
        if registry is not None:
            try:
                addresses.add(resolve(registry.url, os.environ))
            except FrazilError:
                continue  # a missing variable: the check of connections says so
    return addresses


def _read_database_ms(uri: str) -> int:
    from sqlalchemy import create_engine, text  # only where a catalog is a database

    engine = create_engine(uri, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            seconds = connection.execute(text("select extract(epoch from clock_timestamp())")).scalar_one()
    finally:
        engine.dispose()
    return int(float(seconds) * 1000)


MIN_CLOCK_WARNING_MS = 5_000
MIN_CLOCK_ERROR_MS = 60_000
TIMEOUT_S = 5.0
_DATE_PRECISION_MS = 1_000
"""Precision of an HTTP server's `Date` header, which has whole seconds."""


@dataclass(frozen=True, slots=True)
class ServerTime:
    """A server's time, and our time before and after it was read, in milliseconds since 1970."""

    before_ms: int
    server_ms: int
    after_ms: int
    precision_ms: int = 0
    """The server's true time may be later than `server_ms` by up to this many milliseconds."""

    @property
    def difference_ms(self) -> int:
        """Minimum difference between the clocks: positive if the server's clock is ahead."""
        if self.server_ms > self.after_ms:
            return self.server_ms - self.after_ms
        return min(0, self.server_ms + self.precision_ms - self.before_ms)


def evaluate_clock(server: str, answer: ServerTime) -> Finding:
    late_ms = abs(answer.difference_ms)
    if late_ms < MIN_CLOCK_WARNING_MS:
        return Finding("clock", CheckState.OK, f"{server} has the same time")
    state = CheckState.WRONG if late_ms >= MIN_CLOCK_ERROR_MS else CheckState.WARNING
    direction = "ahead of" if answer.difference_ms > 0 else "behind"
    problem = f"the clock of {server} is {format_elapsed(late_ms)} {direction} this machine's"
    fix = "synchronize the clocks of both machines with NTP (chrony, systemd-timesyncd)"
    return Finding("clock", state, problem, fix)


def compare_clocks(addresses: Iterable[str], databases: Mapping[str, Callable[[], int]]) -> Iterator[Finding]:
    servers: dict[str, Callable[[], ServerTime]] = {
        urlsplit(address).netloc: partial(_ask_http, address) for address in sorted(set(addresses))
    }
    servers |= {f"the database of catalog {name!r}": partial(_ask_database, ask) for name, ask in databases.items()}
    for server, ask in servers.items():
        try:
            answer = ask()
        except Exception as error:  # whatever the driver raises
            # The check of connections reports a server that does not respond.
            state, reason = (
                (CheckState.WARNING, str(error))
                if isinstance(error, _TimeMissing)
                else (CheckState.SKIPPED, type(error).__name__)
            )
            yield Finding("clock", state, f"the clock of {server} was not compared: {reason}")
        else:
            yield evaluate_clock(server, answer)
    if not servers:
        yield Finding("clock", CheckState.SKIPPED, "not compared: no remote service reports its time")


class _TimeMissing(ValueError): ...


def _ask_database(ask: Callable[[], int]) -> ServerTime:
    began_ms = clock.now_ms()
    return ServerTime(began_ms, ask(), clock.now_ms())


def _ask_http(address: str) -> ServerTime:
    """Return the server's time from its response, which may be a refusal."""
    began_ms = clock.now_ms()
    answer = requests.head(address, timeout=TIMEOUT_S, allow_redirects=False)
    try:
        theirs = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError):
        raise _TimeMissing("the response has no time") from None
    return ServerTime(began_ms, clock.epoch_ms(theirs), clock.now_ms(), _DATE_PRECISION_MS)
