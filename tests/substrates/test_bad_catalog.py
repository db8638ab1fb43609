"""A REST catalog that answers late, wrongly or not at all: each batch lands once, and the log names the cause."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator

import pytest

from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.journal import Journal
from frazil.commit.settle import settle
from frazil.commit.stream_tables import StreamTables
from frazil.dev.object_store import EmbeddedObjectStore
from frazil.errors import CommitUnavailable
from frazil.table import rest_catalog
from tests.made_batches import MadeStream
from tests.substrates.conftest import configure
from tests.substrates.test_behaviour import Made, files, offsets, rows, staged
from tests.troubled_proxy import (
    Answer,
    Call,
    Forward,
    Trouble,
    TroubledProxy,
    applied_then,
    drop_answer,
    every,
    first,
    instead,
    none,
    page,
    proxy,
    refusal,
    slow,
)

BATCHES = 3
SUBSTRATE = "rest+s3"
SOAK = pytest.mark.soak


def is_commit(call: Call) -> bool:
    return call.is_commit


@pytest.fixture
def gateway(
    object_store: EmbeddedObjectStore,
    frazil_home: object,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TroubledProxy]:
    """A proxy in front of SeaweedFS's REST catalog, whose catalog is opened only through it."""
    with proxy(object_store.catalog_uri) as gateway:
        configure(monkeypatch, SUBSTRATE, {**object_store.rest_catalog(), "uri": gateway.uri})
        yield gateway


@pytest.fixture
def substrate(gateway: TroubledProxy) -> str:  # noqa: ARG001 - the fixture of the same name starts every server
    return SUBSTRATE


def needed_manifests(tables: StreamTables) -> set[str]:
    table = tables.main.refresh()
    return {
        path.rsplit("/", 1)[-1]
        for snapshot in table.metadata.snapshots
        for path in (snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(table.io)))
    }


def check_each_landed_once(stream: MadeStream, batches: int) -> None:
    """Check the number of rows, the marker, and that exactly the table's manifests exist."""
    table = stream.tables.main.refresh()
    assert rows(stream.tables) == offsets(0, 0, 10 * batches)
    marker = stream.tables.marker()
    assert marker is not None
    assert (marker.offsets[stream.topic, 0], marker.key.batch) == (10 * batches, batches)
    assert len(table.metadata.snapshots) == batches + 1, "the take-over's, and one of each batch"
    manifests = {name for name in files(stream.tables, table, "metadata") if name.endswith(".avro")}
    assert manifests == needed_manifests(stream.tables)


def refused_retry() -> Trouble:
    """The answer of a commit is lost on its way to a gateway, which sends it again and returns that answer: 409."""

    def troubled(call: Call, forward: Forward) -> Answer:
        forward(call)
        return forward(call)

    return troubled


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (every(3, drop_answer, of=is_commit), "the outcome of a commit to .* is unknown"),
        (every(2, applied_then(refusal(500)), of=is_commit), "the outcome of a commit to .* is unknown"),
        pytest.param(
            every(2, applied_then(page(502)), of=is_commit), "the outcome of a commit .* is unknown", marks=SOAK
        ),
        (every(2, applied_then(page(200)), of=is_commit), "instead of JSON: .*Welcome"),
        (every(2, refused_retry(), of=is_commit), "lost a race"),
        pytest.param(every(2, instead(refusal(503, "deploying")), of=is_commit), "deploying", marks=SOAK),
    ],
    ids=["every third answer lost", "500 though applied", "502 though applied", "HTML though applied", "409", "503"],
)
def test_each_batch_lands_once_whatever_the_catalog_answers_to_a_commit(
    made: Made, gateway: TroubledProxy, trouble: Trouble, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made()
    stream.begin()
    gateway.trouble = trouble
    with caplog.at_level(logging.INFO, "frazil"):
        for number in range(BATCHES):
            stream.land({0: (10 * number, 10 * number + 10)})
    gateway.trouble = none
    check_each_landed_once(stream, BATCHES)
    reported = [record.getMessage() for record in caplog.records if record.name == "frazil.commit.compare_and_swap"]
    assert any(re.search(said, line) for line in reported), reported
    assert all(line.endswith("s at most") for line in reported)


@pytest.mark.parametrize("status", [429, 503])
def test_the_retry_delay_of_an_overloaded_catalog_is_respected(made: Made, gateway: TroubledProxy, status: int) -> None:
    stream = made()
    waits = patient(stream)
    stream.begin()
    gateway.trouble = first(2, instead(refusal(status, "busy", Retry_After="7")), of=is_commit)
    before = gateway.calls["TABLE COMMIT"]
    stream.land({0: (0, 10)})
    assert waits == [7, 7]
    assert gateway.calls["TABLE COMMIT"] - before == 3
    check_each_landed_once(stream, 1)


def test_a_late_response_is_no_longer_awaited_and_its_commit_lands_once(
    made: Made, gateway: TroubledProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made()
    stream.begin()
    monkeypatch.setattr(rest_catalog, "TIMEOUT_S", (5.0, 0.5))
    gateway.trouble = first(1, applied_then_late, of=is_commit)
    stream.land({0: (0, 10)})
    check_each_landed_once(stream, 1)
    assert "ReadTimeout" in caplog.text


def applied_then_late(call: Call, forward: Forward) -> Answer:
    forward(call)
    return slow(1.0, instead(refusal(500)))(call, forward)


@pytest.mark.soak
def test_a_catalog_that_takes_five_seconds_per_response_only_slows_the_stream(
    made: Made, gateway: TroubledProxy, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made()
    stream.begin()
    gateway.trouble = slow(5)
    stream.land({0: (0, 10)})
    gateway.trouble = none
    check_each_landed_once(stream, 1)
    assert "retrying" not in caplog.text


def test_the_writer_stops_for_an_unavailable_catalog_and_the_next_start_commits_the_batch(
    made: Made, gateway: TroubledProxy
) -> None:
    stream = made()
    time = patient(stream, total_s=30)
    stream.begin()
    gateway.trouble = instead(refusal(500, "closed for today"))
    journal = staged_while_away(stream, gateway)
    with pytest.raises(CommitUnavailable, match=r"failed for 30 s; .*closed for today.* journal are kept"):
        stream.committer.commit(journal)  # type: ignore[union-attr]
    assert 30 <= sum(time) < 40
    gateway.trouble = none
    following = made()
    assert settle(following.tables, following.begin()).committed == (journal,)
    assert rows(following.tables) == offsets(0, 0, 10)


def staged_while_away(stream: MadeStream, gateway: TroubledProxy) -> Journal:
    away, gateway.trouble = gateway.trouble, none
    journal: Journal = staged(stream, 0, 10)
    gateway.trouble = away
    return journal


def patient(stream: MadeStream, total_s: float = 600) -> list[float]:
    """Let time pass only by the waits, which are returned."""
    waits: list[float] = []
    retry_policy = RetryPolicy(total_s=total_s, wait=waits.append, clock=lambda: sum(waits))
    stream.__dict__["tables"] = dataclasses.replace(stream.tables, retry_policy=retry_policy)
    return waits
