"""Run the Dockerfile without a container engine: `sudo python3.11 deploy/build_in_chroot.py FOLDER`.

FOLDER becomes the image's root: a clean Debian from debootstrap, with the base image's Python 3.11. Each instruction
runs with the user and the environment that the Dockerfile has set before it. Then `airflow version` and
`frazil validate` run through the entry point. Exits with 0 if all of this worked.

It needs root, debootstrap, 5 GB and a network. Layers, image metadata and base images other than Debian's are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SUITE, PACKAGES = "bookworm", ("ca-certificates", "python3.11", "python3.11-venv")
PASSED_ON = re.compile(r"^(https?_proxy|no_proxy|PIP_\w+|SSL_CERT_FILE|FRAZIL_IVY_SETTINGS)$", re.IGNORECASE)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
CHECKS = (["airflow", "version"], ["frazil", "validate", "--streams", "include/streams"])


@dataclass
class Image:
    """The state of the build: the root folder, and the settings of earlier instructions."""

    root: Path
    user: str = "root"
    folder: str = "/"
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    )
    arguments: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)

    def apply(self, instruction: str, rest: str) -> None:
        if instruction == "ARG":
            name, _, default = rest.partition("=")
            self.arguments[name] = default
        elif instruction == "USER":
            self.user = rest
        elif instruction == "ENV":
            for name, value in (word.split("=", 1) for word in shlex.split(rest)):
                self.environment[name] = re.sub(r"\$\{(\w+)\}", lambda m: self.environment.get(m[1], ""), value)
        elif instruction == "WORKDIR":
            self.folder = rest
            (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            self.copy(rest.split())
        elif instruction == "RUN":
            self.run(["/bin/sh", "-c", rest])
        elif instruction == "ENTRYPOINT":
            self.entrypoint = json.loads(rest)
        elif instruction not in {"FROM", "CMD"}:
            raise SystemExit(f"the Dockerfile has {instruction}, which this script does not know")

    def copy(self, words: list[str]) -> None:
        options = [word for word in words if word.startswith("--")]
        *sources, target = [word for word in words if not word.startswith("--")]
        owner = next((option.partition("=")[2] for option in options if option.startswith("--chown=")), "root")
        sent = (CHECKOUT / ".dockerignore").read_text().split()
        for source in sources:
            if f"!{Path(source).parts[0]}" not in sent:
                raise SystemExit(f"COPY {source}: .dockerignore leaves it out")
            to = self.root / self.folder.lstrip("/") / target
            if (CHECKOUT / source).is_dir():
                shutil.copytree(CHECKOUT / source, to, ignore=LEFT_OUT, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(CHECKOUT / source, to / Path(source).name if target.endswith("/") else to)
        self._in_root("root", ["chown", "-R", f"{owner}:", self.folder])

    def run(self, command: list[str]) -> None:
        self._in_root(self.user, ["/bin/sh", "-c", f'cd "{self.folder}" && exec "$@"', "sh", *command])

    def _in_root(self, user: str, command: list[str]) -> None:
        home = "/root" if user == "root" else f"/home/{user}"
        passed_on = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        environment = {**passed_on, "HOME": home, **self.environment}
        variables = [f"{name}={value}" for name, value in environment.items()]
        subprocess.run(
            ["chroot", f"--userspec={user}:{user}", str(self.root), "env", "-i", *variables, *command], check=True
        )


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the Dockerfile's instructions with their arguments. Continued lines are joined."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name.upper(), " ".join(rest.split()) if name.upper() != "RUN" else rest.strip()


def make_base(root: Path) -> None:
    """Make a Debian root with Python 3.11 as `python`."""
    if not (root / "etc" / "debian_version").exists():
        subprocess.run(["debootstrap", "--variant=minbase", SUITE, str(root)], check=True)
    for file in ("resolv.conf", "hosts", "pip.conf"):
        if Path("/etc", file).exists():
            shutil.copy(Path("/etc", file), root / "etc" / file)
    apt = "apt-get update -q && apt-get install -q --yes --no-install-recommends " + " ".join(PACKAGES)
    Image(root).run(["/bin/sh", "-c", apt])
    # This machine's own certificate authorities, which its way to a package index may need.
    authorities = "usr/local/share/ca-certificates"
    shutil.copytree(Path("/", authorities), root / authorities, dirs_exist_ok=True)
    Image(root).run(["update-ca-certificates"])
    python = root / "usr" / "local" / "bin" / "python"
    if not python.is_symlink():
        python.symlink_to("/usr/bin/python3.11")


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Mount the kernel's folders: Java reads /proc, and Python's locks need /dev/shm."""
    places = {"/proc": root / "proc", "/dev": root / "dev"}
    for source, place in places.items():
        subprocess.run(["mount", "--rbind", "--make-rslave", source, str(place)], check=True)
    try:
        yield
    finally:
        for place in places.values():
            subprocess.run(["umount", "--recursive", "--lazy", str(place)], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    root = parser.parse_args().folder.absolute()
    if os.geteuid() != 0:
        sys.exit("chroot needs root")
    root.mkdir(parents=True, exist_ok=True)
    make_base(root)
    image = Image(root)
    with mounted(root):
        for instruction, rest in instructions((CHECKOUT / "Dockerfile").read_text()):
            print(f"== {instruction} {rest}", flush=True)
            image.apply(instruction, rest)
        for command in CHECKS:
            print(f"== {' '.join(image.entrypoint + command)}", flush=True)
            image.run(image.entrypoint + command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
