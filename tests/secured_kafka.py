"""A broker with one listener per security protocol, the certificates, and a server that issues OAuth tokens."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from frazil.dev import process
from frazil.dev.kafka import EmbeddedKafka

USER, PASSWORD = "reader", "reader-password"
_MODULES = "org.apache.kafka.common.security"
_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    **dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    ),
)
_PROTOCOLS = {
    "SASL": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "TLS": "SSL",
    "MUTUAL": "SSL",
}
"""Listeners by name."""


class Authority:
    """A certificate authority, and the certificates that it has signed, as PEM files in one folder.

    With `strict=False`, they have none of the extensions that Python 3.13 requires.
    """

    def __init__(self, folder: Path, *, strict: bool = True) -> None:
        folder.mkdir(parents=True)
        self._folder, self._strict = folder, strict
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority")
        self.certificate = folder / "authority.pem"
        self.certificate.write_bytes(self._sign(self._name, self._key))

    def issue(self, name: str, *, host: str = process.LOOPBACK, valid_days: int = 1) -> Path:
        """Write a private key and its certificate to one file. With `valid_days=-1`, the certificate has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._folder / f"{name}.pem"
        encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(encoded + self._sign(_named(name), key, host=host, valid_days=valid_days))
        return path

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, host: str | None = None, valid_days: int = 1
    ) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=3)).not_valid_after(now + timedelta(days=valid_days))
        builder = builder.add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        if self._strict:
            keys = x509.SubjectKeyIdentifier.from_public_key, x509.AuthorityKeyIdentifier.from_issuer_public_key
            for identifier, of_key in zip(keys, (key, self._key), strict=True):
                builder = builder.add_extension(identifier(of_key.public_key()), critical=False)
            if host is None:
                builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        if host is not None:
            of_host = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([of_host]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


class SecuredKafka:
    """The broker. `address` returns the address of one listener."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "certificates")
        self.client_certificate = self.authority.issue("client")
        self._ports = {name: process.choose_free_port() for name in _PROTOCOLS}
        self.broker = EmbeddedKafka(folder / "kafka", listeners=self._ports, settings=self._settings())

    def address(self, listener: str) -> str:
        return f"{process.LOOPBACK}:{self._ports[listener]}"

    def _settings(self) -> dict[str, str]:
        """Return the broker's settings. The broker and the tests' setup connect in plain text, as a super user."""
        trusted = str(self.authority.certificate)
        settings = {
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}"
                for name, protocol in {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **_PROTOCOLS}.items()
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trusted,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.issue("broker")),
            "listener.name.mutual.ssl.client.auth": "required",
        }
        mechanisms = {
            "PLAIN": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule required;",
            "OAUTHBEARER": f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";',
        }
        for listener in ("sasl", "sasltls"):
            settings[f"listener.name.{listener}.sasl.enabled.mechanisms"] = ",".join(mechanisms)
            for mechanism, module in mechanisms.items():
                settings[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = module
        return settings

    def add_scram_user(self) -> None:
        admin = self.broker.admin()
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([made]).values():
            done.result(30)

    def keep_from_us(self, topic: str, *, may_describe: bool) -> None:
        """Allow only another user to read the topic. Our user may or may not describe it."""
        allowed = [("other", AclOperation.READ), *([(USER, AclOperation.DESCRIBE)] if may_describe else [])]
        rules = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for user, operation in allowed
        ]
        admin = self.broker.admin()  # it must outlive its answers
        for done in admin.create_acls(rules).values():
            done.result(30)


class TokenServer:
    """Issues OAuth tokens for librdkafka's method `oidc`. They are unsigned; Kafka accepts this by default.

    The client with the id `late` gets an expired token; the client `stranger` gets none.
    """

    def __init__(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                given = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                client = unquote(given.partition(":")[0])
                outer.requested.append(client)
                status = 401 if client == "stranger" else 200
                said = {"error": "invalid_client"} if status == 401 else {"access_token": _token(client)}
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.requested: list[str] = []
        self._server = HTTPServer((process.LOOPBACK, 0), Handler)
        self.url = f"http://{process.LOOPBACK}:{self._server.server_port}/token"

    @contextmanager
    def serving(self) -> Iterator[TokenServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


made_tokens: list[str] = []
"""The configurations with which `make_token` was called, in this process."""


def make_token(config: str) -> tuple[str, float]:
    """A user's function for `sasl.oauthbearer.method`. `config` is the lifetime (s); other text makes it fail."""
    made_tokens.append(config)
    if not config.isdigit():
        raise RuntimeError(f"the vault is sealed: {config}")
    return _token("frazil", lifetime_s=int(config)), time.time() + int(config)


def _token(client: str, *, lifetime_s: int = 600) -> str:
    now = int(time.time())
    claims = {"sub": USER, "iat": now - 10, "exp": now - 5 if client == "late" else now + lifetime_s}
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def _encoded(part: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
