"""The sdist, the wheel that is built from it, and venvs with the wheel, with and without extras. Each is made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class Installed:
    """A venv with the wheel, and an empty folder in which commands run."""

    venv: Path
    folder: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the venv, without the checkout on its path."""
        kept = {
            name: os.environ[name] for name in ("HOME", "LANG", "JAVA_HOME", "XDG_CACHE_HOME") if name in os.environ
        }
        environment = {**kept, "PATH": f"{self.venv / 'bin'}{os.pathsep}{os.environ['PATH']}", **variables}
        return subprocess.run(
            [str(self.venv / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-c", program)


def _uv(*arguments: str) -> None:
    # The cache may be on another device than the test's folder, where hard links fail.
    environment = {**os.environ, "UV_LINK_MODE": "copy"}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run([str(UV), *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it. Return their folder.

    Builds from a copy, because setuptools would include what an earlier build left next to the sources.
    """
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "include" / "frazil", source / "include" / "frazil", ignore=ignored)
    _uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(source / "dist"), str(source))
    return source / "dist"


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    return next(built.glob("frazil-*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel with its base dependencies, in the versions of the lock file."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    _uv("venv", "--python", sys.executable, str(venv))
    python = str(venv / "bin" / "python")
    _uv("pip", "install", "--python", python, "--constraint", str(CHECKOUT / "requirements.txt"), str(wheel))
    return Installed(venv, tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def with_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel with every extra. The packages are those of the checkout's venv, which has all of them."""
    venv = tmp_path_factory.mktemp("with-extras") / "venv"
    _uv("venv", "--python", sys.executable, str(venv))
    _uv("pip", "install", "--python", str(venv / "bin" / "python"), "--no-deps", str(wheel))
    site = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # The path file of the checkout's own editable installation is not read from there.
    (venv / site / "checkout.pth").write_text(f"{Path(sys.prefix) / site}\n")
    return Installed(venv, tmp_path_factory.mktemp("empty"))
