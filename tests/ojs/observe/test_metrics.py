"""The metrics of the binding, as Prometheus would read them, on both brokers."""

import asyncio
from urllib.request import urlopen

from prometheus_client.registry import Collector

from tests.conformance.requirement import requirement
from tests.ojs.eye import until
from tests.ojs.proxy import Proxy
from waybill.cli.worker import serve_metrics
from waybill.client import ReconnectPolicy
from waybill.ojs import Coordinator, Jobs, Retry, Worker
from waybill.ojs.observe.metrics import CoordinatorMetrics, ProducerMetrics

FAST = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.2)


def scrape(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}


@requirement("OJS-106", "OJS-107", "OJS-108", "OJS-109", "OJS-110")
async def test_the_eleven_metrics_tell_what_happened(broker_uri: str, queue_name: str) -> None:
    release, started = asyncio.Event(), asyncio.Event()
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs:

        @jobs.handler("metric.do", queue=queue_name, retry=Retry(max_attempts=1))
        async def do(what: str) -> None:
            if what == "fail":
                raise ValueError(what)
            if what == "wait":
                started.set()
                await release.wait()

        worker = Worker(jobs, queues=[queue_name], concurrency=4)
        with serve_metrics(worker, 0) as port:
            before = await asyncio.to_thread(scrape, port)
            assert before["ojs_amqp_connections_active"] == 0
            async with worker:
                for what in ("pass", "fail", "wait"):
                    await do.push(what)
                await started.wait()
                await until(lambda: worker.counters.acked[queue_name] + worker.counters.nacked[queue_name] == 2)
                found = await asyncio.to_thread(scrape, port)
                proxy.cut()
                await until(lambda: not worker.is_consuming)
                await until(lambda: worker.is_consuming)
                after = await asyncio.to_thread(scrape, port)
                release.set()
                await until(lambda: worker.counts["completed"] == 2)
    label = f'{{queue="{queue_name}"}}'
    assert found["ojs_amqp_connections_active"] == 1
    assert found["ojs_amqp_channels_active"] >= 4
    assert found['ojs_amqp_messages_published_total{queue="events"}'] >= 1
    assert found[f"ojs_amqp_messages_consumed_total{label}"] == 3
    assert found[f"ojs_amqp_messages_acked_total{label}"] == 1
    assert found[f"ojs_amqp_messages_nacked_total{label}"] == 1
    assert found["ojs_amqp_messages_returned_total"] == 0
    assert found[f'ojs_amqp_messages_unacked{{consumer="{queue_name}"}}'] == 1
    assert found[f"ojs_amqp_consumer_utilization{label}"] == 0.25
    assert found["ojs_amqp_publish_confirm_latency_seconds_count"] >= 1
    assert (found["ojs_amqp_reconnections_total"], after["ojs_amqp_reconnections_total"]) == (0, 1)
    assert found['ojs_jobs_attempts_ended_total{outcome="discarded"}'] == 1
    assert found['ojs_job_duration_seconds_count{type="metric.do"}'] == 2


async def test_a_producer_and_a_coordinator_give_the_numbers_to_scale_by(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        producer = ProducerMetrics(jobs)

        @jobs.handler("metric.scale", queue=queue_name)
        async def scale(number: int) -> None: ...

        def values(collector: Collector) -> dict[str, float]:
            return {
                " ".join((sample.name, *sample.labels.values())): sample.value
                for family in collector.collect()
                for sample in family.samples
            }

        await jobs.push_many(scale.job(number) for number in range(3))
        await scale.push(4)
        pushed = values(producer)
        coordinator = Coordinator(jobs, queues=[queue_name, "nobody"])
        async with coordinator:
            await until(lambda: queue_name in coordinator.queue_counts)
            found = await asyncio.to_thread(values, CoordinatorMetrics(coordinator))
    assert pushed[f"ojs_producer_jobs_pushed_total {queue_name}"] == 4
    assert pushed["ojs_producer_push_latency_seconds_count"] == 2
    assert (pushed["ojs_producer_connected"], pushed["ojs_producer_blocked"]) == (1, 0)
    assert (found[f"ojs_queue_backlog {queue_name}"], found[f"ojs_queue_consumers {queue_name}"]) == (4, 0)
    assert "ojs_queue_backlog nobody" not in found
    assert values(producer)["ojs_producer_connected"] == 0
