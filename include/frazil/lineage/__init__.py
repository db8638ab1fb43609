"""Writers, aggregations and maintenance in an OpenLineage backend. Off unless OpenLineage's own variables name one."""
