"""Provides the JVM jars that frazil needs. `jars.lock` pins them by SHA-256; each user has a cache.

    $ python -m frazil.spark.jars fetch [SET…]   download missing jars (of `kafka spark` by default), print all paths
    $ python -m frazil.spark.jars lock           resolve JAR_SETS again and rewrite the lock file (maintainers)

The cache is `$FRAZIL_JARS`, by default `${XDG_CACHE_HOME:-~/.cache}/frazil/jars`. All checkouts share it.
`FRAZIL_JARS_LOCK` can contain the path of another lock file, for example one with another version of Iceberg's runtime.
PySpark's Apache Ivy downloads the jars. `FRAZIL_IVY_SETTINGS` names other Ivy settings.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from frazil import home
from frazil.errors import EnvironmentUnusable, FrazilError
from frazil.spark.java import require_java, require_pyspark

LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, slots=True)
class RootModules:
    """The Maven modules of a set of jars. With `transitive`, the set includes their run-time dependencies."""

    coordinates: tuple[str, ...]
    transitive: bool


JAR_SETS = {
    # The broker logs through SLF4J 1.7, whose binding Kafka leaves to its distribution.
    "kafka": RootModules(
        ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"), transitive=True
    ),
    # Both contain their dependencies, or find them in Spark.
    "spark": RootModules(
        ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.54.1.0"),
        transitive=False,
    ),
    # Needed by some catalogs: see `ensure_catalog_jars`.
    "s3": RootModules(("org.apache.iceberg:iceberg-aws-bundle:1.12.0",), transitive=False),
    "postgres": RootModules(("org.postgresql:postgresql:42.7.11",), transitive=False),
    # An archive of the whole server: see frazil.dev.kafka.
    "registry": RootModules(("io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all",), transitive=False),
    # Iceberg's newest runtime for Spark 4.0. With Spark 4.0, these sets replace those without a version.
    "spark-4.0": RootModules(
        ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0", "org.xerial:sqlite-jdbc:3.54.1.0"),
        transitive=False,
    ),
    "s3-4.0": RootModules(("org.apache.iceberg:iceberg-aws-bundle:1.11.0",), transitive=False),
}
"""The sets of jars by name. Sets that are not in `DEFAULT_SETS` are for catalogs."""
DEFAULT_SETS = ("kafka", "spark")
_POLL_INTERVAL_S = 0.3
_NOT_FOUND_PATTERN = re.compile(r"(?:module not found:|\[FAILED\s*\]) ([^\s!:]+)")
_UNTRUSTED_PATTERN = re.compile(r"PKIX path|SSLHandshakeException")
_NO_CONNECTION_PATTERN = re.compile(r"Server access error|UnknownHostException|ConnectException", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class MavenCoordinates:
    """A published file, by default a jar: `organisation:name:version[:extension:classifier]`."""

    organisation: str
    name: str
    version: str
    extension: str = "jar"
    classifier: str = ""

    @classmethod
    def parse(cls, text: str) -> MavenCoordinates:
        return cls(*text.split(":"))

    def __str__(self) -> str:
        file = f":{self.extension}:{self.classifier}" if self.classifier else ""
        return f"{self.organisation}:{self.name}:{self.version}{file}"

    @property
    def path(self) -> Path:
        classifier = f"-{self.classifier}" if self.classifier else ""
        file = f"{self.name}-{self.version}{classifier}.{self.extension}"
        return Path(self.organisation, self.name, self.version, file)

    @classmethod
    def from_path(cls, path: Path) -> MavenCoordinates:
        organisation, name, version = path.parts[-4:-1]
        classifier, _, extension = path.name.removeprefix(f"{name}-{version}").partition(".")
        return cls(organisation, name, version, extension, classifier.removeprefix("-"))


@dataclass(frozen=True, slots=True, order=True)
class LockedJar:
    coordinates: MavenCoordinates
    bytes: int
    sha256: str

    @classmethod
    def parse(cls, line: str) -> LockedJar:
        coordinates, size, sha256 = line.split()
        return cls(MavenCoordinates.parse(coordinates), int(size), sha256)

    def __str__(self) -> str:
        return f"{self.coordinates} {self.bytes} {self.sha256}"


def installed_variant(set_name: str, sets: Container[str] = JAR_SETS) -> str:
    """Return the set's variant for the installed Spark, such as `spark-4.0`, if `sets` has it; otherwise `set_name`."""
    try:
        minor = ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return set_name
    return f"{set_name}-{minor}" if f"{set_name}-{minor}" in sets else set_name


def load_locked(set_name: str, lock_file: Path | None = None) -> tuple[LockedJar, ...]:
    """Return a set's jars for the installed Spark. Raises EnvironmentUnusable without the lock file or the set."""
    path = lock_file or Path(os.environ.get("FRAZIL_JARS_LOCK") or LOCK_FILE)
    try:
        sets = tomllib.loads(path.read_text())
    except OSError as error:
        problem = f"FRAZIL_JARS_LOCK is {path}, which cannot be read: {error}; correct or unset it."
        raise EnvironmentUnusable(problem) from error
    if set_name not in sets:
        raise EnvironmentUnusable(f"{path.name} has no set of jars {set_name!r}; available sets: {', '.join(sets)}.")
    return tuple(LockedJar.parse(line) for line in sets[installed_variant(set_name, sets)]["jars"])


def cache_folder() -> Path:
    folder = os.environ.get("FRAZIL_JARS")
    return Path(folder).expanduser().absolute() if folder else home.cache_folder() / "jars"


def ensure_jars(set_name: str, lock_file: Path | None = None) -> list[Path]:
    """Return the paths of a set's jars; downloads missing jars and checks SHA-256. Raises EnvironmentUnusable."""
    jars = load_locked(set_name, lock_file)
    folder = cache_folder()
    if _find_missing(jars, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(folder):
            if missing := _find_missing(jars, folder):
                _download(set_name, missing, folder)
    return [folder / jar.coordinates.path for jar in jars]


def ensure_catalog_jars(*catalogs: str | None) -> list[Path]:
    """Return the paths of the jars for these catalogs, as `ensure_jars` does; None means the default catalog."""
    from frazil.table.catalogs import catalog_config  # it loads PyIceberg, which the commands above do not need
    from frazil.table.spark_catalog import needed_jar_sets

    sets = dict.fromkeys(each for name in catalogs for each in needed_jar_sets(catalog_config(name).properties))
    return [jar for name in sets for jar in ensure_jars(name)]


def _find_missing(jars: Sequence[LockedJar], folder: Path) -> list[LockedJar]:
    """Return the jars to download. A cached jar with a wrong SHA-256 is reported and deleted first."""
    missing = []
    for jar in jars:
        path = folder / jar.coordinates.path
        if not path.is_file():
            missing.append(jar)
        elif _sha256(path) != jar.sha256:
            text = f"{path} does not have the SHA-256 in {LOCK_FILE.name}. It was deleted and is downloaded again.\n"
            _write_to_stderr(text)
            path.unlink(missing_ok=True)
            missing.append(jar)
    return missing


def _download(set_name: str, missing: Sequence[LockedJar], folder: Path) -> None:
    cache = folder / ".ivy"
    wanted_mb = sum(jar.bytes for jar in missing) / 1e6
    progress = _Progress(set_name, len(missing), wanted_mb, cache)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        try:
            download_jars([jar.coordinates for jar in missing], to=Path(temporary), cache=cache, watch=progress.update)
        finally:
            progress.end()
        for jar in missing:
            _move_to_cache(jar, Path(temporary) / jar.coordinates.path, folder=folder, ivy_cache=cache)
    shutil.rmtree(cache, ignore_errors=True)


def _move_to_cache(jar: LockedJar, fetched: Path, *, folder: Path, ivy_cache: Path) -> None:
    if not fetched.is_file():
        text = f"{jar.coordinates} was not downloaded; see {ivy_cache / 'ivy.log'} and run the command again."
        raise EnvironmentUnusable(text)
    actual = _sha256(fetched)
    if actual != jar.sha256:
        shutil.rmtree(ivy_cache, ignore_errors=True)
        raise EnvironmentUnusable(
            f"the downloaded {jar.coordinates} has the SHA-256 {actual}, but {LOCK_FILE.name} pins {jar.sha256}: the "
            f"file was deleted. Run the command again; if the error persists, your mirror serves another file."
        )
    target = folder / jar.coordinates.path
    target.parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(target)


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _write_to_stderr("another process is downloading jars; waiting for it …\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Progress:
    def __init__(self, set_name: str, jars: int, mb: float, cache: Path) -> None:
        self._what, self._jars, self._mb, self._cache = f"jars of {set_name}", jars, mb, cache
        self._terminal = sys.stderr.isatty()
        self._last = ""
        _write_to_stderr(f"downloading {jars} {self._what} ({mb:.0f} MB)\n")

    def update(self) -> None:
        files = [f for f in self._cache.rglob("*") if f.suffix in {".jar", ".gz", ".part"}]
        downloaded = sum(f.suffix != ".part" for f in files)
        mb = sum(f.stat().st_size for f in files if f.exists()) / 1e6
        line = f"  {min(downloaded, self._jars)} of {self._jars} {self._what}, {mb:.0f} of {self._mb:.0f} MB"
        if self._terminal and line != self._last:
            _write_to_stderr(f"\r{line}\033[K")
        elif downloaded // 10 != (int(self._last.split(maxsplit=1)[0]) if self._last else 0) // 10:
            _write_to_stderr(f"{line}\n")
        self._last = line

    def end(self) -> None:
        self.update()
        if self._terminal:
            _write_to_stderr("\n")


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_lock_file(lock_file: Path = LOCK_FILE, roots_of: Mapping[str, RootModules] = JAR_SETS) -> None:
    written = ["# Written by `python -m frazil.spark.jars lock` from JAR_SETS in jars.py: coordinates, bytes, SHA-256."]
    with tempfile.TemporaryDirectory() as temporary:
        for name, roots in roots_of.items():
            folder = Path(temporary) / name
            coordinates = [MavenCoordinates.parse(text) for text in roots.coordinates]
            download_jars(coordinates, to=folder, cache=Path(temporary) / "cache", transitive=roots.transitive)
            files = [path for path in folder.rglob("*") if path.is_file()]
            jars = sorted(LockedJar(MavenCoordinates.from_path(f), f.stat().st_size, _sha256(f)) for f in files)
            written += ["", f'["{name}"]', "jars = [", *(f'  "{jar}",' for jar in jars), "]"]
    lock_file.write_text("\n".join(written) + "\n")


def download_jars(
    coordinates: Sequence[MavenCoordinates],
    *,
    to: Path,
    cache: Path,
    transitive: bool = False,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Download jars into the folder `to`, each to its `MavenCoordinates.path`. `cache` keeps the files of an
    interrupted call. With `transitive`, run-time dependencies are downloaded, too. `watch` is called about three times
    a second. Raises EnvironmentUnusable if a jar does not exist or the network does not respond.
    """
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / "ivy.log"
    descriptor = cache / f"ivy-{os.getpid()}.xml"
    descriptor.write_text(_ivy_descriptor(coordinates, transitive=transitive))
    command = _ivy_command(descriptor, to=to, cache=cache, transitive=transitive)
    try:
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                while process.poll() is None:
                    watch()
                    time.sleep(_POLL_INTERVAL_S)
            except BaseException:
                process.kill()
                raise
    finally:
        descriptor.unlink()
    if process.returncode:
        raise EnvironmentUnusable(_failure_message(log))


def _ivy_command(descriptor: Path, *, to: Path, cache: Path, transitive: bool) -> list[str]:
    settings = os.environ.get("FRAZIL_IVY_SETTINGS") or str(Path(__file__).with_name("ivy-settings.xml"))
    if not Path(settings).is_file():
        raise EnvironmentUnusable(f"FRAZIL_IVY_SETTINGS is {settings}, which is not a file; correct or unset it.")
    java = require_java()
    require_pyspark()
    spec = find_spec("pyspark")
    jars = list(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise EnvironmentUnusable("PySpark is installed without its Ivy jar: reinstall it.")
    return [
        str(java),
        f"-Divy.default.ivy.user.dir={cache}",
        f"-Dfrazil.poms={str(transitive).lower()}",
        *("-jar", str(jars[0])),
        *("-settings", settings, "-cache", str(cache), "-ivy", str(descriptor)),
        *("-types", "jar", "bundle", "tar.gz"),
        *("-retrieve", f"{to}/[organisation]/[module]/[revision]/[module]-[revision](-[classifier]).[ext]"),
    ]


def _ivy_descriptor(coordinates: Sequence[MavenCoordinates], *, transitive: bool) -> str:
    dependencies = "".join(
        f"\n    <dependency org={quoteattr(c.organisation)} name={quoteattr(c.name)} rev={quoteattr(c.version)}"
        f' conf="default->default" transitive="{str(transitive).lower()}">{_artifact_element(c)}</dependency>'
        for c in coordinates
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/extra">\n'
        '  <info organisation="frazil" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>{dependencies}\n  </dependencies>\n</ivy-module>\n"
    )


def _artifact_element(jar: MavenCoordinates) -> str:
    if not jar.classifier:
        return ""
    kind = quoteattr(jar.extension)
    return f"<artifact name={quoteattr(jar.name)} type={kind} ext={kind} m:classifier={quoteattr(jar.classifier)}/>"


def _failure_message(log: Path) -> str:
    text = log.read_text(errors="replace")
    missing = [coordinates.replace("#", ":").replace(";", ":") for coordinates in _NOT_FOUND_PATTERN.findall(text)]
    if "No space left on device" in text:
        cause = f"the disk of {log.parent} is full"
    elif _UNTRUSTED_PATTERN.search(text):
        cause = (
            "Java does not trust the server's certificate. If a proxy issued it, import the proxy's CA into Java's "
            "truststore (keytool -importcert -cacerts)"
        )
    elif _NO_CONNECTION_PATTERN.search(text):
        cause = "the network does not respond"
    elif missing:
        cause = f"{missing[0]} was not found" + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
    else:
        cause = next((line for line in reversed(text.split("\n")) if line.strip()), "Ivy printed no message").strip()
    return (
        f"cannot download JVM jars: {cause}. Check the network, or set FRAZIL_IVY_SETTINGS to your mirror's Ivy "
        f"settings file, and run the command again; finished downloads are kept. Ivy's log is {log}."
    )


def main(arguments: Sequence[str]) -> int:
    names: tuple[str, ...] = ()
    match arguments:
        case ["lock"]:
            pass
        case ["fetch", *sets]:
            names = tuple(sets) or DEFAULT_SETS
        case _:
            _write_to_stderr(f"{__doc__}\n")
            return 2
    try:
        if not names:
            write_lock_file()
        for name in names:
            print(*ensure_jars(name), sep="\n")
    except FrazilError as error:
        _write_to_stderr(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
