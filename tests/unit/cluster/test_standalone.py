"""A driver on a standalone cluster, with responses of a Spark 4.1.3 master."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.cluster import standalone
from frazil.cluster.driver import ApiUnavailable, ApiUnreachable, DriverState, DriverStatus
from frazil.cluster.standalone import StandaloneDriver, to_driver_status
from frazil.errors import EnvironmentUnusable

from .conftest import Answer, Api

DRIVER = "driver-20261123014744-0000"
KNOWN = {
    "action": "SubmissionStatusResponse",
    "serverSparkVersion": "4.1.3",
    "submissionId": DRIVER,
    "success": True,
    "workerHostPort": "127.0.0.1:42373",
    "workerId": "worker-20261123014740-127.0.0.1-42373",
}
STANDBY = {
    "action": "SubmissionStatusResponse",
    "message": "Exception from the cluster:\njava.lang.Exception: ... Can only request driver status in ALIVE state.",
    "serverSparkVersion": "4.1.3",
    "success": False,
}
REQUEST = standalone.build_request(
    "/opt/frazil/drive_stream.py",
    ["ticks", "--driver", "a"],
    properties={"spark.app.name": "frazil ticks", "spark.driver.supervise": "true"},
    environment={"KAFKA_PASSWORD": "hush"},
    spark_version="4.1.3",
)


@pytest.mark.parametrize(
    ("answer", "state", "words", "code"),
    [
        ({**KNOWN, "driverState": "SUBMITTED", "workerHostPort": None}, DriverState.WAITING, "no worker has", None),
        ({**KNOWN, "driverState": "RUNNING"}, DriverState.RUNNING, "the driver runs on 127.0.0.1:42373", None),
        ({**KNOWN, "driverState": "FINISHED"}, DriverState.SUCCEEDED, "ended normally", 0),
        ({**KNOWN, "driverState": "KILLED"}, DriverState.KILLED, "the driver was killed on 127", None),
        ({**KNOWN, "driverState": "FAILED"}, DriverState.FAILED, "the master reports the state FAILED on", None),
        ({**KNOWN, "driverState": "ERROR"}, DriverState.FAILED, "the driver's worker was lost", None),
        ({**KNOWN, "driverState": "UNKNOWN"}, DriverState.UNKNOWN, "UNKNOWN", None),
        ({"success": False, "submissionId": DRIVER}, DriverState.GONE, "has no record of the driver", None),
        (STANDBY, DriverState.UNKNOWN, "Exception from the cluster", None),
    ],
)
def test_a_standalone_masters_answer_maps_to_the_expected_driver_state(
    answer: dict[str, Any], state: DriverState, words: str, code: int | None
) -> None:
    found = to_driver_status(answer)
    assert (found.state, found.exit_code) == (state, code)
    assert words in found.reason


def test_a_python_driver_is_submitted_as_spark_submit_and_never_supervised_by_the_master(api: Api) -> None:
    api.answers["POST", "/v1/submissions/create"] = Answer(
        body={"action": "CreateSubmissionResponse", "success": True, "submissionId": DRIVER}
    )
    assert standalone.submit([api.address], REQUEST) == DRIVER
    ((_, _, _, requested),) = api.requested
    assert requested["mainClass"] == "org.apache.spark.deploy.SparkSubmit"
    assert requested["appArgs"] == ["--name", "frazil ticks", "/opt/frazil/drive_stream.py", "ticks", "--driver", "a"]
    assert requested["sparkProperties"]["spark.driver.supervise"] == "false"
    assert requested["environmentVariables"] == {"KAFKA_PASSWORD": "hush"}


def test_the_leading_master_accepts_the_driver(apis: Any) -> None:
    standby, leader = apis(), apis()
    path = ("POST", "/v1/submissions/create")
    standby.answers[path] = Answer(body={"success": False, "message": "Can only accept ... ALIVE state\nat x"})
    leader.answers[path] = Answer(body={"success": True, "submissionId": DRIVER})
    assert standalone.submit([standby.address, leader.address], REQUEST) == DRIVER
    with pytest.raises(EnvironmentUnusable, match=r"refuses the driver: Can only accept \.\.\. ALIVE state$"):
        standalone.submit([standby.address], REQUEST)
    with pytest.raises(ApiUnreachable, match="cannot be reached"):
        standalone.submit([standby.address, "http://127.0.0.1:1"], REQUEST)
    assert standalone.submit(["http://127.0.0.1:1", leader.address], REQUEST) == DRIVER


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_no_other_master_is_asked_after_one_that_may_have_taken_the_driver(
    apis: Any, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    monkeypatch.setattr("frazil.cluster.driver.TIMEOUT_S", (2.0, 0.1))
    hangs, other = apis(), apis()
    path = ("POST", "/v1/submissions/create")
    hangs.answers[path] = Answer(503, {"message": "gateway"}, delay_s=delay_s)
    other.answers[path] = Answer(body={"success": True, "submissionId": DRIVER})
    with pytest.raises(ApiUnavailable, match="did not respond in time" if delay_s else "answered 503") as caught:
        standalone.submit([hangs.address, other.address], REQUEST)
    assert not isinstance(caught.value, ApiUnreachable)
    assert not other.requested


def test_status_and_kill_ask_each_master_until_one_knows(apis: Any) -> None:
    standby, leader = apis(), apis()
    for one, body in ((standby, STANDBY), (leader, {**KNOWN, "driverState": "RUNNING"})):
        one.answers["GET", f"/v1/submissions/status/{DRIVER}"] = Answer(body=body)
    leader.answers["POST", f"/v1/submissions/kill/{DRIVER}"] = Answer(body={"success": True})
    standby.answers["POST", f"/v1/submissions/kill/{DRIVER}"] = Answer(body={"success": False, "message": "standby"})
    driver = StandaloneDriver(DRIVER, addresses=["http://127.0.0.1:1", standby.address, leader.address])
    assert driver.status() == DriverStatus(DriverState.RUNNING, "the driver runs on 127.0.0.1:42373")
    driver.kill()
    assert driver.log(limit_bytes=100) is None
    with pytest.raises(EnvironmentUnusable, match=f"cannot kill {DRIVER}: standby"):
        StandaloneDriver(DRIVER, addresses=[standby.address]).kill()


def test_killing_a_driver_that_has_ended_succeeds(api: Api) -> None:
    message = f"Driver {DRIVER} has already finished or does not exist"
    api.answers["POST", f"/v1/submissions/kill/{DRIVER}"] = Answer(body={"success": False, "message": message})
    StandaloneDriver(DRIVER, addresses=[api.address]).kill()


def test_each_master_has_a_rest_server() -> None:
    assert standalone.rest_addresses("spark://a:7077,b:7078", 6066) == ("http://a:6066", "http://b:6066")
