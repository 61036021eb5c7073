"""What a worker does with a job that it has given up, when the broker did not hear of it."""

from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from waybill import Jobs, Retry, Worker
from waybill.client import ReconnectPolicy

FAST = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.2)


async def test_a_job_whose_rejection_was_lost_still_ends_in_the_dead_letter_queue(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    calls = 0
    async with Proxy(broker_uri) as proxy, Jobs(broker_uri) as client:
        jobs = Jobs(proxy.uri, reconnect=FAST)

        @jobs.handler("retry.lost_nack", queue=queue_name)
        async def lost_nack() -> None:
            nonlocal calls
            calls += 1
            # The confirm of the discard event never comes, so the job is not rejected either.
            proxy.swallowing_answers = True
            raise ValueError("never any good")

        async with Worker(jobs) as worker:
            await client.push("retry.lost_nack", queue=queue_name, retry=Retry(max_attempts=1))
            await until(lambda: worker.counts["discarded"] == 1)
            proxy.cut()
            proxy.swallowing_answers = False
            await until(lambda: worker.redelivered_count == 1)
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 1
    assert calls == 1
