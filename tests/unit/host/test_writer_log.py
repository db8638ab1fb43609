"""The writer's log as its supervisor passes it on."""

from __future__ import annotations

import logging

from frazil.host.writer_log import leveled


def test_a_line_keeps_its_level_and_a_trace_has_that_of_its_first_line():
    lines = [
        "said before any level",
        "2026-11-22 05:00:00,123 INFO frazil.stream.batch: batch 1-1: 3 records",
        "2026-11-22 05:00:01,123 WARNING frazil.stream.batch: something: WARN is no level here",
        "26/11/22 05:00:02 WARN TaskSetManager: Lost task 0.0 in stage 0.0",
        "26/11/22 05:00:03 ERROR Executor: Exception in task 0.0",
        "java.io.IOException: no space left",
        "\tat java.base/java.io.FileOutputStream.write",
        "2026-11-22 05:00:04,123 INFO frazil: the next",
    ]
    levels = [level for level, _ in leveled(lines)]
    assert levels == [
        logging.INFO, logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR, logging.ERROR, logging.ERROR,
        logging.INFO,
    ]  # fmt: skip
    assert [line for _, line in leveled(lines)] == lines
