"""The file of a federation: every value is checked, and an error names its field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from waybill.federation.configuration import Federation, InvalidFederation, read, read_file
from waybill.federation.layer import Layer

US = {"id": "us", "url": "https://us.example.com"}

WHOLE = """
federation_id = "prod-global"
local_region = "us"
default_region = "eu"
default_strategy = "active-passive"
request_timeout_seconds = 3

[[regions]]
id = "us"
url = "https://us.example.com/jobs/"
weight = 2
tags = ["gpu"]
key_file = "us.key"

[[regions]]
id = "eu"
url = "http://localhost:8081"
queues = ["billing"]
priority = 2
health_interval_seconds = 2.5
key_env = "EU_KEY"

[health_check]
interval_seconds = 20
timeout_seconds = 1

[circuit_breaker]
failure_threshold = 2
cooldown_seconds = 7

[failover]
enabled = false
max_redirects = 0
exclude_regions = ["us"]
prefer_regions = ["eu"]
after_lost_answer = false

[geographic]
hints = ["country"]
regions = { DE = "eu" }
"""


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "regions.toml"
    path.write_text(WHOLE, encoding="utf-8")
    found = read_file(path)
    us, eu = found.regions
    assert (us.base, us.weight, us.tags, us.key_file) == (
        "https://us.example.com/jobs",
        2,
        ("gpu",),
        str(tmp_path / "us.key"),
    )
    assert (eu.queues, eu.priority, eu.health_interval_seconds, eu.is_loopback) == (("billing",), 2, 2.5, True)
    assert (found.failover.enabled, found.failover.max_redirects, found.failover.after_lost_answer) == (False, 0, False)
    assert (found.circuit_breaker.cooldown_seconds, found.geographic.regions) == (7.0, {"DE": "eu"})


def test_json_is_read_as_well_and_has_the_defaults_of_the_specification(tmp_path: Path) -> None:
    path = tmp_path / "regions.json"
    path.write_text(json.dumps({"federation_id": "x", "regions": [US]}), encoding="utf-8")
    found = read_file(path)
    assert (found.default_strategy, found.health_check.interval_seconds) == ("affinity", 10.0)
    assert (found.circuit_breaker.failure_threshold, found.circuit_breaker.cooldown_seconds) == (5, 30.0)
    assert (found.failover.max_redirects, found.regions[0].weight, found.regions[0].priority) == (3, 1, 1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"regions": []}, "regions"),
        ({"regions": [US, US]}, "regions[1].id"),
        ({"regions": [{"id": "us"}]}, "regions[0]"),
        ({"regions": [{**US, "id": "u s"}]}, "regions[0].id"),
        ({"regions": [{**US, "weight": 0}]}, "regions[0].weight"),
        ({"regions": [{**US, "weight": "2"}]}, "regions[0].weight"),
        ({"regions": [{**US, "colour": "red"}]}, "regions[0]"),
        ({"regions": [{**US, "queues": ["a", ""]}]}, "regions[0].queues[1]"),
        ({"regions": [{**US, "health_interval_seconds": 0}]}, "regions[0].health_interval_seconds"),
        ({"regions": [{**US, "url": "http://us.example.com"}]}, "regions[0].url"),
        ({"regions": [{**US, "url": "http://127.evil.example.com"}]}, "regions[0].url"),
        ({"regions": [{**US, "url": "https://key@us.example.com"}]}, "regions[0].url"),
        ({"regions": [{**US, "url": "https://us.example.com?x=1"}]}, "regions[0].url"),
        ({"regions": [{**US, "url": "https://us.example.com:x"}]}, "regions[0].url"),
        ({"regions": [{**US, "url": "ftp://us.example.com"}]}, "regions[0].url"),
        ({"regions": [{**US, "url": "http://localhost:1", "ca_file": "ca.pem"}]}, "regions[0].url"),
        ({"regions": [{**US, "key_env": "A", "key_file": "b"}]}, "regions[0].key_file"),
        ({"regions": [{**US, "client_key": "b"}]}, "regions[0].client_certificate"),
        ({"federation_id": ""}, "federation_id"),
        ({"local_region": "mars"}, "local_region"),
        ({"default_region": "mars"}, "default_region"),
        ({"default_strategy": "best"}, "default_strategy"),
        ({"default_strategy": "geo-pin"}, "default_strategy"),
        ({"request_timeout_seconds": 0}, "request_timeout_seconds"),
        ({"health_check": {"interval": 1}}, "health_check"),
        ({"circuit_breaker": {"failure_threshold": 0}}, "circuit_breaker.failure_threshold"),
        ({"failover": {"max_redirects": -1}}, "failover.max_redirects"),
        ({"failover": {"prefer_regions": ["us", "mars"]}}, "failover.prefer_regions[1]"),
        ({"failover": {"exclude_regions": ["mars"]}}, "failover.exclude_regions[0]"),
        ({"geographic": {"hints": []}}, "geographic.hints"),
        ({"geographic": {"regions": {"DE": "mars"}}}, "geographic.regions.DE"),
        ({"surprise": 1}, ""),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFederation) as raised:
        read({"federation_id": "x", "regions": [US], **changes})
    assert raised.value.field == field
    assert "key@" not in str(raised.value)


@pytest.mark.parametrize("text", ["= 1", "federation_id = 1", "\x00"])
def test_a_file_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "regions.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidFederation):
        read_file(path)
    with pytest.raises(InvalidFederation, match="cannot read"):
        read_file(tmp_path / "none.toml")
    path.write_text("#" * (1 << 20) + "#", encoding="utf-8")
    with pytest.raises(InvalidFederation, match="larger"):
        read_file(path)


def layer_with(**fields: object) -> Layer:
    federation: Federation = read({"federation_id": "x", "regions": [{**US, **fields}]})
    return Layer(federation)


def test_keys_and_certificates_that_cannot_be_used_name_their_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for fields, field in (
        ({"key_env": "NO_SUCH_KEY"}, "key_env"),
        ({"key_file": str(path)}, "key_file"),
        ({"ca_file": str(path)}, "ca_file"),
        ({"client_certificate": str(path), "client_key": str(path)}, "client_certificate"),
    ):
        with pytest.raises(InvalidFederation) as raised:
            layer_with(**fields)
        assert raised.value.field == f"regions[0].{field}"
    path.write_text("sec\u00e9ret\n", encoding="utf-8")
    with pytest.raises(InvalidFederation, match="printable") as unreadable:
        layer_with(key_file=str(path))
    assert "ret" not in str(unreadable.value).replace("printable", "")
    path.write_text("wb_key\n", encoding="utf-8")
    layer_with(key_file=str(path))
