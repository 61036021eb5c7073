"""Fuzzes every endpoint of a server from its own OpenAPI document, with schemathesis: no 500, no undocumented answer.

    python -m tests.backend.fuzz --examples 200

There are two rounds. In the first all is random, in the second names and ids are those of things that are there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
LONGEST_WAIT_MS: Final = 5
JOB_ID: Final = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
KNOWN: Final = f'[parameters]\n"path.id" = "{JOB_ID}"\n"path.name" = "email"\n"path.type" = "email.send"\n'
"""Names and ids of what is there, as schemathesis reads them."""
ROUNDS: Final = ("", KNOWN)


def find_schemathesis() -> str | None:
    """Return the command, None if it is not installed."""
    return shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which("schemathesis")


def fuzz(
    command: str, examples: int, phases: str, seed: int | None = None, rounds: Sequence[str] = ROUNDS
) -> list[str]:
    """Fuzz a server of its own; returns what schemathesis has printed where it has found something."""
    found = []
    with tempfile.TemporaryDirectory() as directory, _server() as url:
        place = Path(directory)
        (place / "openapi.json").write_text(json.dumps(_patient(_ask(url, "GET", "openapi.json"))))
        _fill(url)
        for config in rounds:
            (place / "schemathesis.toml").write_text(config)
            arguments = [f"--max-examples={examples}", f"--phases={phases}", f"--checks={','.join(CHECKS)}"]
            if seed is not None:
                arguments.append(f"--seed={seed}")
            ended = subprocess.run(
                [command, "run", str(place / "openapi.json"), f"--url={url}", *arguments],
                cwd=place,
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode != 0:
                found.append(ended.stdout + ended.stderr)
    return found


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "waybill", "serve", "--memory", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.split()[1] for line in process.stdout if line.startswith("ready "))
        finally:
            process.terminate()


def _ask(url: str, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/ojs/v1/{path}", data, headers, method=method)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - our own server
        return json.loads(response.read())


def _fill(url: str) -> None:
    """Have something of each kind there."""
    job = {"type": "email.send", "args": [1], "options": {"queue": "email"}}
    _ask(url, "POST", "jobs", {**job, "id": JOB_ID})
    _ask(url, "POST", "jobs/batch", {"jobs": [job] * 20})
    _ask(url, "POST", "cron", {"name": "email", "expression": "0 0 1 1 *", "job_template": job})
    _ask(url, "POST", "workers/fetch", {"queues": ["email"], "worker_id": "w1"})


def _patient(document: Any) -> Any:
    """Return the document without what waits for long, or never ends."""
    for methods in document["paths"].values():
        for method, operation in list(methods.items()):
            if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
                del methods[method]
                continue
            operation["parameters"] = [one for one in operation["parameters"] if one["name"] != "wait"]
    for schema in document["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            if name == "wait_ms":
                field["maximum"] = LONGEST_WAIT_MS
    return document


def main() -> int:
    """Run from the command line; returns 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--phases", default="coverage,fuzzing")
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    command = find_schemathesis()
    if command is None:
        print("schemathesis is not installed: pip install 'waybill-amqp[dev]'", file=sys.stderr)
        return 1
    found = fuzz(command, asked.examples, asked.phases, asked.seed)
    print("\n".join(found) or "nothing was found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
