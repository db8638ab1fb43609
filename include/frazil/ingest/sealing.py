"""Hashes, tokenizes and encrypts values with keys that are derived from a stream's secret (HKDF-SHA-256).

Equal strings have equal hashes and tokens in all tables with the same secret. Decrypting a part of a dead letter
requires the coordinates of its record.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Mapping
from functools import cached_property

from frazil.errors import SpecError
from frazil.extras import require_module
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve

MIN_SECRET_CHARACTERS = 16
RESERVED_PREFIX = b"frazil\0"
"""Prefix of the values that replace a record's key, value or header in a dead letter."""
OMITTED = RESERVED_PREFIX + b"omitted"
SEALED = RESERVED_PREFIX + b"sealed1"
"""Prefix of an encrypted part. A nonce of 12 bytes and the output of AES-256-GCM follow."""
NONCE_BYTES = 12


class Sealer:
    def __init__(self, text: str) -> None:
        """`text` is the secret. Raises SpecError if it is too short, and MissingExtra without `cryptography`."""
        require_module("cryptography")
        if len(text) < MIN_SECRET_CHARACTERS:
            raise SpecError(f"sensitive.secret is shorter than {MIN_SECRET_CHARACTERS} characters; use a longer one")
        self._text = text.encode()

    @classmethod
    def of(cls, reference: str, environment: Mapping[str, str]) -> Sealer:
        try:
            return cls(resolve(reference, environment))
        except SpecError as error:
            raise SpecError(f"sensitive.secret: {error}") from None

    def _derive_key(self, purpose: str, size: int) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256  # from an optional package
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # from an optional package

        return HKDF(SHA256(), length=size, salt=None, info=f"frazil {purpose}".encode()).derive(self._text)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that differs for another secret, for comparisons. The secret cannot be derived from it."""
        return self._derive_key("fingerprint", 4).hex()

    @cached_property
    def _hash_key(self) -> bytes:
        return self._derive_key("hash", 32)

    @cached_property
    def _siv(self):  # type: ignore[no-untyped-def]  # a class of an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # from an optional package

        return AESSIV(self._derive_key("tokenize", 64))

    @cached_property
    def _gcm(self):  # type: ignore[no-untyped-def]  # a class of an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # from an optional package

        return AESGCM(self._derive_key("dead letters", 32))

    def hash_text(self, text: str) -> str:
        return hmac.digest(self._hash_key, text.encode(), "sha256").hex()

    def tokenize(self, text: str) -> str:
        """Encrypt the text with AES-SIV, and return it in URL-safe base64 without padding."""
        # AES-SIV does not accept empty strings, so every string gets a prefix.
        return base64.urlsafe_b64encode(self._siv.encrypt(b"t" + text.encode(), None)).decode().rstrip("=")

    def decrypt_token(self, token: str) -> str:
        """Decrypt a token. Raises ValueError if the token was made with another secret."""
        from cryptography.exceptions import InvalidTag  # from an optional package

        try:
            data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            text: bytes = self._siv.decrypt(data, None)
        except (InvalidTag, binascii.Error, ValueError):
            raise ValueError("is not a token of this secret") from None
        return text[1:].decode()

    def encrypt(self, value: bytes, part_name: str) -> bytes:
        """Encrypt a value. Decryption requires the same `part_name` (see `name_part`)."""
        nonce = os.urandom(NONCE_BYTES)
        return SEALED + nonce + bytes(self._gcm.encrypt(nonce, value, part_name.encode()))

    def decrypt(self, sealed: bytes, part_name: str) -> bytes:
        """Decrypt the result of `encrypt`. Raises SpecError for a different secret or `part_name`."""
        from cryptography.exceptions import InvalidTag  # from an optional package

        nonce, data = sealed[len(SEALED) : len(SEALED) + NONCE_BYTES], sealed[len(SEALED) + NONCE_BYTES :]
        try:
            return bytes(self._gcm.decrypt(nonce, data, part_name.encode()))
        except (InvalidTag, ValueError):
            raise SpecError(
                f"the dead letter of {part_name} was not encrypted with the current sensitive.secret; "
                "set the secret of that time while you read or replay such dead letters"
            ) from None


class Unsealer:
    def __init__(self, reference: str | None, *, sensitive: bool) -> None:
        """`reference` is resolved at the first encrypted part. Unless `sensitive`, parts are returned unchanged."""
        self._reference, self._sensitive = reference, sensitive
        self._sealer: Sealer | None = None

    def __call__(self, value: bytes | None, part_name: str) -> bytes | None:
        """Decrypt an encrypted part. Return other parts unchanged. Raises SpecError for a wrong secret."""
        if not self._sensitive or value is None or not value.startswith(SEALED):
            return value
        if self._reference is None:
            raise SpecError(f"the dead letter of {part_name} is encrypted: declare sensitive.secret to read it")
        self._sealer = self._sealer or Sealer.of(self._reference, os.environ)
        return self._sealer.decrypt(value, part_name)


def unsealer_of(spec: StreamSpec) -> Unsealer:
    return Unsealer(spec.sensitive.secret if spec.sensitive else None, sensitive=spec.sensitive is not None)


def check_secret(spec: StreamSpec) -> None:
    if spec.sensitive and spec.sensitive.needs_secret and spec.sensitive.secret:
        Sealer.of(spec.sensitive.secret, os.environ)


def name_part(topic: str, partition: int, offset: int, part: str) -> str:
    """Return the coordinates of a record's part as text. `part` is `key`, `value` or a `header_part`."""
    return f"{topic}[{partition}]@{offset} {part}"


def header_part(name: str) -> str:
    return f"header {name}"
