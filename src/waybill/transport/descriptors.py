"""How many files and sockets this process may have open at once."""

import resource
import sys


def descriptor_limit() -> int:
    """The present limit (`ulimit -n`)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def raise_descriptor_limit() -> None:
    """Raise the limit to the maximum that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
