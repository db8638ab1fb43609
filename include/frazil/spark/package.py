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
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import frazil
from frazil.errors import EnvironmentUnusable, MissingExtra
from frazil.ingest.compiled import PREFIX_FOLDER

STORAGES = ("s3", "gcs", "adls")
OTHER_EXTRAS = ("glue", "hive", "lineage", "msk", "postgres", "sensitive", "telemetry", "transform")
"""Extras whose packages are included if this host has them."""
EXCLUDED_FILES = (
    *("*.a", "*.h", "*.pxd", "*.pyx", "*/tests/*", "*/test/*", "../*", "llvmlite/tests/*", "numpy/f2py/*"),
    *("pyarrow/include/*", "pyarrow/src/*", "pyarrow/*flight*", "botocore/data/[!_]*/*.gz"),
)
"""Files that are never loaded, and commands (`../`: outside the folders of packages)."""
INCLUDED_ANYWAY = ("botocore/data/glue/*", "botocore/data/s3/*", "botocore/data/sts/*", "botocore/data/sso*/*")
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
    "sys.exit(daemon.STAGE_MODULE not in sys.modules)"
)


def make_package(target: Path, *, storages: Iterable[str], say: Callable[[str], None]) -> None:
    """Write the archive atomically, and report each step to `say`. Raises MissingExtra and EnvironmentUnusable."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".frazil-package-") as scratch:
        root = Path(scratch) / "root"
        python = _copy_python(root)
        _copy_packages(root, find_packages([*storages, *find_installed(OTHER_EXTRAS)]))
        say("copied Python and packages; compiling the record decoders")
        _compile_and_check(root, python)
        say("packing")
        temporary = Path(scratch) / target.name
        with tarfile.open(temporary, "w:gz", compresslevel=4) as archive:
            archive.add(root, arcname=".", filter=_make_root_owner)
        temporary.replace(target)


def find_installed(extras: Iterable[str]) -> tuple[str, ...]:
    """Return those extras whose packages are installed."""

    def is_installed(extra: str) -> bool:
        try:
            return bool(find_packages([extra]))
        except MissingExtra:
            return False

    return tuple(filter(is_installed, extras))


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


def _copy_packages(root: Path, packages: Iterable[str]) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = root / "lib" / version / "site-packages"
    for name in packages:
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


def find_packages(extras: Iterable[str]) -> list[str]:
    """Return the packages that frazil with these extras needs, without itself. Raises MissingExtra."""
    from packaging.requirements import Requirement  # of the extra `spark`

    queue = [(Requirement(root), root) for root in ("frazil", *(f"frazil[{extra}]" for extra in extras))]
    visited: set[tuple[str, str]] = set()
    while queue:
        requirement, root = queue.pop()
        name = requirement.name.lower().replace("_", "-")
        new = {(name, extra) for extra in ("", *requirement.extras)} - visited
        try:
            needs = distribution(name).requires or () if new else ()
        except PackageNotFoundError:
            problem = f"the Python package {name}, which executors need, is not installed: pip install '{root}'"
            raise MissingExtra(problem, name=name) from None
        visited |= new
        for _, extra in new:
            for need in map(Requirement, needs):
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    queue.append((need, root))
    return sorted({name for name, _ in visited} - {"frazil"})


def _compile_and_check(root: Path, python: Path) -> None:
    """Compile the package's loops, and check that it can stage records with the executors' PySpark."""
    import pyspark  # an extra

    (root / PREFIX_FOLDER).mkdir(parents=True)
    archives = map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(archives), "HOME": str(root.parent)}
    for arguments in (["-m", "frazil.ingest.precompile"], ["-c", SMOKE_TEST]):
        process = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=False)
        if process.returncode or "Traceback" in process.stderr:
            raise EnvironmentUnusable(f"the created package cannot stage records: {process.stderr[-2000:]}")


def _make_root_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make root the owner: an executor that runs as root trusts only files that root alone can write."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode &= ~0o022
    return entry
