"""A web application that pushes as soon as it is imported, before the server forks, and for each request."""

import os
import sys
from collections.abc import Callable

from waybill.ojs import Jobs

jobs = Jobs()


@jobs.handler("web.greet", queue="web")
def greet(name: str) -> str:
    return f"hello {name}"


if "gunicorn" in sys.modules:
    greet.push_sync("parent")


def app(environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]) -> list[bytes]:
    """Answer with the process that was asked, and what became of the job."""
    name = str(environ["PATH_INFO"]).removeprefix("/")
    result = greet.push_sync(name).result(timeout=60)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {result}".encode()]
