"""Reads and validates values in Airflow that other users can write: events, asset stores, XComs, connections. An XCom
that frazil did not write raises an error. All other foreign values are ignored, most with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from airflow.sdk.exceptions import AirflowFailException

from frazil.safe_text import shorten

log = logging.getLogger(__name__)

MAX_NUMBER = 2**63 - 1
"""The largest integer that tables and JSON readers can hold."""
MAX_SHOWN_CHARACTERS = 200


class AssetStore(Protocol):
    """An asset's state store in Airflow, of JSON values."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


SentSignals = frozenset[tuple[str, int]]
"""Pairs of a signal's partition key and number."""


class InletEvent(Protocol):
    @property
    def extra(self) -> Any: ...

    @property
    def partition_key(self) -> str | None: ...


def read_sent_signals(events: Iterable[InletEvent], asset: str) -> SentSignals:
    """Return the signals that an asset's events report. Ignores events that a user created by hand."""
    published, foreign = set(), []
    for event in events:
        number = _signal_number(event)
        if number is None or event.partition_key is None:
            foreign.append(f"{_short_repr(event.partition_key)} with {_short_repr(event.extra)}")
        else:
            published.add((event.partition_key, number))
    if foreign:
        log.warning(
            "%d events of the asset %s were not sent by frazil and are ignored: %s", len(foreign), asset, foreign[-1]
        )
    return frozenset(published)


def parse_signals(value: Any) -> SentSignals:
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    numbered = ((key, _valid_number(number, MAX_NUMBER)) for key, number in pairs if isinstance(key, str))
    return frozenset((key, number) for key, number in numbered if number is not None)


def _signal_number(event: InletEvent) -> int | None:
    extra = event.extra
    if not isinstance(extra, Mapping) or "from_rest_api" in extra:
        return None
    fact = extra.get(event.partition_key)
    return _valid_number(fact.get("number"), MAX_NUMBER) if isinstance(fact, Mapping) else None


def stored_number(store: AssetStore, key: str, *, limit: int = MAX_NUMBER) -> int | None:
    """Return an integer from an asset's store; None if it is missing, or not from 0 to `limit`."""
    value = store.get(key)
    number = _valid_number(value, limit)
    if number is None:
        _warn_if_ignored(value, f"{key} in Airflow's store", f"an integer from 0 to {limit}")
    return number


def stored_names(store: AssetStore, key: str) -> list[str]:
    """Return a list of strings from an asset's store. Omits items of other types."""
    value = store.get(key)
    names = [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(names) < len(value):
        _warn_if_ignored(value, f"{key} in Airflow's store", "a list of names")
    return names


def stored_text(store: AssetStore, key: str) -> str | None:
    return _text_or_none(store.get(key), f"{key} in Airflow's store")


def stored_mapping(store: AssetStore, key: str) -> dict[str, Any]:
    """Return a mapping from an asset's store; empty for other values."""
    value = store.get(key)
    if isinstance(value, Mapping):
        return dict(value)
    _warn_if_ignored(value, f"{key} in Airflow's store", "a mapping")
    return {}


def check_xcom(value: Any, task_id: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return an upstream task's XCom. Raises AirflowFailException if a key is missing or its value has another type."""
    xcom = value if isinstance(value, Mapping) else {}
    invalid = [key for key, kind in kinds.items() if not isinstance(xcom.get(key), kind)]
    if invalid:
        raise AirflowFailException(
            f"the XCom of the task {task_id} has been replaced with {_short_repr(value)} "
            f"({', '.join(invalid)} missing or of another type). Clear the task {task_id} to run it again"
        )
    return dict(xcom)


def extra_text(extra: Any, key: str) -> str | None:
    value = extra.get(key) if isinstance(extra, Mapping) else None
    return _text_or_none(value, f"{key} in the connection's extra") or None


def _text_or_none(value: Any, source: str) -> str | None:
    if isinstance(value, str):
        return value
    _warn_if_ignored(value, source, "a string")
    return None


def _warn_if_ignored(value: Any, source: str, expected: str) -> None:
    if value is not None:
        log.warning("ignoring %s, because it is not %s: %s", source, expected, _short_repr(value))


def _valid_number(value: Any, limit: int) -> int | None:
    # True is 1 in Python, and a float loses digits.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit else None


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = f"a {type(value).__name__}"
    return shorten(text, MAX_SHOWN_CHARACTERS)
