"""The file that describes a federation: regions, routing, health checks and failover.

Every error names the field of the file.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from waybill.http.address import is_loopback_host

AFFINITY: Final = "affinity"
OVERFLOW: Final = "overflow"
ROUND_ROBIN: Final = "round-robin"
LATENCY_BASED: Final = "latency-based"
GEO_PIN: Final = "geo-pin"
ACTIVE_PASSIVE: Final = "active-passive"
GEOGRAPHIC: Final = "geographic"
STRATEGIES: Final = (AFFINITY, OVERFLOW, ROUND_ROBIN, LATENCY_BASED, GEO_PIN, ACTIVE_PASSIVE, GEOGRAPHIC)

MAX_FILE_BYTES: Final = 1024 * 1024

_PATH: Final = re.compile(r" - at `\$\.?(?P<field>.*)`$")

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, Meta(min_length=1, max_length=255)]
Seconds = Annotated[float, Meta(ge=0.05, le=3600)]
Whole = Annotated[int, Meta(ge=1, le=1000)]


class InvalidFederation(ValueError):
    """The file of a federation is invalid. `field` is the invalid field, empty for the whole file."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field


class RegionEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A region. `queues`: the queues that it serves, all if empty. Lower `priority` values come first."""

    id: Name
    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    weight: Whole = 1
    tags: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    queues: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    priority: Annotated[int, Meta(ge=0, le=1000)] = 1
    health_interval_seconds: Seconds | None = None
    key_env: Text | None = None
    key_file: Text | None = None
    ca_file: Text | None = None
    client_certificate: Text | None = None
    client_key: Text | None = None

    @property
    def base(self) -> str:
        """The base URL."""
        return self.url.rstrip("/")

    @property
    def is_loopback(self) -> bool:
        """Whether the region is on this machine."""
        return is_loopback_host(urlsplit(self.url).hostname or "")


class HealthCheck(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The settings of health checks."""

    interval_seconds: Seconds = 10.0
    timeout_seconds: Seconds = 5.0


class BreakerSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """When a circuit breaker opens, and for how long."""

    failure_threshold: Whole = 5
    cooldown_seconds: Seconds = 30.0


class Failover(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where jobs go when a region fails. `after_lost_answer`: also if the region may have accepted the job."""

    enabled: bool = True
    max_redirects: Annotated[int, Meta(ge=0, le=100)] = 3
    exclude_regions: tuple[Name, ...] = ()
    prefer_regions: tuple[Name, ...] = ()
    after_lost_answer: bool = True


class Geographic(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The regions of geographic hints. `hints`: the attributes of the metadata to read, in this order."""

    hints: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=20)] = ("country", "continent")
    regions: Annotated[dict[Text, Name], Meta(max_length=10_000)] = {}


class Federation(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    federation_id: Name
    regions: Annotated[tuple[RegionEntry, ...], Meta(min_length=1, max_length=100)]
    local_region: Name | None = None
    default_region: Name | None = None
    default_strategy: Text = AFFINITY
    request_timeout_seconds: Seconds = 10.0
    health_check: HealthCheck = HealthCheck()
    circuit_breaker: BreakerSettings = BreakerSettings()
    failover: Failover = Failover()
    geographic: Geographic = Geographic()


def read_file(path: Path) -> Federation:
    """Read a TOML or JSON file. Paths in it are relative to the file. Raises InvalidFederation."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidFederation("", f"cannot read {path}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidFederation("", f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        given = msgspec.json.decode(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise InvalidFederation("", f"{path} is not {kind}: {error}") from None
    return read(given, path.parent)


def read(given: Any, directory: Path = Path()) -> Federation:  # noqa: ANN401 - a file may contain anything
    """Read and check a federation. Raises InvalidFederation."""
    try:
        found = msgspec.convert(given, Federation)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PATH.search(text)
        field = place.group("field") if place is not None else ""
        raise InvalidFederation(field, text if place is None else text[: place.start()]) from None
    _check_names(found)
    regions = tuple(_checked(one, f"regions[{index}]", directory) for index, one in enumerate(found.regions))
    return msgspec.structs.replace(found, regions=regions)


def _check_names(found: Federation) -> None:
    """Raise InvalidFederation for unknown and duplicate names of regions."""
    ids: set[str] = set()
    for index, region in enumerate(found.regions):
        if region.id in ids:
            raise InvalidFederation(f"regions[{index}].id", f"{region.id!r} is there twice")
        ids.add(region.id)
    named = [("local_region", found.local_region), ("default_region", found.default_region)]
    named += [(f"failover.exclude_regions[{index}]", one) for index, one in enumerate(found.failover.exclude_regions)]
    named += [(f"failover.prefer_regions[{index}]", one) for index, one in enumerate(found.failover.prefer_regions)]
    named += [(f"geographic.regions.{hint}", one) for hint, one in found.geographic.regions.items()]
    for field, name in named:
        if name is not None and name not in ids:
            raise InvalidFederation(field, f"there is no region {name!r}: {', '.join(sorted(ids))}")
    if found.default_strategy not in STRATEGIES or found.default_strategy == GEO_PIN:
        allowed = ", ".join(one for one in STRATEGIES if one != GEO_PIN)
        raise InvalidFederation("default_strategy", f"must be one of {allowed}")


def _checked(region: RegionEntry, field: str, directory: Path) -> RegionEntry:
    """Check a region, and return it with absolute paths. Raises InvalidFederation."""
    _check_url(region, f"{field}.url")
    if region.key_env is not None and region.key_file is not None:
        raise InvalidFederation(f"{field}.key_file", "use either key_env or key_file")
    if (region.client_certificate is None) != (region.client_key is None):
        raise InvalidFederation(f"{field}.client_certificate", "client_certificate and client_key go together")
    files = {"key_file", "ca_file", "client_certificate", "client_key"}
    given: dict[str, str] = {name: getattr(region, name) for name in files if getattr(region, name) is not None}
    if region.url.startswith("http:") and given.keys() - {"key_file"}:
        raise InvalidFederation(f"{field}.url", "must begin with https:// where certificates are used")
    return msgspec.structs.replace(region, **{name: str(directory / path) for name, path in given.items()})


def _check_url(region: RegionEntry, field: str) -> None:
    """Raise InvalidFederation for an invalid URL. The error never contains a password."""
    try:
        parts = urlsplit(region.url)
        _ = parts.port
    except ValueError as error:
        raise InvalidFederation(field, f"cannot be read: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidFederation(field, "must be https://host:port, or http://localhost:port")
    if parts.username is not None or parts.password is not None:
        raise InvalidFederation(field, "must not contain a key: use key_env or key_file")
    if parts.query or parts.fragment or not region.url.isascii() or not region.url.isprintable() or " " in region.url:
        raise InvalidFederation(field, "must have no query, no fragment and no spaces")
    if parts.scheme == "http" and not region.is_loopback:
        raise InvalidFederation(field, "must begin with https://: plain HTTP is for this machine only")
