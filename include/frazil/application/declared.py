"""The declarations of an application's streams, read once for all streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from frazil.spec.application import Application, shared_applications
from frazil.spec.last_sound import STREAMS, Found, find_declared
from frazil.spec.model import StreamSpec
from frazil.supervise.observed import Declared, Removed, Unreadable


@dataclass(slots=True)
class DeclaredStreams:
    """A folder's declarations for one application, as of the last `refresh`."""

    application: str
    folder: Path
    clock: Callable[[], int]
    found: dict[str, Found[StreamSpec]] = field(default_factory=dict)
    """Files that declare the application's streams, or declared them when last valid, by the stream's name."""

    def refresh(self) -> None:
        files: dict[str, list[Found[StreamSpec]]] = defaultdict(list)
        for one in find_declared(self.folder, STREAMS, now_ms=self.clock()):
            if one.spec is not None and not one.removed:
                files[one.spec.name].append(one)
        self.found = {
            name: all_of_it[0] if len(all_of_it) == 1 else self._doubled(name, all_of_it)
            for name, all_of_it in files.items()
            if any(self._is_mine(one) for one in all_of_it)
        }

    def _doubled(self, name: str, files: Sequence[Found[StreamSpec]]) -> Found[StreamSpec]:
        """Return a stream that several files declare, as a problem.

        A running writer continues, and no writer starts.
        """
        before = self.found.get(name)
        paths = " and ".join(str(one.path) for one in files)
        problem = f"the stream {name!r} is declared twice: {paths}; rename or remove one"
        return replace(files[0], spec=None if before is None else before.spec, problem=problem)

    def shared(self) -> Application | None:
        """Return the application as declared; None if no stream names it."""
        specs = [one.spec for one in self.found.values() if one.spec is not None]
        return shared_applications(specs).get(self.application)

    def _is_mine(self, one: Found[StreamSpec]) -> bool:
        return one.spec is not None and one.spec.application == self.application


class HostedDeclaration:
    """Reads one stream's declaration. A stream that left the application counts as removed."""

    def __init__(self, stream: str, streams: DeclaredStreams) -> None:
        self.spec: StreamSpec | None = None
        self._stream, self._streams = stream, streams
        self._left_since_ms: int | None = None

    def read(self) -> Declared | Unreadable | Removed:
        found = self._streams.found.get(self._stream)
        if found is None:
            self._left_since_ms = self._left_since_ms or self._streams.clock()
            return Removed(self._left_since_ms)
        self._left_since_ms, self.spec = None, found.spec
        if found.problem or found.spec is None:
            return Unreadable(found.problem or f"{found.path} was never valid")
        return Declared(found.spec.fingerprint())
