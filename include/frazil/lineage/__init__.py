"""Reports writers, aggregations and maintenance to an OpenLineage backend, if OpenLineage's variables name one."""
