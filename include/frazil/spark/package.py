"""Creates the archive with the Python environment of executors and drivers in a cluster. It has the running Python,
frazil and its packages, but not Airflow, quality gates, or PySpark, which the cluster provides. The compiled loops that
decode records are for this host's type of CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import frazil
from frazil.errors import EnvironmentUnusable, MissingExtra
from frazil.ingest.compiled import PREFIX_FOLDER

REQUIRED_PACKAGES = (
    *("confluent-kafka", "cryptography", "google-re2", "msgspec", "numba", "numpy", "psutil", "pyarrow"),
    *("pydantic", "pyiceberg[pyarrow,pyiceberg-core]", "pyroaring", "pyyaml", "requests", "sqlalchemy"),
)
OPTIONAL_PACKAGES = ("psycopg2-binary",)
"""Packages that a catalog may need, included if this host has them."""
STORAGE_PACKAGES = {"s3": "pyiceberg[s3fs]", "gcs": "pyiceberg[gcsfs]", "adls": "pyiceberg[adlfs]"}
EXCLUDED_FILES = (
    *("*.a", "*.h", "*.pxd", "*.pyx", "*/tests/*", "*/test/*", "../*", "llvmlite/tests/*", "numpy/f2py/*"),
    *("pyarrow/include/*", "pyarrow/src/*", "pyarrow/*flight*", "botocore/data/[!_]*/*.gz"),
)
"""Files that are never loaded, and commands (`../`: outside the folders of packages)."""
INCLUDED_ANYWAY = ("botocore/data/s3/*", "botocore/data/sts/*", "botocore/data/sso*/*")
STDLIB_EXCLUDED = (
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "tkinter", "turtledemo"),
    *("ensurepip", "lib2to3", "pydoc_data", "config-*", "_tkinter*", "*.a"),
)
FRAZIL_EXCLUDED = ("airflow", "dev", "quality", "cli", "spark_apps", "maintenance", "aggregate")
LAUNCHER = """\
#!/bin/sh
# Python finds its shared library next to itself, wherever the archive was unpacked.
here=$(cd "$(dirname "$0")" && pwd)
LD_LIBRARY_PATH="$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/@PYTHON@" "$@"
"""
SMOKE_TEST = (
    "import sys, frazil.stream.worker_daemon as daemon; daemon.preload(); "
    "import frazil.remote.driver, frazil.stream.spark_engine, frazil.stream.writer; "
    "sys.exit(daemon.STAGE not in sys.modules)"
)


def make_package(target: Path, *, storages: Iterable[str], say: Callable[[str], None]) -> None:
    """Write the archive atomically, and report each step to `say`. Raises MissingExtra and EnvironmentUnusable."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".frazil-package-") as made:
        root = Path(made) / "root"
        python = _copy_python(root)
        packages = [*REQUIRED_PACKAGES, *filter(_is_installed, OPTIONAL_PACKAGES)]
        _copy_packages(root, [*packages, *(STORAGE_PACKAGES[name] for name in storages)])
        say("copied Python and packages; compiling the record decoders")
        _compile_and_check(root, python)
        say("packing")
        temporary = Path(made) / target.name
        with tarfile.open(temporary, "w:gz", compresslevel=4) as archive:
            archive.add(root, arcname=".", filter=_make_root_owner)
        temporary.replace(target)


def find_installed_storages() -> tuple[str, ...]:
    return tuple(name for name, requirement in STORAGE_PACKAGES.items() if _is_installed(requirement))


def _is_installed(requirement: str) -> bool:
    try:
        list(_find_dependencies([requirement]))
    except MissingExtra:
        return False
    return True


def _copy_python(root: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "lib" / version
    skipped = shutil.ignore_patterns(*STDLIB_EXCLUDED)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=skipped, symlinks=True)
    binaries = root / "bin"
    binaries.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), binaries / version)
    shared = sysconfig.get_config_var("INSTSONAME")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared:
        shutil.copy2(Path(sysconfig.get_config_var("LIBDIR")) / shared, root / "lib" / shared)
    launcher = binaries / "python"
    launcher.write_text(LAUNCHER.replace("@PYTHON@", version))
    launcher.chmod(0o755)
    return launcher


def _copy_packages(root: Path, requirements: Iterable[str]) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = root / "lib" / version / "site-packages"
    for name in _find_dependencies(requirements):
        for file in distribution(name).files or ():
            path = file.as_posix()
            is_included = any(fnmatch(path, pattern) for pattern in INCLUDED_ANYWAY)
            if is_included or not any(fnmatch(path, pattern) for pattern in EXCLUDED_FILES):
                source = Path(str(file.locate()))
                if source.is_file():
                    (site / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, site / file)
    source = Path(frazil.__file__).parent

    def find_excluded(folder: str, names: list[str]) -> set[str]:
        return set(FRAZIL_EXCLUDED) & set(names) if Path(folder) == source else set()

    shutil.copytree(source, site / "frazil", ignore=find_excluded)


def _find_dependencies(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the names of the distributions and all their dependencies. Raises MissingExtra."""
    from packaging.requirements import Requirement  # of the extra `spark`

    queue = [Requirement(text) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while queue:
        wanted = queue.pop()
        name = wanted.name.lower().replace("_", "-")
        new = {(name, extra) for extra in ("", *wanted.extras)} - seen
        if not new:
            continue
        try:
            needs = distribution(name).requires or ()
        except PackageNotFoundError:
            problem = f"the Python package {name}, which executors need, is not installed"
            raise MissingExtra(problem, name=name) from None
        if (name, "") in new:
            yield name
        seen |= new
        for extra in ("", *wanted.extras):
            for need in map(Requirement, needs):
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    queue.append(need)


def _compile_and_check(root: Path, python: Path) -> None:
    """Compile the package's loops, and check that it can stage records with the executors' PySpark."""
    import pyspark  # an extra

    (root / PREFIX_FOLDER).mkdir(parents=True)
    archives = map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(archives), "HOME": str(root.parent)}
    for arguments in (["-m", "frazil.ingest.precompile"], ["-c", SMOKE_TEST]):
        done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode or "Traceback" in done.stderr:
            raise EnvironmentUnusable(f"the created package cannot stage records: {done.stderr[-2000:]}")


def _make_root_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make root the owner: an executor that runs as root trusts only files that root alone can write."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode &= ~0o022
    return entry
