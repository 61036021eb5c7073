"""The proxy behind a port, with keys and TLS, and the commands."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from tests.federation.conftest import Region, federation_of, layer_of
from waybill.backend.keys import add_key, read_keys
from waybill.cli.main import main
from waybill.federation.layer import Layer
from waybill.federation.serving import FederationServing
from waybill.http.errors import RequestRefused
from waybill.ojs import Jobs, Worker

Regions = tuple[Region, Region]


async def test_a_program_and_its_worker_use_the_proxy_as_a_server(regions: Regions, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, reader = add_key(path, "shop", "operate"), add_key(path, "auditor", "read")
    tenant = add_key(path, "acme", "operate", "acme")
    layer = Layer(federation_of(*(one.entry for one in regions), default_strategy="round-robin"))
    async with FederationServing(layer, "127.0.0.1", 0, keys=read_keys(path)) as serving:
        url = serving.url.replace("http://", f"http://{key}@")
        async with Jobs(url) as jobs:

            @jobs.handler("double")
            async def double(number: int) -> int:
                return 2 * number

            async with Worker(jobs):
                many = [await double.push(number) for number in range(4)]
                assert [await job.result(20) for job in many] == [0, 2, 4, 6]
        async with Jobs(serving.url.replace("http://", f"http://{reader}@")) as jobs:
            assert await jobs.newest("default") != []
            with pytest.raises(RequestRefused, match="permission_denied"):
                await jobs.pause("default")
        async with Jobs(serving.url.replace("http://", f"http://{tenant}@")) as jobs:
            # It would see what is of others.
            with pytest.raises(RequestRefused, match="Keys of tenants"):
                await jobs.newest("default")


def pem(directory: Path, name: str, *blobs: trustme.Blob) -> str:
    path = directory / name
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return str(path)


async def test_regions_are_reached_over_tls_with_certificates_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("federation@example.com")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    keys = tmp_path / "keys.json"
    monkeypatch.setenv("REGION_KEY", add_key(keys, "federation", "operate"))
    ca_file = pem(tmp_path, "ca.pem", authority.cert_pem)
    certificate = {
        "client_certificate": pem(tmp_path, "client.pem", *client.cert_chain_pems),
        "client_key": pem(tmp_path, "client.key", client.private_key_pem),
    }
    region = Region("eu")
    region.keys, region.tls = read_keys(keys), tls
    async with region:
        entry = {**region.entry, "key_env": "REGION_KEY", "ca_file": ca_file, **certificate}
        async with layer_of(entry) as asking:
            assert await asking.region_of() == "eu"
        wrong = {
            "no client certificate": {"ca_file": ca_file},
            "an authority that is not known": {**certificate, "ca_file": pem(tmp_path, "other.pem", other.cert_pem)},
            "no key": {"ca_file": ca_file, **certificate},
        }
        for name, fields in wrong.items():
            async with layer_of({**region.entry, **fields}) as asking:
                asking.layer.regions.get("eu").problem = None  # type: ignore[union-attr]
                assert (await asking.send("POST", "/ojs/v1/jobs", {"type": "a", "args": []})).status == 503, name


def file_of(directory: Path, name: str, *entries: dict[str, object]) -> str:
    path = directory / name
    path.write_text(json.dumps({"federation_id": "shop", "regions": list(entries)}), encoding="utf-8")
    return str(path)


def test_the_commands_show_regions_and_routes(tmp_path: Path) -> None:
    entry: dict[str, object] = {"id": "eu", "url": "http://127.0.0.1:1"}
    config = file_of(tmp_path, "regions.json", entry)
    wrong = file_of(tmp_path, "wrong.json")
    found = CliRunner().invoke(main, ["federation", "regions", "--config", config, "--json"])
    assert (found.exit_code, json.loads(found.stdout)["regions"][0]["status"]) == (1, "unhealthy")
    assert "cannot be reached" in CliRunner().invoke(main, ["federation", "regions", "--config", config]).stdout
    found = CliRunner().invoke(main, ["federation", "route", "--config", config, "--region", "eu", "--json"])
    assert (found.exit_code, json.loads(found.stdout)["target_region"]) == (1, None)
    for arguments, text in (
        (["route", "--config", config, "--region", "mars"], "no region 'mars'"),
        (["route", "--config", config, "--meta", "country"], "NAME=VALUE"),
        (["serve", "--config", config, "--host", "0.0.0.0"], "--keys"),
        (["serve", "--config", config, "--tls-key", config], "--tls-certificate"),
        (["regions", "--config", wrong], "regions: "),
    ):
        found = CliRunner().invoke(main, ["federation", *arguments])
        assert (found.exit_code != 0, text in found.output) == (True, True), found.output


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    config = file_of(tmp_path, "regions.json", {"id": "eu", "url": "http://127.0.0.1:1"})
    command = [sys.executable, "-m", "waybill", "federation", "serve", "--port", "0", "--config", config]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


async def test_a_server_names_its_region_and_refuses_jobs_of_others(regions: Regions) -> None:
    """Also where the name is hidden from whoever only looks for its letters."""
    us, _ = regions
    async with layer_of(us.entry) as asking:
        region = asking.layer.regions.get("us")
        assert region is not None
        manifest = json.loads((await region.request("GET", "/ojs/manifest")).body)
        assert manifest["region"] == "us"
        assert "urn:ojs:ext:experimental:federation" in manifest["extensions"]
        here = '{"type":"a.b","args":[],"meta":{"ojs.federation.region":"us","ojs.federation.routed_at":"x"}}'
        kept = json.loads((await region.request("POST", "/ojs/v1/jobs", here.encode())).body)
        assert kept["job"]["meta"] == {"ojs.federation.region": "us", "ojs.federation.routed_at": "x"}
        for body in (
            '{"type":"a.b","args":[],"meta":{"ojs.federation.region":"eu"}}',
            '{"type":"a.b","args":[],"options":{"meta":{"ojs.federation.region":"eu"}}}',
            '{"type":"a.b","args":[],"metadata":{"ojs.federation.region":"eu"}}',
            '{"type":"a.b","args":[],"meta":{"ojs.federation.\\u0072egion":"eu"}}',
            '{"type":"a.b","args":[],"meta":{"ojs.federation.region":["us"]}}',
        ):
            refused = await region.request("POST", "/ojs/v1/jobs", body.encode())
            error = json.loads(refused.body)["error"]
            assert (refused.status, error["code"], error["details"]["server_region"]) == (422, "unsupported", "us")
        batch = b'{"jobs":[' + b'{"type":"a.b","args":[]},' + body.encode() + b"]}"
        refused = await region.request("POST", "/ojs/v1/jobs/batch", batch)
        assert (refused.status, json.loads(refused.body)["error"]["details"]["index"]) == (422, 1)
