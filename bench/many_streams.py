"""The cost of hundreds of declared streams in Airflow: `python -m bench.many_streams [--streams 300] [--rounds 3]`.

Declares the streams, each with its own table, and prints, as CPU milliseconds or seconds (user and system):

- the time of a DAG file's `from frazil.airflow import …` after `airflow.sdk`, for one factory and for all names;
- for each file of `dags/`, the cost in Airflow's DAG processor: parsing and serializing, each in a process forked from
  one that has imported Airflow, as the DAG processor does;
- the cost of one check of a stream by a supervisor in the triggerer: reading the declaration alone, and a whole step.
  The step's stream has a table in the embedded catalog, a heartbeat, and this process as its running writer;
- with `--idle SECONDS`, the cost per second of each component of a real Airflow in which all these DAGs are paused: the
  idle load of scheduler and DAG processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

CHECKOUT = Path(__file__).resolve().parents[1]
DEFAULTS = "source: {bootstrap-servers: '127.0.0.1:9092'}\n"
STREAM = """\
name: {name}
source: {{topics: [{name}], format: json}}
table: demo.{name}
schema:
  carrier: string not null
  tailnum: string
  scheduled_departure: timestamptz not null
  dep_delay: int
event-time: scheduled_departure
partition-by: [day(scheduled_departure)]
complete: hour
"""
PARSE = """
import gc, os, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
gc.collect()
for file in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        begin = time.process_time()
        bag = DagBag(file)
        parsed = time.process_time()
        for dag in bag.dags.values():
            DagSerialization.to_dict(dag)
        done = time.process_time()
        assert not bag.import_errors, bag.import_errors
        print("PARSED", os.path.basename(file), len(bag.dags), parsed - begin, done - parsed, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

IMPORT = """
import sys, time
from airflow.sdk import DAG, Asset, BaseOperator, Param, task
sdk = time.process_time()
import frazil.airflow as frazil
for name in sys.argv[1:] or frazil.__all__:
    getattr(frazil, name)
print(sdk, time.process_time() - sdk)
"""


def declare(folder: Path, streams: int) -> list[str]:
    folder.mkdir()
    (folder / "_defaults.yaml").write_text(DEFAULTS)
    names = [f"s{number:03}" for number in range(streams)]
    for name in names:
        (folder / f"{name}.yaml").write_text(STREAM.format(name=name))
    return names


def measure_imports(root: Path, rounds: int) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(root / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    for names in (["writer_dags"], []):
        command, found = [sys.executable, "-c", IMPORT, *names], []
        for _ in range(rounds):
            done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True)
            found.append([float(second) for second in done.stdout.split()[-2:]])
        sdk_s, ours_s = (min(one) for one in zip(*found, strict=True))
        print(f"import of {' '.join(names) or 'all names'}: {ours_s:.2f} s, after {sdk_s:.2f} s of airflow.sdk")


def measure_parsing(root: Path, rounds: int) -> None:
    files = [str(path) for path in sorted((CHECKOUT / "dags").glob("*.py"))]
    environment = {**os.environ, "AIRFLOW_HOME": str(root / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    best: dict[str, tuple[float, float, int]] = {}
    for _ in range(rounds):
        command = [sys.executable, "-c", PARSE, *files]
        done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            if line.startswith("PARSED"):
                _, name, dags, parse_s, serialize_s = line.split()
                known = best.get(name, (float("inf"), float("inf"), 0))
                best[name] = min(known[0], float(parse_s)), min(known[1], float(serialize_s)), int(dags)
    print(f"{'file':<18} {'DAGs':>5} {'parse s':>8} {'serialize s':>12}")
    for name, (parse_s, serialize_s, dags) in best.items():
        print(f"{name:<18} {dags:>5} {parse_s:>8.2f} {serialize_s:>12.2f}")


def measure_checks(folder: Path, names: list[str], rounds: int) -> None:
    from frazil import clock  # after FRAZIL_HOME is set
    from frazil.home import run_folder
    from frazil.host.heartbeat import Heartbeat, Phase
    from frazil.host.lock import LOCK_FILE
    from frazil.host.processes import identify_process
    from frazil.host.records import Launch, LaunchKind
    from frazil.supervise.supervised import Declaration, Program, SupervisedStream
    from frazil.supervise.supervisor import Supervisor
    from frazil.table.catalogs import load_catalog
    from frazil.table.tables import ensure_table
    from tests.strict_streams import load_streams

    begin_ms, us = clock.now_ms(), identify_process(os.getpid())
    for name, spec in load_streams(folder).items():
        ensure_table(load_catalog(None), spec)
        (run := run_folder(name)).mkdir(parents=True)
        launch = Launch(name, LaunchKind.SUPERVISED, begin_ms, spec.fingerprint(), parent=us, writer=us)
        (run / LOCK_FILE).write_text(json.dumps(launch.to_json()))
        heartbeat = Heartbeat(
            name, us.pid, spec.fingerprint(), Phase.WAITING, begin_ms + 3_600_000, begin_ms + 3_600_000
        )
        heartbeat.write(run)

    declarations = [Declaration(name, folder, clock=clock.now_ms) for name in names]
    supervisors = [Supervisor(SupervisedStream(Program(name, folder, Path("unused")))) for name in names]
    print_check("declaration alone", [one.read for one in declarations], rounds)
    decisions = print_check("whole step", [one.step for one in supervisors], rounds)
    assert {step.decision.action for step in decisions} == {"keep"}, decisions[0]  # type: ignore[attr-defined]


def print_check(what: str, checks: list[Callable[[], object]], rounds: int) -> list[object]:
    spent = []
    for _ in range(rounds + 1):
        begin = time.process_time()
        found = [check() for check in checks]
        spent.append((time.process_time() - begin) / len(checks) * 1000)
    print(f"{what}: first {spent[0]:.2f} ms a stream, then {min(spent[1:]):.3f}")
    return found


def measure_idle(root: Path, seconds: float, *, dags: int) -> None:
    from frazil.dev.airflow import COMPONENTS, EmbeddedAirflow

    with EmbeddedAirflow(root / "idle", CHECKOUT) as airflow:
        deadline = time.monotonic() + 600
        while int(airflow.client().call("GET", "/api/v2/dags?limit=1")["total_entries"]) < dags:
            assert time.monotonic() < deadline, "the DAG processor does not get there"
            time.sleep(2)
        time.sleep(30)
        roots = {one: psutil.Process(found.pid) for one in COMPONENTS if (found := airflow.server(one))}
        before = {one: cpu_s(process) for one, process in roots.items()}
        time.sleep(seconds)
        print(f"an idle Airflow, CPU seconds a second over {seconds:.0f} s:")
        for one, process in roots.items():
            print(f"  {one:<14} {(cpu_s(process) - before[one]) / seconds:.3f}")


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU of a process, of its running children, and of children that it has waited for."""
    own = process.cpu_times()
    total: float = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frazil-many-") as name:
        root = Path(name)
        os.environ |= {"FRAZIL_HOME": str(root / "home"), "FRAZIL_STREAMS": str(root / "streams")}
        names = declare(root / "streams", options.streams)
        measure_imports(root, options.rounds)
        measure_parsing(root, options.rounds)
        measure_checks(root / "streams", names, options.rounds)
        if options.idle:
            measure_idle(root, options.idle, dags=2 * options.streams)


if __name__ == "__main__":
    main()
