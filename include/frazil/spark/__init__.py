"""What every Spark application of frazil needs: Java, jars and a session."""

from __future__ import annotations
