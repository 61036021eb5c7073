"""Figures of the node from the process and the machine."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import threading
from pathlib import Path
from typing import Final

from waybill.broker import Broker
from waybill.transport.descriptors import descriptor_limit

STATM: Final = Path("/proc/self/statm")
DESCRIPTORS: Final = Path("/proc/self/fd")


def resident_bytes() -> int:
    """Return the resident memory of the process in bytes."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def descriptors_used() -> int:
    """Return the number of open files and sockets."""
    try:
        return len(os.listdir(DESCRIPTORS))  # noqa: PTH208 - only the names, of very many
    except OSError:
        return 0


def disk_free(broker: Broker) -> int:
    """Return the free space of the data directory, or of the working directory if there is none."""
    try:
        return shutil.disk_usage(broker.data_dir or Path.cwd()).free
    except OSError:
        return 0


def cpu_milliseconds() -> int:
    """Return the CPU time of the process."""
    times = os.times()
    return int((times.user + times.system) * 1000)


def threads() -> int:
    """Return the number of threads."""
    return threading.active_count()


def descriptors_max() -> int:
    """Return the limit of open files and sockets."""
    return int(descriptor_limit())


def read_gauges(broker: Broker) -> tuple[int, ...]:
    """Return the gauges of the node (`statistic_kinds.NODE_GAUGES`). Reads files: call it on another thread."""
    return (
        resident_bytes(),
        descriptors_used(),
        len(broker.commit_loop.outputs),
        threads(),
        disk_free(broker),
        cpu_milliseconds(),
    )
