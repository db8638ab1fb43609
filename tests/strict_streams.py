"""Loads a folder of streams as strictly as `frazil validate` checks it."""

from __future__ import annotations

from pathlib import Path

from frazil.errors import SpecError
from frazil.spec.conflicts import find_conflicts
from frazil.spec.load import list_stream_files, load_stream
from frazil.spec.model import StreamSpec


def load_streams(folder: Path) -> dict[str, StreamSpec]:
    """Load all streams of a folder. Raises SpecError with the problems of all files, and the conflicts."""
    if not folder.is_dir():
        raise SpecError(
            f"{folder} is not a folder; set the folder of declared streams with --streams or FRAZIL_STREAMS"
        )
    loaded: dict[Path, StreamSpec] = {}
    failures: list[str] = []
    for path in list_stream_files(folder):
        try:
            loaded[path] = load_stream(path)
        except SpecError as error:
            failures.append(str(error))
    failures.extend(find_conflicts(loaded))
    if failures:
        raise SpecError("\n".join(failures))
    return {spec.name: spec for spec in sorted(loaded.values(), key=lambda spec: spec.name)}
