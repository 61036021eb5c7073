"""A local SparkSession that is quiet, quick to start and reachable from this machine only.

On a cluster `spark-submit` provides the session. The rest of the pipeline accepts any session.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import waybill
from waybill.pipeline.java import java_home
from waybill.pipeline.worker_python import worker_python

_LOOPBACK: Final = "127.0.0.1"
_LOG_TAIL_LINES: Final = 20
_STDERR: Final = 2

_QUIET_AND_QUICK: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    # As most writers of Parquet do. Spark's default, 96 bits, has no statistics and is slower to convert.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.metricsEnabled": "false",
    # A batch has events of a day or two: with this many open files, it need not be sorted by day.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # Parquet looks at the size of what it holds after so many rows. By default these are 100, however large.
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
    # Spark would guess the size of what it copies to each task from that of compressed files, which says nothing.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Texts of events, of up to 32 MiB: neither is of use, and each keeps copies.
    "parquet.enable.dictionary#event": "false",
    "parquet.column.statistics.enabled#event": "false",
    "spark.driver.memory": "1g",
}
_REQUIRED: Final = (
    "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.sources.partitionOverwriteMode",
    "spark.sql.parquet.compression.codec",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.maxConcurrentOutputFileWriters",
    "spark.sql.autoBroadcastJoinThreshold",
    "parquet.page.size.row.check.min",
    "parquet.block.size.row.check.min",
    "parquet.enable.dictionary#event",
    "parquet.column.statistics.enabled#event",
)
_EXECUTOR_MB: Final = 1024
# Optimize for throughput, not for pauses.
_COLLECT_IN_PARALLEL: Final = "-XX:+UseParallelGC"
# Spark loads many classes; with a smaller default, Java does a full collection each time they outgrow it.
_ROOM_FOR_CLASSES: Final = "-XX:MetaspaceSize=256m"
# Java then gives compiled code 48 MiB. Those are full after some hundred queries, and it compiles no more.
_COMPILE_SIMPLY: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# A shuffle begins with this many partitions, and Spark merges small ones. So those of a long history fit in memory.
_PARTITIONS: Final = 32
_PARTITIONS_SHORT: Final = 4


class SparkStartError(RuntimeError):
    """Spark's virtual machine did not start; the message has the end of its log."""


def local_session(
    name: str = "waybill",
    *,
    cores: int | None = None,
    processes: int = 0,
    log_file: Path | None = None,
    short: bool = False,
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or get) a session on `cores` of this machine (default: all), in this process.

    With `processes`, as many executors of one core each run in processes of their own, as on a cluster.

    `short` is for programs of seconds to minutes: Java then compiles only once, without optimizing, which halves their
    run time but slows down long runs.

    `more` are further options of Spark, such as `table_formats.session_options` gives.

    Java's output goes to `log_file` (default: a temporary file), for diagnosing failures. Raises JavaNotFoundError, and
    SparkStartError if the virtual machine does not start.
    """
    _prepare_environment()
    count = cores or os.cpu_count() or 1
    master = f"local-cluster[{processes},1,{_EXECUTOR_MB}]" if processes else f"local[{count}]"
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in _QUIET_AND_QUICK.items():
        builder = builder.config(key, value)
    java_options = [_COLLECT_IN_PARALLEL, _ROOM_FOR_CLASSES, *([_COMPILE_SIMPLY] if short else [])]
    builder = builder.config("spark.driver.extraJavaOptions", " ".join(java_options))
    builder = builder.config("spark.sql.shuffle.partitions", str(max(2, count)))
    partitions = _PARTITIONS_SHORT if short else _PARTITIONS
    builder = builder.config("spark.sql.adaptive.coalescePartitions.initialPartitionNum", str(partitions))
    builder = builder.config("spark.sql.warehouse.dir", str(Path(tempfile.gettempdir()) / "waybill-warehouse"))
    for key, value in (more or {}).items():
        builder = builder.config(key, value)
    with _stderr_to(log_file) as log:
        try:
            session = builder.getOrCreate()
        except Exception as problem:
            raise SparkStartError(f"Spark did not start: {problem}\n{_tail(log)}") from problem
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_submitted() -> bool:
    """Whether `spark-submit` runs this program, and so determines where Spark runs and its resources."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def submitted_session(name: str = "waybill") -> SparkSession:
    """The session of `spark-submit`, with the settings that the transforms need."""
    session = SparkSession.builder.appName(name).getOrCreate()
    for key in _REQUIRED:
        session.conf.set(key, _QUIET_AND_QUICK[key])
    return session


def _prepare_environment() -> None:
    """Set what the virtual machine and its Python workers inherit: Java, this interpreter, this copy of the package."""
    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    python = worker_python()
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    root = str(Path(waybill.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (root, *known) if path)


@contextmanager
def _stderr_to(log_file: Path | None) -> Iterator[Path]:
    """Redirect this process's standard error to a file while the virtual machine starts, which inherits it."""
    if log_file is None:
        descriptor, name = tempfile.mkstemp(prefix="waybill-spark-", suffix=".log")
        log_file = Path(name)
    else:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stderr.flush()
    saved = os.dup(_STDERR)
    try:
        os.dup2(descriptor, _STDERR)
        yield log_file
    finally:
        sys.stderr.flush()
        os.dup2(saved, _STDERR)
        os.close(saved)
        os.close(descriptor)


def _tail(log_file: Path) -> str:
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:])
