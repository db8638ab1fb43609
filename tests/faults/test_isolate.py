"""A record that kills the process is found and set aside, and no other record is lost."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import EnvironmentUnusable
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import Decoder
from frazil.ingest.isolate import IsolatedDecoder, harmless_record
from tests.unit.ingest.test_key_columns import stage_context, stream

FRAGILE = '''
"""A decoder with a native crash: it gets SIGSEGV on one value, as a broken parser would."""
import importlib, os, signal
import numpy as np
import pyarrow as pa
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.target_decoders import TargetDecoder

def make(deadly):
    def decode(chunk):
        values = chunk.values
        if deadly in values:
            os.kill(os.getpid(), signal.SIGSEGV)
        if (dropped := next((v for v in values if v and v.startswith(b"/")), None)) and os.path.exists(dropped):
            os.unlink(dropped)
            os.kill(os.getpid(), signal.SIGKILL)
        if b"error" in values:
            raise RuntimeError("a decoder's own error")
        print("a library that prints")
        return DecodedChunk(pa.table({"x": pa.array(values, pa.binary())}), np.arange(len(values)))
    return decode

class OnlyIn:
    """Makes a decoder in one process; elsewhere, a file is missing."""
    def __init__(self, pid):
        self.pid = pid
    def __call__(self):
        if os.getpid() != self.pid:
            raise FileNotFoundError("a file of the decoder")
        return make(b"deadly")

def make_records(context, module, name):
    """Decode a stream's records, where the decoders of keys that a function of this name makes are fragile."""
    of = importlib.import_module(module)
    make_whole = getattr(of, name)
    def make_fragile(*arguments, **options):
        whole, fragile = make_whole(*arguments, **options), make(b'{"id": 6}')
        return lambda chunk: fragile(chunk) and whole(chunk)
    setattr(of, name, make_fragile)
    return TargetDecoder(context)
'''

MakeFragile = Callable[[], Decoder]


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFragile:
    """A maker of the fragile decoder, from a module that the child can import too."""
    (tmp_path / "fragile_decoder.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import fragile_decoder  # type: ignore[import-not-found]  # written above

    return partial(fragile_decoder.make, b"deadly")


@pytest.fixture
def isolated(fragile: MakeFragile) -> Iterator[IsolatedDecoder]:
    decoder = IsolatedDecoder(fragile)
    yield decoder
    decoder.close()


@pytest.mark.rotates(2)
def test_only_the_killing_records_are_rejected(isolated: IsolatedDecoder) -> None:
    values: list[bytes | None] = [b"%d" % i for i in range(8)]
    values[1] = values[6] = b"deadly"
    decoded = isolated(RecordChunk.of_values(values))
    assert [r.index for r in decoded.rejections] == [1, 6]
    assert {r.error_class for r in decoded.rejections} == {"DecoderCrashed"}
    assert f"exit code {-signal.SIGSEGV}" in decoded.rejections[0].error
    assert decoded.record_indexes.tolist() == [i for i in range(8) if i not in (1, 6)]
    assert decoded.rows["x"].to_pylist() == [v for v in values if v != b"deadly"]


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    ("name", "value", "columns", "declared"),
    [
        ("key_header_columns.create_key_decoder", b"{}", {"id": {"type": "long", "from": {"key": "id"}}}, {}),
        (
            "shaper.create_decoder",
            None,
            {"id": "long not null"},
            {"mode": "upsert", "key": ["id"], "delete": "tombstones"},
        ),
    ],
    ids=["a column of the key", "a tombstone's key"],
)
@pytest.mark.usefixtures("fragile")
def test_a_record_whose_key_crashes_the_decoder_is_rejected_like_one_with_such_a_value(
    name: str, value: bytes | None, columns: Any, declared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fragile_decoder

    module, name = f"frazil.ingest.{name}".rsplit(".", 1)
    monkeypatch.setattr(f"{module}.{name}", getattr(sys.modules[module], name))  # which the next line replaces here too
    decoder = IsolatedDecoder(
        partial(fragile_decoder.make_records, stage_context(stream(columns, **declared)), module, name)
    )
    keys = [b'{"id": 5}', b'{"id": 6}']
    try:
        decoded = decoder(dataclasses.replace(RecordChunk.of_values([value] * 2), keys=BinaryColumn.of(keys)))
    finally:
        decoder.close()
    assert [(r.index, r.error_class) for r in decoded.rejections] == [(1, "DecoderCrashed")]
    assert decoded.rows["id"].to_pylist() == [5]


def test_a_chunk_without_a_crashing_record_decodes_completely(isolated: IsolatedDecoder) -> None:
    decoded = isolated(RecordChunk.of_values([b"a", None]))
    assert decoded.rejections == []
    assert decoded.rows["x"].to_pylist() == [b"a", None]


def test_an_error_of_the_decoder_is_raised_in_the_parent_process(isolated: IsolatedDecoder) -> None:
    with pytest.raises(RuntimeError, match="a decoder's own error"):
        isolated(RecordChunk.of_values([b"error"]))
    assert isolated(RecordChunk.of_values([b"fine"])).rows.num_rows == 1


def test_a_record_is_not_rejected_when_the_host_killed_the_child_process(
    isolated: IsolatedDecoder, tmp_path: Path
) -> None:
    once = tmp_path / "the host kills the next child"
    once.touch()
    decoded = isolated(RecordChunk.of_values([str(once).encode()]))
    assert not once.exists()
    assert decoded.rejections == []
    assert decoded.rows["x"].to_pylist() == [str(once).encode()]


def test_where_no_child_can_decode_anything_the_machine_is_blamed_and_no_record(
    fragile: MakeFragile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nexit 7\n")
    dying.chmod(0o755)
    decoder = IsolatedDecoder(fragile)
    monkeypatch.setattr("frazil.ingest.isolate.sys.executable", str(dying))
    with pytest.raises(EnvironmentUnusable, match=r"before any record reached it \(exit code 7\)"):
        decoder(RecordChunk.of_values([b"%d" % i for i in range(16)]))
    decoder.close()


@pytest.mark.usefixtures("fragile")
def test_a_decoder_that_a_child_cannot_create_leaves_its_error_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    import fragile_decoder

    decoder = IsolatedDecoder(fragile_decoder.OnlyIn(os.getpid()))
    with pytest.raises(EnvironmentUnusable, match="Its last output is above"):
        decoder(RecordChunk.of_values([b"a"]))
    assert "FileNotFoundError: a file of the decoder" in capfd.readouterr().err


def test_the_harmless_record_has_the_length_of_the_tested_record() -> None:
    assert [len(harmless_record(size)) for size in (0, 1, 2, 3, 1000)] == [2, 2, 2, 3, 1000]


def test_closing_leaves_no_child(isolated: IsolatedDecoder) -> None:
    isolated(RecordChunk.of_values([b"a"]))
    child = isolated._child
    assert child is not None
    isolated.close()
    assert child.returncode is not None


def test_a_child_process_exits_quietly_when_nobody_reads_its_answers(fragile: MakeFragile) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "frazil.ingest.isolate", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, env=environment) as child:
        theirs.close()
        for value in (fragile, RecordChunk.of_values([harmless_record()])):
            ours.send(value)
        ours.close()
        assert child.wait(60) == 0
        assert child.stderr is not None
        assert b"Traceback" not in (said := child.stderr.read()), said
        assert b"BrokenPipeError" not in said
