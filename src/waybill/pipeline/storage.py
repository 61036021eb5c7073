"""The place of lake tables: a directory, or a prefix in a bucket of an S3-compatible store.

Three parties read and write there, each with settings of its own: Spark (`s3a://`), the libraries of the table formats
(`s3://`), and pyarrow, which lists files here. The environment variables of AWS's own tools serve for all of them:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, and for another store than Amazon's
AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from waybill.pipeline.parquet_files import read_table
from waybill.pipeline.tables import TablesError

_SCHEMES: Final = ("s3a", "s3")
_REGION: Final = "us-east-1"
_S3A: Final = "spark.hadoop.fs.s3a."
# S3A, of the Hadoop that comes with Spark, and the clients of AWS that it uses: 18 MB in place of the bundle of all
# clients, which is half a gigabyte.
_SDK: Final = "2.35.4"
_PACKAGES: Final = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    *(
        f"software.amazon.awssdk:{name}:{_SDK}"
        for name in ("s3", "s3-transfer-manager", "sts", "netty-nio-client", "apache-client")
    ),
)
# Spark has the others, and a local Maven repository with their metadata, but without jars, makes Ivy fail.
_EXCLUDED: Final = (
    "software.amazon.awssdk:bundle",
    "org.slf4j:slf4j-api",
    "org.apache.hadoop:hadoop-common",
    "org.apache.hadoop:hadoop-client-api",
    "org.wildfly.openssl:wildfly-openssl",
)


@dataclass(frozen=True)
class Storage:
    """The root of all tables. `root` is an absolute path, or `s3a://bucket/prefix`."""

    root: str

    @classmethod
    def of(cls, place: Path | str) -> "Storage":
        """The storage for a path or a URI with the scheme file, s3a or s3. Raises TablesError for others."""
        text = str(place)
        if "://" not in text and not text.startswith("file:"):
            return cls(str(Path(text).resolve()))
        parts = urlsplit(text)
        if parts.scheme == "file":
            return cls(str(Path(unquote(parts.path)).resolve()))
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise TablesError(f"{text}: tables need a directory, or a bucket: s3a://BUCKET/PREFIX")
        return cls(f"s3a://{parts.netloc}/{parts.path.strip('/')}".rstrip("/"))

    @property
    def is_remote(self) -> bool:
        return "://" in self.root

    @property
    def uri(self) -> str:
        """The root for the libraries of table formats."""
        return "s3" + self.root.removeprefix("s3a") if self.is_remote else self.root

    def for_spark(self, uri: str) -> str:
        """Convert the name of a file from a table format's to Spark's."""
        return uri.replace("s3://", "s3a://", 1) if self.is_remote else uri.removeprefix("file://")

    def files(self, name: str) -> list[tuple[str, int]]:
        """The files below `name`, by relative path, with their sizes in bytes. None if it does not exist."""
        base = f"{self._base}/{name}"
        found = self.filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        files = [one for one in found if one.type == fs.FileType.File]
        return [(one.path.removeprefix(base).lstrip("/"), one.size) for one in files]

    def has(self, name: str) -> bool:
        """Whether a file or directory of this name exists."""
        return bool(self.filesystem.get_file_info(f"{self._base}/{name}").type != fs.FileType.NotFound)

    def path(self, name: str) -> str:
        """The name of a file for `filesystem`."""
        return f"{self._base}/{name}"

    @property
    def filesystem(self) -> fs.FileSystem:
        if not self.is_remote:
            return fs.LocalFileSystem()
        return _bucket_files(endpoint_of(os.environ), region_of(os.environ))

    @property
    def _base(self) -> str:
        return self.root.removeprefix("s3a://")


def read_columns(file: str, columns: list[str]) -> pa.Table:
    """Some columns of a file: a path, or the URI of one in a bucket."""
    if "://" not in file:
        return read_table(file, columns=columns)
    storage = Storage.of(file)
    name = storage.root.removeprefix("s3a://")
    return read_table(name, columns=columns, filesystem=storage.filesystem)


@lru_cache(maxsize=4)
def _bucket_files(endpoint: str, region: str) -> fs.FileSystem:
    parts = urlsplit(endpoint)
    given = {"region": region}
    if parts.netloc:
        given |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    return fs.S3FileSystem(**given)


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The address of the store, such as `http://127.0.0.1:9000`; empty for Amazon's."""
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""


def region_of(environment: Mapping[str, str]) -> str:
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _REGION


def delta_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Options that the Delta library does not read from the environment."""
    endpoint = endpoint_of(environment)
    options = {"AWS_REGION": region_of(environment), "aws_conditional_put": "etag"}
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    return options


def iceberg_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The same for Iceberg."""
    options = {"s3.region": region_of(environment)}
    endpoint = endpoint_of(environment)
    return options | {"s3.endpoint": endpoint} if endpoint else options


def spark_options(storage: Storage, environment: Mapping[str, str]) -> dict[str, str]:
    """Options of a local session for the storage. Spark itself reads the keys from the environment."""
    if not storage.is_remote:
        return {}
    options = {
        "spark.jars.packages": ",".join(_PACKAGES),
        "spark.jars.excludes": ",".join(_EXCLUDED),
        f"{_S3A}endpoint.region": region_of(environment),
    }
    endpoint = endpoint_of(environment)
    if endpoint:
        options |= {f"{_S3A}endpoint": endpoint, f"{_S3A}path.style.access": "true"}
    return options
