"""Opens catalogs from PyIceberg's configuration: `.pyiceberg.yaml` (in PYICEBERG_HOME, the home folder or the current
folder), or variables PYICEBERG_CATALOG__<NAME>__<PROPERTY>. Without configuration, opens the embedded catalog. Spark's
properties are derived from the same configuration.
"""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import pyiceberg.catalog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    SignError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from pyiceberg.utils.config import DEFAULT, Config
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy import Engine as SqlEngine
from sqlalchemy.exc import DBAPIError, OperationalError

from frazil.errors import (
    AccessDenied,
    CommitRefused,
    CommitUnavailable,
    Explanation,
    FrazilError,
    SpecError,
    TableLost,
    error_text,
)
from frazil.extras import check_configuration, report_missing_extras
from frazil.home import home, make_folder
from frazil.pyiceberg_fixes import make_hive_errors_mutable
from frazil.spec.addresses import find_path_problem
from frazil.table.catalog_errors import (
    check_storage,
    translate_client_error,
    translate_database_error,
    translate_loading_error,
    unreachable_error,
)
from frazil.table.faster_commits import reuse_metadata, write_small_objects_in_one_request
from frazil.table.metadata_times import keep_times_in_order
from frazil.table.parallel import kept_in_thread
from frazil.table.spark_catalog import catalog_type, to_spark_properties
from frazil.table.storage_errors import is_credentials_expiry, translate_local_failure
from frazil.table.unresponsive import Unresponsive, run_with_timeout

A = TypeVar("A")

ANSWER_TIMEOUT_S = 12.0
"""Longest wait (s) of a command for a catalog. PyIceberg's clients of most catalogs have no or longer timeouts."""
SQLITE_BUSY_SECONDS = 10
"""How long (s) to wait for another process that writes: less than `ANSWER_TIMEOUT_S`, so that the error names the lock.
"""

MAX_OPEN_ATTEMPTS = 3

_engines: WeakValueDictionary[str, SqlEngine] | None = None
"""Shared SQL engines by URI. An unused engine is closed."""
CATALOG_CACHE_S = 10.0
"""Age (s) at which `keep_catalogs` reopens a catalog, with current credentials."""
MAX_ERROR_CHARACTERS = 300
"""Maximum number of characters quoted from a server's error."""
METADATA_SUFFIX = ".metadata.json"
MISSING_FILE = "frazil.missing-file"
"""Property of an open catalog: the path of its SQLite file, if the file does not exist."""

EMPTY_DATABASE = "sqlite:///file:/frazil-empty?vfs=memdb&uri=true"
"""A database in memory that threads share."""

_ACCESS_ERRORS = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError, SignError, PermissionError)
_ERRNO_PATTERN = re.compile(r"\[Errno -?\d+\] ([\w ,]+)")


@dataclass(frozen=True)
class CatalogConfig:
    """A catalog's name and PyIceberg properties; `embedded` for the SQLite catalog in FRAZIL_HOME."""

    name: str
    properties: dict[str, str] = field(repr=False)
    embedded: bool = False


def catalog_name(declared: str | None) -> str:
    """Return the name of the catalog that a stream declares. Several declared names may mean the default catalog."""
    return declared or Config().get_default_catalog_name()


def catalog_config(name: str | None) -> CatalogConfig:
    """Return a catalog's configuration; None means the default catalog. Raises SpecError if missing or invalid."""
    check_configuration()
    try:
        config, default, wanted = Config(), catalog_name(None), catalog_name(name)
        configured = config.get_catalog_config(wanted)
    except ValueError as error:
        raise SpecError(f"the catalogs in .pyiceberg.yaml are invalid: {error}") from None
    if configured is not None:
        properties = _flatten(configured)
        if properties.get("uri", "").startswith("sqlite"):
            properties["uri"] = _add_busy_timeout(properties["uri"])
        return CatalogConfig(wanted, properties)
    if wanted == default == DEFAULT:
        folder = home()
        if problem := find_path_problem(str(folder)):
            raise SpecError(f"FRAZIL_HOME ({str(folder)!r}) {problem}")
        uri = URL.create("sqlite", database=str(folder / "catalog.db")).render_as_string()
        return CatalogConfig(
            DEFAULT,
            {"type": "sql", "uri": _add_busy_timeout(uri), "warehouse": f"file://{folder}/warehouse"},
            embedded=True,
        )
    variable = f"PYICEBERG_CATALOG__{wanted.upper().replace('-', '_')}__URI"
    known = ", ".join(sorted(config.get_known_catalogs())) or "none"
    raise SpecError(
        f"the catalog {wanted!r} is not configured (configured: {known}); set {variable}, or add it under "
        "'catalog:' in .pyiceberg.yaml (in PYICEBERG_HOME, your home folder or the current one)"
    )


def load_catalog(name: str | None) -> Catalog:
    """Open a catalog; None means the default or the embedded one. Raises SpecError and the client's errors."""
    config = catalog_config(name)
    with translate_catalog_errors(config.name):
        if not config.embedded:
            return _open(config)
        with _lock_setup():
            engine = create_engine(config.properties["uri"])
            try:
                with engine.connect() as connection:
                    connection.execute(text("PRAGMA journal_mode=WAL"))
            finally:
                engine.dispose()
            return _open(config)


def open_existing_catalog(name: str | None) -> Catalog:
    """Open a catalog for reading. A missing SQLite file counts as an empty catalog."""
    kept = kept_in_thread.get()
    if kept is None:
        return _open_existing(name)
    opened, now_s = kept.get(name), time.monotonic()
    if opened is None or now_s - opened[1] >= CATALOG_CACHE_S:
        opened = kept[name] = (_open_existing(name), now_s)
    return opened[0]


def call_catalog(name: str | None, step: Callable[[], A], catalogs: Unresponsive, *, is_long: bool = False) -> A:
    """Run a step that reads the catalog. Raises CommitUnavailable if the step takes `ANSWER_TIMEOUT_S`. If the step
    `is_long`, this limit is only for opening the catalog.
    """

    def run() -> A:
        if not is_long:
            return _answer_in_time(name, step)
        _answer_in_time(name, partial(open_existing_catalog, name))
        return step()

    return catalogs.call(name, run)


def _answer_in_time(name: str | None, step: Callable[[], A]) -> A:
    try:
        return run_with_timeout(step, ANSWER_TIMEOUT_S)
    except TimeoutError as error:
        raise unreachable_error(f"the catalog {name or 'default'!r} does not answer") from error


@contextmanager
def keep_catalogs() -> Iterator[None]:
    """Reuse opened catalogs for `CATALOG_CACHE_S` seconds in this context and thread."""
    token = kept_in_thread.set({})
    try:
        yield
    finally:
        kept_in_thread.reset(token)


def _open_existing(name: str | None) -> Catalog:
    config = catalog_config(name)
    uri = config.properties.get("uri", "")
    file = make_url(uri).database if uri.startswith("sqlite") else None
    if not file or file == ":memory:" or file.startswith("file:"):  # not a path, or a SQLite URI
        return load_catalog(name)
    if Path(file).exists() or not (config.embedded or Path(file).parent.is_dir()):
        return load_catalog(name)
    in_memory = {"uri": EMPTY_DATABASE, MISSING_FILE: file}
    return _open(replace(config, properties={**config.properties, **in_memory}))


def spark_properties(name: str | None) -> dict[str, str]:
    """Return `spark.sql.catalog.<name>` and its subkeys, including credentials. Raises SpecError."""
    config = catalog_config(name)
    return to_spark_properties(config.name, config.properties)


def configured_catalogs() -> tuple[str | None, ...]:
    """Return the names of all configured catalogs, and None for the default one."""
    check_configuration()
    return (None, *sorted(Config().get_known_catalogs()))


def list_namespaces(catalog: Catalog, parent: Identifier = ()) -> Iterator[Identifier]:
    """Yield all namespaces of the catalog, or of `parent`, each before the namespaces in it."""
    for namespace in catalog.list_namespaces(parent):
        yield namespace
        if len(namespace) > len(parent):
            yield from list_namespaces(catalog, namespace)


def list_table_names(catalog: Catalog, namespace: str) -> list[str]:
    try:
        return [f"{namespace}.{identifier[-1]}" for identifier in catalog.list_tables(namespace)]
    except NoSuchNamespaceError:
        return []


def find_table(catalog: Catalog, identifier: str) -> Table | None:
    """Load a table; None if it does not exist."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def explain_table_error(error: Exception) -> Explanation:
    if isinstance(error, ForbiddenError | PermissionError) and not is_credentials_expiry(error):
        problem = f"access denied ({error_text(error)}): grant frazil's user read and write access to the table"
        return Explanation(problem)
    return Explanation(error.reason, error.remedy) if isinstance(error, FrazilError) else Explanation(error_text(error))


@contextmanager
def translate_catalog_errors(catalog: str) -> Iterator[None]:
    """Convert errors of catalog clients to AccessDenied, CommitRefused, CommitUnavailable and TableLost."""
    try:
        yield
    except _ACCESS_ERRORS as error:
        if is_credentials_expiry(error):
            raise CommitUnavailable(
                f"the credentials for the catalog {catalog!r} or its storage have expired: {error}; the next start "
                "fetches new credentials"
            ) from error
        raise AccessDenied(
            f"the catalog {catalog!r} or its storage refuses frazil's credentials: {error}; correct them, then start "
            "again"
        ) from error
    except BadRequestError as error:
        remedy = "Correct what the error names, in the declaration or the catalog's configuration"
        raise CommitRefused(f"the catalog {catalog!r} refuses the request: {error}. {remedy}") from error
    except _unreachable_errors() as error:
        raise unreachable_error(f"the catalog {catalog!r} cannot be reached{_connection_error_text(error)}") from error
    except OperationalError as error:
        raise translate_database_error(catalog, str(error.orig)) from error
    except FileNotFoundError as error:
        if METADATA_SUFFIX not in str(error):
            raise
        raise TableLost(
            f"the catalog {catalog!r} refers to a missing metadata file: {error}. Restore it from a backup, "
            "or register the newest metadata file that exists"
        ) from error
    except Exception as error:
        translated = translate_client_error(catalog, error)
        if translated is None and isinstance(error, OSError):
            translated = translate_local_failure(f"catalog {catalog!r}", error)
        if translated is None:
            raise
        raise translated from error


def _unreachable_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors after which a retry may succeed."""
    import requests  # as `_connection_error_text`

    http = (requests.ConnectionError, requests.Timeout)
    return (ServerError, ServiceUnavailableError, TooManyRequestsError, *http)


def _connection_error_text(error: Exception) -> str:
    import requests  # only catalogs behind a REST API need it
    from urllib3.exceptions import TimeoutError as HttpTimeout

    # The messages of requests and urllib3 are nested.
    if not isinstance(error, requests.RequestException):
        return f": {' '.join(str(error).split())[:MAX_ERROR_CHARACTERS]}"
    url = urlsplit(str(error.request.url) if error.request else "")
    port = url.port or (443 if url.scheme == "https" else 80)
    where = f" at {url.scheme}://{url.hostname}:{port}" if url.hostname else ""
    found = _ERRNO_PATTERN.search(str(error))
    # After retries, requests raises the same error for a server that hangs as for one that does not exist.
    tried = error.args[0] if error.args else None
    is_late = isinstance(getattr(tried, "reason", None), HttpTimeout) or isinstance(error, requests.Timeout)
    reason = "no answer in time" if is_late else "the connection broke"
    return f"{where}: {found[1] if found else reason}"


def _flatten(configured: object, prefix: str = "") -> dict[str, str]:
    if not isinstance(configured, dict):
        return {prefix: str(configured)}
    flat: dict[str, str] = {}
    for key, value in configured.items():
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _add_busy_timeout(uri: str) -> str:
    url = make_url(uri)
    if "timeout" in url.query or not url.database or url.database == ":memory:":
        return uri
    return url.update_query_dict({"timeout": str(SQLITE_BUSY_SECONDS)}).render_as_string(hide_password=False)


def _open(config: CatalogConfig) -> Catalog:
    """Open a catalog. Retries while another process creates the SQL catalog's tables."""
    for _ in range(MAX_OPEN_ATTEMPTS - 1):
        try:
            return _open_once(config)
        except DBAPIError as error:
            if "already exists" not in str(error.orig):
                raise
    return _open_once(config)


def _open_once(config: CatalogConfig) -> Catalog:
    kind, uri = catalog_type(config.properties), config.properties.get("uri", "")
    if kind == "hive" and uri and not uri.startswith("thrift://"):
        raise SpecError(f"the catalog {config.name!r} is misconfigured: its uri is not thrift://host:port")
    check_storage(config.name, config.properties.get("warehouse", ""))
    try:
        with report_missing_extras():
            catalog = _create_client(kind, config)
    except (FrazilError, DBAPIError, *_ACCESS_ERRORS, BadRequestError):
        raise
    except _unreachable_errors():
        raise
    except Exception as error:
        translated = translate_loading_error(config.name, error)
        if translated is None:
            raise
        raise translated from error
    engine = getattr(catalog, "engine", None)
    if _engines is not None and isinstance(engine, SqlEngine) and ":memory:" not in uri:
        shared = _engines.setdefault(uri, engine)
        if shared is not engine:
            catalog.engine = shared  # type: ignore[attr-defined]
            engine.dispose()
    return write_small_objects_in_one_request(reuse_metadata(keep_times_in_order(catalog)))


def share_connections() -> None:
    """Let SQL catalogs with the same database share connections from now on."""
    global _engines  # noqa: PLW0603 - one per process, never undone
    _engines = WeakValueDictionary() if _engines is None else _engines


def _create_client(kind: str, config: CatalogConfig) -> Catalog:
    """Create PyIceberg's client, or frazil's variant of it. Imports only the client that the catalog needs."""
    if kind not in {"rest", "sql"} or not config.properties.get("uri") or "py-catalog-impl" in config.properties:
        catalog = pyiceberg.catalog.load_catalog(config.name, **config.properties)
        if kind == "hive":
            make_hive_errors_mutable()
        return catalog
    if kind == "sql":
        from frazil.table.sql_catalog import PreparedSqlCatalog

        return PreparedSqlCatalog(config.name, **config.properties)
    from frazil.table.rest_catalog import ResilientRestCatalog

    return ResilientRestCatalog(config.name, **config.properties)


@contextmanager
def _lock_setup() -> Iterator[None]:
    """Hold a lock while the embedded catalog is created."""
    folder = home()
    make_folder(folder / "warehouse")
    with (folder / "catalog.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
