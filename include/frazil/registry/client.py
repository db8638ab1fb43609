"""A read-only client for schema registries with Confluent's API. Drivers and executors use it."""

from __future__ import annotations

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit
from uuid import UUID

import requests

from frazil.errors import RegistryUnavailable, SpecError, innermost_error_text
from frazil.registry import bounded_http
from frazil.spec.formats import Registry
from frazil.spec.references import resolve

MAX_CACHED_SCHEMAS = 4096
"""Maximum number of schemas in the cache. They stay valid, because the schema of an id never changes."""
MAX_UNKNOWN_IDS = 100_000
MAX_CACHED_GUIDS = 100_000
"""Maximum number of GUIDs with an id: more than a chunk has records, so that none expires while decoding."""
UNKNOWN_ID_CACHE_S = 60.0
"""Seconds for which an id without a schema is not requested again."""
MAX_REFERENCES = 1000
"""Maximum number of schemas that one schema references, directly or indirectly."""
REFERENCES_TIMEOUT_FACTOR = 5
"""Timeout for all references of a schema, in multiples of the registry's timeout."""
RECORDS_WAIT = "Records wait until the registry returns their schemas"
"""Default last sentence of error messages. It says what waits for the registry."""
MAX_REFERENCE_DEPTH = 200
"""Maximum length of a chain of schemas that each refer to the next."""
_RETRY_PAUSES_S = (0.1, 0.3, 1.0)
"""Pauses between the attempts of a request. The last pause repeats."""
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_NOT_FOUND = frozenset({"40401", "40402", "40403"})
"""The registry's own error codes for a missing subject, version or schema."""


class UnknownSchema(LookupError):
    """The registry does not have the schema."""


class SchemaText(NamedTuple):
    """A registered schema with its references."""

    type: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of each referenced schema. Each follows the schemas that it references."""


class SchemaSource(Protocol):
    def prefetch(self, schema_ids: Sequence[int]) -> None:
        """Fetch these schemas concurrently into the cache of `get`. Raises RegistryUnavailable."""

    def get(self, schema_id: int) -> SchemaText:
        """Return the schema with this id. Raises UnknownSchema and RegistryUnavailable."""


class SchemaRegistry:
    """A client of one schema registry. Thread-safe."""

    def __init__(self, declared: Registry, environment: Mapping[str, str], *, effect: str = RECORDS_WAIT) -> None:
        """`effect` ends each error message. Raises SpecError for an unresolved reference or a missing CA file."""
        self._effect = effect
        self._url = resolve(declared.url, environment).rstrip("/")
        self._timeout_s = declared.timeout.total_seconds()
        self._session = bounded_http.create_session()
        self._session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
        self._session.own_headers = {name: resolve(text, environment) for name, text in declared.properties.items()}
        self._session.headers.update(self._session.own_headers)
        if declared.ca_file is not None:
            if not Path(declared.ca_file).is_file():
                raise SpecError(f"source.format.registry.ca-file: {declared.ca_file} does not exist on this host")
            self._session.verify = declared.ca_file
        if declared.token is not None:
            self._session.auth = _Bearer(resolve(declared.token, environment))
        elif declared.username is not None:
            password = resolve(declared.password or "", environment)
            self._session.auth = (resolve(declared.username, environment), password)
        self._known: OrderedDict[int, SchemaText] = OrderedDict()
        self._unknown: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._guids: OrderedDict[bytes, int] = OrderedDict()
        """Map each GUID to its id in this process. These ids are negative, unlike the ids of a registry."""
        self._guid_of: OrderedDict[int, bytes] = OrderedDict()
        self._referred: OrderedDict[tuple[str, int], Mapping[str, Any]] = OrderedDict()
        """The references fetched so far, so that a retry after a timeout does not fetch them again."""
        self._lock = Lock()

    def prefetch(self, schema_ids: Sequence[int]) -> None:
        """Fetch the schemas that are not cached, concurrently. The cache has at most `MAX_CACHED_SCHEMAS` schemas."""
        with self._lock:
            missing = [schema_id for schema_id in schema_ids if self._find_cached(schema_id) is None]
            if not missing:
                return
            with ThreadPoolExecutor(min(8, len(missing))) as pool:
                for schema_id, schema in zip(missing, pool.map(self._fetch_or_unknown, missing), strict=True):
                    self._add_to_cache(schema_id, schema)

    def get(self, schema_id: int) -> SchemaText:
        """Return a cached or fetched schema. An id without a schema is requested again after a minute."""
        with self._lock:
            schema = self._find_cached(schema_id)
            if schema is None:
                schema = self._fetch_or_unknown(schema_id)
                self._add_to_cache(schema_id, schema)
        if isinstance(schema, UnknownSchema):
            raise UnknownSchema(*schema.args)
        return schema

    def id_of(self, guid: bytes) -> int:
        """Return an id for which `get` returns the schema of this GUID. The last `MAX_CACHED_GUIDS` ids are kept."""
        with self._lock:
            schema_id = self._guids.get(guid, 0)
            while schema_id == 0 or self._guid_of.setdefault(schema_id, guid) != guid:
                schema_id = -1 - secrets.randbits(31)  # unpredictable, so that no writer can frame a record with it
            self._guids[guid] = schema_id
            self._guids.move_to_end(guid)
            self._guid_of.move_to_end(schema_id)
            _evict_oldest(self._guids, MAX_CACHED_GUIDS)
            _evict_oldest(self._guid_of, MAX_CACHED_GUIDS)
            return schema_id

    def newest(self, subject: str) -> SchemaText | None:
        """Fetch a subject's newest version, bypassing the cache; None if missing. Raises the errors of `get`."""
        answer = self._fetch(f"/subjects/{quote(subject, safe='')}/versions/latest")
        return None if answer is None else self._parse_schema(answer)

    def _find_cached(self, schema_id: int) -> SchemaText | UnknownSchema | None:
        if (cached := self._known.get(schema_id)) is not None:
            self._known.move_to_end(schema_id)
            return cached
        since, reason = self._unknown.get(schema_id, (-UNKNOWN_ID_CACHE_S, ""))
        return UnknownSchema(reason) if time.monotonic() - since < UNKNOWN_ID_CACHE_S else None

    def _add_to_cache(self, schema_id: int, schema: SchemaText | UnknownSchema) -> None:
        if isinstance(schema, UnknownSchema):
            self._unknown.pop(schema_id, None)
            self._unknown[schema_id] = (time.monotonic(), str(schema))
            _evict_oldest(self._unknown, MAX_UNKNOWN_IDS)
        else:
            self._known[schema_id] = schema
            _evict_oldest(self._known, MAX_CACHED_SCHEMAS)

    def _fetch_or_unknown(self, schema_id: int) -> SchemaText | UnknownSchema:
        guid_bytes = self._guid_of.get(schema_id)
        guid = guid_bytes and str(UUID(bytes=guid_bytes))
        if schema_id <= 0 and guid is None:
            return UnknownSchema(f"{schema_id} is not a schema id")
        answer = self._fetch(f"/schemas/guids/{guid}" if guid else f"/schemas/ids/{schema_id}")
        if answer is None:
            return UnknownSchema(f"the registry has no schema with {f'GUID {guid}' if guid else f'id {schema_id}'}")
        try:
            return self._parse_schema(answer)
        except UnknownSchema as error:
            return error

    def _parse_schema(self, answer: Mapping[str, Any]) -> SchemaText:
        references: dict[str, str] = {}
        deadline = time.monotonic() + self._timeout_s * REFERENCES_TIMEOUT_FACTOR
        try:
            self._add_references(answer, references, inside=(), deadline=deadline)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # Another error class would suggest that the records are at fault.
            raise self._unavailable_error(f"returns invalid references ({type(error).__name__})") from None
        return SchemaText(str(answer.get("schemaType", "AVRO")), str(answer["schema"]), tuple(references.items()))

    def _add_references(
        self, answer: Mapping[str, Any], texts: dict[str, str], inside: tuple[str, ...], deadline: float
    ) -> None:
        """Add the schemas that `answer` references to `texts`, by name, each after its own references.

        If a name is referenced with several versions, the first one counts, as in Confluent's clients. `inside` has
        the enclosing schemas, whose references are still being fetched. `deadline` is a time of the monotonic clock.
        """
        for reference in answer.get("references") or ():
            name, key = str(reference["name"]), (str(reference["subject"]), int(reference["version"]))
            if name in texts or name in inside:
                continue
            if len(texts) + len(inside) >= MAX_REFERENCES:
                raise UnknownSchema(f"the schema refers to more than {MAX_REFERENCES} other schemas")
            if len(inside) >= MAX_REFERENCE_DEPTH:
                raise UnknownSchema(f"the schema refers to a chain of more than {MAX_REFERENCE_DEPTH} other schemas")
            referred = self._fetch_reference(key, deadline)
            self._add_references(referred, texts, (*inside, name), deadline)
            texts[name] = str(referred["schema"])

    def _fetch_reference(self, key: tuple[str, int], deadline: float) -> Mapping[str, Any]:
        """Fetch a schema, even a deleted one, and keep it for later attempts."""
        if (cached := self._referred.get(key)) is not None:
            return cached
        if time.monotonic() >= deadline:
            timeout_s = self._timeout_s * REFERENCES_TIMEOUT_FACTOR
            raise self._unavailable_error(
                f"did not return all references of a schema within {timeout_s:g} s; the next attempt fetches "
                "only the missing ones"
            )
        subject, version = key
        answer = self._fetch(f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true", deadline=deadline)
        if answer is None:
            problem = f"the schema refers to version {version} of {subject}, which the registry does not have"
            raise UnknownSchema(problem)
        self._referred[key] = answer
        _evict_oldest(self._referred, MAX_CACHED_SCHEMAS)
        return answer

    def _fetch(self, path: str, *, deadline: float = math.inf) -> Mapping[str, Any] | None:
        """Return the response; None if it is missing. Retries until the timeout, or until `deadline`."""
        deadline = min(deadline, time.monotonic() + self._timeout_s)
        tries = 0
        while True:
            left_s = max(0.05, deadline - time.monotonic())
            try:
                response = bounded_http.get(self._session, self._url + path, timeout_s=left_s)
            except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, ValueError) as error:
                raise self._unavailable_error(f"has an invalid address ({type(error).__name__})") from None
            except requests.exceptions.SSLError as error:
                raise self._unavailable_error(f"does not respond: {innermost_error_text(error)}") from None
            except (requests.RequestException, OSError) as error:
                late = time.monotonic() >= deadline
                reason = f" within {self._timeout_s:g} s" if late else f": {innermost_error_text(error)}"
                failure = f"does not respond{reason}"
            else:
                if response.status_code not in _TRANSIENT_STATUSES:
                    return self._parse_response(response)
                failure = f"responds with status {response.status_code}"
            wait_s = _RETRY_PAUSES_S[min(tries, len(_RETRY_PAUSES_S) - 1)]
            if time.monotonic() + wait_s >= deadline:
                raise self._unavailable_error(failure)
            time.sleep(wait_s)
            tries += 1

    def _parse_response(self, response: requests.Response) -> Mapping[str, Any] | None:
        status = response.status_code
        try:
            document = response.json()
        except (ValueError, RecursionError):
            document = None
        if status == 200 and isinstance(document, dict) and isinstance(document.get("schema"), str):
            return document
        # A 404 without the registry's own code comes from another service at this address.
        if status == 404 and isinstance(document, dict) and str(document.get("error_code")) in _NOT_FOUND:
            return None
        if status in (401, 403):
            raise self._unavailable_error(f"refuses the credentials ({status})")
        problem = f"responds with status {status}, but not like a schema registry"
        raise self._unavailable_error(problem)

    def _unavailable_error(self, problem: str) -> RegistryUnavailable:
        parts = urlsplit(self._url)
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return RegistryUnavailable(f"the schema registry {where} {problem}. {self._effect}; see source.format.registry")


class _Bearer(requests.auth.AuthBase):
    """Sends a bearer token. `requests` would replace a plain header by an entry in ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _evict_oldest(cache: OrderedDict[Any, Any], limit: int) -> None:
    while len(cache) > limit:
        cache.popitem(last=False)


_registries: dict[str, SchemaRegistry] = {}
_registries_lock = Lock()


def shared_registry(declared: Registry, environment: Mapping[str, str]) -> SchemaRegistry:
    """Return this process's client of a registry. All tasks share the client's cached schemas."""
    key = repr((declared, sorted(environment.items()) if "${" in declared.model_dump_json() else ()))
    with _registries_lock:
        if key not in _registries:
            _registries[key] = SchemaRegistry(declared, environment)
        return _registries[key]
