"""`frazil cost`: sums what streams cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import click

from frazil import clock
from frazil.cli.options import DURATION, any_streams_argument, json_option, streams_option
from frazil.cli.output import echo, echo_json, echo_table
from frazil.spec.last_valid import find_declared_streams
from frazil.spec.load import find_file, load_stream
from frazil.spec.units import format_duration, format_rounded_bytes
from frazil.status.cost import PRICES_VARIABLE, CostReport, Prices, StreamCost, cost_of
from frazil.table.catalogs import call_catalog, keep_catalogs
from frazil.table.parallel import run_in_parallel
from frazil.table.unresponsive import Unresponsive

COLUMNS = ("commits", "CPU s", "writes", "reads", "written", "price")


@click.command()
@any_streams_argument
@streams_option
@json_option
@click.option("--by", type=click.Choice(["stream", "owner", "day"]), default="stream", show_default=True)
@click.option("--last", "period", type=DURATION, default="1d", show_default=True, help="Commits up to now.")
@click.option(
    "--prices",
    "prices_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar=PRICES_VARIABLE,
    help="A YAML file of prices (also: FRAZIL_PRICES). Default: list prices of AWS.",
)
@keep_catalogs()
def cost(  # noqa: PLR0913 - a command's options
    streams: tuple[str, ...],
    streams_folder: Path,
    *,
    as_json: bool,
    by: str,
    period: timedelta,
    prices_file: Path | None,
) -> None:
    """Show the CPU, the storage requests and the price of STREAMS, or of all streams.

    Sums the commit records, which contain the CPU time of each batch's tasks, and of the writer and its JVM. CPU time
    between batches counts for the next batch. Counts requests to object storage, except those of a REST catalog. Does
    not include Kafka, Airflow, maintenance, backfills, replays, audits or readers. The price of storage assumes that
    the tables always had their current size.

    \b
    Example:
      frazil cost --by owner --last 7d
    """
    now_ms = clock.now_ms()
    specs, errors = find_declared_streams(streams_folder, now_ms=now_ms)
    if unknown := sorted(set(streams) - {spec.name for spec in specs}):
        load_stream(find_file(streams_folder, unknown[0]))  # raises SpecError with the reason
    chosen = [spec for spec in specs if not streams or spec.name in streams]
    prices = Prices.load(prices_file) if prices_file else Prices()
    since_ms, catalogs = now_ms - period // timedelta(milliseconds=1), Unresponsive()
    steps = [(spec.table.catalog, partial(cost_of, spec, since_ms=since_ms)) for spec in chosen]
    reports = run_in_parallel(lambda step: call_catalog(*step, catalogs, is_long=True), steps)
    sums = _sums(reports, by)
    if as_json:
        costs = {name: {"cost": total, "price": total.price(prices)} for name, total in sums.items()}
        echo_json({"at-ms": now_ms, "by": by, "currency": prices.currency, "costs": costs, "errors": errors})
        return
    echo_table((by, *COLUMNS), [_row(n, cost, prices) for n, cost in sums.items()], numbers=frozenset(COLUMNS))
    stored, price = sum(r.stored_bytes for r in reports), sum(r.storage_price(prices, period) for r in reports)
    size, length = format_rounded_bytes(stored), format_duration(period)
    echo(f"Also {prices.format(price)} to store {size} for {length}, at the tables' current size.")
    for error in errors:
        echo(error, err=True)


def _sums(reports: Sequence[CostReport], by: str) -> dict[str, StreamCost]:
    sums: defaultdict[str, StreamCost] = defaultdict(StreamCost)
    for report in reports:
        for day, cost in report.days.items():
            sums[{"stream": report.stream, "owner": report.owner or "(none)"}.get(by, day)] += cost
    return dict(sorted(sums.items()))


def _row(name: str, cost: StreamCost, prices: Prices) -> tuple[str, ...]:
    counts = f"{cost.commits:,}", f"{cost.cpu_s:,.1f}", f"{cost.writes:,}", f"{cost.reads:,}"
    return name, *counts, format_rounded_bytes(cost.written_bytes), prices.format(cost.price(prices))
