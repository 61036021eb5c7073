"""The codec: who has an API key of the role admin sees what is encrypted, without having the keys."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend.codec import Codec, InvalidCodecKeys, read_codec
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.ojs.middleware.encryption import Encryption
from waybill.ojs.spec.envelope import Envelope

KEYS = {"old": os.urandom(32), "new": os.urandom(32)}
JOB_ID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


async def ask(client: Client, path: str, payload: object, status: int = 200, key: str = "admin") -> Any:
    ring = KeyRing([Key(name, name, hash_of(name)) for name in ("admin", "operate")])
    keyed = Client(client.backend, ring)
    headers = {"authorization": f"Bearer {key}"}
    response = await keyed.send("POST", path, {"payloads": [payload]}, **headers)
    found = msgspec.json.decode(response.body)
    assert response.status == status, found
    return found["payloads"][0] if status == 200 else found["error"]


def plain(text: bytes, **metadata: str) -> dict[str, object]:
    return {"data": base64.b64encode(text).decode(), "metadata": {"encoding": "json/plain", **metadata}}


@pytest.fixture
def codec(client: Client) -> Client:
    client.backend.codec = Codec(KEYS, "new")
    return client


@pytest.mark.parametrize("metadata", [{}, {"job_id": JOB_ID}])
async def test_what_is_encoded_is_decoded(codec: Client, metadata: dict[str, str]) -> None:
    sealed = await ask(codec, "/codec/encode", plain(b'{"a":1}', **metadata))
    assert sealed["metadata"] == {"encoding": "binary/encrypted", "encryption_key_id": "new", **metadata}
    assert await ask(codec, "/ojs/v1/codec/decode", sealed) == plain(b'{"a":1}')


async def test_arguments_of_jobs_are_decoded(codec: Client) -> None:
    job = Envelope(id=JOB_ID, type="a.b", args=[{"card": 4242}])
    argument = Encryption(KEYS, "old")._encrypt(job)
    metadata = {"encoding": argument["encoding"], "encryption_key_id": "old", "job_id": JOB_ID}
    found = await ask(codec, "/codec/decode", {"data": argument["data"], "metadata": metadata})
    assert base64.b64decode(found["data"]) == b'[{"card":4242}]'
    for change in ({"job_id": "another"}, {"job_id": ""}, {"encryption_key_id": "new"}, {"encryption_key_id": "no"}):
        await ask(codec, "/codec/decode", {"data": argument["data"], "metadata": {**metadata, **change}}, 422)


async def test_nobody_else_uses_it(client: Client) -> None:
    assert (await ask(client, "/codec/encode", plain(b"1"), 422))["code"] == "unsupported"
    client.backend.codec = Codec(KEYS, "new")
    await client.ask("POST", "/codec/encode", {"payloads": []}, 403)
    await ask(client, "/codec/encode", plain(b"1"), 403, key="operate")


@pytest.mark.parametrize(
    "payload", [None, {}, {"data": 1}, {"data": "!"}, {"data": "AQ=="}, {"data": "", "metadata": 3}]
)
async def test_bad_payloads_are_refused(codec: Client, payload: object) -> None:
    await ask(codec, "/codec/decode", payload, 422)


def test_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "codec.json"
    path.write_bytes(msgspec.json.encode({"present": "new", "keys": KEYS}))
    read_codec(path)
    for bad in (b"{", b'{"present":"x","keys":{}}', b'{"present":"x","keys":{"x":"AQ=="}}'):
        path.write_bytes(bad)
        with pytest.raises(InvalidCodecKeys):
            read_codec(path)
