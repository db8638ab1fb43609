"""Checks declared properties with librdkafka, without a broker, because only librdkafka knows all valid properties."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException

from frazil.spec.property_rules import is_secret

_UNKNOWN = ("No such configuration property", "Java ")
_UNFIT = "Invalid value"
_NOT_TRIED = frozenset({"plugin.library.paths", "debug"})
"""Properties that are not checked, because they take effect as soon as they are set."""


def property_problems(properties: Mapping[str, str]) -> dict[str, str]:
    """Map each property with an invalid name or value to librdkafka's error; empty if all properties are valid.

    References and secrets are not checked, because only the writer's host knows their values.
    """
    found = {}
    for key, value in properties.items():
        said = "" if key in _NOT_TRIED else _error_text(key, value)
        if said.startswith(_UNKNOWN) or (said.startswith(_UNFIT) and "${" not in value and not is_secret(key)):
            found[key] = said
    return found


def _error_text(key: str, value: str) -> str:
    try:
        Consumer({"group.id": "frazil", "log_level": "0", key: value}).close()
    except KafkaException as error:
        return str(error.args[0].str())
    return ""
