"""The wheel in a fresh venv: what works without extras, and the error message when an extra is missing."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from confluent_kafka import Producer

from frazil.cli.main import COMMANDS
from frazil.dev.kafka import EmbeddedKafka
from tests.conftest import TopicFactory
from tests.packaging.conftest import Installed

STREAM = """\
name: rides
source: {{topics: [{topic}], format: json, bootstrap-servers: "{bootstrap}"}}
table: city.rides
schema: {{id: long not null, started_at: timestamptz not null}}
event-time: started_at
partition-by: [day(started_at)]
"""
PAGE = Path(__file__).parents[2] / "include/frazil/airflow/page/static"
NOT_IN_THE_BASE = ("airflow", "duckdb", "great_expectations", "httpx", "pandas", "pyspark", "py4j", "s3fs")


def declare(folder: Path, *, bootstrap: str = "127.0.0.1:1", topic: str = "rides") -> str:
    streams = folder / "streams"
    streams.mkdir(exist_ok=True)
    (streams / "rides.yaml").write_text(STREAM.format(bootstrap=bootstrap, topic=topic))
    return str(streams)


def test_the_wheel_holds_the_package_alone_with_the_data_that_it_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"frazil"}
    page = {f"frazil/airflow/page/static/{file.name}" for file in PAGE.iterdir()}
    assert "frazil/airflow/page/static/index.html" in page
    assert {name for name in names if not name.endswith(".py")} == page | {
        "frazil/py.typed",
        "frazil/dev/kafka-log4j2.properties",
        "frazil/quality/templates/gate.css",
        "frazil/quality/templates/index.html",
        "frazil/quality/templates/run.html",
        "frazil/spark/ivy-settings.xml",
        "frazil/spark/jars.lock",
        "frazil/spark/log4j2.xml",
    }


def test_the_sdist_contains_the_files_of_the_wheel_and_its_metadata(built: Path, wheel: Path) -> None:
    with tarfile.open(next(built.glob("frazil-*.tar.gz"))) as archive, zipfile.ZipFile(wheel) as other:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
        packaged = {f"include/{name}" for name in other.namelist() if ".dist-info/" not in name}
    assert packaged <= names
    others = {name for name in names - packaged if ".egg-info/" not in name}
    assert others == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


def test_the_base_brings_neither_spark_nor_airflow_nor_a_server(installed: Installed) -> None:
    program = f"from importlib.util import find_spec; print([m for m in {NOT_IN_THE_BASE!r} if find_spec(m)])"
    assert installed.python(program).stdout.strip() == "[]"


def test_the_base_has_all_that_an_executor_imports(installed: Installed) -> None:
    program = (
        "import frazil.ingest, pkgutil, importlib\n"
        "for module in pkgutil.iter_modules(frazil.ingest.__path__, 'frazil.ingest.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(frazil.__file__)"
    )
    done = installed.python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed.venv))


def test_the_installed_command_prints_help_and_validates(installed: Installed) -> None:
    said = installed.run("frazil", "--help")
    assert said.returncode == 0, said.stderr
    assert [name for name in COMMANDS if name not in said.stdout] == []
    valid = installed.run("frazil", "validate", "--streams", declare(installed.folder))
    assert (valid.returncode, "rides" in valid.stdout) == (0, True), valid.stderr


def test_a_new_project_begins_with_a_valid_stream(installed: Installed, tmp_path: Path) -> None:
    made = installed.run("frazil", "init", str(tmp_path))
    assert made.returncode == 0, made.stderr
    valid = installed.run(
        "frazil", "validate", "--streams", str(tmp_path / "include/streams"), FRAZIL_KAFKA="127.0.0.1:1"
    )
    assert valid.returncode == 0, valid.stderr
    assert "rides -> city.rides" in valid.stdout


@pytest.mark.rotates(3)
def test_the_package_s_types_are_checked_in_a_user_s_code(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "from pathlib import Path\nfrom frazil.spec.load import load_stream\n"
        "table: int = load_stream(Path('rides.yaml')).table.identifier\n"
    )
    python = str(installed.venv / "bin" / "python")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[0].startswith("user.py:3: error: Incompatible types in assignment"), done.stdout
    assert done.stdout.splitlines()[-1].startswith("Found 1 error in 1 file")


def test_every_command_prints_its_help_without_any_extra_installed(installed: Installed) -> None:
    program = (
        "from click.testing import CliRunner\n"
        "from frazil.cli.main import COMMANDS, frazil\n"
        "said = {name: CliRunner().invoke(frazil, [name, '--help']) for name in COMMANDS if name != 'dev'}\n"
        "print({name: result.output for name, result in said.items() if not result.output.startswith('Usage: frazil')})"
    )
    assert installed.python(program).stdout.strip() == "{}"


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("spark", ["frazil", "run", "rides", "--streams", "streams"]),
        ("spark", ["frazil", "maintain", "city.rides", "--streams", "streams"]),
        ("spark", ["python", "-m", "frazil.spark.jars", "fetch", "spark"]),
        ("dev", ["frazil", "dev", "up"]),
        ("quality", ["python", "-m", "frazil.quality", "60"]),
    ],
)
def test_a_missing_extra_is_reported_in_one_sentence(
    installed: Installed, tmp_path: Path, extra: str, command: list[str]
) -> None:
    declare(installed.folder)
    # No jar must be in the cache: then none has to be fetched.
    done = installed.run(*command, FRAZIL_JARS=str(tmp_path))
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert f"pip install 'frazil[{extra}]'" in said
    assert "Traceback" not in said


def test_a_missing_airflow_is_an_import_error_that_names_the_extra(installed: Installed) -> None:
    done = installed.python("import frazil.airflow")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("frazil.errors.MissingExtra: the Python package airflow is not installed.")
    assert "frazil[airflow]" in last
    program = "try:\n    from frazil.airflow import writer_dags\nexcept ImportError as error:\n    print(error.name)"
    assert installed.python(program).stdout.strip() == "airflow"


def test_the_wheels_own_main_writes_a_stream_from_an_empty_folder(
    with_extras: Installed, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    main = with_extras.python("from frazil import spark_apps; print(spark_apps.WRITE_STREAM)").stdout.strip()
    assert main.startswith(str(with_extras.venv))
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(name, '{"id": 1, "started_at": "2026-01-01T08:00:00Z"}')
    producer.flush()
    assert with_extras.run("frazil", "init").returncode == 0
    declared = with_extras.folder / "include" / "streams" / "rides.yaml"
    declared.write_text(declared.read_text().replace("topics: [rides]", f"topics: [{name}]"))
    done = with_extras.run(
        "python", main, "rides", "--streams", "include/streams", "--until-caught-up", FRAZIL_KAFKA=kafka.bootstrap
    )
    assert done.returncode == 0, done.stderr
    counted = with_extras.python(
        "from frazil.table.catalogs import load_catalog\n"
        "print(load_catalog(None).load_table('city.rides').scan().count())"
    )
    assert counted.stdout.strip() == "1", counted.stderr
    airflow = {"AIRFLOW_HOME": str(with_extras.folder / "airflow"), "FRAZIL_KAFKA": kafka.bootstrap}
    for name in ("streams", "declarations"):
        parsed = with_extras.run("python", f"dags/{name}.py", **airflow)
        assert parsed.returncode == 0, parsed.stderr
