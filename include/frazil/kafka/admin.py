"""Metadata requests to Kafka: ids of the cluster and its topics, and offsets of partitions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from frazil.clock import epoch_ms
from frazil.errors import AccessDenied, FrazilError, KafkaUnavailable, SpecError, TopicMissing, brokers_remedy
from frazil.kafka.client import AdminClient, to_access_denied, translate_client_errors
from frazil.kafka.fetch import find_diverged
from frazil.kafka.logs import LogEnd
from frazil.offsets.spans import SourceIdentity, TopicPartition
from frazil.spec.source import TopicPattern

DESCRIBING = "describing"
TIMEOUT_S = 10.0
ERROR_POLL_INTERVAL_S = 0.1
"""Interval (s) of checks for connection errors during a request."""
INTERACTIVE_TIMEOUT_S = 5.0
"""Timeout (s) of an interactive command, which does not retry."""
LEADERS_TIMEOUT_S = 2.0
"""Timeout (s) for fetching the leaders after a failed request."""
_ATTEMPT_STATE = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)$")
"""What librdkafka adds to a connection's error. It differs from one attempt to the next."""
MAX_NAMED_PARTITIONS = 5
MAX_TOPICS = 1000
"""Maximum number of topics that a pattern may match. Each commit stores all their offsets."""
LEADER_ERRORS = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)
"""Errors of a partition whose leader is moving or starting. Retries usually succeed soon."""


@dataclass(frozen=True, slots=True)
class Topics:
    identity: SourceIdentity
    partitions: tuple[TopicPartition, ...]
    leaderless: frozenset[TopicPartition] = frozenset()
    """The partitions without a leader, which cannot be read."""

    @property
    def partitions_with_leader(self) -> tuple[TopicPartition, ...]:
        return tuple(tp for tp in self.partitions if tp not in self.leaderless)


class KafkaAdmin:
    """An admin client with one batched request per broker. `client` may return a shared client."""

    def __init__(  # noqa: PLR0913 - settings of the client, and names for messages
        self,
        properties: Mapping[str, str],
        topics: Collection[str] | TopicPattern,
        *,
        stream: str | None = None,
        timeout_s: float = TIMEOUT_S,
        client: Callable[[Mapping[str, str]], AdminClient] = AdminClient,
        topics_setting: str = "source.topics",
        servers_setting: str = "source.bootstrap-servers",
    ) -> None:
        """Error messages name the two settings as what the user must correct."""
        self._topic_remedy, self._servers_setting = f"Create it, or correct {topics_setting}", servers_setting
        self._stream = stream
        self._servers = properties.get("bootstrap.servers", "")
        self._properties = dict(properties)
        self._topics = topics if isinstance(topics, TopicPattern) else tuple(topics)
        self._topics_text = str(topics) if isinstance(topics, TopicPattern) else f"topics {', '.join(topics)}"
        self._timeout_s = timeout_s
        with translate_client_errors():
            self._admin = client(properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._admin

    def describe(self) -> Topics:
        """Fetch the cluster and its existing topics. Raises TopicMissing, or SpecError for too many matches."""
        try:
            cluster = self._admin.describe_cluster(request_timeout=self._timeout_s)
            if isinstance(self._topics, TopicPattern):
                cluster_id = self._wait_for(cluster).cluster_id
                answers = self._describe_topics(self._matching_topics(self._topics))
            else:
                answers = self._describe_topics(self._topics)
                cluster_id = self._wait_for(cluster).cluster_id
            described = self._descriptions(answers)
        except (KafkaException, TimeoutError) as error:
            raise self._as_frazil_error(error, DESCRIBING) from error
        leaders = {(name, p.id): p.leader for name, topic in sorted(described.items()) for p in topic.partitions}
        return Topics(
            SourceIdentity(cluster_id, {name: str(topic.topic_id) for name, topic in sorted(described.items())}),
            tuple(leaders),
            frozenset(tp for tp, leader in leaders.items() if leader is None or leader.id < 0),
        )

    def check_not_hidden(self, topics: Collection[str]) -> None:
        """Raise AccessDenied if a topic exists, but Kafka's list hides it from the principal."""
        hidden = []
        for name, answer in sorted(self._describe_topics(topics).items()):
            try:
                self._wait_for(answer)
            except (KafkaException, TimeoutError) as error:
                code = error.args[0].code() if isinstance(error, KafkaException) else None
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    hidden.append(name)
                elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._as_frazil_error(error, DESCRIBING) from error
        if hidden:
            raise AccessDenied(
                f"brokers {self._servers}: Kafka does not let the stream describe topics that it has read: "
                f"{', '.join(hidden)}",
                stream=self._stream,
                remedy="Grant Describe and Read on them. If they were deleted, grant Describe on their names, so that "
                "Kafka can report this",
            )

    def _matching_topics(self, pattern: TopicPattern) -> list[str]:
        names = [topic for topic in self._admin.list_topics(timeout=self._timeout_s).topics if topic in pattern]
        if len(names) > MAX_TOPICS:
            raise SpecError(
                f"source.topic-pattern: '{pattern.text}' matches {len(names):,} topics at {self._servers}, and a "
                f"stream reads at most {MAX_TOPICS:,}. Narrow the pattern, or divide the topics among several streams"
            )
        return names

    def _describe_topics(self, topics: Collection[str]) -> Mapping[str, Any]:
        futures: Mapping[str, Any] = {}
        if topics:
            futures = self._admin.describe_topics(TopicCollection([*topics]), request_timeout=self._timeout_s)
        return futures

    def _descriptions(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the descriptions by topic. Omits missing topics of a pattern; else raises TopicMissing for them."""
        described, missing = {}, []
        for name, answer in sorted(answers.items()):
            try:
                described[name] = self._wait_for(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                missing.append(name)
        if missing and not isinstance(self._topics, TopicPattern):
            raise TopicMissing(f"Kafka at {self._servers} has no topic {', '.join(missing)}", remedy=self._topic_remedy)
        return described

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._list_committed(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's last stable offset: the end of its log for a `read_committed` reader."""
        return self._list_committed(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return each log's ends and leader epoch, by two concurrent requests."""
        tps = list(partitions)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        stable, high = self._list_offsets(
            tps, (latest, IsolationLevel.READ_COMMITTED), (latest, IsolationLevel.READ_UNCOMMITTED)
        )
        return {tp: LogEnd(stable[tp].offset, high[tp].offset, stable[tp].leader_epoch) for tp in stable}

    def truncation_offsets(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        """Return where each log was truncated below its (offset, leader epoch), by bisection."""
        first = self.earliest(positions)
        positions = {tp: (offset, epoch) for tp, (offset, epoch) in positions.items() if offset >= first[tp]}
        lost = find_diverged(self._properties, positions)
        spans = {tp: (first[tp], positions[tp][0]) for tp in lost}
        while open_spans := {tp: (a + b) // 2 for tp, (a, b) in spans.items() if b - a > 1}:
            beyond = find_diverged(self._properties, {tp: (span, positions[tp][1]) for tp, span in open_spans.items()})
            for tp, span in open_spans.items():
                spans[tp] = (spans[tp][0], span) if tp in beyond else (span, spans[tp][1])
        return {tp: span for tp, (span, _) in spans.items()}

    def offsets_at(self, moment: datetime, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's first offset with a timestamp at or after `moment`, or else its log's end."""
        tps = list(partitions)
        offsets = self._list_committed(tps, OffsetSpec.for_timestamp(max(0, epoch_ms(moment))))
        missing = [tp for tp, offset in offsets.items() if offset < 0]
        return {**offsets, **(self.ends(missing) if missing else {})}

    def starts(
        self, start: Literal["earliest", "latest"] | datetime, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if start == "earliest":
            return self.earliest(partitions)
        return self.ends(partitions) if start == "latest" else self.offsets_at(start, partitions)

    def _list_committed(self, partitions: Iterable[TopicPartition], offset: OffsetSpec) -> dict[TopicPartition, int]:
        (answers,) = self._list_offsets(partitions, (offset, IsolationLevel.READ_COMMITTED))
        return {tp: answer.offset for tp, answer in answers.items()}

    def _list_offsets(
        self, partitions: Iterable[TopicPartition], *questions: tuple[OffsetSpec, IsolationLevel]
    ) -> list[dict[TopicPartition, Any]]:
        """Send concurrent requests, and repeat them while a leader is moving."""
        tps = list(partitions)
        deadline = time.monotonic() + self._timeout_s
        moving: Exception | None = None
        while True:
            try:
                futures = [self._request_offsets(tps, offset, isolation) for offset, isolation in questions]
                return [self._offsets(each) for each in futures]
            except (KafkaException, TimeoutError) as error:
                is_moving = isinstance(error, KafkaException) and error.args[0].code() in LEADER_ERRORS
                if is_moving and time.monotonic() <= deadline:
                    moving = error
                    time.sleep(ERROR_POLL_INTERVAL_S)
                    continue
                # librdkafka may also wait for the leader without an error. Report the earlier error, which says more.
                cause = moving if moving is not None and is_timeout(error) else error
                raise self._as_frazil_error(cause, "listing offsets of") from cause

    def _request_offsets(self, tps: list[TopicPartition], offset: OffsetSpec, isolation: IsolationLevel) -> Any:
        request, timeout_s = {KafkaTopicPartition(*tp): offset for tp in tps}, self._timeout_s
        return self._admin.list_offsets(request, isolation_level=isolation, request_timeout=timeout_s) if tps else {}

    def _wait_for(self, answer: Future[Any]) -> Any:
        """Return the response's result. Raises AccessDenied if refused, because librdkafka would reconnect forever."""
        deadline = time.monotonic() + self._timeout_s
        while not wait([answer], ERROR_POLL_INTERVAL_S).done:
            if time.monotonic() > deadline:
                raise TimeoutError
            for error in self._admin.connection_errors():
                if refused := self._refusal(error, f"access to {self._topics_text}"):
                    raise refused
        result = answer.result()
        self._admin.clear_errors()
        return result

    def _offsets(self, answers: Mapping[Any, Future[Any]]) -> dict[TopicPartition, Any]:
        offsets = {(tp.topic, tp.partition): self._wait_for(answer) for tp, answer in answers.items()}
        # librdkafka reports no error if a leader did not answer, but another did.
        if silent := [f"{topic}-{p}" for (topic, p), end in sorted(offsets.items()) if end.offset == OFFSET_INVALID]:
            raise _LeaderSilent(silent)
        return offsets

    def _refusal(self, error: KafkaError, subject: str) -> FrazilError | None:
        return to_access_denied(error.code(), error.str(), subject=subject, stream=self._stream, servers=self._servers)

    def _as_frazil_error(self, error: Exception, doing: str) -> FrazilError:
        """Translate a request's error to a FrazilError. `doing` names the request, such as `DESCRIBING`."""
        code = error.args[0].code() if isinstance(error, KafkaException) else KafkaError._TIMED_OUT
        topics = f"{doing} {self._topics_text}"
        if isinstance(error, KafkaException) and (refused := self._refusal(error.args[0], topics)):
            return refused
        step = f"{topics} at {self._servers}"
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            if isinstance(self._topics, TopicPattern):
                return TopicMissing(f"{step}: a topic that matched the pattern was deleted. The next poll ignores it")
            return TopicMissing(f"{step}: a topic does not exist", remedy=self._topic_remedy)
        is_late = is_timeout(error)
        if (is_late or code in LEADER_ERRORS) and (names := _name_some(self._partitions_without_leader())):
            return KafkaUnavailable(f"{step}: no leader for {names}", remedy="Start the brokers of their replicas")
        if isinstance(error, _LeaderSilent):
            return KafkaUnavailable(
                f"{step}: the leader of {_name_some(error.args[0])} did not answer within {self._timeout_s:g} s",
                remedy="Check that this host reaches each broker at its advertised address",
            )
        detail = f" within {self._timeout_s:g} s" if is_late else f": {error.args[0].str()}"
        errors = self._admin.connection_errors()
        text = _ATTEMPT_STATE.sub("", errors[-1].str()) if errors else ""
        error_text = f"; the last error was: {text}" if is_late and text else ""
        all_brokers = is_late and doing == DESCRIBING
        reason = f"Kafka at {self._servers} did not answer" if all_brokers else f"{step} got no answer"
        translated = KafkaUnavailable(f"{reason}{detail}{error_text}", remedy=brokers_remedy(self._servers_setting))
        translated.all_brokers = all_brokers
        return translated

    def _partitions_without_leader(self) -> list[str]:
        """Return the partitions without a leader. As a side effect, librdkafka forgets removed brokers."""
        with suppress(KafkaException):
            topics = self._admin.list_topics(timeout=min(self._timeout_s, LEADERS_TIMEOUT_S)).topics
            partitions = [(name, id_) for name in topics if name in self._topics for id_ in topics[name].partitions]
            return [f"{name}-{id_}" for name, id_ in sorted(partitions) if topics[name].partitions[id_].leader < 0]
        return []


class _LeaderSilent(TimeoutError):
    """Some leaders did not respond, but others did. The argument names the partitions of the silent leaders."""


def _name_some(partitions: Sequence[str]) -> str:
    return "" if not partitions else f"{', '.join(partitions[:MAX_NAMED_PARTITIONS])} ({len(partitions):,} in all)"


def is_timeout(error: BaseException | None) -> bool:
    if isinstance(error, KafkaException):
        return error.args[0].code() in {KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT}
    return isinstance(error, TimeoutError)
