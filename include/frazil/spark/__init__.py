"""What every Spark application of frazil needs: Java, a session, a log."""

from __future__ import annotations
