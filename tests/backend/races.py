"""Lets two servers of one broker do things to one job at the same moment, and checks what they told.

    python -m tests.backend.races --rounds 200 --seed 1 --broker rabbitmq --state postgresql

A job is brought into a state; then two or three of the requests that fit it are sent, each to one of the servers.
Afterwards, both servers know the job in the same state, it is what the answers said, and the job can be fetched once if
it waits and not at all otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import msgspec

from tests.backend.conftest import Client
from tests.ojs.databases import make_database
from tests.postgresql import USER, Server, directory_for_servers
from tests.rabbitmq import RabbitMQ
from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.ojs import Jobs

REQUESTS: Final[Mapping[str, tuple[str, ...]]] = {
    "available": ("cancel", "bulk cancel", "fetch", "fetch", "priority", "bulk delete"),
    "pending": ("activate", "activate", "cancel", "bulk cancel", "priority"),
    "scheduled": ("cancel", "priority", "priority", "bulk cancel"),
    "active": ("cancel", "bulk cancel", "ack", "ack", "nack", "nack", "requeue", "progress", "priority"),
    "retryable": ("cancel", "bulk cancel", "priority", "bulk retry", "retry"),
    "discarded": ("retry", "dead letter retry", "bulk retry", "dead letter delete", "bulk delete", "cancel", "fetch"),
}
"""What fits a job in each state."""
OF_HOLDER: Final = frozenset({"ack", "nack", "requeue", "progress"})
"""What is sent to the server that has leased the job."""
ERROR: Final[Mapping[str, object]] = {"code": "handler_error", "message": "no"}
FETCH: Final = "/ojs/v1/workers/fetch"
ANSWER_SECONDS: Final = 25.0
SETTLED_LOOKS: Final = 60
LOOK_SECONDS: Final = 0.05
MOST_TURNS: Final = 60
MOST_SECONDS: Final = 0.012
_JOBS: Final = "/ojs/v1/jobs"


class Answer(NamedTuple):
    """What a server has answered to one request."""

    name: str
    status: int
    body: dict[str, Any]

    def items(self, status: str) -> int:
        """Return how many items of a bulk operation have this status."""
        return sum(one.get("status") == status for one in self.body.get("items", []))


class Race:
    """One job, and two servers."""

    def __init__(self, clients: list[Client], chance: random.Random, number: int) -> None:
        self._clients = clients
        self._chance = chance
        self._queue = f"q{number}"
        self._job_id = ""
        self._holder = clients[0]
        self.state = chance.choice(sorted(REQUESTS))

    async def run(self) -> list[str]:
        """Return what is wrong."""
        await self._begin()
        names = self._chance.choices(REQUESTS[self.state], k=self._chance.choice([2, 2, 3]))
        answers = await asyncio.gather(*map(self._send_soon, names))
        states = await self._settled()
        wrong = [f"{one.name} was answered with {one.status}" for one in answers if one.status >= 500]
        if len(set(states)) > 1:
            return [*wrong, f"the servers differ: {states}", f"{answers}"]
        wrong += await self._contradictions(answers, states[0])
        return [*wrong, f"{answers} -> {states[0]}"] if wrong else []

    async def _begin(self) -> None:
        options: dict[str, object] = {"queue": self._queue}
        interval = "PT30S" if self.state == "retryable" else self._chance.choice(["PT0.05S", "PT30S"])
        attempts = 1 if self.state == "discarded" else 3
        options["retry"] = {"max_attempts": attempts, "initial_interval": interval, "jitter": False}
        if self.state == "pending":
            options["pending"] = True
        elif self._chance.random() < 0.3:
            options["unique"] = {"keys": ["args"], "period": "PT1H"}
        if self.state == "scheduled":
            options["scheduled_at"] = "+PT20S"
        body = {"type": "a.b", "args": [self._queue], "options": options}
        pushed = await self._ask(self._chance.choice(self._clients), "push", "POST", _JOBS, body)
        assert pushed.status == 201, pushed
        self._job_id = pushed.body["id"]
        self._holder = self._chance.choice(self._clients)
        if self.state in {"active", "retryable", "discarded"}:
            fetched = await self._fetch(self._holder, 3000)
            assert len(fetched.body["jobs"]) == 1, fetched
        if self.state in {"retryable", "discarded"}:
            assert (await self._send("nack")).status == 200
        # Both have heard of it.
        await self._settled()

    async def _send_soon(self, name: str) -> Answer:
        if self._chance.random() < 0.5:
            for _ in range(self._chance.randrange(MOST_TURNS)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(self._chance.random() * MOST_SECONDS)
        return await self._send(name)

    async def _send(self, name: str) -> Answer:
        job, listed = f"{_JOBS}/{self._job_id}", {"job_ids": [self._job_id]}
        held = {"job_id": self._job_id}
        requests: dict[str, tuple[str, str, object]] = {
            "cancel": ("DELETE", job, None),
            "bulk cancel": ("POST", f"{_JOBS}/bulk/cancel", listed),
            "bulk delete": ("POST", f"{_JOBS}/bulk/delete", listed),
            "bulk retry": ("POST", f"{_JOBS}/bulk/retry", listed),
            "retry": ("POST", f"/ojs/v1/admin/jobs/{self._job_id}/retry", None),
            "dead letter retry": ("POST", f"/ojs/v1/dead-letter/{self._job_id}/retry", None),
            "dead letter delete": ("DELETE", f"/ojs/v1/dead-letter/{self._job_id}", None),
            "priority": ("PATCH", job, {"priority": self._chance.randint(1, 9)}),
            "activate": ("POST", f"{job}/activate", None),
            "fetch": ("POST", FETCH, self._wanted(0)),
            "progress": ("PUT", f"{job}/progress", {"progress": 0.5}),
            "ack": ("POST", "/ojs/v1/workers/ack", held),
            "nack": ("POST", "/ojs/v1/workers/nack", held | {"error": ERROR}),
            "requeue": ("POST", "/ojs/v1/workers/nack", held | {"requeue": True}),
        }
        client = self._holder if name in OF_HOLDER else self._chance.choice(self._clients)
        return await self._ask(client, name, *requests[name])

    def _wanted(self, wait_ms: int) -> dict[str, object]:
        return {"queues": [self._queue], "worker_id": "w", "wait_ms": wait_ms}

    async def _fetch(self, client: Client, wait_ms: int) -> Answer:
        return await self._ask(client, "fetch", "POST", FETCH, self._wanted(wait_ms))

    async def _ask(self, client: Client, name: str, method: str, path: str, body: object = None) -> Answer:
        response = await asyncio.wait_for(client.send(method, path, body), ANSWER_SECONDS)
        found = msgspec.json.decode(response.body) if response.body else {}
        return Answer(name, response.status, found)

    async def _settled(self) -> list[str]:
        """Return in which state each server knows the job, once they agree and nothing changes."""
        before: list[str] = []
        for _ in range(SETTLED_LOOKS):
            looks = [await self._ask(one, "get", "GET", f"{_JOBS}/{self._job_id}") for one in self._clients]
            states = [str(one.body["state"]) if one.status == 200 else "unknown" for one in looks]
            if states == before and len(set(states)) == 1:
                break
            before = states
            await asyncio.sleep(LOOK_SECONDS)
        return before

    async def _contradictions(self, answers: list[Answer], state: str) -> list[str]:
        wrong: list[str] = []
        done = [one for one in answers if one.status == 200]
        cancelled = any(one.name == "cancel" or one.items("cancelled") for one in done)
        deleted = any(one.items("deleted") for one in done)
        retried = any(one.name in {"retry", "dead letter retry"} or one.items("retried") for one in done)
        fetched = sum(len(one.body["jobs"]) for one in done if one.name == "fetch")
        acked = sum(one.name == "ack" for one in done)
        if cancelled and state != "cancelled" and not deleted and not retried:
            wrong.append("it was cancelled")
        if deleted and state != "unknown" and not retried:
            wrong.append("it was deleted")
        if acked > 1 or (acked and state != "completed"):
            wrong.append(f"it was acknowledged {acked} times")
        if retried and not (fetched or cancelled or deleted) and state not in {"available", "active", "completed"}:
            wrong.append("it was retried")
        if fetched > 1:
            wrong.append(f"it was fetched {fetched} times")
        if state in {"available", "cancelled", "completed", "discarded", "unknown"}:
            more = 0
            for client in (*self._clients, self._clients[0]):
                wait_ms = 1500 if state == "available" and not more else 0
                more += len((await self._fetch(client, wait_ms)).body["jobs"])
            if more != (state == "available"):
                wrong.append(f"afterwards it was fetched {more} times")
        return wrong


async def search(broker: str, state: str, rounds: int, seed: int) -> list[str]:
    """Return what was wrong in so many races."""
    chance, found = random.Random(seed), []
    with _databases(state) as databases:
        async with _broker(broker) as uri:
            first, second = (Backend(Jobs(uri, results=False), database=one) for one in databases)
            async with first, second:
                clients = [Client(first), Client(second)]
                for number in range(rounds):
                    race = Race(clients, chance, number)
                    found += [f"race {number}, {race.state}: {one}" for one in await race.run()]
    return found


@asynccontextmanager
async def _broker(kind: str) -> AsyncIterator[str]:
    if kind == "rabbitmq":
        with RabbitMQ("rabbitmq_consistent_hash_exchange") as rabbitmq:
            yield rabbitmq.uri("/ojs")
    else:
        async with Broker(port=0) as broker:
            yield broker.uri()


@contextmanager
def _databases(kind: str) -> Iterator[tuple[str, str]]:
    if kind == "memory":
        yield ":memory:", ":memory:"
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"{directory}/jobs.sqlite", ":memory:"
    else:
        with directory_for_servers() as directory:
            server = Server(directory).create().start(is_durable=True, listen_addresses="")
            try:
                shared = make_database(f"postgresql+psycopg://{USER}@/{{}}?host={directory}&port={server.port}")
                yield shared, shared
            finally:
                server.stop()


def main() -> None:
    """Print what was wrong; the exit code is 1 if anything was."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--broker", choices=["waybill", "rabbitmq"], default="waybill")
    options.add_argument("--state", choices=["memory", "sqlite", "postgresql"], default="memory")
    chosen = options.parse_args()
    logging.disable(logging.ERROR)
    found = asyncio.run(search(chosen.broker, chosen.state, chosen.rounds, chosen.seed))
    print("\n".join([*found, f"{chosen.rounds} races: {'nothing was wrong' if not found else 'see above'}"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
