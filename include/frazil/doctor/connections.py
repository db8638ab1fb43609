"""Whether declared streams reach what they name, with the rights that a writer needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frazil import clock
from frazil.errors import FrazilError, KafkaUnavailable
from frazil.extras import extras_named
from frazil.spec.model import StreamSpec
from frazil.spec.references import declared_kafka_properties
from frazil.spec.units import counted


@dataclass(slots=True)
class Connections:
    """What was found of each stream, a sentence each.

    Streams of one namespace share one look at their catalog, and brokers that did not answer are not asked again.
    """

    good: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _looked: dict[tuple[str | None, str, str | None, bool], list[str]] = field(default_factory=dict)
    _silent: dict[frozenset[tuple[str, str]], str] = field(default_factory=dict)
    """The stream for which they did not answer, by how brokers are declared: each silence takes seconds to find."""

    @classmethod
    def of(cls, streams: Mapping[Path, StreamSpec]) -> Connections:
        """Ask Kafka, the catalog and the storage of each stream."""
        found = cls()
        for path, spec in streams.items():
            found._ask(path, spec)
        return found

    def _ask(self, path: Path, spec: StreamSpec) -> None:
        try:
            self.good.append(f"{spec.name}: {self._kafka(spec)}")
        except FrazilError as error:
            self.errors.append(f"{path}: source: {_said(error)}")
        # A location of its own may have other rights.
        place = (
            spec.table.catalog,
            spec.table.identifier.rpartition(".")[0],
            spec.table.location,
            bool(spec.commit.atomic),
        )
        if place not in self._looked:
            self._looked[place] = _catalog_problems(spec)
        if problems := self._looked[place]:
            self.errors.extend(f"{path}: table: {problem}" for problem in problems)
        else:
            self.good.append(f"{spec.name}: the catalog and its storage can hold {spec.table.identifier}")

    def _kafka(self, spec: StreamSpec) -> str:
        from frazil.kafka.admin import is_silence  # noqa: PLC0415 - librdkafka, only where it is asked

        brokers = frozenset(declared_kafka_properties(spec).items())
        if brokers in self._silent:
            raise KafkaUnavailable(f"its brokers did not answer for stream {self._silent[brokers]}: see its error")
        try:
            return _kafka(spec)
        except KafkaUnavailable as error:
            if is_silence(error.__cause__):
                self._silent[brokers] = spec.name
            raise


def _kafka(spec: StreamSpec) -> str:
    """What the brokers show of the topics. Raises SpecError, AccessDenied, KafkaUnavailable."""
    from frazil.commit.opened import open_kafka  # noqa: PLC0415 - librdkafka, only where it is asked

    with open_kafka(spec) as kafka:
        partitions = kafka.describe().partitions
        kafka.earliest(partitions)
    if spec.source.topic_pattern is not None:
        count = len({topic for topic, _ in partitions})
        return f"{spec.source.topics_in_words}: {counted(count, 'topic')} now, {counted(len(partitions), 'partition')}"
    topics = "topic" if len(spec.source.topics) == 1 else "topics"
    return f"{topics} {spec.source.topics_in_words}: {counted(len(partitions), 'partition')}"


def _catalog_problems(spec: StreamSpec) -> list[str]:
    from frazil.commit.catalog_probe import leaving_no_folders, probe  # noqa: PLC0415 - PyIceberg is slow to load
    from frazil.table.atomic_catalogs import commit_tables_of  # noqa: PLC0415 - as above
    from frazil.table.catalogs import load_catalog  # noqa: PLC0415 - as above

    try:
        with extras_named():
            catalog = load_catalog(spec.table.catalog)
            with leaving_no_folders(catalog, spec):
                if spec.commit.atomic:
                    commit_tables_of(catalog)
                lacks = probe(catalog, spec, now_ms=clock.now_ms())
    except FrazilError as error:
        return [_said(error)]
    return [f"the catalog {catalog.name!r} cannot hold a stream: {lack}" for lack in lacks]


def _said(error: FrazilError) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
