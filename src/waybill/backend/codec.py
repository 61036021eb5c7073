"""Encrypts and decrypts payloads for tools without keys: a codec server (ojs-encryption section 9).

`waybill.ojs.middleware.encryption` makes payloads from arguments: version (1), nonce (12), ciphertext, tag (16).
Version 2 is bound to the id of its job; version 1, that of the specification, is not.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form

ENCRYPTED: Final = "binary/encrypted"
PLAIN: Final = "json/plain"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
UNBOUND: Final = b"\x01"
BOUND_TO_ID: Final = b"\x02"


class KeyFile(msgspec.Struct):
    """The JSON of a key file: keys of 32 bytes, base64, by id. New payloads use the key `present`."""

    present: str
    keys: dict[str, str]


class InvalidCodecKeys(ValueError):
    """The key file is invalid."""


class Codec:
    """Encrypts and decrypts payloads."""

    def __init__(self, keys: Mapping[str, bytes], present: str) -> None:
        """Raises InvalidCodecKeys for keys of the wrong length, or if the key `present` is missing."""
        if present not in keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise InvalidCodecKeys(f"the present key {present!r} is missing, or a key does not have {KEY_BYTES} bytes")
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._present = present

    def encode(self, payload: object, field: str) -> Form:
        """Encrypt a payload with the present key. Raises RequestRefused."""
        data, metadata = _read(payload, field, PLAIN)
        job_id = metadata.get("job_id")
        nonce = os.urandom(NONCE_BYTES)
        bound_to = job_id.encode() if isinstance(job_id, str) and job_id else None
        sealed = self._ciphers[self._present].encrypt(nonce, data, bound_to)
        made: Form = {"encoding": ENCRYPTED, "encryption_key_id": self._present}
        if bound_to is not None:
            made["job_id"] = job_id
        return _written((UNBOUND if bound_to is None else BOUND_TO_ID) + nonce + sealed, made)

    def decode(self, payload: object, field: str) -> Form:
        """Decrypt a payload. Raises RequestRefused."""
        data, metadata = _read(payload, field, ENCRYPTED)
        key_id, job_id = metadata.get("encryption_key_id"), metadata.get("job_id")
        cipher = self._ciphers.get(key_id) if isinstance(key_id, str) else None
        if cipher is None:
            raise _invalid(f"{field}.metadata.encryption_key_id", "is not a key of this server")
        version, nonce, sealed = data[:1], data[1 : 1 + NONCE_BYTES], data[1 + NONCE_BYTES :]
        if version == BOUND_TO_ID and not (isinstance(job_id, str) and job_id):
            raise _invalid(f"{field}.metadata.job_id", "must be the id of the job that the payload belongs to")
        if version not in {UNBOUND, BOUND_TO_ID}:
            raise _invalid(f"{field}.data", "has an unknown version")
        try:
            clear = cipher.decrypt(nonce, sealed, str(job_id).encode() if version == BOUND_TO_ID else None)
        except (InvalidTag, ValueError):
            raise _invalid(f"{field}.data", "does not belong to this key and this job") from None
        return _written(clear, {"encoding": PLAIN})


def read_codec(path: Path) -> Codec:
    """Read a codec's keys from a file. Raises InvalidCodecKeys, OSError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=KeyFile)
        keys = {name: base64.b64decode(key, validate=True) for name, key in found.keys.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise InvalidCodecKeys(f"{path} is not a file of keys: {error}") from None
    return Codec(keys, found.present)


def _read(payload: object, field: str, encoding: str) -> tuple[bytes, Form]:
    data = payload.get("data") if isinstance(payload, dict) else None
    metadata = payload.get("metadata", {}) if isinstance(payload, dict) else None
    if not isinstance(data, str) or not isinstance(metadata, dict):
        raise _invalid(field, "must be an object with data (base64) and metadata")
    if metadata.get("encoding", encoding) != encoding:
        raise _invalid(f"{field}.metadata.encoding", f"must be {encoding}")
    try:
        return base64.b64decode(data, validate=True), metadata
    except (binascii.Error, ValueError):
        raise _invalid(f"{field}.data", "must be base64") from None


def _written(data: bytes, metadata: Form) -> Form:
    return {"data": base64.b64encode(data).decode(), "metadata": metadata}


def _invalid(field: str, what: str) -> RequestRefused:
    return RequestRefused("validation_error", f"{field}: {what}.", details={"field": field})
