"""Writers as streaming jobs in an OpenLineage backend. Off unless OpenLineage's own variables name one."""
