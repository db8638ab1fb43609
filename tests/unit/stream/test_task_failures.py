"""Spark's messages about a failed task, converted to frazil's errors."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from frazil.errors import PythonStartTimeout, WorkerDied
from frazil.stream import spark_engine
from frazil.stream.spark_engine import python_error_message, translate_spark_errors

GIVEN_UP = (
    "Job aborted due to stage failure: Task 0 in stage 7.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 7.0 (TID 31) (10.0.0.7 executor {executor}): {why}\n"
    "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:600)\n"
)
CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
LOST = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with code 137"


def translated(text: str) -> str:
    with pytest.raises(WorkerDied) as raised, translate_spark_errors("ticks"):
        raise RuntimeError(text)
    assert "\n" not in str(raised.value)
    assert "org.apache" not in str(raised.value)
    return str(raised.value)


def test_python_workers_that_die_are_one_sentence_with_the_host_and_the_tries():
    words = translated(GIVEN_UP.format(executor="driver", why=CRASHED))
    assert words.startswith(
        "a Python worker of stream 'ticks' died on 10.0.0.7, and Spark gave up its task after 4 attempts."
    )
    assert "memory ran out" in words


def test_an_executor_that_dies_is_reported_with_its_exit_code():
    words = translated(GIVEN_UP.format(executor="3", why=LOST))
    assert words.startswith("an executor of stream 'ticks' died on 10.0.0.7 with exit code 137, and Spark gave")
    assert "It was killed" in words


def test_a_worker_crash_without_details_still_gives_frazils_sentence():
    assert translated(CRASHED).startswith("a Python worker of stream 'ticks' died. Nothing of the batch was committed")


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o33.sc"),
        ConnectionRefusedError(),
    ],
)
def test_a_lost_jvm_is_reported_in_one_sentence(error: Exception):
    with (
        pytest.raises(WorkerDied, match="the JVM of stream 'ticks' died"),
        translate_spark_errors("ticks"),
    ):
        raise error


def test_an_error_in_a_task_is_reported_by_its_own_sentence():
    trace = 'Traceback (most recent call last):\n  File "stage.py", line 3, in stage\n    raise ValueError(x)\n'
    why = f"org.apache.spark.api.python.PythonException: {trace}ValueError: a name\nthat is invalid\n"
    text = GIVEN_UP.format(executor="driver", why=why)
    assert python_error_message(text) == "ValueError: a name that is invalid"
    assert python_error_message(GIVEN_UP.format(executor="driver", why="java.lang.IllegalStateException: no")) is None


def test_other_spark_failures_are_raised_unchanged():
    with pytest.raises(PythonStartTimeout), translate_spark_errors("ticks"):
        raise RuntimeError("Python worker failed to connect back")
    with pytest.raises(ValueError, match="a bug"), translate_spark_errors("ticks"):
        raise ValueError("a bug")
    with pytest.raises(Py4JError), translate_spark_errors("ticks"):
        raise Py4JError(
            "An error occurred while calling o33.gone. Trace:\npy4j.Py4JException: Method gone([]) does not exist"
        )


def test_a_spark_application_ended_by_the_cluster_is_reported_in_one_sentence():
    words = translated(
        "org.apache.spark.SparkException: Job 5 cancelled because SparkContext was shut down\n\tat org.apache.x"
    )
    assert words.startswith("the Spark application of stream 'ticks' has ended. Nothing of the current batch was")
    assert "waits for executors" in words


def test_a_writer_about_to_stop_no_longer_waits_for_executors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spark_engine, "STOP_CHECK_INTERVAL_S", 0.001)
    started = Future[Any]()
    spec = SimpleNamespace(resources=SimpleNamespace(on_cluster=True))
    engine: Any = SimpleNamespace(start=lambda: started, _session_context=None, _spec=spec)
    stops = iter([False, False, True])
    assert not spark_engine.SparkEngine.ready(engine, lambda: next(stops))
    assert [*stops] == []
    started.set_result(None)
    assert spark_engine.SparkEngine.ready(engine, lambda: False)


@pytest.mark.parametrize("on_cluster", [True, False])
def test_executors_are_checked_only_on_a_cluster(monkeypatch: pytest.MonkeyPatch, *, on_cluster: bool):
    checked: list[object] = []
    monkeypatch.setattr(spark_engine, "start_context", lambda _, **__: "context")
    monkeypatch.setattr(spark_engine, "check_executors", lambda context, _: checked.append(context))
    spec = SimpleNamespace(resources=SimpleNamespace(on_cluster=on_cluster))
    engine: Any = SimpleNamespace(_session_context=None, _spec=spec, _output=None)
    assert spark_engine.SparkEngine._start(engine) == "context"
    assert checked == ["context"] * on_cluster


def test_a_spark_application_that_ended_between_batches_is_detected_by_a_check():
    engine: Any = SimpleNamespace(_spec=SimpleNamespace(name="ticks"), _context=SimpleNamespace(_jsc=None))
    with pytest.raises(WorkerDied, match="the Spark application of stream 'ticks' has ended"):
        spark_engine.SparkEngine.check(engine)
