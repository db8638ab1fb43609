"""Checks declared properties with librdkafka itself, without a broker: its own list is the only complete one."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException

from frazil.spec.property_rules import is_secret

_UNKNOWN = ("No such configuration property", "Java ")
_UNFIT = "Invalid value"
_NOT_TRIED = frozenset({"plugin.library.paths", "debug"})
"""Properties that take effect as soon as they are set."""


def property_problems(properties: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the name or value of each bad property, in librdkafka's words; empty if all are fine.

    References and secrets are not checked: their values are known only where the writer runs.
    """
    found = {}
    for key, value in properties.items():
        said = "" if key in _NOT_TRIED else _said(key, value)
        if said.startswith(_UNKNOWN) or (said.startswith(_UNFIT) and "${" not in value and not is_secret(key)):
            found[key] = said
    return found


def _said(key: str, value: str) -> str:
    try:
        Consumer({"group.id": "frazil", "log_level": "0", key: value}).close()
    except KafkaException as error:
        return str(error.args[0].str())
    return ""
