"""Only jars that match the lock file are used. Ivy is real here; the repository is a folder."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from frazil.dev.process import choose_free_port
from frazil.errors import EnvironmentUnusable
from frazil.spark import jars
from frazil.spark.jars import MavenCoordinates
from tests.secured_kafka import Authority

CONTENT = {"org.one:first:1.0": b"the first jar", "org.two:second:2.0": b"the second jar"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror as a company has one: laid out as Maven's, named by an Ivy settings file of its own."""
    root = tmp_path / "mirror"
    for text, content in CONTENT.items():
        jar = mirrored(root, text)
        jar.parent.mkdir(parents=True)
        jar.write_bytes(content)
    settings = tmp_path / "settings.xml"
    pattern = f"{root}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<filesystem name="mirror" m2compatible="true"><artifact pattern="{pattern}"/></filesystem>'
        "</resolvers></ivysettings>"
    )
    monkeypatch.setenv("FRAZIL_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("FRAZIL_JARS", str(tmp_path / "cache"))
    return root


def mirrored(root: Path, text: str) -> Path:
    c = MavenCoordinates.parse(text)
    return root / c.organisation.replace(".", "/") / c.name / c.version / f"{c.name}-{c.version}.jar"


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    lines = [f'"{text} {len(content)} {hashlib.sha256(content).hexdigest()}"' for text, content in CONTENT.items()]
    file = tmp_path / "test.lock"
    file.write_text(f"[both]\njars = [{', '.join(lines)}]\n")
    return file


def test_a_set_of_jars_is_fetched_once_and_then_taken_from_the_cache(repository: Path, lock_file: Path) -> None:
    found = jars.ensure_jars("both", lock_file)
    assert [path.read_bytes() for path in found] == list(CONTENT.values())
    for text in CONTENT:
        mirrored(repository, text).unlink()
    assert jars.ensure_jars("both", lock_file) == found


def test_a_changed_cached_jar_is_reported_deleted_and_fetched_again(
    repository: Path, lock_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.is_dir()
    first, second = jars.ensure_jars("both", lock_file)
    first.write_bytes(b"half a downl")
    assert jars.ensure_jars("both", lock_file) == [first, second]
    assert first.read_bytes() == CONTENT["org.one:first:1.0"]
    assert f"{first} does not have the SHA-256" in capsys.readouterr().err


def test_a_download_that_does_not_match_its_pin_is_refused_and_not_kept(repository: Path, lock_file: Path) -> None:
    mirrored(repository, "org.one:first:1.0").write_bytes(b"something else")
    with pytest.raises(EnvironmentUnusable, match=r"the downloaded org.one:first:1.0 has the SHA-256 .* deleted"):
        jars.ensure_jars("both", lock_file)
    assert not list(jars.cache_folder().rglob("first*.jar"))
    mirrored(repository, "org.one:first:1.0").write_bytes(CONTENT["org.one:first:1.0"])
    assert len(jars.ensure_jars("both", lock_file)) == 2


def test_an_unpublished_jar_is_reported_by_name_in_one_sentence(repository: Path, lock_file: Path) -> None:
    mirrored(repository, "org.two:second:2.0").unlink()
    with pytest.raises(EnvironmentUnusable, match=r"org.two:second:2.0 was not found.*FRAZIL_IVY_SETTINGS"):
        jars.ensure_jars("both", lock_file)


def _point_ivy_at(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = folder / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="other"/><resolvers>'
        f'<ibiblio name="other" m2compatible="true" root="{url}"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("FRAZIL_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("FRAZIL_JARS", str(folder / "cache"))


def test_an_unresponsive_network_is_reported_in_one_sentence(
    tmp_path: Path, lock_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _point_ivy_at(f"http://127.0.0.1:{choose_free_port()}/", tmp_path, monkeypatch)
    with pytest.raises(EnvironmentUnusable, match="the network does not respond") as raised:
        jars.ensure_jars("both", lock_file)
    assert "\n" not in str(raised.value)


def test_a_certificate_that_java_does_not_trust_is_named_as_the_cause(
    tmp_path: Path, lock_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path / "authority").issue("proxy"))
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _point_ivy_at(f"https://127.0.0.1:{server.server_port}/", tmp_path, monkeypatch)
        with pytest.raises(EnvironmentUnusable, match=r"does not trust the server's certificate.*keytool -importcert"):
            jars.ensure_jars("both", lock_file)
        server.shutdown()


def test_progress_shows_the_number_of_jars_and_megabytes(
    repository: Path, lock_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.is_dir()
    jars.ensure_jars("both", lock_file)
    assert "downloading 2 jars of both (0 MB)" in capsys.readouterr().err


def test_two_processes_that_fetch_at_once_both_get_the_jars(repository: Path, lock_file: Path) -> None:
    assert repository.is_dir()
    program = (
        "import sys; from pathlib import Path; from frazil.spark import jars;"
        "print(len(jars.ensure_jars('both', Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", program, str(lock_file)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in both] == ["2", "2"]
