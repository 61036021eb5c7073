"""The pipeline reads all partitions of the event stream, also those that come later."""

import asyncio
from collections import Counter
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from waybill.ojs import Jobs, Topology, Worker
from waybill.pipeline import tables
from waybill.pipeline.checkpoints import streams_behind
from waybill.pipeline.options import chosen_stream, parse_options
from waybill.pipeline.run import Settings, run_once
from waybill.pipeline.tables import Tables

JOBS = 30


async def work(uri: str, prefix: str, partitions: int) -> set[str]:
    """Push jobs and do them; returns their ids."""
    async with Jobs(uri, topology=Topology(prefix=prefix, event_partitions=partitions), create_queues=True) as jobs:

        @jobs.handler("parts.job", queue="parts")
        async def handle(number: int) -> None: ...

        async with Worker(jobs, queues=["parts"]) as worker:
            pushed = await jobs.push_many(handle.job(number) for number in range(JOBS))
            while worker.counts["completed"] < JOBS:
                await asyncio.sleep(0.01)
        return {job.id for job in pushed}


def test_each_event_of_all_partitions_gets_into_the_tables_once(
    spark: SparkSession, broker_uri: str, tmp_path: Path
) -> None:
    prefix = f"p{uuid4().hex[:8]}."
    stream = f"{prefix}ojs.events"
    ids: set[str] = set()
    # As it was before partitions were read: the checkpoint knows one stream. Then there are two, then three.
    for partitions, given in ((1, f"{stream},"), (2, stream), (3, stream)):
        ids |= asyncio.run(work(broker_uri, prefix, partitions))
        run_once(spark, Settings(broker_uri, tmp_path, stream=given), lambda _: None)
    store = Tables(tmp_path)
    rows = store.read(spark, tables.EVENTS).select("stream", "offset", "position", "event_id", "type").collect()
    streams = [stream, f"{stream}-1", f"{stream}-2"]
    assert Counter(row["stream"] for row in rows).keys() == set(streams)
    assert max(Counter((row["stream"], row["offset"], row["position"]) for row in rows).values()) == 1
    ends = [row["event_id"] for row in rows if row["type"] == "job.completed"]
    assert len(ends) == len(set(ends)) == 3 * JOBS
    states = {row["job_id"]: row["state"] for row in store.read(spark, tables.JOBS).collect()}
    assert states == dict.fromkeys(ids, "completed")

    options = parse_options(dict([("uri", broker_uri), chosen_stream(stream)]), default_stream=None, streaming=True)
    behind = streams_behind(tmp_path / "checkpoint", options)
    assert {name: left for name, (_, _, left) in behind.items()} == dict.fromkeys(streams, 0)
