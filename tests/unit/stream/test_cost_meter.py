"""Each batch has the cost of its process since the previous batch; no cost is counted twice."""

from __future__ import annotations

import os
import time

from frazil.stream.engine import read_answers
from frazil.stream.session import CostMeter
from frazil.stream.stage_rows import process_name
from frazil.table.object_store import count_request, upload_requests
from tests.unit.stream.test_shuffled_answers import VALID, answered


def test_cpu_and_requests_are_counted_once():
    meter = CostMeter()
    meter.take_usage()
    count_request("writes", "s3://bucket/a")
    count_request("reads", "s3://bucket/a")
    count_request("writes", "file:///a")
    count_request("writes", "/a")
    end_s = time.process_time() + 0.02
    while time.process_time() < end_s:
        pass
    cpu_s, requests = meter.take_usage()
    assert cpu_s >= 0.02
    assert requests == (1, 1)
    assert meter.take_usage()[1] == (0, 0)


def test_cpu_of_the_jvm_is_counted_and_an_ended_jvm_counts_as_zero():
    meter = CostMeter(jvm_pid=os.getpid())
    assert meter.take_usage()[0] > time.process_time()
    meter.jvm_pid = 2**22 + 1  # above the highest process id
    assert meter.take_usage()[0] == 0.0


def test_large_files_are_uploaded_in_parts():
    assert [upload_requests("s3://b/f", size) for size in (1, 5 * 2**20, 5 * 2**20 + 1)] == [1, 1, 4]
    assert upload_requests("file:///f", 1) == 0


def test_cpu_is_counted_for_tasks_in_other_processes_and_not_twice_in_the_same_process():
    found = answered(*[{**answer, "cpu_s": 0.25, "process": f"another:{os.getpid()}"} for answer in VALID])
    assert [one.cpu_s for one in found] == [0.5, 0.5]
    own = answered(*[{**answer, "cpu_s": 1.0, "process": process_name()} for answer in VALID])
    assert [one.cpu_s for one in own] == [0, 0]
    assert read_answers([]) == ()
