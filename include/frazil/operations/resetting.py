"""A reset in two steps: what it would do, and doing just that."""

from __future__ import annotations

import hashlib

from frazil.commit import marker_change
from frazil.commit.marker import of_same_topics
from frazil.commit.opened import open_kafka, open_stream
from frazil.commit.reset import moves, standing
from frazil.errors import AdoptionRequired
from frazil.operations.acts import Prepared
from frazil.spec.model import StreamSpec
from frazil.status.reset_target import Merged, ResetTarget, available_now, consequences, target_of


def plan_reset(spec: StreamSpec, wanted: ResetTarget) -> Prepared:
    """Look at the table and at Kafka. Raises what they raise, and AdoptionRequired for a stream that never began."""
    opened = open_stream(spec)
    with open_kafka(spec) as kafka:
        seen = standing(opened.tables)
        if seen.marker_text is None:
            raise AdoptionRequired(f"stream {spec.name!r} has not begun: there is no position to reset")
        now = available_now(kafka, seen.marker)
        target = target_of(wanted, seen=seen, now=now, kafka=kafka)
    plan = moves(target, held=of_same_topics(seen.held, seen.source, now.source), available=now)
    merged: Merged = "dropped" if spec.dedupe else "no"
    if spec.mode == "upsert":
        merged = "by order" if spec.order_by else "by arrival"
    says = consequences(plan, seen=seen, now=now, merged=merged)
    if spec.route is not None and any(move.repeated for move in plan):
        says.append("What is read again comes a second time to the tables of the route too.")
    # Not the target itself: the end of a topic moves while a person reads.
    seal = hashlib.sha256(f"{seen.marker_text}|{wanted.to}|{wanted.at}".encode()).hexdigest()

    def carry_out() -> object:
        return marker_change.reset(opened.tables, target=target, source=now.source, seen=seen, cut=now.cut)

    return Prepared(tuple(says), seal, carry_out)
