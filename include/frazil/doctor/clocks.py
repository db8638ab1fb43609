"""Compares this machine's clock with those of the services it uses.

Windows become complete by the writer's clock, objects count as abandoned by the storage's, and both refuse signed
requests with a wrong time. A server sends its time in each HTTP answer (the `Date` header, in whole seconds), a
database on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import urlsplit

import requests

from frazil import clock
from frazil.doctor.finding import Finding, State
from frazil.timetext import ago

WARN_MS = 5_000
WRONG_MS = 60_000
TIMEOUT_S = 5.0
_HEADER_MS = 1_000
"""Uncertainty of the header's whole seconds."""
_FIX = "let NTP (chrony, systemd-timesyncd) set the clock of both machines"
_FIX_SILENCE = "let the server answer, then run `frazil doctor` again"


@dataclass(frozen=True, slots=True)
class ServerTime:
    """A server's time, between two readings of ours; all in milliseconds since the epoch, UTC."""

    before_ms: int
    theirs_ms: int
    after_ms: int
    precision_ms: int = 0
    """Its true time is later than `theirs_ms` by up to this."""

    @property
    def apart_ms(self) -> int:
        """The minimum difference of the clocks: positive if theirs is ahead, 0 if they may agree."""
        if self.theirs_ms > self.after_ms:
            return self.theirs_ms - self.after_ms
        return min(0, self.theirs_ms + self.precision_ms - self.before_ms)


def evaluate(server: str, answer: ServerTime) -> Finding:
    """Compare the clocks by a server's time. Pure."""
    apart = answer.apart_ms
    if abs(apart) < WARN_MS:
        return Finding("clock", State.OK, f"{server} has the same time")
    state = State.WRONG if abs(apart) >= WRONG_MS else State.WARNING
    return Finding("clock", state, f"{server} is {ago(abs(apart))} {'ahead of' if apart > 0 else 'behind'} us", _FIX)


def clocks(addresses: Iterable[str], databases: Mapping[str, Callable[[], int]]) -> Iterator[Finding]:
    """Compare with HTTP servers by their addresses, and with databases by functions that return their time in ms.

    A server whose time is unknown has a warning: its clock may be wrong.
    """
    servers: dict[str, Callable[[], ServerTime]] = {
        urlsplit(address).netloc: partial(_ask_http, address) for address in sorted(set(addresses))
    }
    servers |= {f"the database of catalog {name!r}": partial(_ask_database, ask) for name, ask in databases.items()}
    for server, ask in servers.items():
        try:
            answer = ask()
        except Exception as error:  # whatever the driver raises
            why = str(error) if isinstance(error, _Untimed) else type(error).__name__
            yield Finding("clock", State.WARNING, f"the clock of {server} is not compared: {why}", _FIX_SILENCE)
        else:
            yield evaluate(server, answer)
    if not servers:
        yield Finding("clock", State.SKIPPED, "nothing that streams declare here tells its time")


class _Untimed(ValueError):
    """An answer without a time."""


def _ask_database(ask: Callable[[], int]) -> ServerTime:
    before = clock.now_ms()
    return ServerTime(before, ask(), clock.now_ms())


def _ask_http(address: str) -> ServerTime:
    """The server's time; a refusal has one too."""
    before = clock.now_ms()
    answer = requests.head(address, timeout=TIMEOUT_S, allow_redirects=False)
    try:
        theirs = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError):
        raise _Untimed("its answer has no time") from None
    return ServerTime(before, int(theirs.timestamp() * 1000), clock.now_ms(), _HEADER_MS)
