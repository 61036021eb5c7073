"""A bystander of `waybill serve` in a process of its own: pushes a job and asks for it, one after the other.

    python -m tests.security.http_served PORT PID [CA]

Each request is a step of a round; with the file of a certificate authority, over TLS. See `tests.security.rounds` for
what it prints.
"""

import http.client
import json
import ssl
import sys
from typing import Final

from tests.security.rounds import Rounds

TIMEOUT_S: Final = 30.0
JOB: Final = json.dumps({"type": "bystander.run", "args": [1], "options": {"queue": "bystander"}})
HEADERS: Final = {"Content-Type": "application/json"}


def main() -> int:
    port, process, *trusted = sys.argv[1:]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=TIMEOUT_S)
    if trusted:
        context = ssl.create_default_context(cafile=trusted[0])
        connection = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=TIMEOUT_S, context=context)
    rounds = Rounds(int(process))

    def ask(method: str, path: str, body: str | None, status: int) -> bytes:
        rounds.begin()
        connection.request(method, path, body, HEADERS)
        response = connection.getresponse()
        data = response.read()
        rounds.end()
        assert response.status == status, f"{method} {path}: {response.status} {data[:300]!r}"
        return data

    while True:
        try:
            job = json.loads(ask("POST", "/ojs/v1/jobs", JOB, 201))["job"]
            ask("GET", f"/ojs/v1/jobs/{job['id']}", None, 200)
        except (AssertionError, OSError, http.client.HTTPException) as error:
            print(f"{type(error).__name__} {error}", flush=True)
            return 1
        rounds.tell()


if __name__ == "__main__":
    sys.exit(main())
