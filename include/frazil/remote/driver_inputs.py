"""The inputs of a stream's driver. Collecting them also creates the stream's tables."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frazil.cluster.driver import ClusterDriver
from frazil.cluster.kubernetes_pod import PROPERTIES
from frazil.commit.open_streams import check_own_table
from frazil.errors import SpecError, TopicMissing
from frazil.kafka.admin import KafkaAdmin
from frazil.remote.driver_environment import build_driver_environment
from frazil.remote.driver_folder import DriverFolder
from frazil.spec.load import find_file, read_stream
from frazil.spec.model import StreamSpec
from frazil.spec.references import (
    connection_variable,
    find_environment_names,
    resolve_kafka_properties,
    resolve_properties,
)
from frazil.spec.references import find_connections as declared_connections
from frazil.spec.resources import ClusterManager, Resources
from frazil.supervise.desired_state import DesiredStore
from frazil.table.catalogs import catalog_config, load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table, load_stream_table

DRIVER_VARIABLE_PREFIX = "spark.kubernetes.driverEnv."


@dataclass(frozen=True, slots=True)
class DriverInputs:
    spec: StreamSpec
    declared: Mapping[str, Any]
    """The declaration, with the text of the files that it refers to."""
    resources: Resources
    """The declared resources. References are resolved, except where command lines would show the values."""
    folder: DriverFolder
    restart_generation: int
    program: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)

    def driver(self, order: str) -> ClusterDriver:
        return ClusterDriver(
            application=self.spec.name,
            launch_id=order,
            program=str(self.program),
            arguments=(*self.arguments, "--driver", order),
            resources=self.resources,
            environment=self.environment,
        )


def prepare_driver(spec: StreamSpec, streams: Path, *, program: Path) -> DriverInputs:
    """Create missing tables, and return the driver's inputs. Raises the errors that keep a writer from starting."""
    config = catalog_config(spec.table.catalog)
    if config.embedded and not spec.resources.on_loopback:
        raise SpecError(
            f"stream {spec.name}: a driver in a cluster cannot use the embedded catalog, which is a file on this host: "
            "configure a catalog that all hosts can reach"
        )
    stream_table = load_stream_table(spec)
    check_own_table(spec, stream_table)
    if stream_table is None:
        # A mistyped topic must not leave an empty table behind.
        settings = resolve_kafka_properties(spec, os.environ)
        with KafkaAdmin(settings, spec.source.reads, stream=spec.name) as kafka:
            if not kafka.describe().partitions:
                raise TopicMissing(f"Kafka has no {spec.source.topics_text} yet", stream=spec.name)
    catalog = load_catalog(spec.table.catalog)
    table = ensure_table(catalog, spec)
    ensure_dead_letters(catalog, spec)
    manager, properties = spec.resources.manager, dict(spec.resources.spark)
    if manager is ClusterManager.KUBERNETES:
        properties = {key: value for key, value in properties.items() if key.startswith(PROPERTIES)}
    resolved = resolve_properties(properties, os.environ)
    # On a standalone cluster, the driver resolves the references.
    spark = properties if manager is ClusterManager.STANDALONE else dict(resolved)
    return DriverInputs(
        spec=spec,
        declared=inline_schema_file(read_stream(find_file(streams, spec.name)), streams),
        resources=spec.resources.model_copy(update={"spark": spark}),
        folder=DriverFolder.open(table, spec.name),
        restart_generation=DesiredStore(spec.name, table).read().restart_generation,
        program=program,
        arguments=(spec.name, "--catalog", config.name, "--table", spec.table.identifier),
        environment=_driver_variables(spec, resolved, catalog=config.name, properties=config.properties),
    )


def inline_schema_file(declared: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace the names of schema files by their texts: the driver's host does not have the files. Raises SpecError."""
    source = declared.get("source")
    if not isinstance(source, Mapping):
        return dict(declared)
    formats = {name: _inline_schema(source[name], name, folder) for name in ("format", "key") if name in source}
    return {**declared, "source": {**source, **formats}}


def _inline_schema(form: Any, name: str, folder: Path) -> Any:
    if not isinstance(form, Mapping) or form.get("schema-file") is None:
        return form
    path = folder / str(form["schema-file"])
    try:
        data = path.read_bytes()
        is_compiled = form.get("format" if name == "key" else "type") == "protobuf" and path.suffix != ".proto"
        text = base64.b64encode(data).decode() if is_compiled else data.decode()
    except (OSError, ValueError) as error:
        raise SpecError(f"source.{name}.schema-file: cannot read {path}: {error}") from error
    return {key: value for key, value in form.items() if key != "schema-file"} | {"schema-text": text}


def _driver_variables(
    spec: StreamSpec, resolved: Mapping[str, str], *, catalog: str, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the driver's variables: only those that the stream references on Kubernetes, where users can read them."""
    referenced = {*find_environment_names(spec), *map(connection_variable, declared_connections(spec))}
    if spec.resources.manager is ClusterManager.KUBERNETES:
        names = {name for name in referenced if f"{DRIVER_VARIABLE_PREFIX}{name}" not in resolved}
        return {name: os.environ[name] for name in names if os.environ.get(name)}
    return build_driver_environment(os.environ, referenced=referenced, catalog=catalog, properties=properties)
