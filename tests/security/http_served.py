"""A bystander of `waybill serve` in a process of its own: pushes a job and asks for it, one after the other.

    python -m tests.security.http_served PORT PID

After each round it prints how many there were, and the most that one request took, in milliseconds: of time, and of the
CPU of the server.
"""

import http.client
import json
import sys
import time
from typing import Final

from tests.security.served import cpu_s

TIMEOUT_S: Final = 30.0
PAUSE_S: Final = 0.005
JOB: Final = json.dumps({"type": "bystander.run", "args": [1], "options": {"queue": "bystander"}})
HEADERS: Final = {"Content-Type": "application/json"}


class Watch:
    """Measures requests of one connection."""

    def __init__(self, port: int, process: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._process = process
        self.longest_s = self.longest_cpu_s = 0.0

    def ask(self, method: str, path: str, body: str | None, status: int) -> bytes:
        began, used = time.monotonic(), cpu_s(self._process)
        self._connection.request(method, path, body, HEADERS)
        response = self._connection.getresponse()
        data = response.read()
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.longest_cpu_s = max(self.longest_cpu_s, cpu_s(self._process) - used)
        assert response.status == status, f"{method} {path}: {response.status} {data[:300]!r}"
        return data


def main() -> int:
    watch = Watch(int(sys.argv[1]), int(sys.argv[2]))
    rounds = 0
    while True:
        try:
            job = json.loads(watch.ask("POST", "/ojs/v1/jobs", JOB, 201))["job"]
            watch.ask("GET", f"/ojs/v1/jobs/{job['id']}", None, 200)
        except (AssertionError, OSError, http.client.HTTPException) as error:
            print(f"{type(error).__name__} {error}", flush=True)
            return 1
        rounds += 1
        print(rounds, round(watch.longest_s * 1000), round(watch.longest_cpu_s * 1000), flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
