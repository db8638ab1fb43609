"""Reports writers, aggregations and maintenance to an OpenLineage backend, if OpenLineage's variables declare one."""
