"""What a driver sends to Python processes that may run another version of frazil."""

from __future__ import annotations

import dataclasses
import json
import pickle
import pickletools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from frazil import __version__
from frazil.errors import VersionChanged
from frazil.ingest import contract
from frazil.ingest.contract import OffsetRange, RecordFile, Shuffle, StageContext, TargetTable
from frazil.ingest.progress import compilation
from frazil.stream import stage_rows
from frazil.stream.engine import read_answers
from frazil.stream.progress import ProgressFolder, RecordCounts
from frazil.stream.stage_rows import StageRows, VersionRefusal
from frazil.supervise.decision_rules import RESTARTABLE_EXIT_CODES

TARGET = TargetTable("{}", "{}", "{}", {"a": "b"}, "/data/1/1", 1, io={"s3.region": "x"})
WORK = StageRows(
    StageContext(
        stream="ticks",
        epoch=1,
        batch=2,
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        format="json",
        event_time_column="at",
        units={"at": "ms"},
        coordinates=True,
        targets={"main": TARGET, "dead-letters": TARGET},
        topic_ids={"ticks": "t"},
        existing_dead_letters={("ticks", 0): b"\x00\xff"},
        event_times_us=(1, 2),
        files=(RecordFile("/f", 1, 2, (OffsetRange("ticks", 0, 1, 2),)),),
        shuffle=Shuffle(2, {("a", None): ((0, 0.5), (1, 1.0))}),
    ),
    ProgressFolder("/progress", {"s3.region": "x"}),
)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_staging_work_survives_pickling_and_references_only_one_frazil_name(dumps: Any) -> None:
    data = dumps(WORK)
    assert pickle.loads(data) == WORK
    names = {argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
    assert {name for name in names if "frazil" in name} == {"frazil.stream.stage_rows"}


def test_a_task_reports_the_start_and_end_of_a_compilation_at_once(tmp_path: Path) -> None:
    folder = ProgressFolder(str(tmp_path / "progress"), {}, period_s=3600)
    compilation.on_change = partial(dataclasses.replace(WORK, progress=folder)._progress_reporter("0"), 7, 0.0)
    try:
        compilation.begin()
        assert folder.count_records(epoch=1, batch=2) == RecordCounts(7, compiling=True)
        compilation.end()
        assert folder.count_records(epoch=1, batch=2) == RecordCounts(7)
    finally:
        compilation.on_change = lambda: None


def refusal(data: bytes) -> str:
    found = pickle.loads(data)
    assert isinstance(found, VersionRefusal)
    answers = list(found([json.dumps({})] * 2))
    assert len(answers) == 2
    ((_, read),) = found.read(["{}"])
    assert [read] == list(found.write(0, [])) == answers[:1]
    with pytest.raises(VersionChanged) as error:
        read_answers(answers)
    return str(error.value)


def test_a_task_refuses_another_frazil_version_and_the_writer_is_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = cloudpickle.dumps(WORK)
    monkeypatch.setattr(stage_rows, "__version__", "9.9.9")
    assert refusal(data) == (
        f"the writer of stream 'ticks' runs version {__version__}, and version 9.9.9 was installed since: it ends, and "
        "the next start uses the installed code"
    )
    assert VersionChanged.exit_code in RESTARTABLE_EXIT_CODES


def changed(cls: Any, *, without: str = "", **added: Any) -> Any:
    kept = [(f.name, f.type, f) for f in dataclasses.fields(cls) if f.name != without]
    more = [(name, Any, dataclasses.field(default=value)) for name, value in added.items()]
    made = dataclasses.make_dataclass(cls.__name__, [*kept, *more], frozen=True, slots=True, bases=())
    made.to_dict, made.from_dict = cls.to_dict, classmethod(cls.from_dict.__func__)  # type: ignore[attr-defined]
    return made


def test_code_that_changed_within_a_version_is_refused_where_a_name_no_longer_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkout was updated under a running writer."""
    data = cloudpickle.dumps(WORK)
    monkeypatch.setattr(stage_rows, "StageContext", changed(StageContext, without="coordinates"))
    assert f"runs other code of version {__version__} than is installed now" in refusal(data)


def test_a_new_field_with_a_default_does_not_shift_other_fields_of_a_pickled_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = cloudpickle.dumps(WORK)
    wider = changed(StageContext, new="default")
    monkeypatch.setattr(stage_rows, "StageContext", wider)
    found = pickle.loads(data).context
    assert (found.new, found.files, found.stream) == ("default", WORK.context.files, "ticks")


def test_a_task_built_with_another_target_table_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cloudpickle.dumps(WORK)

    @dataclasses.dataclass(frozen=True)
    class Narrow:
        folder: str

    monkeypatch.setattr(contract, "TargetTable", Narrow)
    assert "than is installed now" in refusal(data)
