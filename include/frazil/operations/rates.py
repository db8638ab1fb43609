"""Computes records per second and daily costs from a stream's history, whose points each cover a time span. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from frazil.history.points import TEN_MINUTES_MS, Point
from frazil.status.cost import Prices, StreamCost
from frazil.timetext import format_day


@dataclass(frozen=True, slots=True)
class Rate:
    at_ms: int
    records_per_s: float = 0.0
    rejected_per_s: float = 0.0
    arrived_per_s: float | None = None
    """Records that came to Kafka; None while the lag is unknown."""


@dataclass(frozen=True, slots=True)
class Trend:
    arrived_per_s: float
    records_per_s: float
    caught_up_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DayCost:
    """What a stream wrote on a day (UTC), and what it cost. `price` is text with its currency."""

    day: str
    cost: StreamCost
    files: int
    price: str


def daily_costs(points: Iterable[Point], prices: Prices) -> tuple[DayCost, ...]:
    days: dict[str, tuple[StreamCost, int]] = {}
    for point in points:
        day = format_day(point.at_ms)
        cost, files = days.get(day, (StreamCost(), 0))
        cost += StreamCost(point.batches, point.cpu_ms / 1000, point.writes, point.reads, point.bytes)
        days[day] = cost, files + point.files
    return tuple(
        DayCost(day, cost, files, prices.format(cost.price(prices)))
        for day, (cost, files) in sorted(days.items(), reverse=True)
    )


def compute_rates(points: Sequence[Point]) -> tuple[Rate, ...]:
    """Compute each point's rate. A batch's records are spread over the time since the previous batch."""
    rates: list[Rate] = []
    waiting: list[Point] = []  # the points since the last batch, or since the writer started
    landed_ms: int | None = None
    known_ms = -math.inf
    for point in points:
        if point.at_ms - known_ms > _max_gap_ms(point):  # a writer began
            rates += [Rate(waiting_point.at_ms) for waiting_point in waiting]
            waiting, landed_ms = [], None if point.batches else point.at_ms
        known_ms = point.end_ms
        waiting.append(point)
        if point.batches:
            begin_ms = point.at_ms
            if landed_ms is not None and point.end_ms - landed_ms <= _max_gap_ms(point):
                begin_ms = landed_ms
            rates += [_rate(waiting_point, point, begin_ms) for waiting_point in waiting]
            waiting, landed_ms = [], point.end_ms
    if waiting and landed_ms is not None and waiting[-1].end_ms - landed_ms > _max_gap_ms(waiting[-1]):
        rates += [Rate(waiting_point.at_ms) for waiting_point in waiting]
    return tuple(rates)


def mean_rates(spans: Sequence[Point], points: Sequence[Point]) -> tuple[Rate, ...]:
    """Return each span's mean rate, computed from the shorter `points` in it. Skips points without a known rate."""
    begins = [span.at_ms for span in spans]
    by_time: dict[int, list[tuple[Point, Rate]]] = {}
    for point, rate in zip(points, compute_rates(points), strict=False):
        if spans and spans[0].at_ms <= point.at_ms < spans[-1].end_ms:
            by_time.setdefault(begins[bisect_right(begins, point.at_ms) - 1], []).append((point, rate))
    return tuple(_mean(at_ms, parts) for at_ms, parts in by_time.items())


def add_arrivals(rates: Sequence[Rate], spans: Sequence[Point]) -> tuple[Rate, ...]:
    """Add the arrival rate: the records written, plus the change of the lag since the previous span."""
    with_arrivals, previous = list(rates), None
    for number, (rate, span) in enumerate(zip(rates, spans, strict=False)):
        adjoins = previous is not None and span.at_ms - previous.end_ms <= _max_gap_ms(span)
        if previous is not None and adjoins and previous.lag is not None and span.lag is not None:
            grown = (span.lag - previous.lag) * 1000 / span.span_ms
            with_arrivals[number] = replace(rate, arrived_per_s=max(rate.records_per_s + grown, 0.0))
        previous = span
    return tuple(with_arrivals)


def compute_trend(points: Sequence[Point], lag: int | None, *, now_ms: int) -> Trend | None:
    """Return the trend of the last ten minutes; None without enough recorded points."""
    recent = [point for point in points if point.at_ms >= now_ms - TEN_MINUTES_MS]
    rates = [rate for rate in add_arrivals(compute_rates(recent), recent) if rate.arrived_per_s is not None]
    if len(rates) < 3:
        return None
    arrived, written = fmean(r.arrived_per_s or 0 for r in rates), fmean(r.records_per_s for r in rates)
    falls = written - arrived
    caught_up_ms = round(lag / falls * 1000) if lag and falls > 0 else None
    return Trend(arrived, written, caught_up_ms)


def _mean(at_ms: int, parts: Sequence[tuple[Point, Rate]]) -> Rate:
    lasts_ms = sum(point.span_ms for point, _ in parts)
    records = sum(rate.records_per_s * point.span_ms for point, rate in parts)
    return Rate(at_ms, records / lasts_ms, sum(rate.rejected_per_s * point.span_ms for point, rate in parts) / lasts_ms)


def _rate(span: Point, batch: Point, begin_ms: int) -> Rate:
    if span.at_ms < begin_ms:
        return Rate(span.at_ms)
    seconds = (batch.end_ms - begin_ms) / 1000
    return Rate(span.at_ms, batch.records / seconds, batch.rejected / seconds)


def _max_gap_ms(point: Point) -> int:
    """Return the longest normal time between two batches: twice the commit interval and delay, plus a span."""
    return 2 * ((point.interval_ms or 0) + (point.backpressure_ms or 0)) + point.span_ms
