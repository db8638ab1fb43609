"""Calls librdkafka's C API through ctypes, in the library of confluent-kafka: no Python object for each record."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, cimpl

from frazil.errors import EnvironmentUnusable
from frazil.kafka.client import TokenFunction

EVENT_DR, EVENT_LOG = 0x1, 0x4
_PRODUCER, _CONSUMER = 0, 1
_INVALID_OFFSET = -1001
"""Value of librdkafka's RD_KAFKA_OFFSET_INVALID."""
_ERROR_BUFFER_BYTES = 512

ErrorCallback = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
ThrottleCallback = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, c_int, c_void_p)
TokenCallback = CFUNCTYPE(None, c_void_p, c_char_p, c_void_p)

_TEXTS = POINTER(c_char_p)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "version": (c_int, []),
    "conf_new": (c_void_p, []),
    "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "conf_set_events": (None, [c_void_p, c_int]),
    "conf_set_error_cb": (None, [c_void_p, ErrorCallback]),
    "conf_set_throttle_cb": (None, [c_void_p, ThrottleCallback]),
    "conf_set_oauthbearer_token_refresh_cb": (None, [c_void_p, TokenCallback]),
    "conf_enable_sasl_queue": (None, [c_void_p, c_int]),
    "conf_destroy": (None, [c_void_p]),
    "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "destroy": (None, [c_void_p]),
    "poll_set_consumer": (c_int, [c_void_p]),
    "sasl_background_callbacks_enable": (c_void_p, [c_void_p]),
    "oauthbearer_set_token": (c_int, [c_void_p, c_char_p, c_int64, c_char_p, _TEXTS, c_size_t, c_char_p, c_size_t]),
    "oauthbearer_set_token_failure": (c_int, [c_void_p, c_char_p]),
    "queue_new": (c_void_p, [c_void_p]),
    "queue_get_main": (c_void_p, [c_void_p]),
    "queue_get_consumer": (c_void_p, [c_void_p]),
    "queue_destroy": (None, [c_void_p]),
    "queue_poll": (c_void_p, [c_void_p, c_int]),
    "set_log_queue": (c_int, [c_void_p, c_void_p]),
    "event_log": (c_int, [c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)]),
    "event_message_next": (c_void_p, [c_void_p]),
    "event_destroy": (None, [c_void_p]),
    "topic_partition_list_new": (c_void_p, [c_int]),
    "topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "topic_partition_list_set_offset": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "topic_partition_list_destroy": (None, [c_void_p]),
    "assign": (c_int, [c_void_p, c_void_p]),
    "incremental_unassign": (c_void_p, [c_void_p, c_void_p]),
    "error_code": (c_int, [c_void_p]),
    "error_string": (c_char_p, [c_void_p]),
    "error_destroy": (None, [c_void_p]),
    "consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "consumer_close": (c_int, [c_void_p]),
    "query_watermark_offsets": (c_int, [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int]),
    "message_destroy": (None, [c_void_p]),
    "message_errstr": (c_char_p, [c_void_p]),
    "message_headers": (c_int, [c_void_p, POINTER(c_void_p)]),
    "message_leader_epoch": (c_int32, [c_void_p]),
    "header_get_all": (c_int, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t)]),
    "message_timestamp": (c_int64, [c_void_p, POINTER(c_int)]),
    "topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "topic_name": (c_char_p, [c_void_p]),
    "topic_destroy": (None, [c_void_p]),
    "produce": (c_int, [c_void_p, c_int32, c_int, c_char_p, c_size_t, c_char_p, c_size_t, c_void_p]),
    "purge": (c_int, [c_void_p, c_int]),
}
"""Result type and argument types of each function, without the prefix `rd_kafka_`."""


class Message(ctypes.Structure):
    """The C struct `rd_kafka_message_t`."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("_private", c_void_p),
    )


class Librdkafka:
    """librdkafka's functions, without their prefix: `new` is `rd_kafka_new`. Each call releases the GIL."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}
        try:
            library = ctypes.CDLL(cimpl.__file__)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, f"rd_kafka_{name}")
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
                self.addresses[name] = ctypes.cast(function, c_void_p).value or 0
        except (OSError, AttributeError) as error:
            raise _unusable_error(f"its C API cannot be loaded: {error}") from error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def new_configuration(self, properties: Mapping[str, str]) -> int:
        """Return a configuration's address, which a client or the caller destroys. Raises KafkaException."""
        conf = int(self.conf_new())
        problem = ctypes.create_string_buffer(_ERROR_BUFFER_BYTES)
        # Plugins define properties, so they are loaded first.
        for key, value in sorted(properties.items(), key=lambda item: item[0] != "plugin.library.paths"):
            if self.conf_set(conf, key.encode(), value.encode(), problem, _ERROR_BUFFER_BYTES):
                self.conf_destroy(conf)
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, problem.value.decode(errors="replace")))
        return conf

    def consumer(self, properties: Mapping[str, str], on_error: Any, on_throttle: Any, on_token: Any = None) -> int:
        """Create a consumer. Raises KafkaException.

        Polling the consumer calls `on_error` and `on_throttle`. A thread of librdkafka calls `on_token` to set login
        tokens. The callbacks must outlive the consumer. Log lines are kept until `set_log_queue` sets a queue for them.
        """
        conf = self.new_configuration({**properties, "log.queue": "true"})
        self.conf_set_error_cb(conf, on_error)
        self.conf_set_throttle_cb(conf, on_throttle)
        self.conf_set_events(conf, EVENT_LOG)
        if on_token is not None:
            self.conf_set_oauthbearer_token_refresh_cb(conf, on_token)
            self.conf_enable_sasl_queue(conf, 1)
        client = self._new_client(_CONSUMER, conf)
        if on_token is not None:
            self.check_error(self.sasl_background_callbacks_enable(client))
        self.poll_set_consumer(client)
        return client

    def token_callback(self, make_token: TokenFunction) -> Any:
        """Return a callback that passes a client the token, or the error, of `make_token`."""

        def refresh(client: int, config: bytes | None, _: int | None) -> None:
            problem = ctypes.create_string_buffer(_ERROR_BUFFER_BYTES)
            try:
                token, expiry_s, *details = make_token((config or b"").decode())
                principal, pairs = details[0] if details else "", details[1] if len(details) > 1 else {}
                texts = [text.encode() for pair in pairs.items() for text in pair]
                extensions = (c_char_p * len(texts))(*texts)
                lifetime = (token.encode(), int(expiry_s * 1000), principal.encode())
                arguments = (*lifetime, extensions, len(texts), problem, _ERROR_BUFFER_BYTES)
                text = problem.value if self.oauthbearer_set_token(client, *arguments) else b""
            except Exception as error:
                text = f"{type(error).__name__}: {error}".encode()
            if text:
                self.oauthbearer_set_token_failure(client, text)

        return TokenCallback(refresh)

    def _new_client(self, kind: int, conf: int) -> int:
        problem = ctypes.create_string_buffer(_ERROR_BUFFER_BYTES)
        client = self.new(kind, conf, problem, _ERROR_BUFFER_BYTES)
        if not client:
            self.conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, problem.value.decode(errors="replace")))
        return int(client)

    def partitions(self, offsets: Iterable[tuple[str, int, int | None]]) -> int:
        """Return the address of a C list of topics, partitions and offsets. The caller must destroy it."""
        positions = [(topic.encode(), partition, offset) for topic, partition, offset in offsets]
        partitions = int(self.topic_partition_list_new(len(positions)))
        for topic, partition, offset in positions:
            self.topic_partition_list_add(partitions, topic, partition)
            if offset is not None:
                self.topic_partition_list_set_offset(partitions, topic, partition, offset)
        return partitions

    def check(self, code: int) -> None:
        if code:
            raise KafkaException(KafkaError(code))

    def check_error(self, error: int | None) -> None:
        """Raise KafkaException for an error object, and free it."""
        if error:
            kafka_error = KafkaError(self.error_code(error), self.error_string(error).decode(errors="replace"))
            self.error_destroy(error)
            raise KafkaException(kafka_error)

    def watermarks(self, client: int, topic: str, partition: int, *, timeout_s: float) -> tuple[int, int]:
        """Fetch the first offset and the end offset of a partition from the broker. Raises KafkaException."""
        low, high = c_int64(), c_int64()
        arguments = (client, topic.encode(), partition, ctypes.byref(low), ctypes.byref(high), int(timeout_s * 1000))
        self.check(self.query_watermark_offsets(*arguments))
        return low.value, high.value


def _unusable_error(reason: str) -> EnvironmentUnusable:
    return EnvironmentUnusable(
        f"librdkafka of the installed confluent-kafka {confluent_kafka.__version__} cannot be used: {reason}. Install "
        "confluent-kafka from its wheel, in a version that frazil supports"
    )


@cache
def librdkafka() -> Librdkafka:
    """Return the process's librdkafka. The first call loads and checks it. Raises EnvironmentUnusable."""
    library = Librdkafka()
    if (version := library.version()) != (expected := confluent_kafka.libversion()[1]):
        raise _unusable_error(f"its version is {version:#x}, but confluent-kafka uses {expected:#x}")
    _check_message_layout(library)
    return library


def _check_message_layout(library: Librdkafka) -> None:
    """Check the layout of `Message` against a message that a producer created and then purged."""
    conf = library.new_configuration({"log_level": "0"})
    library.conf_set_events(conf, EVENT_DR)
    producer = library._new_client(_PRODUCER, conf)
    topic = library.topic_new(producer, b"frazil", None)
    queue = library.queue_get_main(producer)
    event = None
    try:
        library.produce(topic, 7, 0x2, b"value", 5, b"the key", 7, 11)  # 0x2: copy the value
        library.purge(producer, 0x1)  # the messages in the queue
        event = library.queue_poll(queue, 10_000)
        address = library.event_message_next(event) if event else None
        if not address:
            raise _unusable_error("the self-test received no message")
        message = Message.from_address(address)
        expected = (KafkaError._PURGE_QUEUE, topic, 7, 5, 7, _INVALID_OFFSET, 11)
        fields = (message.err, message.rkt, message.partition, message.len, message.key_len, message.offset)
        if (*fields, message._private) != expected or not message.payload or not message.key:
            raise _unusable_error("the fields of a message do not have the expected values")
        if (ctypes.string_at(message.payload, 5), ctypes.string_at(message.key, 7)) != (b"value", b"the key"):
            raise _unusable_error("a message's key or value differs from the bytes that were sent")
    finally:
        if event:
            library.event_destroy(event)
        library.queue_destroy(queue)
        library.topic_destroy(topic)
        library.destroy(producer)
