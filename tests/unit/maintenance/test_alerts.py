"""Alerts: their subjects, when they fire, that they resolve, and that they do not flap."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frazil.maintenance.alerts import (
    CLEAR_RATIO,
    AlertState,
    AlertStates,
    AlertStep,
    Reading,
    evaluate_readings,
    evaluate_table_rules,
    mark_reported_together,
)
from frazil.maintenance.health import StreamHealth, TableHealth
from frazil.spec.maintenance import Alerts, Maintenance

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
HOLD = 10 * MINUTE_MS
LIMIT = 900
SETTINGS = Maintenance(alerts=Alerts(hold=timedelta(minutes=10), manifests=100, lag=LIMIT))
WELL = TableHealth(
    table="demo.t", at_ms=NOW_MS, snapshot_id=1, target_file_bytes=100 * 2**20, data_files=100,
    data_bytes=100 * 100 * 2**20, rows=1, delete_files=0, manifests=10, manifests_bytes=1, manifest_list_bytes=9_000,
    metadata_bytes=1, snapshots=10, oldest_snapshot_at_ms=NOW_MS, last_compaction_at_ms=None, files_since_compaction=0,
    bytes_since_compaction=0, recent=None, streams=(StreamHealth("s", 0, NOW_MS, None),),
)  # fmt: skip


def health(**changes: Any) -> TableHealth:
    return dataclasses.replace(WELL, **changes)


def stream(**changes: Any) -> TableHealth:
    return health(streams=(dataclasses.replace(WELL.streams[0], **changes),))


def reading(rule: str, found: TableHealth) -> Reading:
    return next(r for r in evaluate_table_rules(found, SETTINGS, now_ms=NOW_MS) if r.rule == rule)


def beyond(found: TableHealth, settings: Maintenance = SETTINGS) -> dict[str, str]:
    return {r.rule: r.sentence for r in evaluate_table_rules(found, settings, now_ms=NOW_MS) if r.is_beyond}


def evaluate_alerts(before: AlertStates, found: TableHealth, settings: Maintenance, *, now_ms: int) -> AlertStep:
    seen = evaluate_table_rules(found, settings, now_ms=now_ms)
    return evaluate_readings(before, found.table, seen, settings.alerts, now_ms=now_ms)


def run(values: list[int | None], *, every_ms: int = 5 * MINUTE_MS) -> list[AlertStep]:
    """Successive measurements of the lag; None means that it is unknown."""
    states, steps = AlertStates(), []
    for number, value in enumerate(values):
        now_ms = NOW_MS + number * every_ms
        found = stream(lag=value, last_commit_at_ms=now_ms)
        steps.append(evaluate_alerts(states, found, SETTINGS, now_ms=now_ms))
        states = AlertStates.from_json(json.loads(json.dumps(steps[-1].states.to_json())))
        assert states == steps[-1].states
    return steps


CLEAR = int(LIMIT * CLEAR_RATIO)
VALUES = st.lists(st.one_of(st.none(), st.integers(0, 2 * LIMIT)), max_size=30)


# Laws of every rule


@given(VALUES)
def test_an_alert_fires_only_after_its_value_was_beyond_for_the_hold(values: list[int | None]):
    for number, made in enumerate(run(values)):
        if made.fired:
            began = (made.fired[0].since_ms - NOW_MS) // (5 * MINUTE_MS)
            assert (number - began) * 5 * MINUTE_MS >= HOLD
            assert all(v is None or v > LIMIT for v in values[began : number + 1])


@given(VALUES)
def test_alerts_fire_and_resolve_alternately_and_only_active_ones_resolve(values: list[int | None]):
    active = False
    for made in run(values):
        assert len(made.fired) + len(made.resolved) <= 1
        assert not (made.fired and active)
        assert not (made.resolved and not active)
        active = (active or bool(made.fired)) and not made.resolved
        assert bool(made.active) == active
        assert set(made.fired) <= set(made.active)


@given(st.lists(st.integers(CLEAR + 1, LIMIT), min_size=1, max_size=20), st.booleans())
def test_between_clear_and_threshold_nothing_fires_and_nothing_is_resolved(values: list[int], active: bool):
    first = [LIMIT + 1] * 3 if active else []
    later = run([*first, *values])[len(first) :]
    assert all(made.fired == made.resolved == () and bool(made.active) == active for made in later)


@given(VALUES.filter(bool))
def test_an_unknown_value_does_not_change_an_alert(values: list[int | None]):
    before, after = run([*values, None])[-2:]
    assert (after.fired, after.resolved, after.states) == ((), (), before.states)


def test_an_alert_is_reported_once_when_it_fires_and_once_when_it_resolves():
    steps = run([LIMIT + 1, LIMIT + 1, LIMIT + 1, LIMIT + 1, CLEAR + 1, CLEAR, LIMIT + 1])
    assert [len(s.fired) for s in steps] == [0, 0, 1, 0, 0, 0, 0]
    assert [len(s.resolved) for s in steps] == [0, 0, 0, 0, 0, 1, 0]
    assert steps[2].fired[0].since_ms == NOW_MS
    over = "demo.t: the alert lag:s is over: 720 records wait"
    assert steps[5].resolved[0].sentence == over


def test_a_clock_that_was_put_back_does_not_keep_an_alert_from_firing():
    later = AlertStates({"manifests": AlertState(NOW_MS + 10 * HOLD, active=False)})
    seen = evaluate_alerts(later, health(manifests=101), SETTINGS, now_ms=NOW_MS)
    assert evaluate_alerts(seen.states, health(manifests=101), SETTINGS, now_ms=NOW_MS + HOLD).fired


def checks(*minutes: int) -> list[bool]:
    """Whether an alert whose value is always beyond its threshold has fired by then."""
    states, fired = AlertStates(), []
    for minute in minutes:
        made = evaluate_alerts(states, health(manifests=101), SETTINGS, now_ms=NOW_MS + minute * MINUTE_MS)
        states = made.states
        fired.append(bool(made.active))
    return fired


def test_time_without_checks_does_not_count_toward_the_hold():
    assert checks(0, 24 * 60, 24 * 60 + 5, 24 * 60 + 10) == [False, False, False, True]
    assert checks(0, 5, 24 * 60, 24 * 60 + 5) == [False] * 4


def test_an_alert_fires_even_if_checks_are_further_apart_than_its_hold():
    assert checks(0, 60, 120) == [False, False, True]
    assert checks(0, 12) == [False, True]


def test_a_value_unknown_for_longer_than_the_hold_restarts_the_hold():
    beyond_then_unknown = [LIMIT + 1, None, None, None, LIMIT + 1, LIMIT + 1, LIMIT + 1]
    assert [len(s.fired) for s in run(beyond_then_unknown)] == [0, 0, 0, 0, 0, 0, 1]
    assert [len(s.fired) for s in run([LIMIT + 1, None, LIMIT + 1])] == [0, 0, 1]


def test_alerts_resolve_when_they_are_disabled_or_their_stream_is_removed():
    active = AlertStates({rule: AlertState(NOW_MS, active=True) for rule in ("manifests", "freshness:gone")})
    made = evaluate_alerts(active, health(manifests=101), SETTINGS, now_ms=NOW_MS)
    assert ([a.rule for a in made.active], [a.rule for a in made.resolved]) == (["manifests"], ["freshness:gone"])
    off = evaluate_alerts(active, health(manifests=101), Maintenance(alerts=False), now_ms=NOW_MS)  # type: ignore[arg-type]
    assert (len(off.resolved), off.active, off.states) == (2, (), AlertStates())
    assert "no longer watched" in off.resolved[0].sentence


def test_a_table_that_cannot_be_measured_is_reported_after_the_hold_and_keeps_its_alerts():
    states, made = AlertStates({"manifests": AlertState(NOW_MS, active=True), "lag:s": AlertState(NOW_MS, False)}), []
    for minute in (0, 5, 10):
        now_ms = NOW_MS + minute * MINUTE_MS
        made.append(evaluate_readings(states, "demo.t", "catalog away", SETTINGS.alerts, now_ms=now_ms))
        states = made[-1].states
    assert [[alert.rule for alert in step.fired] for step in made] == [[], [], ["unmeasured"]]
    assert [alert.rule for alert in made[-1].active] == ["manifests", "unmeasured"]
    assert states.rules.keys() == {"manifests", "lag:s", "unmeasured"}
    assert "catalog away" in made[-1].fired[0].sentence
    off = evaluate_readings(states, "demo.t", "catalog away", Alerts(enabled=False), now_ms=NOW_MS)
    assert ([alert.rule for alert in off.resolved], off.states) == (["manifests", "unmeasured"], AlertStates())


def test_alerts_beyond_the_number_that_a_user_can_follow_are_marked_until_they_resolve():
    every = health(manifests=101, snapshots=2_001)
    states: dict[str, AlertStates] = {"a": AlertStates(), "b": AlertStates()}

    def check(found: TableHealth, minutes: int) -> dict[str, AlertStep]:
        seen = {
            name: evaluate_alerts(before, found, SETTINGS, now_ms=NOW_MS + minutes * MINUTE_MS)
            for name, before in states.items()
        }
        marked = mark_reported_together(seen, 3)
        states.update({name: AlertStates.from_json(made.states.to_json()) for name, made in marked.items()})
        return marked

    def flags(steps: dict[str, AlertStep], kind: str) -> list[bool]:
        return [alert.alone for made in steps.values() for alert in getattr(made, kind)]

    check(every, 0)
    fired = check(every, 10)
    assert flags(fired, "fired") == flags(fired, "active") == [True, True, True, False]
    assert flags(check(every, 15), "active") == [True, True, True, False]
    lost = evaluate_readings(states["b"], "demo.t", "away", SETTINGS.alerts, now_ms=NOW_MS + 15 * MINUTE_MS)
    assert [(alert.alone, alert.value) for alert in lost.active] == [(True, "unknown"), (False, "unknown")]
    gone = evaluate_readings(lost.states, "demo.t", (), SETTINGS.alerts, now_ms=NOW_MS, unwatched="it does not exist")
    assert [(alert.alone, alert.value) for alert in gone.resolved] == [
        (True, "it does not exist"),
        (False, "it does not exist"),
    ]
    assert flags(check(WELL, 20), "resolved") == [True, True, True, False]


# The rules


def test_a_table_in_shape_has_no_alert_and_each_rule_has_one_beyond_its_threshold():
    assert beyond(WELL) == {}
    assert set(beyond(health(
        manifest_list_bytes=2**20, manifests=101, snapshots=2_001, metadata_bytes=9 * 2**20, delete_files=101,
        bytes_since_compaction=101 * 2**30, streams=(StreamHealth("s", 1, NOW_MS - 16 * MINUTE_MS, None),),
    ))) == {
        "manifest-list", "manifests", "snapshots", "metadata", "delete-files", "since-compaction", "freshness:s",
    }  # fmt: skip


def test_merge_delete_files_alert_only_above_one_per_data_file_and_deleted_rows_by_share():
    of_merges = health(delete_files=200, merged=True)
    assert beyond(of_merges) == {}
    assert set(beyond(health(delete_files=201, merged=True))) == {"delete-files"}
    assert "another engine wrote them" in beyond(health(delete_files=200))["delete-files"]
    assert beyond(health(rows=70, deleted_rows=30)) == {}
    said = beyond(health(rows=69, deleted_rows=31))["deleted-rows"]
    assert said.startswith("31 rows in data files of demo.t (31.0 %) are deleted")


def test_a_short_manifest_list_of_a_small_table_is_not_an_alert():
    assert beyond(health(data_files=3, manifest_list_bytes=200 * 1024)) == {}
    assert set(beyond(health(data_files=3, manifest_list_bytes=300 * 1024))) == {"manifest-list"}


def test_many_files_are_an_alert_only_while_they_are_small():
    small = health(data_files=6_000, data_bytes=6_000 * 2**20)
    assert "6,000 data files of 1.0 MiB on average; the target is 100.0 MiB" in beyond(small)["small-files"]
    assert beyond(health(data_files=6_000, data_bytes=6_000 * 20 * 2**20)) == {}
    assert beyond(health(data_files=4_000, data_bytes=4_000 * 2**20)) == {}
    assert reading("small-files", health(data_files=6_000, data_bytes=0)).value is None


def test_small_file_alerts_resolve_only_clearly_above_a_tenth_of_the_target_size():
    def averaging(mib: float) -> Reading:
        return reading("small-files", health(data_files=6_000, data_bytes=int(6_000 * mib * 2**20)))

    assert [(averaging(a).is_beyond, averaging(a).is_clear) for a in (9.9, 10.1, 12.4, 12.6)] == [
        (True, False), (False, False), (False, False), (False, True),
    ]  # fmt: skip


def test_a_stream_is_stale_while_records_wait_or_their_number_could_not_be_read():
    old = NOW_MS - 20 * MINUTE_MS
    assert (
        "no commit for 20 min 0 s while 7 records wait" in beyond(stream(lag=7, last_commit_at_ms=old))["freshness:s"]
    )
    assert beyond(stream(lag=0, last_commit_at_ms=old)) == {}
    said = beyond(stream(lag=None, lag_problem="Kafka at k:9092 does not answer.", last_commit_at_ms=old))
    assert said["freshness:s"].startswith(
        "stream s of demo.t is late: no commit for 20 min 0 s while records may wait; the lag is unknown (Kafka at "
        "k:9092 does not answer). `frazil status s` shows"
    )

    def value(lag: int | None, last_ms: int | None) -> float | None:
        return reading("freshness:s", stream(lag=lag, last_commit_at_ms=last_ms)).value

    assert value(None, old) is None
    assert value(None, NOW_MS - MINUTE_MS) == 60
    assert value(7, None) is None


def test_a_lag_that_cannot_be_read_is_unknown_and_reported_where_its_alert_is_declared():
    settings = Maintenance(alerts=Alerts(lag=5))
    unknown = stream(lag=None, lag_problem="Kafka does not respond")
    said = "the lag of stream s cannot be read, so no alert about it fires: Kafka does not respond"
    assert beyond(unknown, settings)["unmeasured:s"] == said
    assert "unmeasured:s" not in beyond(stream(lag=7), settings)
    assert "unmeasured:s" not in beyond(unknown, Maintenance()), "freshness reports it"
    before = AlertStates({"lag:s": AlertState(NOW_MS - 1, active=True)})
    (active,) = (a for a in evaluate_alerts(before, unknown, settings, now_ms=NOW_MS).active if a.rule == "lag:s")
    assert (active.value, active.sentence) == (
        "unknown", "the lag of stream s is unknown now: Kafka does not respond"
    )  # fmt: skip


def test_freshness_counts_from_the_last_time_at_which_no_record_waited_and_fires_at_once():
    old, settings = NOW_MS - 60 * MINUTE_MS, Maintenance()
    quiet = stream(lag=5, last_commit_at_ms=old, caught_up_at_ms=NOW_MS - 7_000)
    assert beyond(quiet, settings) == {}, "its records came seven seconds ago"
    behind = stream(lag=5, last_commit_at_ms=NOW_MS - 9_000, caught_up_at_ms=NOW_MS - 16 * MINUTE_MS)
    said = beyond(behind, settings)["freshness:s"]
    assert "the oldest of 5 waiting records has waited for 16 min 0 s; the last commit was 9.0 s ago" in said
    assert [alert.rule for alert in evaluate_alerts(AlertStates(), behind, settings, now_ms=NOW_MS).fired] == [
        "freshness:s"
    ]


def test_a_lagging_stream_is_reported_with_the_number_of_waiting_records():
    said = beyond(stream(lag=7), Maintenance(alerts=Alerts(lag=5)))["lag:s"]
    assert said.startswith("stream s of demo.t lags: 7 records wait in Kafka, more than 5. `frazil status s` shows")


def test_a_stream_that_commits_once_an_hour_as_declared_is_not_stale():
    def minutes_ago(minutes: int) -> TableHealth:
        return stream(lag=7, last_commit_at_ms=NOW_MS - minutes * MINUTE_MS, longest_interval_ms=60 * MINUTE_MS)

    assert beyond(minutes_ago(119)) == {}
    assert set(beyond(minutes_ago(121))) == {"freshness:s"}
    assert reading("freshness:s", minutes_ago(61)).is_clear


def test_an_alert_names_the_command_or_for_a_disabled_action_how_to_proceed():
    crowded = health(snapshots=3_000, data_files=6_000, data_bytes=6_000, bytes_since_compaction=2**40)
    said = beyond(crowded)
    assert "`frazil maintain demo.t --actions expiry`" in said["snapshots"]
    assert "`frazil maintain demo.t --actions compaction`" in said["small-files"]
    off = beyond(crowded, Maintenance.model_validate("off"))
    assert "`maintenance.expiry` is off for this table: switch it on, or call expire_snapshots" in off["snapshots"]
    assert "`maintenance.compaction` is off" in off["small-files"]
    assert "since-compaction" in said
    assert "since-compaction" not in off
