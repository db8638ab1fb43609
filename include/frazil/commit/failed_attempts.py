"""Determines why an attempt of a compare-and-swap failed, and whether a retry can succeed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.table import Table

from frazil.errors import AccessDenied, CommitRefused, CommitUnavailable, StorageUnavailable
from frazil.table.catalog_errors import one_line
from frazil.table.storage_errors import is_credentials_expiry, is_storage_failure

log = logging.getLogger(__name__)

REFUSAL_STATUS_CODES = frozenset({400, 405, 413, 422, 501})
MAX_REFUSALS = 8
"""Maximum number of times that the catalog may refuse changes based on the same metadata."""
MAX_PREPARE_FAILURES = 20
"""Maximum number of failures to prepare a commit on the same metadata. The retries take a minute."""
_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""Types of errors that defects in planning or merging raise. An error that is also an OSError is not a defect."""

MAX_ERROR_CHARACTERS = 300
_FAILED_STEPS = {
    "load": "{} cannot be loaded",
    "prepare": "a commit to {} cannot be prepared",
    "commit": "the outcome of a commit to {} is unknown",
}

_NO_ROW_ID = ("without first row id", "first-row-id is null")
"""Error texts of PyIceberg and Java catalogs about a snapshot without row ids."""

Step = Literal["load", "prepare", "commit"]
MAX_NAMED_TABLES = 5


@dataclass(frozen=True, slots=True)
class TableNames:
    identifiers: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(self.identifiers[:MAX_NAMED_TABLES])
        hidden = len(self.identifiers) - MAX_NAMED_TABLES
        return f"{names} and {hidden} more" if hidden > 0 else names

    @property
    def tables(self) -> str:
        return f"{'table' if len(self.identifiers) == 1 else 'tables'} {self}"


@dataclass(slots=True)
class Refusals:
    """Counts how often in a row a change was refused, or could not be prepared, on the same metadata."""

    names: TableNames
    count: int = 0
    last: tuple[str, ...] = ()
    """The kind of the last failure, and the metadata files on which it happened."""

    def count_error(self, error: Exception, step: Step, tables: Sequence[Table]) -> None:
        """Count a refusal or a fault. Raises `CommitRefused` when the maximum is reached. Ignores other errors."""
        fault = step == "prepare" and isinstance(error, _FAULTS) and not isinstance(error, OSError)
        if not tables or not (fault or _is_refusal(error)):
            return
        failure = (type(error).__name__ if fault else "", *(table.metadata_location for table in tables))
        self.count = self.count + 1 if failure == self.last else 1
        self.last = failure
        if self.count < (MAX_PREPARE_FAILURES if fault else MAX_REFUSALS):
            return
        problem = f"the catalog refuses to change {self.names.tables}: {error}"
        remedy = "Fix the cause, then start again"
        if fault:
            text = f"{type(error).__name__}: {one_line(error)[:MAX_ERROR_CHARACTERS]}"
            problem = f"a commit to {self.names.tables} cannot be prepared: {text} (the same error {self.count} times)"
            remedy = "Report this with the log; the next start tries again"
        raise CommitRefused(f"{problem}. The staged files and the journal are kept. {remedy}") from error


def _is_refusal(error: Exception) -> bool:
    """Return whether the catalog itself refuses the change. A 408 or 5xx may come from a proxy."""
    response = getattr(error.__cause__, "response", None)
    status = getattr(response, "status_code", None)
    return isinstance(error, BadRequestError | NotImplementedError) or status in REFUSAL_STATUS_CODES


def may_refuse_one_update(error: Exception) -> bool:
    """Return whether the catalog refused a commit, but may accept the same commit with fewer updates."""
    if isinstance(error, ForbiddenError):
        return not is_credentials_expiry(error)
    return _is_refusal(error) and not is_sequence_conflict(error)


def is_sequence_conflict(error: Exception) -> bool:
    """Return whether a snapshot's sequence number or row ids were taken, or the table became format version 3."""
    phrases = ("older than last sequence number", "next-row-id", *_NO_ROW_ID)
    return isinstance(error, ValueError | BadRequestError) and any(text in str(error) for text in phrases)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    level: int
    log_message: str
    final_error: str
    kind: type[CommitUnavailable] = CommitUnavailable


def classify_error(
    error: Exception, step: Step, tables: TableNames, total_s: float, lost: str | None = None
) -> FailedAttempt:
    """Describe a failed attempt. `lost` describes an outdated state of the catalog. Raises lasting errors."""
    text = f"{type(error).__name__}: {one_line(error)[:MAX_ERROR_CHARACTERS]}"
    match error:
        case CommitFailedException() if lost:
            return FailedAttempt(
                logging.WARNING,
                f"{lost}: retrying",
                f"{lost}, for {total_s:.0f} s. The staged files and the journal are kept. Find out whether the "
                "catalog was restored, or has caches or servers with different states. The next start continues at the "
                "state that the catalog returns; after that, check the stream with `frazil audit`",
            )
        case _ if isinstance(error, CommitFailedException) or (step == "commit" and is_sequence_conflict(error)):
            message = f"commit to {tables} lost a race ({text}): trying again"
            if any(part in str(error) for part in _NO_ROW_ID):
                message = f"commit to {tables}: the table became format version 3: preparing the commit again"
            return FailedAttempt(
                logging.INFO,
                message,
                f"commits to {tables.tables} lost every race for {total_s:.0f} s, because other writers kept "
                "committing. The staged files and the journal are kept",
            )
        case ForbiddenError() | UnauthorizedError() | OAuthError() | PermissionError():
            if not is_credentials_expiry(error):
                raise AccessDenied(f"frazil is not permitted to commit to {tables.tables}: {error}") from error
            return FailedAttempt(
                logging.WARNING,
                f"the credentials for {tables.tables} have expired: loading new credentials",
                f"the credentials for {tables.tables} have expired: {error}",
            )
        case NoSuchTableError():
            exist = "exists" if len(tables.identifiers) == 1 else "exist"
            raise CommitUnavailable(f"{tables.tables} no longer {exist}: {error}") from error
    is_missing = isinstance(error, FileNotFoundError)
    remedy = ". If the catalog was restored: `A lost catalog` in docs/how-to/operate-writers.md" if is_missing else ""
    return FailedAttempt(
        logging.WARNING,
        f"{_FAILED_STEPS[step].format(tables.tables if step == 'load' else tables)} ({text}): retrying",
        f"commits to {tables.tables} failed for {total_s:.0f} s; the last error was {text}. "
        f"The staged files and the journal are kept{remedy}",
        StorageUnavailable if is_storage_failure(error) else CommitUnavailable,
    )


@dataclass(slots=True)
class Outage:
    """A series of failed attempts, without lost races. The outage's end is logged if it lasted at least 5 s."""

    names: TableNames
    clock: Callable[[], float]
    since: float | None = None

    def record_failure(self, failed_attempt: FailedAttempt) -> int:
        if failed_attempt.level < logging.WARNING or self.since is not None:
            return logging.INFO
        self.since = self.clock()
        return failed_attempt.level

    def end_outage(self) -> None:
        if self.since is not None and (lasted_s := self.clock() - self.since) >= 5.0:
            log.warning("commits to %s succeed again after %.0f s", self.names.tables, lasted_s)
