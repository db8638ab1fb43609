"""If Java 17 is missing, one sentence says so, and how to install it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import EnvironmentUnusable
from frazil.spark.class_archive import lean_java_options
from frazil.spark.java import find_java_version, jvm_start, parse_major_version, require_java
from frazil.spec.model import StreamSpec
from frazil.stream.main import run_writer

TWO_STARTS = """
import sys
from pathlib import Path
import psutil
from pyspark import SparkConf
from frazil.spark.java import launch_jvm
for _ in range(2):
    launch_jvm(SparkConf().set("spark.master", "local[1]"), Path(sys.argv[1]))
print(sum("java" in child.name() for child in psutil.Process().children(recursive=True)))
"""


@pytest.mark.processes
def test_a_process_has_one_jvm_also_if_it_starts_spark_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_STARTS, str(tmp_path / "jvm.log")]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (started.returncode, started.stdout.strip()) == (0, "1"), started.stderr


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


def test_java_17_of_java_home_wins_over_the_path(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", "17.0.15")
    fake_java(tmp_path / "other", "11.0.2")
    path = f"{tmp_path / 'other' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert require_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": path}) == java


def test_missing_java_gives_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match=r"Java 17 is missing.*apt-get install openjdk-17"):
        require_java({"PATH": str(tmp_path)})


def test_another_java_major_version_is_named_in_the_error(tmp_path: Path) -> None:
    fake_java(tmp_path, "21.0.1")
    with pytest.raises(EnvironmentUnusable, match=r"is Java 21; frazil needs Java 17"):
        require_java({"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"})


def test_a_java_home_without_java_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match="JAVA_HOME is"):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@given(st.integers(9, 99), st.integers(0, 99))
def test_the_major_version_is_parsed_from_javas_output(major: int, minor: int) -> None:
    assert parse_major_version(f'openjdk version "{major}.{minor}.1" 2025-04-15') == major


def test_java_versions_before_9_are_recognised_in_their_old_form() -> None:
    assert parse_major_version('java version "1.8.0_402"') == 8
    assert parse_major_version("command not found") is None


def test_the_version_of_a_jdk_is_read_from_its_release_file_or_by_running_it(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", "17.0.15")
    link = tmp_path / "java"
    link.symlink_to(java)
    assert find_java_version(link) == "17.0.15"
    (tmp_path / "jdk" / "release").write_text(
        'IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.16"\nJAVA_VERSION_DATE="2025"\n'
    )
    assert find_java_version(link) == "17.0.16"
    java.write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "jdk" / "release").unlink()
    assert find_java_version(link) is None


@pytest.mark.parametrize(("folder", "speeds_up"), [("spark", True), ("my spark", False)])
def test_sparks_launcher_reads_its_own_jar_first_unless_a_shell_would_split_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, speeds_up: bool
) -> None:
    jar = tmp_path / folder / "jars" / "spark-launcher_2.13-4.1.3.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    fake_java(tmp_path, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / folder))
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "")  # restored after the test
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS")
    with jvm_start():
        assert (f"-Xbootclasspath/a:{jar}" in os.environ.get("SPARK_LAUNCHER_OPTS", "")) is speeds_up


def test_a_writer_without_java_reports_it_before_it_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("frazil.stream.writer.Writer.run", lambda _: pytest.fail("it went on"))
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    spec = StreamSpec.model_validate(
        {
            "name": "flights",
            "source": {"bootstrap-servers": "127.0.0.1:9092", "topics": "flights"},
            "table": "demo.flights",
            "schema": {"at": "timestamptz"},
            "event-time": "at",
        }
    )
    try:
        assert run_writer(spec) == EnvironmentUnusable.exit_code
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    assert "Java 17 is missing" in caplog.text


def test_a_jvm_that_does_not_start_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentUnusable, match="is Java 11"), jvm_start():
        raise RuntimeError("Java gateway process exited before sending its port number")


def test_a_spark_session_without_java_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(EnvironmentUnusable, match="Java 17 is missing"):
        lean_java_options()
