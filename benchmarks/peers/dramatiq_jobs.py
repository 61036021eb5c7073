"""Dramatiq: threads, its default eight for no-op jobs."""

import os
import threading
import time

from benchmarks.peers.meter import CONCURRENCY, NOOP, PREFETCH, SLEEP_SECONDS, Arguments, Meter

os.environ["dramatiq_queue_prefetch"] = str(PREFETCH)

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

QUEUE = "bench-dramatiq"
THREADS = 8

arguments = Arguments()
meter = Meter(arguments.count)
broker = RabbitmqBroker(url=arguments.uri, confirm_delivery=True)
dramatiq.set_broker(broker)


def run_noop(number: int) -> None:
    if meter.job_done():
        meter.report_and_exit()


def run_sleep(number: int) -> None:
    time.sleep(SLEEP_SECONDS)
    if meter.job_done():
        meter.report_and_exit()


noop = dramatiq.actor(actor_name="noop", queue_name=QUEUE)(run_noop)
sleep = dramatiq.actor(actor_name="sleep", queue_name=QUEUE)(run_sleep)


def push() -> None:
    actor = noop if arguments.kind == NOOP else sleep
    broker.declare_queue(QUEUE, ensure=True)
    meter.start()
    for number in range(arguments.count):
        actor.send(number)
    meter.report()


def work() -> None:
    worker = dramatiq.Worker(broker, worker_threads=THREADS if arguments.kind == NOOP else CONCURRENCY)
    worker.start()
    threading.Event().wait()


if __name__ == "__main__":
    push() if arguments.verb == "push" else work()
