"""A JVM's archive of classes is created once for each version, and used wherever it exists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil.dev import kafka
from frazil.spark.class_archive import archive_options, create_archive


def write_archive(options: list[str]) -> None:
    Path(options[0].removeprefix("-XX:ArchiveClassesAtExit=")).write_text("classes")


def test_an_archive_is_created_once_and_replaces_those_of_earlier_versions(tmp_path: Path) -> None:
    earlier, other, path = (
        tmp_path / f"{name}.jsa" for name in ("kafka-java-17-1", "spark-java-17-1", "kafka-java-17-2")
    )
    earlier.touch()
    other.touch()
    assert archive_options(path) == []
    assert create_archive(path, write_archive) == path
    assert sorted(tmp_path.iterdir()) == [path, other]
    assert archive_options(path)[0] == f"-XX:SharedArchiveFile={path}"
    create_archive(path, lambda _: pytest.fail("it was created again"))


def test_a_jvm_that_writes_no_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the JVM wrote no"):
        create_archive(tmp_path / "kafka-java-17-1.jsa", lambda _: None)
    assert not [*tmp_path.iterdir()]


def test_the_class_archive_of_a_broker_is_specific_to_its_jar_files(tmp_path: Path) -> None:
    jar, java = tmp_path / "kafka.jar", tmp_path / "bin" / "java"
    jar.touch()
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    before = kafka.archive_path(java, [jar])
    assert before.name.startswith("kafka-java-17.0.15-")
    assert kafka.archive_path(java, [jar]) == before
    os.utime(jar, ns=(0, 1))
    assert kafka.archive_path(java, [jar]) != before


def test_a_broker_loads_its_classes_from_the_archive_if_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(kafka, "_format_storage", lambda java, *_: commands.append(java))
    monkeypatch.setattr(kafka.process, "start", lambda _, command, **__: commands.append(command))
    monkeypatch.setattr(kafka.jars, "ensure_jars", lambda _: [])
    archive = tmp_path / "kafka.jsa"
    monkeypatch.setattr(kafka, "archive_path", lambda *_: archive)
    for exists in (False, True):
        kafka.EmbeddedKafka(tmp_path / str(exists))._launch()
        assert [f"-XX:SharedArchiveFile={archive}" in command for command in commands] == [exists, exists]
        commands.clear()
        archive.touch()
