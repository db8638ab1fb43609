"""The writer application that streams share: one process and one Spark for the writers of many streams."""
