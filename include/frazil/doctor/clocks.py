"""Whether this machine's clock agrees with those of what it talks to.

Windows become complete by the writer's clock, objects are judged abandoned by the storage's, and signed requests are
refused by both. A server tells its time in each HTTP answer (the `Date` header, in whole seconds), a database if asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import requests

from frazil import clock
from frazil.doctor.finding import Finding, State
from frazil.timetext import ago

WARN_MS = 5_000
WRONG_MS = 60_000
TIMEOUT_S = 5.0
_HEADER_MS = 1_000
"""What the header's whole seconds leave open."""
_MEND = "let NTP (chrony, systemd-timesyncd) set the clock of both machines"


@dataclass(frozen=True, slots=True)
class Told:
    """A server's time, between two looks at ours; all in milliseconds since the epoch, UTC."""

    before_ms: int
    theirs_ms: int
    after_ms: int
    precision_ms: int = 0
    """Its true time is at most so much later than `theirs_ms`."""

    @property
    def apart_ms(self) -> int:
        """The least by which the clocks differ: positive where theirs is ahead, 0 where they may agree."""
        if self.theirs_ms > self.after_ms:
            return self.theirs_ms - self.after_ms
        return min(0, self.theirs_ms + self.precision_ms - self.before_ms)


def evaluate(server: str, told: Told) -> Finding:
    """What a server's time says of the clocks. Pure."""
    apart = told.apart_ms
    if abs(apart) < WARN_MS:
        return Finding("clock", State.OK, f"{server} has the same time")
    state = State.WRONG if abs(apart) >= WRONG_MS else State.WARNING
    return Finding("clock", state, f"{server} is {ago(abs(apart))} {'ahead of' if apart > 0 else 'behind'} us", _MEND)


def clocks(addresses: Iterable[str], databases: Mapping[str, Callable[[], int]]) -> Iterator[Finding]:
    """Compare with HTTP servers by their addresses, and with databases by functions that ask for their time in ms.

    A server that does not answer has no finding here: the check of what it serves says so.
    """
    found = 0
    for address in sorted(set(addresses)):
        told = _ask_http(address)
        if told is not None:
            found += 1
            yield evaluate(urlsplit(address).netloc, told)
    for name, ask in databases.items():
        before = clock.now_ms()
        try:
            theirs = ask()
        except Exception:  # as above, whatever the driver raises
            continue
        found += 1
        yield evaluate(f"the database of catalog {name!r}", Told(before, theirs, clock.now_ms()))
    if not found:
        yield Finding("clock", State.SKIPPED, "nothing that streams declare here tells its time")


def _ask_http(address: str) -> Told | None:
    """The answer may be a refusal: that has a time too."""
    before = clock.now_ms()
    try:
        answer = requests.head(address, timeout=TIMEOUT_S, allow_redirects=False)
        theirs = parsedate_to_datetime(answer.headers["Date"])
    except (requests.RequestException, KeyError, ValueError):
        return None
    return Told(before, int(theirs.timestamp() * 1000), clock.now_ms(), _HEADER_MS)
