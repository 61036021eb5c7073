"""Celery: the solo pool for no-op jobs, its fastest, and threads for jobs that wait."""

import time

from celery import Celery

from benchmarks.peers.meter import CONCURRENCY, NOOP, PREFETCH, SLEEP_SECONDS, Arguments, Meter

QUEUE = "bench-celery"

arguments = Arguments()
meter = Meter(arguments.count)
app = Celery("bench", broker=arguments.uri)
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_ignore_result=True,
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=PREFETCH if arguments.kind == NOOP else PREFETCH // CONCURRENCY,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


def run_noop(number: int) -> None:
    if meter.job_done():
        meter.report_and_exit()


def run_sleep(number: int) -> None:
    time.sleep(SLEEP_SECONDS)
    if meter.job_done():
        meter.report_and_exit()


noop = app.task(name="bench.noop")(run_noop)
sleep = app.task(name="bench.sleep")(run_sleep)


def push() -> None:
    task = noop if arguments.kind == NOOP else sleep
    with app.producer_pool.acquire(block=True) as producer:
        app.amqp.queues[QUEUE](producer.channel).declare()
        meter.start()
        for number in range(arguments.count):
            task.apply_async((number,), producer=producer)
        meter.report()


def work() -> None:
    pool = ["--pool=solo"] if arguments.kind == NOOP else ["--pool=threads", f"--concurrency={CONCURRENCY}"]
    app.worker_main(["worker", *pool, "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"])


if __name__ == "__main__":
    push() if arguments.verb == "push" else work()
