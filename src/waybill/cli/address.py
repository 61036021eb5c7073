"""The option that says which broker a command talks to."""

import os
from typing import Final

import click

DEFAULT_URI: Final = "amqp://guest:guest@localhost:5672/%2Fojs"

ID_WIDTH: Final = 36
"""What the id of a job takes: it is of no use cut short."""

uri_option: Final = click.option(
    "--uri", default=lambda: os.environ.get("WAYBILL_URI", DEFAULT_URI), help="The broker; or WAYBILL_URI."
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
