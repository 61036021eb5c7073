"""Metrics are what Prometheus reads, and count what happens on all servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.backend.conftest import Client, client_of
from waybill.backend.backend import Backend
from waybill.backend.metrics import MOST_COUNTERS, MOST_HISTOGRAMS, MOST_QUEUES, ServerMetrics, family, gauges
from waybill.backend.routes.metrics import LINES_AT_ONCE
from waybill.ojs.coordinator.job_counts import OTHER
from waybill.ojs.errors import DatabaseUnusable
from waybill.ojs.spec.events import ReceivedEvent

Value = tuple[str, tuple[tuple[str, str], ...]]


async def scrape(client: Client, path: str = "/metrics") -> dict[Value, float]:
    response = await client.send("GET", path)
    assert dict(response.headers)["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.body.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def of(found: dict[Value, float], name: str, **labels: str) -> float:
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


async def test_jobs_are_counted_and_measured(uri: str) -> None:
    async with client_of(uri) as one, client_of(uri) as two:
        await scrape(two)
        done, failed, left = [await one.push() for _ in range(3)]
        assert len(await one.fetch(count=2)) == 2
        await one.ack(done)
        error = {"code": "x", "message": "no", "retryable": False}
        await one.nack(failed, error=error)
        await one.ask("DELETE", f"/ojs/v1/jobs/{left}")
        await one.ask("PUT", "/ojs/v1/admin/queues/email/config", {"backpressure": {"max_depth": 4}})
        labels = {"queue": "email", "type": "email.send"}
        while not of(found := await scrape(two, "/ojs/v1/metrics"), "ojs_job_cancelled_total", **labels):
            pass
        for name, count in (("enqueued", 3), ("completed", 1), ("failed", 1), ("retried", 0)):
            assert of(found, f"ojs_job_{name}_total", **labels) == count
        assert of(found, "ojs_queue_depth", queue="email", state="completed") == 1
        assert of(found, "ojs_job_duration_seconds_count", **labels, state="completed") == 1
        assert of(found, "ojs_job_duration_seconds_bucket", **labels, state="completed", le="+Inf") == 1
        assert of(found, "ojs_job_queue_time_seconds_count", **labels) == 2
        assert of(await scrape(one), "ojs_workers_active") == 1


async def test_tenants_and_bounds_are_told_of(client: Client) -> None:
    await client.ask("PUT", "/ojs/v1/admin/tenants/acme", {})
    await client.ask("PUT", "/ojs/v1/admin/queues/acme.a/config", {"backpressure": {"max_depth": 4}})
    for _ in range(3):
        await client.push("acme.a")
    await client.push("other.a")
    await client.fetch("acme.a")
    found = await scrape(client)
    assert of(found, "ojs_tenant_jobs_active", tenant_id="acme", queue="acme.a") == 1
    assert of(found, "ojs_tenant_queue_depth", tenant_id="acme", queue="acme.a") == 2
    assert of(found, "ojs_backpressure_pressure", queue="acme.a") == 0.5
    assert not any("other" in dict(labels).get("tenant_id", "") for _, labels in found)


async def test_the_lag_of_the_job_view_is_told_also_without_the_database(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unusable(_: Backend) -> Mapping[tuple[str, str], int]:
        raise DatabaseUnusable("it is away")

    await client.push()
    monkeypatch.setattr(Backend, "counts", unusable)
    found = await scrape(client)
    assert of(found, "ojs_coordinator_partition_owned", partition="ojs.events") == 1
    assert ("ojs_coordinator_lag_seconds", (("partition", "ojs.events"),)) in found
    assert not any(name == "ojs_queue_depth" for name, _ in found)


def test_a_label_is_quoted() -> None:
    (line,) = [one for one in family("m", "gauge", "t", {(("a", 'x"\\\n'),): 1}) if not one.startswith("#")]
    assert line == 'm{a="x\\"\\\\\\n"} 1'


class Counted(dict[tuple[str, str], int]):
    """Counts of jobs that know how often all of them are read."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


def test_bounds_and_tenants_cost_no_look_at_all_queues_each() -> None:
    reads = []
    for number in (1, 100):
        counts = Counted({(f"t{one}.email", "available"): 1 for one in range(100)})
        bounds = {f"t{one}.email": 2 for one in range(number)}
        text = "\n".join(gauges(counts, {f"t{one}": None for one in range(number)}, bounds, 0))
        assert text.count("ojs_backpressure_pressure{") == text.count("ojs_tenant_queue_depth{") == number
        assert 'ojs_backpressure_pressure{queue="t0.email"} 0.5' in text
        reads.append(counts.reads)
    assert reads[0] == reads[1]


def test_events_of_any_number_of_queues_take_a_bounded_number_of_counters() -> None:
    metrics = ServerMetrics()
    number = MOST_QUEUES + 5000
    metrics.take(
        ReceivedEvent(f"e{one}", "job.enqueued", "/t", "2026-01-01T00:00:00Z", "j", {"queue": f"q{one}"})
        for one in range(number)
    )
    lines = [line for line in metrics.lines() if line.startswith("ojs_job_enqueued_total{")]
    assert len(lines) == MOST_QUEUES + 1
    assert f'ojs_job_enqueued_total{{queue="{OTHER}",type=""}} {number - MOST_QUEUES}' in lines


async def test_metrics_of_many_queues_are_made_in_steps(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def many(_: Backend) -> Mapping[tuple[str, str], int]:
        return {(f"q{one}", "available"): 1 for one in range(5 * LINES_AT_ONCE)}

    monkeypatch.setattr(Backend, "counts", many)
    await scrape(client)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.ensure_future(turn())
    await scrape(client)
    others.cancel()
    assert turns >= 5


def test_queues_beyond_the_limit_have_one_depth_together() -> None:
    most = MOST_QUEUES + 5
    counts = {(f"q{number}", state): 1 + number for number in range(most) for state in ("available", "active")}
    lines = list(gauges(counts, {}, {}, 0))
    assert len(lines) < 4 * MOST_QUEUES
    assert f'ojs_queue_depth{{queue="{OTHER}",state="available"}} {sum(range(1, 6))}' in lines
    assert f'ojs_workers_busy{{queue="q{most - 1}"}} {most}' in lines


def test_combinations_of_labels_are_bounded() -> None:
    metrics = ServerMetrics()
    for number in range(MOST_COUNTERS + 100):
        data: dict[str, object] = {"queue": f"q{number % 300}", "job_type": f"t{number // 300}", "duration_ms": 1}
        metrics.take([ReceivedEvent(str(number), "job.completed", "/t", "2026-01-01T00:00:00Z", "j", data)])
    lines = list(metrics.lines())
    assert f'ojs_job_completed_total{{queue="{OTHER}",type="{OTHER}"}} 100' in lines
    alike = f'ojs_job_duration_seconds_count{{queue="{OTHER}",type="{OTHER}",state="{OTHER}"}}'
    assert f"{alike} {MOST_COUNTERS + 100 - MOST_HISTOGRAMS}" in lines
    assert sum("_count{" in line for line in lines) == MOST_HISTOGRAMS + 1
