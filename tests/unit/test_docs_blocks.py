"""Every code block of the pages is of a kind that a test can hold to the code, and is held to it.

Commands are parsed here by the real parser, and run here where they need no broker. tests/e2e/test_walks.py runs the
walk of the quick start, tests/e2e/test_docs_blocks.py what needs rows, and the runbook's tests its own.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import duckdb
import pytest
import yaml
from click.testing import CliRunner

from frazil.aggregate.spec import load_aggregation
from frazil.cli.main import frazil
from frazil.cluster.driver import ClusterDriver
from frazil.cluster.kubernetes_pod import build_pod
from frazil.errors import FrazilError
from frazil.ingest.transform_check import check_transform
from frazil.spec.load import DEFAULTS_FILE, load_stream, validate_stream
from frazil.spec.resources import Resources
from frazil.status.cost import Prices
from tests.pages import Block, all_blocks, blocks, says

BLOCKS = all_blocks()
QUICK_START = "docs/tutorial/first-stream.md"
NOT_RUN = {
    "README.md": "the drawing of the rooms, which tests/unit/test_house.py holds to the import contract",
    "docs/explanation/how-it-works.md": "a drawing",
}
BUILT_INTO_THE_SHELL = {"cd", "export", "wait", "kill", "echo", "source", "set", "sleep"}
NOT_ON_EVERY_MACHINE = {"helm", "kubectl"}


def of_kind(*kinds: str) -> Any:
    return pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind in kinds], ids=str)


def test_every_code_block_in_the_docs_is_of_a_known_kind() -> None:
    known = {*HELD, "sh", "console", "output", "text"}
    assert [str(block) for block in BLOCKS if block.kind not in known] == []


def test_no_block_is_written_without_a_fence() -> None:
    found = []
    for page in {block.page for block in BLOCKS} | {str(page) for page in Path("docs").rglob("*.md")}:
        bare = re.sub(r"^( *)```.*?^\1```$", "", Path(page).read_text(), flags=re.MULTILINE | re.DOTALL)
        found += [f"{page}: {line}" for line in re.findall(r"\n\n {4}(\S.*)", bare)]
    assert found == []


def test_docs_blocks_that_no_test_runs_are_listed_with_a_reason() -> None:
    assert sorted(block.page for block in BLOCKS if block.kind == "text") == sorted(NOT_RUN)


def test_only_the_quick_start_shows_output_of_the_preceding_block() -> None:
    """tests/e2e/test_walks.py compares it."""
    assert {block.page for block in BLOCKS if block.kind == "output"} <= {QUICK_START}


@of_kind("sh", "console")
def test_every_documented_command_exists_and_accepts_its_options(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.program, text=True, check=True)
    commands = block.commands()
    assert commands, "no command: this is no block of a shell"
    assert [problem for words in commands if (problem := wrong_command(words))] == []
    for command, text in block.heredocs():
        if command.endswith(".yaml"):
            validate_stream(yaml.safe_load(text), Path(command.split()[-1]))
        else:
            hold_python(text)


def wrong_command(words: list[str]) -> str | None:
    """Return the problem with a command as a page shows it; None if it has none."""
    name, *rest = words
    if name == "frazil":
        return wrong_arguments(frazil, "frazil", rest)
    if name == "make":
        targets = set(re.findall(r"^([a-z-]+):", Path("Makefile").read_text(), re.MULTILINE))
        unknown = {word for word in rest if "=" not in word} - targets
        return f"make has no {sorted(unknown)}" if unknown else None
    if name == "pip":
        return wrong_installation(" ".join(rest))
    if name == "python":
        if "-c" in rest:
            hold_python(rest[rest.index("-c") + 1])
        return None
    found = name in BUILT_INTO_THE_SHELL | NOT_ON_EVERY_MACHINE or shutil.which(name)
    return None if found else f"there is no command {name}"


def wrong_arguments(command: click.Command, name: str, arguments: list[str]) -> str | None:
    arguments = ["9092" if argument == "${FRAZIL_KAFKA##*:}" else argument for argument in arguments]
    try:
        context = command.make_context(name, list(arguments))
        if isinstance(command, click.Group):
            below, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert found is not None
            return wrong_arguments(found, f"{name} {below}", rest)
    except click.exceptions.Exit:
        return None  # --help
    except (click.ClickException, FrazilError) as error:
        return f"{name} {shlex.join(arguments)}: {error}"
    return None


def wrong_installation(text: str) -> str | None:
    """Extras and the version that pyproject.toml does not have."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    named = {extra for extras in re.findall(r"\[([\w,]+)\]", text) for extra in extras.split(",")}
    unknown = named - set(project["optional-dependencies"])
    other = set(re.findall(r"frazil-([\d.]+)-py3", text)) - {project["version"]}
    return f"there is no {sorted(unknown | other)} of frazil" if unknown | other else None


def hold_python(text: str) -> ast.Module:
    """Check that the block compiles, and that all its imports exist."""
    tree = ast.parse(text)
    compile(tree, "<page>", "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and not is_dag_file(text):
            module = importlib.import_module(f"{node.module}")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
    return tree


def is_dag_file(text: str) -> bool:
    """Whether the block is a DAG file, which an Airflow parses in tests/dags/test_docs_dags.py."""
    return "airflow" in text


def hold_yaml(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set(yaml.safe_load(block.text))
    if "catalog" in keys:
        hold_catalogs(block, folder, monkeypatch)
    elif "scrape_configs" in keys:
        hold_scraping(block)
    elif "spec" in keys:
        hold_pod_template(block, folder)
    elif "cpu-hour" in keys:
        (folder / "prices.yaml").write_text(block.text)
        assert Prices.load(folder / "prices.yaml") == Prices(), "the defaults"
    elif block.text.startswith("# include/aggregations/"):
        file = Path(block.text.split()[1])
        (folder / file.name).write_text(block.text)
        assert in_one_line(load_aggregation(folder / file.name).sql) == in_one_line(load_aggregation(file).sql)
    else:
        hold_declaration(block, folder)


def in_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def hold_declaration(block: Block, folder: Path) -> None:
    """A stream that loads; a fragment as part of the page's own stream, or of the quick start's."""
    declared = yaml.safe_load(block.text)
    whole = {"name", "source", "table", "schema"} <= set(declared)
    base = {"source": {}} if whole else stream_of(block.page)
    base["source"]["bootstrap-servers"] = "127.0.0.1:1"
    if "topic-pattern" in declared.get("source", {}):
        del base["source"]["topics"]
    (folder / DEFAULTS_FILE).write_text(yaml.safe_dump(base))
    (folder / "stream.yaml").write_text(block.text)
    spec = load_stream(folder / "stream.yaml")
    if spec.transform:
        check_transform(spec)


def stream_of(page: str) -> dict[str, Any]:
    """Return the first whole stream of a page; without one, the quick start's."""
    for block in blocks(page):
        declared = yaml.safe_load(block.text) if block.kind == "yaml" else None
        if declared and {"name", "source", "table", "schema"} <= set(declared):
            return dict(declared)
    return dict(yaml.safe_load(quick_start_stream()))


def quick_start_stream() -> str:
    return next(text for block in blocks(QUICK_START) for command, text in block.heredocs() if command.endswith("yaml"))


def hold_catalogs(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg reads it, and frazil knows what each catalog is."""
    (folder / ".pyiceberg.yaml").write_text(block.text)
    monkeypatch.setenv("PYICEBERG_HOME", str(folder))
    for name in yaml.safe_load(block.text)["catalog"]:
        done = CliRunner().invoke(frazil, ["catalog", name, "--for", "pyiceberg"])
        assert done.exit_code == 0, done.exception
        assert name in done.output


def hold_scraping(block: Block) -> None:
    declared = yaml.safe_load(block.text)
    assert [file for file in declared["rule_files"] if not (Path("deploy/monitoring") / file).is_file()] == []
    (job,) = declared["scrape_configs"]
    (targets,) = job["static_configs"]
    assert [each for each in targets["targets"] if not 9464 <= int(each.rpartition(":")[2]) <= 9563] == []


def hold_pod_template(block: Block, folder: Path) -> None:
    """Check that it changes the driver's container of a pod that frazil creates, and adds none."""
    (folder / "pod.yaml").write_text(block.text)
    spark = {"spark.kubernetes.driver.podTemplateFile": str(folder / "pod.yaml")}
    resources = Resources.model_validate({"master": "k8s://h", "spark": spark})
    pod = build_pod(ClusterDriver("rides", "0" * 32, "drive_stream.py", (), resources, {}), namespace="frazil")
    (container,) = pod["spec"]["containers"]
    assert container["command"][1:] == ["-m", "frazil.spark_apps.drive_stream"]


def hold_json(block: Block, *_: Any) -> None:
    declared = json.loads(block.text)
    if "expectations" in declared:
        demo = json.loads(Path(f"include/expectations/{declared['name']}.json").read_text())["expectations"]
        known = {(each["type"], each["kwargs"].get("column")) for each in demo}
        assert {(each["type"], each["kwargs"]["column"]) for each in declared["expectations"]} <= known
    elif block.page != "docs/how-to/keep-fields-that-vary.md":  # a record, which test_messy.py decodes
        assert {"conn_type", "host", "extra"} >= set(declared), "a connection of Airflow"


def hold_sql(block: Block, *_: Any) -> None:
    """DuckDB parses it. Its own dialect is not Spark's: what is Spark's here is in both."""
    assert duckdb.extract_statements(block.text)


def hold_http(block: Block, *_: Any) -> None:
    line, body = block.text.split("\n", 1)
    assert re.fullmatch(r"POST /api/v2/dags/frazil_backfill/dagRuns", line)
    conf = json.loads(body)["conf"]
    form = Path("include/frazil/airflow/backfills.py").read_text()
    assert [key for key in conf if f'"{key}": ' not in form] == []
    datetime.fromisoformat(conf["from-time"])


def hold_dockerfile(block: Block, *_: Any) -> None:
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", Path("requirements.txt").read_text(), re.MULTILINE))
    assert re.findall(r"^FROM apache/spark:([\d.]+)-python3$", block.text, re.MULTILINE) == [pinned["pyspark"]]
    assert set(re.findall(r"^([A-Z]+) ", block.text, re.MULTILINE)) <= {"FROM", "USER", "COPY", "RUN"}
    assert wrong_installation(block.text) is None


def hold_python_block(block: Block, *_: Any) -> None:
    hold_python(block.text)


HELD: dict[str, Callable[[Block, Path, pytest.MonkeyPatch], None]] = {
    "yaml": hold_yaml,
    "json": hold_json,
    "sql": hold_sql,
    "http": hold_http,
    "dockerfile": hold_dockerfile,
    "python": hold_python_block,
}


@of_kind(*HELD)
def test_every_code_block_in_the_docs_is_valid_for_its_kind(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HELD[block.kind](block, tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, with a FRAZIL_HOME in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / ".frazil"))
    monkeypatch.delenv("FRAZIL_STREAMS", raising=False)
    return tmp_path


def printed(command: str) -> str:
    """Return what a page's `$ frazil …` prints here."""
    done = CliRunner().invoke(frazil, shlex.split(command.partition(" #")[0])[1:])
    assert done.exit_code in {0, 10}, done.exception
    return done.output


def test_validate_prints_the_output_shown_in_the_guide(folder: Path) -> None:
    page = blocks("docs/how-to/declare-a-stream.md")
    declared, defaults, *_ = (block.text for block in page if block.kind == "yaml")
    valid, broken = (block.answers()[0] for block in page if block.program.startswith("frazil validate"))
    (folder / "include/streams").mkdir(parents=True)
    (folder / "include/streams/_defaults.yaml").write_text(defaults)
    (folder / "include/streams/orders.yaml").write_text(declared)
    assert printed(valid[0]) == valid[1]
    wrong = declared.replace("customer: string", "customer: varchar").replace(
        "event-time: ordered_at", "event-time: orderd_at"
    )
    (folder / "include/streams/orders.yaml").write_text(wrong + "comit: {interval: 1m}\n")
    assert says(printed(broken[0]), broken[1]), printed(broken[0])


def test_the_catalog_is_printed_for_each_engine_that_the_guide_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".pyiceberg.yaml").write_text("catalog:\n  lake:\n    type: rest\n    uri: https://catalog.example.com\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(folder))
    requested = [
        block for block in blocks("docs/how-to/read-the-tables.md") if block.program.startswith("frazil catalog")
    ]
    for command, _ in (answer for block in requested for answer in block.answers()):
        assert printed(command.partition(" >")[0])
