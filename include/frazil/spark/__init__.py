"""Java, jars and sessions of frazil's Spark applications."""
