"""The operations page on Airflow's own API server: who may see what, and what hangs delays nobody."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags import in_airflow
from tests.dags.in_airflow import CHECKOUT, AirflowProcess
from tests.polling import eventually

YAML = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: {table}
schema: {{id: long not null, at: timestamptz not null}}
event-time: at
"""
Ask = Callable[..., dict[str, Any]]
STATIC = CHECKOUT / "include" / "frazil" / "airflow" / "page" / "static"


@pytest.fixture(scope="module")
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for one in held:
            one.close()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, airflow_database: Path, streams: Path, silent: int) -> Iterator[Ask]:
    home = tmp_path_factory.mktemp("airflow-page")
    process = AirflowProcess(
        home,
        database=airflow_database,
        FRAZIL_HOME=str(home / "frazil"),
        FRAZIL_STREAMS=str(streams),
        AIRFLOW__API_AUTH__JWT_SECRET="s" * 64,
        PYICEBERG_CATALOG__SILENT__TYPE="rest",
        PYICEBERG_CATALOG__SILENT__URI=f"http://127.0.0.1:{silent}",
    )

    def asked(role: str | None, path: str, *, method: str = "GET", **more: Any) -> dict[str, Any]:
        headers = more.pop("headers", {})
        return dict(process.call(in_airflow.ask, role, method, f"/frazil/ops/{path}", headers=headers, **more))

    yield asked
    process.end()


def test_who_is_not_signed_in_sees_nothing(ask: Ask):
    for path in ("", "index.html", "main.js", "api/overview", "api/stream/ticks", "api/table/demo.ticks"):
        assert ask(None, path)["status"] == 401


def test_the_page_runs_no_script_but_its_own(ask: Ask):
    page = ask("VIEWER", "index.html")
    assert page["status"] == 200
    policy = page["headers"]["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"\son\w+=|<style|style=|<script(?! type=\"module\" src)", page["body"]) == []


def test_every_module_that_the_page_imports_is_served_and_nothing_else_is(ask: Ask):
    imported = {name for file in STATIC.glob("*.js") for name in re.findall(r'from "\./(.+?)"', file.read_text())}
    assert imported | {"main.js"} == {file.name for file in STATIC.glob("*.js")}
    assert {ask("VIEWER", name)["headers"]["content-type"] for name in imported} == {"text/javascript; charset=utf-8"}
    for path in ("nothing.js", "..%2Fapp.py", "app.py"):
        assert ask("VIEWER", path)["status"] == 404


def test_without_a_stream_the_overview_says_where_they_are_looked_for(ask: Ask, streams: Path):
    empty = ask("VIEWER", "api/overview")["body"]
    assert empty["lines"] == []
    assert empty["notes"] == [
        f"The API server finds no stream in {streams}: declare one there, or set FRAZIL_STREAMS for it"
    ]


@pytest.fixture(scope="module")
def declared(ask: Ask, streams: Path) -> None:
    (streams / "ticks.yaml").write_text(YAML.format(name="ticks", table="demo.ticks"))
    ghosts = YAML.format(name="ghosts", table="{identifier: far.ghosts, catalog: silent}")
    (streams / "ghosts.yaml").write_text(ghosts)
    (streams / "wrong.yaml").write_text("name: wrong\nschema: {id: lung}\n")
    eventually(lambda: ask("VIEWER", "api/overview")["body"]["lines"], within_s=60)


@pytest.mark.usefixtures("declared")
def test_a_catalog_that_hangs_is_named_and_hides_no_other_stream(ask: Ask):
    def lines() -> dict[str, Any]:
        answer = ask("VIEWER", "api/overview")
        found = {line["stream"]: line for line in answer["body"]["lines"]}
        return found if found["ghosts"]["word"] == "no answer" and found["ticks"]["word"] != "looking" else {}

    found = eventually(lines, within_s=60)
    assert list(found) == ["wrong", "ghosts", "ticks"]
    assert found["ghosts"]["needs"][0].startswith("The catalog silent, its storage, or Kafka has not answered since 20")
    assert (found["ticks"]["word"], found["wrong"]["word"]) == ("not begun", "declaration broken")
    assert any("lung" in said for said in found["wrong"]["needs"])


@pytest.mark.usefixtures("declared")
def test_a_stream_has_a_view_of_its_own_also_where_kafka_and_its_table_are_not_there(ask: Ask):
    found = ask("VIEWER", "api/stream/ticks")["body"]
    assert found["line"]["word"] == "not begun"
    assert found["facts"]["Topics"] == "ticks"
    assert (found["commits"], found["runs"], found["may_act"]) == ([], [], False)
    assert ask("OP", "api/stream/ticks")["body"]["may_act"]
    assert ask("OP", "api/stream/nothing")["status"] == 404
    assert "id.type" in " ".join(ask("VIEWER", "api/stream/wrong")["body"]["line"]["needs"])


@pytest.mark.usefixtures("declared")
def test_a_stream_of_a_catalog_that_hangs_says_what_does_not_answer(ask: Ask):
    found = eventually(
        lambda: next(
            (body for body in [ask("VIEWER", "api/stream/ghosts")["body"]] if body["line"]["word"] == "no answer"), None
        ),
        within_s=60,
    )
    assert found["facts"]["Table"] == "far.ghosts"


@pytest.mark.usefixtures("declared")
def test_a_table_has_a_view_also_before_it_exists_and_none_that_nobody_feeds(ask: Ask):
    found = eventually(
        lambda: next((b for b in [ask("VIEWER", "api/table/demo.ticks")["body"]] if not b["pending"]), None),
        within_s=60,
    )
    assert (found["shape"], found["streams"], found["problems"]) == (None, ["ticks"], [])
    assert ask("VIEWER", "api/table/demo.nothing")["status"] == 404
