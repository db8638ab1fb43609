"""The declarations of an application's streams, read once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from frazil.spec.application import Application, shared_applications
from frazil.spec.last_sound import STREAMS, Found, find_declared
from frazil.spec.model import StreamSpec
from frazil.supervise.observed import Declared, Removed, Unreadable


@dataclass(slots=True)
class DeclaredStreams:
    """What a folder declares for one application, as of the last `refresh`."""

    application: str
    folder: Path
    clock: Callable[[], int]
    found: dict[str, Found[StreamSpec]] = field(default_factory=dict)
    """The files that declare streams of the application now, or did when they were sound, by the stream's name."""

    def refresh(self) -> None:
        found = find_declared(self.folder, STREAMS, now_ms=self.clock())
        mine = {one.spec.name: one for one in found if one.spec is not None and self._is_mine(one)}
        self.found = mine

    def shared(self) -> Application | None:
        """The application as it is declared; None if no stream names it."""
        specs = [one.spec for one in self.found.values() if one.spec is not None]
        return shared_applications(specs).get(self.application)

    def _is_mine(self, one: Found[StreamSpec]) -> bool:
        return one.spec is not None and one.spec.application == self.application and not one.removed


class HostedDeclaration:
    """One stream's declaration. A stream that left the application counts as removed."""

    def __init__(self, stream: str, streams: DeclaredStreams) -> None:
        self.spec: StreamSpec | None = None
        self._stream, self._streams = stream, streams
        self._left_since_ms: int | None = None

    def read(self) -> Declared | Unreadable | Removed:
        found = self._streams.found.get(self._stream)
        if found is None or found.spec is None:
            self._left_since_ms = self._left_since_ms or self._streams.clock()
            return Removed(self._left_since_ms)
        self._left_since_ms, self.spec = None, found.spec
        return Unreadable(found.problem) if found.problem else Declared(found.spec.fingerprint())
