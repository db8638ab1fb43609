"""A shared writer application: one process and one Spark for the writers of many streams."""
