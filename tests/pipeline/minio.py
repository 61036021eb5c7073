"""MinIO, an S3-compatible store, as a process on loopback. `make pipeline-lake` builds it."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyarrow import fs

from tests.rabbitmq import free_port

BINARY: Final = Path(__file__).resolve().parents[2] / "build" / "go" / "bin" / "minio"
_START_S: Final = 30


class Minio:
    """A store with one bucket, and the environment of those who use it."""

    def __init__(self, directory: Path, bucket: str) -> None:
        self._directory = directory
        self._bucket = bucket
        port = free_port()
        self.environment = {
            "AWS_ACCESS_KEY_ID": "waybill",
            "AWS_SECRET_ACCESS_KEY": "waybill-secret",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1",
        }
        self._address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        own = {"MINIO_ROOT_USER": "waybill", "MINIO_ROOT_PASSWORD": "waybill-secret", "MINIO_BROWSER": "off"}
        self._process = subprocess.Popen(
            [str(BINARY), "server", "--quiet", "--address", self._address, str(self._directory)],
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # The client tries again until the server answers.
        store = fs.S3FileSystem(
            access_key="waybill",
            secret_key="waybill-secret",
            endpoint_override=self._address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_START_S),
        )
        store.create_dir(self._bucket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
