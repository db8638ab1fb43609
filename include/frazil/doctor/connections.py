"""Checks whether declared streams can connect to their services, with the rights that a writer needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from frazil import clock
from frazil.errors import (
    AccessDenied,
    CommitUnavailable,
    FrazilError,
    KafkaUnavailable,
    MissingExtra,
    RegistryUnavailable,
    SpecError,
    TableLost,
    TopicMissing,
)
from frazil.extras import report_missing_extras
from frazil.offsets.spans import TopicPartition
from frazil.spec.formats import envelope_of, registry_of
from frazil.spec.model import StreamSpec
from frazil.spec.references import declared_kafka_properties, kafka_properties
from frazil.spec.units import counted


@dataclass(frozen=True, slots=True)
class Fault:
    """One failed connection or missing right. `fix` says what to do, unless `said` already does."""

    said: str
    fix: str = ""


@dataclass(slots=True)
class Connections:
    """The results of checking streams, one sentence each.

    Streams of one namespace share one check of their catalog. Brokers that did not respond are not contacted again.
    """

    good: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    _checked: dict[tuple[str | None, str, str | None, bool], list[Fault]] = field(default_factory=dict)
    _silent: dict[frozenset[tuple[str, str]], str] = field(default_factory=dict)
    """The brokers that did not respond, by their declared properties, each with the first stream that declares them."""

    @classmethod
    def of(cls, streams: Mapping[Path, StreamSpec]) -> Connections:
        """Check Kafka, the schema registry, the catalog and the storage of each stream."""
        found = cls()
        for path, spec in streams.items():
            found._ask(path, spec)
        return found

    def _ask(self, path: Path, spec: StreamSpec) -> None:
        asks = {Place.SOURCE: self._kafka, **({Place.REGISTRY: _registry} if registry_of(spec.source.format) else {})}
        for part, ask in asks.items():
            try:
                self.good.append(f"{spec.name}: {ask(spec)}")
            except FrazilError as error:
                self.faults.append(Fault(f"{path}: {part}: {_said(error)}", fix_of(part, error)))
        before = len(self.faults)
        for number, place in enumerate(_namespaces(spec)):
            # A location of its own may have other rights.
            key = (place.table.catalog, _namespace(place), place.table.location, bool(place.commit.atomic))
            if key not in self._checked:
                self._checked[key] = _catalog_problems(place)
            where = f"namespace {_namespace(place)}: " if number else ""
            self.faults += [
                replace(problem, said=f"{path}: table: {where}{problem.said}") for problem in self._checked[key]
            ]
        if len(self.faults) == before:
            others = ", ".join(_namespace(place) for place in _namespaces(spec)[1:])
            more = f", and tables in {others}" if others else ""
            self.good.append(f"{spec.name}: the catalog and its storage can hold {spec.table.identifier}{more}")

    def _kafka(self, spec: StreamSpec) -> str:
        from frazil.kafka.admin import is_timeout  # noqa: PLC0415 - librdkafka, only where it is asked

        brokers = frozenset(declared_kafka_properties(spec).items())
        if brokers in self._silent:
            servers = kafka_properties(spec, os.environ)["bootstrap.servers"]
            raise KafkaUnavailable(
                f"the brokers {servers} do not answer: they were asked for stream "
                f"{self._silent[brokers]}, which declares the same, and not once more. Check source.bootstrap-servers "
                "and the brokers"
            )
        try:
            return _kafka(spec)
        except KafkaUnavailable as error:
            if is_timeout(error.__cause__):
                self._silent[brokers] = spec.name
            raise


def _namespace(spec: StreamSpec) -> str:
    return spec.table.identifier.rpartition(".")[0]


def _namespaces(spec: StreamSpec) -> list[StreamSpec]:
    """Return the stream, and a copy of it for every other namespace of its dead-letter table and its route's tables."""
    route = spec.route
    others = [spec.dead_letter_table]
    if route is not None:
        others += [*route.tables.values(), *([route.template] if route.template else [])]
    found = {_namespace(spec): spec}
    for identifier in others:
        # Only the stream's own table has the declared location.
        table = spec.table.model_copy(update={"identifier": identifier, "location": None})
        found.setdefault(identifier.rpartition(".")[0], spec.model_copy(update={"table": table}))
    return [*found.values()]


def _kafka(spec: StreamSpec) -> str:
    """Check that the stream's topics exist and can be read. Returns a description of the topics.

    Raises SpecError, AccessDenied and KafkaUnavailable.
    """
    from frazil.commit.opened import open_kafka  # noqa: PLC0415 - librdkafka, only where it is asked
    from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S  # noqa: PLC0415 - as above
    from frazil.kafka.fetch import check_readable  # noqa: PLC0415 - as above

    with open_kafka(spec) as kafka:
        partitions = kafka.describe().partitions
        kafka.earliest(partitions)
    properties = {"log_level": "2", **kafka_properties(spec, os.environ)}
    ends = _of_transactions(spec, properties)
    check_readable(properties, [*partitions, *(ends or ())], stream=spec.name, within_s=INTERACTIVE_TIMEOUT_S)
    if spec.source.topic_pattern is not None:
        count = len({topic for topic, _ in partitions})
        return f"{spec.source.topics_in_words}: {counted(count, 'topic')} now, {counted(len(partitions), 'partition')}"
    topics = "topic" if len(spec.source.topics) == 1 else "topics"
    found = f"{topics} {spec.source.topics_in_words}: {counted(len(partitions), 'partition')}"
    return found + _ends_in_words(spec, ends)


def _of_transactions(spec: StreamSpec, properties: Mapping[str, str]) -> Sequence[TopicPartition] | None:
    """Return the partitions of the topic in which the ends of transactions are.

    None if the stream declares no such topic; empty if the topic does not exist.
    """
    from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S, KafkaOffsets  # noqa: PLC0415 - librdkafka, only where it is asked

    envelope = envelope_of(spec.source.format)
    if envelope is None or envelope.transactions is None:
        return None
    with KafkaOffsets(properties, [envelope.transactions], stream=spec.name, timeout_s=INTERACTIVE_TIMEOUT_S) as kafka:
        try:
            return kafka.describe().partitions
        except TopicMissing:
            return ()


def _ends_in_words(spec: StreamSpec, ends: Sequence[TopicPartition] | None) -> str:
    envelope = envelope_of(spec.source.format)
    if ends is None or envelope is None:
        return ""
    if ends:
        return f"; transactions {envelope.transactions}: {counted(len(ends), 'partition')}"
    return (
        f"; transactions {envelope.transactions}: the topic does not exist yet, so it is not checked. The connector "
        "creates it with the first transaction (provide.transaction.metadata: true)"
    )


def _registry(spec: StreamSpec) -> str:
    """Check that the schema registry answers a request about the stream's topic.

    Raises RegistryUnavailable and SpecError.
    """
    from frazil.registry.client import UnknownSchema, shared_registry  # noqa: PLC0415 - only where it is asked

    declared = registry_of(spec.source.format)
    assert declared is not None
    with suppress(UnknownSchema):  # a reference to a missing schema: the registry answers
        shared_registry(declared, os.environ).newest(f"{(*spec.source.topics, 'frazil')[0]}-value")
    return "its schema registry answers"


def _catalog_problems(spec: StreamSpec) -> list[Fault]:
    from frazil.commit.catalog_probe import probe, removing_empty_folders  # noqa: PLC0415 - PyIceberg is slow to load
    from frazil.table.atomic_catalogs import find_commit_tables  # noqa: PLC0415 - as above
    from frazil.table.catalogs import load_catalog  # noqa: PLC0415 - as above

    try:
        with report_missing_extras():
            catalog = load_catalog(spec.table.catalog)
            with removing_empty_folders(catalog, spec):
                if spec.commit.atomic:
                    find_commit_tables(catalog)
                missing = probe(catalog, spec, now_ms=clock.now_ms())
    except FrazilError as error:
        return [Fault(_said(error), fix_of(Place.TABLE, error))]
    return [
        Fault(f"the catalog {catalog.name!r} cannot hold a stream: {capability}", CAPABILITY) for capability in missing
    ]


def _said(error: FrazilError) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


CAPABILITY = "let the catalog do what docs/reference/catalogs.md asks of one, or name another: `table.catalog`"


_ACLS = "kafka-acls.sh --add --allow-principal User:NAME --operation Describe --operation Read --topic NAME"


class Place(StrEnum):
    """The services that a stream connects to, named as in its declaration."""

    SOURCE = "source"
    REGISTRY = "source.format.registry"
    TABLE = "table"


_MENDS: Mapping[Place, Sequence[tuple[type[FrazilError], str]]] = {
    Place.SOURCE: (
        (TopicMissing, "make the topic (kafka-topics.sh --create --topic NAME), or correct `source.topics`"),
        (KafkaUnavailable, "start the brokers, let this host reach them, or correct `source.bootstrap-servers`"),
        (AccessDenied, f"correct user and secret in `source.properties`, or give the user its rights: {_ACLS}"),
        (SpecError, "set the variables of `source` for the user who runs the writer, or correct its properties"),
    ),
    Place.REGISTRY: (
        (RegistryUnavailable, "start the registry, let this host reach it, or correct its url and credentials"),
        (SpecError, "set the variables that `source.format.registry` refers to, or correct it"),
    ),
    Place.TABLE: (
        (
            TableLost,
            "name the right catalog, or register the table: `A lost catalog` in docs/how-to/operate-writers.md",
        ),
        (CommitUnavailable, "start catalog and storage, let this host reach them, or correct .pyiceberg.yaml"),
        (AccessDenied, "correct the credentials in .pyiceberg.yaml, or let them create, write, list and delete there"),
        (SpecError, "correct `table.catalog`, or that catalog in .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__…"),
    ),
}
"""Fixes by service and error class. The first class that matches is used."""


def fix_of(place: Place, error: FrazilError) -> str:
    """Return what to do about an error; empty if the error's message already says so."""
    if isinstance(error, MissingExtra):
        return ""
    return next((fix for kind, fix in _MENDS[place] if isinstance(error, kind)), "")
