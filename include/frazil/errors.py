"""All errors that frazil raises on purpose, as one shallow tree.

FrazilError                  exit  restart?
├── WriterBusy                 9   no   another process on this host holds the stream's writer lock
├── SpecError                 10   no   a stream's YAML, or a reference in it, cannot be used
├── OffsetGap                 11   no   Kafka deleted records that were not yet read
├── RolledBack                12   no   the table was rolled back to a snapshot before the stream's marker
├── Fenced                    13   no   another writer of this stream took over
│   └── BackfillAbandoned     30   no   an operator abandoned the backfill or replay that this run had begun
├── TopicRecreated            14   no   the topic's id differs from the id in the marker
├── SchemaIncompatible        15   no   the declared schema does not fit the table's schema
├── AccessDenied              16   no   Kafka, the catalog or the storage refuses the stream's credentials
├── AdoptionRequired          17   no   the table has rows that no stream wrote
├── MarkerUnreadable          18   no   the marker was written by a newer frazil, or edited by hand
├── CommitRefused             19   no   the catalog refuses a request; retrying does not help
├── StaleBatch                20   yes  the batch does not start at the marker's offsets: stage it again
├── CommitUnavailable         21   yes  the catalog could not be reached, or every commit failed, for too long
│   ├── StorageUnavailable    32   yes  the storage could not be reached, is full or read-only, for too long
│   └── TableLost             25   yes  the stream's own table is not in the catalog, or another table has its name
├── KafkaUnavailable          22   yes  the brokers could not be reached for too long
│   └── TopicMissing          24   yes  the brokers respond, but do not have the topic (yet)
├── PythonStartTimeout        23   yes  this host is too busy for Spark to start its Python processes in time
├── VersionChanged            26   yes  another version of frazil was installed while the writer ran
├── CircuitOpen               27   no   most records of a batch would be dead letters, so the batch is not committed
├── RegistryUnavailable       28   yes  the schema registry does not return the schemas of the records
├── RouteBehind               29   no   a routed table cannot be used, or was without some of its rows for too long
├── DesiredMoved              31   no   another user paused, resumed or restarted the stream at the same time
├── WorkerDied                 1 crash Spark gave up on a task because its processes died repeatedly
└── EnvironmentUnusable        1   no   something is missing on this machine (Java, a port, a download)
    └── MissingExtra           1   no   a package of an extra is not installed: frazil[spark], frazil[airflow], …

A writer that raises an error exits with the error's exit code. From this code, the supervisor decides whether to
restart the writer. Any other exit code is a crash: the writer is restarted with backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is wrong, and what to do. The remedy is a sentence, or empty if unknown."""

    reason: str
    remedy: str = ""

    @property
    def headline(self) -> str:
        return self.reason

    def __str__(self) -> str:
        return f"{self.headline}. {self.remedy}" if self.remedy else self.headline


@dataclass(frozen=True, slots=True)
class Failure(Explanation):
    """A failure of one operation."""

    error: str = ""
    """The class of the error; empty if no error was raised, or if `about` names it."""
    about: str = ""
    """What fails for this reason."""
    common: Failure | None = None
    """The cause, if it may concern several subjects. Lists then show it once, in place of each subject's failure."""

    @property
    def headline(self) -> str:
        return ": ".join(filter(None, (self.about, self.error, self.reason)))


class FrazilError(Exception):
    """Base class of all errors that frazil raises on purpose. A message says what happened, where, and what to do."""

    exit_code: int = 1
    restartable: bool = False

    def __init__(self, *args: object, stream: str | None = None, remedy: str = "", **details: Any) -> None:
        """Create an error. Its text has the stream, the reason and the `remedy`, which is a sentence."""
        super().__init__(*args, **details)
        self.stream, self.remedy = stream, remedy

    @property
    def reason(self) -> str:
        return super().__str__()

    def __str__(self) -> str:
        message = str(Explanation(self.reason, self.remedy))
        return message if self.stream is None else f"stream {self.stream}: {message}"

    def __init_subclass__(cls, *, exit_code: int | None = None, restartable: bool | None = None) -> None:
        """Set an error class's exit code, and whether its writer is restarted. Subclasses inherit both."""
        if exit_code is not None:
            cls.exit_code = exit_code
        if restartable is not None:
            cls.restartable = restartable


class WriterBusy(FrazilError, exit_code=9): ...


class SpecError(FrazilError, exit_code=10): ...


class OffsetGap(FrazilError, exit_code=11): ...


class RolledBack(FrazilError, exit_code=12): ...


class Fenced(FrazilError, exit_code=13): ...


class BackfillAbandoned(Fenced, exit_code=30): ...


class TopicRecreated(FrazilError, exit_code=14): ...


class SchemaIncompatible(FrazilError, exit_code=15): ...


class AccessDenied(FrazilError, exit_code=16): ...


class AdoptionRequired(FrazilError, exit_code=17): ...


class MarkerUnreadable(FrazilError, exit_code=18): ...


class CommitRefused(FrazilError, exit_code=19): ...


class StaleBatch(FrazilError, exit_code=20, restartable=True): ...


class CommitUnavailable(FrazilError, exit_code=21, restartable=True): ...


class StorageUnavailable(CommitUnavailable, exit_code=32): ...


class TableLost(CommitUnavailable, exit_code=25): ...


def brokers_remedy(setting: str = "source.bootstrap-servers") -> str:
    return f"Start the brokers, make them reachable from this host, or correct {setting}"


class KafkaUnavailable(FrazilError, exit_code=22, restartable=True):
    all_brokers = False
    """True if no broker described the topics in time. False if only one leader may be silent."""


class TopicMissing(KafkaUnavailable, exit_code=24): ...


class PythonStartTimeout(FrazilError, exit_code=23, restartable=True): ...


class VersionChanged(FrazilError, exit_code=26, restartable=True): ...


class CircuitOpen(FrazilError, exit_code=27): ...


class RegistryUnavailable(FrazilError, exit_code=28, restartable=True): ...


class RouteBehind(FrazilError, exit_code=29): ...


class DesiredMoved(FrazilError, exit_code=31): ...


class WorkerDied(FrazilError):
    """Raised if Spark gave up on a task. The writer is restarted with backoff, as after a crash."""


class EnvironmentUnusable(FrazilError): ...


class UnsupportedVersion(EnvironmentUnusable, ImportError):
    """Raised if frazil does not support a package's installed version."""


class MissingExtra(EnvironmentUnusable, ImportError):
    """A package of an extra is missing. An ImportError, as for any missing package."""


def find_subclasses(kind: type[FrazilError] = FrazilError) -> frozenset[type[FrazilError]]:
    """Return an error class and all its subclasses."""
    return frozenset({kind}).union(*(find_subclasses(each) for each in kind.__subclasses__()))


MAX_ERROR_CHARACTERS = 1000
NO_RESTART_EXIT_CODES = frozenset(
    each.exit_code for each in find_subclasses() if not each.restartable and each.exit_code > 1
)
"""Exit codes after which the writer is not restarted, because it would fail in the same way."""


def restart_hint(stream: str) -> str:
    """Return how a user replaces a stream's running writer, for code that does not know what supervises the stream."""
    return f"`frazil restart {stream}` (in the foreground: Ctrl-C, then `frazil run {stream}`)"


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def explain(error: BaseException, about: str = "") -> Failure:
    """Explain an error on one line, without its stream, for text that names the stream."""
    reason, remedy = (error.reason, error.remedy) if isinstance(error, FrazilError) else (str(error), "")
    return Failure(" ".join(reason.split()), remedy, type(error).__name__, about)


def error_text(error: BaseException) -> str:
    return str(explain(error))


def innermost_error_text(error: BaseException) -> str:
    """Explain only the innermost cause: HTTP clients nest errors."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error_text(error)


def shorten_error(text: str) -> str:
    """Return an error on one line of at most `MAX_ERROR_CHARACTERS`, without splitting a command in backquotes."""
    words = " ".join(text.split())
    shortened = words[:MAX_ERROR_CHARACTERS]
    if shortened == words:
        return words
    return f"{shortened.rpartition('`')[0] if shortened.count('`') % 2 else shortened} ..."
