"""Logs of jobs: appended by workers, read by level, a page at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.conftest import Client, client_of


async def test_logs_are_kept_with_their_job(uri: str) -> None:
    async with client_of(uri) as client:
        job_id = await client.push()
        await client.fetch()
        path = f"/ojs/v1/jobs/{job_id}/logs"
        entries: list[Any] = [{"message": f"line {n}", "severity": "DEBUG" if n % 2 else "INFO"} for n in range(5)]
        entries[3] |= {"level": "x", "severity": "error", "attributes": {"rows": 7}, "unknown": 1}
        assert (await client.ask("POST", path, {"entries": entries}, 201))["appended"] == 5
        await client.ask("POST", path, {"message": "one", "level": "warning"}, 201)
    async with client_of(uri) as client:
        found = (await client.ask("GET", path))["entries"]
        assert [one["message"] for one in found] == [*(f"line {n}" for n in range(5)), "one"]
        assert found[3]["attributes"] == {"rows": 7}
        assert (found[3]["severity"], found[3]["severity_number"], "unknown" in found[3]) == ("ERROR", 17, False)
        assert found[0]["ojs"] == {
            "job_id": job_id,
            "job_type": "email.send",
            "queue": "email",
            "worker_id": "w1",
            "attempt": 1,
        }
        assert [one["message"] for one in (await client.ask("GET", f"{path}?level=warn"))["entries"]] == [
            "line 3",
            "one",
        ]
        read, cursor = [], ""
        while True:
            page = await client.ask("GET", f"{path}?limit=2&cursor={cursor}")
            read += page["entries"]
            if not page["pagination"]["has_more"]:
                break
            cursor = page["pagination"]["next_cursor"]
        assert read == found


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"entries": []}, {"entries": [1]}, {"entries": [{"message": 1}]}, {"entries": [{"message": "x"}] * 101}),
        *({"message": "x", "severity": "loud"}, {"message": "x", "timestamp": "then"}, {"message": "x" * 9000}),
    ],
)
async def test_bad_logs_are_refused(client: Client, body: object) -> None:
    path = f"/ojs/v1/jobs/{await client.push()}/logs"
    await client.ask("POST", path, body, 400)
    await client.ask("GET", f"{path}?level=loud", status=400)
    await client.ask("POST", "/ojs/v1/jobs/nothing/logs", {"message": "x"}, 404)


async def test_logs_have_a_limit(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.job_logs.MOST_APPENDS", 2)
    path = f"/ojs/v1/jobs/{await client.push()}/logs"
    for _ in range(2):
        await client.ask("POST", path, {"message": "x"}, 201)
    await client.ask("POST", path, {"message": "x"}, 413)
