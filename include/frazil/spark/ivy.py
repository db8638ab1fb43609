"""Downloads jars by Maven coordinates with PySpark's Apache Ivy. `FRAZIL_IVY_SETTINGS` names other Ivy settings."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from frazil.errors import EnvironmentUnusable
from frazil.spark.java import require_java, require_pyspark

_POLL_INTERVAL_S = 0.3
_NOT_FOUND_PATTERN = re.compile(r"(?:module not found:|\[FAILED\s*\]) ([^\s!:]+)")
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


def download_jars(
    wanted: Sequence[MavenCoordinates],
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
    descriptor.write_text(_ivy_descriptor(wanted, transitive=transitive))
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


def _ivy_descriptor(wanted: Sequence[MavenCoordinates], *, transitive: bool) -> str:
    dependencies = "".join(
        f"\n    <dependency org={quoteattr(c.organisation)} name={quoteattr(c.name)} rev={quoteattr(c.version)}"
        f' conf="default->default" transitive="{str(transitive).lower()}">{_artifact_element(c)}</dependency>'
        for c in wanted
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/extra">\n'
        '  <info organisation="frazil" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>{dependencies}\n  </dependencies>\n</ivy-module>\n"
    )


def _artifact_element(wanted: MavenCoordinates) -> str:
    if not wanted.classifier:
        return ""
    kind = quoteattr(wanted.extension)
    return (
        f"<artifact name={quoteattr(wanted.name)} type={kind} ext={kind} m:classifier={quoteattr(wanted.classifier)}/>"
    )


def _failure_message(log: Path) -> str:
    text = log.read_text(errors="replace")
    missing = [found.replace("#", ":").replace(";", ":") for found in _NOT_FOUND_PATTERN.findall(text)]
    if "No space left on device" in text:
        cause = f"the disk of {log.parent} is full"
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
