"""Reports writers, aggregations and maintenance to an OpenLineage backend, if environment variables declare one."""
