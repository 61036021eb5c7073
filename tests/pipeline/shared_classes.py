"""Class data sharing: an archive of the classes of Spark, with which a Java starts for less than half of the CPU.

python -m tests.pipeline.shared_classes FILE      makes the archive
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.program_environment import program_environment
from waybill.pipeline.session import local_session

_SECONDS: Final = 600.0


@contextmanager
def shared_classes() -> Iterator[str]:
    """The option of Java that uses an archive made for this; empty if this Java makes none, or not in time."""
    with tempfile.TemporaryDirectory(prefix="waybill-classes-") as name:
        archive = Path(name) / "spark.jsa"
        command = [sys.executable, "-m", __name__, str(archive)]
        making = subprocess.Popen(command, env=program_environment(), stdout=subprocess.DEVNULL, process_group=0)
        try:
            if making.wait(_SECONDS):
                raise subprocess.CalledProcessError(making.returncode, command)
            option = f"-XX:SharedArchiveFile={archive}" if archive.exists() else ""
        except subprocess.TimeoutExpired:
            option = ""
        finally:
            # Its Java, too, and without an error if both have ended.
            with suppress(ProcessLookupError):
                os.killpg(making.pid, signal.SIGKILL)
            making.wait()
        yield option


def options_with(java_option: str) -> dict[str, str]:
    """The options of a session whose driver and executors start with this option of Java."""
    names = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
    return dict.fromkeys(names, java_option) if java_option else {}


def make(archive: Path) -> None:
    """Load what every session needs, and let Java write it down when it ends."""
    options = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
    log, rows = archive.with_suffix(".log"), str(archive.with_suffix(".rows"))
    spark = local_session("waybill-classes", log_file=log, short=True, more=options)
    spark.range(1000).selectExpr("id % 7 AS k").groupBy("k").count().write.parquet(rows)
    spark.read.parquet(rows).orderBy("k").collect()
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    # Java ends when its input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(_SECONDS)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
