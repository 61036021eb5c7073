"""The options of all commands that run a worker or a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from waybill.cli.ranges import PORT, SECONDS

F = TypeVar("F", bound=Callable[..., Any])


def concurrency_option(default: int = 10, most: int = 65_535) -> Callable[[F], F]:
    """Return the option for the number of jobs that run at the same time."""
    return click.option(
        "--concurrency",
        default=default,
        show_default=True,
        type=click.IntRange(1, most),
        help="Number of jobs that run at the same time.",
    )


grace_period_option: Final = click.option(
    "--grace-period",
    default=30.0,
    type=SECONDS,
    show_default=True,
    help="Seconds to wait for running jobs at shutdown.",
)


health_port_option: Final = click.option(
    "--health-port", type=PORT, help="Serve the probes /live and /ready on this port."
)
health_host_option: Final = click.option(
    "--health-host", default="127.0.0.1", show_default=True, help="Address for the probes."
)
