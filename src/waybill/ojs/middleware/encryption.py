"""Encrypts the arguments of jobs with AES-256-GCM; only those who hold the keys can read them (ojs-encryption.md).

    args of the envelope:  [{"ojs_encoded": true, "encoding": "binary/encrypted", "data": base64 of
                             version (1) | nonce (12) | ciphertext | tag (16)}]
    meta of the envelope:  "ojs.codec.encodings": ["binary/encrypted"], "ojs.codec.key_id": "2026-11"

The job's id is the associated data, so arguments that are moved into another job cannot be decrypted. That is version 2
of the payload; version 1, of the specification, has no associated data, and is only accepted if allowed. Retries, dead
letters and events contain the encrypted envelope, so no plain text ever reaches the broker.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Final

import msgspec

from waybill.ojs.errors import FailJob, JobError
from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, Enqueue, JobMiddleware
from waybill.ojs.spec.envelope import Envelope

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as error:
    raise ImportError("encryption needs the package cryptography: pip install 'waybill-amqp[encryption]'") from error

ENCODING: Final = "binary/encrypted"
ENCODINGS: Final = "ojs.codec.encodings"
KEY_ID: Final = "ojs.codec.key_id"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
UNBOUND: Final = 1
BOUND_TO_ID: Final = 2


class DecryptionFailed(FailJob):
    """The arguments of a job cannot be decrypted with the key that it names; a retry would not help."""

    def __init__(self, message: str) -> None:
        """The job goes to the dead letter queue, still encrypted."""
        super().__init__(message, type="DecryptionFailed")


class Encryption(JobMiddleware):
    """Encrypts with the present key, decrypts with any. Put it innermost, so other middleware sees plain arguments.

    To rotate keys: add the new key to all workers, then make it the present key of the clients, and remove an old key
    when no job needs it any more.
    """

    def __init__(self, keys: Mapping[str, bytes], present: str, *, allow_unbound: bool = False) -> None:
        """`keys` are 32 random bytes each, by key id; new jobs are encrypted with the key `present`.

        `allow_unbound` reads payloads of other implementations, which are not bound to their job. Raises ValueError for
        a key of the wrong length, or if the key `present` is missing.
        """
        if present not in keys:
            raise ValueError(f"the present key {present!r} is missing")
        for name, key in keys.items():
            if len(key) != KEY_BYTES:
                raise ValueError(f"key {name!r} has {len(key)} bytes, AES-256 needs {KEY_BYTES}")
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._present = present
        self._allow_unbound = allow_unbound

    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        """Encrypt the arguments for the broker; the caller gets the job with plain arguments."""
        clear_args, clear_meta = job.args, job.meta
        job.args = [self._encrypt(job)]
        job.meta = {**clear_meta, ENCODINGS: [ENCODING], KEY_ID: self._present}
        try:
            return await call(job)
        finally:
            job.args, job.meta = clear_args, clear_meta

    async def execute(self, job: JobContext, call: Call) -> object:
        """Decrypt the arguments for the handler; unencrypted arguments are not changed."""
        if is_encrypted(job.envelope):
            job.envelope.args = self.decrypt(job.envelope)
        return await call(job)

    def decrypt(self, job: Envelope) -> list[object]:
        """Return the arguments of an encrypted job, for tools.

        Raises DecryptionFailed, or JobError for an unknown key, which can be retried.
        """
        key_id = job.meta.get(KEY_ID)
        cipher = self._ciphers.get(key_id) if isinstance(key_id, str) else None
        if cipher is None:
            raise JobError(f"unknown key {key_id!r}", type="UnknownKey")
        payload = _payload(job)
        version, nonce, sealed = payload[:1], payload[1 : 1 + NONCE_BYTES], payload[1 + NONCE_BYTES :]
        bound = version == bytes([BOUND_TO_ID])
        if not bound and not (self._allow_unbound and version == bytes([UNBOUND])):
            raise DecryptionFailed(f"encrypted arguments of version {version.hex()} are not supported")
        try:
            text = cipher.decrypt(nonce, sealed, job.id.encode() if bound else None)
            return msgspec.json.decode(text, type=list[object])
        except (InvalidTag, ValueError, msgspec.DecodeError) as error:
            raise DecryptionFailed(f"the arguments do not belong to key {key_id!r} and job {job.id}") from error

    def _encrypt(self, job: Envelope) -> dict[str, object]:
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[self._present].encrypt(nonce, msgspec.json.encode(job.args), job.id.encode())
        data = base64.b64encode(bytes([BOUND_TO_ID]) + nonce + sealed).decode()
        return {"ojs_encoded": True, "encoding": ENCODING, "data": data}


def is_encrypted(job: Envelope) -> bool:
    """Whether the arguments of a job are encrypted."""
    return len(job.args) == 1 and isinstance(job.args[0], dict) and job.args[0].get("ojs_encoded") is True


def _payload(job: Envelope) -> bytes:
    argument = job.args[0]
    fields: dict[str, object] = argument if isinstance(argument, dict) else {}
    data = fields.get("data")
    if fields.get("encoding") != ENCODING or not isinstance(data, str):
        raise DecryptionFailed(f"the arguments are encoded as {fields.get('encoding')!r}, not {ENCODING}")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DecryptionFailed("the encrypted arguments are not base64") from error
