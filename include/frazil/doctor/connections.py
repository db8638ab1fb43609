"""Checks whether declared streams can connect to their services, with the permissions that a writer needs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from frazil import clock
from frazil.errors import Failure, FrazilError, TopicMissing
from frazil.extras import report_missing_extras
from frazil.offsets.spans import TopicPartition
from frazil.spec.formats import envelope_of, registry_of
from frazil.spec.model import StreamSpec
from frazil.spec.references import declared_kafka_properties, resolve_kafka_properties
from frazil.spec.units import format_count
from frazil.status.fixes import Service, explain_error
from frazil.table.unresponsive import Unresponsive


@dataclass(slots=True)
class Fault:
    """A failed connection, or a missing permission."""

    streams: list[str]
    service: Service
    cause: Failure
    """`about` names the namespace, unless it is the namespace of the stream's table."""

    @property
    def problem(self) -> Failure:
        where = filter(None, (", ".join(self.streams), self.service, self.cause.about))
        return replace(self.cause, about=": ".join(where))


@dataclass(slots=True)
class Connections:
    """Results of the checks. Each namespace is checked once; unresponsive services are not contacted again."""

    good: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Declared layouts that existing tables do not have."""
    services: Unresponsive = field(default_factory=Unresponsive)
    _streams: Sequence[StreamSpec] = ()
    _checked: dict[tuple[str | None, str, str | None, bool], list[Failure]] = field(default_factory=dict)
    """Problems by catalog, namespace, location, and whether commits are atomic."""

    @classmethod
    def check(cls, streams: Iterable[StreamSpec]) -> Connections:
        specs = [*streams]
        connections = cls(_streams=specs)
        for spec in specs:
            connections._check(spec)
        return connections

    def _check(self, spec: StreamSpec) -> None:
        brokers = frozenset(declared_kafka_properties(spec).items())
        checks = {Service.SOURCE: partial(self.services.call, brokers, lambda: _check_kafka(spec))}
        if registry_of(spec.source.format):
            checks[Service.REGISTRY] = partial(_check_registry, spec)
        for service, check in checks.items():
            try:
                self.good.append(f"{spec.name}: {check()}")
            except FrazilError as error:
                self._add_error(spec, service, error)
        has_kafka, before, namespaces = not self.fails(spec, Service.SOURCE), self._count, _copy_per_namespace(spec)
        for number, copy in enumerate(namespaces):
            # A separate location may have other permissions.
            key = (copy.table.catalog, _namespace(copy), copy.table.location, bool(copy.commit.atomic))
            if key not in self._checked:
                self._checked[key] = _check_catalog(copy, self._streams, self.services)
            about = f"namespace {_namespace(copy)}" if number else ""
            for finding in self._checked[key]:
                self._add_fault(spec, Service.TABLE, replace(finding, about=about))
        if self._count == before:
            self._check_existing_tables(spec)
            self._check_position(spec, in_kafka=has_kafka)
        if self._count == before:
            others = ", ".join(map(_namespace, namespaces[1:]))
            more = f", and tables in {others}" if others else ""
            self.good.append(f"{spec.name}: the catalog and its storage can hold {spec.table.identifier}{more}")

    @property
    def _count(self) -> int:
        return sum(len(fault.streams) for fault in self.faults)

    def fails(self, spec: StreamSpec, service: Service) -> bool:
        return any(spec.name in fault.streams and fault.service is service for fault in self.faults)

    def _add_error(self, spec: StreamSpec, service: Service, error: FrazilError) -> None:
        self._add_fault(spec, service, explain_error(service, error))

    def _add_fault(self, spec: StreamSpec, service: Service, cause: Failure) -> None:
        """Add a fault, or add the stream to an earlier fault with the same cause."""
        same = next((fault for fault in self.faults if (fault.service, fault.cause) == (service, cause)), None)
        if same is None:
            self.faults.append(Fault([spec.name], service, cause))
        elif spec.name not in same.streams:
            same.streams.append(spec.name)

    def _check_existing_tables(self, spec: StreamSpec) -> None:
        from frazil.status.table import describe_own_missing_table  # PyIceberg is slow to load
        from frazil.table.tables import check_existing_tables, load_stream_table

        try:
            if missing := describe_own_missing_table(spec, load_stream_table(spec)):
                self._add_fault(spec, Service.TABLE, missing)
                return
            self.warnings += [f"{spec.name}: table: {warning}" for warning in check_existing_tables(spec)]
        except FrazilError as error:
            self._add_error(spec, Service.TABLE, error)

    def _check_position(self, spec: StreamSpec, *, in_kafka: bool) -> None:
        """Check whether a writer can continue at the marker, in the table and, if it can be read, in Kafka."""
        from frazil.commit.commit_checks import check_ancestry  # PyIceberg is slow to load
        from frazil.commit.marker import read_marker
        from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S
        from frazil.status.stream import count_lag
        from frazil.table.tables import load_stream_table

        service = Service.TABLE
        try:
            table = load_stream_table(spec)
            marker = read_marker(table.properties, spec.name) if table else None
            if table is None or marker is None:
                return
            check_ancestry(table.metadata, marker, table=spec.table.identifier)
            service = Service.SOURCE
            if in_kafka:
                count_lag(spec, marker, timeout_s=INTERACTIVE_TIMEOUT_S)
        except FrazilError as error:
            self._add_error(spec, service, error)


def _namespace(spec: StreamSpec) -> str:
    return spec.table.identifier.rpartition(".")[0]


def _copy_per_namespace(spec: StreamSpec) -> list[StreamSpec]:
    """Return the stream, and a copy for each other namespace of its dead-letter table and routed tables."""
    sinks, by_namespace = spec.sinks, {_namespace(spec): spec}
    for identifier in filter(None, (sinks.dead_letter_table, *sinks.named_tables, sinks.template)):
        # Only the stream's own table has the declared location.
        table = spec.table.model_copy(update={"identifier": identifier, "location": None})
        by_namespace.setdefault(identifier.rpartition(".")[0], spec.model_copy(update={"table": table}))
    return [*by_namespace.values()]


def _check_kafka(spec: StreamSpec) -> str:
    from frazil.commit.open_streams import open_kafka  # librdkafka, only for this check
    from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S
    from frazil.kafka.fetch import check_readable

    with open_kafka(spec) as kafka:
        partitions = kafka.describe().partitions
        kafka.earliest(partitions)
    properties = {"log_level": "2", **resolve_kafka_properties(spec, os.environ)}
    ends = _transaction_partitions(spec, properties)
    check_readable(properties, [*partitions, *(ends or ())], stream=spec.name, timeout_s=INTERACTIVE_TIMEOUT_S)
    if spec.source.topic_pattern is not None:
        count = len({topic for topic, _ in partitions})
        partition_count = format_count(len(partitions), "partition")
        return f"{spec.source.topics_text}: {format_count(count, 'topic')} now, {partition_count}"
    topics = "topic" if len(spec.source.topics) == 1 else "topics"
    text = f"{topics} {spec.source.topics_text}: {format_count(len(partitions), 'partition')}"
    return text + _describe_transactions(spec, ends)


def _transaction_partitions(spec: StreamSpec, properties: Mapping[str, str]) -> Sequence[TopicPartition] | None:
    """Return the partitions of the transaction topic, empty if it does not exist; None if none is declared."""
    from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S, KafkaAdmin  # librdkafka, only for this check

    envelope = envelope_of(spec.source.format)
    if envelope is None or envelope.transactions is None:
        return None
    with KafkaAdmin(properties, [envelope.transactions], stream=spec.name, timeout_s=INTERACTIVE_TIMEOUT_S) as kafka:
        try:
            return kafka.describe().partitions
        except TopicMissing:
            return ()


def _describe_transactions(spec: StreamSpec, ends: Sequence[TopicPartition] | None) -> str:
    envelope = envelope_of(spec.source.format)
    if ends is None or envelope is None:
        return ""
    if ends:
        return f"; transactions {envelope.transactions}: {format_count(len(ends), 'partition')}"
    return (
        f"; transactions {envelope.transactions}: the topic does not exist yet, so it is not checked. The connector "
        "creates it with the first transaction (provide.transaction.metadata: true)"
    )


def _check_registry(spec: StreamSpec) -> str:
    """Check the stream's schema registry. Return a message about it. Raises RegistryUnavailable and SpecError."""
    from frazil.registry.client import UnknownSchema, shared_registry  # only for this check

    declared = registry_of(spec.source.format)
    assert declared is not None
    with suppress(UnknownSchema):  # a reference to a missing schema: the registry answers
        shared_registry(declared, os.environ).newest(f"{(*spec.source.topics, 'frazil')[0]}-value")
    return "its schema registry answers"


def _check_catalog(spec: StreamSpec, streams: Iterable[StreamSpec], services: Unresponsive) -> list[Failure]:
    from frazil.commit.catalog_probe import clean_up_probe_folders, probe  # PyIceberg is slow to load
    from frazil.status.table import describe_own_missing_table
    from frazil.table.atomic_catalogs import find_commit_tables
    from frazil.table.catalogs import MISSING_FILE, call_catalog, catalog_name, load_catalog, open_existing_catalog

    try:
        with report_missing_extras():
            open_catalog = partial(open_existing_catalog, spec.table.catalog)
            opened = call_catalog(spec.table.catalog, open_catalog, services)
            if MISSING_FILE in opened.properties:  # the probe would create the file
                of_catalog = (stream for stream in streams if catalog_name(stream.table.catalog) == opened.name)
                if lost := next(
                    filter(None, (describe_own_missing_table(stream, None) for stream in of_catalog)), None
                ):
                    return [lost]
            catalog = load_catalog(spec.table.catalog)
            with clean_up_probe_folders(catalog, spec):
                if spec.commit.atomic:
                    find_commit_tables(catalog)
                missing = probe(catalog, spec, now_ms=clock.now_ms())
    except FrazilError as error:
        return [explain_error(Service.TABLE, error)]
    fix = "Make the catalog support what docs/reference/catalogs.md requires, or declare another as `table.catalog`"
    return [Failure(f"the catalog {catalog.name!r} cannot hold a stream: {reason}", fix) for reason in missing]
